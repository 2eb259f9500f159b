package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// StateRoot holds a directory for each cluster.
const StateRoot = "/var/lib/zarf-registry-test"

// Contents of a cluster's directory.
const (
	stateFile       = "cluster.json"
	kubeconfigFile  = "kubeconfig" // for use on the host
	binDir          = "bin"
	configDir       = "config" // of the control plane, with its certificates
	logDir          = "log"
	processDir      = "processes"
	nodeDir         = "nodes"
	volumeDir       = "volumes" // one directory for each PersistentVolume
	volumePluginDir = "volume-plugins"
)

// Names of members and processes used in several files.
const (
	controlPlaneName = "cp"
	systemCgroup     = "system" // processes outside pods
	holderName       = "holder"
	apiServer        = "kube-apiserver"
)

func processID(component, node string) string { return component + "." + node }

// A Node is a member of the cluster that runs pods.
type Node struct {
	Name       string   `json:"name"`
	Index      int      `json:"index"`
	PauseImage string   `json:"pauseImage"`
	Runtime    string   `json:"runtime"`
	Taints     []string `json:"taints,omitempty"`
}

// A Cluster is a cluster on this machine. Methods that change something hold the cluster's lock, so
// that they never overlap.
type Cluster struct {
	Options Options `json:"options"`
	Nodes   []Node  `json:"nodes"`
	// NextIndex determines the address of the next node. Addresses of removed nodes are not reused,
	// because connections to them may still be tracked.
	NextIndex int `json:"nextIndex"`
	// Port is the API server's port on the host's 127.0.0.1.
	Port int `json:"port"`

	dir string
	log func(format string, args ...any)

	mu     sync.Mutex
	cancel context.CancelCauseFunc
}

func newCluster(options Options, log func(string, ...any)) *Cluster {
	return &Cluster{Options: options, NextIndex: 1, dir: filepath.Join(StateRoot, options.Name), log: log}
}

// Open opens a cluster that Up created. Progress of later changes goes to log.
func Open(name string, log func(format string, args ...any)) (*Cluster, error) {
	if err := ValidateName("cluster", name); err != nil {
		return nil, err
	}
	c := newCluster(Options{Name: name}, log)
	content, err := os.ReadFile(filepath.Join(c.dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cluster %q does not exist: testcluster up --name %s", name, name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading cluster %s: %w", name, err)
	}
	if err := json.Unmarshal(content, c); err != nil {
		return nil, fmt.Errorf("reading %s: %w", filepath.Join(c.dir, stateFile), err)
	}
	return c, nil
}

func (c *Cluster) save() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	content, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("recording cluster %s: %w", c.Options.Name, err)
	}
	if err := writeFile(filepath.Join(c.dir, stateFile), content); err != nil {
		return fmt.Errorf("recording cluster %s: %w", c.Options.Name, err)
	}
	return nil
}

// watch returns a context that ends when a process of the cluster ends.
func (c *Cluster) watch(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c.mu.Lock()
	c.cancel = cancel
	c.mu.Unlock()
	return ctx, func() {
		c.mu.Lock()
		c.cancel = nil
		c.mu.Unlock()
		cancel(nil)
	}
}

func (c *Cluster) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel(err)
	}
}

// lock creates the cluster's directory and waits until no other process changes the cluster. The
// directory itself is locked, so that no lock file is left.
func (c *Cluster) lock(ctx context.Context) (unlock func(), err error) {
	for {
		err := os.MkdirAll(c.dir, 0o755)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("making the cluster's directory: %w", err)
		}
		dir, err := os.Open(c.dir)
		if errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil {
			continue // it or StateRoot was removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("locking the cluster: %w", err)
		}
		if err := flock(ctx, dir, c.log, c.Options.Name); err != nil {
			dir.Close()
			return nil, err
		}
		// The previous holder may have removed the directory.
		locked, err1 := dir.Stat()
		current, err2 := os.Stat(c.dir)
		if err1 == nil && err2 == nil && os.SameFile(locked, current) {
			return func() { dir.Close() }, nil
		}
		dir.Close()
	}
}

func flock(ctx context.Context, dir *os.File, log func(string, ...any), name string) error {
	for told := false; ; told = true {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("locking cluster %s: %w", name, err)
		}
		if !told {
			log("waiting for another process that changes cluster %s", name)
		}
		if err := sleep(ctx); err != nil {
			return err
		}
	}
}

func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.dir}, elements...)...)
}

func (c *Cluster) nodePath(node string, elements ...string) string {
	return c.path(append([]string{nodeDir, node}, elements...)...)
}

func (c *Cluster) logPath(id string) string { return c.path(logDir, id+".log") }

// LogDir returns the directory that has the log of each component.
func (c *Cluster) LogDir() string { return c.path(logDir) }

// Kubeconfig returns the path of the kubeconfig that works on the host.
func (c *Cluster) Kubeconfig() string { return c.path(kubeconfigFile) }

// self is the copy of this program that the cluster's processes run, so that rebuilding the
// original does not affect them.
func (c *Cluster) self() string { return c.path(binDir, "testcluster") }

// environment is the environment of the cluster's processes and of commands on a node; an empty name stands for
// the control plane.
func (c *Cluster) environment(node string) []string {
	path := c.path(binDir)
	own := []string{"KUBECONFIG=" + c.path(configDir, adminConfig)}
	if c.Options.Kubeadm && node != "" {
		path, own = "/opt/bin:"+path, []string{"KUBECONFIG="} // kubeadm would prefer it to its own
	}
	if n, err := c.node(node); err == nil {
		path += ":" + c.path(binDir, n.Runtime)
		own = append(own, n.runtime().environment()...)
	}
	return append([]string{
		"PATH=" + path + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root",
		"GOGC=400", // a tenth less CPU time, for some 300 MB more memory
	}, own...)
}

func (c *Cluster) node(name string) (Node, error) {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return Node{}, fmt.Errorf("cluster %s has no node %q", c.Options.Name, name)
}

// writeFile replaces a file atomically.
func writeFile(path string, content []byte) error {
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// linkOrCopy puts a file at a second path. As a link or copy, unlike a symbolic link, it works on a
// node that does not see the first path.
func linkOrCopy(from, to string) error {
	if err := os.Link(from, to); err == nil {
		return nil
	}
	return copyFile(from, to)
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		target.Close()
		return err
	}
	return target.Close()
}
