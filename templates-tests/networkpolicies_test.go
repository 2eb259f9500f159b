package templates

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// wrongNetworkPolicies compares every NetworkPolicy, with all of its rules and whole peers, with the
// one that its component is to have, and reports workloads without a policy.
func wrongNetworkPolicies(out *output) (wrong []string) {
	want, got := expectedNetworkPolicies(out), map[string]networkingv1.NetworkPolicySpec{}
	for _, p := range all[*networkingv1.NetworkPolicy](out) {
		component := p.Labels["app.kubernetes.io/component"]
		if _, twice := got[component]; twice {
			wrong = append(wrong, component+": two policies")
		}
		got[component] = p.Spec
	}
	if diff := cmp.Diff(want, got); diff != "" {
		wrong = append(wrong, "policies, - expected, + rendered:\n"+diff)
	}
	if out.value("networkPolicy.enabled") == false {
		return wrong
	}
	for _, w := range workloads(out) {
		if decidedMode(out) == "external" && !w.ofNodes() {
			continue // only hook Jobs, and a policy that is no hook would outlive them
		}
		policies := all[*networkingv1.NetworkPolicy](out)
		guarded := slices.ContainsFunc(policies, func(p *networkingv1.NetworkPolicy) bool {
			selected := selects(p.Name, &p.Spec.PodSelector, []workload{w}, func(workload) bool { return true })
			return len(selected) == 0
		})
		// A policy has no effect on pods in the network of their node.
		if !guarded && !w.pod.Spec.HostNetwork {
			wrong = append(wrong, fmt.Sprintf("%s: no policy", w.object))
		}
	}
	return wrong
}

// expectedNetworkPolicies are the policies of a rendering, by component.
func expectedNetworkPolicies(out *output) map[string]networkingv1.NetworkPolicySpec {
	want := map[string]networkingv1.NetworkPolicySpec{}
	if out.value("networkPolicy.enabled") == false {
		return want
	}
	podsOf := func(component string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{
			"app.kubernetes.io/name":      "zarf-registry",
			"app.kubernetes.io/instance":  out.objects[0].GetLabels()["app.kubernetes.io/instance"],
			"app.kubernetes.io/component": component,
		}}
	}
	policy := func(component string, rules ...networkingv1.NetworkPolicyIngressRule) {
		want[component] = networkingv1.NetworkPolicySpec{
			PodSelector: *podsOf(component),
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress:     rules,
		}
	}
	rule := func(port int, peers ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicyIngressRule {
		tcp, number := corev1.ProtocolTCP, intstr.FromInt32(int32(port))
		return networkingv1.NetworkPolicyIngressRule{
			Ports: []networkingv1.NetworkPolicyPort{{Port: &number, Protocol: &tcp}},
			From:  peers,
		}
	}
	metricsFrom := userPeers(out.value("networkPolicy.metricsFrom"))
	if decidedMode(out) != "external" {
		policy("init-hook")
		if out.value("pki.rotation.schedule") != "" {
			policy("certificates")
		}
		if out.value("registry.garbageCollection.enabled") == true {
			policy("garbage-collection")
		}
		policy("test")

		// Proxies on the network of their node have its address, which no selector matches.
		var clients []networkingv1.NetworkPolicyPeer
		if !decided(out).Proxy.HostNetwork {
			policy("proxy")
			if len(metricsFrom) > 0 {
				port, _ := out.value("proxy.metricsPort").(float64)
				policy("proxy", rule(int(port), metricsFrom...))
			}
		}
		// Zarf's clients are in any namespace.
		if !decided(out).Proxy.HostNetwork && out.value("zarf.compatible") != true {
			components := []string{"proxy", "init-hook", "test"}
			if byRepository(out) {
				components = append(components, "healer")
			}
			replicas, _ := out.value("cache.replicas").(float64)
			if nodes, _ := out.value("cache.nodeSelector").(map[string]any); replicas > 0 || len(nodes) > 0 {
				components = append(components, "cache")
			}
			for _, component := range components {
				clients = append(clients, networkingv1.NetworkPolicyPeer{PodSelector: podsOf(component)})
			}
		}
		if decided(out).Cache.Enabled {
			var proxies []networkingv1.NetworkPolicyPeer
			if !decided(out).Proxy.HostNetwork {
				proxies = append(proxies, networkingv1.NetworkPolicyPeer{PodSelector: podsOf("proxy")})
			}
			rules := []networkingv1.NetworkPolicyIngressRule{rule(5000, proxies...)}
			if len(metricsFrom) > 0 {
				rules = append(rules, rule(9102, metricsFrom...))
			}
			policy("cache", rules...)
		}
		rules := []networkingv1.NetworkPolicyIngressRule{rule(5000, clients...), rule(5001)}
		for _, by := range []string{"service", "ingress", "gateway"} {
			if out.value("expose."+by+".enabled") == true {
				rules = append(rules, rule(5443, userPeers(out.value("networkPolicy.exposeFrom"))...))
				break
			}
		}
		if len(metricsFrom) > 0 {
			rules = append(rules, rule(5090, metricsFrom...))
		}
		policy("registry", rules...)
	}
	if len(healers(out)) > 0 {
		policy("healer")
		if len(metricsFrom) > 0 {
			policy("healer", rule(9103, metricsFrom...))
		}
	}
	if len(daemonSets(out, "node-config"))+len(daemonSets(out, "node-restore")) > 0 {
		selector := podsOf("")
		delete(selector.MatchLabels, "app.kubernetes.io/component")
		selector.MatchExpressions = []metav1.LabelSelectorRequirement{{
			Key:      "app.kubernetes.io/component",
			Operator: metav1.LabelSelectorOpIn,
			Values:   []string{"node-config", "node-restore"},
		}}
		want["node-config"] = networkingv1.NetworkPolicySpec{
			PodSelector: *selector,
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		}
	}
	return want
}

// byRepository reports whether references to some repositories only are rewritten.
func byRepository(out *output) bool {
	return out.value("rewrite.enabled") == true && slices.Contains([]any{"keep", "deny"}, out.value("rewrite.missing"))
}

// userPeers decodes peers that the user gave.
func userPeers(value any) []networkingv1.NetworkPolicyPeer {
	var list []networkingv1.NetworkPolicyPeer
	b, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		panic(err) // the schema has accepted them
	}
	if len(list) == 0 {
		return nil // as a rule without peers is decoded
	}
	return list
}
