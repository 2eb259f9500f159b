// Package logging makes the log that every program of the project writes, from
// the same two flags: JSON where machines read, text on a terminal. It defines no
// messages and keeps no global logger.
package logging

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Options are the flags about logs. The zero value is not valid; Register sets
// the defaults.
type Options struct {
	// Level is the least one that is logged, info by default.
	Level slog.Level
	// Format is json, text or auto, which is text on a terminal and JSON
	// elsewhere.
	Format string
}

// Register adds --log-level and --log-format.
func (o *Options) Register(flags *pflag.FlagSet) {
	flags.TextVar(&o.Level, "log-level", slog.LevelInfo, "least `LEVEL` that is logged: debug, info, warn or error; debug includes every request")
	flags.StringVar(&o.Format, "log-format", "auto", "`FORMAT` of the log: json, text, or auto: text on a terminal, else json")
}

// New returns a logger that writes to w. An unknown format is an error that names
// the flag.
func (o *Options) New(w io.Writer) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: o.Level}
	switch file, ok := w.(*os.File); {
	case o.Format == "text", o.Format == "auto" && ok && term.IsTerminal(int(file.Fd())):
		return slog.New(slog.NewTextHandler(w, options)), nil
	case o.Format == "json", o.Format == "auto":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, fmt.Errorf("--log-format is %q, not json, text or auto", o.Format)
}
