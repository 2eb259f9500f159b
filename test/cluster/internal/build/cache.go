package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// DefaultCacheDir is the cache unless the environment variable CacheVariable is set.
const (
	DefaultCacheDir = "/var/cache/zarf-registry"
	CacheVariable   = "ZARF_REGISTRY_CACHE"
)

// A Cache is a directory of built programs. Concurrent processes may use it: each recipe is built
// by one of them, and the others wait.
type Cache struct {
	dir string
	log func(format string, args ...any)
}

// OpenCache returns the cache that the environment names, without writing. Progress is reported to
// log, line by line.
func OpenCache(log func(format string, args ...any)) (*Cache, error) {
	dir := os.Getenv(CacheVariable)
	if dir == "" {
		dir = DefaultCacheDir
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("finding the cache %s: %w", dir, err)
	}
	return &Cache{dir: dir, log: log}, nil
}

// Program returns the path of a program that a recipe has built.
func (c *Cache) Program(r Recipe, name string) string {
	return filepath.Join(c.dir, r.Key(), "bin", name)
}

// Ensure builds a recipe unless it is in the cache, and installs what its programs call. The result
// appears atomically. After an interruption, the next build reuses what the Go tool had compiled.
func (c *Cache) Ensure(ctx context.Context, r Recipe) error {
	if err := c.ensurePackages(ctx, calledBy(r)); err != nil {
		return err
	}
	final := filepath.Join(c.dir, r.Key())
	if complete(final) {
		return nil
	}
	unlock, err := c.lock(ctx, r.Key(), "the build of "+r.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if complete(final) { // built by the process that held the lock
		return nil
	}
	if err := c.ensurePackages(ctx, needsOf(r)); err != nil {
		return err
	}
	work := filepath.Join(c.dir, "work", r.Key())
	if err := os.RemoveAll(work); err != nil {
		return fmt.Errorf("clearing an unfinished build: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(work, "bin"), 0o755); err != nil {
		return fmt.Errorf("preparing to build %s: %w", r.Name, err)
	}
	start := time.Now()
	c.log("%s %s: building", r.Name, r.Version)
	if err := c.compile(ctx, r, work); err != nil {
		return fmt.Errorf("building %s %s: %w", r.Name, r.Version, err)
	}
	if err := os.Rename(work, final); err != nil {
		return fmt.Errorf("storing the build of %s: %w", r.Name, err)
	}
	c.log("%s %s: built in %s", r.Name, r.Version, time.Since(start).Round(time.Second))
	return nil
}

// EnsureAll builds recipes, two at a time: the Go tool itself uses all processors, but not while it downloads and links.
func (c *Cache) EnsureAll(ctx context.Context, recipes []Recipe) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for _, r := range recipes {
		group.Go(func() error { return c.Ensure(ctx, r) })
	}
	return group.Wait()
}

func complete(dir string) bool {
	_, err := os.Stat(dir) // it is renamed into place, so it is complete or missing
	return err == nil
}

// lock waits for the exclusive right to do what the key stands for. The lock ends with the process.
func (c *Cache) lock(ctx context.Context, key, what string) (unlock func(), err error) {
	dir := filepath.Join(c.dir, "work")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("creating the cache: %w; set %s to a writable directory", err, CacheVariable)
	}
	f, err := os.OpenFile(filepath.Join(dir, key+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", what, err)
	}
	for told := false; ; told = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", what, err)
		}
		if !told {
			c.log("waiting for %s by another process", what)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(500 * time.Millisecond):
		}
	}
}
