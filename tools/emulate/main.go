// Command emulate runs a command, and all that it starts, where Linux executes programs for arm64 with qemu.
//
//	go run ./tools/emulate bin/payload/registry-node-arm64 --help
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/zarf-dev/zarf-registry/test/arm64/emulate"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: emulate COMMAND [ARGUMENT...]")
		os.Exit(2)
	}
	cmd := emulate.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(max(1, exit.ExitCode())) // -1 for a signal
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "emulate:", err)
		os.Exit(1)
	}
}
