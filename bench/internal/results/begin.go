package results

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
)

// Options are the flags that all benchmarks have.
type Options struct {
	Runs  int
	Write string // directory of the report
	Force bool
	Seed  uint64
}

// Register adds the flags to a set.
func (o *Options) Register(flags *flag.FlagSet) {
	flags.IntVar(&o.Runs, "n", 5, "runs")
	flags.StringVar(&o.Write, "write", "", "directory to write RESULTS.json to (default: print medians to stdout)")
	flags.BoolVar(&o.Force, "force", false, "run on a loaded machine too, and mark the results")
	flags.Uint64Var(&o.Seed, "seed", 0, "seed of the order of the subjects (default: random)")
}

const (
	// quietLimit is the highest share of CPU time that other programs may use before a start.
	quietLimit = 0.1
	quietTime  = 2 * time.Second // over which that share is measured
	// quietWait is how long a busy machine may take to become quiet, such as after the previous benchmark.
	quietWait = time.Minute
	forcedFor = 100 * time.Millisecond // replaces quietTime with -force
)

// Begin starts a report once the machine is quiet. On a machine that stays loaded it fails, or with
// -force marks the report.
func (o *Options) Begin(ctx context.Context) (*Report, error) {
	if o.Runs < 1 {
		return nil, errors.New("-n must be positive")
	}
	machine, err := ThisMachine(), error(nil)
	if o.Force {
		machine.Busy, err = busy(ctx, ReadStat, forcedFor)
	} else {
		machine.Busy, err = quiet(ctx, ReadStat, quietTime, quietWait)
	}
	if err != nil {
		return nil, err
	}
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return nil, fmt.Errorf("finding the commit that is measured: git describe: %w", err)
	}
	return &Report{Date: time.Now().UTC().Truncate(time.Second), Commit: strings.TrimSpace(string(commit)),
		Machine: machine, Forced: o.Force, Seed: cmp.Or(o.Seed, uint64(rand.Uint32()))}, nil
}

// quiet returns the share of busy CPU time within window. While that exceeds the limit, it measures again,
// for at most the time wait, and then fails.
func quiet(ctx context.Context, read func() (string, error), window, wait time.Duration) (float64, error) {
	for end := time.Now().Add(wait); ; {
		share, err := busy(ctx, read, window)
		if err != nil || share <= quietLimit {
			return share, err
		}
		if !time.Now().Before(end) {
			return 0, fmt.Errorf("other programs use %.0f %% of the CPU time, and results need less than %.0f %%: stop them, "+
				"or add -force to run anyway and mark the results", share*100, quietLimit*100)
		}
		fmt.Fprintf(os.Stderr, "%.0f %% of the CPU time is used: waiting for a quiet machine\n", share*100)
	}
}

// busy returns the share of busy CPU time within window.
func busy(ctx context.Context, read func() (string, error), window time.Duration) (float64, error) {
	before, err := read()
	if err != nil {
		return 0, err
	}
	if err := program.Sleep(ctx, window); err != nil {
		return 0, err
	}
	after, err := read()
	if err != nil {
		return 0, err
	}
	return BusyShare(before, after)
}

// ReadStat returns /proc/stat, for BusyShare.
func ReadStat() (string, error) {
	raw, err := os.ReadFile("/proc/stat")
	return string(raw), err
}

// BusyShare returns the share of CPU time that was not idle between two readings of /proc/stat. Waiting
// for a disk counts as busy, because somebody uses that disk.
func BusyShare(before, after string) (float64, error) {
	idleBefore, allBefore, err := cpuTimes(before)
	if err != nil {
		return 0, err
	}
	idle, all, err := cpuTimes(after)
	if err != nil {
		return 0, err
	}
	if all <= allBefore {
		return 0, errors.New("/proc/stat does not change")
	}
	return 1 - float64(idle-idleBefore)/float64(all-allBefore), nil
}

// cpuTimes returns the idle and the total time of all CPUs; see proc(5).
func cpuTimes(stat string) (idle, all uint64, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("invalid /proc/stat: %q", line)
	}
	for n, field := range fields[1:9] { // the rest is guest time, which user time contains
		value, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("invalid /proc/stat: %q", line)
		}
		all += value
		if n == 3 {
			idle = value
		}
	}
	return idle, all, nil
}

// Repeat measures all subjects in each of so many runs, in the [Report.Order] of the run, and writes the progress to
// stderr.
func (r *Report) Repeat(runs int, subjects []string, measure func(n int) error) error {
	width := 0
	for _, name := range subjects {
		width = max(width, len(name))
	}
	for run := range runs {
		for _, n := range r.Order(run, len(subjects)) {
			began := time.Now()
			if err := measure(n); err != nil {
				return fmt.Errorf("%s: %w", subjects[n], err)
			}
			fmt.Fprintf(os.Stderr, "run %d of %d  %-*s %.1f s\n", run+1, runs, width, subjects[n],
				time.Since(began).Seconds())
		}
	}
	return nil
}

// Order returns the order of n subjects in a run, which depends on the seed and the run only.
func (r *Report) Order(run, n int) []int { return rand.New(rand.NewPCG(r.Seed, uint64(run))).Perm(n) }
