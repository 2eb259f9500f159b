// Package cli implements the command tree of zarf-registry: the commands for a workstation, and
// those of the chart's Jobs, which the help hides. It parses flags, connects the packages that do
// the work, and turns errors into messages and exit codes. It contains no logic about the registry.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/cli/certs"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/hook"
	"github.com/zarf-dev/zarf-registry/internal/cli/images"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/install"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// The help shows commands in the order of the code: what is needed first stands first.
func init() { cobra.EnableCommandSorting = false }

// Run executes the command line and returns the process's exit code: 0 on success,
// otherwise one of the codes of package exitcode. The help calls the program by the name
// of the file that was started.
func Run(program string, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal kills the process, which may be reading its standard input
	root := New(stdout, stderr)
	rename(root, filepath.Base(program))
	root.SetArgs(args)
	cmd, _, err := root.Find(args)
	ended := make(chan int, 1)
	go func() { ended <- execute(ctx, root, stderr) }()
	if err == nil && strings.Contains(cmd.CommandPath()+" ", " images ") {
		select {
		case code := <-ended:
			return code
		case <-ctx.Done():
		}
		// A system call that blocks must not keep it: reading a pipe, or a network file system that does not answer. Other
		// commands have something to finish.
		select {
		case code := <-ended:
			return code
		case <-time.After(interruptGrace):
			fmt.Fprintln(stderr, "\nError: interrupted")
			return exitcode.Failed
		}
	}
	return <-ended
}

// interruptGrace is how long commands about images may take to end after Ctrl-C: users wait a second.
const interruptGrace = 900 * time.Millisecond

func execute(ctx context.Context, root *cobra.Command, stderr io.Writer) int {
	began := false
	noteBegin(root, &began)
	if cmd, err := root.ExecuteContextC(ctx); err != nil {
		if silent, printed := errors.AsType[*render.SilentError](err); printed {
			return silent.Code
		}
		fmt.Fprintln(stderr, logging.Printable(fmt.Sprintf("Error: %v", err)))
		if advice := cluster.Advice(err); advice != "" {
			fmt.Fprintln(stderr, logging.Printable(advice))
		}
		if !began || exitcode.IsUsage(err) { // what never began has a wrong command line
			fmt.Fprintf(stderr, "see %s --help\n", cmd.CommandPath())
			return exitcode.Refused
		}
		if _, blocked := errors.AsType[*install.BlockedError](err); blocked || exitcode.IsRefusal(err) {
			return exitcode.Refused
		}
		return exitcode.Failed
	}
	return 0
}

// noteBegin sets began when a command of the tree runs: cobra has accepted its flags and arguments.
func noteBegin(cmd *cobra.Command, began *bool) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*began = true
			return run(cmd, args)
		}
	}
	for _, c := range cmd.Commands() {
		noteBegin(c, began)
	}
}

// New returns the command tree. Results go to stdout, logs and progress to stderr.
func New(stdout, stderr io.Writer) *cobra.Command {
	global := &cmdflags.Global{}
	root := &cobra.Command{
		Use:               programName,
		Short:             "An image registry inside a Kubernetes cluster, which all nodes can pull from",
		Version:           version.Version,
		SilenceUsage:      true,
		SilenceErrors:     true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return global.ValidateLog() },
	}
	cmdflags.MakeGroup(root)
	root.SetFlagErrorFunc(cmdflags.SuggestFlag)
	global.Attach(root)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetUsageTemplate(usage)
	const otherCommands = "Other:"
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Set up:", []*cobra.Command{newInstall(global), newUninstall(global)}},
		{"Images:", []*cobra.Command{images.New(global)}},
		{"Check and fix:", []*cobra.Command{newStatus(global), newHeal(global), certs.New(global),
			certs.NewCredentials(global), newSupportBundle(global)}},
		{otherCommands, []*cobra.Command{newVersion(global)}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, cmd := range g.commands {
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(newOptions())
	root.SetHelpCommandGroupID(otherCommands)
	root.SetCompletionCommandGroupID(otherCommands)
	// The chart runs these.
	for _, cmd := range append(hook.Jobs(global), newCheck()) {
		cmd.Hidden = true
		root.AddCommand(cmd)
	}
	return root
}

// usage is the template of the help. Each line of the program's own fits 80 columns, and all of them 24 lines.
const usage = `Usage: {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}
{{- if .HasExample}}

Examples:
{{.Example}}
{{- end}}
{{- $all := .Commands}}
{{- range $group := .Groups}}

{{.Title}}
{{- range $all}}{{if and (eq .GroupID $group.ID) .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}
{{- end}}{{end}}
{{- else}}{{if .HasAvailableSubCommands}}

Commands:
{{- range $all}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}
{{- end}}{{end}}
{{- end}}{{end}}
{{- if .HasParent}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}
{{- end}}{{end}}

{{if .HasAvailableSubCommands}}COMMAND --help shows more; {{end -}}
{{if .HasParent}}{{.Root.CommandPath}} {{end}}options shows the flags of all commands.
`

// programName is the program's name in messages and documentation.
const programName = "zarf-registry"

// rename makes the help call the program by the name of its file, if that is one of its names: downloads have others.
func rename(root *cobra.Command, file string) {
	name, known := map[string]string{"init-hook": "init-hook", "kubectl-zarf_registry": "kubectl zarf-registry"}[file]
	if !known {
		return
	}
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: name}
	var examples func(cmd *cobra.Command)
	examples = func(cmd *cobra.Command) {
		cmd.Example = strings.ReplaceAll(cmd.Example, programName+" ", name+" ")
		for _, c := range cmd.Commands() {
			examples(c)
		}
	}
	examples(root)
}

func newOptions() *cobra.Command {
	return &cobra.Command{
		Use:    "options",
		Short:  "Show the flags of all commands: cluster, release and log",
		Hidden: true, // the end of each help names it
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "Flags of all commands:\n%s", cmd.InheritedFlags().FlagUsages())
			return err
		},
	}
}
