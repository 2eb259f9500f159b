package templates

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

func TestHealerByVersion(t *testing.T) {
	t.Parallel()
	for description, c := range map[string]struct {
		version string
		sets    []string
		healer  bool
		policy  bool
	}{
		"on, from 1.30":                 {"v1.30.0", nil, true, true},
		"on, of a distribution":         {"v1.30.2+k3s1", nil, true, true},
		"off on request":                {"v1.36.0", []string{"healer.enabled=false"}, false, false},
		"off without injected programs": {"v1.36.0", []string{"injector.enabled=false"}, false, false},
		"on in nodeport mode":           {"v1.36.0", []string{"registryProxy=false"}, true, true},
		"off with an external registry": {
			"v1.36.0", []string{"registryProxy=null", "registryURL=registry.example.com"}, false, false,
		},
		"on with one, to configure nodes": {
			"v1.36.0", []string{
				"registryProxy=null", "registryURL=registry.example.com", "nodeConfig.containerd.hosts={a.example: ''}",
			}, true, true,
		},
	} {
		t.Run(description, func(t *testing.T) {
			out := rendering{values: proxyMode(t, c.sets...), version: c.version}.render(t)
			if got := len(healers(out)) == 1; got != c.healer {
				t.Errorf("the healer is rendered: %t", got)
			}
			got := slices.ContainsFunc(all[*admissionv1.ValidatingAdmissionPolicyBinding](out),
				func(b *admissionv1.ValidatingAdmissionPolicyBinding) bool {
					return strings.HasSuffix(b.Name, "-healer")
				})
			if got != c.policy || c.policy && policyOf(t, out, "-healer") == nil {
				t.Errorf("the policy is bound: %t", got)
			}
		})
	}
}

// policyOf returns the policy with that suffix of its name, which a binding enforces.
func policyOf(t testing.TB, out *output, suffix string) *admissionv1.ValidatingAdmissionPolicy {
	t.Helper()
	deny := []admissionv1.ValidationAction{admissionv1.Deny}
	for _, policy := range all[*admissionv1.ValidatingAdmissionPolicy](out) {
		for _, b := range all[*admissionv1.ValidatingAdmissionPolicyBinding](out) {
			if strings.HasSuffix(policy.Name, suffix) && b.Spec.PolicyName == policy.Name &&
				slices.Equal(b.Spec.ValidationActions, deny) && *policy.Spec.FailurePolicy == admissionv1.Fail {
				return policy
			}
		}
	}
	t.Fatalf("no policy *%s is enforced", suffix)
	return nil
}

// The healer may delete pods only where it continues rollouts. A policy permits proxies of the release only.
//
// Claim: The healer deletes no pods other than proxies.
func TestHealerDeletesProxiesOnly(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]bool{
		"proxy.hostNetwork=false": true, "proxy.hostNetwork=true": false, "registryProxy=false": false,
	} {
		out := rendering{values: proxyMode(t, set)}.render(t)
		may := false
		for _, role := range all[*rbacv1.Role](out) {
			for _, rule := range role.Rules {
				may = may || strings.HasSuffix(role.Name, "-healer") && slices.Contains(rule.Verbs, "delete")
			}
		}
		limited := slices.ContainsFunc(all[*admissionv1.ValidatingAdmissionPolicy](out),
			func(p *admissionv1.ValidatingAdmissionPolicy) bool {
				return strings.HasSuffix(p.Name, "-healer-pods") && strings.Contains(p.Spec.Validations[0].Expression,
					"oldObject.metadata.labels['app.kubernetes.io/component'] == 'proxy'")
			})
		args := healers(out)[0].Spec.Template.Spec.Containers[0].Args
		if may != want || !limited || slices.Contains(args, "--proxy-rollouts") != want {
			t.Errorf("%s: it may delete pods: %t, limited: %t; its arguments: %q", set, may, limited, args)
		}
	}
}

func TestHealerPolicy(t *testing.T) {
	t.Parallel()
	out := rendering{values: proxyMode(t, "namespaceOverride=images", "fullnameOverride=mine")}.render(t)
	policy := all[*admissionv1.ValidatingAdmissionPolicy](out)[0]
	binding := all[*admissionv1.ValidatingAdmissionPolicyBinding](out)[0]
	if binding.Spec.PolicyName != policy.Name ||
		!slices.Equal(binding.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
		t.Errorf("the binding is %+v", binding.Spec)
	}
	account := healers(out)[0].Spec.Template.Spec.ServiceAccountName
	user := "request.userInfo.username == 'system:serviceaccount:images:" + account + "'"
	if conditions := policy.Spec.MatchConditions; len(conditions) != 1 || conditions[0].Expression != user {
		t.Errorf("it holds for %v, want %s", policy.Spec.MatchConditions, user)
	}
	if *policy.Spec.FailurePolicy != admissionv1.Fail {
		t.Error("a request passes if the policy cannot be evaluated")
	}
	// The healer takes other answers for a lost race.
	for _, v := range policy.Spec.Validations {
		if v.Reason == nil || *v.Reason != "Forbidden" {
			t.Errorf("%s: reason %v", v.Message, v.Reason)
		}
	}
	var rules []string
	for _, v := range policy.Spec.Validations {
		rules = append(rules, v.Expression)
	}
	for _, frozen := range []string{
		"labels", "annotations", "ownerReferences", "finalizers", "tolerations", "nodeSelector", "affinity", "schedulingGates",
		"activeDeadlineSeconds", "terminationGracePeriodSeconds", "resources", "'/payload/loader'",
	} {
		if !strings.Contains(strings.Join(rules, "\n"), frozen) {
			t.Errorf("no rule about %s", frozen)
		}
	}
}
