package templates

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
	jobsettings "github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// certificatesFrom records a source of certificates in the state.
func certificatesFrom(mode state.PKIMode, edits ...func(*state.PKI)) func(*state.State) {
	p := &state.PKI{
		Mode: mode, LeafLifetime: state.Duration(2160 * time.Hour), CALifetime: state.Duration(8760 * time.Hour),
		ClusterDomain: "cluster.local",
	}
	for _, edit := range edits {
		edit(p)
	}
	return func(s *state.State) { s.PKI = p }
}

// remembersCertificates returns a cluster in proxy mode whose state records a source of certificates.
func remembersCertificates(mode state.PKIMode, edits ...func(*state.PKI)) *cluster {
	return newCluster(
		kubernetes(corev1.IPv4Protocol),
		remembers(ready(settings(state.ModeProxy, state.IPv4), certificatesFrom(mode, edits...))),
	)
}

func TestPKIModeDefaultsToTheStateThenInternal(t *testing.T) {
	t.Parallel()
	usersSecrets := func(p *state.PKI) {
		p.Existing = &state.ExistingSecrets{Server: "s", Node: "n", Push: "p", CA: "a"}
	}
	usersIssuer := func(p *state.PKI) {
		p.Issuer = &state.Issuer{Name: "company", Kind: "ClusterIssuer", Group: "cert-manager.io"}
	}
	existing := func(server, node, push, authority string) func(*state.PKI) {
		return func(p *state.PKI) {
			p.Existing = &state.ExistingSecrets{Server: server, Node: node, Push: push, CA: authority}
		}
	}
	issuer := func(name, kind string) func(*state.PKI) {
		return func(p *state.PKI) { p.Issuer = &state.Issuer{Name: name, Kind: kind, Group: "cert-manager.io"} }
	}
	// The lifetimes are those of the values in any case.
	pki := func(mode state.PKIMode, source state.Source, edits ...func(*state.PKI)) jobsettings.PKI {
		p := state.PKI{
			Mode: mode, LeafLifetime: state.Duration(8760 * time.Hour), CALifetime: state.Duration(43800 * time.Hour),
			ClusterDomain: "cluster.local",
		}
		for _, edit := range edits {
			edit(&p)
		}
		return jobsettings.PKI{PKI: p, Source: source}
	}
	for name, test := range map[string]struct {
		cluster *cluster
		values  []string
		want    jobsettings.PKI
	}{
		"no cluster":    {nil, nil, pki(state.PKIInternal, state.SourceDefault)},
		"a new cluster": {newCluster(kubernetes(corev1.IPv4Protocol)), nil, pki(state.PKIInternal, state.SourceCluster)},
		"a state without PKI settings": {newCluster(kubernetes(corev1.IPv4Protocol),
			remembers(ready(settings(state.ModeProxy, state.IPv4)))), nil,
			pki(state.PKIInternal, state.SourceCluster)},
		"the state says internal": {remembersCertificates(state.PKIInternal), nil, pki(state.PKIInternal, state.SourceState)},
		"the state says existingSecret": {remembersCertificates(state.PKIExistingSecret, usersSecrets), nil,
			pki(state.PKIExistingSecret, state.SourceState, existing("s", "n", "p", "a"))},
		"a value overrides one Secret of the " +
			"state": {remembersCertificates(state.PKIExistingSecret, usersSecrets), []string{"pki.existingSecret.node=other"},
			pki(state.PKIExistingSecret, state.SourceState, existing("s", "other", "p", "a"))},
		"the state names an issuer": {remembersCertificates(state.PKICertManager, usersIssuer), nil,
			pki(state.PKICertManager, state.SourceState, issuer("company", "ClusterIssuer"))},
		"a value overrides the issuer of the " +
			"state": {remembersCertificates(state.PKICertManager, usersIssuer), []string{"pki.certManager.issuerRef.name=team"},
			pki(state.PKICertManager, state.SourceState, issuer("team", "Issuer"))},
		"internal overrides the state": {remembersCertificates(state.PKIExistingSecret, usersSecrets),
			[]string{"pki.mode=internal"},
			pki(state.PKIInternal, state.SourceValue)},
		"certManager overrides the state": {remembersCertificates(state.PKIInternal),
			[]string{"pki.mode=certManager", "pki.certManager.issuerRef.name=team"},
			pki(state.PKICertManager, state.SourceValue, issuer("team", "Issuer"))},
		"existingSecret overrides all Secrets of the state": {remembersCertificates(state.PKIExistingSecret, usersSecrets),
			[]string{"pki.mode=existingSecret", "pki.existingSecret={server: x, node: z}"},
			pki(state.PKIExistingSecret, state.SourceValue, existing("x", "z", "", ""))},
	} {
		t.Run(name, func(t *testing.T) {
			out := rendering{values: proxyMode(t, test.values...), cluster: test.cluster}.render(t)
			if diff := cmp.Diff(test.want, decided(out).PKI); diff != "" {
				t.Errorf("the Jobs are told (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCertificateLifetimesComeFromValuesOnly(t *testing.T) {
	t.Parallel()
	out := rendering{
		values:  proxyMode(t, "pki.lifetime={certificate: 10m, ca: 1h}"),
		cluster: remembersCertificates(state.PKIInternal),
	}.render(t)
	if pki := decided(out).PKI; pki.LeafLifetime.String() != "10m0s" || pki.CALifetime.String() != "1h0m0s" ||
		pki.Source != state.SourceState {
		t.Errorf("the Jobs are told %+v", pki)
	}
}

// Values for another mode would be ignored silently, whatever selected the mode.
func TestRejectsSecretsAndIssuersOfAnotherPKIMode(t *testing.T) {
	t.Parallel()
	company := func(p *state.PKI) {
		p.Issuer = &state.Issuer{Name: "company", Kind: "ClusterIssuer", Group: "cert-manager.io"}
	}
	for _, test := range []struct {
		cluster *cluster
		set     string
		want    string
	}{
		{
			nil, "pki.existingSecret.server=s", "pki.existingSecret.server: pki.mode internal (source: default)",
		},
		{
			remembersCertificates(state.PKICertManager, company), "pki.existingSecret.ca=a",
			"pki.existingSecret.ca: pki.mode certManager (source: state)",
		},
		{
			// The issuer in the state belongs to the mode that the values select again.
			remembersCertificates(state.PKICertManager, company), "pki.mode=certManager",
			"pki.certManager.issuerRef.name: pki.mode=certManager needs it",
		},
		{
			remembersCertificates(state.PKIInternal), "pki.certManager.issuerRef.name=i",
			"pki.certManager.issuerRef.name: pki.mode internal (source: state)",
		},
	} {
		if _, err := (rendering{values: proxyMode(t, test.set), cluster: test.cluster}).try(t); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want … %s …", test.set, err, test.want)
		}
		// With an external registry the values have no effect.
		rendering{values: with(t, nil, test.set, "registryURL=registry.example.com")}.render(t)
	}
}

// rights returns the verbs that rules grant, by resource and name; * stands for any name.
func rights(rules ...rbacv1.PolicyRule) map[string]string {
	found := map[string]string{}
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{"*"}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					key := strings.TrimPrefix(group+"/"+resource+" "+name, "/")
					found[key] = strings.TrimSpace(found[key] + " " + strings.Join(rule.Verbs, " "))
				}
			}
		}
	}
	return found
}

