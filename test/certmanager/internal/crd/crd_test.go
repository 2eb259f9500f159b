package crd

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestModuleHasCRDsOfAllControllers(t *testing.T) {
	dir, err := ModuleDir(t.Context(), builtFrom(t))
	if err != nil {
		t.Fatal(err)
	}
	crds, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	served := map[schema.GroupVersionKind]bool{}
	for _, crd := range crds {
		group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		for _, v := range versions {
			v := v.(map[string]any)
			_, hasStatus, _ := unstructured.NestedMap(v, "subresources", "status")
			served[schema.GroupVersionKind{Group: group, Version: v["name"].(string), Kind: kind}] = v["served"] == true &&
				hasStatus
		}
	}
	for _, kind := range []string{
		certmanager.IssuerKind, certmanager.ClusterIssuerKind, certmanager.CertificateKind,
		certmanager.CertificateRequestKind,
	} {
		if gvk := certmanager.SchemeGroupVersion.WithKind(kind); !served[gvk] {
			t.Errorf("no CRD in %s serves %s with a status", dir, gvk)
		}
	}
}

func TestModuleDirRejects(t *testing.T) {
	for name, test := range map[string]struct {
		dep  debug.Module
		want string
	}{
		"a program without cert-manager": {debug.Module{Path: "example.com/other", Version: "v1.0.0"},
			"does not name the version"},
		"a replaced module": {debug.Module{Path: module, Version: "v1.0.0",
			Replace: &debug.Module{Path: "../mine"}}, "does not name the version"},
		"a version missing in the cache": {debug.Module{Path: module, Version: "v0.0.0-not-there"}, "v0.0.0-not-there"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ModuleDir(t.Context(), &debug.BuildInfo{Deps: []*debug.Module{&test.dep}})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("ModuleDir() = %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestReadRejects(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a folder without CRDs":     {map[string]string{"README.md": "text"}, "no *.yaml"},
		"invalid YAML":              {map[string]string{"a.yaml": "a: b: c"}, "parsing"},
		"an object of another kind": {map[string]string{"a.yaml": "kind: Secret\nmetadata: {name: a}"}, `kind "Secret"`},
		"a CRD without a name":      {map[string]string{"a.yaml": "kind: CustomResourceDefinition"}, `holds ""`},
		"a file without an object":  {map[string]string{"a.yaml": "# nothing"}, `kind ""`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range test.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Read() = %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestEstablished(t *testing.T) {
	for name, test := range map[string]struct {
		conditions []any
		want       bool
	}{
		"a new CRD has no conditions": {nil, false},
		"names are accepted first":    {[]any{condition("NamesAccepted", "True")}, false},
		"the condition is false":      {[]any{condition("Established", "False")}, false},
		"the CRD is served":           {[]any{condition("NamesAccepted", "True"), condition("Established", "True")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			crd := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": test.conditions}}}
			if got := established(crd); got != test.want {
				t.Errorf("established() = %t, want %t", got, test.want)
			}
		})
	}
}

func condition(typ, status string) map[string]any {
	return map[string]any{"type": typ, "status": status}
}

// builtFrom returns build information with a module; that of a test binary has none.
func builtFrom(t *testing.T) *debug.BuildInfo {
	t.Helper()
	version, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", module).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return &debug.BuildInfo{Deps: []*debug.Module{{Path: module, Version: strings.TrimSpace(string(version))}}}
}
