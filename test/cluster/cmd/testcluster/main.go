// Command testcluster boots a real Kubernetes cluster of several nodes on one
// Linux machine, without Docker and without a virtual machine. See README.md.
package main

import (
	"os"
	"runtime"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/cli"
)

// A process that becomes another program must do so from its first thread. From
// any other the kernel ends the first one before, and for a moment the process
// looks like a zombie without namespaces to whoever wants to enter them.
func init() { runtime.LockOSThread() }

func main() {
	os.Exit(cli.Main(os.Args[1:]))
}
