package templates

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/google/go-cmp/cmp"
)

// A permission is one rule of a role: "verbs resources names", the names of objects with "-" for the
// full name of the release at their beginning. Without names it holds for all objects of its
// namespace.
type permission struct {
	role string // component, and kind of the role
	rule string
	when func(p permissions) bool // nil means always
}

// permissions is what the rules of a rendering depend on.
type permissions struct {
	*output
	mode, pki string
}

func (p permissions) internal() bool { return p.mode != "external" }
func (p permissions) hosting() bool {
	return p.internal() && (p.value("localRegistryHosting") == true || p.value("zarf.compatible") == true)
}
func (p permissions) noHosting() bool { return !p.hosting() }
func (p permissions) rotation() bool  { return p.internal() && p.value("pki.rotation.schedule") != "" }
func (p permissions) gc() bool {
	return p.internal() && p.value("registry.garbageCollection.enabled") == true
}
func (p permissions) prune() bool {
	return p.gc() && p.value("registry.garbageCollection.prune.olderThan") != ""
}
func (p permissions) nodeConfig() bool {
	return len(daemonSets(p.output, "node-config"))+len(daemonSets(p.output, "node-restore")) > 0
}
func (p permissions) nodeCA() bool      { return p.rotation() && decided(p.output).NodeConfig.CA }
func (p permissions) healer() bool      { return len(healers(p.output)) > 0 }
func (p permissions) certManager() bool { return p.rotation() && p.pki == "certManager" }
func (p permissions) ownIssuer() bool {
	return p.certManager() && p.text("pki.certManager.issuerRef.name") == ""
}
func (p permissions) claim() bool    { return decided(p.output).Storage.Claim.Name != "" }
func (p permissions) ownClaim() bool { return p.claim() && !decided(p.output).Storage.Claim.Existing }
func (p permissions) classes() bool  { return p.claim() || decided(p.output).Storage.CacheClass != "" }

func (p permissions) podSecurity() bool { return p.value("podSecurity.label") == true }

func (p permissions) zarf() bool { return p.value("zarf.compatible") == true }

func (p permissions) text(path string) string { s, _ := p.value(path).(string); return s }

// renews returns the rule for the Secrets that the certificates CronJob writes.
func (p permissions) renews() string {
	names := []string{"-node-tls", "-push-tls", "-server-tls", "-state"}
	issues := p.text("pki.existingSecret.push") == "" || decided(p.output).Cache.Enabled
	if p.pki == "internal" || p.pki == "existingSecret" && issues {
		names = append(names, "-ca")
	}
	if decided(p.output).Cache.Enabled {
		names = append(names, "-cache-tls")
	}
	if p.zarf() {
		names = append(names, "zarf-registry-client-tls")
	}
	if p.text("auth.existingSecret") != "" {
		names = append(names, "-credentials", "-auth")
	}
	slices.Sort(names)
	return "get,update secrets " + strings.Join(names, ",")
}

// Only a rollout of proxies with a host port can be held up by nodes that are down.
func (p permissions) healerWithRollouts() bool {
	proxies := daemonSets(p.output, "proxy")
	return p.healer() && len(proxies) > 0 && !proxies[0].Spec.Template.Spec.HostNetwork
}
func (p permissions) healerWithoutRollouts() bool { return p.healer() && !p.healerWithRollouts() }

func (p permissions) byRepository() bool { return byRepository(p.output) }

