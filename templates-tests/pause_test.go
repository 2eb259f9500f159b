package templates

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
	jobsettings "github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// Digests of official pause images, and one of another image.
const (
	pause39      = "sha256:7031c1b283388d2c2e09b57badb803c05ebed362dc88d84b480cc47f72a21097"
	pause310     = "sha256:ee6521f290b2168b6e0935a181d4cff9be1ac3f505666ef0e3c98fae8199917a"
	pause3101    = "sha256:278fb9dbcca9518083ad1e11276933a2e96f23de604a3a08cc3c80002767d24c"
	unofficial   = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	k8sPause     = "registry.k8s.io/pause"
	defaultPause = k8sPause + "@" + pause3101
)

// named returns a node that reports one image under several names.
func named(name string, names ...string) *corev1.Node {
	return holding(name, "amd64", image(3e5, names...))
}

// recorded returns the state Secret with an image for amd64.
func recorded(reference string, reason state.PauseReason) *corev1.Secret {
	return remembers(ready(settings(state.ModeProxy, state.IPv4), func(s *state.State) {
		s.PauseImages = map[string]state.PauseImage{"amd64": {Reference: reference, Reason: reason}}
	}))
}

// The golden file has what the Jobs are told, and how all pods with a program get the image.
func TestPauseImages(t *testing.T) {
	of39, of310 := named("a", k8sPause+"@"+pause39), named("a", k8sPause+"@"+pause310)
	byName := named("a", k8sPause+":3.9")
	inSituations(t, "pause", map[string]situation{
		"nothing can be seen: an official image": {},
		"nodes that report nothing":              {objects: objects{node("a", "amd64")}},
		"the one of most nodes, not the newest": {objects: objects{named("a", k8sPause+"@"+pause39, k8sPause+":3.9"),
			named("b", k8sPause+"@"+pause39), named("c", k8sPause+"@"+pause310, k8sPause+":3.10")}},
		"of as many nodes, the first by name": {
			objects: objects{named("a", "b.example/pause@"+pause39), named("b", "a.example/pause@"+pause310)}},
		"an official digest in any repository": {
			objects: objects{named("a", "mirror.internal:5000/k8s/seed@"+pause39, "mirror.internal:5000/k8s/seed:1")}},
		"a digest before a name, whatever the numbers": {
			objects: objects{byName, named("b", k8sPause+":3.9"), named("c", "a.example/p@"+pause310)}},
		"a well-known name without a digest":       {objects: objects{byName}},
		"a well-known name with an unknown digest": {objects: objects{named("a", k8sPause+"@"+unofficial, k8sPause+":9")}},
		"K3s": {objects: objects{named("a", "docker.io/rancher/mirrored-pause:3.6")}},
		"the recorded one, when other nodes join":    {objects: objects{recorded(k8sPause+"@"+pause39, state.PauseDigest), of310}},
		"the recorded one, when no node can be seen": {objects: objects{recorded(k8sPause+"@"+unofficial, state.PauseName)}},
		"a recorded one of the values stays if a rule trusts it, and may be pulled": {
			objects: objects{recorded("a.example/x@"+pause39, state.PauseValue), of310}},
		"a recorded name of a registry that is now served": {objects: objects{recorded(k8sPause+":3.9", state.PauseName), of310},
			values: []string{"nodeConfig.mirrors=[registry.k8s.io]"}},
		"the values": {objects: objects{recorded(k8sPause+"@"+pause39, state.PauseDigest), of39},
			values: []string{"injector.image=a.example/x:1"}},
		"without the healer it may be pulled": {objects: objects{of39}, values: []string{"healer.enabled=false"}},
	}, func(out *output) string {
		image, pods := decided(out).Injector.PauseImages["amd64"], map[string]int{}
		for _, w := range workloads(out) {
			for _, c := range containers(w.pod.Spec) {
				if len(c.Command) > 0 && c.Command[0] == "/payload/loader" {
					pods[c.Image+" ("+string(c.ImagePullPolicy)+")"]++
				}
			}
		}
		return fmt.Sprintf("%s (%s, %s)\nin containers: %v", image.Reference, image.Source, image.Reason, pods)
	}, "injector.architectures=[amd64]")
}

