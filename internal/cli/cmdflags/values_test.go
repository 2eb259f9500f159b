package cmdflags

import (
	"testing"
	"time"
)

func TestSizesAreReadAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "17": 17, "20GB": 20e9, "20 GB": 20e9, "500MiB": 500 << 20, "1.5TB": 15e11, "2k": 2000, "2kb": 2000,
		"3Gi": 3 << 30, "8b": 8, ".5kB": 500,
	} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "GB", "-1", "+1", "1e3", "1,5GB", "1.2.3", "20XB", "20GBs", "0x10", "NaN", "9EB",
		"8388608TiB", "99999999999999999999"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q is taken for %d", text, got)
		}
	}
}

func TestAgesAreReadAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]time.Duration{"720h": 720 * time.Hour, "30d": 720 * time.Hour,
		"90m": 90 * time.Minute, "1h30m": 90 * time.Minute} {
		if got, err := parseAge(text); err != nil || got != want {
			t.Errorf("%q is %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "0s", "-1h", "30", "1w", "d", "0d", "-1d", "1.5d", "99999d", "1d12h"} {
		if got, err := parseAge(text); err == nil {
			t.Errorf("%q is taken for %s", text, got)
		}
	}
}