// expectedPermissions are all rules that the chart may render, and when.
var expectedPermissions = []permission{
	{"init-hook ClusterRole", "list nodes", nil},
	{"init-hook ClusterRole", "list services", nil},
	{"init-hook ClusterRole", "list storageclasses.storage.k8s.io", permissions.classes},
	{"init-hook ClusterRole", "list persistentvolumes", permissions.claim},

	{"init-hook Role in kube-public", "delete,get,update configmaps local-registry-hosting", permissions.hosting},
	{"init-hook Role in kube-public", "create configmaps", permissions.hosting},
	{"init-hook Role in kube-public", "delete,get configmaps local-registry-hosting", permissions.noHosting},

	{"init-hook Role", "create secrets", nil},
	{
		"init-hook Role",
		"delete,get,update secrets -auth,-ca,-cache-tls,-credentials,-node-tls,-pull,-push-tls,-server-tls,-state", nil,
	},
	{"init-hook Role", "get,update secrets zarf-registry-client-tls", permissions.zarf},
	{"init-hook Role", "get secrets -zarf-users", permissions.zarf},
	{"init-hook Role", "delete,get secrets -ca-issued,-cache-issued,-node-issued,-push-issued,-server-issued", nil},
	{"init-hook Role", "create,delete,list,update configmaps", nil},
	{"init-hook Role", "create,delete,list,patch pods", nil},
	{"init-hook Role", "create,get pods/portforward", nil},
	{"init-hook Role", "list events", nil},
	{"init-hook Role", "delete,get persistentvolumeclaims -", permissions.ownClaim},
	{"init-hook Role", "create services", nil},
	{"init-hook Role", "delete,get,patch services -nodeport", nil},
	{"init-hook Role", "list,patch endpointslices.discovery.k8s.io", nil},
	{"init-hook Role", "get deployments.apps -", nil},
	{"init-hook Role", "delete,list daemonsets.apps", nil},
	{"init-hook Role", "get jobs.batch -cleanup,-finish,-prepare,-rollback", nil},
	{"init-hook Role", "delete jobs.batch -finish,-prepare,-rollback", nil},
	{"init-hook Role", "create certificates.cert-manager.io", nil},
	{"init-hook Role", "create issuers.cert-manager.io", nil},
	{"init-hook Role", "delete,get,update certificates.cert-manager.io -ca,-cache,-node,-push,-server", nil},
	{"init-hook Role", "update certificates/status.cert-manager.io -ca,-cache,-node,-push,-server", nil},
	{"init-hook Role", "delete,get,update issuers.cert-manager.io -ca,-selfsigned", nil},
	{"init-hook Role", "list certificaterequests.cert-manager.io", nil},

	{"certificates ClusterRole", "list nodes", permissions.rotation},
	{"certificates Role", "list pods", permissions.rotation},
	{"certificates Role", "create,get pods/portforward", permissions.rotation},
	{"certificates Role", "delete pods", permissions.nodeCA},
	{"certificates Role", "list daemonsets.apps", permissions.nodeCA},
	{"certificates Role", "list certificaterequests.cert-manager.io", permissions.certManager},
	{"certificates Role", "get issuers.cert-manager.io -ca,-selfsigned", permissions.ownIssuer},

	{"healer ClusterRole", "get nodes", permissions.healer},
	{"healer Role", "list,patch,watch pods", permissions.healerWithoutRollouts},
	{"healer Role", "delete,list,patch,watch pods", permissions.healerWithRollouts},
	{"healer Role", "list daemonsets.apps", permissions.healerWithRollouts},
	{"healer Role", "create events", permissions.healer},
	{"healer Role", "get,update configmaps -repositories", permissions.byRepository},

	{"garbage-collection Role", "get secrets -credentials,-push-tls,-state", permissions.gc},
	{"garbage-collection Role", "list pods", func(p permissions) bool { return p.gc() && !p.prune() }},
	{"garbage-collection Role", "create,get pods/portforward", permissions.gc},

	{"garbage-collection ClusterRole", "list pods", permissions.prune},
	{"garbage-collection ClusterRole", "list replicationcontrollers", permissions.prune},
	{"garbage-collection ClusterRole", "list deployments.apps", permissions.prune},
	{"garbage-collection ClusterRole", "list replicasets.apps", permissions.prune},
	{"garbage-collection ClusterRole", "list statefulsets.apps", permissions.prune},
	{"garbage-collection ClusterRole", "list daemonsets.apps", permissions.prune},
	{"garbage-collection ClusterRole", "list jobs.batch", permissions.prune},
	{"garbage-collection ClusterRole", "list cronjobs.batch", permissions.prune},
}

