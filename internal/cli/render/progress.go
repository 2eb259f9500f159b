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
)

// Progress is a slog.Handler that writes readable lines: one for each completed step, and
// one for every other record with its attributes.
type progress struct {
	mu    *sync.Mutex // for w, so that lines do not interleave
	w     io.Writer
	level slog.Level
	attrs []slog.Attr
}

// NewProgress returns a logger that writes readable lines of at least a level.
func NewProgress(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(&progress{mu: &sync.Mutex{}, w: w, level: level})
}

// Enabled implements slog.Handler.
func (p *progress) Enabled(_ context.Context, level slog.Level) bool { return level >= p.level }

// WithAttrs implements slog.Handler.
func (p *progress) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *p
	with.attrs = slices.Concat(p.attrs, attrs)
	return &with
}

// WithGroup implements slog.Handler. The project's logs use no groups.
func (p *progress) WithGroup(string) slog.Handler { return p }

// Handle implements slog.Handler.
func (p *progress) Handle(_ context.Context, r slog.Record) error {
	attrs := slices.Clone(p.attrs)
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, a)
		return true
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := io.WriteString(p.w, logging.Printable(progressLine(r, attrs))+"\n")
	return err
}

func progressLine(r slog.Record, attrs []slog.Attr) string {
	value := map[string]string{}
	for _, a := range attrs {
		value[a.Key] = a.Value.String()
	}
	switch r.Message {
	case "step done":
		return fmt.Sprintf("%-8s %s: %s (%s)", value["phase"], value["step"], value["result"], value["duration"])
	case "step failed":
		return fmt.Sprintf("%-8s %s: failed (%s)", value["phase"], value["step"], value["duration"])
	case "phase done":
		return fmt.Sprintf("%-8s done (%s)", value["phase"], value["duration"])
	case "waiting":
		return fmt.Sprintf("         waiting for %s: %s", value["for"], value["missing"])
	}
	line := "         "
	if r.Message == "preflight" {
		finding := preflight.Finding{Check: value["check"], Object: value["object"], Cause: value["cause"],
			Remedy: value["remedy"]}
		return line + "warning: " + finding.String()
	}
	switch {
	case r.Level >= slog.LevelError:
		line += "error: "
	case r.Level >= slog.LevelWarn:
		line += "warning: "
	}
	line += r.Message
	for _, a := range attrs {
		if a.Key != "phase" && a.Key != "step" {
			line += fmt.Sprintf(" %s=%s", a.Key, quoted(a.Value.String()))
		}
	}
	return line
}

func quoted(text string) string {
	if text == "" || strings.ContainsAny(text, " \t\n\"") {
		return fmt.Sprintf("%q", text)
	}
	return text
}
