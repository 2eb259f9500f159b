package templates

import (
	"slices"
	"strings"
	"testing"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestRewritePolicy(t *testing.T) {
	t.Parallel()
	out := rendering{values: proxyMode(t, "rewrite.enabled=true")}.render(t)
	policy := all[*admissionregv1.MutatingAdmissionPolicy](out)[0]
	if binding := all[*admissionregv1.MutatingAdmissionPolicyBinding](out)[0]; binding.Spec.PolicyName != policy.Name {
		t.Errorf("the binding is of %s, not of %s", binding.Spec.PolicyName, policy.Name)
	}
	if *policy.Spec.FailurePolicy != admissionregv1.Ignore {
		t.Error("no pod can be created if the policy cannot be evaluated")
	}
	if policy.Spec.ReinvocationPolicy != admissionregv1.IfNeededReinvocationPolicy {
		t.Error("containers that webhooks add are not rewritten")
	}
	var rules []string
	for _, r := range policy.Spec.MatchConstraints.ResourceRules {
		rules = append(rules, string(r.Operations[0])+" "+strings.Join(r.Resources, ","))
		if len(r.Operations) != 1 {
			t.Errorf("operations %v", r.Operations)
		}
	}
	if want := []string{"CREATE pods", "UPDATE pods/ephemeralcontainers"}; !slices.Equal(rules, want) {
		t.Errorf("it acts on %v, want %v", rules, want)
	}
}

// zarf-registry status tries the policy with an image of this registry.
func TestRewrittenHost(t *testing.T) {
	t.Parallel()
	for registries, want := range map[string]string{
		`["*"]`: "docker.io", `["*", "!docker.io"]`: "quay.io", `["!quay.io", "*", "!docker.io"]`: "registry.example.com",
		`["!docker.io", "docker.io", ghcr.io]`: "ghcr.io", `["*", "registry.lan:5000"]`: "registry.lan:5000",
		`["!docker.io", "docker.io"]`: "",
	} {
		out := rendering{values: proxyMode(t, "rewrite={enabled: true, registries: "+registries+"}")}.render(t)
		policy := all[*admissionregv1.MutatingAdmissionPolicy](out)[0]
		if got := policy.Annotations[names.AnnotationRewrittenHost]; got != want {
			t.Errorf("%s: %q, want %q", registries, got, want)
		}
	}
}

func TestRewriteSelectors(t *testing.T) {
	t.Parallel()
	for description, c := range map[string]struct {
		sets       []string
		namespaces map[string]bool // name and, after a slash, a label: whether pods are rewritten
	}{
		"by default": {nil, map[string]bool{
			"default": true, "zarf": false, "kube-system": false, "kube-flannel": false, "calico-system": false,
			"tigera-operator": false, "cilium": false, "team/zarf-registry/rewrite=disabled": false,
			"team/zarf-registry/rewrite=enabled": true,
		}},
		"without exclusions": {
			[]string{"rewrite.excludedNamespaces=[]", "namespaceOverride=images"},
			map[string]bool{"images": false, "kube-system": true, "zarf": true},
		},
		"with a selector": {
			[]string{"rewrite.namespaceSelector={matchLabels: {a: b}, matchExpressions: [{key: c, operator: DoesNotExist}]}"},
			map[string]bool{"team": false, "team/a=b": true, "team/a=b,c=d": false, "kube-system/a=b": false},
		},
	} {
		t.Run(description, func(t *testing.T) {
			out := rendering{values: proxyMode(t, append(c.sets, "rewrite.enabled=true")...)}.render(t)
			match := all[*admissionregv1.MutatingAdmissionPolicy](out)[0].Spec.MatchConstraints
			selector := require.Value(metav1.LabelSelectorAsSelector(match.NamespaceSelector))(t)
			for namespace, want := range c.namespaces {
				name, text, _ := strings.Cut(namespace, "/")
				set := require.Value(labels.ConvertSelectorToLabelsMap(text))(t)
				set["kubernetes.io/metadata.name"] = name
				if got := selector.Matches(set); got != want {
					t.Errorf("pods in %s are rewritten: %t", namespace, got)
				}
			}
			pods := require.Value(metav1.LabelSelectorAsSelector(match.ObjectSelector))(t)
			for label, want := range map[string]bool{
				"a=b": true, "zarf-registry/rewrite=enabled": true, "cnpg.io/podRole=pooler": true,
				"zarf-registry/rewrite=disabled": false, "cnpg.io/podRole=instance": false, "aerospike.com/cr=x": false,
				"nifi_cr=x": false, "olm.catalogSource=x": false,
			} {
				key, value, _ := strings.Cut(label, "=")
				if got := pods.Matches(labels.Set{key: value}); got != want {
					t.Errorf("a pod with label %s: %t", label, got)
				}
			}
		})
	}
}

// The version of the API is what the cluster serves. Helm knows the kinds that it serves; helm template knows none.
func TestRewriteVersions(t *testing.T) {
	t.Parallel()
	const group, kind = "admissionregistration.k8s.io/", "/MutatingAdmissionPolicy"
	for description, c := range map[string]struct {
		served []string
		want   string
	}{
		"helm template":   {nil, "v1"},
		"Kubernetes 1.36": {[]string{"v1/Pod", group + "v1" + kind, group + "v1beta1" + kind}, "v1"},
		"Kubernetes 1.34": {[]string{"v1/Pod", group + "v1beta1" + kind}, "v1beta1"},
	} {
		out := rendering{values: proxyMode(t, "rewrite.enabled=true"), apiVersions: c.served}.render(t)
		for _, kind := range []string{"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"} {
			i := slices.IndexFunc(out.objects, func(o object) bool { return o.GetKind() == kind })
			if i < 0 || out.objects[i].GetAPIVersion() != group+c.want {
				t.Errorf("%s: %s is not of %s", description, kind, c.want)
			}
		}
	}
	for _, served := range [][]string{{"v1/Pod"}, {"v1/Pod", group + "v1alpha1" + kind}} {
		_, err := rendering{values: proxyMode(t, "rewrite.enabled=true"), apiVersions: served}.try(t)
		if err == nil || !strings.Contains(err.Error(), ": zarf-registry: rewrite.enabled: ") {
			t.Errorf("a cluster that serves %v: %v", served, err)
		}
		if _, err := (rendering{values: proxyMode(t), apiVersions: served}).try(t); err != nil {
			t.Errorf("without rewriting: %v", err)
		}
	}
}
