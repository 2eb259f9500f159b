package noderuntime

import (
	"fmt"
	"strings"
)

// Problems are all that is wrong with a configuration, each a line that begins with its place and ends with what to do. It is
// the error of [Build].
type Problems []string

// Error has one problem per line.
func (p Problems) Error() string { return strings.Join(p, "\n") }

// findings collects what is found, in order; what is found twice is kept once.
type findings struct{ problems, warnings []string }

func (f *findings) problem(format string, args ...any) { add(&f.problems, format, args) }

func (f *findings) warn(format string, args ...any) { add(&f.warnings, format, args) }

func add(to *[]string, format string, args []any) {
	text := fmt.Sprintf(format, args...)
	for _, known := range *to {
		if known == text {
			return
		}
	}
	*to = append(*to, text)
}

// err is nil where there are no problems.
func (f *findings) err() error {
	if len(f.problems) == 0 {
		return nil
	}
	return Problems(f.problems)
}
