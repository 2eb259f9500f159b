package noderuntime

import (
	"bytes"
	"fmt"
	"strings"
)

// A tomlWriter writes tables in the given order, which matters to containerd.
type tomlWriter struct{ bytes.Buffer }

func (t *tomlWriter) line(format string, args ...any) { fmt.Fprintf(t, format+"\n", args...) }

func (t *tomlWriter) table(header string) {
	if t.Len() > 1 { // the first line is empty: the mark is written above it
		t.line("")
	}
	t.line("%s", header)
}

// quote returns s as a basic string of TOML.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
