package docs

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/cli"
)

var update = flag.Bool("update", false, "write the pages that are generated")

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

	current(t, "reference/commands.md", page.Bytes())
}

// current compares a generated page with its file; -update writes it.
func current(t *testing.T, name string, page []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(filepath.FromSlash(name), page, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(filepath.FromSlash(name))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(content, page) {
		t.Errorf("%s is not current: go test ./docs -run %s -update", name, t.Name())
	}
}

func helpOf(t *testing.T, args []string) string {
	t.Helper()
	var out bytes.Buffer
	root := cli.New(&out, io.Discard)
	root.SetArgs(args)
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return out.String()
}
