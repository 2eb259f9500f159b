// Package rights compares what ServiceAccounts may do, by Roles and ClusterRoles, with what they did, by the
// API server's audit log.
package rights

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// A Right is one verb on one kind of resource.
type Right struct {
	// Account is NAMESPACE:NAME of the ServiceAccount.
	Account string
	Verb    string
	// Resource is RESOURCE[/SUBRESOURCE][.GROUP].
	Resource string
	// Namespace of the objects; empty for all, and for objects without one.
	Namespace string
	// Name of the object; empty for all.
	Name string
}

func (r Right) String() string {
	text := fmt.Sprintf("%s: %s %s", r.Account, r.Verb, r.Resource)
	if r.Name != "" {
		text += " " + r.Name
	}
	if r.Namespace != "" {
		text += " in " + r.Namespace
	}
	return text
}

// covers reports whether a request that needs the right other is allowed by r.
func (r Right) covers(other Right) bool {
	return r.Account == other.Account && r.Verb == other.Verb && r.Resource == other.Resource &&
		(r.Namespace == "" || r.Namespace == other.Namespace) && (r.Name == "" || r.Name == other.Name)
}

// Grants collects the rules and bindings that existed at any time. The zero value is empty. A role or binding
// that changes adds to what it was before.
type Grants struct {
	roles    map[string][]rbacv1.PolicyRule // by key
	bindings map[binding]bool
}

type binding struct{ role, namespace, account string }

// key names a role: NAMESPACE/NAME, or /NAME of a ClusterRole.
func key(namespace, name string) string { return namespace + "/" + name }

// AddRole adds the rules of a Role, or of a ClusterRole, which has no namespace.
func (g *Grants) AddRole(namespace, name string, rules []rbacv1.PolicyRule) {
	if g.roles == nil {
		g.roles = map[string][]rbacv1.PolicyRule{}
	}
	g.roles[key(namespace, name)] = append(g.roles[key(namespace, name)], rules...)
}

// AddBinding adds a RoleBinding, or a ClusterRoleBinding, which has no namespace.
func (g *Grants) AddBinding(namespace string, role rbacv1.RoleRef, subjects []rbacv1.Subject) {
	if g.bindings == nil {
		g.bindings = map[binding]bool{}
	}
	of := namespace
	if role.Kind == "ClusterRole" {
		of = ""
	}
	for _, s := range subjects {
		if s.Kind == rbacv1.ServiceAccountKind {
			g.bindings[binding{key(of, role.Name), namespace, s.Namespace + ":" + s.Name}] = true
		}
	}
}

// Rights returns each right once, sorted.
func (g *Grants) Rights() []Right {
	all := map[Right]bool{}
	for b := range g.bindings {
		for _, rule := range g.roles[b.role] {
			for _, right := range expand(rule) {
				right.Account, right.Namespace = b.account, b.namespace
				all[right] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b Right) int { return cmp.Compare(a.String(), b.String()) })
}

// expand returns the rights in a rule, without account and namespace.
func expand(rule rbacv1.PolicyRule) (rights []Right) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					rights = append(rights, Right{Verb: verb, Resource: qualified(resource, "", group), Name: name})
				}
			}
		}
	}
	return rights
}

func qualified(resource, subresource, group string) string {
	if subresource != "" {
		resource += "/" + subresource
	}
	if group != "" {
		resource += "." + group
	}
	return resource
}

// A Request is what a ServiceAccount asked the API server for. Its Right names the object, if the URL does.
type Request struct {
	Right
	Forbidden bool
}

// ReadAuditLog returns each request of the ServiceAccounts of a namespace once. The log must be of level
// Metadata or higher. It omits requests for other than resources, such as the API's discovery.
func ReadAuditLog(log io.Reader, namespace string) ([]Request, error) {
	all := map[Request]bool{}
	lines := bufio.NewReader(log)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			request, ok, err := parse(line, namespace)
			if err != nil {
				return nil, fmt.Errorf("line %d of the audit log: %w", n, err)
			}
			if ok {
				all[request] = true
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
	}
	return slices.SortedFunc(maps.Keys(all),
		func(a, b Request) int { return cmp.Compare(a.String(), b.String()) }), nil
}

func parse(line []byte, namespace string) (request Request, ok bool, err error) {
	var event struct {
		Verb      string
		User      struct{ Username string }
		ObjectRef *struct {
			Resource, Subresource, Namespace, Name, APIGroup string
		}
		Annotations map[string]string
	}
	if err := json.Unmarshal(line, &event); err != nil {
		return Request{}, false, err
	}
	account, ours := strings.CutPrefix(event.User.Username, "system:serviceaccount:"+namespace+":")
	// Only events after the authorization have a decision.
	decision := event.Annotations["authorization.k8s.io/decision"]
	if !ours || event.ObjectRef == nil || decision == "" {
		return Request{}, false, nil
	}
	o := event.ObjectRef
	return Request{Right{Account: namespace + ":" + account, Verb: event.Verb,
		Resource: qualified(o.Resource, o.Subresource, o.APIGroup), Namespace: o.Namespace, Name: o.Name},
		decision != "allow"}, true, nil
}

// An Exception excuses rights that a run does not use. Each pattern, as of path.Match, must match; an empty one
// matches everything.
type Exception struct {
	Account, Verb, Resource, Name string
	// Scenario is the test that uses the right: TestX, or TestX/its_subtest. Why says how.
	Scenario, Why string
}

func (e Exception) matches(r Right) bool {
	for _, field := range [][2]string{
		{e.Account, r.Account}, {e.Verb, r.Verb}, {e.Resource, r.Resource}, {e.Name, r.Name},
	} {
		if ok, err := path.Match(field[0], field[1]); field[0] != "" && (err != nil || !ok) {
			return false
		}
	}
	return true
}

// Compare returns a line for each request that was forbidden, for each right that no request used and that no
// exception excuses, and for each exception that excuses nothing.
func Compare(granted []Right, requests []Request, exceptions []Exception) (problems []string) {
	for _, r := range requests {
		// What was granted at another time, previous pods use until they are replaced.
		if r.Forbidden && !slices.ContainsFunc(granted, func(g Right) bool { return g.covers(r.Right) }) {
			problems = append(problems, "used but not granted: "+r.String())
		}
	}
	excuses := make([]int, len(exceptions))
	for _, right := range granted {
		if slices.ContainsFunc(requests, func(r Request) bool { return !r.Forbidden && right.covers(r.Right) }) {
			continue
		}
		excused := false
		for i, e := range exceptions {
			if e.matches(right) {
				excused = true
				excuses[i]++
			}
		}
		if !excused {
			problems = append(problems, "granted but unused: "+right.String())
		}
	}
	for i, e := range exceptions {
		if excuses[i] == 0 {
			problems = append(problems, fmt.Sprintf("exception for %s excuses no unused right: %+v", e.Scenario, e))
		}
	}
	return problems
}
