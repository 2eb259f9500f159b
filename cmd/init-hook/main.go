// Command init-hook sets up, proves and fills the registry: as the chart's hook
// Jobs, and from a workstation.
package main

import (
	"os"

	"github.com/zarf-dev/zarf-registry/internal/cli"
)

func main() {
	os.Exit(cli.Run(os.Args[1:], os.Stdout, os.Stderr))
}
