package root

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/registry"
)

type usageError struct{ error }

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

// newLogger returns the logger that the flags configure, and routes distribution's logs to it.
func newLogger(o logging.Options, w io.Writer) (*slog.Logger, error) {
	log, err := o.New(w)
	if err != nil {
		return nil, usageError{err}
	}
	registry.RouteLogs(log)
	return log, nil
}
