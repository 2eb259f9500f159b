package templates

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
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

// remembersCertificates returns a state in proxy mode that records a source of certificates.
func remembersCertificates(mode state.PKIMode, edits ...func(*state.PKI)) objects {
	return objects{remembers(ready(settings(state.ModeProxy, state.IPv4), certificatesFrom(mode, edits...)))}
}

// Only values have lifetimes.
func TestPKIModeDefaultsToTheStateThenInternal(t *testing.T) {
	t.Parallel()
	existing := remembersCertificates(state.PKIExistingSecret, func(p *state.PKI) {
		p.Existing = &state.ExistingSecrets{Server: "s", Node: "n", Push: "p", CA: "a"}
	})
	issued, internal := remembersCertificates(state.PKICertManager, company), remembersCertificates(state.PKIInternal)
	inSituations(t, "pki", map[string]situation{
		"no cluster":                                {},
		"a new cluster":                             {objects: objects{}},
		"a state without PKI settings":              {objects: objects{remembers(ready(settings(state.ModeProxy, state.IPv4)))}},
		"the state says internal":                   {objects: internal},
		"the state says existingSecret":             {objects: existing},
		"a value overrides one Secret of the state": {objects: existing, values: []string{"pki.existingSecret.node=other"}},
		"the state names an issuer":                 {objects: issued},
		"a value overrides the issuer of the state": {objects: issued, values: []string{"pki.certManager.issuerRef.name=team"}},
		"internal overrides the state":              {objects: existing, values: []string{"pki.mode=internal"}},
		"certManager overrides the state": {objects: internal,
			values: []string{"pki.mode=certManager", "pki.certManager.issuerRef.name=team"}},
		"existingSecret overrides all Secrets of the state": {objects: existing,
			values: []string{"pki.mode=existingSecret", "pki.existingSecret={server: x, node: z}"}},
		"lifetimes": {objects: internal, values: []string{"pki.lifetime={certificate: 10m, ca: 1h}"}},
	}, func(out *output) string { return mustYAML(t, decided(out).PKI) })
}

// company is an issuer of the user.
func company(p *state.PKI) {
	p.Issuer = &state.Issuer{Name: "company", Kind: "ClusterIssuer", Group: "cert-manager.io"}
}