// hostile are images that must not carry programs. All of them, and a good one, are on every node.
var hostile = []string{
	"localhost:31999/tenant/pause:999.0", "localhost/tenant/pause:999.0", "127.0.0.1:31999/registry.k8s.io/pause:3.10",
	"127.0.0.1:31999/pause@" + unofficial, "docker.io/tenant/pause:999", "docker.io/library/pause:999", "pause:999",
	"tenant/pause:999", "evil.example/registry.k8s.io/pause:1", "registry.k8s.io.evil/pause:1", "registry.k8s.io/pause/x:1",
	"registry.k8s.io/pausex:1", "registry.k8s.io/x/pause:1", "xregistry.k8s.io/pause:1", "registryxk8s.io/pause:1",
	"REGISTRY.K8S.IO/pause:1", "registry.k8s.io/Pause:1", "registry.k8s.io:443/pause:1", "registry.k8s.io./pause:1",
	"registry.k8s.io/pause", "registry.k8s.io/pause:", "registry.k8s.io/pause:1/x:2", "registry.k8s.io/pause@md5:00",
	"evil.example/pause@" + unofficial, "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/pause:3.10",
	"666666666666.dkr.ecr.us-west-2.amazonaws.com/eks/pause:3.10", "quay.io/small:1", "<none>@<none>", "<none>:<none>",
}

// own are addresses of the release's registry. The chart uses none of their images. The healer uses one with a trusted
// digest, on a node that has it and no other.
var own = []string{
	"LOCALHOST:31999", "localhost.:31999", "127.0.0.1:31999", "127.1:31999", "127.0.0.2", "0177.0.0.1:5000", "0x7f.1:5000",
	"2130706433:5000", "[::1]:31999", "[::ffff:127.0.0.1]:5000", "0.0.0.0:31999", "192.0.2.7:31999", "node-1.example:31999",
	"zarf-registry.zarf.svc:5000", "zarf-registry.zarf.svc.cluster.local:5000", "zarf-registry-nodeport.zarf.svc",
	"images.example.com", "IMAGES.example.com.:443",
}

// friendly are images that may carry programs.
var friendly = []string{
	"registry.k8s.io/pause@" + pause39, "mirror.internal:5000/x/y@" + pause310, "192.0.2.7:5000/pause@" + pause3101,
	"docker.io/tenant/any@" + pause39, "registry.k8s.io/pause:3.10", "registry.k8s.io/pause@" + unofficial,
	"k8s.gcr.io/pause:3.2", "docker.io/rancher/mirrored-pause:3.6", "mcr.microsoft.com/oss/kubernetes/pause:3.6",
	"mcr.microsoft.com/oss/v2/kubernetes/pause:3.6", "gke.gcr.io/pause:3.8", "public.ecr.aws/eks-distro/kubernetes/pause:3.10",
}

const exposedService = "expose={service: {enabled: true}, hosts: [images.example.com], tls: {existingSecret: tls}}"

