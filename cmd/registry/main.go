// Command registry serves the cluster's OCI registry, collects its garbage, and copies its storage.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/zarf-dev/zarf-registry/cmd/registry/root"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills the process
	os.Exit(root.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
