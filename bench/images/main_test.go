package main

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// tiny is the scale of sets for tests.
const tiny = 0.0005

// TestMain runs the benchmark's child processes, which are the test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{registryMode, floorPushMode, floorPullMode}, os.Args[1]) {
		main()
		return
	}
	os.Exit(m.Run())
}

var (
	_ io.ReaderFrom = (*countingConn)(nil) // sendfile
	_ io.WriterTo   = (*countingConn)(nil)
)

// memory returns a directory in memory, if possible, because a registry waits for the disk at every
// request.
func memory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "bench-images-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func newSet(t *testing.T, seed uint64) *imageSet {
	t.Helper()
	set, err := makeSet(memory(t), seed, tiny)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestSet(t *testing.T) {
	one, same, other := newSet(t, 1), newSet(t, 1), newSet(t, 2)
	equal := func(a, b ocispec.Descriptor) bool { return a.Digest == b.Digest && a.Size == b.Size }
	if !slices.EqualFunc(one.blobs, same.blobs, equal) {
		t.Error("equal seeds give different sets")
	}
	if slices.EqualFunc(one.blobs, other.blobs, equal) {
		t.Error("different seeds give equal sets")
	}
	layers := families * (len(baseLayers) + members*len(ownLayers))
	if got, want := len(one.blobs), layers+2*families*members; got != want || want != 330 {
		t.Errorf("%d blobs, want %d", got, want)
	}
	if err := checkPulled(one.layout, one, true); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{one.tagged, one.images[0].single} {
		if err := checkPulled(dir, one, true); err != nil {
			t.Errorf("the layout in %s: %v", dir, err)
		}
	}
	var sum, scales float64
	for _, scale := range familyScales {
		scales += scale
	}
	for _, size := range baseLayers {
		sum += size
	}
	for _, size := range ownLayers {
		sum += members * size
	}
	if got := sum * scales / 1e9; math.Abs(got-1.48) > 0.01 {
		t.Errorf("a full set has %.2f GB", got)
	}
}