// The chart, init-hook with the healer, and the healer's policy follow one rule.
//
// Claim: Only images with trusted content carry programs, whatever names nodes report.
func TestPauseImagesHaveOneRule(t *testing.T) {
	values := proxyMode(t, "injector.architectures=[amd64]", exposedService)
	out := rendering{values: values}.render(t)
	rules := decided(out).Injector.PauseRules
	var data map[string]string
	for _, c := range all[*corev1.ConfigMap](out) {
		if c.Name == "zarf-registry-pause-images" {
			data = c.Data
		}
	}
	mounted, err := nodeimages.FromData(data)
	if diff := cmp.Diff(rules, mounted); diff != "" || err != nil {
		t.Errorf("the healer has other rules than the Jobs: %v\n%s", err, diff)
	}
	policy := compileHealer(t, out)
	check := func(image string, want bool) {
		if got := rules.Trust(image) != nodeimages.None; got != want {
			t.Errorf("init-hook trusts %s: %t", image, got)
		}
		if got := policy.allows(t, k8sPause+"@"+pause39, image); got != want {
			t.Errorf("the policy allows %s: %t", image, got)
		}
	}
	chosen := func(nodes ...runtime.Object) jobsettings.PauseImage {
		cluster := newCluster(append(nodes, kubernetes(corev1.IPv4Protocol))...)
		return decided(rendering{values: values, cluster: cluster}.render(t)).Injector.PauseImages["amd64"]
	}
	for _, image := range hostile {
		check(image, false)
	}
	unusable := slices.Clone(hostile)
	for _, host := range own {
		image := host + "/pause@" + pause3101
		unusable = append(unusable, image)
		if got := rules.Trust(image); got != nodeimages.ByOwnDigest || !policy.allows(t, k8sPause+"@"+pause39, image) {
			t.Errorf("trust in %s is %v", image, got)
		}
	}
	if got := chosen(node("a", "amd64", unusable...)); got.Source != state.SourceDefault {
		t.Errorf("the chart uses %+v", got)
	}
	for _, image := range friendly {
		check(image, true)
		if got := chosen(node("a", "amd64", image)); got.Reference != image || got.Source != state.SourceCluster {
			t.Errorf("the chart does not use %s: %+v", image, got)
		}
	}
	// All at once: pods of tenants that ran before the first installation.
	both := chosen(node("a", "amd64", append(unusable, k8sPause+":3.9")...), node("b", "amd64", unusable...))
	if both.Reference != k8sPause+":3.9" {
		t.Errorf("beside hostile images the chart uses %s", both.Reference)
	}
}

// The token of the certificates CronJob permits writing the state.
//
// Claim: Whatever the state records, programs are injected only into images that a rule trusts.
func TestRecordedImagesMustBeTrusted(t *testing.T) {
	untrusted := append(slices.Clone(hostile), "evil/x:1", "LOCALHOST:31999/pause@"+pause3101)
	served := regexp.MustCompile(decided(rendering{values: proxyMode(t)}.render(t)).Injector.PauseRules.Own)
	for _, image := range untrusted {
		for _, reason := range []state.PauseReason{state.PauseValue, state.PauseDigest} {
			cluster := newCluster(recorded(image, reason), node("a", "amd64", image), kubernetes(corev1.IPv4Protocol))
			// The chart chooses anew only in place of a name that this registry serves, which a change of values may cause.
			out, err := rendering{values: proxyMode(t), cluster: cluster, upgrade: true}.try(t)
			if err == nil && (!served.MatchString(image) || strings.Contains(out.text(), image)) ||
				err != nil && !strings.Contains(err.Error(), "zarf-registry: injector.image: Secret zarf/zarf-registry-state") {
				t.Errorf("%s: %v", image, err)
			}
			out = rendering{values: proxyMode(t, "injector.image="+defaultPause), cluster: cluster, upgrade: true}.render(t)
			if strings.Contains(out.text(), image+`"`) {
				t.Errorf("with injector.image, an object still has %s", image)
			}
		}
	}
	// By a mirror of one's own, pulls by name reach what users push here.
	mirrored := newCluster(recorded(k8sPause+"@"+unofficial, state.PauseName))
	values := proxyMode(t, "nodeConfig.mirrors=[registry.k8s.io]")
	if _, err := (rendering{values: values, cluster: mirrored, upgrade: true}).try(t); err == nil {
		t.Error("a digest in a repository that this registry serves is trusted")
	}
}

