package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/logging"
)

// silent is an error that the output already explains; it is not printed.
type silent struct{ err error }

func (e *silent) Error() string { return e.err.Error() }

// The formats of --output. A table may be other text for people.
const (
	formatTable = "table"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

// isData reports whether a format of --output is one for programs.
func isData(output string) bool { return output == formatJSON || output == formatYAML }

// render writes a report as data or, with write, as text. If next is not empty, it returns
// an error without a message, for the exit code.
func render[R any](w io.Writer, output string, report R, write func(io.Writer, R) error, next []string) error {
	w = logging.PrintableWriter(w)
	if isData(output) {
		write = func(w io.Writer, report R) error { return printData(w, output, report) }
	}
	if err := write(w, report); err != nil {
		return err
	}
	if len(next) > 0 {
		return &silent{fmt.Errorf("%d problems", len(next))}
	}
	return nil
}

// table aligns columns. Cells may be of any text.
type table struct{ *tabwriter.Writer }

// newTable returns a table with its first row. The caller flushes it.
func newTable(w io.Writer, cells ...string) table {
	t := table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.row(cells...)
	return t
}

// oneCell keeps a text from adding cells or rows.
var oneCell = strings.NewReplacer("\n", `\n`, "\t", `\t`)

func (t table) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = oneCell.Replace(cell)
	}
	fmt.Fprintln(t, strings.Join(cells, "\t")) // Flush returns the error
}

// printData writes a value as JSON or YAML.
func printData(w io.Writer, output string, value any) error {
	if output != formatYAML {
		return printJSON(w, value)
	}
	text, err := yaml.Marshal(value)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

func printJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// printNext writes the next steps, if any.
func printNext(w io.Writer, next []string) {
	if len(next) > 0 {
		fmt.Fprint(w, "\nnext\n")
	}
	for _, sentence := range next {
		fmt.Fprintf(w, "  - %s\n", sentence)
	}
}

// countedBytes formats a number of objects and their size.
func countedBytes(n int, bytes int64) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%s)", n, space.FormatBytes(bytes))
}

// plural formats a number of things, whose plural ends in s.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
