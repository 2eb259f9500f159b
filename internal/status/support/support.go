// Package support writes a support bundle: one archive with the status, objects, events, logs and metrics of a
// release, and its Helm values. It reads only, and what it cannot read it names in the bundle's summary.
//
// It collects no Secrets. Package mask replaces those in the values, and in other objects. The release's programs log
// none.
package support

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

const (
	// maxFile is the size in bytes of the largest file before compression: the nodes of a cluster with 3000
	// nodes.
	maxFile = 64 << 20
	// maxLogs is the size in bytes of all logs together, before compression. They compress to about a tenth.
	maxLogs = 256 << 20
	// maxLog is the size in bytes of the log of one container that the kubelet sends.
	maxLog = 16 << 20
	// maxPods is the number of pods whose logs and metrics are read. Proxies of nodes are last: one is like
	// another, and those that are not ready come first.
	maxPods = 200
	// maxRequest bounds the time of a request to the API server, including a page of 500 nodes or a log.
	maxRequest = 30 * time.Second
)

// Options select the release and what is read. All fields must be set, except Since.
type Options struct {
	// Namespace is that of the objects.
	Namespace, Release, Name string
	Client                   kubernetes.Interface
	// Objects reads objects of any kind.
	Objects dynamic.Interface
	// Fetch copies the response of a pod's metrics port for a path. It is called concurrently.
	Fetch func(ctx context.Context, pod *corev1.Pod, path string, w io.Writer) error
	// Reports write further files.
	Reports []Report
	// Since is the maximum age of log lines; 0 means any.
	Since time.Duration
	// Tail is the number of the last lines of each log; -1 means all.
	Tail int64
	// Timeout bounds the collection. What is not read by then is missing.
	Timeout time.Duration
	Log     *slog.Logger
	Now     func() time.Time
}

// Report writes a file of the bundle.
type Report struct {
	Name string
	// Write may fail after it has written a part, which is kept.
	Write func(ctx context.Context, w io.Writer) error
}

// Result describes a bundle.
type Result struct {
	Files []File `json:"files"`
	// Missing lists what could not be read, with the reason.
	Missing []string `json:"missing"`
}

// File is a file of a bundle, with its size in bytes before compression.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

type collector struct {
	Options
	tar    *tar.Writer
	dir    string // in the archive
	spool  *os.File
	result *Result
	chart  string
	nodes  []corev1.Node   // without images
	pods   []corev1.Pod    // whose logs and metrics are read
	silent map[string]bool // nodes whose kubelet did not answer
	logged int64           // bytes of logs
}

// errNoAnswer is the error of a request that took longer than maxRequest.
var errNoAnswer = fmt.Errorf("no answer within %s", maxRequest)

// errFull is the error of a file that reached maxFile, and errLong that of a response of more than maxResponse.
var (
	errFull = fmt.Errorf("cut after %d MiB", maxFile>>20)
	errLong = fmt.Errorf("more than %d MiB", maxResponse>>20)
)

// Directory returns the name of the directory in a bundle that is written at a time, and of the bundle without
// its extension.
func Directory(now time.Time) string {
	return "zarf-registry-support-" + now.UTC().Format("20060102T150405Z")
}

// Write writes a bundle as a compressed tar archive. What cannot be read is missing from the bundle; the error
// is that of w, of the spool in the temporary directory, or of a canceled ctx.
func Write(ctx context.Context, w io.Writer, o Options) (*Result, error) {
	spool, err := os.CreateTemp("", "zarf-registry-support-*")
	if err != nil {
		return nil, err
	}
	defer func() {
		spool.Close()
		_ = os.Remove(spool.Name())
	}()
	compressed := gzip.NewWriter(w)
	c := &collector{
		Options: o, tar: tar.NewWriter(compressed), dir: Directory(o.Now()), spool: spool,
		silent: map[string]bool{},
		result: &Result{Files: []File{}, Missing: []string{}},
	}
	limited, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("not done within %s (--timeout)", o.Timeout))
	defer cancel()
	for _, part := range []struct {
		name string
		add  func(context.Context) error
	}{
		{"the Helm release", c.helm}, {"objects", c.objects}, {"events", c.events}, {"reports", c.reports},
		{"metrics", c.metrics}, {"logs", c.logs}, // a node that does not answer takes long
	} {
		o.Log.Info("collecting " + part.name)
		if err := part.add(limited); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	if err := c.summary(ctx); err != nil {
		return nil, err
	}
	if err := errors.Join(c.tar.Close(), compressed.Close()); err != nil {
		return nil, err
	}
	return c.result, nil
}

func (c *collector) missing(what string, err error) {
	text := what + ": " + err.Error()
	c.Log.Warn("missing: " + text)
	c.result.Missing = append(c.result.Missing, text)
}

func (c *collector) failed(ctx context.Context, what string, err error) {
	if err := explain(ctx, err); err != nil {
		c.missing(what, err)
	}
}

// explain returns the error of a request: nil if the object or its kind does not exist, and the reason of a
// canceled one.
func explain(ctx context.Context, err error) error {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// request returns a context for one request.
func request(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, maxRequest, errNoAnswer)
}

// file adds a file. An error of write is recorded, and what was written before it is kept; a file
// without content is left out. The returned error is that of the archive.
func (c *collector) file(name string, write func(io.Writer) error) error {
	if _, err := c.spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	limited := &limit{w: c.spool, left: maxFile, full: errFull}
	err := write(limited)
	if limited.err != nil {
		return fmt.Errorf("writing the temporary file %s: %w", c.spool.Name(), limited.err)
	}
	if err != nil {
		c.missing(name, err)
	}
	size := maxFile - limited.left
	if size == 0 {
		return nil
	}
	if _, err := c.spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	err = c.tar.WriteHeader(&tar.Header{Name: path.Join(c.dir, name), Mode: 0o644, Size: size, ModTime: c.Now()})
	if err != nil {
		return err
	}
	if _, err := io.CopyN(c.tar, c.spool, size); err != nil {
		return err
	}
	c.result.Files = append(c.result.Files, File{name, size})
	return nil
}

// limit writes at most left bytes, then returns full. It keeps the error of the underlying writer.
type limit struct {
	w         io.Writer
	left      int64
	full, err error
}

func (l *limit) Write(p []byte) (int, error) {
	if int64(len(p)) > l.left {
		return 0, l.full
	}
	n, err := l.w.Write(p)
	l.left -= int64(n)
	l.err = cmp.Or(l.err, err)
	return n, err
}

func (c *collector) reports(ctx context.Context) error {
	for _, r := range c.Reports {
		err := c.file(r.Name, func(w io.Writer) error {
			if err := r.Write(ctx, w); err != nil {
				return cmp.Or(context.Cause(ctx), err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