// A name is only as good as the registry behind it.
func TestServedRegistriesAreNotTrustedByName(t *testing.T) {
	const k8s, hub = "registry.k8s.io/pause:3.9", "docker.io/rancher/mirrored-pause:3.6"
	for set, want := range map[string]map[string]bool{
		"nodeConfig.mirrors=[registry.k8s.io]":                                                    {k8s: false, hub: true},
		"nodeConfig.mirrors=[docker.io]":                                                          {k8s: true, hub: false},
		"nodeConfig.mirrors=['*']":                                                                {k8s: false, hub: false},
		"nodeConfig.mirrors=['*', '!registry.k8s.io']":                                            {k8s: true, hub: false},
		"nodeConfig.containerd.hosts={registry.k8s.io: '# x'}":                                    {k8s: false, hub: true},
		"nodeConfig.containerd.hosts={_default: '# x'}":                                           {k8s: false, hub: false},
		"nodeConfig.k3s.registries={mirrors: {docker.io: {}}}":                                    {k8s: true, hub: false},
		"nodeConfig.k3s.registries='mirrors: {\"*\": {}}'":                                        {k8s: false, hub: false},
		"nodeConfig.k3s.existingSecret=mine":                                                      {k8s: false, hub: false},
		"rewrite={enabled: true}":                                                                 {k8s: false, hub: false},
		"rewrite={enabled: true, registries: [quay.io]}":                                          {k8s: true, hub: true},
		"rewrite={enabled: true, registries: [index.docker.io]}":                                  {k8s: true, hub: false},
		"expose={service: {enabled: true}, hosts: [registry.k8s.io], tls: {existingSecret: tls}}": {k8s: false, hub: true},
	} {
		values := proxyMode(t, "injector.architectures=[amd64]", set)
		for image, trusted := range want {
			out := rendering{values: values, cluster: newCluster(kubernetes(corev1.IPv4Protocol),
				node("a", "amd64", image), node("b", "amd64", "a.example/x@"+unofficial))}.render(t)
			d := decided(out).Injector
			if got := d.PauseImages["amd64"].Reference == image; got != trusted {
				t.Errorf("%s: the chart uses %s", set, d.PauseImages["amd64"].Reference)
			}
			d.PauseRules.References = nil
			if got := d.PauseRules.Trust(image) == nodeimages.ByName; got != trusted {
				t.Errorf("%s: init-hook trusts %s: %t", set, image, got)
			}
		}
	}
}

// An upgrade without a change renders the same, whatever nodes joined or left since: nothing restarts.
func TestNodesThatJoinChangeNothing(t *testing.T) {
	values := proxyMode(t, "nodeConfig.mirrors=[docker.io]", "cache.replicas=1")
	first := []runtime.Object{kubernetes(corev1.IPv4Protocol), named("a", k8sPause+"@"+pause39, k8sPause+":3.9")}
	before := rendering{values: values, cluster: newCluster(first...)}.render(t)
	saved := remembers(ready(settings(state.ModeProxy, state.IPv4), func(s *state.State) {
		s.PauseImages = map[string]state.PauseImage{}
		for architecture, image := range decided(before).Injector.PauseImages {
			s.PauseImages[architecture] = image.PauseImage
		}
	}))
	arm := node("e", "arm64", k8sPause+":3.10")
	for description, nodes := range map[string][]runtime.Object{
		"the same":        {first[1]},
		"newer ones":      {first[1], named("b", k8sPause+"@"+pause310), named("c", k8sPause+"@"+pause310)},
		"only others":     {named("b", "a.example/p@"+pause310)},
		"a crowded one":   {first[1], crowded("d", "amd64")},
		"another machine": {first[1], arm},
	} {
		cluster := newCluster(append(nodes, saved, first[0], running("amd64"))...)
		after := rendering{values: values, cluster: cluster, upgrade: true}.render(t)
		if diff := cmp.Diff(installed(before), installed(after)); diff != "" {
			t.Errorf("%s:\n%s", description, diff)
		}
	}
}

// installed returns the objects that stay, without the CronJob, whose image finish pushes.
func installed(out *output) map[string]any {
	found := map[string]any{}
	for _, o := range out.objects {
		if o.hook() == "" && o.GetKind() != "CronJob" {
			found[o.String()] = o.Object
		}
	}
	return found
}

// compileHealer compiles the policy that limits the healer.
func compileHealer(t testing.TB, out *output) *rewriter {
	t.Helper()
	policy := policyOf(t, out, "-healer")
	options := plugincel.OptionalVariableDeclarations{}
	// What Kubernetes 1.30, the first version with such policies, accepts in new objects.
	p := require.Value(compileReferences(version.MajorMinor(1, 29), policy.Spec.Variables, nil, options))(t)
	var expressions []plugincel.ExpressionAccessor
	for _, v := range policy.Spec.Validations {
		expressions = append(expressions, &validating.ValidationCondition{Expression: v.Expression})
	}
	p.denial = p.compiler.CompileCondition(expressions, options, environment.NewExpressions)
	if errs := p.denial.CompilationErrors(); len(errs) > 0 {
		t.Fatal(errs)
	}
	return p
}

