package results

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestReadReturnsWhatWasWritten(t *testing.T) {
	dir := t.TempDir()
	r := &Report{Date: time.Unix(1.7e9, 0).UTC(), Machine: Machine{Cores: 1, Busy: 0.03}, Forced: true, Seed: 7, How: "how",
		Subjects: []Subject{{Name: "ours", Version: "1"}, {Name: "theirs"}}}
	r.Add("a table", "ours", "speed", "MB/s", 3)
	r.Add("a table", "theirs", "speed", "MB/s", 1)
	r.Add("a table", "ours", "speed", "MB/s", 1.5)
	require.NoError(t, r.Save(dir, io.Discard))
	got := require.Value(Read(dir))(t)
	if diff := cmp.Diff(r, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]float64{3, 1.5}, got.Find("a table", "ours", "speed").Runs); diff != "" {
		t.Error(diff)
	}
	if _, err := Read(t.TempDir()); err == nil {
		t.Error("no error without a report")
	}
}

func TestSpread(t *testing.T) {
	for _, tt := range []struct {
		runs                     []float64
		median, minimum, maximum float64
	}{
		{nil, 0, 0, 0},
		{[]float64{1}, 1, 1, 1},
		{[]float64{3, 1}, 2, 1, 3},
		{[]float64{9, 1, 2}, 2, 1, 9},
	} {
		if median, minimum, maximum := (&Measure{Runs: tt.runs}).Spread(); median != tt.median ||
			minimum != tt.minimum || maximum != tt.maximum {
			t.Errorf("of %v: %v (%v–%v)", tt.runs, median, minimum, maximum)
		}
	}
	if median, _, _ := (*Measure)(nil).Spread(); median != 0 {
		t.Error("the median without a measure is", median)
	}
}

func TestThisMachine(t *testing.T) {
	if m := ThisMachine(); m.Cores < 1 || m.Go == "" {
		t.Errorf("%+v", m)
	}
}

func TestSavePrintsMediansWithoutDirectory(t *testing.T) {
	r, out := new(Report), new(strings.Builder)
	r.Add("a table", "ours", "speed", "MB/s", 3)
	r.Add("a table", "ours", "speed", "MB/s", 5)
	if err := r.Save("", out); err != nil || strings.Join(strings.Fields(out.String()), " ") !=
		"a table ours speed 4 (3–5) MB/s" {
		t.Errorf("%q, %v", out, err)
	}
}
