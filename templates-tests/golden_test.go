package templates

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/golden"
)

// The golden files make changes of the rendered objects visible in a review. They are what helm template writes for
// four values files. Whether an object is right is up to the other tests.
func TestRenderedObjectsMatchTheGoldenFiles(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"default", "proxy", "external", "everything"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := helmTemplate(t, name)
			golden.File(t, filepath.Join("testdata/golden", name+".yaml"), got)
		})
	}
}

// helmTemplate renders a values file as helm template does, in the order of the templates, without the contents of the
// dashboard, which is a file of its own.
func helmTemplate(t *testing.T, name string) string {
	t.Helper()
	c := loadChart(t)
	for _, file := range c.Files {
		if file.Name == "files/dashboard.json" {
			file.Data = []byte("{}")
		}
	}
	out := rendering{values: ciValues(t)[name], chart: c}.render(t)
	var b strings.Builder
	for _, file := range slices.Sorted(maps.Keys(out.files)) {
		fmt.Fprintf(&b, "---\n# Source: zarf-registry/templates/%s\n%s\n", file, strings.TrimSpace(out.files[file]))
	}
	return b.String()
}
