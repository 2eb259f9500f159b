// Command init-hook installs, verifies and administers the cluster's registry. On workstations it is called
// zarf-registry; in the image of the chart's Jobs, init-hook.
package main

import (
	"os"

	"github.com/zarf-dev/zarf-registry/internal/cli"
)

func main() {
	os.Exit(cli.Run(os.Args[0], os.Args[1:], os.Stdout, os.Stderr))
}
