package hostfiles

import (
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/powercut"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// recordedHost makes the test program carry out a run, whose file operations are recorded, in a node's directories.
const recordedHost, recordedWants = "ZARF_REGISTRY_RECORDED_HOST", "ZARF_REGISTRY_RECORDED_WANTS"

func init() {
	host := os.Getenv(recordedHost)
	if host == "" {
		return
	}
	syscall.Umask(0o077)
	var w Desired
	err := json.Unmarshal([]byte(os.Getenv(recordedWants)), &w)
	if err == nil {
		_, err = run(options(host), w)
	}
	if err != nil {
		fmt.Println(err)
	}
	os.Exit(0)
}

// The power is cut after each file operation of a run, and what was not synced is lost. Every file is then in its old
// or its new state, in its new one if the run had ended, and the next run reaches the same state.
func TestPowerCutAtEveryCall(t *testing.T) {
	eachStage(t, func(t *testing.T, s story, stage int, w Desired) {
		t.Parallel()
		encoded := require.Value(json.Marshal(w))(t)
		host, _ := reach(t, s, stage)
		old := contents(snapshot(t, host))
		process := powercut.Start(t, host, []string{recordedHost + "=" + host, recordedWants + "=" + string(encoded)},
			"/proc/self/exe")
		if err := process.Wait(); err != nil || process.Output() != "" {
			t.Fatalf("%v: %s", err, process.Output())
		}
		end := contents(snapshot(t, host))
		cuts := 0
		for cut := range process.Cuts(powercut.Options{Seed: 1, Random: 3}) {
			cuts++
			left := cut.Restore(t)
			got := contents(snapshot(t, left))
			wholeFiles(t, cut.String(), got, old, end)
			if cut.After == process.Events() && got.String() != end.String() {
				t.Errorf("%s: the run had ended; it is\n%s\nwant\n%s", cut, got, end)
			}
			if _, err := run(options(left), w); err != nil {
				t.Errorf("%s: the next run: %v", cut, err)
				continue
			}
			if got := contents(snapshot(t, left)); got.String() != end.String() {
				t.Errorf("%s: after the next run it is\n%s\nwant\n%s", cut, got, end)
			}
		}
		if cuts < process.Events() {
			t.Errorf("%d cuts after %d events", cuts, process.Events())
		}
	})
}
