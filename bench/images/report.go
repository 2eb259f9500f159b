package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// report is the content of RESULTS.json.
type report struct {
	Date        time.Time       `json:"date"`
	Machine     results.Machine `json:"machine"`
	Set         setSummary      `json:"set"`
	Repetitions int             `json:"repetitions"`
	Registry    string          `json:"registry"`
	Tools       []toolSummary   `json:"tools"`
	Results     []*measurement  `json:"results"`
}

type setSummary struct {
	Images int    `json:"images"`
	Blobs  int    `json:"blobs"`
	Bytes  int64  `json:"bytes"`
	Seed   uint64 `json:"seed"`
}

type toolSummary struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	About   string `json:"about"`
}

// measurement holds all samples of a tool's operation.
type measurement struct {
	Tool      string   `json:"tool"`
	Operation string   `json:"operation"`
	Samples   []sample `json:"samples"`
}

func newReport(o options, set *imageSet, found []tool, now time.Time) *report {
	r := &report{
		Date: now.UTC().Truncate(time.Second), Machine: results.ThisMachine(), Repetitions: o.repetitions,
		Registry: "distribution v3 as bin/registry " + version.Version +
			" embeds it, without our HTTP front; file system storage, plain HTTP",
		Set: setSummary{len(set.images), len(set.blobs), set.bytes, o.seed},
	}
	for _, t := range found {
		r.Tools = append(r.Tools, toolSummary{t.name, t.version, t.about})
	}
	return r
}

func (r *report) add(tool string, s sample) {
	for _, m := range r.Results {
		if m.Tool == tool && m.Operation == s.Operation {
			m.Samples = append(m.Samples, s)
			return
		}
	}
	r.Results = append(r.Results, &measurement{tool, s.Operation, []sample{s}})
}

// write writes both files to dir.
func (r *report) write(dir string) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := r.markdown(&text); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "RESULTS.json"), append(raw, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "RESULTS.md"), text.Bytes(), 0o644)
}

// markdown renders a table for each operation.
func (r *report) markdown(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Image operations\n\nWritten by `make bench-images`, %s.\n\n", r.Date.Format(time.RFC3339))
	fmt.Fprintf(&b, "%d images, %d blobs, %.2f GB. %d repetitions. Values are medians (minimum–maximum).\n",
		r.Set.Images, r.Set.Blobs, float64(r.Set.Bytes)/1e9, r.Repetitions)
	fmt.Fprintf(&b, "Client and registry run on one machine and use loopback: %s.\n", r.Machine)
	fmt.Fprintf(&b, "Registry: %s.\n\n", r.Registry)
	b.WriteString("| tool | version | how |\n|---|---|---|\n")
	for _, t := range r.Tools {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", t.Name, t.Version, t.About)
	}
	b.WriteString("\nMB sent and received are counted on the sockets and include HTTP headers. Peak memory is that of " +
		"the largest process, CPU time the sum of all.\n")
	for _, o := range operations {
		var rows []*measurement
		for _, t := range r.Tools {
			for _, m := range r.Results {
				if m.Operation == o.name && m.Tool == t.Name {
					rows = append(rows, m)
				}
			}
		}
		if len(rows) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s%s\n\n%s\n\n", strings.ToUpper(o.name[:1]), o.name[1:], o.about)
		b.WriteString("| tool | seconds | MB sent | MB received | requests | connections | client: peak MiB | CPU s | " +
			"registry: peak MiB | CPU s |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n")
		for _, m := range rows {
			seconds := m.values(func(s sample) float64 { return s.Seconds })
			median := func(of func(sample) float64) float64 { return results.Median(m.values(of)) }
			fmt.Fprintf(&b, "| %s | **%.2f** (%.2f–%.2f) | %.1f | %.1f | %.0f | %.0f | %.0f | %.2f | %.0f | %.2f |\n", m.Tool,
				results.Median(seconds), seconds[0], seconds[len(seconds)-1],
				median(func(s sample) float64 { return float64(s.Received) / 1e6 }),
				median(func(s sample) float64 { return float64(s.Sent) / 1e6 }),
				median(sample.requests), median(func(s sample) float64 { return float64(s.Connections) }),
				median(func(s sample) float64 { return float64(s.ClientPeak) / (1 << 20) }),
				median(func(s sample) float64 { return s.ClientCPU }),
				median(func(s sample) float64 { return float64(s.RegistryPeak) / (1 << 20) }),
				median(func(s sample) float64 { return s.CPU }))
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// requests returns the number of requests with any method.
func (s sample) requests() float64 {
	var all int64
	for _, n := range s.Requests {
		all += n
	}
	return float64(all)
}

// values returns one value of each sample, sorted.
func (m *measurement) values(of func(sample) float64) []float64 {
	values := make([]float64, len(m.Samples))
	for n, s := range m.Samples {
		values[n] = of(s)
	}
	slices.Sort(values)
	return values
}
