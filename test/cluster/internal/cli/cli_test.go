package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestEveryCommandHasHelp(t *testing.T) {
	commands := newRoot().Commands()
	if len(commands) == 0 {
		t.Fatal("no commands")
	}
	for _, cmd := range commands {
		if cmd.Hidden {
			continue
		}
		if cmd.Short == "" || !strings.Contains(cmd.Example, "testcluster "+cmd.Name()) {
			t.Errorf("%s: help lacks a description or an example", cmd.Name())
		}
	}
}

func TestExamplesParse(t *testing.T) {
	checked := 0
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Example) {
			_, after, found := strings.Cut(strings.NewReplacer("$(", "", ")", "").Replace(line), "testcluster ")
			if !found {
				continue
			}
			args := strings.Fields(after)
			target, rest, err := newRoot().Find(args)
			if err != nil {
				t.Errorf("%s: %v", line, err)
				continue
			}
			if target.Name() != "tool" { // the rest belongs to another command
				if err := target.ParseFlags(rest); err != nil {
					t.Errorf("%s: %v", line, err)
				}
			}
			checked++
		}
		for _, child := range cmd.Commands() {
			check(child)
		}
	}
	check(newRoot())
	if checked < 10 {
		t.Errorf("found only %d examples", checked)
	}
}

func TestInvalidUsageIsRejected(t *testing.T) {
	for _, args := range [][]string{
		{"nonsense"},
		{"up", "extra"},
		{"up", "--pause-image", "n1="},
		{"up", "--nodes", "0"},
		{"status", "--output", "yaml"},
		{"load"},
		{"remove-node"},
		{"kill"},
		{"tool", "socat"},
		{"down", "--name", "../etc"},
		{"kubeconfig", "--name", "testcluster-unit-test-nowhere"},
	} {
		root := newRoot()
		root.SetArgs(args)
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		if err := root.Execute(); err == nil {
			t.Errorf("testcluster %s was accepted", strings.Join(args, " "))
		}
	}
}
