// Package exitcode defines the exit codes of the project's programs, which Jobs and init-hook read,
// and the error that selects one of them.
package exitcode

import (
	"errors"
	"fmt"
)

const (
	// Failed means that the command ran and failed or ran out of time, so that a retry may succeed.
	Failed = 1
	// Refused means that the command did nothing, because flags, configuration, the cluster or the
	// node do not allow it. A retry would fail in the same way, so the chart's Jobs do not retry. It
	// is not 2: the Go runtime exits with that after a panic, and when process 1 of a container gets a
	// signal before it handles signals.
	Refused = 3
	// Found means that the command did its work and found what it looks for: problems, damage, missing images.
	Found = 4
)

// Refusal is an error that a retry would hit again. Commands then exit with Refused.
type Refusal struct {
	Err error
	// Usage means that the command line is wrong, which the command's help explains.
	Usage bool
}

func (e *Refusal) Error() string { return e.Err.Error() }
func (e *Refusal) Unwrap() error { return e.Err }

// Refuse returns a Refusal.
func Refuse(format string, args ...any) error { return &Refusal{Err: fmt.Errorf(format, args...)} }

// Usage returns a Refusal of a command line.
func Usage(err error) error { return &Refusal{Err: err, Usage: true} }

// IsUsage reports whether an error is about the command line.
func IsUsage(err error) bool {
	refusal, refused := errors.AsType[*Refusal](err)
	return refused && refusal.Usage
}

// IsRefusal reports whether an error must not be retried.
func IsRefusal(err error) bool {
	_, refused := errors.AsType[*Refusal](err)
	return refused
}
