// Package s3test runs an S3 server for tests: versitygw, whose buckets are directories and whose objects are files, so
// that tests can look at them and change them. It does not build the program: testcluster tool versitygw does.
package s3test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ProgramVariable is the environment variable with the path of the program, which make sets.
const ProgramVariable = "VERSITYGW"

// The keys, which may do everything, and the region.
const (
	AccessKey = "tester"
	SecretKey = "a key of the tests"
	Region    = "us-east-1"
)

// startTimeout is for a process on a busy machine.
const startTimeout = 20 * time.Second

// Command returns the program's arguments for a server at an address. Every directory in root is a bucket.
func Command(program, address, root string, flags ...string) []string {
	args := []string{program, "--quiet", "--port", address, "--access", AccessKey, "--secret", SecretKey,
		"--region", Region}
	return append(append(args, flags...), "posix", root)
}

// Server is a running server.
type Server struct {
	// Endpoint is its URL.
	Endpoint string

	bucket  string
	command *exec.Cmd
	log     lockedBuffer
}

// Start runs a server at a loopback address, until Stop or until this process ends. Its bucket is a directory.
func Start(program, address, bucket string) (*Server, error) {
	args := Command(program, address, filepath.Dir(bucket))
	s := &Server{Endpoint: "http://" + address, bucket: bucket, command: exec.Command(args[0], args[1:]...)}
	s.command.Stdout, s.command.Stderr = &s.log, &s.log
	s.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.command.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.command.Wait() }()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			_ = connection.Close()
			return s, nil
		}
		select {
		case err = <-ended:
			return nil, fmt.Errorf("%s ended: %w: %s", program, err, s.log.String())
		default:
		}
		if time.Since(began) > startTimeout {
			s.Stop()
			return nil, errors.Join(err, errors.New(s.log.String()))
		}
	}
}

// Stop ends the server.
func (s *Server) Stop() { _ = s.command.Process.Kill() }

// Driver returns the driver's entry in a configuration's section storage, for a directory in the bucket.
func (s *Server) Driver(dir string) string {
	return fmt.Sprintf("s3: {regionendpoint: %q, region: %s, bucket: %s, rootdirectory: %q, forcepathstyle: true, "+
		"accesskey: %s, secretkey: %q}", s.Endpoint, Region, filepath.Base(s.bucket), strings.TrimPrefix(dir, s.bucket),
		AccessKey, SecretKey)
}

type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
