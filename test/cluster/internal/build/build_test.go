package build

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestRecipeKeyDependsOnEveryField(t *testing.T) {
	base := Recipe{Name: "x", Module: "example.com/x", Version: "v1.0.0",
		Programs: map[string]string{"x": "example.com/x"}}
	keys := map[string]string{base.Key(): "unchanged"}
	if again := base; again.Key() != base.Key() {
		t.Fatal("the same recipe has two keys")
	}
	for what, change := range map[string]func(*Recipe){
		"version":   func(r *Recipe) { r.Version = "v1.0.1" },
		"programs":  func(r *Recipe) { r.Programs = map[string]string{"x": "example.com/x/cmd/x"} },
		"links":     func(r *Recipe) { r.Links = map[string][]string{"x": {"y"}} },
		"variables": func(r *Recipe) { r.Variables = []string{"a.b=c"} },
		"tags":      func(r *Recipe) { r.Tags = []string{"seccomp"} },
		"cgo":       func(r *Recipe) { r.CGO = true },
		"source":    func(r *Recipe) { r.Sources = map[string]string{"main.go": "package main"} },
		"inside":    func(r *Recipe) { r.Inside = true },
		"edits":     func(r *Recipe) { r.Edits = []Edit{{"a.go", "b", "c"}} },
		"sums":      func(r *Recipe) { r.Sums = []string{"a v1 h1:x"} },
	} {
		changed := base
		change(&changed)
		if before, ok := keys[changed.Key()]; ok {
			t.Errorf("%s: same key as %s", what, before)
		}
		keys[changed.Key()] = what
	}
}

func TestToolsArePinned(t *testing.T) {
	for name, recipe := range tools {
		if !strings.HasPrefix(recipe.Version, "v") || strings.Count(recipe.Version, ".") != 2 {
			t.Errorf("%s: version %q", name, recipe.Version)
		}
		for _, variable := range recipe.Variables { // Renovate changes only Version
			_, value, _ := strings.Cut(variable, "=")
			if strings.Count(value, ".") == 2 && strings.TrimPrefix(value, "v") != strings.TrimPrefix(recipe.Version, "v") {
				t.Errorf("%s: %s, but the version is %s", name, variable, recipe.Version)
			}
		}
		if _, ok := recipe.Programs[name]; !ok {
			t.Errorf("%s: the recipe builds %v", name, recipe.ProgramNames())
		}
	}
	if _, err := Tool("kubectl"); err != nil {
		t.Error(err)
	}
	if _, err := Tool("socat"); err == nil || !strings.Contains(err.Error(), "golangci-lint") {
		t.Errorf("the error for an unknown tool does not list the known ones: %v", err)
	}
}

// testCache returns an empty cache and a recipe of a C program, which builds quickly.
func testCache(t *testing.T) (*Cache, Recipe) {
	t.Helper()
	if !needsGCC[0].met() || !needsGCC[1].met() {
		t.Skip("SKIPPED: no C compiler")
	}
	t.Setenv(CacheVariable, t.TempDir())
	cache, err := OpenCache(t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	return cache, Recipe{Name: "true", Version: "v1.0.0", C: "int main(void) { return 0; }",
		Programs: map[string]string{"true": ""}}
}

func TestFailedBuildIsNotCached(t *testing.T) {
	cache, recipe := testCache(t)
	broken := recipe
	broken.C = "this is not C"
	err := cache.Ensure(context.Background(), broken)
	if err == nil || !strings.Contains(err.Error(), "not C") {
		t.Fatalf("the error lacks the compiler's output: %v", err)
	}
	if _, err := os.Stat(filepath.Join(cache.dir, broken.Key())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the failed build is in the cache: %v", err)
	}
	if err := cache.Ensure(context.Background(), recipe); err != nil {
		t.Errorf("after the source was corrected: %v", err)
	}
}

func TestConcurrentProcessesInstallPackagesOnce(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	dir := t.TempDir()
	// Like apt-get, it fails if another one runs.
	script := "#!/bin/sh\nmkdir " + dir + "/lock || exit 100\necho $1 >>" + dir + "/calls\nsleep 0.2\n" +
		"[ $1 = update ] || cp /bin/true " + dir + "/bin/tool\nrmdir " + dir + "/lock\n"
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "bin"), 0o755),
		os.WriteFile(filepath.Join(dir, "bin", "apt-get"), []byte(script), 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Join(dir, "bin")+":/usr/bin:/bin")
	t.Setenv(CacheVariable, t.TempDir())
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			cache, err := OpenCache(t.Logf)
			if err == nil {
				err = cache.ensurePackages(t.Context(), []need{{program: "tool", debian: "tool"}})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil || string(calls) != "update\ninstall\n" {
		t.Errorf("apt-get was called with %q, %v", calls, err)
	}
}

// TestRenovateFindsVersions checks that the regular expressions of .github/renovate.json find each module whose version
// may change.
func TestRenovateFindsVersions(t *testing.T) {
	var config struct {
		CustomManagers []struct {
			MatchStrings    []string
			DepNameTemplate string
		}
	}
	content, err := os.ReadFile("../../../../.github/renovate.json")
	if err == nil {
		err = json.Unmarshal(content, &config)
	}
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, file := range []string{"recipe.go", "tools.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, manager := range config.CustomManagers {
			for _, expression := range manager.MatchStrings {
				re := regexp.MustCompile(expression)
				for _, match := range re.FindAllStringSubmatch(string(source), -1) {
					module := manager.DepNameTemplate
					if i := re.SubexpIndex("depName"); i > 0 {
						module = match[i]
					}
					found[module+"@"+match[re.SubexpIndex("currentValue")]] = true
				}
			}
		}
	}
	for _, recipe := range append(defaultRecipes(), slices.Collect(maps.Values(tools))...) {
		stays := strings.Contains(recipe.Name, ".") && recipe.Name != DefaultRuntime || // such as helm-3.18
			strings.Contains(recipe.Version, "-") || recipe.Module == "" || recipe.Name == sourceController.Name
		if name := recipe.Module + "@" + recipe.Version; !stays && !found[name] {
			t.Errorf("Renovate does not find %s", name)
		}
	}
}
