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
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	"sigs.k8s.io/yaml"
)

// When all tests have run, two things are asked of their renderings: which values have
// been set to something that changes what is rendered, and which branches of the templates
// have been taken. What has not fails, and is named; -v tells what each value was
// exercised by.

// observation is a rendering that succeeded.
type observation struct {
	rendering rendering
	values    map[string]any
	text      string            // the values; set when all tests have run
	sum       [sha256.Size]byte // of its texts
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

func sumOf(texts map[string]string) [sha256.Size]byte {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		fmt.Fprintf(h, "%s\n%s\n", name, texts[name])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// untaken are branches that no rendering can take, by file and what they say, each with
// the reason. One that is taken must not stand here.
var untaken = map[string]string{
	"_decisions.tpl: otherwise: with .Values.registry":               "it only shortens what follows: values.yaml has it",
	"_helpers.tpl: otherwise: with .Values.initHook.image":           "it only shortens what follows: values.yaml has it",
	"registry/_scale.tpl: otherwise: with $registry.autoscaling":     "it only shortens what follows: it is there where it is enabled",
	"registry/_config.tpl: otherwise: with .Values.registry.storage": "it only shortens what follows: values.yaml has it",
	"validate.yaml: otherwise: with .Values.registry":                "it only shortens what follows: values.yaml has it",
}

// inert are values that cannot be set to anything that changes what is rendered, each with
// the reason. One that can must not stand here.
var inert = map[string]string{}

func TestMain(m *testing.M) {
	// A rendering makes much garbage and keeps little.
	debug.SetGCPercent(400)
	code := m.Run()
	whole := true
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		whole = whole && flag.Lookup(name).Value.String() == ""
	}
	if whole {
		if problems := coverage(os.Stdout); len(problems) > 0 {
			fmt.Println("FAIL: what nobody has exercised may be broken; add a values file, or a test:\n  " + strings.Join(problems, "\n  "))
			code = 1
		}
	}
	os.Exit(code)
}

// coverage writes what was exercised and returns what was not.
func coverage(w io.Writer) (problems []string) {
	// Before values are, which takes branches too.
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
			problems = append(problems, "values.yaml: "+path+": no rendering changes with it")
		case how != "" && inert[path] != "":
			problems = append(problems, "values.yaml: "+path+": "+how+" shows its effect, so it must not be among those that have none")
		case testing.Verbose():
			if how == "" {
				how = "none: " + inert[path]
			}
			fmt.Fprintf(w, "    %-50s %s\n", path, how)
		}
	}
	fmt.Fprintf(w, "values:   %d of %d change what is rendered\n", len(by), len(total))
	reached := 0
	for i, b := range branches.all {
		key := b.file + ": " + b.what
		switch {
		case taken[i] > 0:
			reached++
			if untaken[key] != "" {
				problems = append(problems, b.String()+": it is taken, so it must not be among those that cannot be")
			}
		case untaken[key] == "":
			problems = append(problems, b.String()+": no rendering takes it")
		}
	}
	fmt.Fprintf(w, "branches: %d of %d taken\n", reached, len(branches.all))
	return problems
}

// exercised says of each value of values.yaml by which rendering it was shown to have an
// effect: a rendering that differs, or fails, when the value is left out.
func exercised() (by map[string]string, total []string, err error) {
	b, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	if err != nil {
		return nil, nil, err
	}
	var defaults map[string]any
	if err := yaml.Unmarshal(b, &defaults); err != nil {
		return nil, nil, err
	}
	files := map[string]string{} // values as text → file
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
	// Files first: they are what people read.
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
			// The same values in another cluster seldom show more.
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
		panic(err) // it was read from text
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

// without copies values, leaving one out.
func without(values map[string]any, keys []string) map[string]any {
	copied := maps.Clone(values)
	if below, ok := copied[keys[0]].(map[string]any); ok && len(keys) > 1 {
		copied[keys[0]] = without(below, keys[1:])
	} else {
		delete(copied, keys[0])
	}
	return copied
}
