// Package processes reads the CPU time and memory of other processes.
package processes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Tree returns the PIDs of a process and its descendants.
func Tree(root int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if stat, err := readStat(pid); err == nil { // an error means that the process has ended
			children[stat.parent] = append(children[stat.parent], pid)
		}
	}
	all := []int{root}
	for n := 0; n < len(all); n++ {
		all = append(all, children[all[n]]...)
	}
	return all, nil
}

// CPU returns the CPU time of a process and its descendants in seconds, including descendants that have
// exited and were reaped, whose time is accurate to a hundredth of a second.
func CPU(root int) (float64, error) {
	all, err := Tree(root)
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, pid := range all {
		stat, err := readStat(pid)
		if Gone(err) && pid != root {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
		}
		var used unix.Timespec
		// The clock ID that clock_getcpuclockid(3) computes for CPUCLOCK_SCHED (2). EINVAL means that the
		// process has ended.
		if err := unix.ClockGettime(int32(^pid<<3|2), &used); err != nil && !errors.Is(err, unix.EINVAL) {
			return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
		}
		sum += float64(used.Nano())/1e9 + stat.childrenCPU
	}
	return sum, nil
}

// Gone reports whether err means that a process has ended.
func Gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// Peak returns the peak resident memory of a process since its start or the last ResetPeak, in bytes.
func Peak(pid int) (int64, error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	status, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no VmHWM", path)
}

// ResetPeak resets the peak of a process to the current value.
func ResetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// watchInterval is how often WatchPeak reads. The kernel keeps the peak, so at most the last interval of
// a process is missed.
const watchInterval = 5 * time.Millisecond

// WatchPeak reads the peak memory of a process until ended is closed, and returns it in bytes. The value
// in rusage would include the memory of the parent at the fork.
func WatchPeak(pid int, ended <-chan struct{}) (highest int64) {
	for {
		if now, err := Peak(pid); err == nil {
			highest = max(highest, now)
		}
		select {
		case <-ended:
			return highest
		case <-time.After(watchInterval):
		}
	}
}

// stat contains the fields of /proc/PID/stat that are used; see proc(5).
type stat struct {
	parent      int
	childrenCPU float64 // seconds of CPU time of reaped children
}

func readStat(pid int) (stat, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(raw))
}

func parseStat(text string) (s stat, err error) {
	end := strings.LastIndexByte(text, ')') // the end of the name, which may contain spaces and parentheses
	fields := strings.Fields(text[end+1:])
	if end < 0 || len(fields) < 15 {
		return stat{}, fmt.Errorf("invalid process stat: %q", text)
	}
	number := func(field int) int { // numbered as in proc(5); the first field after the name is 3
		n, e := strconv.Atoi(fields[field-3])
		err = errors.Join(err, e)
		return n
	}
	s.parent = number(4)
	s.childrenCPU = float64(number(16)+number(17)) / 100 // USER_HZ is 100 wherever Go runs
	return s, err
}
