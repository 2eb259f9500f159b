package templates

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/node/heal"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// compileDenial compiles the policy that refuses pods.
func compileDenial(t testing.TB, out *output) *rewriter {
	t.Helper()
	var found *admissionregv1.ValidatingAdmissionPolicy
	for _, p := range all[*admissionregv1.ValidatingAdmissionPolicy](out) {
		if strings.HasSuffix(p.Name, "-rewrite-missing") {
			found = p
		}
	}
	if found == nil {
		t.Fatal("no policy refuses pods")
	}
	r, err := compileReferences(rewriting, found.Spec.Variables, found.Spec.MatchConditions,
		cel.OptionalVariableDeclarations{})
	require.NoError(t, err)
	v := found.Spec.Validations[0]
	r.denial = r.compiler.CompileCondition([]cel.ExpressionAccessor{
		&validating.ValidationCondition{Expression: v.Expression},
		&validating.MessageExpressionCondition{MessageExpression: v.MessageExpression},
	}, cel.OptionalVariableDeclarations{}, environment.NewExpressions)
	if errs := r.denial.CompilationErrors(); len(errs) > 0 {
		t.Fatal(errs)
	}
	return r
}

// refusal returns why a pod is refused, or nothing.
func (r *rewriter) refusal(t testing.TB, pod, old *corev1.Pod) (message string, cost int64) {
	t.Helper()
	q := require.Value(requestOf(pod, old))(t)
	matches, cost, err := r.matches(q)
	require.NoError(t, err)
	if !matches {
		return "", cost
	}
	results, left, err := r.denial.ForInput(r.compiler.CreateContext(context.Background()), q.versioned, q.request,
		r.bindings(), nil, celconfig.RuntimeCELCostBudget)
	cost += celconfig.RuntimeCELCostBudget - left
	if err != nil || results[0].Error != nil {
		t.Fatal(err, results[0].Error)
	}
	if results[0].EvalResult.Value() == true {
		return "", cost
	}
	if results[1].Error != nil {
		t.Fatal(results[1].Error)
	}
	return results[1].EvalResult.Value().(string), cost
}

// compileMissing compiles the rewriting policy of rewrite.missing=keep or deny, for a registry with some repositories.
func compileMissing(t testing.TB, out *output, repositories ...string) *rewriter {
	t.Helper()
	r := compileRewrite(t, out)
	data, left := heal.EncodeRepositories(repositories)
	if left > 0 {
		t.Fatalf("%d repositories do not fit", left)
	}
	r.params = &corev1.ConfigMap{Data: data}
	return r
}

