package noderuntime

import (
	"fmt"
	"slices"
	"strings"
)

// Problems lists everything that is invalid in a configuration. Each line starts with the place and
// ends with what to do. It is the error of [Build].
type Problems []string

// Error returns one problem per line.
func (p Problems) Error() string { return strings.Join(p, "\n") }

// findings collects problems and warnings in order, without duplicates.
type findings struct{ problems, warnings []string }

func (f *findings) problem(format string, args ...any) { add(&f.problems, format, args) }

func (f *findings) warn(format string, args ...any) { add(&f.warnings, format, args) }

func add(to *[]string, format string, args []any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(*to, text) {
		*to = append(*to, text)
	}
}

// err returns nil if there are no problems.
func (f *findings) err() error {
	if len(f.problems) == 0 {
		return nil
	}
	return Problems(f.problems)
}
