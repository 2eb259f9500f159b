// Command registry-node is what runs next to a container runtime: the proxy that makes the cluster's registry a registry
// on loopback, the probe that says whether it is one, and configure, which writes the runtime's configuration.
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
