package templates

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	distribution "github.com/distribution/reference"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// rewriter is the rendered policy, compiled as the API server does (compilePolicy in its package mutating).
type rewriter struct {
	compiler   *plugincel.CompositedCompiler
	conditions plugincel.ConditionEvaluator
	mutation   plugincel.MutatingEvaluator
	denial     plugincel.ConditionEvaluator // whether a pod is valid, and the message
	params     *corev1.ConfigMap
}

func compileRewrite(t testing.TB, out *output) *rewriter {
	t.Helper()
	return require.Value(compilePolicy(all[*admissionregv1.MutatingAdmissionPolicy](out)[0]))(t)
}

func compilePolicy(policy *admissionregv1.MutatingAdmissionPolicy) (*rewriter, error) {
	options := plugincel.OptionalVariableDeclarations{HasParams: policy.Spec.ParamKind != nil}
	r, err := compileReferences(rewriting, policy.Spec.Variables, policy.Spec.MatchConditions, options)
	if err != nil {
		return nil, err
	}
	options.HasPatchTypes = true
	r.mutation = r.compiler.CompileMutatingEvaluator(
		&patch.JSONPatchCondition{Expression: policy.Spec.Mutations[0].JSONPatch.Expression}, options,
		environment.NewExpressions)
	if errs := r.mutation.CompilationErrors(); len(errs) > 0 {
		return nil, fmt.Errorf("mutation: %v", errs)
	}
	return r, nil
}

// rewriting is what Kubernetes 1.34, the oldest version that the chart renders the policy for, accepts in new objects.
var rewriting = version.MajorMinor(1, 33)

// compileReferences compiles what the policies have in common.
func compileReferences(accepts *version.Version, variables []admissionregv1.Variable,
	matchConditions []admissionregv1.MatchCondition, options plugincel.OptionalVariableDeclarations) (*rewriter, error) {
	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(accepts))
	if err != nil {
		return nil, err
	}
	for _, v := range variables {
		result := compiler.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, options,
			environment.NewExpressions)
		if result.Error != nil {
			return nil, fmt.Errorf("variable %s: %w", v.Name, result.Error)
		}
	}
	var conditions []plugincel.ExpressionAccessor
	for _, c := range matchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&c))
	}
	// The API server's validation knows no variables in conditions.
	plain := plugincel.NewConditionCompiler(environment.MustBaseEnvSet(accepts))
	r := &rewriter{compiler: compiler, conditions: plain.CompileCondition(conditions, options, environment.NewExpressions)}
	if errs := r.conditions.CompilationErrors(); len(errs) > 0 {
		return nil, fmt.Errorf("conditions: %v", errs)
	}
	return r, nil
}

// admit returns the pod as the policy changes it, and what the evaluation costs. A nil old pod means that
// the pod is created, otherwise its ephemeral containers are updated.
func (r *rewriter) admit(pod, old *corev1.Pod) (admitted *corev1.Pod, cost int64, err error) {
	q, err := requestOf(pod, old)
	if err != nil {
		return nil, 0, err
	}
	matches, cost, err := r.matches(q)
	if err != nil || !matches {
		return pod, cost, err
	}
	ctx := context.Background()
	_, left, err := r.mutation.ForInput(r.compiler.CreateContext(ctx), q.versioned, q.request, r.bindings(), nil,
		celconfig.RuntimeCELCostBudget)
	if err != nil {
		return nil, 0, err
	}
	cost += celconfig.RuntimeCELCostBudget - left
	changed, err := patch.NewJSONPatcher(r.mutation).Patch(r.compiler.CreateContext(ctx), patch.Request{
		MatchedResource: pods, VersionedAttributes: q.versioned, ObjectInterfaces: objectInterfaces,
		OptionalVariables: r.bindings(),
	}, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return nil, 0, err
	}
	return changed.(*corev1.Pod), cost, nil
}

// podRequest is a request to the API server.
type podRequest struct {
	versioned *admission.VersionedAttributes
	request   *admissionv1.AdmissionRequest
}

var (
	pods             = corev1.SchemeGroupVersion.WithResource("pods")
	objectInterfaces = admission.NewObjectInterfacesFromScheme(scheme.Scheme)
)