func TestRewriteMissingObjects(t *testing.T) {
	t.Parallel()
	for missing, want := range map[string]struct{ copied, denied bool }{
		"rewrite": {}, "keep": {true, false}, "deny": {true, true},
	} {
		for _, mode := range []string{"true", "false"} {
			out := rendering{values: proxyMode(t, "rewrite.enabled=true", "rewrite.missing="+missing,
				"registryProxy="+mode)}.render(t)
			args := strings.Join(healers(out)[0].Spec.Template.Spec.Containers[0].Args, " ")
			flags := "--" + heal.FlagRepositories + "=zarf-registry-repositories --" + heal.FlagRegistry +
				"=zarf-registry.zarf.svc:5000 --" + heal.FlagTLSDir + "=/etc/zarf-registry/tls"
			if got := strings.Contains(args, flags); got != want.copied {
				t.Errorf("%s: the healer's arguments are %s", missing, args)
			}
			policy := all[*admissionregv1.MutatingAdmissionPolicy](out)[0]
			ref := all[*admissionregv1.MutatingAdmissionPolicyBinding](out)[0].Spec.ParamRef
			if got := policy.Spec.ParamKind != nil; got != want.copied || got != (ref != nil) {
				t.Errorf("%s: the policy has parameters: %t, and the binding %v", missing, got, ref)
			}
			maps := slices.DeleteFunc(all[*corev1.ConfigMap](out), func(c *corev1.ConfigMap) bool {
				return c.Name != "zarf-registry-repositories"
			})
			if got := len(maps) == 1; got != want.copied {
				t.Fatalf("%s: %d ConfigMaps", missing, len(maps))
			}
			if want.copied {
				if maps[0].Data != nil || maps[0].BinaryData != nil {
					t.Errorf("%s: an upgrade would change the data", missing)
				}
				if ref.Name != maps[0].Name || ref.Namespace != maps[0].Namespace {
					t.Errorf("%s: the binding names %s/%s", missing, ref.Namespace, ref.Name)
				}
			}
			var denial string
			for _, p := range all[*admissionregv1.ValidatingAdmissionPolicy](out) {
				if strings.HasSuffix(p.Name, "-rewrite-missing") {
					denial = p.Name
					if diff := cmp.Diff(policy.Spec.MatchConstraints, p.Spec.MatchConstraints); diff != "" {
						t.Errorf("the policies are about different pods:\n%s", diff)
					}
					if p.Spec.Validations[0].Message == "" || *p.Spec.FailurePolicy != admissionregv1.Fail {
						t.Errorf("the policy is %+v", p.Spec)
					}
				}
			}
			bound := slices.ContainsFunc(all[*admissionregv1.ValidatingAdmissionPolicyBinding](out),
				func(b *admissionregv1.ValidatingAdmissionPolicyBinding) bool {
					return b.Spec.PolicyName == denial &&
						slices.Equal(b.Spec.ValidationActions, []admissionregv1.ValidationAction{admissionregv1.Deny})
				})
			if got := denial != ""; got != want.denied || bound != want.denied {
				t.Errorf("%s: pods are refused: %t, bound: %t", missing, got, bound)
			}
		}
	}
}

// With all repositories in the registry, references become what they become with rewrite.missing=rewrite; with none,
// all stay.
func TestRewriteMissingReferences(t *testing.T) {
	t.Parallel()
	out := rendering{values: proxyMode(t, "rewrite.enabled=true", "rewrite.missing=keep",
		"expose.hosts=[outside.example.com]")}.render(t)
	var repositories []string
	for _, ref := range rewrittenReferences {
		if name, _, err := name.Repository(ref); err == nil {
			repositories = append(repositories, name)
		}
	}
	full := compileMissing(t, out, repositories...)
	for _, deviation := range deviations(full, "127.0.0.1:31999", kept) {
		t.Error(deviation)
	}
	for description, r := range map[string]*rewriter{
		"an empty registry": compileMissing(t, out), "other repositories": compileMissing(t, out, "library/nginx/x", "ibrary/nginx"),
	} {
		for _, ref := range rewrittenReferences {
			if got := r.mustAdmit(t, podOf(ref), nil); got.Spec.Containers[0].Image != ref || len(got.Annotations) > 0 {
				t.Errorf("%s: %q becomes %q", description, ref, got.Spec.Containers[0].Image)
			}
		}
	}
	// Before the healer has written any.
	empty := compileRewrite(t, out)
	empty.params = &corev1.ConfigMap{}
	if got := empty.mustAdmit(t, podOf("nginx"), nil).Spec.Containers[0].Image; got != "nginx" {
		t.Errorf("without data, nginx becomes %s", got)
	}
}

