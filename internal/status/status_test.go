package status_test

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/status"
	"github.com/zarf-dev/zarf-registry/internal/status/show"
	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const (
	pause        = "registry.k8s.io/pause:3.10.1"
	otherPause   = "registry.k8s.io/pause:3.9"
	registryLoad = "zarf-registry-payload-0.1.0-registry-amd64"
	nodeLoad     = "zarf-registry-payload-registry-node-amd64"
)

// cluster is one with the registry in it, by "Kind name"; tests change it before
// they look.
type cluster map[string]runtime.Object

func meta(name, component string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "zarf", Name: name, Labels: map[string]string{
		"app.kubernetes.io/instance": "zarf-registry", "app.kubernetes.io/component": component,
	}}
}

func secret(suffix string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: meta("zarf-registry-"+suffix, suffix), Data: data}
}

// data is the content of a Secret.
func (c cluster) data(suffix string) map[string][]byte {
	return c["Secret zarf-registry-"+suffix].(*corev1.Secret).Data
}

// nodePort is the Service that owns the node port.
func (c cluster) nodePort() *corev1.Service {
	return c["Service zarf-registry-nodeport"].(*corev1.Service)
}

func node(name string, ready bool, images ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.NodeInfo.OperatingSystem = "linux"
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: condition(ready)}}
	for _, image := range images {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{image,
			strings.Split(image, ":")[0] + "@sha256:0"}})
	}
	return n
}

func condition(yes bool) corev1.ConditionStatus {
	if yes {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

func pod(component, node string, ready bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta(component+"-"+node, component)}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: component, Image: pause, Command: []string{"/payload/loader"}}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: condition(ready)}}
	if !ready {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: component,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull",
				Message: "no such\nhost"}}}}
	}
	return p
}

func service(name string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{Ports: ports}}
}

func template(payload string) corev1.PodTemplateSpec {
	source := func(index int) corev1.VolumeProjection {
		return corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: fmt.Sprintf("%s-%02d", payload, index)}}}
	}
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "payload", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{source(0), source(1), source(2), source(3)}}}},
		{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}},
	}}}
}

func (c cluster) add(objects ...runtime.Object) cluster {
	for _, o := range objects {
		c[key(o)] = o
	}
	return c
}

func key(o runtime.Object) string {
	m := o.(metav1.Object)
	return strings.TrimPrefix(fmt.Sprintf("%T ", o), "*v1.") + m.GetName()
}

func (c cluster) drop(keys ...string) cluster {
	for _, k := range keys {
		if _, ok := c[k]; !ok {
			panic(k + " is not there")
		}
		delete(c, k)
	}
	return c
}

// settings of a mode.
func settings(mode state.Mode) state.Settings {
	s := state.Settings{Mode: mode, Address: "127.0.0.1:31999", Port: 31999, IPFamily: state.IPv4, PKIMode: "internal",
		DecidedBy: state.SourceValue}
	if mode == state.ModeExternal {
		s.Address, s.Port = "registry.example.com/team", 0
	}
	return s
}

func internalPKI() *state.PKI {
	return &state.PKI{
		Mode: state.PKIInternal, ClusterDomain: "cluster.local",
		LeafLifetime: state.Duration(pki.DefaultLeafLifetime), CALifetime: state.Duration(pki.DefaultCALifetime),
	}
}

// changeState edits the saved state.
func (c cluster) changeState(t *testing.T, change func(*state.State)) cluster {
	t.Helper()
	saved := c["Secret zarf-registry-state"].(*corev1.Secret)
	s, err := state.Decode(saved.Data[state.Key])
	require.NoError(t, err)
	change(&s)
	saved.Data[state.Key] = require.Value(state.Encode(s, nil))(t)
	return c
}

func (c cluster) state(t *testing.T, phase state.Phase, desired, current state.Mode) cluster {
	t.Helper()
	s := state.State{Phase: phase, Desired: settings(desired), VerifiedNodes: []string{"n1", "n2"}, UpdatedBy: "0.1.0",
		UpdatedAt: now.Add(-time.Hour)}
	if desired != state.ModeExternal {
		s.PKI = internalPKI()
	}
	if current != "" {
		present := settings(current)
		s.Current = &present
	}
	return c.add(secret("state", map[string][]byte{state.Key: require.Value(state.Encode(s, nil))(t)}))
}

