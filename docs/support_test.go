package docs

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/cli"
)

// TestEveryFeatureHasAMark checks the table of features in support.md: it names every top-level value and
// every command, and only values that exist. TestCommands checks that its commands exist.
func TestEveryFeatureHasAMark(t *testing.T) {
	_, section, _ := strings.Cut(pages(t)["docs/reference/support.md"], "\n## Features\n")
	var values, schema map[string]any
	for file, into := range map[string]*map[string]any{"values.yaml": &values, "values.schema.json": &schema} {
		content, err := os.ReadFile(filepath.Join(top, "charts/zarf-registry", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(content, into); err != nil {
			t.Fatal(err)
		}
	}
	var namedValues, namedCommands []string
	rows := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 5 || cells[0] == "feature" || strings.HasPrefix(cells[0], "---") {
			continue
		}
		rows++
		if !slices.Contains([]string{"alpha", "beta", "stable"}, cells[1]) {
			t.Errorf("%s has the mark %q", cells[0], cells[1])
		}
		if cells[1] != "stable" && cells[4] == "" {
			t.Errorf("%s: nothing says when it gets the next mark", cells[0])
		}
		for _, name := range quoted.FindAllString(cells[2], -1) {
			name = strings.Trim(name, "`")
			namedValues = append(namedValues, name)
			if !hasValue(schema, schema, strings.Split(name, ".")) {
				t.Errorf("%s: value %s does not exist", cells[0], name)
			}
		}
		for _, name := range quoted.FindAllString(cells[3], -1) {
			namedCommands = append(namedCommands, strings.TrimPrefix(strings.Trim(name, "`"), "zarf-registry "))
		}
	}
	if rows < 15 {
		t.Errorf("found only %d features", rows)
	}
	for name := range values {
		if !slices.Contains(namedValues, name) {
			t.Errorf("value %s has no mark", name)
		}
	}
	for _, command := range cli.New(io.Discard, io.Discard).Commands() {
		name := command.Name()
		if !slices.Contains([]string{"help", "completion", "options"}, name) && !slices.Contains(namedCommands, name) {
			t.Errorf("command zarf-registry %s has no mark", name)
		}
	}
}

// TestSupportedKubernetes checks that support.md names the oldest version that the chart accepts, and those
// whose schemas make kubeconform uses.
func TestSupportedKubernetes(t *testing.T) {
	page := pages(t)["docs/reference/support.md"]
	for file, expression := range map[string]string{
		"charts/zarf-registry/Chart.yaml": `(?m)^kubeVersion: ">=(1\.\d+)\.0-0"$`,
		"hack/kubeconform.sh":             `(?m)^versions=\((.*)\)$`,
	} {
		content, err := os.ReadFile(filepath.Join(top, file))
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(expression).FindSubmatch(content)
		if m == nil {
			t.Fatalf("%s does not match %s", file, expression)
		}
		for _, version := range strings.Fields(string(m[1])) {
			if !strings.Contains(page, version) {
				t.Errorf("the page lacks Kubernetes %s of %s", version, file)
			}
		}
	}
}
