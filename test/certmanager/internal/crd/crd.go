// Package crd finds, reads and applies cert-manager's CustomResourceDefinitions. It neither removes
// them nor converts objects between versions.
package crd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// module provides the controllers and the CRDs.
const module = "github.com/cert-manager/cert-manager"

// fieldManager owns the fields that Apply writes.
const fieldManager = "testcertmanager"

// establishInterval is short compared with the second or two that an API server takes.
const establishInterval = 200 * time.Millisecond

var resource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// ModuleDir returns the folder of the CRDs in Go's module cache, in the version that this build
// information names. It needs the go command.
func ModuleDir(ctx context.Context, info *debug.BuildInfo) (string, error) {
	version, err := moduleVersion(info)
	if err != nil {
		return "", err
	}
	cache, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE").Output()
	if err != nil {
		return "", fmt.Errorf("asking go for its module cache: %w", err)
	}
	dir := filepath.Join(strings.TrimSpace(string(cache)), filepath.FromSlash(module)+"@"+version, "deploy", "crds")
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("finding the CRDs of %s %s: %w", module, version, err)
	}
	return dir, nil
}

func moduleVersion(info *debug.BuildInfo) (string, error) {
	for _, dep := range info.Deps {
		if dep.Path == module && dep.Replace == nil {
			return dep.Version, nil
		}
	}
	return "", fmt.Errorf("the build information does not name the version of %s", module)
}

// Read returns the CRDs of a folder, one per file *.yaml. Other objects and an empty folder are
// errors.
func Read(dir string) ([]*unstructured.Unstructured, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("listing the CRDs: %w", err)
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("no *.yaml in %s", dir)
	}
	crds := make([]*unstructured.Unstructured, 0, len(paths))
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading a CRD: %w", err)
		}
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &crd.Object); err != nil {
			return nil, fmt.Errorf("parsing %s: %w", path, err)
		}
		if crd.GetKind() != "CustomResourceDefinition" || crd.GetName() == "" {
			return nil, fmt.Errorf("%s holds %q of kind %q, want a CustomResourceDefinition", path, crd.GetName(), crd.GetKind())
		}
		crds = append(crds, crd)
	}
	return crds, nil
}

// Apply applies the CRDs and returns when the API server serves all of them, or when ctx ends. It
// takes over existing CRDs.
func Apply(ctx context.Context, client dynamic.Interface, crds []*unstructured.Unstructured) error {
	for _, crd := range crds {
		_, err := client.Resource(resource).Apply(ctx, crd.GetName(), crd,
			metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		if err != nil {
			return fmt.Errorf("applying CustomResourceDefinition %s: %w", crd.GetName(), err)
		}
	}
	for _, crd := range crds {
		var last error
		err := wait.PollUntilContextCancel(ctx, establishInterval, true, func(ctx context.Context) (bool, error) {
			var now *unstructured.Unstructured
			if now, last = client.Resource(resource).Get(ctx, crd.GetName(), metav1.GetOptions{}); last != nil {
				return false, nil
			}
			return established(now), nil
		})
		if err != nil {
			return errors.Join(fmt.Errorf("waiting for CustomResourceDefinition %s to be established: %w", crd.GetName(), err),
				last)
		}
	}
	return nil
}

func established(crd *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Established" {
			return c["status"] == "True"
		}
	}
	return false
}