func requestOf(pod, old *corev1.Pod) (q podRequest, err error) {
	pod = pod.DeepCopy()
	gvk := corev1.SchemeGroupVersion.WithKind("Pod")
	var attributes admission.Attributes
	if old == nil {
		attributes = admission.NewAttributesRecord(pod, nil, gvk, "default", pod.Name, pods, "", admission.Create,
			&metav1.CreateOptions{}, false, nil)
	} else {
		attributes = admission.NewAttributesRecord(pod, old, gvk, "default", pod.Name, pods, "ephemeralcontainers",
			admission.Update, &metav1.UpdateOptions{}, false, nil)
	}
	q.versioned, err = admission.NewVersionedAttributes(attributes, gvk, objectInterfaces)
	q.request = plugincel.CreateAdmissionRequest(attributes, metav1.GroupVersionResource(pods),
		metav1.GroupVersionKind(gvk))
	return q, err
}

func (r *rewriter) bindings() (bindings plugincel.OptionalVariableBindings) {
	if r.params != nil {
		bindings.VersionedParams = r.params
	}
	return bindings
}

// matches evaluates the conditions.
func (r *rewriter) matches(q podRequest) (matches bool, cost int64, err error) {
	results, left, err := r.conditions.ForInput(context.Background(), q.versioned, q.request, r.bindings(), nil,
		celconfig.RuntimeCELCostBudgetMatchConditions)
	if err != nil {
		return false, 0, err
	}
	matches = true
	for _, result := range results {
		if result.Error != nil {
			return false, 0, result.Error
		}
		matches = matches && result.EvalResult.Value() == true
	}
	return matches, celconfig.RuntimeCELCostBudgetMatchConditions - left, nil
}

func (r *rewriter) mustAdmit(t testing.TB, pod, old *corev1.Pod) *corev1.Pod {
	t.Helper()
	admitted, _, err := r.admit(pod, old)
	require.NoError(t, err)
	return admitted
}

// podOf returns a pod with one container per image: c0, c1, ….
func podOf(references ...string) *corev1.Pod {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	for i, ref := range references {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: ref})
	}
	return pod
}

const aDigest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

var aDigest512 = "sha512:" + strings.Repeat("cf", 64)

// rewrittenReferences are rewritten, or invalid before and after.
var rewrittenReferences = []string{
	"nginx", "nginx:1", "nginx:1.27-alpine", "nginx@" + aDigest, "nginx:1@" + aDigest, "library/nginx",
	"library/nginx:1", "team/app", "team/app:1", "team/app@" + aDigest, "team/app:v1@" + aDigest, "a/b/c/d:1",
	"a_b/c__d:1", "a-b/c--d:1", "docker.io/nginx", "docker.io/nginx:1", "docker.io/library/nginx",
	"docker.io/library/nginx:1", "docker.io/team/app:1", "docker.io/nginx@" + aDigest, "docker.io/nginx:1@" + aDigest,
	"index.docker.io/nginx", "index.docker.io/library/nginx:1", "index.docker.io/team/app:1",
	"registry-1.docker.io/library/nginx:1", "registry-1.docker.io/nginx:1", "docker.io:443/nginx:1",
	"DOCKER.IO/nginx:1", "docker.iox/nginx:1", "docker/nginx:1", "index.docker.io.example/nginx", "quay.io/a/b",
	"quay.io/a/b:1", "quay.io/a/b@" + aDigest, "quay.io/a/b:1@" + aDigest, "quay.io/a/b@" + aDigest512, "quay.io/a",
	"quay.io/a:1", "ghcr.io/a/b/c:1", "registry.k8s.io/pause:3.10.1", "registry.k8s.io/a/b:v1",
	"gcr.io/project-1/a.b_c-d:1", "123456789012.dkr.ecr.eu-west-1.amazonaws.com/a:1", "mcr.microsoft.com/a/b:1",
	"registry.example.com:5001/a/b:1", "registry.example.com:443/a:1", "registry:5000/a:1", "registry:5000/a",
	"registry:80", "10.0.0.1/a:1", "10.0.0.1:5000/a:1", "[fd00::1]:5000/a:1", "[fd00::1]/a", "[::10]:5000/a:1",
	"1270.0.0.1/a:1", "Registry/a:1", "REGISTRY/a/b:1", "localhosts/a:1", "localhost.example/a:1", "localhost",
	"localhost:1", "a.b/c:1", "a.b:1/c", "xn--bcher-kva.example/a:1", "a--b.example/c:1",
	"nginx:" + strings.Repeat("t", 128), "sha256:abc", "sha256/a", "deadbeef", strings.Repeat("a", 63) + ":1",
	strings.Repeat("a", 65), "127.0.0.1", "127.0.0.1:5000", "zarf-registry.zarf.svc",
	"zarf-registry.zarf.svc.example/a:1", "other-registry.zarf.svc:5000/a:1",
	// Invalid ones.
	"/", "/a", "a/", "a//b:1", "nginx:", "nginx@", "nginx@sha256:abc", "nginx:a b", "Nginx", "team/App:1",
	"quay.io/A/b:1", "quay.io/", "docker.io/", "-a.example/b:1", "a-.example/b:1", "a..b/c:1", ".a/b:1", "a.b:/c",
	"a.b:x/c", "[fd00::1/a", "[x]:1/a", "https://quay.io/a/b:1", "quay.io/a/b:1:2", "quay.io/a/-b", "nginx:.1",
	"a.b/" + aDigest, "nginx:" + strings.Repeat("t", 129), "quay.io/" + strings.Repeat("a", 256) + ":1",
	`quay.io/a"b:1`, "ä/b:1", "Ä.de/b:1",
}

