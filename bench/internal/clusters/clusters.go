// Package clusters boots test clusters for benchmarks and runs programs on them.
package clusters

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	kube "github.com/zarf-dev/zarf-registry/internal/cluster"
)

// Cluster is a test cluster of the nodes n1 and n2.
type Cluster struct {
	Kubeconfig string
	Client     kubernetes.Interface

	program, name, helm string
}

// Up boots a cluster with testcluster and more arguments of its command up. If it returns a cluster, the
// caller must take it down, even after an error.
func Up(ctx context.Context, testcluster, name string, args ...string) (*Cluster, error) {
	if os.Getuid() != 0 {
		return nil, errors.New("the test cluster needs root")
	}
	// make builds Helm beside testcluster.
	c := &Cluster{program: testcluster, name: name, helm: filepath.Join(filepath.Dir(testcluster), "helm")}
	var err error
	if _, err := c.Output(ctx, testcluster, append([]string{"up", "--name", name, "--replace"}, args...)...); err != nil {
		return c, err
	}
	if c.Kubeconfig, err = c.Output(ctx, testcluster, "kubeconfig", "--name", name); err != nil {
		return c, err
	}
	_, c.Client, err = kube.Connect(kube.Access{Kubeconfig: c.Kubeconfig})
	return c, err
}

// Down removes the cluster.
func (c *Cluster) Down() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // not the run's context, which may be canceled
	defer cancel()
	_, err := c.Testcluster(ctx, "down")
	return err
}

// Testcluster runs a command of testcluster for this cluster.
func (c *Cluster) Testcluster(ctx context.Context, command string, args ...string) (string, error) {
	return c.Output(ctx, c.program, append([]string{command, "--name", c.name}, args...)...)
}

// Tool returns the path of a tool that testcluster builds.
func (c *Cluster) Tool(ctx context.Context, name string) (string, error) {
	return c.Output(ctx, c.program, "tool", name)
}

// Output runs a program against the cluster and returns its trimmed output.
func (c *Cluster) Output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s%s", strings.Join(cmd.Args, " "), err, out.String(), errOut.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// OnNode runs a program in a node's namespaces.
func (c *Cluster) OnNode(ctx context.Context, node string, args ...string) (string, error) {
	return c.Testcluster(ctx, "exec", append([]string{node, "--"}, args...)...)
}

// Helm installs or upgrades a release of the chart and returns the duration.
func (c *Cluster) Helm(ctx context.Context, verb, release, chart, namespace string, args ...string) (time.Duration,
	error) {
	begin := time.Now()
	_, err := c.Output(ctx, c.helm, append([]string{verb, release, chart, "--namespace", namespace, "--create-namespace",
		"--timeout", "5m"}, args...)...)
	return time.Since(begin), err
}

// WaitFor polls check for at most two minutes.
func (c *Cluster) WaitFor(ctx context.Context, what string, check func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		done, err := check()
		if done {
			return nil
		}
		if sleepErr := Sleep(ctx, 50*time.Millisecond); sleepErr != nil {
			return fmt.Errorf("waiting for %s: %w", what, errors.Join(sleepErr, err))
		}
	}
}

// Pods returns the pods of a component of the release in a namespace, or all pods if component is "".
func (c *Cluster) Pods(ctx context.Context, namespace, component string) ([]corev1.Pod, error) {
	var options metav1.ListOptions
	if component != "" {
		options.LabelSelector = "app.kubernetes.io/component=" + component
	}
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Process returns the PID of a pod's only container.
func (c *Cluster) Process(ctx context.Context, pod *corev1.Pod) (int, error) {
	if len(pod.Status.ContainerStatuses) != 1 {
		return 0, fmt.Errorf("pod %s has %d containers, want 1", pod.Name, len(pod.Status.ContainerStatuses))
	}
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	pid, err := c.OnNode(ctx, pod.Spec.NodeName, "crictl", "inspect", "--output", "go-template", "--template",
		"{{.info.pid}}", id)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(pid)
}

// Component returns the PID of a component, such as containerd.n2.
func (c *Cluster) Component(ctx context.Context, id string) (int, error) {
	text, err := c.Testcluster(ctx, "status", "--output", "json")
	if err != nil {
		return 0, err
	}
	var status struct {
		Components []struct {
			ID  string `json:"id"`
			PID int    `json:"pid"`
		} `json:"components"`
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return 0, fmt.Errorf("parsing the output of testcluster status: %w", err)
	}
	for _, component := range status.Components {
		if component.ID == id {
			return component.PID, nil
		}
	}
	return 0, fmt.Errorf("the cluster has no component %s", id)
}

// Ready reports whether a pod is ready and stays so.
func Ready(p *corev1.Pod) bool {
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
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
