package render

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// Progress writes readable lines. It is a release.Progress, and a slog.Handler that writes records with their
// attributes.
type Progress struct {
	mu    *sync.Mutex // for w, so that lines do not interleave
	w     io.Writer
	level slog.Level
	attrs []slog.Attr
}

// NewProgress returns a Progress that writes lines of at least a level.
func NewProgress(w io.Writer, level slog.Level) *Progress {
	return &Progress{mu: &sync.Mutex{}, w: w, level: level}
}

// Ended implements release.Progress. The command prints the error at its end.
func (p *Progress) Ended(e release.Ended) {
	switch {
	case e.Step == "":
		p.line(slog.LevelInfo, "%-8s done (%s)", e.Phase, e.Duration)
	case e.Err != nil:
		p.line(slog.LevelError, "%-8s %s: failed (%s)", e.Phase, e.Step, e.Duration)
	default:
		p.line(slog.LevelInfo, "%-8s %s: %s (%s)", e.Phase, e.Step, e.Did, e.Duration)
	}
}

// Waiting implements release.Progress.
func (p *Progress) Waiting(what, missing string, _ ...any) {
	p.line(slog.LevelInfo, "         waiting for %s: %s", what, missing)
}

// Warn implements release.Progress.
func (p *Progress) Warn(check, object, cause, remedy string) {
	p.line(slog.LevelWarn, "         warning: %s",
		preflight.Finding{Check: check, Object: object, Cause: cause, Remedy: remedy})
}

func (p *Progress) line(level slog.Level, format string, args ...any) {
	if level >= p.level {
		_ = p.write(fmt.Sprintf(format, args...))
	}
}

func (p *Progress) write(line string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := io.WriteString(p.w, logging.Printable(line)+"\n")
	return err
}

// Enabled implements slog.Handler.
func (p *Progress) Enabled(_ context.Context, level slog.Level) bool { return level >= p.level }

// WithAttrs implements slog.Handler.
func (p *Progress) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *p
	with.attrs = slices.Concat(p.attrs, attrs)
	return &with
}

// WithGroup implements slog.Handler. The project's logs use no groups.
func (p *Progress) WithGroup(string) slog.Handler { return p }

// Handle implements slog.Handler.
func (p *Progress) Handle(_ context.Context, r slog.Record) error {
	attrs := slices.Clone(p.attrs)
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, a)
		return true
	})
	line := "         "
	switch {
	case r.Level >= slog.LevelError:
		line += "error: "
	case r.Level >= slog.LevelWarn:
		line += "warning: "
	}
	line += r.Message
	for _, a := range attrs {
		line += fmt.Sprintf(" %s=%s", a.Key, quoted(a.Value.String()))
	}
	return p.write(line)
}

func quoted(text string) string {
	if text == "" || strings.ContainsAny(text, " \t\n\"") {
		return fmt.Sprintf("%q", text)
	}
	return text
}
