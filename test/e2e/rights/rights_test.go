package rights

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/zarf-dev/zarf-registry/test/require"
)

const account = "zarf:registry-hook"

// live is a Role with a binding, and a ClusterRole with one.
func live() *Grants {
	g := &Grants{}
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "zarf", Name: "registry-hook"},
		{Kind: "User", Name: "jane"}}
	g.AddRole("zarf", "registry-hook", []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "update"},
			ResourceNames: []string{"state"}},
		{APIGroups: []string{""}, Resources: []string{"pods/portforward"}, Verbs: []string{"get"}},
		{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, Verbs: []string{"list"}},
	})
	g.AddRole("", "zarf-registry-hook", []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}}})
	g.AddRole("zarf", "bound to nobody", []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"delete"}}})
	g.AddBinding("zarf", rbacv1.RoleRef{Kind: "Role", Name: "registry-hook"}, subjects)
	g.AddBinding("", rbacv1.RoleRef{Kind: "ClusterRole", Name: "zarf-registry-hook"}, subjects)
	return g
}

func TestRightsAreThoseOfRolesAndTheirBindings(t *testing.T) {
	want := []Right{
		{account, "get", "pods/portforward", "zarf", ""},
		{account, "get", "secrets", "zarf", "state"},
		{account, "list", "daemonsets.apps", "zarf", ""},
		{account, "list", "nodes", "", ""},
		{account, "update", "secrets", "zarf", "state"},
	}
	g := live()
	if diff := cmp.Diff(want, g.Rights()); diff != "" {
		t.Error(diff)
	}
	// An upgrade changes the role, and what was granted before counts too.
	g.AddRole("zarf", "registry-hook", []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}, ResourceNames: []string{"ca"}}})
	want = slices.Insert(want, 1, Right{account, "get", "secrets", "zarf", "ca"})
	if diff := cmp.Diff(want, g.Rights()); diff != "" {
		t.Error(diff)
	}
	// A ClusterRole in a RoleBinding.
	g = &Grants{}
	g.AddRole("", "scc", []rbacv1.PolicyRule{{APIGroups: []string{"s"}, Resources: []string{"sccs"},
		Verbs: []string{"use"}, ResourceNames: []string{"privileged"}}})
	g.AddBinding("zarf", rbacv1.RoleRef{Kind: "ClusterRole", Name: "scc"},
		[]rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "zarf", Name: "proxy"}})
	if diff := cmp.Diff([]Right{{"zarf:proxy", "use", "sccs.s", "zarf", "privileged"}}, g.Rights()); diff != "" {
		t.Error(diff)
	}
}

// event is a line of the audit log.
func event(user, verb, object, decision string) string {
	if decision != "" {
		decision = `,"annotations":{"authorization.k8s.io/decision":"` + decision + `"}`
	}
	if object != "" {
		object = `,"objectRef":{` + object + `}`
	}
	return `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","stage":"ResponseComplete","verb":"` + verb +
		`","user":{"username":"` + user + `"}` + object + decision + `}` + "\n"
}

const user = "system:serviceaccount:zarf:registry-hook"

