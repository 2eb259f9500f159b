package processes

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// Of a tree of processes, one has used CPU time and exited, another one sleeps.
func TestCPUAndMemoryIncludeChildren(t *testing.T) {
	command := exec.CommandContext(t.Context(), "bash", "-c",
		"(for ((n = 0; n < 200000; n++)); do :; done); sleep 100 <&- & wait")
	require.NoError(t, command.Start())
	pid := command.Process.Pid
	var tree []int
	t.Cleanup(func() {
		for _, pid := range tree {
			if process, err := os.FindProcess(pid); err == nil {
				_ = process.Kill()
			}
		}
		_ = command.Wait()
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var err error
		if tree, err = Tree(pid); err != nil {
			t.Fatal(err)
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tree[len(tree)-1]))
		if len(tree) == 2 && string(name) == "sleep\n" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the processes are %v", tree)
		}
	}
	all := require.Value(CPU(pid))(t)
	own := require.Value(readStat(pid))(t)
	if own.parent != os.Getpid() || own.childrenCPU == 0 || all < own.childrenCPU {
		t.Errorf("%f s, %+v", all, own)
	}
	var private int64
	for _, pid := range tree {
		n := require.Value(Numbers(pid, "smaps_rollup", "Private_Clean", "Private_Dirty"))(t)
		private += n[0] + n[1]
	}
	if both, err := Memory(pid); err != nil || both < private || both > 20_000_000 {
		t.Errorf("bash and sleep use %d bytes, of which %d are private: %v", both, private, err)
	}
}

func TestStat(t *testing.T) {
	s, err := parseStat("7 (a) b) S 5 7 7 0 -1 4194560 1 2 3 4 50 60 100 23 20 0 1 0 1\n")
	if err != nil || s.parent != 5 || s.childrenCPU != 1.23 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, bad := range []string{"", "7 (a) S 5", "7 (a) S x 7 7 0 -1 4194560 1 2 3 4 50 60 100 23 20 0 1 0 1"} {
		if s, err := parseStat(bad); err == nil {
			t.Errorf("%q: %+v", bad, s)
		}
	}
}

func TestNumbers(t *testing.T) {
	const text = "1-2 ---p 0 0 0 [rollup]\nRss: 9 kB\nPPid:\t7\n"
	if n, err := numbers("", text, "PPid", "Rss"); err != nil || n[0] != 7 || n[1] != 9<<10 {
		t.Errorf("%v, %v", n, err)
	}
	for _, bad := range []string{"Rss: 9 kB\n", "Rss: 9 kB\nPPid: x\n"} {
		if n, err := numbers("", bad, "PPid", "Rss"); err == nil {
			t.Errorf("%q: %v", bad, n)
		}
	}
}

func TestPeak(t *testing.T) {
	ended := make(chan struct{})
	close(ended)
	if peak := WatchPeak(os.Getpid(), ended); peak < 1<<20 {
		t.Errorf("the peak memory of this process is %d bytes", peak)
	}
	if _, err := Peak(1 << 30); !Gone(err) {
		t.Errorf("error for a process that does not exist: %v", err)
	}
}
