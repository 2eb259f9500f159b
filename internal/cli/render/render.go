// Package render writes what commands report: tables for people, data for programs, and lines of progress. Only it
// knows about terminals; what it writes has no control characters from elsewhere.
package render

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/tabwriter"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/logging"
)

// SilentError is an error that the output already explains; it is not printed.
type SilentError struct {
	Code int // of the exit
	Err  error
}

func (e *SilentError) Error() string { return e.Err.Error() }

// The formats of --output. A table may be other text for people. Some commands have names, one per line.
const (
	FormatTable = "table"
	FormatJSON  = "json"
	FormatYAML  = "yaml"
	FormatName  = "name"
)

// IsData reports whether a format of --output is one for programs.
func IsData(output string) bool { return output == FormatJSON || output == FormatYAML }

// Report writes a report as data of a kind or, with write, as text. If next is not empty, it returns
// a [SilentError] error with [exitcode.Found].
func Report[R any](
	w io.Writer, output string, kind Kind, report R, write func(io.Writer, R) error, next []string,
) error {
	w = logging.PrintableWriter(w)
	if IsData(output) {
		write = func(w io.Writer, report R) error { return Data(w, output, kind, report) }
	}
	if err := write(w, report); err != nil {
		return err
	}
	if len(next) > 0 {
		return &SilentError{exitcode.Found, fmt.Errorf("%d problems", len(next))}
	}
	return nil
}

// Table aligns columns. Cells may be of any text.
type Table struct {
	*tabwriter.Writer
	Short bool // shortens digests
}

// digests matches what a short digest leaves out.
var digests = regexp.MustCompile(`(sha256:[0-9a-f]{12})[0-9a-f]{52}`)

// NewTable returns a table with its first row, if there are cells. The caller flushes it.
func NewTable(w io.Writer, cells ...string) Table {
	t := Table{Writer: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	if len(cells) > 0 {
		t.Row(cells...)
	}
	return t
}

// oneCell keeps a text from adding cells or rows.
var oneCell = strings.NewReplacer("\n", `\n`, "\t", `\t`)

// Row adds a row.
func (t Table) Row(cells ...string) {
	for i, cell := range cells {
		if t.Short {
			cell = digests.ReplaceAllString(cell, "$1…")
		}
		cells[i] = oneCell.Replace(cell)
	}
	fmt.Fprintln(t, strings.Join(cells, "\t")) // Flush returns the error
}

// Names writes names, one per line.
func Names(w io.Writer, names []string) error {
	for _, name := range names {
		if _, err := fmt.Fprintln(w, name); err != nil {
			return err
		}
	}
	return nil
}

// Next writes the next steps, if any.
func Next(w io.Writer, next []string) {
	if len(next) > 0 {
		fmt.Fprint(w, "\nnext\n")
	}
	for _, sentence := range next {
		fmt.Fprintf(w, "  - %s\n", sentence)
	}
}

// CountedBytes formats a number of objects and their size.
func CountedBytes(n int, bytes int64) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%s)", n, space.FormatBytes(bytes))
}

// Plural formats a number of things, whose plural ends in s.
func Plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
