// Command registry is the registry of the cluster and its garbage collector.
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
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(root.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
