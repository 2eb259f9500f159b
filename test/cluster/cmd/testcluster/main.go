// Command testcluster boots a real Kubernetes cluster of several nodes on one
// Linux machine, without Docker and without a virtual machine. See README.md.
package main

import (
	"os"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:]))
}