// keptReferences stay as they are: the registry's own, other loopback addresses, a host that distribution/reference
// takes for a part of the path, and IDs of images.
var keptReferences = []string{
	"127.0.0.1:31999/a:1", "127.0.0.1:31999/library/nginx", "127.0.0.1:5000/a/b:1", "127.0.0.1/a:1", "127.1.2.3:80/a",
	"localhost/a:1", "localhost:31999/a:1", "localhost:5000/a/b@" + aDigest, "[::1]:31999/a:1", "[::1]/a",
	"zarf-registry.zarf.svc:5000/a:1", "zarf-registry.zarf.svc.cluster.local/a/b:1", "outside.example.com/a/b:1",
	"outside.example.com:8443/a:1", "a_b.example/c:1", aDigest, strings.TrimPrefix(aDigest, "sha256:"),
}

// deviations returns the references whose rewriting differs from distribution/reference, which containerd uses too, or
// from the names that images push uses. keep decides which references stay.
func deviations(r *rewriter, address string, keep func(ref string) bool) []string {
	var found []string
	for _, ref := range slices.Concat(rewrittenReferences, keptReferences) {
		want := ref
		named, err := distribution.ParseNormalizedNamed(ref)
		invalid := err != nil && !kept(ref)
		if !invalid && !keep(ref) {
			want = address + "/" + distribution.Path(named)
			if tagged, ok := named.(distribution.Tagged); ok {
				want += ":" + tagged.Tag()
			}
			if digested, ok := named.(distribution.Digested); ok {
				want += "@" + digested.Digest().String()
			}
		}
		admitted, _, err := r.admit(podOf(ref), nil)
		if err != nil {
			found = append(found, fmt.Sprintf("%q: %v", ref, err))
			continue
		}
		got := admitted.Spec.Containers[0].Image
		if invalid {
			if _, err := distribution.ParseNormalizedNamed(got); err == nil {
				found = append(found, fmt.Sprintf("%q is invalid, and becomes the valid %q", ref, got))
			}
			continue
		}
		if got != want {
			found = append(found, fmt.Sprintf("%q becomes %q, want %q", ref, got, want))
			continue
		}
		if keep(ref) {
			continue
		}
		path := ""
		if _, rest, ok := strings.Cut(address, "/"); ok {
			path = rest + "/"
		}
		pushed, version, err := name.Repository(ref)
		pulled, version2, err2 := name.Repository(got)
		if err != nil || err2 != nil || pulled != path+pushed || version != version2 {
			found = append(found, fmt.Sprintf("%q becomes %q, but images push stores it as %s, %s (%v, %v)", ref, got, pushed,
				version, err, err2))
		}
	}
	return found
}

func kept(ref string) bool { return slices.Contains(keptReferences, ref) }

