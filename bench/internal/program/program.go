// Package program provides the main function of the benchmarks, and a sleep that it can interrupt.
package program

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Main calls run with the command line's arguments. If run fails, it prints the error after name and
// exits with code 1. The first SIGINT or SIGTERM cancels run's context, the second one kills the
// process.
func Main(name string, run func(ctx context.Context, args []string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Sleep waits for d, or until ctx is done.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// InNetwork calls f on a thread in the network namespace that a file refers to.
func InNetwork(file string, f func() error) error {
	there, err := os.Open(file)
	if err != nil {
		return err
	}
	defer there.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer here.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	err = f()
	// The thread must go back and not end: it may be the parent of processes, which the kernel would kill.
	if err := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); err != nil {
		panic(err)
	}
	return err
}