// healthy is a cluster with nothing wrong, in a mode.
func healthy(t *testing.T, mode state.Mode) cluster {
	t.Helper()
	c := cluster{}.state(t, state.PhaseReady, mode, mode)
	c.add(node("n1", true, pause), node("n2", true, pause))
	c.add(revision(1, "superseded"), revision(2, "deployed"), revision(10, "deployed"))
	if mode == state.ModeExternal {
		return c
	}
	c.authority(t, newAuthority(t, "test", now, 0), now, 0)
	c.add(&appsv1.Deployment{ObjectMeta: meta("zarf-registry", "registry"),
		Spec: appsv1.DeploymentSpec{Template: template(registryLoad)}})
	c.add(pod("registry", "n1", true), &corev1.Service{ObjectMeta: meta("zarf-registry", "registry")})
	c.payload(t, registryLoad, "registry", 2_500_000)
	if mode == state.ModeProxy {
		d := &appsv1.DaemonSet{ObjectMeta: meta("zarf-registry-proxy-amd64", "proxy"),
			Spec: appsv1.DaemonSetSpec{Template: template(nodeLoad)}}
		d.Status.DesiredNumberScheduled, d.Status.CurrentNumberScheduled = 2, 2
		c.add(d, pod("proxy", "n1", true), pod("proxy", "n2", true))
		c.payload(t, nodeLoad, "registry-node", 1_500_000)
	}
	owner := &corev1.Service{ObjectMeta: meta("zarf-registry-nodeport", "registry"),
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 5001, NodePort: 31999}}}}
	c.add(owner)
	if mode == state.ModeProxy {
		owner.Labels[plan.LabelProxyName] = "zarf-registry"
	}
	if mode == state.ModeNodePort {
		c.add(secret("pull", map[string][]byte{"htpasswd": []byte("x")}))
	}
	return c
}

// unreserved is what prepare records with reservePort=false.
func (c cluster) unreserved(t *testing.T) {
	t.Helper()
	c.changeState(t, func(s *state.State) { s.PortNotReserved = "reservePort=false" })
}

// secretSuffixes are those of the certificates' Secrets that the pods mount, server first.
var secretSuffixes = []string{"server-tls", "node-tls", "push-tls"}

// certificate adds a Secret as the hook makes it, of an authority that it trusts.
func (c cluster) certificate(t *testing.T, suffix string, authority *pki.CA, from time.Time, lifetime time.Duration) {
	t.Helper()
	c.add(secret(suffix, leafOf(t, suffix, authority, from, lifetime)))
}

func leafOf(t *testing.T, suffix string, authority *pki.CA, from time.Time, lifetime time.Duration) map[string][]byte {
	t.Helper()
	leaf := map[string]pki.Leaf{
		"server-tls": {Organization: pki.OrganizationServer, DNSNames: []string{"zarf-registry.zarf.svc"},
			Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}},
		"node-tls": {Organization: pki.OrganizationNode, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		"push-tls": {Organization: pki.OrganizationPush, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		"cache-tls": {Organization: pki.OrganizationCache, DNSNames: []string{"zarf-registry-cache.zarf.svc"},
			Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}},
	}[suffix]
	leaf.CommonName, leaf.Lifetime = suffix, lifetime
	pair := require.Value(authority.Issue(leaf, from))(t)
	return map[string][]byte{"tls.crt": pair.Certificate, "tls.key": pair.Key, "ca.crt": authority.KeyPair().Certificate}
}

func newAuthority(t *testing.T, name string, from time.Time, lifetime time.Duration) *pki.CA {
	t.Helper()
	return require.Value(pki.NewCA(name, from, lifetime))(t)
}

// authority replaces all certificates by those of another authority.
func (c cluster) authority(t *testing.T, a *pki.CA, from time.Time, lifetime time.Duration) cluster {
	t.Helper()
	c.add(secret("ca", map[string][]byte{"tls.crt": a.KeyPair().Certificate, "tls.key": a.KeyPair().Key}))
	for _, name := range secretSuffixes {
		c.certificate(t, name, a, from, lifetime)
	}
	return c
}