// userPermissions are the rules for the user's objects that the values name, for the release's namespace, and for
// certificates.
func (p permissions) userPermissions() map[string][]string {
	rules := map[string][]string{}
	reads := func(role string, names ...string) {
		names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
		slices.Sort(names)
		if names = slices.Compact(names); len(names) > 0 {
			rules[role] = append(rules[role], "get secrets "+strings.Join(names, ","))
		}
	}
	text := p.text
	if p.rotation() {
		rules["certificates Role"] = append(rules["certificates Role"], p.renews())
	}
	if p.certManager() {
		issued := []string{"-node", "-push", "-server"}
		if p.ownIssuer() {
			issued = append(issued, "-ca")
		}
		if decided(p.output).Cache.Enabled {
			issued = append(issued, "-cache")
		}
		slices.Sort(issued)
		list := strings.Join(issued, ",")
		rules["certificates Role"] = append(rules["certificates Role"],
			"get secrets "+strings.ReplaceAll(list, ",", "-issued,")+"-issued",
			"get certificates.cert-manager.io "+list,
			"update certificates/status.cert-manager.io "+list)
	}
	if p.internal() {
		sources := []string{text("auth.existingSecret")}
		if p.pki == "existingSecret" {
			for _, of := range []string{"server", "node", "push", "cache", "ca"} {
				sources = append(sources, text("pki.existingSecret."+of))
			}
		}
		reads("init-hook Role", slices.Clone(sources)...)
		if p.rotation() {
			reads("certificates Role", sources...)
		}
		var exposed []string
		if text("expose.tls.certManager.issuerRef.name") == "" {
			exposed = append(exposed, text("expose.tls.existingSecret"))
		}
		for _, by := range []string{"service", "ingress", "gateway"} {
			if p.value("expose."+by+".enabled") == true {
				reads("init-hook Role", exposed...)
				break
			}
		}
		if p.value("registry.storage.type") == "s3" {
			reads("init-hook Role", text("registry.storage.s3.existingSecret"), text("registry.storage.s3.caSecret"))
		}
		if claim := decided(p.output).Storage.Claim; claim.Existing {
			rules["init-hook Role"] = append(rules["init-hook Role"], "get persistentvolumeclaims "+claim.Name)
		}
		issuer := "pki.certManager.issuerRef."
		ofCertManager := p.pki == "certManager" && text(issuer+"group") == "cert-manager.io"
		if name := text(issuer + "name"); ofCertManager && name != "" && text(issuer+"kind") == "Issuer" {
			rules["init-hook Role"] = append(rules["init-hook Role"], "get issuers.cert-manager.io "+name)
		}
	}
	if p.podSecurity() {
		for _, o := range p.objects {
			if o.GetKind() == "Role" && o.GetLabels()["app.kubernetes.io/component"] == "init-hook" &&
				o.GetNamespace() != "kube-public" {
				rules["init-hook Role"] = append(rules["init-hook Role"], "get,patch namespaces "+o.GetNamespace())
			}
		}
	}
	if p.nodeConfig() {
		rules["init-hook Role"] = append(rules["init-hook Role"], "delete,get secrets -node-config-proposal")
		reads("init-hook Role", text("nodeConfig.k3s.existingSecret"))
	}
	return rules
}

// wrongPermissions reports every rule of a role that is not expected, and every expected one that is
// missing. It also reports roles that are not bound to the ServiceAccount of their component alone.
func wrongPermissions(out *output) (wrong []string) {
	p := permissions{output: out, mode: decidedMode(out), pki: "internal"}
	if mode, _ := p.value("pki.mode").(string); mode != "" {
		p.pki = mode
	}
	want := p.userPermissions()
	for _, e := range expectedPermissions {
		if e.when == nil || e.when(p) {
			want[e.role] = append(want[e.role], e.rule)
		}
	}
	got := map[string][]string{}
	role := func(o object) string {
		name := o.GetLabels()["app.kubernetes.io/component"] + " " + o.GetKind()
		if o.GetNamespace() == "kube-public" {
			name += " in kube-public"
		}
		return name
	}
	for _, o := range out.objects {
		switch r := o.typed.(type) {
		case *rbacv1.Role:
			got[role(o)] = append(got[role(o)], ruleTexts(r.Rules, fullNameOf(out))...)
		case *rbacv1.ClusterRole:
			got[role(o)] = append(got[role(o)], ruleTexts(r.Rules, "")...)
			if r.AggregationRule != nil {
				wrong = append(wrong, r.Name+" is aggregated")
			}
		case *rbacv1.RoleBinding:
			wrong = append(wrong, wrongBinding(out, o, r.RoleRef, r.Subjects)...)
		case *rbacv1.ClusterRoleBinding:
			wrong = append(wrong, wrongBinding(out, o, r.RoleRef, r.Subjects)...)
		}
	}
	for _, rules := range []map[string][]string{want, got} {
		for _, list := range rules {
			slices.Sort(list)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		wrong = append(wrong, "rules, - expected, + rendered:\n"+diff)
	}
	return wrong
}

// ruleTexts writes each rule as permission.rule does, one text per resource.
func ruleTexts(rules []rbacv1.PolicyRule, fullName string) []string {
	var texts []string
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				if group != "" {
					resource += "." + group
				}
				verbs, names := slices.Sorted(slices.Values(rule.Verbs)), slices.Clone(rule.ResourceNames)
				for i, name := range names {
					if rest, ok := strings.CutPrefix(name, fullName); ok && (rest == "" || rest[0] == '-') {
						names[i] = "-" + strings.TrimPrefix(rest, "-")
					}
				}
				slices.Sort(names)
				text := strings.Join(verbs, ",") + " " + resource + " " + strings.Join(names, ",")
				texts = append(texts, strings.TrimSpace(text))
			}
		}
		if len(rule.NonResourceURLs) > 0 {
			texts = append(texts, fmt.Sprintf("%s %s", rule.Verbs, rule.NonResourceURLs))
		}
	}
	return texts
}

