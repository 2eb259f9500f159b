package templates

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const policyDir = "../docs/reference/policies/validating-admission-policy"

// The API server accepts the policies that the documentation provides, and each one is bound. Their
// expressions are compiled by the API server in test/e2e (TestPolicies).
func TestProvidedPoliciesAreValid(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(policyDir + "/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("found %v, %v", files, err)
	}
	for _, file := range files {
		objects := policyObjects(t, file)
		if len(objects) != 2 {
			t.Errorf("%s has %d objects", file, len(objects))
			continue
		}
		policy, binding := objects[0].(*admissionv1.ValidatingAdmissionPolicy),
			objects[1].(*admissionv1.ValidatingAdmissionPolicyBinding)
		if binding.Spec.PolicyName != policy.Name ||
			!slices.Equal(binding.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) ||
			*policy.Spec.FailurePolicy != admissionv1.Fail {
			t.Errorf("%s does not deny: %+v, %+v", file, policy.Spec, binding.Spec)
		}
	}
}

func policyObjects(t *testing.T, file string) []runtime.Object {
	t.Helper()
	text := require.Value(os.ReadFile(file))(t)
	var found []runtime.Object
	for _, document := range documents(string(text)) {
		o, err := decode(document)
		require.NoError(t, err, file)
		found = append(found, o.typed)
	}
	return found
}

// A node may create no pod that a Service of the release would select: mirror pods of static pods can have any labels.
// TestHostileImage shows it on a cluster.
func TestNodesCreateNoPodsOfTheRelease(t *testing.T) {
	t.Parallel()
	for set, services := range map[string]int{"cache.replicas=1": 2, exposedService: 2, "registryProxy=false": 1} {
		out := rendering{values: proxyMode(t, set)}.render(t)
		policy := policyOf(t, out, "-static-pods")
		match := policy.Spec.MatchConstraints
		rule := match.ResourceRules[0].RuleWithOperations
		// Every kubelet updates the status of pods.
		if len(match.ResourceRules) != 1 || !slices.Equal(rule.Operations, []admissionv1.OperationType{admissionv1.Create}) ||
			!slices.Equal(rule.Resources, []string{"pods"}) {
			t.Errorf("%s: the policy concerns %+v", set, match.ResourceRules)
		}
		namespaces := match.NamespaceSelector.MatchLabels
		if len(namespaces) != 1 || namespaces["kubernetes.io/metadata.name"] != "zarf" {
			t.Errorf("%s: namespaces: %s", set, namespaces)
		}
		own := match.ObjectSelector.MatchLabels
		selectors := []map[string]string{new(release.Release).PortService(false).Spec.Selector}
		selectors[0]["app.kubernetes.io/instance"] = "zarf-registry"
		for _, s := range all[*corev1.Service](out) {
			selectors = append(selectors, s.Spec.Selector)
		}
		if len(selectors) != services+1 || len(own) != 1 {
			t.Errorf("%s: %d Services, the policy selects %v", set, len(selectors), own)
		}
		for _, selector := range selectors {
			if selector["app.kubernetes.io/instance"] != own["app.kubernetes.io/instance"] {
				t.Errorf("%s: a Service selects %v, the policy %v", set, selector, own)
			}
		}
	}
	for _, set := range []string{"refuseStaticPods=false", "registryProxy=null, registryURL=registry.example.com"} {
		out := rendering{values: proxyMode(t, strings.Split(set, ", ")...)}.render(t)
		for _, policy := range all[*admissionv1.ValidatingAdmissionPolicy](out) {
			if strings.HasSuffix(policy.Name, "-static-pods") {
				t.Errorf("%s: %s is rendered", set, policy.Name)
			}
		}
	}
}

// The policy that protects the payload names the hook's ServiceAccount, and covers every ConfigMap that
// pods run programs from.
func TestPayloadPolicyFitsTheChart(t *testing.T) {
	t.Parallel()
	policy := policyObjects(t, policyDir+"/payload.yaml")[0].(*admissionv1.ValidatingAdmissionPolicy)
	out := rendering{values: proxyMode(t, "nodeConfig.mirrors=[docker.io]")}.render(t)
	hooks := 0
	for _, account := range all[*corev1.ServiceAccount](out) {
		name := "system:serviceaccount:" + account.Namespace + ":" + account.Name
		allowed := strings.Contains(policy.Spec.Variables[0].Expression, "'"+name+"'")
		if hook := account.Labels["app.kubernetes.io/component"] == "init-hook"; hook != allowed {
			t.Errorf("%s: allowed: %t", name, allowed)
		} else if hook {
			hooks++
		}
	}
	if hooks != 1 {
		t.Errorf("the chart has %d hook ServiceAccounts", hooks)
	}
	const condition = "request.name.contains('-payload-')"
	if got := policy.Spec.MatchConditions[0].Expression; got != condition {
		t.Fatalf("the condition is %s", got)
	}
	mounted := 0
	for _, w := range workloads(out) {
		for _, v := range w.pod.Spec.Volumes {
			if v.Name != "payload" {
				continue
			}
			for _, source := range v.Projected.Sources {
				if mounted++; !strings.Contains(source.ConfigMap.Name, "-payload-") {
					t.Errorf("%s: ConfigMap %s is not protected", w.object, source.ConfigMap.Name)
				}
			}
		}
	}
	if mounted == 0 {
		t.Error("no pod mounts a payload")
	}
}

// Kyverno's policy that rewrites images has the expressions of the chart's, so the tests of those hold for it, too.
func TestKyvernoRewritesAsTheChart(t *testing.T) {
	t.Parallel()
	text := require.Value(os.ReadFile("../docs/reference/policies/kyverno/rewrite.yaml"))(t)
	var got map[string]any
	require.NoError(t, yaml.Unmarshal(text, &got))
	out := rendering{values: proxyMode(t, "rewrite.enabled=true")}.render(t)
	var want map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(out.files["rewrite/policy.yaml"]), &want))
	want["apiVersion"], want["kind"] = "policies.kyverno.io/v1", "MutatingPolicy"
	want["metadata"] = map[string]any{"name": "zarf-registry-rewrite"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/reference/policies/kyverno/rewrite.yaml differs from what the chart renders:\n%s", diff)
	}
}
