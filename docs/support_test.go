package docs

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/cli"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestEveryFeatureHasAMark checks the table of features in support.md: it names every top-level value and
// every command, and only values that exist. TestCommands checks that its commands exist.
func TestEveryFeatureHasAMark(t *testing.T) {
	_, section, _ := strings.Cut(pages(t)["docs/reference/support.md"], "\n## Features\n")
	var values, schema map[string]any
	for file, into := range map[string]*map[string]any{"values.yaml": &values, "values.schema.json": &schema} {
		content := require.Value(os.ReadFile(filepath.Join(top, "charts/zarf-registry", file)))(t)
		require.NoError(t, yaml.Unmarshal(content, into))
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
		content := require.Value(os.ReadFile(filepath.Join(top, file)))(t)
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

// TestExitCodes checks that the help of each command names its exit codes, that support.md has a row for each code, and
// which commands it names for [exitcode.Found].
func TestExitCodes(t *testing.T) {
	_, section, _ := strings.Cut(pages(t)["docs/reference/support.md"], "\n## Exit codes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\|(\d+)\|(.*)\|$`).FindAllStringSubmatch(section, -1) {
		rows[m[1]] = m[2]
	}
	found := fmt.Sprint(exitcode.Found)
	if len(rows) != 4 || rows["0"] == "" || rows[fmt.Sprint(exitcode.Failed)] == "" ||
		rows[fmt.Sprint(exitcode.Refused)] == "" {
		t.Errorf("support.md has the exit codes %v", rows)
	}
	var finds, named []string
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			walk(c)
		}
		if cmd.HasSubCommands() || cmd.Name() == "options" {
			return
		}
		path := strings.TrimPrefix(cmd.CommandPath(), "zarf-registry ")
		_, text, _ := strings.Cut(strings.Join(strings.Fields(cmd.Long), " "), "Exit codes: ")
		var codes []string
		for _, m := range regexp.MustCompile(`(?:^|, )(\d) `).FindAllStringSubmatch(text, -1) {
			codes = append(codes, m[1])
			if rows[m[1]] == "" {
				t.Errorf("%s: exit code %s is not in support.md", path, m[1])
			}
		}
		if !slices.Contains(codes, "0") || !slices.Contains(codes, fmt.Sprint(exitcode.Refused)) {
			t.Errorf("the help of %s names the exit codes %v", path, codes)
		}
		if slices.Contains(codes, found) {
			finds = append(finds, path)
		}
	}
	walk(cli.New(io.Discard, io.Discard))
	for _, name := range quoted.FindAllString(rows[found], -1) {
		named = append(named, strings.Trim(name, "`"))
	}
	slices.Sort(finds)
	slices.Sort(named)
	if !slices.Equal(finds, named) {
		t.Errorf("support.md says that %v exit with %s, their help that %v do", named, found, finds)
	}
}
