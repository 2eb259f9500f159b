package cluster

import (
	"os"
	"path/filepath"
	"testing"
)

// Clusters start while others end, and the last one removes the directory that all share.
func TestLockWhileTheRootIsRemoved(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Remove(root)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	c := &Cluster{dir: filepath.Join(root, "a"), log: func(string, ...any) {}}
	for range 2000 {
		unlock, err := c.lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(c.dir); err != nil {
			t.Fatal(err)
		}
		unlock()
	}
}
