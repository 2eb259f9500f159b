package cmdflags

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// openTerminal returns a terminal, and what types on it.
func openTerminal(t *testing.T) (terminal, keyboard *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo-terminals: ", err)
	}
	t.Cleanup(func() { keyboard.Close() })
	fd := int(keyboard.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number := require.Value(unix.IoctlGetInt(fd, unix.TIOCGPTN))(t)
	terminal = require.Value(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { terminal.Close() })
	return terminal, keyboard
}

func TestACommandAsksOnATerminal(t *testing.T) {
	ask := func(ctx context.Context, stdin io.Reader, args ...string) (shown string, err error) {
		var out bytes.Buffer
		var c Confirmation
		cmd := &cobra.Command{RunE: func(cmd *cobra.Command, _ []string) error {
			return c.Ask(cmd, "Delete them?", func(w io.Writer) error { _, err := io.WriteString(w, "two images\n"); return err })
		}, SilenceUsage: true, SilenceErrors: true}
		c.Register(cmd)
		cmd.SetIn(stdin)
		cmd.SetErr(&out)
		cmd.SetArgs(args)
		err = cmd.ExecuteContext(ctx)
		return out.String(), err
	}
	for typed, yes := range map[string]bool{"y\n": true, "YES\n": true, "n\n": false, "\n": false, "\x04": false} {
		terminal, keyboard := openTerminal(t)
		require.Value(keyboard.WriteString(typed))(t)
		shown, err := ask(t.Context(), terminal)
		if shown != "two images\nDelete them? [y/N] " || (err == nil) != yes || err != nil && !exitcode.IsRefusal(err) {
			t.Errorf("%q: it shows %q, error %v", typed, shown, err)
		}
	}
	terminal, _ := openTerminal(t)
	for name, stdin := range map[string]io.Reader{"no terminal": strings.NewReader(""), "--yes": terminal} {
		var args []string
		if name == "--yes" {
			args = []string{"--yes"}
		}
		if shown, err := ask(t.Context(), stdin, args...); shown != "" || err != nil {
			t.Errorf("%s: it shows %q, error %v", name, shown, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ask(ctx, terminal); !errors.Is(err, context.Canceled) {
		t.Errorf("after Ctrl-C: %v", err)
	}
}
