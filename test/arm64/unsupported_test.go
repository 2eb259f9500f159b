package arm64

import (
	_ "embed"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
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
		files := require.Value(filepath.Glob(filepath.Join("../..", fields[0], "*_test.go")))(t)
		found := false
		for _, file := range files {
			source := require.Value(os.ReadFile(file))(t)
			found = found || strings.Contains(string(source), "func "+fields[1]+"(")
		}
		if !found {
			t.Errorf("package %s has no test %s", fields[0], fields[1])
		}
	}
}