func TestRewriteReferences(t *testing.T) {
	t.Parallel()
	const exposed = "expose.hosts=[outside.example.com]"
	id := func(ref string) bool { return strings.HasSuffix(aDigest, ref) }
	host := func(ref string) string {
		named, err := distribution.ParseNormalizedNamed(ref)
		if err != nil {
			return ""
		}
		return distribution.Domain(named)
	}
	for description, c := range map[string]struct {
		sets    []string
		address string
		keep    func(ref string) bool
	}{
		"in proxy mode": {[]string{exposed}, "127.0.0.1:31999", kept},
		"on IPv6":       {[]string{exposed, "ipFamily=IPv6"}, "[::1]:31999", kept},
		"with an external registry": {
			[]string{"registryProxy=null", "registryURL=registry.example.com:443/team"}, "registry.example.com:443/team",
			func(ref string) bool {
				return kept(ref) && !strings.Contains(ref, "zarf-registry.zarf") && !strings.Contains(ref, "outside") ||
					host(ref) == "registry.example.com:443"
			},
		},
		"of some registries": {
			[]string{"rewrite.registries=[index.docker.io, 'localhost:5000', '[fd00::1]:5000']"}, "127.0.0.1:31999",
			func(ref string) bool {
				return id(ref) || !slices.Contains([]string{"docker.io", "localhost:5000", "[fd00::1]:5000"}, host(ref))
			},
		},
		"of all registries except some": {
			[]string{exposed, "rewrite.registries=['*', '!docker.io', '!quay.io', 'localhost:5000']"}, "127.0.0.1:31999",
			func(ref string) bool {
				return host(ref) != "localhost:5000" && (kept(ref) || slices.Contains([]string{"docker.io", "quay.io"}, host(ref)))
			},
		},
		"of some registries except one of them": {
			[]string{"rewrite.registries=[docker.io, quay.io, '!docker.io']"}, "127.0.0.1:31999",
			func(ref string) bool { return host(ref) != "quay.io" },
		},
	} {
		t.Run(description, func(t *testing.T) {
			r := compileRewrite(t, rendering{values: proxyMode(t, append(c.sets, "rewrite.enabled=true")...)}.render(t))
			for _, deviation := range deviations(r, c.address, c.keep) {
				t.Error(deviation)
			}
		})
	}
}

func TestRewritePods(t *testing.T) {
	t.Parallel()
	r := compileRewrite(t, rendering{values: proxyMode(t, "rewrite.enabled=true")}.render(t))
	const address = "127.0.0.1:31999/"
	t.Run("containers, init containers and volumes", func(t *testing.T) {
		pod := podOf("nginx:1", address+"a:1", "quay.io/a/b:1", "quay.io/never:1")
		pod.Annotations = map[string]string{"a/b": "c"}
		pod.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
		pod.Spec.Containers[3].ImagePullPolicy = corev1.PullNever
		pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "docker.io/library/busybox"}}
		pod.Spec.Volumes = []corev1.Volume{
			{Name: "config", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "model", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "ghcr.io/a/model:1"}}},
			{Name: "later", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}},
		}
		want := pod.DeepCopy()
		want.Spec.Containers[0].Image = address + "library/nginx:1"
		want.Spec.Containers[2].Image = address + "a/b:1"
		want.Spec.InitContainers[0].Image = address + "library/busybox"
		want.Spec.Volumes[1].Image.Reference = address + "a/model:1"
		want.Annotations = map[string]string{
			"a/b": "c", "original-image.zarf-registry/c0": "nginx:1", "original-image.zarf-registry/c2": "quay.io/a/b:1",
			"original-image.zarf-registry/init":   "docker.io/library/busybox",
			"original-volume.zarf-registry/model": "ghcr.io/a/model:1",
		}
		got := r.mustAdmit(t, pod, nil)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the pod differs:\n%s", diff)
		}
		if diff := cmp.Diff(got, r.mustAdmit(t, got, nil)); diff != "" {
			t.Errorf("a second evaluation changes it:\n%s", diff)
		}
		// A webhook adds a container, and the API server evaluates the policy again.
		got.Spec.Containers = append(got.Spec.Containers, corev1.Container{Name: "sidecar", Image: "quay.io/mesh:1"})
		again := r.mustAdmit(t, got, nil)
		if i := again.Spec.Containers[4].Image; i != address+"mesh:1" || len(again.Annotations) != len(got.Annotations)+1 ||
			again.Annotations["original-image.zarf-registry/sidecar"] != "quay.io/mesh:1" {
			t.Errorf("the sidecar has image %s, the pod annotations %v", i, again.Annotations)
		}
		if errs := apivalidation.ValidateAnnotations(again.Annotations, nil); len(errs) > 0 {
			t.Error(errs)
		}
	})
	t.Run("pods that stay", func(t *testing.T) {
		for description, change := range map[string]func(pod *corev1.Pod){
			"a mirror pod":  func(pod *corev1.Pod) { pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "a"} },
			"a Windows pod": func(pod *corev1.Pod) { pod.Spec.OS = &corev1.PodOS{Name: corev1.Windows} },
			"a pod for Windows nodes": func(pod *corev1.Pod) {
				pod.Spec.NodeSelector = map[string]string{corev1.LabelOSStable: "windows"}
			},
			"a pod of the registry's images": func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = address + "a:1" },
		} {
			pod := podOf("nginx")
			change(pod)
			if diff := cmp.Diff(pod, r.mustAdmit(t, pod, nil)); diff != "" {
				t.Errorf("%s changes:\n%s", description, diff)
			}
		}
	})
	t.Run("only new ephemeral containers", func(t *testing.T) {
		ephemeral := func(name, image string) corev1.EphemeralContainer {
			return corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name, Image: image}}
		}
		old := podOf("nginx") // from before the policy
		old.Spec.EphemeralContainers = []corev1.EphemeralContainer{ephemeral("debug-1", "busybox")}
		pod := old.DeepCopy()
		pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, ephemeral("debug-2", "busybox"))
		want := pod.DeepCopy()
		want.Spec.EphemeralContainers[1].Image = address + "library/busybox"
		if diff := cmp.Diff(want, r.mustAdmit(t, pod, old)); diff != "" {
			t.Errorf("the pod differs:\n%s", diff)
		}
	})
}

