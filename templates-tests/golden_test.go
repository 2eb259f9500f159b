package templates

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	yaml3 "go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the golden files")

const goldenDir = "testdata/golden"

// completeGoldens are the values files whose golden file is the complete rendering. The golden file of
// every other values file lists the differences from the nearest of these.
var completeGoldens = []string{"default", "proxy", "external", "everything", "node-config-k3s"}

const differencesHeader = "# Differences from "

// The golden files make every change of the rendered objects visible in a review. Whether an object is
// right is up to the other tests.
func TestRenderedObjectsMatchTheGoldenFiles(t *testing.T) {
	manifests := map[string]manifest{}
	for name := range ciValues(t) {
		out := renderedFile(t, name)
		if slices.ContainsFunc(out.objects, func(o object) bool { return strings.HasPrefix(o.file, "node-config/") }) {
			out = rendering{values: ciValues(t)[name], chart: loadChart(t)}.render(t) // with the real checksums
		}
		manifests[name] = manifestOf(t, out)
	}
	want := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(manifests)) {
		file := name + ".diff"
		if slices.Contains(completeGoldens, name) {
			file = name + ".yaml"
		}
		want[file] = true
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(goldenDir, file)
			if *update {
				if err := os.WriteFile(path, []byte(goldenText(name, manifests)), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("%v (go test ./templates-tests -update writes it)", err)
			}
			got := manifests[name].String()
			if strings.HasSuffix(file, ".diff") {
				header, _, _ := strings.Cut(string(b), "\n")
				base := strings.TrimSuffix(strings.TrimPrefix(header, differencesHeader), ".yaml")
				if !slices.Contains(completeGoldens, base) {
					t.Fatalf("%s begins with %q, which names no complete golden file", path, header)
				}
				got = differencesFrom(base, manifests[base], manifests[name])
			}
			if diff := cmp.Diff(string(b), got); diff != "" {
				t.Errorf("%s is out of date (go test ./templates-tests -update writes it):\n%s", path, diff)
			}
		})
	}
	files, err := os.ReadDir(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if want[file.Name()] {
			continue
		}
		path := filepath.Join(goldenDir, file.Name())
		if *update {
			err = os.Remove(path)
		} else {
			err = fmt.Errorf("%s belongs to no values file in ci/ or testdata/values", path)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// A golden file of differences must change whenever its rendering does.
func TestDifferencesShowEveryChangedLine(t *testing.T) {
	base, changed := manifestOf(t, renderedFile(t, "proxy")), manifestOf(t, renderedFile(t, "replicas"))
	known := differencesFrom("proxy", base, changed)
	for object, lines := range changed {
		for i, line := range lines {
			for edit, edited := range map[string][]string{
				"changed": slices.Concat(lines[:i], []string{line + "x"}, lines[i+1:]),
				"removed": slices.Concat(lines[:i], lines[i+1:]),
				"doubled": slices.Concat(lines[:i], []string{line, line}, lines[i+1:]),
			} {
				other := maps.Clone(changed)
				other[object] = edited
				if differencesFrom("proxy", base, other) == known {
					t.Errorf("%s: line %d, %q, can be %s unnoticed", object, i+1, line, edit)
				}
			}
		}
		other := maps.Clone(changed)
		delete(other, object)
		if differencesFrom("proxy", base, other) == known {
			t.Errorf("%s can be removed unnoticed", object)
		}
	}
}

// goldenText is what -update writes.
func goldenText(name string, manifests map[string]manifest) string {
	if slices.Contains(completeGoldens, name) {
		return manifests[name].String()
	}
	var shortest string
	for _, base := range completeGoldens {
		text := differencesFrom(base, manifests[base], manifests[name])
		if shortest == "" || strings.Count(text, "\n") < strings.Count(shortest, "\n") {
			shortest = text
		}
	}
	return shortest
}

// manifest holds the lines of each rendered object, by template, kind and name.
type manifest map[string][]string

func (m manifest) String() string {
	var b strings.Builder
	for _, o := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "# %s\n%s\n", o, strings.Join(m[o], "\n"))
	}
	return b.String()
}

