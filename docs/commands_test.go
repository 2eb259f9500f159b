package docs

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/cli"
	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestCommandsPageIsCurrent compares reference/commands.md with the help of all commands.
func TestCommandsPageIsCurrent(t *testing.T) {
	var page bytes.Buffer
	page.WriteString("# Commands\n\nThe help of each command. `go test ./docs -run TestCommandsPage -update` writes this page.\n")
	var add func(cmd *cobra.Command, path []string)
	add = func(cmd *cobra.Command, path []string) {
		help := helpOf(t, append(path, "--help"))
		if cmd.Name() == "options" {
			help = helpOf(t, path)
		}
		fmt.Fprintf(&page, "\n## %s\n\n```text\n%s\n```\n", strings.Join(append([]string{"zarf-registry"}, path...), " "),
			strings.TrimSpace(help))
		for _, c := range cmd.Commands() {
			if (!c.Hidden || c.Name() == "options") && c.Name() != "help" && c.Name() != "completion" {
				add(c, append(append([]string{}, path...), c.Name()))
			}
		}
	}
	add(cli.New(io.Discard, io.Discard), nil)

	golden.File(t, "reference/commands.md", page.String())
}

func helpOf(t *testing.T, args []string) string {
	t.Helper()
	var out bytes.Buffer
	root := cli.New(&out, io.Discard)
	root.SetArgs(args)
	require.NoError(t, root.ExecuteContext(t.Context()), strings.Join(args, " "))
	return out.String()
}
