package meter

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// clocked is a meter whose time the test sets.
func clocked(terminal bool, width int) (*Meter, *bytes.Buffer, *time.Time) {
	var out bytes.Buffer
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &Meter{
		w:        &out,
		terminal: terminal,
		width:    func() int { return width },
		now:      func() time.Time { return now },
	}, &out, &now
}

func TestMeterInALog(t *testing.T) {
	m, out, now := clocked(false, 0)
	p := images.Progress{Image: "a:1", Images: 2, Total: 105e6}
	m.Update(p)
	p.Skipped = 20e6
	for range 25 { // a second each
		*now = now.Add(time.Second)
		p.Done++
		m.Update(p)
	}
	*now = now.Add(5 * time.Second)
	p.Done = 30e6
	m.Update(p)
	fmt.Fprintln(m, "a log line")
	m.Done(images.Result{Reference: "reg:5000/library/a:1", BytesSent: 80e6, BytesSkipped: 20e6,
		Duration: 42 * time.Second, Digest: "sha256:abc"})
	p.Image, p.ImagesDone, p.Done = "b:1", 1, 80e6
	*now = now.Add(15 * time.Second)
	m.Update(p)
	m.Done(images.Result{Reference: "reg:5000/library/b:1", BytesReceived: 7, BytesSent: 5,
		Duration: 120 * time.Millisecond, Digest: "sha256:def",
		Omitted: []ocispec.Platform{{OS: "linux", Architecture: "arm64"}, {OS: "linux", Architecture: "arm", Variant: "v7"}}})
	m.Done(images.Result{Reference: "reg:5000/library/c:1", Digest: "sha256:e3b"})
	m.End()
	want := []string{
		"2 images, 105.0 MB",
		"0 of 2 images, 20.0 MB of 105.0 MB, 1 B/s, 20.0 MB already there",
		"0 of 2 images, 20.0 MB of 105.0 MB, 1 B/s, 20.0 MB already there",
		"0 of 2 images, 50.0 MB of 105.0 MB, 3.0 MB/s, 18s left, 20.0 MB already there",
		"a log line",
		"reg:5000/library/a:1: 80.0 MB sent, 20.0 MB already there, 42.0 s, sha256:abc",
		"1 of 2 images, 100.0 MB of 105.0 MB, 3.3 MB/s, 2s left, 20.0 MB already there",
		"reg:5000/library/b:1: 7 B received, 5 B sent, 0.1 s, sha256:def",
		"  without linux/arm64, linux/arm/v7, which the source does not hold",
		"reg:5000/library/c:1: 0 B, 0.0 s, sha256:e3b",
		"3 images: 7 B received, 80.0 MB sent, 20.0 MB already there, 45.0 s",
		"",
	}
	if diff := cmp.Diff(want, strings.Split(out.String(), "\n")); diff != "" {
		t.Error(diff)
	}
}

func TestMeterOnATerminal(t *testing.T) {
	m, out, now := clocked(true, 120)
	p := images.Progress{Images: 1, Total: 240e6}
	m.Update(p)
	*now = now.Add(time.Second)
	p.Image, p.Done, p.Skipped = "a:1", 60e6, 120e6
	m.Update(p)
	p.Done = 61e6
	m.Update(p) // too soon to be seen
	fmt.Fprintln(m, "a log line")
	p.Done = 62e6
	m.Update(p) // at once: there is no bar below the log line
	*now = now.Add(time.Second)
	p.Done, p.ImagesDone = 120e6, 1
	m.Update(p)
	m.Done(images.Result{Reference: "reg/a:1", BytesSent: 120e6, BytesSkipped: 120e6, Duration: 2 * time.Second,
		Digest: "sha256:abc"})
	m.End()
	const erase = "\r\x1b[K"
	want := "0/1 [                    ] 0 B of 240.0 MB" + erase +
		"0/1 [----------=====     ] 180.0 MB of 240.0 MB, 60.0 MB/s, 1s left, 120.0 MB already there  a:1" + erase +
		"a log line\n" +
		"0/1 [----------=====     ] 182.0 MB of 240.0 MB, 60.0 MB/s, 1s left, 120.0 MB already there  a:1" + erase +
		"1/1 [----------==========] 240.0 MB of 240.0 MB, 60.0 MB/s, 0s left, 120.0 MB already there  a:1" + erase +
		"reg/a:1: 120.0 MB sent, 120.0 MB already there, 2.0 s, sha256:abc\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// What counts most is left of what counts less, and fits into 80 columns.
func TestMeterStaysOnOneLine(t *testing.T) {
	p := images.Progress{Image: strings.Repeat("very/", 30) + "long:1", Images: 200, ImagesDone: 123, Total: 1234e9,
		Done: 100e9, Skipped: 500e9}
	for width, want := range map[int]string{
		0: "", 1: "", 2: "", 3: "1…",
		20: "123/200 [--------=…",
		80: "123/200 [--------=           ] 600.0 GB of 1.2 TB, 100.0 MB/s, 1h45m40s left, …",
		81: "123/200 [--------=           ] 600.0 GB of 1.2 TB, 100.0 MB/s, 1h45m40s left, 5…",
	} {
		m, out, _ := clocked(true, width)
		m.rate = 100e6
		m.Update(p)
		if got := out.String(); got != want {
			t.Errorf("in a terminal of %d columns:\n%q, want\n%q", width, got, want)
		}
	}
}

func TestMeterHidesUnknownTimeLeft(t *testing.T) {
	m, _, _ := clocked(true, 80)
	m.rate = 1
	if got, want := m.figures(images.Progress{Total: 9e18}), "0 B of 9.0 EB, 1 B/s"; got != want {
		t.Errorf("figures are %q, want %q", got, want)
	}
	if got, want := m.bar(images.Progress{Images: 1, Total: 9e18, Skipped: 9e18},
		80), "0/1 [--------------------] 9.0 EB of 9.0 EB, 1 B/s, 0s left, 9.0 EB already the…"; got != want {
		t.Errorf("bar is %q, want %q", got, want)
	}
	if got, want := m.bar(images.Progress{}, 80), "0/0 [--------------------] 0 B of 0 B, 1 B/s, 0s left"; got != want {
		t.Errorf("bar of nothing is %q, want %q", got, want)
	}
}

func TestMeterDetectsTerminals(t *testing.T) {
	f := require.Value(os.Create(filepath.Join(t.TempDir(), "log")))(t)
	defer f.Close()
	if New(f).terminal || New(&bytes.Buffer{}).terminal {
		t.Error("a file is taken for a terminal")
	}
}
