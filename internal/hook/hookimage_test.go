package hook_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// The chart's CronJobs refer to the image that finish pushes by its digest.
func TestAnInitHookWithAnotherImageThanTheChartsIsRefused(t *testing.T) {
	t.Parallel()
	ours, another := "sha256:"+strings.Repeat("a", 64), "sha256:"+strings.Repeat("b", 64)
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.registry.image = &state.HookImage{Reference: "zarf-registry/init-hook:dev@" + ours, Architecture: "amd64"}
		digests := func(amd64 string) {
			b.hook.Settings.Push.HookDigests = map[string]string{"amd64": amd64, "arm64": another}
		}
		digests(another)
		b.mustFail(b.hook.Prepare(t.Context()), true, "chart and program are of different builds", ours, another,
			"use the chart of the same release as this program")
		b.mustNotWrite()
		digests(ours)
		b.upgrade(state.ModeProxy)
		b.checkFinished() // the state records the digest
		// On nodes of another architecture, finish may be the first to see its image.
		b.mustPrepare()
		b.helm()
		digests(another)
		b.mustFail(b.hook.Finish(t.Context()), true, "chart and program are of different builds")
	})
}

// A program for macOS cannot push the image that renews certificates.
func TestAMissingImageOfCronJobsIsReportedWithARemedy(t *testing.T) {
	t.Parallel()
	const warning = "CERTIFICATES ARE NOT RENEWED"
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.registry.image, b.hook.Again = nil, "install --namespace other"
		b.upgrade(state.ModeProxy)
		b.mustLog(warning, "of a test", "./zarf-registry-linux-amd64 install --namespace other")
		// What another program has pushed serves, too, if it is of this version.
		for reference, warns := range map[string]bool{"zarf-registry/init-hook:dev@sha256:1": false,
			"zarf-registry/init-hook:old@sha256:1": true} {
			b.registry.image = &state.HookImage{Reference: reference, Architecture: "amd64"}
			b.upgrade(state.ModeProxy)
			b.registry.image = nil
			b.log.Reset()
			b.upgrade(state.ModeProxy)
			if got := strings.Contains(b.log.String(), warning); got != warns {
				t.Errorf("%s is recorded, and a warning is %t", reference, got)
			}
		}
	})
}
