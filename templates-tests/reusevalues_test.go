package templates

import (
	"maps"
	"os"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// helm upgrade --reuse-values puts the former chart's values, defaults and all, in the
// place of this chart's: what has come since is missing, whether it is used or not.
// testdata/previous-values.yaml are those that the chart had when values of its operation
// (scale, metrics, garbage collection, access from outside) were not there yet.
func TestEveryValuesFileRendersOverTheDefaultsOfAFormerChart(t *testing.T) {
	data, err := os.ReadFile("testdata/previous-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files := ciValues(t)
	files["nothing"] = nil
	for _, name := range slices.Sorted(maps.Keys(files)) {
		t.Run(name, func(t *testing.T) {
			former := loadChart(t)
			former.Values = nil
			if err := yaml.Unmarshal(data, &former.Values); err != nil {
				t.Fatal(err)
			}
			got, err := rendering{values: files[name], chart: former, upgrade: true}.try(t)
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
				t.Errorf("rendered are %q, and over this chart's defaults %q", g, w)
			}
		})
	}
}