// near returns the component and the nodes that a pod prefers to run close to.
func near(spec corev1.PodSpec) (component string, nodes []string) {
	if spec.Affinity == nil {
		return "", nil
	}
	if pods := spec.Affinity.PodAffinity; pods != nil {
		for _, term := range pods.PreferredDuringSchedulingIgnoredDuringExecution {
			component = term.PodAffinityTerm.LabelSelector.MatchLabels["app.kubernetes.io/component"]
		}
	}
	if node := spec.Affinity.NodeAffinity; node != nil {
		for _, term := range node.PreferredDuringSchedulingIgnoredDuringExecution {
			for _, field := range term.Preference.MatchFields {
				nodes = append(nodes, field.Values...)
			}
		}
	}
	return component, nodes
}

func TestCertificatesCronJobImageMatchesItsNodes(t *testing.T) {
	t.Parallel()
	const pushed = "127.0.0.1:31999/zarf-registry/init-hook:0.1.0"
	digest := "sha256:" + strings.Repeat("a", 64)
	notReady := node("r", "arm64")
	notReady.Status.Conditions[0].Status = corev1.ConditionFalse
	labelled := node("l", "arm64")
	labelled.Labels = map[string]string{"disk": "fast"}
	other := node("o", "s390x")
	knows := func(image *state.HookImage, edits ...func(*state.State)) runtime.Object {
		return remembers(ready(
			settings(state.ModeProxy, state.IPv4),
			append([]func(*state.State){func(s *state.State) { s.HookImage = image }}, edits...)...,
		))
	}
	onARM := &state.HookImage{Reference: "zarf-registry/init-hook:0.0.9", Architecture: "arm64"}
	a, b := node("a", "amd64"), node("b", "arm64")
	for name, test := range map[string]struct {
		objects      []runtime.Object
		values       []string
		image        string // "" means the configured one
		architecture string // of the CronJob
		finish       string // the architecture that finish requires
		nodes        []string
	}{
		"no cluster":       {image: pushed},
		"one architecture": {[]runtime.Object{a, notReady}, nil, pushed, "amd64", "", nil},
		"two architectures, no node has the image": {[]runtime.Object{b, a}, nil, pushed, "amd64", "amd64", nil},
		"two architectures, one has the image": {
			[]runtime.Object{a, node("h", "arm64", hookImage)}, nil, pushed, "arm64", "", nil,
		},
		"two architectures, both have the image": {
			[]runtime.Object{node("g", "amd64", hookImage), node("h", "arm64", hookImage)}, nil, pushed, "amd64", "amd64", nil,
		},
		"two architectures, the pushed image is for arm64": {
			[]runtime.Object{a, b, knows(onARM)}, nil, pushed, "arm64", "arm64", nil,
		},
		"the pushed image is for arm64, which is gone": {[]runtime.Object{a, knows(onARM)}, nil, pushed, "amd64", "", nil},
		"the Jobs use the pushed image too": {
			[]runtime.Object{a, b, knows(pushedHookImage)}, nil, pushed, "amd64", "amd64", nil,
		},
		"the payload is for one architecture": {
			[]runtime.Object{a, b}, []string{"injector.architectures=[arm64]"}, pushed, "arm64", "arm64", nil,
		},
		"a node of an unsupported architecture": {[]runtime.Object{a, other}, nil, pushed, "amd64", "amd64", nil},
		"only unsupported architectures":        {[]runtime.Object{other, node("p", "ppc64le")}, nil, "", "", "", nil},
		"a node selector": {
			[]runtime.Object{a, labelled}, []string{"initHook.nodeSelector={disk: fast}"}, pushed, "arm64", "", nil,
		},
		"a node selector for an architecture": {
			[]runtime.Object{a, b}, []string{"initHook.nodeSelector={kubernetes.io/arch: arm64}"}, pushed, "arm64", "arm64", nil,
		},
		"pulls are disabled": {
			[]runtime.Object{a, b, node("h", "arm64", hookImage)}, []string{"image.pullPolicy=Never"}, "", "", "",
			[]string{"h"},
		},
		"a workstation could not push the image": {[]runtime.Object{a, knows(nil)}, nil, "", "", "", nil},
		"the state has an external registry": {
			[]runtime.Object{a, remembers(ready(settings(state.ModeExternal, state.IPv4)))}, nil, pushed, "amd64", "", nil,
		},
		"another tag": {
			[]runtime.Object{a}, []string{"initHook.image.tag=0.2.0"}, "127.0.0.1:31999/zarf-registry/init-hook:0.2.0", "amd64",
			"", nil,
		},
		"a digest": {
			[]runtime.Object{a}, []string{"initHook.image.tag=0.2.0", "initHook.image.digest=" + digest}, pushed, "amd64", "",
			nil,
		},
		"another port": {
			[]runtime.Object{a}, []string{"port=32000"}, "127.0.0.1:32000/zarf-registry/init-hook:0.1.0", "amd64", "", nil,
		},
		"an IPv6 cluster": {
			[]runtime.Object{a, kubernetes(corev1.IPv6Protocol)}, nil, "[::1]:31999/zarf-registry/init-hook:0.1.0", "amd64", "",
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := rendering{values: proxyMode(t, append([]string{"imagePullSecrets=[{name: mine}]"}, test.values...)...)}
			if test.objects != nil {
				r.cluster = newCluster(test.objects...)
			}
			out := r.render(t)
			spec := find[*batchv1.CronJob](t, out, "zarf-registry-certificates").Spec.JobTemplate.Spec.Template.Spec
			c := spec.Containers[0]
			wantSecrets, wantPolicy := "[]", corev1.PullIfNotPresent
			if test.image == "" {
				test.image, wantSecrets = hookImage, "[{mine}]"
				if slices.Contains(test.values, "image.pullPolicy=Never") {
					wantPolicy = corev1.PullNever
				}
			}
			if c.Image != test.image || c.ImagePullPolicy != wantPolicy || fmt.Sprint(spec.ImagePullSecrets) != wantSecrets {
				t.Errorf(
					"%s, %s, with %v; want %s, %s, with %s", c.Image, c.ImagePullPolicy, spec.ImagePullSecrets, test.image, wantPolicy,
					wantSecrets,
				)
			}
			if got := spec.NodeSelector["kubernetes.io/arch"]; got != test.architecture {
				t.Errorf("it runs on architecture %q, want %q", got, test.architecture)
			}
			finish := find[*batchv1.Job](t, out, "zarf-registry-finish").Spec.Template.Spec
			if got := finish.NodeSelector["kubernetes.io/arch"]; got != test.finish {
				t.Errorf("finish, which pushes the image, runs on architecture %q, want %q", got, test.finish)
			}
			component, nodes := near(spec)
			if component != "registry" || !slices.Equal(nodes, test.nodes) {
				t.Errorf("it prefers to run near %q, on %s", component, nodes)
			}
			if in, _ := nodeFields(spec.Affinity); len(in) > 0 {
				t.Errorf("it requires nodes %s, which may be gone when it runs", in)
			}
		})
	}
}

