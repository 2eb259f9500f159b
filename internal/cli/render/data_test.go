package render

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestDataIsAnObjectWithItsVersionAndKind(t *testing.T) {
	for name, c := range map[string]struct {
		output string
		value  any
		want   string
	}{
		"JSON": {FormatJSON, List[string]{[]string{"<a>"}},
			"{\n  \"apiVersion\": \"registry.zarf.dev/v1\",\n  \"kind\": \"Status\",\n  \"items\": [\n    \"<a>\"\n  ]\n}\n"},
		"YAML":     {FormatYAML, List[string]{[]string{"a"}}, "apiVersion: registry.zarf.dev/v1\nitems:\n- a\nkind: Status\n"},
		"no field": {FormatJSON, struct{}{}, "{\n  \"apiVersion\": \"registry.zarf.dev/v1\",\n  \"kind\": \"Status\"\n}\n"},
	} {
		var out bytes.Buffer
		if err := Data(&out, c.output, Status, c.value); err != nil || out.String() != c.want {
			t.Errorf("%s: error %v, %s", name, err, &out)
		}
	}
	if err := Data(&bytes.Buffer{}, FormatJSON, Status, []string{"a"}); err == nil {
		t.Error("an array is written")
	}
}

// Each kind has a golden file in the package of its command.
func TestEachKindHasAGoldenFile(t *testing.T) {
	source := require.Value(os.ReadFile("data.go"))(t)
	kinds := regexp.MustCompile(`(?m)^\t(\w+) +Kind = "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if len(kinds) < 10 {
		t.Fatalf("found only the kinds %q", kinds)
	}
	for _, kind := range kinds {
		var files []string
		for _, dir := range []string{"..", "../*", "../*/*"} {
			found, _ := filepath.Glob(filepath.Join(dir, "testdata", "json", kind[2]+".json"))
			files = append(files, found...)
		}
		if kind[1] != kind[2] || len(files) != 1 {
			t.Errorf("constant %s of kind %s has the golden files %q", kind[1], kind[2], files)
		}
	}
}
