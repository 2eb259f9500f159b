package templates

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/aymanbagabas/go-udiff"

	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// The headings of the golden file have the name of a values file, and values in addition; below is what these change of
// what the chart renders for the file alone. A new option is a new heading.
func TestWhatValuesChange(t *testing.T) {
	t.Parallel()
	underHeadings(t, "changes", func(heading string, out *output) string {
		file, _, _ := strings.Cut(heading, "; ")
		return changes(t, renderedFile(t, file), out)
	})
}

// underHeadings compares what a function shows of renderings with a golden file. Each heading is a values file, values in
// addition, and a version of Kubernetes, separated by semicolons.
func underHeadings(t *testing.T, name string, show func(heading string, out *output) string) {
	t.Helper()
	golden := golden.Open(t, name)
	for _, heading := range golden.Names(t) {
		file, rest, more := strings.Cut(heading, "; ")
		values, found := ciValues(t)[file]
		if !found {
			t.Errorf("%s: there is no values file %s", heading, file)
		}
		r := rendering{values: values}
		for more {
			var set string
			set, rest, more = strings.Cut(rest, "; ")
			if version, is := strings.CutPrefix(set, "Kubernetes "); is {
				r.version = version
			} else {
				r.values = with(t, r.values, set)
			}
		}
		golden.Check(t, heading, show(heading, r.render(t)))
	}
}

// changes returns the lines of objects, and of the notes, that differ. Objects with the same changes have one heading.
// Of an object that only one rendering has, there is the name.
func changes(t testing.TB, before, after *output) string {
	t.Helper()
	old, now := readableObjects(t, before), readableObjects(t, after)
	var there []string
	same := map[string][]string{}
	names := maps.Clone(old)
	maps.Copy(names, now)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if now[name] == "" {
			there = append(there, "- "+name)
		} else if old[name] == "" {
			there = append(there, "+ "+name)
		} else if diff := differences(t, old[name], now[name]); diff != "" {
			same[diff] = append(same[diff], name)
		}
	}
	var found []string
	for diff, names := range same {
		found = append(found, strings.Join(names, ", ")+":\n"+diff)
	}
	slices.Sort(found)
	if len(there)+len(found) == 0 {
		return "nothing"
	}
	return strings.Join(append(there, found...), "\n")
}

// differences returns the lines of two texts that differ, without their numbers.
func differences(t testing.TB, old, now string) string {
	t.Helper()
	text := require.Value(udiff.ToUnified("", "", old, udiff.Lines(old, now), 0))(t)
	var lines []string
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		switch {
		case i < 2: // the names of the texts
		case !strings.HasPrefix(line, "@@"):
			lines = append(lines, line)
		case len(lines) > 0:
			lines = append(lines, "...")
		}
	}
	return strings.Join(lines, "\n")
}

// readableObjects returns the YAML of each object with the settings of Jobs as a map, and the notes.
func readableObjects(t testing.TB, out *output) map[string]string {
	t.Helper()
	found := map[string]string{"NOTES.txt": out.files["NOTES.txt"]}
	for _, o := range out.objects {
		text := mustYAML(t, readable(o.DeepCopy().Object))
		found[o.String()] = regexp.MustCompile(`(?m)^( *checksum/config: ).*`).ReplaceAllString(text, "$1…")
	}
	return found
}

// readable replaces the argument --settings by what it has in JSON.
func readable(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key := range value {
			value[key] = readable(value[key])
		}
	case []any:
		for i := range value {
			value[i] = readable(value[i])
		}
	case string:
		var settings map[string]any
		if text, found := strings.CutPrefix(value, "--settings="); found && json.Unmarshal([]byte(text), &settings) == nil {
			return map[string]any{"--settings": settings}
		}
	}
	return value
}
