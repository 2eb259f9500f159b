package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// Operations that only the test cluster supports.

// addNode adds a node and waits until it is ready. args are passed to testcluster add-node.
func (w *world) addNode(t *testing.T, name string, args ...string) {
	t.Helper()
	w.testClusterOnly(t)
	gateway := func() string {
		out, err := w.onNode(t, "cp", "ip", "-brief", "link", "show", "fabric0")
		require.NoError(t, err, out)
		return out
	}
	before := gateway()
	run(t, w.testcluster, append([]string{"add-node", "--name", w.name, name}, args...)...)
	if after := gateway(); after != before {
		t.Fatalf("the control plane's hardware address was %s, and is %s: the nodes lose it", before, after)
	}
	w.nodes = append(w.nodes, name)
	slices.Sort(w.nodes)
}

func (w *world) removeNode(t *testing.T, name string) {
	t.Helper()
	run(t, w.testcluster, "remove-node", "--name", w.name, name)
	w.nodes = slices.DeleteFunc(w.nodes, func(n string) bool { return n == name })
}

// freezeAPI pauses the API server: connections to it stay open without a response.
func (w *world) freezeAPI(d time.Duration) error {
	_, paused, err := try(exec.Command(w.testcluster, "pause", "--name", w.name, "kube-apiserver"))
	if err != nil {
		return fmt.Errorf("pausing the API server: %w: %s", err, paused)
	}
	time.Sleep(d)
	_, resumed, err := try(exec.Command(w.testcluster, "resume", "--name", w.name, "kube-apiserver"))
	if err != nil {
		return fmt.Errorf("resuming the API server: %w: %s", err, resumed)
	}
	return nil
}

// scan returns the open TCP ports of hosts, as seen from a node or from cp.
func (w *world) scan(t *testing.T, from, ports string, hosts ...string) map[string][]int {
	t.Helper()
	out, err := w.onNode(t, from, append([]string{w.tool, "scan", ports}, hosts...)...)
	return openPorts(t, from, out, err)
}

// openPorts decodes the output of the test program's scan.
func openPorts(t *testing.T, from, out string, err error) (open map[string][]int) {
	t.Helper()
	if err := errors.Join(err, json.Unmarshal([]byte(out), &open)); err != nil {
		t.Errorf("scanning from %s: %v: %s", from, err, out)
	}
	return open
}

// nodeAddresses returns a node's internal addresses, one for each IP family.
func (w *world) nodeAddresses(t *testing.T, node string) (addresses []string) {
	t.Helper()
	n := require.Value(w.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{}))(t)
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			addresses = append(addresses, a.Address)
		}
	}
	if len(addresses) == 0 {
		t.Fatalf("node %s has no address", node)
	}
	return addresses
}

// nodeImages returns the names of the images in a node's container runtime.
func (w *world) nodeImages(t *testing.T, node string) []string {
	t.Helper()
	out, err := w.onNode(t, node, "crictl", "images", "--output=json")
	var list struct {
		Images []struct{ RepoTags, RepoDigests []string }
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &list)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var names []string
	for _, image := range list.Images {
		names = append(append(names, image.RepoTags...), image.RepoDigests...)
	}
	if len(names) == 0 {
		t.Fatalf("node %s lists no images: %s", node, out)
	}
	return names
}

// onlyPause fails if a node holds an image that is neither a pause image nor one of those named.
func (w *world) onlyPause(t *testing.T, node string, but ...string) {
	t.Helper()
	got := w.nodeImages(t, node)
	t.Logf("%s holds %v", node, got)
	for _, image := range got {
		if !slices.ContainsFunc(append(but, "/pause"), func(part string) bool { return strings.Contains(image, part) }) {
			t.Errorf("%s holds %s", node, image)
		}
	}
}

// waitForImage waits until the kubelet reports an image: Helm schedules the Jobs to a node that has
// it.
func (w *world) waitForImage(t *testing.T, node, image string) {
	t.Helper()
	eventually(t, "node "+node+" to report "+image, func() error {
		n, err := w.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, i := range n.Status.Images {
			if strings.Contains(strings.Join(i.Names, " "), image) {
				return nil
			}
		}
		return errors.New("not reported yet")
	})
}

// containerID returns the ID of a pod's first container, as the runtime of its node has it.
func containerID(p corev1.Pod) string {
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	return id
}

// noneIsLeft waits until the pods of a component are gone.
func (w *world) noneIsLeft(t *testing.T, component string) {
	t.Helper()
	eventually(t, "the pods of "+component+" to be gone", func() error {
		if pods := w.pods(t, component); len(pods) > 0 {
			return fmt.Errorf("%d are left", len(pods))
		}
		return nil
	})
}

// succeedsOn repeats a program on a node until it succeeds.
func (w *world) succeedsOn(t *testing.T, what, node string, program ...string) {
	t.Helper()
	eventually(t, what, func() error {
		out, err := w.onNode(t, node, program...)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
}
