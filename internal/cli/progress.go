package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
)

// progress is a slog.Handler that writes readable lines: one for each completed step, and
// one for every other record with its attributes.
type progress struct {
	out   *lines
	level slog.Level
	attrs []slog.Attr
}

// lines serializes writes, so that lines do not interleave.
type lines struct {
	sync.Mutex
	w io.Writer
}

// Enabled implements slog.Handler.
func (p *progress) Enabled(_ context.Context, level slog.Level) bool { return level >= p.level }

// WithAttrs implements slog.Handler.
func (p *progress) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *p
	with.attrs = append(append([]slog.Attr{}, p.attrs...), attrs...)
	return &with
}

// WithGroup implements slog.Handler. The project's logs use no groups.
func (p *progress) WithGroup(string) slog.Handler { return p }

// Handle implements slog.Handler.
func (p *progress) Handle(_ context.Context, r slog.Record) error {
	attrs := append([]slog.Attr{}, p.attrs...)
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, a)
		return true
	})
	line := p.line(r, attrs)
	p.out.Lock()
	defer p.out.Unlock()
	_, err := io.WriteString(p.out.w, line+"\n")
	return err
}

func (p *progress) line(r slog.Record, attrs []slog.Attr) string {
	value := map[string]string{}
	for _, a := range attrs {
		value[a.Key] = a.Value.String()
	}
	// rest formats the attributes, except those that the line contains already.
	rest := func(but ...string) string {
		var b strings.Builder
	next:
		for _, a := range attrs {
			for _, key := range but {
				if a.Key == key {
					continue next
				}
			}
			fmt.Fprintf(&b, " %s=%s", a.Key, quoted(a.Value.String()))
		}
		return b.String()
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
	prefix := "         "
	if r.Message == "preflight" {
		finding := preflight.Finding{Check: value["check"], Object: value["object"], Cause: value["cause"],
			Remedy: value["remedy"]}
		return prefix + "warning: " + finding.String()
	}
	switch {
	case r.Level >= slog.LevelError:
		prefix += "error: "
	case r.Level >= slog.LevelWarn:
		prefix += "warning: "
	}
	return prefix + r.Message + rest("phase", "step")
}

func quoted(text string) string {
	if text == "" || strings.ContainsAny(text, " \t\n\"") {
		return fmt.Sprintf("%q", text)
	}
	return text
}