// payload adds the ConfigMaps of a program of so many bytes.
func (c cluster) payload(t *testing.T, name, program string, size int) {
	t.Helper()
	p, ok := payloads[program]
	if !ok {
		noise := make([]byte, size)
		x := uint32(1)
		for i := range noise {
			x = x*1664525 + 1013904223
			noise[i] = byte(x >> 24)
		}
		layer, err := injector.BuildLayer(program, noise)
		require.NoError(t, err)
		if p, err = injector.Encode(injector.Program{Name: program, Architecture: "amd64"}, layer,
			[]byte("loader")); err != nil {
			t.Fatal(err)
		}
		payloads[program] = p
	}
	for _, o := range p.Objects() {
		c.add(&corev1.ConfigMap{ObjectMeta: meta(fmt.Sprintf("%s-%02d", name, o.Index), "payload"),
			BinaryData: maps.Clone(o.Data)})
	}
}

// payloads are made once: to compress them takes time.
var payloads = map[string]*injector.Payload{}

// revision is a Secret as Helm's driver makes it.
func revision(version int, status string) *corev1.Secret {
	return &corev1.Secret{Type: "helm.sh/release.v1", ObjectMeta: metav1.ObjectMeta{
		Namespace: "zarf", Name: fmt.Sprintf("sh.helm.release.v1.zarf-registry.v%d", version),
		Labels: map[string]string{"owner": "helm", "name": "zarf-registry", "version": fmt.Sprint(version), "status": status},
	}}
}

// collect looks at the cluster; deny are "verb resource" that are forbidden.
func (c cluster) collect(t *testing.T, deny ...string) *status.Report {
	t.Helper()
	return collect(t, c.options(t, deny...))
}

func collect(t *testing.T, o status.Options) *status.Report {
	t.Helper()
	return require.Value(status.Collect(t.Context(), o))(t)
}

func (c cluster) options(t *testing.T, deny ...string) status.Options {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	require.NoError(t, metav1.AddMetaToScheme(scheme))
	var partial []runtime.Object
	for _, k := range slices.Sorted(maps.Keys(c)) {
		switch o := c[k].(type) {
		case *corev1.Secret:
			partial = append(partial, &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
				ObjectMeta: o.ObjectMeta})
		case *corev1.ConfigMap:
			partial = append(partial, &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1",
				Kind: "ConfigMap"}, ObjectMeta: o.ObjectMeta})
		}
	}
	client, names := fake.NewClientset(slices.Collect(maps.Values(c))...),
		metadatafake.NewSimpleMetadataClient(scheme, partial...)
	refuse := func(a kubetesting.Action) (bool, runtime.Object, error) {
		if a.GetVerb() != "get" && a.GetVerb() != "list" {
			t.Errorf("it asked for %s %s", a.GetVerb(), a.GetResource().Resource)
		}
		if slices.Contains(deny, a.GetVerb()+" "+a.GetResource().Resource) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: a.GetResource().Resource}, "",
				errors.New("no"))
		}
		return false, nil, nil
	}
	client.PrependReactor("*", "*", refuse)
	names.PrependReactor("*", "*", refuse)
	return status.Options{
		Namespace: "zarf", Release: "zarf-registry", Name: "zarf-registry",
		Client: client, Metadata: names, Now: func() time.Time { return now },
		Loaded: func(context.Context, *corev1.Pod) (*loaded.State, error) { return nil, errors.New("forbidden") },
	}
}