// Who may push can move a tag. The digest of the image that finish pushes is in the package of the chart, and in
// the state once it was pushed; earlier releases recorded none.
//
// Claim (a package, installed): Jobs refer to the copy of `init-hook` in the registry by digest.
func TestTheImageInTheRegistryIsReferredToByDigest(t *testing.T) {
	t.Parallel()
	const name = "127.0.0.1:31999/zarf-registry/init-hook"
	digest := func(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }
	packaged := map[string]string{"amd64": digest("a"), "arm64": digest("b")}
	knows := func(tag, architecture string) runtime.Object {
		image := &state.HookImage{Reference: "zarf-registry/init-hook:" + tag, Architecture: architecture}
		return remembers(ready(settings(state.ModeProxy, state.IPv4), func(s *state.State) { s.HookImage = image }))
	}
	a, b := node("a", "amd64"), node("b", "arm64")
	pulled := node("c", "amd64", name+"@"+digest("c"))
	for title, test := range map[string]struct {
		objects  []runtime.Object
		values   []string
		packaged map[string]string
		cronJob  string
		job      string // "" means the configured image
		told     map[string]string
	}{
		"a package, installed":        {[]runtime.Object{a}, nil, packaged, "@" + digest("a"), "", packaged},
		"a package, on arm64":         {[]runtime.Object{b}, nil, packaged, "@" + digest("b"), "", packaged},
		"a package, rendered offline": {nil, nil, packaged, ":0.1.0", "", packaged},
		"a package, rendered offline for one architecture": {nil,
			[]string{"initHook.nodeSelector={kubernetes.io/arch: arm64}"}, packaged, "@" + digest("b"), "", packaged},
		"a package and the image of another version": {[]runtime.Object{a}, []string{"initHook.image.tag=0.2.0"}, packaged,
			":0.2.0", "", nil},
		"a source checkout": {[]runtime.Object{a}, nil, nil, ":0.1.0", "", nil},
		"a source checkout, pushed before": {[]runtime.Object{a, knows("0.1.0@"+digest("c"), "amd64")},
			nil, nil, "@" + digest("c"), "@" + digest("c"), nil},
		"a package, after an upgrade": {[]runtime.Object{a, knows("0.0.9@"+digest("c"), "amd64")},
			nil, packaged, "@" + digest("a"), "", packaged},
		"a source checkout, after an upgrade": {[]runtime.Object{a, knows("0.0.9@"+digest("c"), "amd64")},
			nil, nil, ":0.1.0", "", nil},
		"pushed by an earlier release": {[]runtime.Object{a, knows("0.1.0", "amd64")}, nil, nil, ":0.1.0", ":0.1.0", nil},
		"pushed by an earlier release, a package": {[]runtime.Object{a, knows("0.1.0", "amd64")},
			nil, packaged, "@" + digest("a"), ":0.1.0", packaged},
		"pushed, and a node has the image already": {[]runtime.Object{pulled, knows("0.1.0@"+digest("c"), "amd64")},
			nil, nil, "@" + digest("c"), "@" + digest("c"), nil},
	} {
		t.Run(title, func(t *testing.T) {
			r := rendering{values: proxyMode(t, test.values...), hookDigests: test.packaged}
			if test.objects != nil {
				r.cluster = newCluster(test.objects...)
			}
			out := r.render(t)
			cronJob := find[*batchv1.CronJob](t, out, "zarf-registry-certificates").Spec.JobTemplate.Spec.Template.Spec
			if got := cronJob.Containers[0].Image; got != name+test.cronJob {
				t.Errorf("the CronJob's image is %s", got)
			}
			prepare := find[*batchv1.Job](t, out, "zarf-registry-prepare").Spec.Template.Spec
			want := hookImage
			if test.values != nil && test.told == nil {
				want = strings.Replace(hookImage, "0.1.0", "0.2.0", 1)
			}
			if test.job != "" {
				want = name + test.job
			}
			if got := prepare.Containers[0].Image; got != want {
				t.Errorf("the image of prepare is %s, want %s", got, want)
			}
			if _, nodes := near(prepare); slices.Contains(test.objects, runtime.Object(pulled)) != slices.Contains(nodes, "c") {
				t.Errorf("prepare prefers the nodes %v", nodes)
			}
			if diff := cmp.Diff(test.told, decided(out).Push.HookDigests); diff != "" {
				t.Errorf("prepare is told %s", diff)
			}
		})
	}
}

