// Package exitcode names the exit codes that the project's programs share, which
// Jobs and init-hook read.
package exitcode

const (
	// Failed is that of a command that ran and failed. Another try may succeed.
	Failed = 1
	// Refused is that of a command that did nothing, because flags, configuration, the
	// cluster or the node do not allow it. Another try meets the same: the chart's Jobs
	// are not tried again then. It is not 2, with which the Go runtime itself ends a
	// program that panics, and one that is process 1 of its container and is told to end
	// before it listens to signals.
	Refused = 3
)