func TestNothingIsToBeDoneInAHealthyCluster(t *testing.T) {
	for _, mode := range []state.Mode{state.ModeProxy, state.ModeNodePort, state.ModeExternal} {
		t.Run(string(mode), func(t *testing.T) {
			r := healthy(t, mode).collect(t)
			if !r.Healthy || len(r.Next) > 0 || len(r.Unreadable) > 0 || len(r.Leftovers) > 0 {
				t.Errorf("next is %q, unreadable %q, left over %q", r.Next, r.Unreadable, r.Leftovers)
			}
			if r.Helm == nil || r.Helm.Revision != 10 || r.Helm.Status != "deployed" {
				t.Errorf("release is %+v", r.Helm)
			}
			if len(r.Nodes) != 2 || r.Nodes[0] != (status.Node{Name: "n1", Ready: true, Via: string(mode), Endpoint: true,
				Verified: true}) {
				t.Errorf("nodes are %+v", r.Nodes)
			}
			certificates, payloads := 4, map[state.Mode]int{state.ModeProxy: 2, state.ModeNodePort: 1}[mode]
			if mode == state.ModeExternal {
				certificates = 0
			}
			if len(r.Certificates) != certificates || len(r.Payloads) != payloads ||
				(r.Registry == nil) != (mode == state.ModeExternal) {
				t.Errorf("registry %v, certificates %+v, payloads %+v", r.Registry, r.Certificates, r.Payloads)
			}
			for _, c := range r.Certificates {
				if !c.Valid || c.DaysLeft < 364 || c.Subject == "" {
					t.Errorf("certificate is %+v", c)
				}
			}
			if len(r.Payloads) > 0 && (r.Payloads[0] != status.Payload{Name: registryLoad, Present: 3, Desired: 3,
				Complete: true}) {
				t.Errorf("payload is %+v", r.Payloads[0])
			}
		})
	}
}

// existing has certificates of the user; with no push Secret that one is made.
func (c cluster) existing(t *testing.T, push string) cluster {
	t.Helper()
	return c.changeState(t, func(s *state.State) {
		s.PKI.Mode, s.PKI.Existing = state.PKIExistingSecret, &state.ExistingSecrets{Server: "my-server", Node: "my-node",
			Push: push}
	})
}

func (c cluster) certManager(t *testing.T) cluster {
	t.Helper()
	return c.changeState(t, func(s *state.State) {
		s.PKI.Mode, s.PKI.Issuer = state.PKICertManager, &state.Issuer{Name: "corp", Kind: "ClusterIssuer", Group: "cert-manager.io"}
	})
}

// usual are the lines about a healthy cluster, by mode.
var usual sync.Map

// told returns what a report says of a cluster in a mode that it does not say of a healthy one.
func told(t *testing.T, mode state.Mode, r *status.Report) string {
	t.Helper()
	lines := func(r *status.Report) (lines []string) {
		label := ""
		for _, fact := range show.Facts(r) {
			label = cmp.Or(fact.Label, label)
			lines = append(lines, label+": "+fact.Text)
		}
		for _, n := range r.Nodes {
			lines = append(lines, encode(n))
		}
		for _, n := range r.NodeConfig {
			lines = append(lines, encode(n))
		}
		return slices.Concat(lines, r.Unreadable, r.Leftovers)
	}
	known, ok := usual.Load(mode)
	if !ok {
		known = lines(healthy(t, mode).collect(t))
		usual.Store(mode, known)
	}
	text := slices.DeleteFunc(lines(r), func(l string) bool { return slices.Contains(known.([]string), l) })
	for _, next := range r.Next {
		text = append(text, "next: "+next)
	}
	if r.Healthy != (len(r.Next) == 0) {
		t.Errorf("healthy: %t, next: %q", r.Healthy, r.Next)
	}
	return strings.Join(text, "\n")
}

// reports compares the reports about clusters that differ from a healthy one, in a mode, with a golden file.
func reports(t *testing.T, file string, mode state.Mode, base func(cluster), changes map[string]func(cluster)) {
	t.Helper()
	golden := golden.Open(t, file)
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			c := healthy(t, mode)
			if base != nil {
				base(c)
			}
			change(c)
			golden.Check(t, name, told(t, mode, c.collect(t)))
		})
	}
}

