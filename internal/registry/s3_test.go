package registry

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/s3test"
)

// With the path of versitygw in [s3test.ProgramVariable], all tests of this package store in S3: directories for
// tests are in its bucket, so tests can still look at files, and change them.
var s3 *s3test.Server

// runTests runs the tests, with S3 if it is available.
func runTests(m *testing.M) (code int, err error) {
	program := os.Getenv(s3test.ProgramVariable)
	if program == "" {
		return m.Run(), nil
	}
	root, err := os.MkdirTemp("", "zarf-registry-s3-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(root)
	bucket := filepath.Join(root, "bucket")
	if err := os.Mkdir(bucket, 0o700); err != nil {
		return 0, err
	}
	if err := os.Setenv("TMPDIR", bucket); err != nil {
		return 0, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	_ = listener.Close()
	if s3, err = s3test.Start(program, listener.Addr().String(), bucket); err != nil {
		return 0, err
	}
	defer s3.Stop()
	return m.Run(), nil
}

// storageAt returns the section storage of a configuration that stores in a directory for tests.
func storageAt(root string, more ...string) string {
	driver := fmt.Sprintf("filesystem: {rootdirectory: %s}", root)
	if s3 != nil {
		driver = s3.Driver(root)
	}
	return "storage: {" + strings.Join(append([]string{driver}, more...), ", ") + "}\n"
}

// awaitRebuild waits until a registry's first rebuild has written its record: S3 may still carry out a request that the
// registry's end interrupts, which makes the removal of the directory fail.
func awaitRebuild(i *instance) {
	if s3 == nil || i.server.health.success.Load() == nil { // it is not expected to work
		return
	}
	for end := time.Now().Add(5 * time.Second); !i.server.source.rebuilt.Load() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// older waits until what is stored is older than what will be stored: S3 tells some times in whole seconds only.
func older() {
	if s3 != nil {
		time.Sleep(time.Second)
	}
}

// filesystemOnly skips a test of the filesystem driver if the tests use S3.
func filesystemOnly(t *testing.T) {
	t.Helper()
	if s3 != nil {
		t.Skip("it tests storage in a directory")
	}
}
