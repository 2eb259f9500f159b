package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/zarf-dev/zarf-registry/internal/cli/clitest"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/status/support"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestTheBundleSaysWhatItLacks(t *testing.T) {
	files := []support.File{{Name: "status.txt", Size: 10}, {Name: "summary.txt", Size: 20}}
	for name, c := range map[string]struct {
		bundle bundle
		want   string
	}{
		"complete": {bundle{"b.tar.gz", 12345, &support.Result{Files: files}}, "b.tar.gz: 2 files, 12.3 kB\n"},
		"on stdout, with parts missing": {bundle{"-", 0, &support.Result{Files: files, Missing: []string{"events.txt: no"}}},
			"-: 2 files\n\nNot in the archive (1):\n  - events.txt: no\n"},
	} {
		t.Run(name, func(t *testing.T) { clitest.Same(t, "text", clitest.Text(t, printBundle, c.bundle), c.want) })
	}
	clitest.JSON(t, render.SupportBundle, clitest.Data(t, render.SupportBundle,
		bundle{"b.tar.gz", 12345, &support.Result{Files: files, Missing: []string{"events.txt: no"}}}))
}

func TestAnInterruptedBundleReplacesNoFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "bundle.tar.gz")
	require.NoError(t, os.WriteFile(path, []byte("previous"), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := writeBundle(ctx, path, support.Options{Namespace: "zarf", Release: "zarf-registry", Client: fake.NewClientset(),
		Timeout: time.Minute, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	content, err := os.ReadFile(path)
	left, _ := os.ReadDir(dir)
	if err != nil || string(content) != "previous" || len(left) != 1 {
		t.Errorf("%v: the file contains %q; files: %v", err, content, left)
	}
}
