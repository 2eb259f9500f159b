package status_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/status"
)

// answers are what the pods say, by name.
type answers map[string]func() (*reloadstatus.Report, error)

// running marks the pods as running, and has each of them loaded what its Secret holds.
func (c cluster) running(t *testing.T) answers {
	t.Helper()
	a := answers{}
	for _, o := range c {
		p, ok := o.(*corev1.Pod)
		if !ok {
			continue
		}
		p.Status.Phase = corev1.PodRunning
		p.Annotations = map[string]string{names.AnnotationMetricsPort: "9100"}
		suffix := "node-tls"
		switch p.Labels[names.LabelComponent] {
		case names.ComponentRegistry:
			suffix = "server-tls"
		case names.ComponentCache:
			suffix = "cache-tls"
		}
		report := c.report(t, suffix)
		a[p.Name] = func() (*reloadstatus.Report, error) { return report, nil }
	}
	return a
}

// report is what a pod says that has loaded a Secret.
func (c cluster) report(t *testing.T, suffix string) *reloadstatus.Report {
	t.Helper()
	data := c["Secret zarf-registry-"+suffix].(*corev1.Secret).Data
	chain, err := pki.ParseChain(data["tls.crt"])
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := pki.ParseBundle(data["ca.crt"])
	if err != nil {
		t.Fatal(err)
	}
	r := &reloadstatus.Report{Certificates: reloadstatus.Certificates{Generation: 1, LoadedAt: now,
		Leaf: reloadstatus.Certificate{SHA256: pki.Fingerprint(chain[0])}}}
	for _, f := range bundle.Fingerprints() {
		r.Certificates.TrustedCAs = append(r.Certificates.TrustedCAs, reloadstatus.Certificate{SHA256: f})
	}
	return r
}

