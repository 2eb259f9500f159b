package install_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chart"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/install"
)

const cleanupJob = `
apiVersion: batch/v1
kind: Job
metadata:
  name: zarf-registry-cleanup
  annotations: {helm.sh/hook: pre-delete}
spec: {template: {spec: {containers: [{name: init-hook, args: [cleanup, --port=31001]}]}}}
`

func TestUninstallDoesTheWorkOfTheJobFirst(t *testing.T) {
	failure := errors.New("a node does not answer")
	for name, c := range map[string]struct {
		job     bool
		cleanup error
		events  []string // the arguments of cleanup, and the releases that it finds
		left    int
	}{
		"with the Job's arguments":    {true, nil, []string{"cleanup --port=31001", "1 releases"}, 0},
		"a failure keeps the release": {true, failure, []string{"cleanup --port=31001", "1 releases"}, 1},
		"without it, with those of another Job": {false, nil,
			[]string{"prepare --name=zarf-registry --mode=nodeport --port=31001", "1 releases"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, namespace())
			if c.job {
				b.Options.Chart.Templates = append(b.Options.Chart.Templates,
					&chart.File{Name: "templates/cleanup.yaml", Data: []byte(cleanupJob)})
			}
			b.mustRun()
			var events []string
			found, err := install.Uninstall(t.Context(), b.Helm, "zarf-registry", time.Minute,
				func(_ context.Context, args []string) error {
					events = append(events, strings.Join(args, " "), fmt.Sprintf("%d releases", len(b.history())))
					return c.cleanup
				})
			if !found || !errors.Is(err, c.cleanup) || !slices.Equal(events, c.events) {
				t.Errorf("found %t, error %v, events %q", found, err, events)
			}
			if left := len(b.history()); left != c.left {
				t.Errorf("%d revisions remain", left)
			}
		})
	}
}

func TestUninstallWithoutAReleaseCleansUp(t *testing.T) {
	b := newBench(t, namespace())
	called := false
	found, err := install.Uninstall(t.Context(), b.Helm, "zarf-registry", time.Minute,
		func(_ context.Context, args []string) error {
			called = args == nil
			return nil
		})
	if found || err != nil || !called {
		t.Errorf("found %t, error %v, cleanup without arguments: %t", found, err, called)
	}
}

func TestUninstallLeavesOtherChartsAlone(t *testing.T) {
	b := newBench(t, namespace())
	b.mustRun()
	last := b.last()
	last.Chart.Metadata.Name = "nginx"
	if err := b.Helm.Releases.Update(last); err != nil {
		t.Fatal(err)
	}
	_, err := install.Uninstall(t.Context(), b.Helm, "zarf-registry", time.Minute,
		func(context.Context, []string) error { t.Error("it cleaned up"); return nil })
	if !exitcode.IsRefusal(err) {
		t.Errorf("error %v", err)
	}
}
