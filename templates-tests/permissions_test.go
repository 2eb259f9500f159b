package templates

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/zarf-dev/zarf-registry/test/golden"
)

// rules returns the rules of each role of a rendering, by component and kind: "verbs resource names". Names begin with
// "-" for the full name of the release, and without names a rule is for all objects of its namespace.
func rules(out *output) map[string][]string {
	found := map[string][]string{}
	for _, o := range out.objects {
		role := o.GetLabels()["app.kubernetes.io/component"] + " " + o.GetKind()
		if o.GetNamespace() == "kube-public" {
			role += " in kube-public"
		}
		switch r := o.typed.(type) {
		case *rbacv1.Role:
			found[role] = append(found[role], ruleTexts(r.Rules, fullNameOf(out))...)
		case *rbacv1.ClusterRole:
			found[role] = append(found[role], ruleTexts(r.Rules, "")...)
			if r.AggregationRule != nil {
				found[role] = append(found[role], "it is aggregated")
			}
		}
	}
	return found
}

// wrongBindings reports roles that are not bound to the ServiceAccount of their component alone.
func wrongBindings(out *output, wrong report) {
	for _, o := range out.objects {
		switch r := o.typed.(type) {
		case *rbacv1.RoleBinding:
			wrongBinding(out, o, r.RoleRef, r.Subjects, wrong)
		case *rbacv1.ClusterRoleBinding:
			wrongBinding(out, o, r.RoleRef, r.Subjects, wrong)
		}
	}
}

// The golden file has each rule of each role, and when the chart renders it.
//
// Claim: Each role has exactly the [documented rights](rights.md).
func TestPermissions(t *testing.T) {
	t.Parallel()
	whenRendered(t, "permissions", rules)
}

// whenRendered compares with a golden file which facts hold for which renderings: those of the matrix, and some that no
// values file has. The facts are sorted by what they are about.
func whenRendered(t *testing.T, file string, facts func(*output) map[string][]string) {
	t.Helper()
	combinations := slices.Clone(matrix(t))
	more := maps.Clone(pkiValues)
	more["advertised"] = []string{"localRegistryHosting=true"}
	more["exposed"] = []string{"expose.service.enabled=true", "expose.hosts=[a.example]", "expose.tls.existingSecret=mine"}
	for name, sets := range more {
		out := rendering{values: proxyMode(t, sets...)}.render(t)
		combinations = append(combinations, combination{file: name, output: out})
	}
	of := map[string]int{}                        // combinations by values file
	when := map[string]map[string][]combination{} // by what a fact is about, and the fact
	for _, c := range combinations {
		of[c.file]++
		for about, facts := range facts(c.output) {
			if when[about] == nil {
				when[about] = map[string][]combination{}
			}
			for _, fact := range facts {
				when[about][fact] = append(when[about][fact], c)
			}
		}
	}
	golden := golden.Open(t, "golden/"+file)
	for about, facts := range when {
		var text strings.Builder
		for _, fact := range slices.Sorted(maps.Keys(facts)) {
			found := map[string]int{}
			for _, c := range facts[fact] {
				found[c.file]++
			}
			names := map[string]bool{}
			for _, c := range facts[fact] {
				name := c.file
				if found[name] < of[name] {
					name = c.name
				}
				names[name] = true
			}
			if len(facts[fact]) == len(combinations) {
				names = map[string]bool{"always": true}
			}
			fmt.Fprintf(&text, "%s: %s\n", fact, strings.Join(slices.Sorted(maps.Keys(names)), ", "))
		}
		golden.Check(t, about, text.String())
	}
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
func wrongBinding(out *output, binding object, role rbacv1.RoleRef, subjects []rbacv1.Subject, wrong report) {
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
			wrong("%s: %s %s is not a role of %s", binding, role.Kind, role.Name, component)
		}
	}
	if len(subjects) != 1 || subjects[0].Kind != "ServiceAccount" {
		wrong("%s: its subjects are %v", binding, subjects)
		return
	}
	i := slices.IndexFunc(out.objects, is("ServiceAccount", subjects[0].Name))
	if i < 0 || out.objects[i].GetNamespace() != subjects[0].Namespace {
		wrong("%s: %v is not a ServiceAccount of %s", binding, subjects[0], component)
	}
}

// pkiValues are values that no values file has.
var pkiValues = map[string][]string{
	"internal":      nil,
	"nodeport mode": {"registryProxy=false"},
	"existing Secrets": {
		"pki.mode=existingSecret", "pki.existingSecret={server: s, node: m, push: p, ca: s}", "auth.existingSecret=c",
	},
	"existing Secrets without a push certificate": {
		"pki.mode=existingSecret", "pki.existingSecret={server: s, node: m}", "auth.existingSecret=c",
	},
	"cert-manager with an Issuer": {"pki.mode=certManager", "pki.certManager.issuerRef.name=i"},
	"cert-manager with a ClusterIssuer": {
		"pki.mode=certManager", "pki.certManager.issuerRef={name: i, kind: ClusterIssuer}",
	},
}

// The Jobs run the CronJob's code too.
//
// Claim (internal): The certificates CronJob cannot create Secrets.
func TestPermissionsFollowThePKI(t *testing.T) {
	t.Parallel()
	for name, sets := range pkiValues {
		t.Run(name, func(t *testing.T) {
			out := rendering{values: proxyMode(t, sets...)}.render(t)
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
				if what == "secrets *" && slices.Contains(strings.Fields(verbs), "create") {
					t.Error("the CronJob may create Secrets")
				}
			}
		})
	}
}
