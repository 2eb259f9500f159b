package templates

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/test/require"
)

const securityDocument = "../docs/reference/security.md"

// documentedPort is a row of the table of ports.
type documentedPort struct {
	number int
	value  string // the value that configures it, if any
	pod    string
}

// documentedPorts parses the table that begins with "|Port|Pod|".
func documentedPorts(t testing.TB) []documentedPort {
	t.Helper()
	text := require.Value(os.ReadFile(securityDocument))(t)
	_, table, ok := strings.Cut(string(text), "\n|Port|Pod|")
	if !ok {
		t.Fatalf("%s has no table that begins with |Port|Pod|", securityDocument)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	lines := strings.Split(strings.TrimSpace(table), "\n")
	columns := strings.Count("|Port|Pod|"+lines[0], "|")
	row := regexp.MustCompile("^\\|(\\d+)(?: \\(`([a-zA-Z.]+)`\\))?\\|(\\w+)\\|")
	var found []documentedPort
	for _, line := range lines[2:] {
		match := row.FindStringSubmatch(line)
		if match == nil || strings.Count(line, "|") != columns || regexp.MustCompile(`\|\s*\|`).MatchString(line) {
			t.Fatalf("%s: a row with an empty cell, or not of the form |1234 (`value`)|pod|…: %s", securityDocument, line)
		}
		number := require.Value(strconv.Atoi(match[1]))(t)
		found = append(found, documentedPort{number, match[2], match[3]})
	}
	return found
}

// openPorts returns the ports of a rendering by pod: declared container ports, ports on which the
// arguments make programs listen, and node ports, whose pod is "node".
func openPorts(out *output) map[string][]int {
	found := map[string][]int{}
	add := func(pod string, port int32) {
		if port != 0 && !slices.Contains(found[pod], int(port)) {
			found[pod] = append(found[pod], int(port))
		}
	}
	listener := regexp.MustCompile(`^--(?:[a-z-]+-)?listen=.*:(\d+)$`)
	for _, w := range workloads(out) {
		for _, c := range containers(w.pod.Spec) {
			for _, p := range c.Ports {
				add(w.component(), p.ContainerPort)
				add(w.component(), p.HostPort)
			}
			for _, arg := range c.Args {
				if match := listener.FindStringSubmatch(arg); match != nil {
					number, _ := strconv.Atoi(match[1])
					add(w.component(), int32(number))
				}
			}
		}
	}
	for _, s := range all[*corev1.Service](out) {
		for _, p := range s.Spec.Ports {
			add("node", p.NodePort)
		}
	}
	if decidedMode(out) == "nodeport" {
		add("node", int32(decided(out).Port)) // of the Service that the Jobs create
	}
	return found
}

// Claim: The [table of ports](security.md#ports) is complete.
func TestEveryPortIsInTheSecurityDocument(t *testing.T) {
	t.Parallel()
	documented := documentedPorts(t)
	defaults := chartutil.Values(loadChart(t).Values)
	number := func(values map[string]any, path string) int {
		merged := chartutil.Values(chartutil.CoalesceTables(with(t, values), defaults.AsMap()))
		value, err := merged.PathValue(path)
		require.NoError(t, err, securityDocument, path)
		n, err := strconv.Atoi(fmt.Sprint(value))
		require.NoError(t, err, securityDocument, path)
		return n
	}
	seen := map[documentedPort]bool{}
	for _, combination := range matrix(t) {
		values := ciValues(t)[combination.file]
		for pod, ports := range openPorts(combination.output) {
			for _, port := range ports {
				i := slices.IndexFunc(documented, func(d documentedPort) bool {
					return d.pod == pod && (d.value == "" && d.number == port || d.value != "" && number(values, d.value) == port)
				})
				if i < 0 {
					t.Errorf("%s: port %d of pod %s is not in the table of %s", combination.name, port, pod, securityDocument)
					continue
				}
				seen[documented[i]] = true
			}
		}
	}
	for _, d := range documented {
		if !seen[d] {
			t.Errorf("%s: nothing listens on port %d of pod %s", securityDocument, d.number, d.pod)
		}
		if d.value != "" && number(nil, d.value) != d.number {
			t.Errorf("%s: port %d of pod %s is not the default of %s", securityDocument, d.number, d.pod, d.value)
		}
	}
}
