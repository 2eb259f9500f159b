// Package cmdflags has the flags that commands share, their completion, and the connections that they select: to the
// cluster, and to its registry. It runs no command.
package cmdflags

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// Group returns a command that only holds subcommands. It rejects unknown ones.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short}
	MakeGroup(cmd)
	cmd.AddCommand(commands...)
	return cmd
}

// MakeGroup makes a command one that only holds subcommands.
func MakeGroup(cmd *cobra.Command) {
	cmd.SuggestionsMinimumDistance = suggestionDistance
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(),
			meant("", cmd.SuggestionsFor(args[0])))
	}
}

// suggestionDistance is how many letters may differ between what was typed and what is suggested.
const suggestionDistance = 2

// SuggestFlag adds similar flags to the error about an unknown one. After an unknown command, flags are not the
// problem.
func SuggestFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	if before := cmd.Flags().Args(); cmd.HasSubCommands() && len(before) > 0 {
		return cmd.Args(cmd, before)
	}
	all := &cobra.Command{SuggestionsMinimumDistance: suggestionDistance} // cobra compares only names of commands
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		all.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	return fmt.Errorf("%w%s", err, meant("--", all.SuggestionsFor(unknown.GetSpecifiedName())))
}

// meant is the question which of some names was meant.
func meant(prefix string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return ": did you mean " + prefix + strings.Join(names, " or "+prefix) + "?"
}

// AddName adds the flag that, with those of all commands, says what the objects of the release are called.
func AddName(flags *pflag.FlagSet, name *string) {
	flags.StringVar(name, "name", names.Chart, "full name of the chart, the prefix of the names of its objects")
}

// The environment may have other defaults for the release and its namespace than the chart.
func defaultNamespace() string { return cmp.Or(os.Getenv("ZARF_REGISTRY_NAMESPACE"), names.Namespace) }
func defaultRelease() string   { return cmp.Or(os.Getenv("ZARF_REGISTRY_RELEASE"), names.Chart) }

// ReleaseArguments returns the flags that name a release, with a leading space, without those that have their
// default.
func ReleaseArguments(namespace, release, name string) string {
	var arguments string
	for _, f := range [][3]string{{"namespace", namespace, defaultNamespace()}, {"release", release, defaultRelease()},
		{"name", name, names.Chart}} {
		if f[1] != f[2] {
			arguments += " --" + f[0] + " " + f[1]
		}
	}
	return arguments
}

// AddOutput adds --output, which accepts table, json, yaml and more.
func AddOutput(cmd *cobra.Command, output *string, more ...string) {
	accepted := append([]string{render.FormatTable, render.FormatJSON, render.FormatYAML}, more...)
	last := len(accepted) - 1
	usage := strings.Join(accepted[:last], ", ") + " or " + accepted[last]
	*output = render.FormatTable
	cmd.Flags().VarP(&parsedValue[string]{into: output, text: *output, kind: "FORMAT",
		parse: func(text string) (string, error) {
			switch {
			case slices.Contains(accepted, text):
				return text, nil
			case cmd.Flags().Lookup("out") != nil:
				return "", fmt.Errorf("want %s; --out names the file", usage)
			}
			return "", fmt.Errorf("want %s", usage)
		}}, "output", "o", "output `FORMAT`: "+usage)
	Complete(cmd, "output", accepted...)
}

// AddNoTrunc adds the flag for complete digests in tables.
func AddNoTrunc(flags *pflag.FlagSet, noTrunc *bool) {
	flags.BoolVar(noTrunc, "no-trunc", false, "show complete digests in the table")
}

// Complete adds shell completion for the values of a flag.
func Complete(cmd *cobra.Command, flag string, values ...string) {
	// It fails only for an unknown flag.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// MinimumArgs rejects fewer than n arguments with the error want.
func MinimumArgs(n int, want string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < n {
			return exitcode.Refuse("%s", want)
		}
		return nil
	}
}
