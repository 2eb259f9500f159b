package space

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	const gigabyte = 1_000_000_000
	volume := func(used, limit int64) *Usage { return &Usage{used * gigabyte, limit * gigabyte} }
	for description, tt := range map[string]struct {
		report    Report
		scope     string // the tightest
		percent   float64
		available int64 // in gigabytes; -1 if unknown
		lacks     map[int64]string
	}{
		"nothing is known": {Report{}, "", 0, -1, map[int64]string{0: "", 1 << 60: ""}},
		"half of the volume": {Report{Volume: volume(50, 100)}, ScopeVolume, 50, 45,
			map[int64]string{0: "", 45 * gigabyte: "", 45*gigabyte + 1: ScopeVolume}},
		"the quota is tighter": {Report{Volume: volume(50, 100), Quota: volume(9, 10)}, ScopeQuota, 90, 0,
			map[int64]string{0: "", gigabyte / 2: "", gigabyte: ScopeQuota}},
		"the volume is tighter": {Report{Volume: volume(90, 100), Quota: volume(1, 10)}, ScopeVolume, 90, 5,
			map[int64]string{0: "", 5 * gigabyte: "", 6 * gigabyte: ScopeVolume}},
		"the fuller limit has more space": {Report{Volume: volume(900, 1000), Quota: volume(1, 10)}, ScopeVolume, 90, 8,
			map[int64]string{9 * gigabyte: ScopeQuota}},
		"full": {Report{Volume: volume(95, 100)}, ScopeVolume, 95, 0,
			map[int64]string{0: ScopeVolume, 1: ScopeVolume}},
		"more than full": {Report{Quota: volume(30, 10)}, ScopeQuota, 300, 0, map[int64]string{0: ScopeQuota}},
		"no limit":       {Report{Volume: volume(0, 0)}, ScopeVolume, 0, 0, nil},
	} {
		t.Run(description, func(t *testing.T) {
			if scope, _ := tt.report.Tightest(); scope != tt.scope || tt.report.Percent() != tt.percent {
				t.Errorf("tightest: %s, %v %%", scope, tt.report.Percent())
			}
			available, ok := tt.report.Available()
			if ok != (tt.available >= 0) || ok && available/gigabyte != tt.available {
				t.Errorf("available: %d, %t", available, ok)
			}
			for bytes, want := range tt.lacks {
				if scope, _ := tt.report.Lacks(bytes); scope != want {
					t.Errorf("%d bytes lack %q, want %q", bytes, scope, want)
				}
			}
		})
	}
}

func TestAvailableDoesNotOverflow(t *testing.T) {
	if got := (Usage{Limit: 1 << 62}).Available(); got < 1<<61 {
		t.Errorf("available of 4 EiB: %d", got)
	}
}

func TestParseQuantity(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "1000": 1000, "1k": 1000, "1Ki": 1024, "50Gi": 50 << 30, "1.5G": 1_500_000_000, "0.5Mi": 1 << 19, "2T": 2e12,
		"": 0, "0": 0, "0.1": 0, "-1": 0, "50GB": 0, "50gi": 0, "1K": 0, "100m": 0, "1e3": 0, " 1": 0, "9Ei": 0, "1.": 0, "10000Pi": 0,
	} {
		got, err := ParseQuantity(text)
		if want > 0 && (err != nil || got != want) || want == 0 && err == nil {
			t.Errorf("%q: %d, %v", text, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "50Gi") {
			t.Errorf("%q: %v does not say what is valid", text, err)
		}
	}
}

func TestDescribe(t *testing.T) {
	got := Describe(ScopeVolume, Usage{Used: 19_200_000_000, Limit: 20_000_000_000})
	if want := "96.0 % of the volume is used, 19.2 GB of 20.0 GB"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if Remedy(ScopeVolume) == Remedy(ScopeQuota) {
		t.Error("the remedy does not depend on the limit")
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
