package arm64

import (
	_ "embed"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

//go:embed unsupported.txt
var unsupported string

// A line for a test that was renamed is stale.
func TestUnsupportedTestsExist(t *testing.T) {
	for line := range strings.Lines(unsupported) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) < 3 {
			t.Fatalf("%q: want a package, a test and a reason", line)
		}
		files, err := filepath.Glob(filepath.Join("../..", fields[0], "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(source), "func "+fields[1]+"(")
		}
		if !found {
			t.Errorf("package %s has no test %s", fields[0], fields[1])
		}
	}
}
