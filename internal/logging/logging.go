// Package logging configures the logger of every program in the project from two flags: JSON for
// machines, text on a terminal. It defines no messages and keeps no global logger.
package logging

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Options are the logging flags. The zero value is invalid; Register sets the defaults.
type Options struct {
	// Level is the minimum level, info by default.
	Level slog.Level
	// Format is json, text or auto, which means text on a terminal and JSON elsewhere.
	Format string
}

// Register adds --log-level and --log-format.
func (o *Options) Register(flags *pflag.FlagSet) {
	flags.TextVar(&o.Level, "log-level", slog.LevelInfo,
		"minimum `LEVEL` of log messages: debug, info, warn or error; debug includes every request")
	flags.StringVar(&o.Format, "log-format", "auto",
		"`FORMAT` of the log: json, text or auto (text on a terminal, else json)")
}

// New returns a logger that writes to w. The error for an unknown format names the flag.
func (o *Options) New(w io.Writer) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: o.Level}
	switch file, ok := w.(*os.File); {
	case o.Format == "text", o.Format == "auto" && ok && term.IsTerminal(int(file.Fd())):
		return slog.New(slog.NewTextHandler(w, options)), nil
	case o.Format == "json", o.Format == "auto":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, fmt.Errorf("invalid --log-format %q: want json, text or auto", o.Format)
}
