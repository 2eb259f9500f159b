package templates

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	"sigs.k8s.io/yaml"
)

// After all tests have run, coverage checks that every value was set to something that changes a
// rendering, and that every branch of the templates was taken. It reports those that were not. With -v
// it lists which file or test exercised each value.

// observation is a successful rendering.
type observation struct {
	rendering rendering
	values    map[string]any
	text      string            // the values as YAML; set when all tests have run
	sum       [sha256.Size]byte // of the rendered texts
}

var observed struct {
	sync.Mutex
	all []observation
}

func observe(r rendering, values chartutil.Values, texts map[string]string) {
	observed.Lock()
	defer observed.Unlock()
	observed.all = append(observed.all, observation{rendering: r, values: values, sum: sumOf(texts)})
}

// salted are the lines that depend on the salt of the node configuration, which is random on a new
// cluster.
var salted = regexp.MustCompile(`(?m)(^  (?:salt|sum): |--config-sum=|node-config-checksum: ).*$`)

func unsalted(texts map[string]string) map[string]string {
	without := maps.Clone(texts)
	for name, text := range texts {
		if strings.HasPrefix(name, "node-config/") {
			without[name] = salted.ReplaceAllString(text, "$1")
		}
	}
	return without
}

func sumOf(texts map[string]string) [sha256.Size]byte {
	h := sha256.New()
	texts = unsalted(texts)
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		fmt.Fprintf(h, "%s\n%s\n", name, texts[name])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// untaken lists the branches that no rendering can take, with the reason. A branch that is taken must
// not be listed.
var untaken = map[string]string{
	"_decisions.tpl: otherwise: with .Values.registry":               "values.yaml always has it",
	"_decisions.tpl: otherwise: with .Values.registry.storage":       "values.yaml always has it",
	"_helpers.tpl: otherwise: with .Values.initHook.image":           "values.yaml always has it",
	"registry/_scale.tpl: otherwise: with $registry.autoscaling":     "it exists if it is enabled",
	"registry/_config.tpl: otherwise: with .Values.registry.storage": "values.yaml always has it",
	"validate.yaml: otherwise: with .Values.registry":                "values.yaml always has it",
}

// inert lists the values that cannot change any rendering, with the reason. A value that can must not
// be listed.
var inert = map[string]string{}

func TestMain(m *testing.M) {
	// Rendering allocates much and retains little.
	debug.SetGCPercent(400)
	code := m.Run()
	whole := true
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		whole = whole && flag.Lookup(name).Value.String() == ""
	}
	if whole {
		if problems := coverage(os.Stdout); len(problems) > 0 {
			fmt.Println("FAIL: not exercised; add a values file or a test:\n  " + strings.Join(problems, "\n  "))
			code = 1
		}
	}
	os.Exit(code)
}

// coverage writes a summary and returns what was not exercised.
func coverage(w io.Writer) (problems []string) {
	// Copied before exercised, which renders and takes branches too.
	branches.Lock()
	taken := slices.Clone(branches.taken)
	branches.Unlock()
	by, total, err := exercised()
	if err != nil {
		return []string{err.Error()}
	}
	for _, path := range total {
		how := by[path]
		switch {
		case how == "" && inert[path] == "":
			problems = append(problems, "values.yaml: "+path+": it changes no rendering")
		case how != "" && inert[path] != "":
			problems = append(problems, "values.yaml: "+path+": "+how+" shows its effect, so remove it from inert")
		case testing.Verbose():
			if how == "" {
				how = "none: " + inert[path]
			}
			fmt.Fprintf(w, "    %-50s %s\n", path, how)
		}
	}
	fmt.Fprintf(w, "values:   %d of %d change a rendering\n", len(by), len(total))
	reached := 0
	for i, b := range branches.all {
		key := b.file + ": " + b.what
		switch {
		case taken[i] > 0:
			reached++
			if untaken[key] != "" {
				problems = append(problems, b.String()+": it is taken, so remove it from untaken")
			}
		case untaken[key] == "":
			problems = append(problems, b.String()+": never taken")
		}
	}
	fmt.Fprintf(w, "branches: %d of %d taken\n", reached, len(branches.all))
	return problems
}

// exercised returns, for each value of values.yaml, a rendering that changes or fails when the value
// is removed.
func exercised() (by map[string]string, total []string, err error) {
	b, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	if err != nil {
		return nil, nil, err
	}
	var defaults map[string]any
	if err := yaml.Unmarshal(b, &defaults); err != nil {
		return nil, nil, err
	}
	files := map[string]string{} // values as YAML → file name
	var paths []string
	for _, dir := range []string{filepath.Join(chartDir, "ci"), "testdata/values"} {
		in, err := filepath.Glob(filepath.Join(dir, "*-values.yaml"))
		if err != nil {
			return nil, nil, err
		}
		paths = append(paths, in...)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		values, err := chartutil.ReadValues(b)
		if err != nil {
			return nil, nil, err
		}
		files[asText(values)] = filepath.Base(path)
	}
	leaves, err := documented()
	if err != nil {
		return nil, nil, err
	}
	// Prefer files to tests in the report, because users read them.
	var inFiles, inTests []observation
	for _, o := range observed.all {
		o.text = asText(o.values)
		if files[o.text] != "" {
			inFiles = append(inFiles, o)
		} else {
			inTests = append(inTests, o)
		}
	}
	by = map[string]string{}
	for _, leaf := range leaves {
		keys := strings.Split(leaf.path, ".")
		normal, _ := get(defaults, keys)
		total = append(total, leaf.path)
		tried := map[string]int{}
		for _, o := range slices.Concat(inFiles, inTests) {
			value, given := get(o.values, keys)
			if !given || reflect.DeepEqual(value, normal) {
				continue
			}
			// The same values in more clusters rarely show an effect.
			if tried[o.text]++; tried[o.text] > 2 {
				continue
			}
			texts, err := o.rendering.helm(without(o.values, keys))
			if err != nil || sumOf(texts) != o.sum {
				by[leaf.path] = "a test"
				if file := files[o.text]; file != "" {
					by[leaf.path] = file
				}
				break
			}
		}
	}
	return by, total, nil
}

func asText(values map[string]any) string {
	b, err := yaml.Marshal(values)
	if err != nil {
		panic(err) // it was decoded from YAML
	}
	return string(b)
}

func get(values map[string]any, keys []string) (any, bool) {
	value, ok := values[keys[0]]
	if !ok || len(keys) == 1 {
		return value, ok
	}
	below, ok := value.(map[string]any)
	if !ok {
		return nil, false
	}
	return get(below, keys[1:])
}

// without returns a copy of values without one of them.
func without(values map[string]any, keys []string) map[string]any {
	copied := maps.Clone(values)
	if below, ok := copied[keys[0]].(map[string]any); ok && len(keys) > 1 {
		copied[keys[0]] = without(below, keys[1:])
	} else {
		delete(copied, keys[0])
	}
	return copied
}