func TestReports(t *testing.T) {
	otherAuthority := newAuthority(t, "other", now.Add(-2*365*24*time.Hour), 0)
	reports(t, "proxy", state.ModeProxy, nil, map[string]func(cluster){
		"a port that is not reserved, as the user decided": func(c cluster) {
			c.unreserved(t)
			c.drop("Service zarf-registry-nodeport")
		},
		"a new authority, which is written before it is trusted": func(c cluster) {
			fresh := newAuthority(t, "fresh", now, 0).KeyPair()
			c.add(secret("ca", map[string][]byte{"tls.crt": fresh.Certificate, "tls.key": fresh.Key}))
			c.changeState(t, func(s *state.State) {
				s.Rotation = &state.Rotation{Phase: state.RotationTrust, Since: now.Add(-59 * time.Minute)}
			})
		},
		"3 minutes of 10": func(c cluster) {
			c.authority(t, newAuthority(t, "short", now.Add(-time.Hour), 3*time.Hour), now.Add(-7*time.Minute), 10*time.Minute)
		},
		"a node without a proxy, as the user decided": func(c cluster) { c.add(node("n3", true, pause)) },
		"a node that was added after the last proof": func(c cluster) {
			c.add(node("n3", true, pause), pod("proxy", "n3", true))
		},
		"a node whose previous proxy ends": func(c cluster) {
			ends := pod("proxy", "a", true)
			ends.Spec.NodeName, ends.DeletionTimestamp, ends.Finalizers = "n3", &metav1.Time{Time: now}, []string{"x/y"}
			c.add(node("n3", true, pause), ends, pod("proxy", "n3", true))
		},
		"a node that holds more images than it reports": func(c cluster) {
			c.add(node("n3", true), pod("proxy", "n3", true))
		},
		"a node that is not of Linux": func(c cluster) {
			windows := node("w1", true)
			windows.Status.NodeInfo.OperatingSystem = "windows"
			c.add(windows)
		},
		"an installation that is not done": func(c cluster) { c.state(t, state.PhasePrepared, state.ModeProxy, "") },
		"no state":                         func(c cluster) { c.drop("Secret zarf-registry-state") },
		"the state is under another name": func(c cluster) {
			c.drop("Secret zarf-registry-state").add(&corev1.Secret{ObjectMeta: meta("full-state", "state")})
		},
		"a state from the future": func(c cluster) {
			c.add(secret("state", map[string][]byte{state.Key: []byte(`{"version": 2}`)}))
		},
		"helm's last run failed": func(c cluster) { c.add(revision(11, "failed")) },
		"helm was killed":        func(c cluster) { c.add(revision(11, "pending-upgrade")) },
		"helm is uninstalling":   func(c cluster) { c.add(revision(11, "uninstalling")) },
		"helm's last run failed, in another namespace": func(c cluster) {
			failed := revision(11, "failed")
			failed.Namespace = "releases" // with namespaceOverride
			c.add(failed)
			c["Deployment zarf-registry"].(*appsv1.Deployment).Annotations = map[string]string{
				"meta.helm.sh/release-namespace": "releases"}
		},
		"a renewal that failed": func(c cluster) { // the pod of the CronJob, which has the log, does not stay
			c.changeState(t, func(s *state.State) { s.RenewalFailed = "2026-11-22T10:17:04Z: renew: no CA: run helm upgrade." })
		},
		"no registry":     func(c cluster) { c.drop("Deployment zarf-registry", "Pod registry-n1") },
		"no registry pod": func(c cluster) { c.drop("Pod registry-n1") },
		"a registry scaled to nothing": func(c cluster) {
			zero := int32(0)
			c["Deployment zarf-registry"].(*appsv1.Deployment).Spec.Replicas = &zero
			c.drop("Pod registry-n1")
		},
		"three pods of the registry on two nodes": func(c cluster) {
			three, third := int32(3), pod("registry", "n2", true)
			third.Name = "registry-third"
			c["Deployment zarf-registry"].(*appsv1.Deployment).Spec.Replicas = &three
			c.add(pod("registry", "n2", true), third)
		},
		"a registry that finds no node": func(c cluster) {
			p := pod("registry", "n1", false)
			p.Spec.NodeName, p.Status.ContainerStatuses = "", nil
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled,
				Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/2 nodes"})
			c.add(p)
		},
		"a proxy that waits for its payload": func(c cluster) {
			p := pod("proxy", "n2", false)
			p.Status.ContainerStatuses = nil
			old, newer := corev1.Event{}, corev1.Event{}
			for i, e := range []*corev1.Event{&newer, &old} {
				e.ObjectMeta = metav1.ObjectMeta{Namespace: "zarf", Name: fmt.Sprint("e", i)}
				e.InvolvedObject = corev1.ObjectReference{Kind: "Pod", Name: p.Name}
				e.Reason, e.Message, e.LastTimestamp = "FailedMount", fmt.Sprint("message ", i),
					metav1.NewTime(now.Add(-time.Duration(i)*time.Minute))
			}
			c.add(p, &old, &newer)
		},
		"a node with another pause image": func(c cluster) {
			c.add(node("n3", true, otherPause), pod("proxy", "n3", false))
		},
		"a node that reports no pause image": func(c cluster) {
			c.add(node("n3", true, "docker.io/library/nginx:1"), pod("proxy", "n3", false))
		},
		"a node whose proxy is not there yet": func(c cluster) {
			c.add(node("n3", true, pause))
			c["DaemonSet zarf-registry-proxy-amd64"].(*appsv1.DaemonSet).Status.DesiredNumberScheduled = 3
		},
		"no proxies at all": func(c cluster) {
			c.drop("DaemonSet zarf-registry-proxy-amd64", "Pod proxy-n1", "Pod proxy-n2")
		},
		"a node that is down":        func(c cluster) { c.add(node("n2", false, pause), pod("proxy", "n2", false)) },
		"no Service of the registry": func(c cluster) { c.drop("Service zarf-registry") },
		"an evicted pod of the registry beside one that does not start": func(c cluster) {
			evicted := pod("registry", "a", false)
			evicted.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory"}
			c.add(evicted, pod("registry", "n1", false))
		},
		"the registry's node is off": func(c cluster) { lostRegistry(c, "") },
		"the registry's node is off, and has attached the volume": func(c cluster) {
			lostRegistry(c, "FailedAttachVolume: Multi-Attach error for volume pvc-1")
		},
		"the registry's node is off, and has the disk": func(c cluster) {
			lostRegistry(c, "0/2 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity")
		},
		"an interrupted switch from an external registry": func(c cluster) {
			c.changeState(t, func(s *state.State) {
				external := settings(state.ModeExternal)
				s.Phase, s.Current = state.PhasePrepared, &external
			})
			c.add(pod("registry", "n1", false))
		},
		"a Service with the proxies' port": func(c cluster) {
			c.add(service("other", corev1.ServicePort{NodePort: 31999}))
		},
		"a Service with the proxies' port for health checks": func(c cluster) {
			s := service("other")
			s.Spec.HealthCheckNodePort = 31999
			c.add(s)
		},
		"a port that is not reserved":          func(c cluster) { c.drop("Service zarf-registry-nodeport") },
		"a reservation of another port":        func(c cluster) { c.nodePort().Spec.Ports[0].NodePort = 30000 },
		"a reservation that kube-proxy serves": func(c cluster) { delete(c.nodePort().Labels, plan.LabelProxyName) },
		"what nodeport mode left": func(c cluster) {
			c.unreserved(t)
			c.add(secret("pull", map[string][]byte{"htpasswd": []byte("x")}))
		},
		"a certificate that ends soon": func(c cluster) {
			a, from := newAuthority(t, "new", now.Add(-300*24*time.Hour), 0), now.Add(-300*24*time.Hour)
			c.authority(t, a, now, 0)
			c.certificate(t, "node-tls", a, from, 0)
		},
		"a certificate with 2 minutes of 10": func(c cluster) {
			a := newAuthority(t, "short", now.Add(-time.Hour), 3*time.Hour)
			c.authority(t, a, now, 10*time.Minute).certificate(t, "node-tls", a, now.Add(-8*time.Minute), 10*time.Minute)
		},
		"an authority that ends soon": func(c cluster) {
			c.authority(t, newAuthority(t, "old", now.Add(-time.Hour), 70*time.Minute), now, 5*time.Minute)
		},
		"a certificate of another authority": func(c cluster) {
			data := leafOf(t, "push-tls", otherAuthority, now, 0)
			data["ca.crt"] = c.data("node-tls")["ca.crt"]
			c.add(secret("push-tls", data))
		},
		"a certificate that only its own Secret trusts": func(c cluster) {
			c.certificate(t, "push-tls", otherAuthority, now, 0)
		},
		"a certificate that has expired": func(c cluster) {
			a := newAuthority(t, "old", now.Add(-2*365*24*time.Hour), 0)
			c.authority(t, a, now, 0)
			c.certificate(t, "push-tls", a, now.Add(-2*365*24*time.Hour), 0)
		},
		"a key of another certificate":   func(c cluster) { c.data("node-tls")["tls.key"] = c.data("push-tls")["tls.key"] },
		"a certificate of another role":  func(c cluster) { c.add(secret("push-tls", c.data("node-tls"))) },
		"a certificate for another name": func(c cluster) { c.add(secret("server-tls", c.data("node-tls"))) },
		"proxies that serve TLS without the names": func(c cluster) {
			c.changeState(t, func(s *state.State) { s.PKI.ServeTLS = true })
		},
		"a certificate that is missing": func(c cluster) { c.drop("Secret zarf-registry-server-tls") },
		"the same where the state does not say how to make one": func(c cluster) {
			c.drop("Secret zarf-registry-server-tls").changeState(t, func(s *state.State) { s.PKI = nil })
		},
		"a certificate that is rubbish": func(c cluster) { c.data("node-tls")["tls.crt"] = []byte("rubbish") },
		"authorities that are rubbish":  func(c cluster) { c.data("node-tls")["ca.crt"] = nil },
		"an authority without its key":  func(c cluster) { delete(c.data("ca"), "tls.key") },
		"no authority":                  func(c cluster) { c.drop("Secret zarf-registry-ca") },
		"no authority, which makes the push certificate": func(c cluster) {
			c.existing(t, "").drop("Secret zarf-registry-ca")
		},
		"a certificate of the user that is missing": func(c cluster) {
			c.existing(t, "my-push").drop("Secret zarf-registry-node-tls")
		},
		"one that cert-manager does not renew": func(c cluster) {
			a := newAuthority(t, "corp", now.Add(-80*24*time.Hour), 0)
			c.authority(t, a, now, 0).certManager(t)
			c.certificate(t, "server-tls", a, now.Add(-80*24*time.Hour), 90*24*time.Hour)
		},
		"a CA rotation that stalls": func(c cluster) {
			c.changeState(t, func(s *state.State) {
				s.Rotation = &state.Rotation{Phase: state.RotationTrust, Since: now.Add(-2 * time.Hour), Waiting: "pod a:\nasleep"}
			})
		},
		"a payload without its first part": func(c cluster) { c.drop("ConfigMap " + registryLoad + "-00") },
		"a payload without another part":   func(c cluster) { c.drop("ConfigMap " + nodeLoad + "-01") },
		"the first node of another architecture": func(c cluster) {
			d := &appsv1.DaemonSet{ObjectMeta: meta("zarf-registry-proxy-arm64", "proxy"),
				Spec: appsv1.DaemonSetSpec{Template: template("zarf-registry-payload-registry-node-arm64")}}
			d.Status.DesiredNumberScheduled = 1
			c.add(d)
		},
		"a payload that is rubbish": func(c cluster) {
			c["ConfigMap "+nodeLoad+"-00"].(*corev1.ConfigMap).BinaryData = nil
		},
	})
	reports(t, "nodeport", state.ModeNodePort, nil, map[string]func(cluster){
		"a switch that is not done": func(c cluster) {
			c.state(t, state.PhasePrepared, state.ModeProxy, state.ModeNodePort)
		},
		"a replica that does not start": func(c cluster) {
			two := int32(2)
			c["Deployment zarf-registry"].(*appsv1.Deployment).Spec.Replicas = &two
			p := pod("registry", "n2", false)
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 104, Message: "chunk 2"}}
			c.add(p)
		},
		"a registry that does not start": func(c cluster) {
			p := pod("registry", "n1", false)
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 104, Message: "chunk 2 has\nanother SHA-256"}}
			c.add(p)
		},
		"no node port":                func(c cluster) { c.drop("Service zarf-registry-nodeport") },
		"another node port":           func(c cluster) { c.nodePort().Spec.Ports[0].NodePort = 30000 },
		"a plain port that is closed": func(c cluster) { c.add(secret("pull", nil)) },
		"a node port that kube-proxy does not serve": func(c cluster) {
			c.nodePort().Labels[plan.LabelProxyName] = "other"
		},
		"what proxy mode left": func(c cluster) {
			c.add(&appsv1.DaemonSet{ObjectMeta: meta("zarf-registry-proxy-amd64", "proxy")})
		},
	})
	reports(t, "external", state.ModeExternal, nil, map[string]func(cluster){
		"what a registry of ours left": func(c cluster) {
			c.add(&appsv1.Deployment{ObjectMeta: meta("zarf-registry", "registry")})
		},
		"a payload of node configuration without a part": func(c cluster) {
			c.configure(t, 1, 1).add(configPod("n1", 0, "{}")).drop("ConfigMap " + nodeLoad + "-01")
		},
	})
}

