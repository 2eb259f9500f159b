package logging

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable replaces what could control a terminal by escapes: control characters except tabs and line ends, characters
// that reverse text, and bytes that are not UTF-8. Names and messages come from registries and archives. JSON remains
// the same JSON.
func Printable(text string) string {
	if !strings.ContainsFunc(text, controls) && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case controls(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(text[:n])
		}
		text = text[n:]
	}
	return b.String()
}

func controls(r rune) bool {
	return r != '\t' && r != '\n' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
}

// PrintableWriter returns a writer of what [Printable] returns. Writes must not end within a character.
func PrintableWriter(w io.Writer) io.Writer { return printableWriter{w} }

type printableWriter struct{ io.Writer }

func (p printableWriter) Write(text []byte) (int, error) {
	_, err := io.WriteString(p.Writer, Printable(string(text)))
	return len(text), err
}
