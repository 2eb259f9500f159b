package templates

import (
	"bytes"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// blob is the address of the project's files, wherever the chart's package is read.
const blob = "https://github.com/zarf-dev/zarf-registry/blob/main/"

// annotation decodes an annotation of Artifact Hub in Chart.yaml.
func annotation(t *testing.T, name string, into any) {
	t.Helper()
	c := loadChart(t)
	if err := yaml.UnmarshalStrict([]byte(c.Metadata.Annotations["artifacthub.io/"+name]), into); err != nil {
		t.Fatalf("artifacthub.io/%s: %v", name, err)
	}
}

// Artifact Hub's rules: https://artifacthub.io/docs/topics/annotations/helm
func TestArtifactHub(t *testing.T) {
	t.Parallel()
	c := loadChart(t)
	var category, license string
	annotation(t, "category", &category)
	annotation(t, "license", &license)
	if category != "integration-delivery" || license != "Apache-2.0" {
		t.Errorf("category %q, license %q", category, license)
	}
	for name, value := range c.Metadata.Annotations {
		if name == "artifacthub.io/prerelease" && value != "true" && value != "false" {
			t.Errorf("%s is %q, not a boolean as a string", name, value)
		}
	}
	type link struct{ Name, URL string }
	var links []link
	annotation(t, "links", &links)
	var changes []struct {
		Kind, Description string
		Links             []link
	}
	annotation(t, "changes", &changes)
	if len(changes) == 0 || len(links) == 0 {
		t.Error("no changes or no links")
	}
	for _, change := range changes {
		kinds := []string{"added", "changed", "deprecated", "removed", "fixed", "security"}
		if !slices.Contains(kinds, change.Kind) || change.Description == "" {
			t.Errorf("invalid change %v", change)
		}
		links = append(links, change.Links...)
	}
	for _, l := range append(links, link{"icon", c.Metadata.Icon}) {
		u, err := url.Parse(l.URL)
		if err != nil || u.Scheme != "https" || l.Name == "" {
			t.Errorf("link %v: %v", l, err)
		}
		raw := strings.Replace(l.URL, "https://raw.githubusercontent.com/zarf-dev/zarf-registry/main/", blob, 1)
		exists(t, "Chart.yaml", raw)
	}
	var images []struct {
		Name, Image string
		Platforms   []string
	}
	annotation(t, "images", &images)
	values := rendering{values: proxyMode(t)}.render(t)
	var want, got []string
	for _, component := range []string{"initHook", "registry", "proxy"} {
		want = append(want, values.value("image.registry").(string)+"/"+
			values.value(component+".image.repository").(string)+":"+publishedVersion(t))
	}
	for _, image := range images {
		got = append(got, image.Image)
		if !slices.Equal(image.Platforms, []string{"linux/amd64", "linux/arm64"}) || image.Name == "" {
			t.Errorf("image %v", image)
		}
	}
	if !slices.Equal(want, got) {
		t.Errorf("images %v, want %v", got, want)
	}
}

// publishedVersion returns the version in Chart.yaml, which rendering replaces.
func publishedVersion(t *testing.T) string {
	t.Helper()
	return field(readYAML(t, "Chart.yaml"), "appVersion").Value
}

// exists checks that an address of the project names one of its files.
func exists(t *testing.T, where, address string) {
	t.Helper()
	file, ok := strings.CutPrefix(strings.Replace(address, "/tree/", "/blob/", 1), blob)
	if !ok {
		return
	}
	file, _, _ = strings.Cut(file, "#")
	if _, err := os.Stat(filepath.Join("..", file)); err != nil {
		t.Errorf("%s: %s: %v", where, address, err)
	}
}

// The package is read where the repository is not: in Artifact Hub, and by helm show.
func TestPackageResolvesOutsideOfTheRepository(t *testing.T) {
	t.Parallel()
	relative := regexp.MustCompile(`\]\(([^)]+)\)`)
	page := regexp.MustCompile(`\S*\b(?:docs|ci|templates-tests|examples)/[\w./#-]*\w`)
	for _, name := range []string{"README.md", "values.yaml", "values.schema.json"} {
		b := require.Value(os.ReadFile(filepath.Join(chartDir, name)))(t)
		for _, match := range relative.FindAllStringSubmatch(string(b), -1) {
			if target := match[1]; name == "README.md" && !strings.HasPrefix(target, "https://") && !strings.HasPrefix(target, "#") {
				t.Errorf("%s: link to %s", name, target)
			}
		}
		found := page.FindAllString(string(b), -1)
		for _, address := range found {
			address = address[max(strings.LastIndex(address, "("), 0):]
			address = strings.TrimPrefix(address, "(")
			if !strings.HasPrefix(address, "https://") {
				t.Errorf("%s: %s is a path of the repository", name, address)
			}
			exists(t, name, address)
		}
		if len(found) < 5 {
			t.Errorf("%s: only %d addresses", name, len(found))
		}
	}
	license, err := os.ReadFile("../LICENSE")
	if err != nil || !slices.ContainsFunc(loadChart(t).Files, func(f *chart.File) bool {
		return f.Name == "LICENSE" && bytes.Equal(f.Data, license)
	}) {
		t.Errorf("the package does not have the project's LICENSE: %v", err)
	}
}
