package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestGarbageCollection collects the blobs of images whose tags were moved, while nodes pull and
// images are pushed, and interrupts a collection in every way.
func TestGarbageCollection(t *testing.T) {
	w := ownCluster(t, "e2e-garbage", layout{args: []string{"--nodes", "1",
		"--volumes-size", strconv.Itoa(volumesSize)}})
	const cronJob = "--set=registry.garbageCollection.enabled=true,registry.garbageCollection.gracePeriod=0s" +
		",registry.garbageCollection.prune.untagged=true"
	// Only the steps below collect.
	const never = "--set-string=registry.garbageCollection.schedule=0 0 31 12 *"
	const noise = 8 << 20
	kept := w.address + "/e2e/hello:1"
	// replaceBig moves a tag to another image, so that the previous image is untagged.
	replaceBig := func(t *testing.T) {
		t.Helper()
		w.push(t, w.makeArchive(t, "example.com/e2e/big:1", noise))
	}
	pullsBig := func(t *testing.T) {
		t.Helper()
		if out, err := w.pull(t, w.nodes[0], w.address+"/e2e/big:1"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	collect := []string{"images", "garbage-collect", "--delete-untagged", "--grace-period=0s", "--output=json"}
	// begun returns a collection that has begun; it takes at least 20 s.
	begun := func(t *testing.T) *exec.Cmd {
		t.Helper()
		cmd := w.command(t, w.hook, collect...)
		require.NoError(t, cmd.Start())
		eventually(t, "zarf-registry status to report it", func() error {
			if _, text := w.status(t); !strings.Contains(text, "collecting garbage") {
				return fmt.Errorf("output: %s", text)
			}
			return nil
		})
		return cmd
	}

	must(t, "helm install", func(t *testing.T) {
		w.apply(t, proxyMode, cronJob, never)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		w.pushHello(t)
		w.pushFresh(t)
		replaceBig(t)
		replaceBig(t)
	})
	before := w.stored(t).blobs
	must(t, "a dry run lists what would be removed, and the grace period protects it", func(t *testing.T) {
		var dry, young collectedJSON
		decode(t, output(t, w.command(t, w.hook, append(collect, "--dry-run")...)), &dry)
		if dry.Bytes < noise || dry.Manifests == 0 || len(dry.Removed) != dry.Blobs+dry.Manifests || !dry.DryRun {
			t.Errorf("%+v", dry)
		}
		decode(t, output(t, w.command(t, w.hook, "images", "garbage-collect", "--dry-run", "--output=json")), &young)
		if young.Blobs != 0 {
			t.Errorf("within the grace period %+v", young)
		}
		if after := w.stored(t).blobs; after != before {
			t.Errorf("%d bytes are stored, %d were before", after, before)
		}
	})
	w.underLoop(t, "the CronJob's Job frees space, and no pull fails", func(t *testing.T) {
		w.runCronJob(t, release+"-gc")
		after := w.stored(t).blobs
		t.Logf("figure: %d bytes were stored, %d are now", before, after)
		if before-after < noise {
			t.Errorf("%d bytes were freed, want %d", before-after, noise)
		}
		w.runsEverywhere(t, "hello", kept)
		pullsBig(t)
	})
	must(t, "a push does not wait for the end of a collection", func(t *testing.T) {
		replaceBig(t) // garbage to collect
		cmd := begun(t)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		begin := time.Now()
		replaceBig(t)
		t.Logf("figure: a push during a collection took %.1f s", time.Since(begin).Seconds())
		select {
		case err := <-ended:
			t.Errorf("the push ended after the collection (%v)", err)
		default:
			if err := <-ended; err != nil {
				t.Errorf("the collection: %v", err)
			}
		}
		pullsBig(t)
	})
	must(t, "a killed command does not block pushes", func(t *testing.T) {
		replaceBig(t)
		cmd := begun(t)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // error expected: it was killed
		begin := time.Now()
		replaceBig(t)
		t.Logf("figure: a push after a killed collection took %.1f s", time.Since(begin).Seconds())
	})
	must(t, "a killed registry accepts pushes at once, and collects again after a minute", func(t *testing.T) {
		replaceBig(t)
		cmd := begun(t)
		previous := w.pods(t, "registry")[0].Name
		w.deletePod(t, previous, 0)
		if err := cmd.Wait(); err == nil {
			t.Error("the collection succeeded")
		}
		w.waitForRegistry(t, previous)
		begin := time.Now()
		replaceBig(t)
		t.Logf("figure: the first push after the registry was killed took %.1f s", time.Since(begin).Seconds())
		pullsBig(t)
		var rest collectedJSON
		decode(t, output(t, w.command(t, w.hook, collect...)), &rest)
		if rest.Bytes < noise {
			t.Errorf("the next collection removed %+v", rest)
		}
		pullsBig(t)
		w.isHealthy(t)
	})
	w.fullVolume(t)
}

// collectedJSON is the output of images garbage-collect.
type collectedJSON struct {
	DryRun           bool
	Manifests, Blobs int
	Bytes            int64
	Removed          []struct{ Digest string }
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), into), text)
}