// The floor is the only tool that needs no installation.
func TestBench(t *testing.T) {
	dir, results := memory(t), t.TempDir()
	args := []string{"-n", "1", "-scale", "0.0005", "-tools", "floor", "-dir", dir, "-write", results}
	if err := bench(context.Background(), args, io.Discard); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	raw, err := os.ReadFile(filepath.Join(results, "RESULTS.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if got.Set.Blobs != 330 || got.Set.Bytes == 0 || got.Machine.Cores == 0 || got.Machine.Kernel == "" ||
		got.Machine.Memory == 0 {
		t.Errorf("reported %+v", got)
	}
	measured := map[string]*measurement{}
	for _, m := range got.Results {
		measured[m.Operation] = m
	}
	if len(measured) != 4 {
		t.Fatalf("%d operations were measured: %v", len(measured), measured)
	}
	blobs := int64(got.Set.Blobs - got.Set.Images)
	for operation, want := range map[string]struct {
		requests int64
		sent     bool // to the registry
	}{
		coldPush: {2*blobs + int64(got.Set.Images), true},
		coldPull: {int64(got.Set.Blobs), false},
	} {
		m := measured[operation]
		if m == nil || len(m.Samples) != 1 {
			t.Fatalf("%s: %+v", operation, m)
		}
		for _, s := range m.Samples {
			if int64(s.requests()) != want.requests {
				t.Errorf("%s: requests %v, want %d", operation, s.Requests, want.requests)
			}
			payload, overhead := s.Sent, s.Received
			if want.sent {
				payload, overhead = overhead, payload
			}
			// Each request adds a few hundred bytes of headers.
			if payload < got.Set.Bytes || payload > got.Set.Bytes+want.requests*1000 ||
				overhead == 0 || overhead > want.requests*1000 {
				t.Errorf("%s: received %d, sent %d, of a set of %d bytes", operation, s.Received, s.Sent, got.Set.Bytes)
			}
			if s.Seconds <= 0 || s.ClientCPU <= 0 || s.CPU <= 0 || s.ClientPeak == 0 || s.RegistryPeak == 0 ||
				s.Connections == 0 || s.Connections > floorConnections {
				t.Errorf("%s: %+v", operation, s)
			}
		}
	}
	table, err := os.ReadFile(filepath.Join(results, "RESULTS.md"))
	if err != nil || strings.Count(string(table), "\n| floor |") != 1+len(measured) {
		t.Errorf("the table: %v\n%s", err, table)
	}
}

func TestMissingContentIsAnError(t *testing.T) {
	ctx, set := context.Background(), newSet(t, 1)
	registry, err := startRegistry(ctx, memory(t))
	if err != nil {
		t.Fatal(err)
	}
	defer registry.stop()
	if err := checkPushed(ctx, registry.host, tool{}, set); err == nil ||
		!strings.Contains(err.Error(), "not found") {
		t.Errorf("an empty registry passes the check: %v", err)
	}
	if _, err := measureOperation(ctx, registry, [][]string{{"false"}}, t.TempDir()); err == nil {
		t.Error("no error for a failing command")
	}
	blob := set.path(set.blobs[0].Digest)
	content, err := os.ReadFile(blob)
	if err != nil {
		t.Fatal(err)
	}
	for description, damage := range map[string]func() error{
		"a blob with other content": func() error { return os.WriteFile(blob, make([]byte, len(content)), 0o600) },
		"a truncated blob":          func() error { return os.Truncate(blob, 1) },
		"no blob":                   func() error { return os.Remove(blob) },
	} {
		t.Run(description, func(t *testing.T) {
			if err := os.WriteFile(blob, content, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := checkPulled(set.layout, set, true); err != nil {
				t.Fatal(err)
			}
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			if err := checkPulled(set.layout, set, true); err == nil {
				t.Error("the damaged output passes the check")
			}
		})
	}
}

func TestBadInput(t *testing.T) {
	for description, tt := range map[string]struct {
		args []string
		want string
	}{
		"no repetition":    {[]string{"-n", "0"}, "-n"},
		"no size":          {[]string{"-scale", "0"}, "-scale"},
		"an argument":      {[]string{"crane"}, "positional arguments"},
		"too little space": {[]string{"-tools", "floor", "-scale", "1e9"}, "are needed"},
		"no directory":     {[]string{"-tools", "floor", "-dir", filepath.Join(t.TempDir(), "none")}, "none"},
		"an unknown tool":  {[]string{"-tools", "docker", "-scale", "0.0005"}, "no tool"},
		"a missing tool": {[]string{"-tools", "init-hook", "-init-hook", filepath.Join(t.TempDir(), "none"), "-scale",
			"0.0005"}, "no tool"},
	} {
		t.Run(description, func(t *testing.T) {
			if err := bench(context.Background(), tt.args, io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("bench(%q) = %v, want %q in it", tt.args, err, tt.want)
			}
		})
	}
}

func TestSince(t *testing.T) {
	before := counters{Received: 1, Sent: 2, Connections: 3, Requests: map[string]int64{"GET": 4, "PUT": 1}, CPU: 1}
	after := counters{Received: 11, Sent: 22, Connections: 33, Requests: map[string]int64{"GET": 5, "PUT": 1}, CPU: 1.5}
	got := after.since(before)
	if got.Received != 10 || got.Sent != 20 || got.Connections != 30 || len(got.Requests) != 1 ||
		got.Requests["GET"] != 1 || got.CPU != 0.5 {
		t.Errorf("since: %+v", got)
	}
	r := newReport(options{repetitions: 1}, &imageSet{}, nil, time.Unix(0, 0))
	if r.Date.Year() != 1970 {
		t.Errorf("dated %s", r.Date)
	}
}
