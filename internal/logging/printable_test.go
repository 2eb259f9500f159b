package logging_test

import (
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/logging"
)

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "",
		"größe\t1 €\n":                      "größe\t1 €\n",
		"\x1b]52;c;ZXZpbA==\x07":            `\u001b]52;c;ZXZpbA==\u0007`,
		"a\rb\x00\x7f\b":                    `a\u000db\u0000\u007f\u0008`,
		"one character CSI \u009b31m":       `one character CSI \u009b31m`,
		"the same in another coding \x9b1m": `the same in another coding \x9b1m`,
		"moc.\u202eexample\u2066":           `moc.\u202eexample\u2066`,
		"replaced \ufffd":                   "replaced \ufffd",
	} {
		if got := logging.Printable(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