// A tag can be moved. The digest of the published image is in the package of the chart.
//
// Claim (a node reports another image): A packaged chart refers to the published image `init-hook` by digest,
// unless nodes have it only by its tag.
func TestTheJobsUseThePublishedImageByDigest(t *testing.T) {
	t.Parallel()
	digest := func(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }
	index := map[string]string{"index": digest("1"), "amd64": digest("a")}
	repository := strings.TrimSuffix(hookImage, ":0.1.0")
	published := repository + "@" + digest("1")
	const mirror = "registry.example.com/init-hook"
	mirrored := []string{"image.registry=registry.example.com", "initHook.image.repository=init-hook"}
	empty := node("a", "amd64")
	pulled := node("b", "amd64", published)
	for title, test := range map[string]struct {
		nodes  []runtime.Object
		values []string
		want   string
		on     []string // the required nodes
	}{
		"no node has it":   {[]runtime.Object{empty}, nil, published, nil},
		"rendered offline": {nil, nil, hookImage, nil},
		"a node pulled it by its tag": {[]runtime.Object{empty, node("b", "amd64", published, hookImage)}, nil,
			published, []string{"b"}},
		"a node loaded it": {[]runtime.Object{empty, node("b", "amd64", hookImage)}, nil, hookImage, []string{"b"}},
		"a node reports another image": {
			[]runtime.Object{node("a", "amd64", hookImage, repository+"@"+digest("2")), pulled}, nil,
			published, []string{"b"}},
		"another tag":                {[]runtime.Object{empty}, []string{"initHook.image.tag=0.2.0"}, repository + ":0.2.0", nil},
		"a copy in another registry": {[]runtime.Object{empty}, mirrored, mirror + ":0.1.0", nil},
		"an exact copy that a node has": {[]runtime.Object{empty, node("b", "amd64", mirror+"@"+digest("1"))}, mirrored,
			mirror + "@" + digest("1"), []string{"b"}},
		"the user's digest": {[]runtime.Object{empty}, []string{"initHook.image.digest=" + digest("3")},
			repository + "@" + digest("3"), nil},
		"the user's nodes": {[]runtime.Object{empty, pulled}, []string{"initHook.nodeSelector={disk: fast}"}, hookImage,
			nil},
	} {
		t.Run(title, func(t *testing.T) {
			r := rendering{values: proxyMode(t, test.values...), hookDigests: index}
			if test.nodes != nil {
				r.cluster = newCluster(test.nodes...)
			}
			out := r.render(t)
			for _, job := range []string{"prepare", "finish"} {
				spec := find[*batchv1.Job](t, out, "zarf-registry-"+job).Spec.Template.Spec
				if got := spec.Containers[0].Image; got != test.want {
					t.Errorf("the image of %s is %s, want %s", job, got, test.want)
				}
				if got, _, _ := preferredNodes(spec.Affinity); !slices.Equal(got, test.on) {
					t.Errorf("%s prefers the nodes %v, want %v", job, got, test.on)
				}
			}
			if _, found := decided(out).Push.HookDigests["index"]; found {
				t.Error("the digests by architecture contain the index")
			}
		})
	}
}