func (c cluster) certificates(t *testing.T, a answers, deny ...string) *status.CertificateReport {
	t.Helper()
	o := c.options(t, deny...)
	o.Loaded = func(_ context.Context, pod *corev1.Pod) (*reloadstatus.Report, error) {
		answer := a[pod.Name]
		if answer == nil {
			return nil, errors.New("pod " + pod.Name + " was not to be asked")
		}
		return answer()
	}
	r, err := status.CollectCertificates(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// podOf is what was found of a pod.
func podOf(t *testing.T, r *status.CertificateReport, name string) status.PodCertificates {
	t.Helper()
	i := slices.IndexFunc(r.Pods, func(p status.PodCertificates) bool { return p.Pod == name })
	if i < 0 {
		t.Fatalf("pod %s is not among %+v", name, r.Pods)
	}
	return r.Pods[i]
}

func TestCertificatesAndWhoHasLoadedThem(t *testing.T) {
	c := healthy(t, state.ModeProxy)
	r := c.certificates(t, c.running(t))
	if !r.Healthy || len(r.Next) > 0 || len(r.Unreadable) > 0 || r.PKI == nil || r.Rotation != nil {
		t.Errorf("report is %+v", r)
	}
	if len(r.Secrets) != 4 {
		t.Fatalf("%d Secrets", len(r.Secrets))
	}
	server := r.Secrets[1]
	if server.Secret != "zarf-registry-server-tls" || server.Kind != "server" || server.CommonName != "server-tls" ||
		!server.Valid || server.Source != nil ||
		server.Subject != "CN=server-tls,O=zarf-registry:server" || !strings.HasSuffix(server.Issuer, "CN=test") ||
		server.DaysLeft != 365 ||
		!slices.Equal(server.Roles, []string{"zarf-registry:server"}) ||
		!slices.Equal(server.DNSNames, []string{"zarf-registry.zarf.svc"}) ||
		len(server.SHA256) != 64 || len(server.Serial) == 0 || len(server.TrustedCAs) != 1 {
		t.Errorf("server is %+v", server)
	}
	if want := now.Add(pki.DefaultLeafLifetime / 2); !server.RenewAt.Equal(want) {
		t.Errorf("it is renewed at %s, want %s", server.RenewAt, want)
	}
	if authority := r.Secrets[0]; authority.Kind != "ca" ||
		!authority.RenewAt.Equal(now.Add(pki.DefaultCALifetime/2)) || authority.SHA256 != server.TrustedCAs[0] {
		t.Errorf("authority is %+v", authority)
	}
	var pods []string
	for _, p := range r.Pods {
		if !p.Current || !p.TrustCurrent || p.Loaded == nil || p.Message != "" || !p.Ready {
			t.Errorf("pod is %+v", p)
		}
		pods = append(pods, p.Component+" "+p.Node+" "+p.Secret)
	}
	if want := []string{"registry n1 zarf-registry-server-tls", "proxy n1 zarf-registry-node-tls",
		"proxy n2 zarf-registry-node-tls"}; !slices.Equal(pods, want) {
		t.Errorf("pods are %q", pods)
	}
}

func TestTheCertificateOfZarfsClients(t *testing.T) {
	c := healthy(t, state.ModeProxy).changeState(t, func(s *state.State) { s.PKI.Zarf = true })
	issue := func(from *corev1.Secret, role string) {
		t.Helper()
		ca, err := pki.ParseCA(pki.KeyPair{Certificate: from.Data["tls.crt"], Key: from.Data["tls.key"]})
		if err != nil {
			t.Fatal(err)
		}
		pair, err := ca.Issue(pki.Leaf{CommonName: "client", Organization: role,
			Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, now)
		if err != nil {
			t.Fatal(err)
		}
		s := secret("client", map[string][]byte{"tls.crt": pair.Certificate, "tls.key": pair.Key,
			"ca.crt": from.Data["tls.crt"]})
		s.Name = names.ZarfClientTLS
		c.add(s)
	}
	issue(c["Secret zarf-registry-ca"].(*corev1.Secret), pki.OrganizationClient)
	if r := c.certificates(t, c.running(t)); !r.Healthy || len(r.Secrets) != 5 || r.Secrets[4].Kind != "client" ||
		!r.Secrets[4].Valid {
		t.Errorf("report is %+v", r)
	}

	other := newAuthority(t, "ca.private.zarf.dev", now, 0).KeyPair()
	issue(secret("", map[string][]byte{"tls.crt": other.Certificate, "tls.key": other.Key}), "Zarf Cluster")
	want := []string{"The certificate in Secret zarf/zarf-registry-client-tls is not usable (Zarf has written another " +
		"certificate): zarf-registry certs renew --namespace zarf issues a new one."}
	if r := c.certificates(t, c.running(t)); r.Healthy || !slices.Equal(r.Next, want) {
		t.Errorf("the next steps are %q, want %q", r.Next, want)
	}
}

func TestWhatAPodHasNotLoadedIsNamedWithWhatToDo(t *testing.T) {
	other := newAuthority(t, "other", now, 0)
	certificate := reloadstatus.Certificate{SHA256: pki.Fingerprint(other.Certificate())}
	for name, c := range map[string]struct {
		change func(cluster, answers)
		pod    string
		why    string
		next   []string
	}{
		"another certificate": {func(c cluster, a answers) {
			r := c.report(t, "push-tls")
			a["proxy-n1"] = func() (*reloadstatus.Report, error) { return r, nil }
		}, "proxy-n1", "uses another certificate than the Secret",
			[]string{"Pod zarf/proxy-n1 has not loaded the content of its Secret (uses another certificate than the Secret): " +
				"the kubelet delivers it within 90 s"}},
		"previous trust": {func(c cluster, a answers) {
			r := c.report(t, "node-tls")
			r.Certificates.TrustedCAs = []reloadstatus.Certificate{certificate}
			a["proxy-n1"] = func() (*reloadstatus.Report, error) { return r, nil }
		}, "proxy-n1", "CAs of the Secret not trusted yet: 1; previous CAs still trusted: 1", []string{"has not loaded"}},
		"more trust than there should be": {func(c cluster, a answers) {
			r := c.report(t, "server-tls")
			r.Certificates.TrustedCAs = append(r.Certificates.TrustedCAs, certificate)
			a["registry-n1"] = func() (*reloadstatus.Report, error) { return r, nil }
		}, "registry-n1", "previous CAs still trusted: 1", []string{"Pod zarf/registry-n1 has not loaded"}},
		"a Secret that it cannot load": {func(c cluster, a answers) {
			r := c.report(t, "node-tls")
			r.Certificates.Problem, r.Certificates.ReloadErrors = "tls.key:\nbroken", 4
			a["proxy-n2"] = func() (*reloadstatus.Report, error) { return r, nil }
		}, "proxy-n2", "tls.key: broken",
			[]string{"Pod zarf/proxy-n2 cannot load the content of its Secret and keeps the previous one (tls.key: broken): " +
				"zarf-registry certs renew --namespace zarf repairs the Secret"}},
		"no answer": {func(_ cluster, a answers) {
			a["proxy-n2"] = func() (*reloadstatus.Report, error) { return nil, errors.New("no answer within 5s") }
		}, "proxy-n2", "no answer within 5s",
			[]string{"Pod zarf/proxy-n2 does not answer (no answer within 5s): this requires permission to get and create " +
				"pods/portforward"}},
		"no answer of one that is not ready": {func(c cluster, a answers) {
			c["Pod proxy-n2"].(*corev1.Pod).Status.Conditions = nil
			a["proxy-n2"] = func() (*reloadstatus.Report, error) { return nil, errors.New("connection refused") }
		}, "proxy-n2", "connection refused", nil},
		"a node that is not ready": {func(c cluster, a answers) {
			c.add(node("n2", false))
			delete(a, "proxy-n2") // to ask it would take its time
		}, "proxy-n2", "node not ready", nil},
		"a pod that does not run yet": {func(c cluster, a answers) {
			c["Pod proxy-n2"].(*corev1.Pod).Status.Phase = corev1.PodPending
			delete(a, "proxy-n2")
		}, "proxy-n2", "not running yet", nil},
		"a Secret that is gone": {func(c cluster, _ answers) {
			c.drop("Secret zarf-registry-node-tls")
		}, "proxy-n1", "the content of its Secret is unknown",
			[]string{"Secret zarf/zarf-registry-node-tls is not usable (not found)"}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := healthy(t, state.ModeProxy)
			a := cluster.running(t)
			c.change(cluster, a)
			r := cluster.certificates(t, a)
			if p := podOf(t, r, c.pod); p.Message != c.why || p.Current && p.TrustCurrent && c.why != "tls.key: broken" {
				t.Errorf("pod is %+v, want it to be so because %q", p, c.why)
			}
			if r.Healthy != (len(c.next) == 0) {
				t.Errorf("healthy is %t", r.Healthy)
			}
			checkNext(t, r.Next, c.next)
		})
	}
}

func TestPodsThatEndAreNotLookedAt(t *testing.T) {
	c := healthy(t, state.ModeProxy)
	a := c.running(t)
	ending := pod("proxy", "n3", true)
	ending.DeletionTimestamp, ending.Finalizers = &metav1.Time{Time: now}, []string{"x/y"}
	done := pod("registry", "n2", false)
	done.Status.Phase = corev1.PodFailed
	r := c.add(ending, done).certificates(t, a)
	if !r.Healthy || len(r.Pods) != 3 {
		t.Errorf("pods are %+v, next %q", r.Pods, r.Next)
	}
}

func TestManyPodsWithOneTroubleAreOneSentence(t *testing.T) {
	c := healthy(t, state.ModeProxy)
	for i := range 40 {
		name := fmt.Sprintf("m%02d", i)
		c.add(node(name, true), pod("proxy", name, true))
	}
	a := c.running(t)
	var mutex sync.Mutex
	asked, most, all := 0, 0, make(chan struct{})
	reached := sync.OnceFunc(func() { close(all) }) // from then on nobody waits
	for name := range a {
		if !strings.HasPrefix(name, "proxy-m") {
			continue
		}
		a[name] = func() (*reloadstatus.Report, error) {
			mutex.Lock()
			asked++
			most = max(most, asked)
			if asked == 16 {
				reached()
			}
			mutex.Unlock()
			select {
			case <-all:
			case <-time.After(time.Minute):
			}
			mutex.Lock()
			asked--
			mutex.Unlock()
			return nil, errors.New("no")
		}
	}
	r := c.certificates(t, a)
	if most != 16 {
		t.Errorf("%d were asked at once", most)
	}
	if len(r.Next) != 1 || !strings.HasPrefix(r.Next[0],
		"Each of 40 pods does not answer (proxy-m00, proxy-m01, proxy-m02, …; the first: no): ") {
		t.Errorf("next is %q", r.Next)
	}
}

func TestCopiesAreComparedWithTheirSource(t *testing.T) {
	user := newAuthority(t, "user", now, 0)
	source := func(name, suffix string, data map[string][]byte) *corev1.Secret {
		if data == nil {
			data = leafOf(t, suffix, user, now, 0)
		}
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: name}, Data: data}
	}
	same := func(c cluster, suffix string) map[string][]byte {
		return c["Secret zarf-registry-"+suffix].(*corev1.Secret).Data
	}
	for name, c := range map[string]struct {
		change func(cluster)
		push   string // the source of the push certificate
		copied bool   // of the server certificate
		why    string
		next   []string
	}{
		"existing Secrets": {func(c cluster) {
			c.existing(t, "my-push").add(source("my-server", "", same(c, "server-tls")),
				source("my-node", "", same(c, "node-tls")), source("my-push", "", same(c, "push-tls")))
		}, "my-push", true, "", nil},
		"existing Secrets but for pushing": {func(c cluster) {
			c.existing(t, "").add(source("my-server", "", same(c, "server-tls")), source("my-node", "", same(c, "node-tls")))
		}, "", true, "", nil},
		"cert-manager": {func(c cluster) {
			c.certManager(t).add(source("zarf-registry-server-issued", "", same(c, "server-tls")),
				source("zarf-registry-node-issued", "", same(c, "node-tls")),
				source("zarf-registry-push-issued", "", same(c, "push-tls")))
		}, "zarf-registry-push-issued", true, "", nil},
		"a new one": {func(c cluster) {
			c.existing(t, "").add(source("my-server", "server-tls", nil), source("my-node", "", same(c, "node-tls")))
		}, "", false, "contains another certificate, which is not in use yet",
			[]string{"Secret zarf/my-server contains another certificate than its copy zarf-registry-server-tls: run " +
				"zarf-registry certs renew --namespace zarf"}},
		"a new one whose authority nobody trusts yet": {func(c cluster) {
			c.existing(t, "").add(source("my-server", "server-tls", nil), source("my-node", "", same(c, "node-tls")))
			c.changeState(t, func(s *state.State) { s.Rotation = &state.Rotation{Phase: state.RotationTrust, Since: now} })
		}, "", false, "contains another certificate, which is not in use yet: the CA rotation comes first", nil},
		"none": {func(c cluster) {
			c.existing(t, "").add(source("my-node", "", same(c, "node-tls")))
		}, "", false, "not found",
			[]string{"Secret zarf/my-server, from which zarf-registry-server-tls is copied, is missing: create it, or set " +
				"pki.existingSecret.server"}},
		"none of cert-manager": {func(c cluster) {
			c.certManager(t).add(source("zarf-registry-node-issued", "", same(c, "node-tls")),
				source("zarf-registry-push-issued", "", same(c, "push-tls")))
		}, "zarf-registry-push-issued", false, "not found",
			[]string{"Secret zarf/zarf-registry-server-issued, from which zarf-registry-server-tls is copied, is missing: " +
				"kubectl --namespace zarf describe certificate zarf-registry-server shows"}},
		"rubbish": {func(c cluster) {
			c.existing(t, "").add(source("my-server", "", map[string][]byte{"tls.crt": []byte("rubbish")}),
				source("my-node", "", same(c, "node-tls")))
		}, "", false, "key tls.crt: ",
			[]string{"Secret zarf/my-server cannot be copied to zarf-registry-server-tls (key tls.crt: "}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := healthy(t, state.ModeProxy)
			c.change(cluster)
			r := cluster.certificates(t, cluster.running(t))
			byName := map[string]*status.SecretCertificate{}
			for _, s := range r.Secrets {
				byName[s.Kind] = s
			}
			server, push := byName["server"], byName["push"]
			if s := server.Source; s == nil || s.Copied != c.copied || !strings.HasPrefix(s.Message, c.why) ||
				(s.Message == "") != (c.why == "") {
				t.Errorf("server's source is %+v", server.Source)
			}
			if got := push.Source; (got == nil) != (c.push == "") || got != nil && (got.Secret != c.push || !got.Copied) {
				t.Errorf("push's source is %+v", got)
			}
			if (byName["ca"] != nil) != (push.Source == nil) {
				t.Errorf("authority is %+v", byName["ca"])
			}
			// Only its owner knows when it is renewed.
			if certManager := r.PKI.Mode == state.PKICertManager; server.RenewAt.IsZero() == certManager ||
				push.RenewAt.IsZero() == (certManager || push.Source == nil) {
				t.Errorf("renewed at %s and %s", server.RenewAt, push.RenewAt)
			}
			checkNext(t, r.Next, c.next)
		})
	}
}

