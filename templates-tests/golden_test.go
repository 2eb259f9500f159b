package templates

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// The golden files show that something changed, for a reader of the diff; what
// is right and wrong is said by the other tests.
func TestEveryValuesFileRendersItsGoldenFile(t *testing.T) {
	const dir = "testdata/golden"
	rendered := map[string]bool{}
	for name, values := range ciValues(t) {
		rendered[name+".yaml"] = true
		t.Run(name, func(t *testing.T) {
			got := rendering{values: values}.render(t).text()
			file := filepath.Join(dir, name+".yaml")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v (go test ./templates-tests -update writes it)", err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s (go test ./templates-tests -update accepts it):\n%s", file, diff)
			}
		})
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !rendered[file.Name()] {
			t.Errorf("%s has no values file in ci/ or testdata/values", filepath.Join(dir, file.Name()))
		}
	}
}