// wrongBinding reports a binding whose only subject is not the ServiceAccount of its component, or
// whose role is neither of that component nor a SecurityContextConstraint of OpenShift.
func wrongBinding(out *output, binding object, role rbacv1.RoleRef, subjects []rbacv1.Subject) (wrong []string) {
	const label = "app.kubernetes.io/component"
	component := binding.GetLabels()[label]
	is := func(kind, name string) func(object) bool {
		return func(o object) bool {
			return o.GetKind() == kind && o.GetName() == name && o.GetLabels()[label] == component
		}
	}
	constraint := map[string]string{"proxy": "hostnetwork-v2", "node-config": "privileged"}[component]
	if constraint == "" || role.Kind != "ClusterRole" || role.Name != "system:openshift:scc:"+constraint {
		i := slices.IndexFunc(out.objects, is(role.Kind, role.Name))
		if i < 0 || role.Kind == "Role" && out.objects[i].GetNamespace() != binding.GetNamespace() {
			wrong = append(wrong, fmt.Sprintf("%s: %s %s is not a role of %s", binding, role.Kind, role.Name, component))
		}
	}
	if len(subjects) != 1 || subjects[0].Kind != "ServiceAccount" {
		return append(wrong, fmt.Sprintf("%s: its subjects are %v", binding, subjects))
	}
	i := slices.IndexFunc(out.objects, is("ServiceAccount", subjects[0].Name))
	if i < 0 || out.objects[i].GetNamespace() != subjects[0].Namespace {
		wrong = append(wrong, fmt.Sprintf("%s: %v is not a ServiceAccount of %s", binding, subjects[0], component))
	}
	return wrong
}

// Combinations that no values file has.
//
// Claim (internal): The certificates CronJob cannot create Secrets.
func TestPermissionsFollowThePKI(t *testing.T) {
	t.Parallel()
	for name, sets := range map[string][]string{
		"internal":      nil,
		"nodeport mode": {"registryProxy=false"},
		"existing Secrets": {
			"pki.mode=existingSecret", "pki.existingSecret={server: s, node: m, push: p, ca: s}", "auth.existingSecret=c",
		},
		"existing Secrets without a push certificate": {
			"pki.mode=existingSecret", "pki.existingSecret={server: s, node: m}", "auth.existingSecret=c",
		},
		"cert-manager with the chart's issuer": {"pki.mode=certManager"},
		"cert-manager with an Issuer":          {"pki.mode=certManager", "pki.certManager.issuerRef.name=i"},
		"cert-manager with a ClusterIssuer": {
			"pki.mode=certManager", "pki.certManager.issuerRef={name: i, kind: ClusterIssuer}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := rendering{values: proxyMode(t, sets...)}.render(t)
			for _, wrong := range wrongPermissions(out) {
				t.Error(wrong)
			}
			// The Jobs run the CronJob's code too.
			hook := rights(append(
				find[*rbacv1.Role](t, out, "zarf-registry-hook").Rules,
				find[*rbacv1.ClusterRole](t, out, "zarf.zarf-registry-hook").Rules...,
			)...)
			for what, verbs := range rights(append(
				find[*rbacv1.Role](t, out, "zarf-registry-certificates").Rules,
				find[*rbacv1.ClusterRole](t, out, "zarf.zarf-registry-certificates").Rules...,
			)...) {
				if !subset(strings.Fields(verbs), strings.Fields(hook[what])...) {
					t.Errorf("the CronJob may %s %s, the Jobs only %s", verbs, what, hook[what])
				}
			}
		})
	}
}