func TestRequestsAreReadFromTheAuditLog(t *testing.T) {
	secret := `"resource":"secrets","namespace":"zarf","name":"state","apiVersion":"v1"`
	log := event(user, "get", secret, "allow") + event(user, "get", secret, "allow") +
		event(user, "get", secret, "") + // RequestReceived
		event(user, "create", `"resource":"pods","subresource":"portforward","namespace":"zarf","name":"p"`, "forbid") +
		event(user, "list", `"resource":"daemonsets","namespace":"zarf","apiGroup":"apps"`, "allow") +
		event(user, "get", "", "allow") + // discovery
		event("system:serviceaccount:other:registry-hook", "get", secret, "allow") +
		event("jane", "get", secret, "allow")
	want := []Request{
		{Right{account, "create", "pods/portforward", "zarf", "p"}, true},
		{Right{account, "get", "secrets", "zarf", "state"}, false},
		{Right{account, "list", "daemonsets.apps", "zarf", ""}, false},
	}
	// The last line may lack its end.
	for _, text := range []string{log, strings.TrimSpace(log)} {
		got := require.Value(ReadAuditLog(strings.NewReader(text), "zarf"))(t)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := ReadAuditLog(strings.NewReader(log+"{"), "zarf"); err == nil || !strings.Contains(err.Error(), "line 9") {
		t.Errorf("half a line: %v", err)
	}
}

func TestCompare(t *testing.T) {
	granted := live().Rights()
	used := func(forbidden bool, r Right) Request { r.Account = account; return Request{r, forbidden} }
	all := []Request{
		used(false, Right{Verb: "get", Resource: "pods/portforward", Namespace: "zarf", Name: "registry-1"}),
		used(false, Right{Verb: "get", Resource: "secrets", Namespace: "zarf", Name: "state"}),
		used(false, Right{Verb: "list", Resource: "daemonsets.apps", Namespace: "zarf"}),
		used(false, Right{Verb: "list", Resource: "nodes"}),
		used(false, Right{Verb: "update", Resource: "secrets", Namespace: "zarf", Name: "state"}),
	}
	without := func(n int) []Request { return slices.Delete(slices.Clone(all), n, n+1) }
	updates := Exception{Account: "zarf:*-hook", Verb: "update", Resource: "secrets", Name: "state", Scenario: "TestX"}
	for name, c := range map[string]struct {
		requests   []Request
		exceptions []Exception
		want       []string
	}{
		"all used": {all, nil, nil},
		"one unused": {without(4), nil,
			[]string{"granted but unused: zarf:registry-hook: update secrets state in zarf"}},
		"unused in all of its namespace": {without(0), nil,
			[]string{"granted but unused: zarf:registry-hook: get pods/portforward in zarf"}},
		"used on another object only": {append(without(4), used(false, Right{Verb: "update", Resource: "secrets",
			Namespace: "zarf", Name: "ca"})), nil,
			[]string{"granted but unused: zarf:registry-hook: update secrets state in zarf"}},
		"used in another namespace only": {append(without(2), used(false, Right{Verb: "list", Resource: "daemonsets.apps",
			Namespace: "default"})), nil,
			[]string{"granted but unused: zarf:registry-hook: list daemonsets.apps in zarf"}},
		"used by another account only": {append(without(3),
			Request{Right: Right{Account: "zarf:other", Verb: "list", Resource: "nodes"}}), nil,
			[]string{"granted but unused: zarf:registry-hook: list nodes"}},
		"forbidden, granted at another time": {append(without(4), used(true, all[4].Right)), nil,
			[]string{"granted but unused: zarf:registry-hook: update secrets state in zarf"}},
		"not granted": {append(slices.Clone(all), used(true, Right{Verb: "create", Resource: "secrets", Namespace: "zarf"})),
			nil, []string{"used but not granted: zarf:registry-hook: create secrets in zarf"}},
		"excused": {without(4), []Exception{updates}, nil},
		"excused by another verb": {without(4), []Exception{{Account: "*", Verb: "get", Scenario: "TestY"}}, []string{
			"granted but unused: zarf:registry-hook: update secrets state in zarf",
			"exception for TestY excuses no unused right"}},
		"needless exception": {all, []Exception{updates}, []string{"exception for TestX excuses no unused right"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Compare(granted, c.requests, c.exceptions)
			if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// Each exception names a test, or a subtest in the same file.
func TestExceptionsNameTests(t *testing.T) {
	files := map[string]string{}
	for _, dir := range []string{"..", "../../../internal/hook/certs/certmanager", "../../../internal/hook"} {
		paths := require.Value(filepath.Glob(filepath.Join(dir, "*_test.go")))(t)
		for _, path := range paths {
			text := require.Value(os.ReadFile(path))(t)
			files[path] = string(text)
		}
	}
	for _, e := range Exceptions {
		test, subtest, deep := strings.Cut(e.Scenario, "/")
		if !slices.ContainsFunc(slices.Collect(maps.Values(files)), func(text string) bool {
			return strings.Contains(text, "func "+test+"(t *testing.T)") &&
				(!deep || strings.Contains(text, `"`+strings.ReplaceAll(subtest, "_", " ")+`"`))
		}) {
			t.Errorf("there is no test %s", e.Scenario)
		}
	}
}
