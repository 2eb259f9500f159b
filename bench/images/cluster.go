package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/bench/internal/clusters"
	kube "github.com/zarf-dev/zarf-registry/internal/cluster"
)

const release = "zarf-registry"

// Namespaces of the releases, one in each mode, and the addresses that they have on nodes.
const (
	proxyMode    = "zarf"
	proxyPort    = "31999"
	nodeportMode = "zarf-nodeport"
	nodePort     = "31998"
)

// The registry's ports: with mutual TLS, and plain (in nodeport mode only).
const (
	mutualPort = 5000
	plainPort  = 5001
)

// Nodes of the registries and of the container runtime that pulls.
const (
	registryNode = "n1"
	pullingNode  = "n2"
)

// cluster is a test cluster with a release in each mode. Storage is the disk of the registries' node, and
// lost with the pod.
type cluster struct {
	options
	*clusters.Cluster
	kubectl string
}

// newCluster boots a cluster. If it returns one, the caller must take it down, even after an error.
func newCluster(ctx context.Context, o options) (*cluster, error) {
	booted, err := clusters.Up(ctx, o.testcluster, o.name, "--load", filepath.Join(o.images, "init-hook.tar"))
	if booted == nil {
		return nil, err
	}
	c := &cluster{options: o, Cluster: booted}
	if err != nil {
		return c, err
	}
	if c.kubectl, err = c.Tool(ctx, "kubectl"); err != nil {
		return c, err
	}
	for namespace, values := range map[string][]string{
		proxyMode:    {"--set=registryProxy=true", "--set=port=" + proxyPort},
		nodeportMode: {"--set=registryProxy=false", "--set=port=" + nodePort},
	} {
		// Without NetworkPolicies, which would keep n2 from the port with mutual TLS.
		if _, err := c.Helm(ctx, "install", release, c.chart, namespace, append(values,
			"--set=networkPolicy.enabled=false", "--set=registry.persistence.enabled=false",
			`--set=registry.nodeSelector.kubernetes\.io/hostname=`+registryNode)...); err != nil {
			return c, err
		}
	}
	return c, nil
}

// registry returns the ready registry pod of a release, other than previous.
func (c *cluster) registry(ctx context.Context, namespace string, previous *corev1.Pod) (found *corev1.Pod, err error) {
	return found, c.WaitFor(ctx, "the registry in namespace "+namespace, func() (bool, error) {
		pods, err := c.Pods(ctx, namespace, "registry")
		if err != nil || len(pods) != 1 || !clusters.Ready(&pods[0]) || previous != nil && pods[0].UID == previous.UID {
			return false, err
		}
		found = &pods[0]
		return true, nil
	})
}

// emptyRegistry replaces the registry pod of a release and its storage.
func (c *cluster) emptyRegistry(ctx context.Context, namespace string) (*corev1.Pod, error) {
	previous, err := c.registry(ctx, namespace, nil)
	if err != nil {
		return nil, err
	}
	if err := c.Client.CoreV1().Pods(namespace).Delete(ctx, previous.Name, metav1.DeleteOptions{}); err != nil {
		return nil, err
	}
	return c.registry(ctx, namespace, previous)
}

// secret returns a Secret of a release.
func (c *cluster) secret(ctx context.Context, namespace, suffix string) (map[string][]byte, error) {
	s, err := c.Client.CoreV1().Secrets(namespace).Get(ctx, release+suffix, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return s.Data, nil
}

// dial connects to a pod's port with mutual TLS, through the API server.
func (c *cluster) dial(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	return kube.PortForward(c.Config, c.Client)(ctx, pod, mutualPort)
}

// forward is a running kubectl port-forward.
type forward struct {
	command       *exec.Cmd
	mutual, plain string // local addresses
	ended         chan struct{}
	output        bytes.Buffer // stderr, valid when ended is closed
}

// forwardTimeout is how long kubectl may take to listen.
const forwardTimeout = 30 * time.Second

// portForward starts kubectl port-forward to both ports of a registry pod.
func (c *cluster) portForward(ctx context.Context, pod *corev1.Pod) (*forward, error) {
	f := &forward{ended: make(chan struct{}), command: exec.CommandContext(ctx, c.kubectl, "port-forward",
		"--kubeconfig="+c.Kubeconfig, "--namespace="+pod.Namespace, "pod/"+pod.Name, "--address=127.0.0.1",
		fmt.Sprintf(":%d", mutualPort), fmt.Sprintf(":%d", plainPort))}
	f.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	f.command.Stderr = &f.output
	out, err := f.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := f.command.Start(); err != nil {
		return nil, err
	}
	listening := make(chan error, 1)
	go func() {
		defer close(f.ended)
		lines := bufio.NewScanner(out)
		listening <- f.addresses(lines)
		for lines.Scan() { // one line for each connection
		}
		_, _ = io.Copy(io.Discard, out)
		_ = f.command.Wait()
	}()
	select {
	case err = <-listening:
	case <-time.After(forwardTimeout):
		err = errors.New("kubectl port-forward does not listen")
	}
	if err != nil {
		f.stop()
		return nil, fmt.Errorf("%w: %s", err, &f.output)
	}
	return f, nil
}

// addresses reads the local addresses that kubectl prints.
func (f *forward) addresses(lines *bufio.Scanner) error {
	for f.mutual == "" || f.plain == "" {
		if !lines.Scan() {
			return errors.Join(errors.New("kubectl port-forward has ended"), lines.Err())
		}
		rest, ok := strings.CutPrefix(lines.Text(), "Forwarding from ")
		local, remote, both := strings.Cut(rest, " -> ")
		switch {
		case !ok || !both:
		case remote == fmt.Sprint(mutualPort):
			f.mutual = local
		case remote == fmt.Sprint(plainPort):
			f.plain = local
		}
	}
	return nil
}

func (f *forward) stop() {
	_ = f.command.Process.Kill() // fails if it has ended
	<-f.ended
}
