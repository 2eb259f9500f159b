package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	objects "github.com/zarf-dev/zarf-registry/internal/release"
)

// down removes the cluster.
func (c *cluster) down() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // not the run's context, which may be canceled
	defer cancel()
	_, err := c.command(ctx, "down")
	return err
}

// command runs a command of testcluster for this cluster.
func (c *cluster) command(ctx context.Context, command string, args ...string) (string, error) {
	return c.output(ctx, c.testcluster, append([]string{command, "--name", c.name}, args...)...)
}

// tool returns the path of a tool that testcluster builds.
func (c *cluster) tool(ctx context.Context, name string) (string, error) {
	return c.output(ctx, c.testcluster, "tool", name)
}

// output runs a program against the cluster and returns its trimmed output.
func (c *cluster) output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s%s", strings.Join(cmd.Args, " "), err, out.String(), errOut.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// onNode runs a program in a node's namespaces.
func (c *cluster) onNode(ctx context.Context, node string, args ...string) (string, error) {
	return c.command(ctx, "exec", append([]string{node, "--"}, args...)...)
}

// waitFor polls check for at most two minutes.
func waitFor(ctx context.Context, what string, check func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		done, err := check()
		if done {
			return nil
		}
		if sleepErr := program.Sleep(ctx, 50*time.Millisecond); sleepErr != nil {
			return fmt.Errorf("waiting for %s: %w", what, errors.Join(sleepErr, err))
		}
	}
}

// pods returns the pods of a component of the release in a namespace, or all pods if component is "".
func (c *cluster) pods(ctx context.Context, namespace, component string) ([]corev1.Pod, error) {
	var options metav1.ListOptions
	if component != "" {
		options.LabelSelector = "app.kubernetes.io/component=" + component
	}
	list, err := c.client.CoreV1().Pods(namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// process returns the PID of a pod's only container.
func (c *cluster) process(ctx context.Context, pod *corev1.Pod) (int, error) {
	if len(pod.Status.ContainerStatuses) != 1 {
		return 0, fmt.Errorf("pod %s has %d containers, want 1", pod.Name, len(pod.Status.ContainerStatuses))
	}
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	pid, err := c.onNode(ctx, pod.Spec.NodeName, "crictl", "inspect", "--output", "go-template", "--template",
		"{{.info.pid}}", id)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(pid)
}

// component returns the PID of a component, such as containerd.n2.
func (c *cluster) component(ctx context.Context, id string) (int, error) {
	text, err := c.command(ctx, "status", "--output", "json")
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

// ready reports whether a pod is ready and stays so.
func ready(p *corev1.Pod) bool { return objects.PodServes(*p) }