// The chart must reject the names of all Secrets that the Jobs create.
func TestRejectsNamesOfGeneratedSecrets(t *testing.T) {
	t.Parallel()
	suffixes := []string{
		names.SuffixState, names.SuffixCA, names.SuffixServerTLS, names.SuffixNodeTLS, names.SuffixPushTLS,
		names.SuffixCacheTLS, names.SuffixCredentials, names.SuffixRegistryAuth, names.SuffixPull,
	}
	if diff := cmp.Diff(suffixes, hookMade); diff != "" {
		t.Error(diff)
	}
	for _, suffix := range slices.Concat(suffixes, issued) {
		for _, path := range []string{
			"auth.existingSecret", "pki.existingSecret.server", "pki.existingSecret.node", "pki.existingSecret.push",
			"pki.existingSecret.ca",
		} {
			name := "zarf-registry" + suffix
			_, err := rendering{
				values: proxyMode(t, "pki.mode=existingSecret", "pki.existingSecret={server: s, node: m}", path+"="+name),
			}.try(t)
			if want := "zarf-registry: " + path + ": Secret " + name +
				" is created by the Jobs; name one of your own"; err == nil ||
				!strings.HasSuffix(err.Error(), want) {
				t.Errorf("%s=%s: %v", path, name, err)
			}
		}
	}
}