func TestRewriteMissingPods(t *testing.T) {
	t.Parallel()
	out := rendering{values: proxyMode(t, "rewrite.enabled=true", "rewrite.missing=deny", "registryProxy=false")}.render(t)
	r, denial := compileMissing(t, out, "library/nginx", "team/app"), compileDenial(t, out)
	const address = "127.0.0.1:31999/"
	const hint = ": push it with zarf-registry images push, or label the pod or its namespace zarf-registry/rewrite=disabled"
	for description, c := range map[string]struct {
		pod     *corev1.Pod
		want    []string // the images of its containers
		refused string
	}{
		"both are there":   {podOf("nginx:1", "ghcr.io/team/app@"+aDigest), []string{address + "library/nginx:1", address + "team/app@" + aDigest}, ""},
		"one is missing":   {podOf("nginx:1", "quay.io/a:1"), []string{address + "library/nginx:1", "quay.io/a:1"}, "quay.io/a:1" + hint},
		"both are missing": {podOf("quay.io/a:1", "b"), []string{"quay.io/a:1", "b"}, "quay.io/a:1 and of 1 more" + hint},
		"what is not rewritten": {
			podOf("localhost/a:1", address+"c:1", aDigest), []string{"localhost/a:1", address + "c:1", aDigest}, "",
		},
	} {
		pod := r.mustAdmit(t, c.pod, nil)
		for i, want := range c.want {
			if got := pod.Spec.Containers[i].Image; got != want {
				t.Errorf("%s: %s becomes %s, want %s", description, c.pod.Spec.Containers[i].Image, got, want)
			}
		}
		if c.refused != "" {
			c.refused = "the registry lacks the repository of " + c.refused
		}
		if got, _ := denial.refusal(t, pod, nil); got != c.refused {
			t.Errorf("%s: refused with %q, want %q", description, got, c.refused)
		}
		if added := len(pod.Spec.ImagePullSecrets) > 0; added != strings.HasPrefix(c.want[0], address+"library") {
			t.Errorf("%s: a pull Secret was added: %t", description, added)
		}
	}
	// Containers from before are no reason to refuse a new one.
	old := podOf("quay.io/a:1")
	pod := old.DeepCopy()
	debug := corev1.EphemeralContainerCommon{Name: "debug", Image: address + "debug:1"}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: debug}}
	if got, _ := denial.refusal(t, pod, old); got != "" {
		t.Errorf("an ephemeral container of the registry is refused: %s", got)
	}
	pod.Spec.EphemeralContainers[0].Image = "busybox"
	if got, _ := denial.refusal(t, pod, old); !strings.Contains(got, "repository of busybox:") {
		t.Errorf("an ephemeral container that is missing is refused with %q", got)
	}
}

// 10,000 repositories whose names are equally long, and end with ten characters: the longest values.
func TestRewriteMissingCost(t *testing.T) {
	t.Parallel()
	out := rendering{values: proxyMode(t, "rewrite.enabled=true", "rewrite.missing=deny", "registryProxy=false")}.render(t)
	var repositories, references []string
	for i := range 10_000 {
		name := fmt.Sprintf("departments/%s/images-of-a-team/image-%05d", strings.Repeat("c", 30), i)
		repositories = append(repositories, name)
		if i%200 == 0 {
			references = append(references, "registry-of-a-department.example.com:5000/"+name+":1.2.3@"+aDigest)
		}
	}
	r, denial := compileMissing(t, out, repositories...), compileDenial(t, out)
	for description, c := range map[string]struct {
		references []string
		rewritten  int
	}{"that are there": {references, 50}, "that are missing": {slices.Repeat([]string{references[0][:len(references[0])-80] + "x"}, 50), 0}} {
		pod, cost, err := r.admit(podOf(c.references...), nil)
		require.NoError(t, err)
		if n := len(pod.Annotations); n != c.rewritten {
			t.Errorf("%d images %s were rewritten", n, description)
		}
		message, again := denial.refusal(t, pod, nil)
		if (message == "") != (c.rewritten == 50) || len(message) > 5<<10 {
			t.Errorf("50 images %s: refused with %q", description, message)
		}
		t.Logf("50 images %s cost %d, to deny them %d, of %d", description, cost, again, celconfig.RuntimeCELCostBudget)
		if limit := int64(celconfig.RuntimeCELCostBudget / 10); cost >= limit || again >= limit {
			t.Errorf("it costs %d and %d, want less than %d", cost, again, limit)
		}
	}
}
