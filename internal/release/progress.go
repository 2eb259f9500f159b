package release

import (
	"log/slog"
	"time"
)

// Progress observes a run, for people or for programs.
type Progress interface {
	// Ended is called at the end of each step, and of the phase.
	Ended(Ended)
	// Waiting is called when a wait begins, and when what is missing changes. For programs there may be more attributes.
	Waiting(what, missing string, more ...any)
	// Warn is called for each finding of the preflight that blocks nothing.
	Warn(check, object, cause, remedy string)
}

// Ended is a step that has ended, or a phase if Step is empty.
type Ended struct {
	Phase, Step string
	// Did says in words what the step did, and Why what it is for.
	Did, Why string
	Duration time.Duration
	// Err is why a step failed.
	Err error
}

// Logged is a Progress of log records. Their messages and keys are for programs, so they do not change.
type Logged struct{ Log *slog.Logger }

// Ended implements Progress.
func (l Logged) Ended(e Ended) {
	took := e.Duration.String()
	switch {
	case e.Step == "":
		l.Log.Info("phase done", "phase", e.Phase, "duration", took)
	case e.Err != nil:
		l.Log.Error("step failed", "phase", e.Phase, "step", e.Step, "reason", e.Why, "duration", took, "error",
			e.Err.Error())
	default:
		l.Log.Info("step done", "phase", e.Phase, "step", e.Step, "result", e.Did, "reason", e.Why, "duration", took)
	}
}

// Waiting implements Progress.
func (l Logged) Waiting(what, missing string, more ...any) {
	l.Log.Info("waiting", append([]any{"for", what, "missing", missing}, more...)...)
}

// Warn implements Progress.
func (l Logged) Warn(check, object, cause, remedy string) {
	l.Log.Warn("preflight", "check", check, "object", object, "cause", cause, "remedy", remedy)
}
