// Command init-hook installs, verifies and administers the cluster's registry, in the chart's hook Jobs and
// on workstations.
package main

import (
	"os"

	"github.com/zarf-dev/zarf-registry/internal/cli"
)

func main() {
	os.Exit(cli.Run(os.Args[1:], os.Stdout, os.Stderr))
}
