package cluster

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRaiseInotify(t *testing.T) {
	for before, after := range map[string]string{"128\n": "1024", "1024\n": "1024\n", "65536\n": "65536\n"} {
		file := filepath.Join(t.TempDir(), "limit")
		if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := raiseInotify(file); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != after {
			t.Errorf("%q became %q, want %q (%v)", before, got, after, err)
		}
	}
	if err := raiseInotify(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no error without the file")
	}
}
