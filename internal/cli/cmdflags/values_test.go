package cmdflags

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
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

func TestDurationsAreReadAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]time.Duration{"720h": 720 * time.Hour, "30d": 720 * time.Hour,
		"90m": 90 * time.Minute, "1h30m": 90 * time.Minute, "1ns": 1} {
		var got time.Duration
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		AddDuration(flags, &got, "age", 1, time.Minute, "")
		if err := flags.Set("age", text); err != nil || got != want {
			t.Errorf("%q is %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "0s", "0d", "-1h", "30", "1w", "d", "-1d", "1.5d", "99999d", "1d12h"} {
		got := time.Hour
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		AddDuration(flags, &got, "age", 1, time.Hour, "")
		if err := flags.Set("age", text); err == nil || got != time.Hour {
			t.Errorf("%q is taken for %s", text, got)
		}
	}
	for want, d := range map[string]time.Duration{"10m": 10 * time.Minute, "24h": 24 * time.Hour, "1h30m": 90 * time.Minute,
		"10s": 10 * time.Second, "1m30s": 90 * time.Second} {
		if got := formatDuration(d); got != want {
			t.Errorf("%s is written as %q", d, got)
		}
	}
}
