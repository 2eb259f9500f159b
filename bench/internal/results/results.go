// Package results defines the report of a benchmark, which is stored as RESULTS.json in a directory of the
// benchmark and rendered by bench/report.
package results

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// FileName is the name of a report in the directory of a benchmark.
const FileName = "RESULTS.json"

// Report is the result of a benchmark. It is not safe for concurrent use.
type Report struct {
	Date    time.Time `json:"date"`
	Commit  string    `json:"commit"` // as git describes it
	Machine Machine   `json:"machine"`
	// Forced means that the machine was not required to be quiet.
	Forced bool `json:"forced,omitempty"`
	// Seed determines the order of the subjects in each run.
	Seed uint64 `json:"seed,omitempty"`
	// How describes the method in a few sentences of Markdown.
	How string `json:"how"`
	// Subjects are in the order of the tables' rows.
	Subjects []Subject `json:"subjects"`
	// Measures are in the order of the tables' columns.
	Measures []*Measure `json:"measures"`
}

// Machine describes the machine. Fields that the kernel does not report are empty.
type Machine struct {
	Cores  int    `json:"cores"`
	CPU    string `json:"cpu"`
	Memory int64  `json:"memoryBytes"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	// Busy is the share of CPU time that other programs used before the start.
	Busy float64 `json:"busyAtStart,omitempty"`
}

// Subject is a measured program or configuration.
type Subject struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	About   string `json:"about,omitempty"`
}

// Measure holds the values of one quantity of one subject.
type Measure struct {
	// Table is the heading of the table that contains it.
	Table   string    `json:"table"`
	Subject string    `json:"subject"`
	What    string    `json:"what"`
	Unit    string    `json:"unit"`
	Runs    []float64 `json:"runs"` // in the order of the runs
}

// Add adds the value of a run.
func (r *Report) Add(table, subject, what, unit string, value float64) {
	if m := r.Find(table, subject, what); m != nil {
		m.Runs = append(m.Runs, value)
		return
	}
	r.Measures = append(r.Measures, &Measure{table, subject, what, unit, []float64{value}})
}

// Find returns a measure, or nil.
func (r *Report) Find(table, subject, what string) *Measure {
	for _, m := range r.Measures {
		if m.Table == table && m.Subject == subject && m.What == what {
			return m
		}
	}
	return nil
}

// Save writes the report to dir or, if dir is "", its medians to w.
func (r *Report) Save(dir string, w io.Writer) error {
	if dir == "" {
		for _, m := range r.Measures {
			median, minimum, maximum := m.Spread()
			fmt.Fprintf(w, "%-40s %-28s %-34s %10.4g (%.4g–%.4g) %s\n", m.Table, m.Subject, m.What, median, minimum,
				maximum, m.Unit)
		}
		return nil
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, FileName), append(raw, '\n'), 0o644)
}

// Read reads the report in dir.
func Read(dir string) (*Report, error) {
	path := filepath.Join(dir, FileName)
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := new(Report)
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return r, nil
}

// Spread returns the median, minimum and maximum of the runs, or zeros if there are none.
func (m *Measure) Spread() (median, minimum, maximum float64) {
	if m == nil || len(m.Runs) == 0 {
		return 0, 0, 0
	}
	sorted := slices.Sorted(slices.Values(m.Runs))
	return Median(sorted), sorted[0], sorted[len(sorted)-1]
}

// Median returns the median of sorted, which must not be empty.
func Median(sorted []float64) float64 {
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// ThisMachine describes this machine.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), CPU: procValue("/proc/cpuinfo", "model name"), Go: runtime.Version()}
	if m.CPU == "" {
		m.CPU = runtime.GOARCH
	}
	kib, _ := strconv.ParseInt(strings.TrimSuffix(procValue("/proc/meminfo", "MemTotal"), " kB"), 10, 64)
	m.Memory = kib << 10
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	return m
}

// String describes the machine in one line, without Busy.
func (m Machine) String() string {
	return fmt.Sprintf("%d cores (%s), %.0f GB of memory, Linux %s, %s", m.Cores, m.CPU, float64(m.Memory)/1e9, m.Kernel,
		m.Go)
}

// procValue returns the first value of a key in a file of "key: value" lines.
func procValue(path, key string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(raw)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
