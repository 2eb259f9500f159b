package space

import (
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	const gigabyte = 1_000_000_000
	for description, tt := range map[string]struct {
		used, limit int64 // in gigabytes
		percent     float64
		available   int64 // in gigabytes
		lacks       map[int64]bool
	}{
		"the size is not known": {0, 0, 0, 0, map[int64]bool{0: false, 1 << 60: false}},
		"half":                  {50, 100, 50, 45, map[int64]bool{0: false, 45 * gigabyte: false, 45*gigabyte + 1: true}},
		"full":                  {95, 100, 95, 0, map[int64]bool{0: true, 1: true}},
		"more than full":        {30, 10, 300, 0, map[int64]bool{0: true}},
	} {
		t.Run(description, func(t *testing.T) {
			u := Usage{tt.used * gigabyte, tt.limit * gigabyte}
			if u.Percent() != tt.percent || u.Available()/gigabyte != tt.available {
				t.Errorf("%v %%, %d bytes available", u.Percent(), u.Available())
			}
			for bytes, want := range tt.lacks {
				if u.Lacks(bytes) != want {
					t.Errorf("%d bytes: lacks %t, want %t", bytes, !want, want)
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

func TestUsageIsDescribed(t *testing.T) {
	got := Usage{Used: 19_200_000_000, Limit: 20_000_000_000}.String()
	if want := "96.0 % of the volume is used, 19.2 GB of 20.0 GB"; got != want {
		t.Errorf("%q, want %q", got, want)
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
