// Package processes reads the CPU time and memory of other processes.
package processes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
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

// Numbers returns the numbers after keys in a file of a process, such as status; those in kB are in bytes.
func Numbers(pid int, file string, keys ...string) ([]int64, error) {
	path := fmt.Sprintf("/proc/%d/%s", pid, file)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return numbers(path, string(text), keys...)
}

func numbers(path, text string, keys ...string) ([]int64, error) {
	found, seen := make([]int64, len(keys)), 0
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		n := slices.Index(keys, key)
		if n < 0 {
			continue
		}
		value, kib := strings.CutSuffix(strings.TrimSpace(value), " kB")
		number, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if kib {
			number <<= 10
		}
		found[n] = number
		seen++
	}
	if seen != len(keys) {
		return nil, fmt.Errorf("%s lacks one of %s", path, keys)
	}
	return found, nil
}

// Peak returns the peak resident memory of a process since its start or the last ResetPeak, in bytes.
func Peak(pid int) (int64, error) {
	peak, err := Numbers(pid, "status", "VmHWM")
	if err != nil {
		return 0, err
	}
	return peak[0], nil
}

// Memory returns the resident memory of a process and its descendants in bytes: the private memory of each process, and
// the shared memory once, as the maximum over the processes. PSS would depend on which other programs use the same
// libraries.
func Memory(root int) (int64, error) {
	all, err := Tree(root)
	if err != nil {
		return 0, err
	}
	var private, shared int64
	for _, pid := range all {
		n, err := Numbers(pid, "smaps_rollup", "Private_Clean", "Private_Dirty", "Shared_Clean", "Shared_Dirty")
		if Gone(err) {
			continue
		}
		if err != nil {
			return 0, err
		}
		private, shared = private+n[0]+n[1], max(shared, n[2]+n[3])
	}
	return private + shared, nil
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