// manifestOf returns what was rendered, in compact YAML, and the release notes.
func manifestOf(t testing.TB, out *output) manifest {
	t.Helper()
	standard := standardLabels(out)
	m := manifest{"standard labels": strings.Split(strings.TrimSpace(mustYAML(t, standard)), "\n")}
	for file, text := range out.files {
		if !strings.HasSuffix(file, ".yaml") {
			m[file] = strings.Split(strings.TrimSpace(text), "\n")
			continue
		}
		for _, document := range documents(text) {
			o, err := decode(document)
			if err != nil {
				t.Fatal(err)
			}
			key := file + ": " + o.String()
			if m[key] != nil {
				t.Fatalf("%s is rendered twice", key)
			}
			m[key] = compact(t, document, standard)
		}
	}
	return m
}

// standardLabels are those that all objects of the chart have in common.
func standardLabels(out *output) map[string]string {
	var standard map[string]string
	for _, o := range out.objects {
		labels := o.GetLabels()
		if labels[chartLabel] == "" {
			continue // an extra object
		}
		if standard == nil {
			standard = labels
		}
		maps.DeleteFunc(standard, func(key, value string) bool { return labels[key] != value })
	}
	return standard
}

const chartLabel = "helm.sh/chart"

// compacted are the lines of compact by its arguments: most objects appear in many renderings.
var compacted = map[string][]string{}

// compact writes every map and list that fits on one line in flow style, and the standard labels of an
// object as one.
func compact(t testing.TB, document string, standard map[string]string) []string {
	t.Helper()
	key := document + mustYAML(t, standard)
	if compacted[key] == nil {
		var node yaml3.Node
		if err := yaml3.Unmarshal([]byte(document), &node); err != nil {
			t.Fatal(err)
		}
		if labels := child(child(node.Content[0], "metadata"), "labels"); child(labels, chartLabel) != nil {
			for name := range standard {
				i := slices.IndexFunc(labels.Content, func(n *yaml3.Node) bool { return n.Value == name })
				labels.Content = slices.Delete(labels.Content, i, i+2)
			}
			var marker [2]yaml3.Node
			marker[0].SetString("standard")
			marker[1].SetString("labels")
			labels.Content = append(labels.Content, &marker[0], &marker[1])
		}
		for _, child := range node.Content[0].Content {
			if err := fold(child, 0); err != nil {
				t.Fatal(err)
			}
		}
		var b strings.Builder
		encoder := yaml3.NewEncoder(&b)
		encoder.SetIndent(2)
		if err := encoder.Encode(&node); err != nil {
			t.Fatal(err)
		}
		compacted[key] = strings.Split(strings.TrimSpace(b.String()), "\n")
	}
	return compacted[key]
}

// child is the value of a key, nil where there is none.
func child(node *yaml3.Node, key string) *yaml3.Node {
	if node == nil {
		return nil
	}
	for i := 0; i < len(node.Content)-1; i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i+1]
		}
	}
	return nil
}

