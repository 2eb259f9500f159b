// Command registry-node runs next to a container runtime: the proxy serves the cluster's registry
// on loopback, configure writes the runtime's registry configuration, and probe checks that pulls
// work.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/zarf-dev/zarf-registry/cmd/registry-node/root"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(root.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
