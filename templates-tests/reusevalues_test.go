package templates

import (
	"maps"
	"os"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// helm upgrade --reuse-values replaces the chart's values, including its defaults, with those of the
// previous release, so newer values are missing. testdata/previous-values.yaml contains the defaults
// of a release before scaling, metrics, garbage collection and expose.
func TestValuesFilesRenderOverPreviousDefaults(t *testing.T) {
	data, err := os.ReadFile("testdata/previous-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files := ciValues(t)
	files["nothing"] = nil
	for _, name := range slices.Sorted(maps.Keys(files)) {
		t.Run(name, func(t *testing.T) {
			previous := loadChart(t)
			previous.Values = nil
			if err := yaml.Unmarshal(data, &previous.Values); err != nil {
				t.Fatal(err)
			}
			got, err := rendering{values: files[name], chart: previous, upgrade: true}.try(t)
			if err != nil {
				t.Fatal(err)
			}
			names := func(o *output) (list []string) {
				for _, object := range o.objects {
					list = append(list, object.String())
				}
				return list
			}
			want := rendering{values: files[name], upgrade: true}.render(t)
			if g, w := names(got), names(want); !slices.Equal(g, w) {
				t.Errorf("rendered %q, with the current defaults %q", g, w)
			}
		})
	}
}
