package images

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
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
	m.Update(Progress{Image: "a:1", Total: 100e6})
	for range 25 { // a second each
		*now = now.Add(time.Second)
		m.Update(Progress{Image: "a:1", Total: 100e6, Sent: m.last.Sent + 1, Skipped: 20e6})
	}
	*now = now.Add(5 * time.Second)
	m.Update(Progress{Image: "a:1", Total: 100e6, Sent: 30e6, Skipped: 20e6})
	m.Done(Result{Reference: "reg:5000/library/a:1", BytesSent: 80e6, BytesSkipped: 20e6, Duration: 42 * time.Second, Digest: "sha256:abc"})
	m.Update(Progress{Image: "b:1", Total: 5})
	m.Done(Result{Reference: "reg:5000/library/b:1", BytesSent: 5, Duration: 120 * time.Millisecond, Digest: "sha256:def", Omitted: []ocispec.Platform{{OS: "linux", Architecture: "arm64"}}})
	want := []string{
		"a:1: 100.0 MB",
		"a:1: 20.0 MB of 100.0 MB (20.0 MB already there)",
		"a:1: 20.0 MB of 100.0 MB (20.0 MB already there)",
		"a:1: 50.0 MB of 100.0 MB (20.0 MB already there), 3.0 MB/s, 17s left",
		"reg:5000/library/a:1: 80.0 MB sent, 20.0 MB already there, 42.0 s, sha256:abc",
		"b:1: 5 B",
		"reg:5000/library/b:1: 5 B sent, 0.1 s, sha256:def",
		"  without linux/arm64, which the source does not hold",
		"",
	}
	if diff := cmp.Diff(want, strings.Split(out.String(), "\n")); diff != "" {
		t.Error(diff)
	}
}

func TestMeterOnATerminal(t *testing.T) {
	m, out, now := clocked(true, 120)
	m.Update(Progress{Image: "a:1", Total: 240e6})
	*now = now.Add(time.Second)
	m.Update(Progress{Image: "a:1", Total: 240e6, Sent: 60e6, Skipped: 120e6})
	m.Update(Progress{Image: "a:1", Total: 240e6, Sent: 61e6, Skipped: 120e6}) // too soon to be seen
	m.Interrupt()
	m.Interrupt()
	*now = now.Add(time.Second)
	m.Update(Progress{Image: "a:1", Total: 240e6, Sent: 120e6, Skipped: 120e6})
	m.Done(Result{Reference: "reg/a:1", BytesSent: 120e6, BytesSkipped: 120e6, Duration: 2 * time.Second, Digest: "sha256:abc"})
	const erase = "\r\x1b[K"
	want := "a:1 [                        ] 0 B of 240.0 MB" + erase +
		"a:1 [------------======      ] 180.0 MB of 240.0 MB (120.0 MB already there), 60.0 MB/s, 1s left" + erase +
		"a:1 [------------============] 240.0 MB of 240.0 MB (120.0 MB already there), 60.0 MB/s, 0s left" + erase +
		"reg/a:1: 120.0 MB sent, 120.0 MB already there, 2.0 s, sha256:abc\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestMeterStaysOnOneLine(t *testing.T) {
	for _, width := range []int{0, 1, 7, 20, 40, 80} {
		m, out, now := clocked(true, width)
		m.Update(Progress{Image: strings.Repeat("very/", 30) + "long:1", Total: 0})
		*now = now.Add(time.Second)
		if n := len([]rune(out.String())); n > max(width-1, 0) {
			t.Errorf("%d characters in a terminal of %d", n, width)
		}
	}
}

func TestMeterTellsTerminalsFromFiles(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if m := NewMeter(f); m.terminal || m.width() != 80 {
		t.Error("a file is taken for a terminal")
	}
}

func TestFormatBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0:                   "0 B",
		999:                 "999 B",
		1000:                "1.0 kB",
		999_949:             "999.9 kB",
		999_950:             "1.0 MB",
		12_345_678:          "12.3 MB",
		2 << 30:             "2.1 GB",
		9223372036854775807: "9.2 EB",
	} {
		if got := FormatBytes(n); got != want {
			t.Errorf("FormatBytes(%d) = %s, want %s", n, got, want)
		}
	}
}
