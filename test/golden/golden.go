// Package golden compares what tests get with files below testdata. With -update, tests write these files instead.
package golden

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aymanbagabas/go-udiff"
)

// Update is set by the flag -update.
var Update = flag.Bool("update", false, "write the golden files")

// File compares a text with a whole file.
func File(t testing.TB, path, got string) {
	t.Helper()
	if *Update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: -update writes it", err)
	}
	differ(t, path, string(want), got)
}

// Cases is a file with a section for each case of a table: a line "== name", and what the case gives.
type Cases struct {
	path string
	mu   sync.Mutex
	want map[string]string
	got  map[string]string
}

// Open reads the file testdata/name.golden. At the end of t each section must have been compared, unless -run selects
// subtests.
func Open(t testing.TB, name string) *Cases {
	t.Helper()
	c := &Cases{path: filepath.Join("testdata", name+".golden"), want: map[string]string{}, got: map[string]string{}}
	text, err := os.ReadFile(c.path)
	if err != nil && !*Update {
		t.Fatalf("%v: -update writes it", err)
	}
	for section := range strings.SplitSeq("\n"+string(text), "\n== ") {
		if name, content, ok := strings.Cut(section, "\n"); ok && name != "" {
			c.want[name] = strings.TrimSuffix(content, "\n") + "\n"
		}
	}
	t.Cleanup(func() { c.close(t) })
	return c
}

// Names returns the names of all sections, for a table that is the file itself. There must be some.
func (c *Cases) Names(t testing.TB) []string {
	t.Helper()
	if len(c.want) == 0 {
		t.Fatalf("%s has no sections", c.path)
	}
	return slices.Sorted(maps.Keys(c.want))
}

// serial is what differs in the name of each CA.
var serial = regexp.MustCompile(`SERIALNUMBER=[0-9a-f]+`)

// Check compares what a case gives with its section, but for the serial numbers of CAs. It may be called by several
// goroutines.
func (c *Cases) Check(t testing.TB, name, got string) {
	t.Helper()
	got = serial.ReplaceAllString(strings.TrimRight(got, "\n")+"\n", "SERIALNUMBER=N")
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, again := c.got[name]; again {
		t.Errorf("%s: there are two cases with the name %q", c.path, name)
	}
	c.got[name] = got
	if !*Update {
		differ(t, c.path+", "+name, c.want[name], got)
	}
}

func (c *Cases) close(t testing.TB) {
	selected := strings.Contains(flag.Lookup("test.run").Value.String(), "/")
	if *Update && !selected {
		var text strings.Builder
		for _, name := range slices.Sorted(maps.Keys(c.got)) {
			fmt.Fprintf(&text, "== %s\n%s", name, c.got[name])
		}
		if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(c.path, []byte(text.String()), 0o644); err != nil {
			t.Error(err)
		}
		return
	}
	for name := range c.want {
		if _, compared := c.got[name]; !compared && !selected && !t.Failed() {
			t.Errorf("%s: no case has the name %q; -update removes it", c.path, name)
		}
	}
}

// differ reports differences. It shows the first lines of a long text.
func differ(t testing.TB, path, want, got string) {
	t.Helper()
	if want == got {
		return
	}
	const most = 60
	lines := strings.SplitAfter(udiff.Unified(path, "got", want, got), "\n")
	if more := len(lines) - most; more > 0 {
		lines = append(lines[:most], fmt.Sprintf("... and %d more lines", more))
	}
	t.Errorf("-update accepts it:\n%s", strings.Join(lines, ""))
}