// Values for another mode would be ignored silently, whatever selected the mode.
func TestRejectsSecretsAndIssuersOfAnotherPKIMode(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		objects objects
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
		_, err := situation{objects: test.objects, values: []string{test.set}}.rendering(t).try(t)
		if err == nil || !strings.Contains(err.Error(), test.want) {
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

// near returns the component that a pod prefers to run close to.
func near(spec corev1.PodSpec) (component string) {
	if spec.Affinity != nil && spec.Affinity.PodAffinity != nil {
		for _, term := range spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			component = term.PodAffinityTerm.LabelSelector.MatchLabels["app.kubernetes.io/component"]
		}
	}
	return component
}

// The golden file shows the CronJob, whose image finish pushes, so that both need the same architecture.
func TestCertificatesCronJobImageMatchesItsNodes(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("a", 64)
	notReady := node("r", "arm64")
	notReady.Status.Conditions[0].Status = corev1.ConditionFalse
	labelled := node("l", "arm64")
	labelled.Labels = map[string]string{"disk": "fast"}
	other := node("o", "s390x")
	knows := func(image *state.HookImage) runtime.Object {
		return remembers(ready(settings(state.ModeProxy, state.IPv4), func(s *state.State) { s.HookImage = image }))
	}
	onARM := &state.HookImage{Reference: "zarf-registry/init-hook:0.0.9", Architecture: "arm64"}
	a, b := node("a", "amd64"), node("b", "arm64")
	inSituations(t, "cronjob", map[string]situation{
		"no cluster":       {},
		"one architecture": {objects: objects{a, notReady}},
		"two architectures, no node has the image":         {objects: objects{b, a}},
		"two architectures, one has the image":             {objects: objects{a, node("h", "arm64", hookImage)}},
		"two architectures, both have the image":           {objects: objects{node("g", "amd64", hookImage), node("h", "arm64", hookImage)}},
		"two architectures, the pushed image is for arm64": {objects: objects{a, b, knows(onARM)}},
		"the pushed image is for arm64, which is gone":     {objects: objects{a, knows(onARM)}},
		"the Jobs use the pushed image too":                {objects: objects{a, b, knows(pushedHookImage)}},
		"the payload is for one architecture":              {objects: objects{a, b}, values: []string{"injector.architectures=[arm64]"}},
		"a node of an unsupported architecture":            {objects: objects{a, other}},
		"only unsupported architectures":                   {objects: objects{other, node("p", "ppc64le")}},
		"a node selector":                                  {objects: objects{a, labelled}, values: []string{"initHook.nodeSelector={disk: fast}"}},
		"a node selector for an architecture":              {objects: objects{a, b}, values: []string{"initHook.nodeSelector={kubernetes.io/arch: arm64}"}},
		"pulls are disabled":                               {objects: objects{a, b, node("h", "arm64", hookImage)}, values: []string{"image.pullPolicy=Never"}},
		"a workstation could not push the image":           {objects: objects{a, knows(nil)}},
		"the state has an external registry":               {objects: objects{a, remembers(ready(settings(state.ModeExternal, state.IPv4)))}},
		"another tag":                                      {objects: objects{a}, values: []string{"initHook.image.tag=0.2.0"}},
		"a digest":                                         {objects: objects{a}, values: []string{"initHook.image.tag=0.2.0", "initHook.image.digest=" + digest}},
		"another port":                                     {objects: objects{a}, values: []string{"port=32000"}},
		"an IPv6 cluster":                                  {objects: objects{a, kubernetes(corev1.IPv6Protocol)}},
	}, hookPods, "imagePullSecrets=[{name: mine}]")
}

// Who may push can move a tag. The digest of the image that finish pushes is in the package of the chart, and in
// the state once it was pushed; earlier releases recorded none.
//
// Claim (a package, installed): Jobs refer to the copy of `init-hook` in the registry by digest.
func TestTheImageInTheRegistryIsReferredToByDigest(t *testing.T) {
	t.Parallel()
	digest := func(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }
	packaged := map[string]string{"amd64": digest("a"), "arm64": digest("b")}
	knows := func(tag string) runtime.Object {
		image := &state.HookImage{Reference: "zarf-registry/init-hook:" + tag, Architecture: "amd64"}
		return remembers(ready(settings(state.ModeProxy, state.IPv4), func(s *state.State) { s.HookImage = image }))
	}
	a, b := node("a", "amd64"), node("b", "arm64")
	pulled := node("c", "amd64", "127.0.0.1:31999/zarf-registry/init-hook@"+digest("c"))
	inSituations(t, "pushed-digests", map[string]situation{
		"a package, installed":        {objects: objects{a}, packaged: packaged},
		"a package, on arm64":         {objects: objects{b}, packaged: packaged},
		"a package, rendered offline": {packaged: packaged},
		"a package, rendered offline for one architecture": {
			values: []string{"initHook.nodeSelector={kubernetes.io/arch: arm64}"}, packaged: packaged},
		"a package and the image of another version": {
			objects: objects{a}, values: []string{"initHook.image.tag=0.2.0"}, packaged: packaged},
		"a source checkout":                        {objects: objects{a}},
		"a source checkout, pushed before":         {objects: objects{a, knows("0.1.0@" + digest("c"))}},
		"a package, after an upgrade":              {objects: objects{a, knows("0.0.9@" + digest("c"))}, packaged: packaged},
		"a source checkout, after an upgrade":      {objects: objects{a, knows("0.0.9@" + digest("c"))}},
		"pushed by an earlier release":             {objects: objects{a, knows("0.1.0")}},
		"pushed by an earlier release, a package":  {objects: objects{a, knows("0.1.0")}, packaged: packaged},
		"pushed, and a node has the image already": {objects: objects{pulled, knows("0.1.0@" + digest("c"))}},
	}, hookPods)
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
	mirrored := []string{"image.registry=registry.example.com", "initHook.image.repository=init-hook"}
	copied := node("b", "amd64", "registry.example.com/init-hook@"+digest("1"))
	empty, pulled := node("a", "amd64"), node("b", "amd64", published)
	inSituations(t, "published-digests", map[string]situation{
		"no node has it":              {objects: objects{empty}, packaged: index},
		"rendered offline":            {packaged: index},
		"a node pulled it by its tag": {objects: objects{empty, node("b", "amd64", published, hookImage)}, packaged: index},
		"a node loaded it":            {objects: objects{empty, node("b", "amd64", hookImage)}, packaged: index},
		"a node reports another image": {
			objects: objects{node("a", "amd64", hookImage, repository+"@"+digest("2")), pulled}, packaged: index},
		"another tag":                   {objects: objects{empty}, values: []string{"initHook.image.tag=0.2.0"}, packaged: index},
		"a copy in another registry":    {objects: objects{empty}, values: mirrored, packaged: index},
		"an exact copy that a node has": {objects: objects{empty, copied}, values: mirrored, packaged: index},
		"the user's digest": {
			objects: objects{empty}, values: []string{"initHook.image.digest=" + digest("3")}, packaged: index},
		"the user's nodes": {
			objects: objects{empty, pulled}, values: []string{"initHook.nodeSelector={disk: fast}"}, packaged: index},
	}, hookPods)
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
