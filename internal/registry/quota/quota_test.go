package quota

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
)

func TestUploadsInProgressKeepTheirSpace(t *testing.T) {
	t.Parallel()
	s := New("", 1000, slog.New(slog.DiscardHandler))
	if err := s.admit(false, 1<<40); err != nil {
		t.Fatalf("refused before the content is measured: %v", err)
	}
	s.Arrived(0, 1<<40)
	s.measured, s.content = true, 100
	if err := s.admit(false, 500); err != nil {
		t.Fatal(err)
	}
	err := s.admit(false, 400)
	if err == nil {
		t.Fatal("two uploads got the same space")
	}
	wantWords(t, err.Error(), "400 B do not fit", "uploads in progress need 500 B")
	if err := s.admit(false, 0); err != nil {
		t.Errorf("a request without a body: %v", err)
	}
	if err := s.admit(true, 400); err != nil {
		t.Errorf("the project's own: %v", err)
	}
	s.Arrived(0, 400)
	// 200 bytes come, and the client disconnects.
	body := &Body{ReadCloser: io.NopCloser(strings.NewReader(strings.Repeat("x", 200))), space: s, expected: 500}
	if _, err := io.Copy(io.Discard, body); err != nil {
		t.Fatal(err)
	}
	body.finish()
	body.finish()
	if s.content != 300 || s.expected != 0 {
		t.Errorf("%d bytes are used, and %d expected", s.content, s.expected)
	}
	if err := s.admit(false, 650); err != nil {
		t.Error(err)
	}
}

// walkingDriver calls during in the middle of a walk.
type walkingDriver struct {
	storagedriver.StorageDriver
	during func()
}

func (d walkingDriver) Walk(_ context.Context, _ string, f storagedriver.WalkFn,
	_ ...func(*storagedriver.WalkOptions)) error {
	d.during()
	return f(storagedriver.FileInfoInternal{FileInfoFields: storagedriver.FileInfoFields{Path: "/a", Size: 1000}})
}

func TestMeasuringCountsWhatChangesMeanwhile(t *testing.T) {
	t.Parallel()
	s := New("", 10_000, slog.New(slog.DiscardHandler))
	for description, tt := range map[string]struct {
		during func()
		want   int64
		again  bool
	}{
		"nothing":                       {func() {}, 1000, false},
		"content was added":             {func() { s.Arrived(500, 0) }, 1500, false},
		"content was added and removed": {func() { s.Arrived(500, 0); s.Removed(200) }, 1500, true},
	} {
		again, err := s.measureContent(t.Context(), walkingDriver{during: tt.during})
		if err != nil || again != tt.again || s.content != tt.want {
			t.Errorf("%s: %d bytes, again %t, %v", description, s.content, again, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.measureContent(ctx, walkingDriver{during: func() {}}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestFullStorageIsLogged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := New("", 1000, slog.New(slog.NewTextHandler(&out, nil)))
	now := time.Now()
	s.now = func() time.Time { return now }
	s.measured = true
	for _, step := range []struct {
		after time.Duration
		used  int64
		want  string
	}{
		{0, 849, ""},
		{0, 850, "nearly full"},
		{time.Minute, 900, ""},
		{0, 840, ""}, // not enough to warn again
		{0, 860, ""},
		{0, 950, "pushes are refused"},
		{0, 949, ""},
		{0, 951, ""},
		{time.Hour, 951, "pushes are refused"},
		{0, 700, ""},
		{0, 850, "nearly full"},
		{time.Hour, 850, "nearly full"},
	} {
		now, s.content = now.Add(step.after), step.used
		out.Reset()
		s.warn()
		if got := out.String(); step.want == "" && got != "" || !strings.Contains(got, step.want) {
			t.Errorf("%d used: logged %q, want %q", step.used, got, step.want)
		}
		if out.Len() > 0 {
			wantWords(t, out.String(), "level=WARN", "limit=quota", "limitBytes=1000", "remedy=")
		}
	}
}

func wantWords(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q lacks %q", text, word)
		}
	}
}
