package volume

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestUploadsInProgressKeepTheirSpace(t *testing.T) {
	t.Parallel()
	s := New("", slog.New(slog.DiscardHandler))
	require.NoError(t, s.admit(false, 1<<40), "refused before the volume is measured")
	s.Arrived(0, 1<<40)
	s.usage = space.Usage{Used: 100, Limit: 1000}
	require.NoError(t, s.admit(false, 500))
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
	if used := s.Usage().Used; used != 300 || s.expected != 0 {
		t.Errorf("%d bytes are used, and %d expected", used, s.expected)
	}
	if err := s.admit(false, 650); err != nil {
		t.Error(err)
	}
}

func TestAFullVolumeIsLogged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := New("", slog.New(slog.NewTextHandler(&out, nil)))
	now := time.Now()
	s.now = func() time.Time { return now }
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
		now, s.usage = now.Add(step.after), space.Usage{Used: step.used, Limit: 1000}
		out.Reset()
		s.warn()
		if got := out.String(); step.want == "" && got != "" || !strings.Contains(got, step.want) {
			t.Errorf("%d used: logged %q, want %q", step.used, got, step.want)
		}
		if out.Len() > 0 {
			wantWords(t, out.String(), "level=WARN", "limitBytes=1000", "remedy=")
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
