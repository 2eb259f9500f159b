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

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/status"
	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// answers are what the pods say, by name.
type answers map[string]func() (*loaded.State, error)

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
		a[p.Name] = func() (*loaded.State, error) { return report, nil }
	}
	return a
}

// report is what a pod says that has loaded a Secret.
func (c cluster) report(t *testing.T, suffix string) *loaded.State {
	t.Helper()
	data := c.data(suffix)
	chain := require.Value(pki.ParseChain(data["tls.crt"]))(t)
	bundle := require.Value(pki.ParseBundle(data["ca.crt"]))(t)
	r := &loaded.State{Certificates: loaded.Certificates{Generation: 1, LoadedAt: now,
		Leaf: loaded.Certificate{SHA256: pki.Fingerprint(chain[0])}}}
	for _, f := range bundle.Fingerprints() {
		r.Certificates.TrustedCAs = append(r.Certificates.TrustedCAs, loaded.Certificate{SHA256: f})
	}
	return r
}

func (c cluster) certificates(t *testing.T, a answers, deny ...string) *status.CertificateReport {
	t.Helper()
	o := c.options(t, deny...)
	o.Loaded = func(_ context.Context, pod *corev1.Pod) (*loaded.State, error) {
		answer := a[pod.Name]
		if answer == nil {
			return nil, errors.New("pod " + pod.Name + " was not to be asked")
		}
		return answer()
	}
	return require.Value(status.CollectCertificates(t.Context(), o))(t)
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
		ca := require.Value(pki.ParseCA(pki.KeyPair{Certificate: from.Data["tls.crt"], Key: from.Data["tls.key"]}))(t)
		pair, err := ca.Issue(pki.Leaf{CommonName: "client", Organization: role,
			Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, now)
		require.NoError(t, err)
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
	certificate := loaded.Certificate{SHA256: pki.Fingerprint(other.Certificate())}
	golden := golden.Open(t, "loaded")
	for name, change := range map[string]func(cluster, answers){
		"another certificate": func(c cluster, a answers) {
			r := c.report(t, "push-tls")
			a["proxy-n1"] = func() (*loaded.State, error) { return r, nil }
		},
		"previous trust": func(c cluster, a answers) {
			r := c.report(t, "node-tls")
			r.Certificates.TrustedCAs = []loaded.Certificate{certificate}
			a["proxy-n1"] = func() (*loaded.State, error) { return r, nil }
		},
		"more trust than there should be": func(c cluster, a answers) {
			r := c.report(t, "server-tls")
			r.Certificates.TrustedCAs = append(r.Certificates.TrustedCAs, certificate)
			a["registry-n1"] = func() (*loaded.State, error) { return r, nil }
		},
		"a Secret that it cannot load": func(c cluster, a answers) {
			r := c.report(t, "node-tls")
			r.Certificates.Problem, r.Certificates.ReloadErrors = "tls.key:\nbroken", 4
			a["proxy-n2"] = func() (*loaded.State, error) { return r, nil }
		},
		"no answer": func(_ cluster, a answers) {
			a["proxy-n2"] = func() (*loaded.State, error) { return nil, errors.New("no answer within 5s") }
		},
		"no answer of one that is not ready": func(c cluster, a answers) {
			c["Pod proxy-n2"].(*corev1.Pod).Status.Conditions = nil
			a["proxy-n2"] = func() (*loaded.State, error) { return nil, errors.New("connection refused") }
		},
		"a node that is not ready": func(c cluster, a answers) {
			c.add(node("n2", false))
			delete(a, "proxy-n2") // to ask it would take its time
		},
		"a pod that does not run yet": func(c cluster, a answers) {
			c["Pod proxy-n2"].(*corev1.Pod).Status.Phase = corev1.PodPending
			delete(a, "proxy-n2")
		},
		"a Secret that is gone": func(c cluster, _ answers) { c.drop("Secret zarf-registry-node-tls") },
	} {
		t.Run(name, func(t *testing.T) {
			cluster := healthy(t, state.ModeProxy)
			a := cluster.running(t)
			change(cluster, a)
			r := cluster.certificates(t, a)
			var text strings.Builder
			for _, p := range r.Pods {
				if !p.Current || !p.TrustCurrent || p.Message != "" {
					fmt.Fprintf(&text, "%s: current: %t, trust: %t, %s\n", p.Pod, p.Current, p.TrustCurrent, p.Message)
				}
			}
			golden.Check(t, name, text.String()+strings.Join(r.Next, "\n"))
			if r.Healthy != (len(r.Next) == 0) {
				t.Errorf("healthy is %t", r.Healthy)
			}
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
		a[name] = func() (*loaded.State, error) {
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
	golden := golden.Open(t, "sources")
	for name, change := range map[string]func(cluster){
		"existing Secrets": func(c cluster) {
			c.existing(t, "my-push").add(source("my-server", "", c.data("server-tls")),
				source("my-node", "", c.data("node-tls")), source("my-push", "", c.data("push-tls")))
		},
		"existing Secrets but for pushing": func(c cluster) {
			c.existing(t, "").add(source("my-server", "", c.data("server-tls")), source("my-node", "", c.data("node-tls")))
		},
		"cert-manager": func(c cluster) {
			c.certManager(t).add(source("zarf-registry-server-issued", "", c.data("server-tls")),
				source("zarf-registry-node-issued", "", c.data("node-tls")),
				source("zarf-registry-push-issued", "", c.data("push-tls")))
		},
		"a new one": func(c cluster) {
			c.existing(t, "").add(source("my-server", "server-tls", nil), source("my-node", "", c.data("node-tls")))
		},
		"a new one whose authority nobody trusts yet": func(c cluster) {
			c.existing(t, "").add(source("my-server", "server-tls", nil), source("my-node", "", c.data("node-tls")))
			c.changeState(t, func(s *state.State) { s.Rotation = &state.Rotation{Phase: state.RotationTrust, Since: now} })
		},
		"none": func(c cluster) { c.existing(t, "").add(source("my-node", "", c.data("node-tls"))) },
		"none of cert-manager": func(c cluster) {
			c.certManager(t).add(source("zarf-registry-node-issued", "", c.data("node-tls")),
				source("zarf-registry-push-issued", "", c.data("push-tls")))
		},
		"rubbish": func(c cluster) {
			c.existing(t, "").add(source("my-server", "", map[string][]byte{"tls.crt": []byte("rubbish")}),
				source("my-node", "", c.data("node-tls")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := healthy(t, state.ModeProxy)
			change(cluster)
			r := cluster.certificates(t, cluster.running(t))
			var text strings.Builder
			for _, s := range r.Secrets {
				// Only the owner of a source knows when it is renewed.
				fmt.Fprintf(&text, "%s, renewed by us: %t", s.Kind, !s.RenewAt.IsZero())
				if s := s.Source; s != nil {
					fmt.Fprintf(&text, ", source %s, copied: %t, %s", s.Secret, s.Copied, s.Message)
				}
				text.WriteString("\n")
			}
			golden.Check(t, name, text.String()+strings.Join(r.Next, "\n"))
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
	o.Loaded = func(context.Context, *corev1.Pod) (*loaded.State, error) {
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
	o.Loaded = func(_ context.Context, pod *corev1.Pod) (*loaded.State, error) {
		return &loaded.State{StorageError: "storage: bucket images:\nNoSuchBucket"}, nil
	}
	r := collect(t, o)
	const why = "storage: bucket images: NoSuchBucket"
	if r.Registry.Message != why || !slices.Contains(r.Next,
		"The registry is not ready ("+why+"): it is ready again once its storage responds.") {
		t.Errorf("why %q, next %q", r.Registry.Message, r.Next)
	}
}

func TestWhatTheRegistryReports(t *testing.T) {
	full := func(used int64) loaded.State {
		return loaded.State{Space: &space.Usage{Used: used, Limit: 100_000}}
	}
	damaged := func(problems int, images ...string) loaded.State {
		return loaded.State{Scrub: &loaded.Scrub{FinishedAt: now, Problems: problems, Images: images}}
	}
	collected := func(g loaded.GarbageCollection) loaded.State {
		return loaded.State{GarbageCollection: &g}
	}
	golden := golden.Open(t, "registry")
	for name, answer := range map[string]loaded.State{
		"nothing":                    {},
		"space":                      full(84_900),
		"little space":               full(85_000),
		"no space":                   full(95_000),
		"everything is intact":       damaged(0),
		"images are damaged":         damaged(2, "a:v1", "b:v2"),
		"garbage is damaged":         damaged(1),
		"garbage is being collected": collected(loaded.GarbageCollection{Running: true, SucceededAt: &now}),
		"the last collection failed": collected(loaded.GarbageCollection{Problem: "disk\ngone"}),
	} {
		if answer.GarbageCollection == nil {
			answer.GarbageCollection = &loaded.GarbageCollection{}
		}
		o := healthy(t, state.ModeProxy).options(t)
		o.Loaded = func(_ context.Context, pod *corev1.Pod) (*loaded.State, error) {
			if pod.Name != "registry-n1" {
				t.Errorf("%s: it asks pod %s", name, pod.Name)
			}
			return &answer, nil
		}
		r := collect(t, o)
		golden.Check(t, name, told(t, state.ModeProxy, r))
		got := loaded.State{GarbageCollection: r.Registry.GarbageCollection, Space: r.Registry.Space,
			Scrub: r.Registry.Scrub}
		if !reflect.DeepEqual(got, answer) {
			t.Errorf("%s: the report has %+v of %+v", name, r.Registry, answer)
		}
	}
}

func TestARegistryThatDoesNotReport(t *testing.T) {
	for _, problem := range []error{nil, errors.New("forbidden")} {
		o := healthy(t, state.ModeProxy).options(t)
		o.Loaded = func(context.Context, *corev1.Pod) (*loaded.State, error) {
			return &loaded.State{}, problem
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
		o.Loaded = func(context.Context, *corev1.Pod) (*loaded.State, error) {
			return &loaded.State{GarbageCollection: &loaded.GarbageCollection{}, StorageEmpty: test.empty}, nil
		}
		r := collect(t, o)
		next := slices.DeleteFunc(r.Next, func(s string) bool { return strings.Contains(s, "is not verified") })
		if !slices.Equal(next, append([]string{}, test.want...)) || r.Registry.StorageEmpty != (test.want != nil) {
			t.Errorf("%s: empty %t, next %q", name, r.Registry.StorageEmpty, next)
		}
	}
}