func TestRewritePullSecret(t *testing.T) {
	t.Parallel()
	for description, c := range map[string]struct {
		sets []string
		want string
	}{
		"in nodeport mode":     {[]string{"registryProxy=false"}, "zarf-registry-pull"},
		"in proxy mode":        {nil, ""},
		"with anonymous pulls": {[]string{"registryProxy=false", "auth.anonymousPull=true"}, ""},
		"of the user":          {[]string{"rewrite.pullSecret=mine"}, "mine"},
	} {
		t.Run(description, func(t *testing.T) {
			r := compileRewrite(t, rendering{values: proxyMode(t, append(c.sets, "rewrite.enabled=true")...)}.render(t))
			for _, present := range [][]corev1.LocalObjectReference{
				nil, {{Name: "a"}}, {{Name: "a"}, {Name: "mine"}, {Name: "zarf-registry-pull"}},
			} {
				pod := podOf("nginx", "quay.io/a")
				pod.Spec.ImagePullSecrets = present
				want := slices.Clone(present)
				if reference := (corev1.LocalObjectReference{Name: c.want}); c.want != "" && !slices.Contains(want, reference) {
					want = append(want, reference)
				}
				got := r.mustAdmit(t, pod, nil)
				if diff := cmp.Diff(want, got.Spec.ImagePullSecrets); diff != "" {
					t.Errorf("%v: the pull Secrets differ:\n%s", present, diff)
				}
			}
			pod := podOf("localhost/a")
			if got := r.mustAdmit(t, pod, nil); len(got.Spec.ImagePullSecrets) != 0 {
				t.Errorf("a pod that stays gets %v", got.Spec.ImagePullSecrets)
			}
		})
	}
}

// TestRewriteCost compares a large pod with the API server's limits: for a call of the policy, and for each expression.
func TestRewriteCost(t *testing.T) {
	t.Parallel()
	r := compileRewrite(t, rendering{values: proxyMode(t, "registryProxy=false", "rewrite.enabled=true",
		"rewrite.registries=['*', '!a.example', '!b.example']", "expose.hosts=[outside.example.com]")}.render(t))
	long := "registry-of-a-department.example.com:5000/" + strings.Repeat("component/", 10) + "image:1.2.3@" + aDigest
	pod := podOf(slices.Repeat([]string{long}, 50)...)
	got, cost, err := r.admit(pod, nil)
	require.NoError(t, err)
	if n := len(got.Annotations); n != 50 {
		t.Fatalf("%d images were rewritten", n)
	}
	t.Logf("50 containers with references of %d characters cost %d of %d", len(long), cost, celconfig.RuntimeCELCostBudget)
	// A tenth of what one expression may cost is a hundredth of the budget of all.
	if limit := int64(celconfig.PerCallLimit / 10); cost >= limit {
		t.Errorf("it costs %d, want less than %d", cost, limit)
	}
	_, cost, err = r.admit(podOf(slices.Repeat([]string{"127.0.0.1:31999/a:1"}, 50)...), nil)
	if limit := int64(celconfig.RuntimeCELCostBudgetMatchConditions / 1000); err != nil || cost >= limit {
		t.Errorf("a pod with nothing to rewrite costs %d, want less than %d (%v)", cost, limit, err)
	}
}