// fold gives a node flow style where that fits on a line. Lists of arguments keep a line for each,
// and the JSON document of --settings becomes YAML.
func fold(node *yaml3.Node, depth int) error {
	const width = 120
	node.HeadComment, node.LineComment, node.FootComment = "", "", ""
	if document, ok := strings.CutPrefix(node.Value, "--settings="); ok {
		var settings yaml3.Node
		if err := yaml3.Unmarshal([]byte(document), &settings); err != nil {
			return err
		}
		var key yaml3.Node
		key.SetString("--settings")
		*node = yaml3.Node{Kind: yaml3.MappingNode, Content: []*yaml3.Node{&key, settings.Content[0]}}
	}
	if node.Kind == yaml3.ScalarNode {
		return reference(node)
	}
	if len(node.Content) == 0 {
		return nil
	}
	node.Style = yaml3.FlowStyle
	line, err := yaml3.Marshal(node)
	if err != nil {
		return err
	}
	multiline := strings.Contains(string(line), `\n`)
	arguments := node.Kind == yaml3.SequenceNode && strings.HasPrefix(node.Content[len(node.Content)-1].Value, "--")
	if !arguments && !multiline && strings.Count(string(line), "\n") == 1 && len(line)+2*depth <= width {
		return nil
	}
	node.Style = 0
	for _, child := range node.Content {
		if err := fold(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// reference replaces the dashboard, which is a file of its own, with the file's name and checksum.
func reference(node *yaml3.Node) error {
	const file = "files/dashboard.json"
	if node.Style != yaml3.LiteralStyle || !strings.HasPrefix(node.Value, "{") {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(chartDir, file))
	if err == nil && strings.TrimSpace(node.Value) == strings.TrimSpace(string(b)) {
		node.SetString(fmt.Sprintf("%s, sha256 %x", file, sha256.Sum256([]byte(node.Value))))
	}
	return err
}

// differencesFrom lists, object by object, how a manifest differs from a base. An object that only the
// base has is a single line, one that the base lacks is complete. Changed lines follow the YAML path
// of the place in the base, which stays the same when the base changes elsewhere.
func differencesFrom(name string, base, changed manifest) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s.yaml\n", differencesHeader, name)
	for _, o := range slices.Sorted(maps.Keys(base)) {
		if _, ok := changed[o]; !ok {
			fmt.Fprintf(&b, "removed: %s\n", o)
		}
	}
	for _, o := range slices.Sorted(maps.Keys(changed)) {
		old, ok := base[o]
		switch {
		case !ok:
			fmt.Fprintf(&b, "added: %s\n", o)
			for _, line := range changed[o] {
				fmt.Fprintf(&b, "+ %s\n", line)
			}
		case !slices.Equal(old, changed[o]):
			fmt.Fprintf(&b, "changed: %s\n%s", o, changedLines(old, changed[o]))
		}
	}
	return b.String()
}

// changedLines are the lines of a shortest edit script, each run of them below its place in the base.
func changedLines(old, current []string) string {
	// common[i][j] is the length of the longest common subsequence of old[i:] and current[j:].
	common := make([][]int, len(old)+1)
	for i := range common {
		common[i] = make([]int, len(current)+1)
	}
	for i := len(old) - 1; i >= 0; i-- {
		for j := len(current) - 1; j >= 0; j-- {
			if old[i] == current[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var b strings.Builder
	places := yamlPaths(old)
	for i, j := 0, 0; i < len(old) || j < len(current); {
		if i < len(old) && j < len(current) && old[i] == current[j] {
			i, j = i+1, j+1
			continue
		}
		var removed, added []string
		from := i
		for (i < len(old) || j < len(current)) && (i == len(old) || j == len(current) || old[i] != current[j]) {
			if j == len(current) || i < len(old) && common[i+1][j] >= common[i][j+1] {
				removed = append(removed, old[i])
				i++
			} else {
				added = append(added, current[j])
				j++
			}
		}
		switch {
		case len(removed) > 0:
			fmt.Fprintf(&b, "@ %s\n", places[from])
		case from > 0:
			fmt.Fprintf(&b, "@ after %s\n", places[from-1])
		default:
			b.WriteString("@ at the top\n")
		}
		for _, line := range removed {
			fmt.Fprintf(&b, "- %s\n", line)
		}
		for _, line := range added {
			fmt.Fprintf(&b, "+ %s\n", line)
		}
	}
	return b.String()
}

// yamlPaths are the paths of lines, each of them unique: args[2] is the third element of args, and the
// lines of a block scalar are numbered.
func yamlPaths(lines []string) []string {
	type level struct {
		depth int // twice the indentation, and one more for the dash of an element, which may stand below its key
		name  string
		index int
	}
	var stack []level
	var paths []string
	seen := map[string]int{}
	scalar := -1 // the indentation of the key of a block scalar
	path := ""
	for _, line := range lines {
		content := strings.TrimLeft(line, " ")
		indent := len(line) - len(content)
		if scalar < 0 || content != "" && indent <= scalar {
			scalar = -1
			push := func(depth int, name string) {
				index := 0
				for len(stack) > 0 && stack[len(stack)-1].depth >= depth {
					if top := stack[len(stack)-1]; top.depth == depth {
						index = top.index + 1
					}
					stack = stack[:len(stack)-1]
				}
				if name == "" {
					name = fmt.Sprintf("[%d]", index)
				} else if len(stack) > 0 {
					name = "." + name
				}
				stack = append(stack, level{depth, name, index})
			}
			for strings.HasPrefix(content, "- ") {
				push(2*indent+1, "")
				content, indent = content[2:], indent+2
			}
			if key, value, ok := strings.Cut(content, ":"); ok && (value == "" || value[0] == ' ') {
				push(2*indent, key)
				if strings.HasPrefix(value, " |") || strings.HasPrefix(value, " >") {
					scalar = indent
				}
			}
			path = ""
			for _, l := range stack {
				path += l.name
			}
		}
		seen[path]++
		unique := path
		if n := seen[path]; n > 1 {
			unique = fmt.Sprintf("%s (line %d)", path, n)
		}
		paths = append(paths, unique)
	}
	return paths
}
