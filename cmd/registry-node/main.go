// Command registry-node runs on every node: proxy serves the cluster's registry on loopback, configure
// writes the container runtime's registry configuration, probe checks that pulls work, and heal gives
// the release's pods an image that their node has.
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
	context.AfterFunc(ctx, stop) // a second signal kills the process
	os.Exit(root.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
