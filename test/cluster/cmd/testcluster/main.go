// Command testcluster boots a Kubernetes cluster of several nodes on one Linux machine, without
// Docker or virtual machines. See README.md.
package main

import (
	"os"
	"runtime"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/cli"
)

// exec must be called from the first thread. From any other, the kernel ends the first one before,
// and for a moment the process appears as a zombie without namespaces that others cannot enter.
func init() { runtime.LockOSThread() }

func main() {
	os.Exit(cli.Main(os.Args[1:]))
}