func TestAnExternalRegistryHasNoCertificates(t *testing.T) {
	r := healthy(t, state.ModeExternal).certificates(t, answers{})
	if !r.Healthy || r.External != "registry.example.com/team" || len(r.Secrets) > 0 || len(r.Pods) > 0 {
		t.Errorf("report is %+v", r)
	}
}

func TestCertificatesOfWhatMayNotBeReadAreLeftOut(t *testing.T) {
	for deny, want := range map[string]string{
		"list nodes":  "listing nodes",
		"list pods":   "listing the pods of component registry in namespace zarf",
		"get secrets": "reading Secret zarf/zarf-registry-state",
	} {
		c := healthy(t, state.ModeProxy)
		r := c.certificates(t, c.running(t), deny)
		if r.Healthy || len(r.Unreadable) == 0 || !strings.HasPrefix(r.Unreadable[0], want) {
			t.Errorf("%s: unreadable is %q", deny, r.Unreadable)
		}
	}
}

func TestAskingEndsWithItsTime(t *testing.T) {
	c := healthy(t, state.ModeProxy)
	c.running(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	o := c.options(t)
	o.Loaded = func(context.Context, *corev1.Pod) (*reloadstatus.Report, error) {
		cancel(errors.New("the time is over"))
		return nil, errors.New("asking: canceled")
	}
	if _, err := status.CollectCertificates(ctx, o); err == nil || err.Error() != "the time is over" {
		t.Errorf("error is %v", err)
	}
	if _, err := status.CollectCertificates(t.Context(), (cluster{}).options(t)); !errors.Is(err, status.ErrNotInstalled) {
		t.Errorf("with nothing installed: error is %v", err)
	}
}

func TestTimesThatAreLeftReadWell(t *testing.T) {
	for want, left := range map[string]time.Duration{
		"365 days": 365*24*time.Hour + time.Minute,
		"2 days":   48 * time.Hour,
		"47h59m":   48*time.Hour - time.Second,
		"1h0m":     time.Hour,
		"9m59s":    10*time.Minute - time.Millisecond,
		"30s":      30 * time.Second,
	} {
		if got := status.Remaining(left); got != want {
			t.Errorf("%s is %q, want %q", left, got, want)
		}
	}
}

func TestFailingStorageIsNamed(t *testing.T) {
	c := healthy(t, state.ModeProxy)
	p := pod("registry", "n1", false)
	p.Status.PodIP = "10.1.0.5"
	c.add(p)
	o := c.options(t)
	o.Loaded = func(_ context.Context, pod *corev1.Pod) (*reloadstatus.Report, error) {
		return &reloadstatus.Report{StorageError: "storage: bucket images:\nNoSuchBucket"}, nil
	}
	r := collect(t, o)
	const why = "storage: bucket images: NoSuchBucket"
	if r.Registry.Message != why || !slices.Contains(r.Next,
		"The registry is not ready ("+why+"): it is ready again once its storage responds.") {
		t.Errorf("why %q, next %q", r.Registry.Message, r.Next)
	}
}

func TestWhatTheRegistryReports(t *testing.T) {
	full := func(used int64) reloadstatus.Report {
		return reloadstatus.Report{Space: &space.Usage{Used: used, Limit: 100_000}}
	}
	damaged := func(problems int, images ...string) reloadstatus.Report {
		return reloadstatus.Report{Scrub: &reloadstatus.Scrub{FinishedAt: now, Problems: problems, Images: images}}
	}
	collected := func(g reloadstatus.GarbageCollection) reloadstatus.Report {
		return reloadstatus.Report{GarbageCollection: &g}
	}
	for name, test := range map[string]struct {
		answer reloadstatus.Report
		next   string
	}{
		"nothing": {},
		"space":   {full(84_900), ""},
		"little space": {full(85_000), "The registry's storage is nearly full (85.0 % of the volume is used, 85.0 kB of " +
			"100.0 kB; pushes are refused from 95 %): delete or prune images, run zarf-registry garbage-collect, or enlarge the " +
			"volume (registry.persistence.size)."},
		"no space": {full(95_000), "The registry's storage is full (95.0 % of the volume is used, 95.0 kB of 100.0 kB; " +
			"pushes are refused): delete or prune images, run zarf-registry garbage-collect, or enlarge the " +
			"volume (registry.persistence.size)."},
		"everything is intact": {damaged(0), ""},
		"images are damaged": {damaged(2, "a:v1", "b:v2"), "The registry's storage lacks content, or has damaged content, " +
			"of a:v1 b:v2: push these images again."},
		"garbage is damaged": {damaged(1), "The registry's storage has damaged content that no image needs: zarf-registry " +
			"garbage-collect --namespace zarf removes it."},
		"garbage is being collected": {collected(reloadstatus.GarbageCollection{Running: true, SucceededAt: &now}), ""},
		"the last collection failed": {collected(reloadstatus.GarbageCollection{Problem: "disk\ngone"}),
			"The last garbage collection failed (disk gone): zarf-registry garbage-collect --namespace zarf runs it again."},
	} {
		if test.answer.GarbageCollection == nil {
			test.answer.GarbageCollection = &reloadstatus.GarbageCollection{}
		}
		o := healthy(t, state.ModeProxy).options(t)
		o.Loaded = func(_ context.Context, pod *corev1.Pod) (*reloadstatus.Report, error) {
			if pod.Name != "registry-n1" {
				t.Errorf("%s: it asks pod %s", name, pod.Name)
			}
			return &test.answer, nil
		}
		r := collect(t, o)
		if strings.Join(r.Next, " ") != test.next || r.Healthy != (test.next == "") {
			t.Errorf("%s: next is %q, want %q", name, r.Next, test.next)
		}
		got := reloadstatus.Report{GarbageCollection: r.Registry.GarbageCollection, Space: r.Registry.Space,
			Scrub: r.Registry.Scrub}
		if !reflect.DeepEqual(got, test.answer) {
			t.Errorf("%s: the report has %+v of %+v", name, r.Registry, test.answer)
		}
	}
}

func TestARegistryThatDoesNotReport(t *testing.T) {
	for _, problem := range []error{nil, errors.New("forbidden")} {
		o := healthy(t, state.ModeProxy).options(t)
		o.Loaded = func(context.Context, *corev1.Pod) (*reloadstatus.Report, error) {
			return &reloadstatus.Report{}, problem
		}
		if r := collect(t, o); !r.Healthy || r.Registry.GarbageCollection != nil {
			t.Errorf("%v: %+v", problem, r)
		}
	}
}

func TestLostContentIsReportedOnceImagesWerePushed(t *testing.T) {
	const next = "The registry's storage has lost its content: run zarf-registry install --namespace zarf, which pushes the " +
		"project's images, and push yours again, from a backup or from their archives."
	pushed := &state.HookImage{Reference: "zarf-registry/init-hook:0.1.0", Architecture: "amd64"}
	for name, test := range map[string]struct {
		phase state.Phase
		image *state.HookImage
		empty bool
		want  []string
	}{
		"lost":                  {state.PhaseReady, pushed, true, []string{next}},
		"there":                 {state.PhaseReady, pushed, false, nil},
		"not pushed yet":        {state.PhasePrepared, pushed, true, nil},
		"from another registry": {state.PhaseReady, nil, true, nil},
	} {
		o := healthy(t, state.ModeProxy).changeState(t, func(s *state.State) {
			s.Phase, s.HookImage = test.phase, test.image
		}).options(t)
		o.Loaded = func(context.Context, *corev1.Pod) (*reloadstatus.Report, error) {
			return &reloadstatus.Report{GarbageCollection: &reloadstatus.GarbageCollection{}, StorageEmpty: test.empty}, nil
		}
		r := collect(t, o)
		next := slices.DeleteFunc(r.Next, func(s string) bool { return strings.Contains(s, "is not verified") })
		if !slices.Equal(next, append([]string{}, test.want...)) || r.Registry.StorageEmpty != (test.want != nil) {
			t.Errorf("%s: empty %t, next %q", name, r.Registry.StorageEmpty, next)
		}
	}
}
