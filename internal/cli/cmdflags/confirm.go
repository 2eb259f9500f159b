package cmdflags

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
)

// Confirmation is the flag of commands that ask before they delete.
type Confirmation struct{ yes bool }

func (c *Confirmation) Register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.yes, "yes", false, "do not ask; without a terminal, the command never does")
}

// Ask shows what is about to be deleted and asks, if stdin is a terminal. Without a yes, it refuses.
func (c *Confirmation) Ask(cmd *cobra.Command, question string, show func(io.Writer) error) error {
	terminal, ok := cmd.InOrStdin().(*os.File)
	if c.yes || !ok || !term.IsTerminal(int(terminal.Fd())) {
		return nil
	}
	if err := show(cmd.ErrOrStderr()); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(terminal).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-cmd.Context().Done():
		return fmt.Errorf("nothing was changed: %w", context.Cause(cmd.Context()))
	case text := <-answer:
		if text == "y" || text == "yes" {
			return nil
		}
	}
	return exitcode.Refuse("nothing was changed, because the answer was not yes")
}