func TestNothingInstalledIsAnErrorWithTheNextStep(t *testing.T) {
	for name, c := range map[string]cluster{
		"an empty cluster":                 cluster{}.add(node("n1", true)),
		"an uninstalled one, with history": cluster{}.add(revision(3, "uninstalled")),
	} {
		if _, err := status.Collect(t.Context(), c.options(t)); !errors.Is(err, status.ErrNotInstalled) ||
			!strings.Contains(err.Error(), "zarf-registry install --namespace zarf") {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	cluster{}.collect(t, "get secrets") // who may see nothing knows nothing
}

func TestMissingRightsAreNamedAndTheRestIsLookedAt(t *testing.T) {
	for _, c := range []struct{ deny, want string }{
		{"get secrets", "reading Secret zarf/zarf-registry-state"},
		{"list secrets", "listing the release's revisions"},
		{"get deployments", "reading Deployment zarf/zarf-registry"},
		{"list daemonsets", "listing the DaemonSets"},
		{"list events", "listing the events"},
		{"list pods", "listing the registry's pods"},
		{"list nodes", "listing nodes"},
		{"get services", "reading Service zarf/zarf-registry-nodeport"},
		{"list configmaps", "listing the ConfigMaps"},
		{"get configmaps", "reading ConfigMap zarf/" + registryLoad + "-00"},
	} {
		t.Run(c.deny, func(t *testing.T) {
			r := healthy(t, state.ModeNodePort).collect(t, c.deny)
			if r.Healthy || len(r.Unreadable) == 0 || !strings.HasPrefix(r.Unreadable[0], c.want) || !strings.Contains(r.Unreadable[0], "forbidden") {
				t.Errorf("unreadable is %q", r.Unreadable)
			}
			if !slices.ContainsFunc(r.Next, func(s string) bool { return strings.Contains(s, "request the permission") }) {
				t.Errorf("next is %q", r.Next)
			}
		})
	}
}

func TestAClusterThatDoesNotAnswerIsAnError(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("*", "*", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("dial tcp: no route to host")
	})
	_, err := status.Collect(t.Context(), status.Options{Namespace: "zarf", Name: "zarf-registry", Client: client, Now: time.Now})
	if err == nil || !strings.Contains(err.Error(), "no route to host") {
		t.Errorf("error is %v", err)
	}
}

func TestTheHealer(t *testing.T) {
	healer := func(replicas int32, reason string, ready ...bool) func(cluster) {
		return func(c cluster) {
			d := &appsv1.Deployment{ObjectMeta: meta("zarf-registry-healer", "healer"),
				Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Reason: reason}}
			c.add(d)
			for i, ready := range ready {
				p := pod("healer", fmt.Sprintf("n%d", i), ready)
				p.Labels[names.LabelName] = names.Chart
				c.add(p)
			}
		}
	}
	reports(t, "healer", state.ModeProxy, nil, map[string]func(cluster){
		"ready":           healer(2, done, true, true),
		"one is enough":   healer(2, done, true, false),
		"none is ready":   healer(2, done, false),
		"none yet":        healer(2, "ReplicaSetUpdated", false),
		"scaled to none":  healer(0, done),
		"no pod is there": healer(2, done),
	})
}