// admits evaluates the policy for a change of a pod.
func (r *rewriter) admits(t testing.TB, before, after *corev1.Pod) bool {
	t.Helper()
	q := require.Value(requestOf(after, before))(t)
	results, _, err := r.denial.ForInput(r.compiler.CreateContext(context.Background()), q.versioned, q.request,
		plugincel.OptionalVariableBindings{}, nil, celconfig.RuntimeCELCostBudget)
	require.NoError(t, err)
	for _, result := range results {
		if result.Error != nil {
			t.Fatal(result.Error)
		}
		if result.EvalResult.Value() != true {
			return false
		}
	}
	return true
}

// allows evaluates the policy for an image in place of another.
func (r *rewriter) allows(t testing.TB, before, after string) bool {
	t.Helper()
	pod := func(image string) *corev1.Pod {
		pod := podOf("example.com/other:1", image)
		pod.Spec.Containers[1].Command = []string{"/payload/loader", "/payload"}
		return pod
	}
	return r.admits(t, pod(before), pod(after))
}

func TestHealerMayUseTrustedImagesOnly(t *testing.T) {
	out := rendering{values: proxyMode(t, "injector.image=example.com/it's/\"mine\":1")}.render(t)
	p := compileHealer(t, out)
	official := k8sPause + "@" + pause39
	for image, want := range map[string]bool{
		official: true, "example.com/it's/\"mine\":1": true, "example.com/mine:1": false,
	} {
		if got := p.allows(t, k8sPause+":3.9", image); got != want {
			t.Errorf("%q is allowed: %t", image, got)
		}
	}
	if !p.allows(t, "example.com/unknown:1", "example.com/unknown:1") {
		t.Error("a pod whose image is unknown cannot be changed otherwise")
	}
	before, after := podOf("a:1"), podOf(official)
	if p.admits(t, before, after) {
		t.Error("a container without the loader can be changed")
	}
	// One of two containers gets another image.
	before, after = podOf("a:1", "a:1"), podOf(official, "evil.example/pause:1")
	for _, pod := range []*corev1.Pod{before, after} {
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Command = []string{"/payload/loader"}
		}
	}
	if p.admits(t, before, after) {
		t.Error("only the first container is checked")
	}
}

// The file is data that somebody edits.
func TestTableOfPauseImages(t *testing.T) {
	var table struct {
		Source, Default string
		Digests         map[string]string
		Repositories    []string
		Official        []string
	}
	for _, f := range loadChart(t).Files {
		if f.Name == "files/pause-images.json" {
			require.NoError(t, json.Unmarshal(f.Data, &table))
		}
	}
	rules := decided(rendering{values: proxyMode(t)}.render(t)).Injector.PauseRules
	if rules.References = nil; rules.Trust(table.Default) != nodeimages.ByDigest {
		t.Errorf("the default %q is not trusted", table.Default)
	}
	for digest := range table.Digests {
		if len(digest) != len(pause39) || rules.Trust("a.example/b@"+digest) != nodeimages.ByDigest {
			t.Errorf("digest %s is not trusted", digest)
		}
	}
	for _, repository := range table.Repositories {
		if strings.ContainsAny(repository, "*@:") || rules.Trust(repository+":1") != nodeimages.ByName {
			t.Errorf("repository %s is not trusted", repository)
		}
	}
	for _, image := range table.Official {
		_, name, _ := strings.Cut(image, "/")
		if rules.Trust(image) != nodeimages.ByName || !slices.Contains(slices.Collect(maps.Values(table.Digests)), name) {
			t.Errorf("%s is no official image that is trusted by its name", image)
		}
	}
	if !slices.Equal(table.Official, rules.Official) || len(table.Official) < 5 {
		t.Errorf("the images to try are %q", rules.Official)
	}
	if len(table.Digests) < 10 || !slices.IsSorted(table.Repositories) || table.Source == "" {
		t.Errorf("the table is %+v", table)
	}
}
