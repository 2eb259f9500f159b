// Command testcertmanager runs cert-manager's controllers against a cluster, from
// outside of it. See README.md.
package main

import (
	"os"

	"github.com/zarf-dev/zarf-registry/test/certmanager/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:]))
}
