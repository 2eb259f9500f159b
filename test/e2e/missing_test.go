package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// missing runs zarf-registry images missing, which must exit with a code. It returns what that prints.
func (w *world) missing(t *testing.T, code int, args ...string) string {
	t.Helper()
	out, errOut, err := try(w.command(t, w.hook, append([]string{"images", "missing"}, args...)...))
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	}
	if got != code {
		t.Errorf("images missing %q: exit code %d, want %d: %v\n%s%s", args, got, code, err, out, errOut)
	}
	t.Logf("images missing %s:\n%s%s", strings.Join(args, " "), out, errOut)
	return out
}

// testMissing finds out what manifests and workloads need, brings it from outside, and finds nothing missing.
func testMissing(t *testing.T, w *world) {
	connected, dir := connectedRegistry(t), t.TempDir()
	there, absent, live := "registry.example.com/missing/there:1", connected+"/missing/absent:1", connected+"/missing/live:1"
	w.push(t, w.makeArchive(t, there, 8))
	for _, ref := range []string{absent, live} {
		output(t, w.command(t, w.hook, "images", "push", "--to", connected, "--plain-http", w.makeArchive(t, ref, 8)))
	}
	manifest := filepath.Join(dir, "shop.yaml")
	require.NoError(t, os.WriteFile(manifest, fmt.Appendf(nil, "# Source: shop/templates/deployment.yaml\napiVersion: apps/v1\n"+
		"kind: Deployment\nmetadata: {name: shop, namespace: kube-system}\n"+
		"spec: {template: {spec: {containers: [{image: %q}, {image: %q}]}}}\n",
		there, absent), 0o600))
	// bring carries what a list names into the cluster.
	bring := func(list string) {
		t.Helper()
		file, archive := filepath.Join(dir, "images.txt"), filepath.Join(dir, "images.tar")
		require.NoError(t, os.WriteFile(file, []byte(list), 0o600))
		output(t, w.command(t, w.hook, "images", "pull", "--plain-http", "--no-store", "--file", file, "--out", archive))
		w.push(t, archive)
	}

	if text := w.missing(t, 4, manifest); !strings.Contains(text, absent) || strings.Contains(text, there) ||
		!strings.Contains(text, "Deployment kube-system/shop\n") || !strings.Contains(text, "1 of 2 images missing") {
		t.Error("it does not list exactly what is missing")
	}
	if text := w.missing(t, 4, "--platform=linux/amd64,linux/riscv64", manifest); !strings.Contains(text,
		"not for linux/riscv64") {
		t.Error("it does not name the platform that is missing")
	}
	bring(w.missing(t, 4, "--output=name", manifest))
	w.missing(t, 0, "--all", manifest)
	w.runsEverywhere(t, "absent", w.address+"/missing/absent:1")

	w.scheduled(t, "missing", live)
	var report struct {
		Platforms []string
		Images    []struct {
			Reference string
			NeededBy  []string
		}
	}
	decode(t, w.missing(t, 4, "--output=json"), &report)
	if len(report.Platforms) != 1 || len(report.Images) != 1 || report.Images[0].Reference != live ||
		!slices.Equal(report.Images[0].NeededBy, []string{"CronJob " + workloads + "/missing"}) {
		t.Errorf("of the cluster's workloads, it lists %+v", report)
	}
	w.missing(t, 0, "--exclude-namespace=kube-system,"+workloads)
	bring(w.missing(t, 4, "--output=name"))
	w.missing(t, 0)

	// Charts that many people install.
	w.push(t, w.makeArchive(t, "docker.io/library/busybox:1.31.1", 8))
	charts := "../../internal/images/workloads/testdata/charts"
	for name, want := range map[string]string{
		"cert-manager":          "4 of 4 images missing; possibly 1 more",
		"ingress-nginx":         "3 of 3 images missing\n",
		"kube-prometheus-stack": "8 of 9 images missing; possibly 2 more",
	} {
		if text := w.missing(t, 4, filepath.Join(charts, name+".yaml")); !strings.Contains(text, want) {
			t.Errorf("%s needs other images than %s", name, want)
		}
	}
	w.missing(t, 4, "--output=name", charts)
}
