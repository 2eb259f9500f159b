package noderuntime

import (
	"bytes"
	"fmt"
	"strings"
)

// A tomlWriter writes tables in the order that they are given in, which means something to containerd.
type tomlWriter struct{ bytes.Buffer }

func (t *tomlWriter) line(format string, args ...any) { fmt.Fprintf(t, format+"\n", args...) }

func (t *tomlWriter) table(indent, header string) {
	if t.Len() > 1 { // the first line is empty as it is: above it goes the mark
		t.line("")
	}
	t.line("%s%s", indent, header)
}

// quote is a text as TOML's basic string.
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
