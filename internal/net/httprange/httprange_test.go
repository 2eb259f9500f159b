package httprange

import (
	"fmt"
	"testing"
)

func TestParse(t *testing.T) {
	for header, want := range map[string]ContentRange{
		"bytes 0-0/1":     {0, 1, 1},
		"bytes 5-9/*":     {5, 10, -1},
		"bytes 10-19/100": {10, 20, 100},
		fmt.Sprintf("bytes 0-%d/%d", int64(1)<<61, int64(1)<<62): {0, 1<<61 + 1, 1 << 62},
	} {
		got, err := Parse(header)
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %v, %v, want %v", header, got, err, want)
		}
		if got.String() != header {
			t.Errorf("String() = %q, want %q", got, header)
		}
	}
	for _, header := range []string{
		"", "bytes", "bytes ", "bytes */5", "bytes 0-1", "bytes 0-1/", "bytes 1-0/5", "bytes -1/5", "bytes 1-/5",
		"bytes 0x1-2/5",
		"bytes 0-9223372036854775807/5", "bytes 0-18446744073709551615/5", "items 0-1/5", "bytes 0 - 1/5", "bytes +0-1/5",
		"bytes 0-1/x", "bytes 0-1/-1", "bytes 0-1/9223372036854775808",
	} {
		if got, err := Parse(header); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", header, got)
		}
	}
}
