package templates

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/test/require"
)

const valuesOfDistributions = "../docs/reference/values"

// distributions returns the values files that docs/reference/distributions.md recommends.
func distributions(t testing.TB) map[string]map[string]any {
	t.Helper()
	found := valuesFiles(t, filepath.Join(valuesOfDistributions, "*.yaml"), ".yaml")
	if len(found) < 11 {
		t.Fatalf("%d files", len(found))
	}
	return found
}

func TestDistributionValuesKeepTheInvariants(t *testing.T) {
	t.Parallel()
	for name, values := range distributions(t) {
		for where, cluster := range clusters() {
			out, err := rendering{values: values, cluster: cluster()}.try(t)
			if err != nil {
				// Settings for CRI-O may conflict with an IP family that the file does not select.
				t.Errorf("%s in %s: %v", name, where, err)
				continue
			}
			for invariant, check := range invariants {
				check(out, reporter(t, name, where, invariant))
			}
		}
	}
}

// GKE rejects the system priority classes outside of kube-system.
func TestGKEPodsHaveNoSystemPriority(t *testing.T) {
	t.Parallel()
	for _, w := range workloads(rendering{values: distributions(t)["gke"]}.render(t)) {
		if class := w.pod.Spec.PriorityClassName; strings.HasPrefix(class, "system-") {
			t.Errorf("%s has the priority class %s", w.object, class)
		}
	}
}

func TestDistributionsPageListsEveryValuesFile(t *testing.T) {
	t.Parallel()
	page := require.Value(os.ReadFile("../docs/reference/distributions.md"))(t)
	named := map[string]bool{}
	for _, row := range regexp.MustCompile(
		`(?m)^\|[^|]+\|\[(\w+)\.yaml\]\(values/(\w+)\.yaml\)\|(run|tested|reasoned)[^|]*\|[^|]+\|[^|]+\|$`,
	).FindAllStringSubmatch(string(page), -1) {
		if row[1] != row[2] {
			t.Errorf("the link %s leads to %s", row[1], row[2])
		}
		named[row[1]] = true
	}
	for name := range distributions(t) {
		if !named[name] {
			t.Errorf("no row names %s.yaml", name)
		}
		delete(named, name)
	}
	for name := range named {
		t.Errorf("%s.yaml does not exist", name)
	}
}

// onOpenShift renders for an API server that serves an API group of OpenShift.
func onOpenShift(t *testing.T, values map[string]any) *output {
	t.Helper()
	return rendering{values: values, apiVersions: []string{"security.openshift.io/v1"}}.render(t)
}

func TestOpenShiftSecurityContextConstraints(t *testing.T) {
	t.Parallel()
	const crio = "nodeConfig.mirrors=[docker.io]"
	bindings := func(out *output) map[string]string {
		found := map[string]string{}
		for _, b := range all[*rbacv1.RoleBinding](out) {
			if constraint, ok := strings.CutPrefix(b.RoleRef.Name, "system:openshift:scc:"); ok {
				found[b.Subjects[0].Name] = constraint
			}
		}
		return found
	}
	proxy := map[string]string{"zarf-registry-proxy": "hostnetwork-v2"}
	both := map[string]string{"zarf-registry-proxy": "hostnetwork-v2", "zarf-registry-node-config": "privileged"}
	for name, test := range map[string]struct {
		out  *output
		want map[string]string
	}{
		"another distribution":              {rendering{values: proxyMode(t, crio)}.render(t), map[string]string{}},
		"detected":                          {onOpenShift(t, proxyMode(t)), proxy},
		"detected, with node configuration": {onOpenShift(t, proxyMode(t, crio)), both},
		"enabled":                           {rendering{values: proxyMode(t, crio, "openshift.enabled=true")}.render(t), both},
		"disabled":                          {onOpenShift(t, proxyMode(t, "openshift.enabled=false")), map[string]string{}},
		"nodeport mode":                     {onOpenShift(t, with(t, nil, "registryProxy=false")), proxy},
		"an external registry":              {onOpenShift(t, with(t, nil, "registryURL=registry.example.com")), map[string]string{}},
	} {
		if diff := cmp.Diff(test.want, bindings(test.out)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		on := decided(test.out).OpenShift
		if elsewhere := name == "another distribution" || name == "disabled"; on == elsewhere {
			t.Errorf("%s: --openshift is %t", name, on)
		}
		for invariant, check := range invariants {
			check(test.out, reporter(t, name, invariant))
		}
	}
}
