// Command registry-node is what runs on nodes: proxy serves the cluster's registry on loopback, cache stores
// what many proxies pull, configure writes the container runtime's registry configuration, probe checks that
// pulls work, heal gives the release's pods an image that their node has, and pause waits.
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
