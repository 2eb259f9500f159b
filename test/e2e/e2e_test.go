// Package e2e proves the project on a real cluster: the one in KUBECONFIG, or one
// that it boots itself with test/cluster. Its tests are run by make e2e, which
// builds what they need and tells them where it is.
//
// Without those builds, or where no cluster can be had, everything is skipped,
// loudly. Scenarios that need what only the test cluster can do (new nodes, a
// node's own network namespace) are skipped on a cluster of KUBECONFIG.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	namespace = "zarf"
	release   = "zarf-registry"
	address   = "127.0.0.1:31999"
)

// world is a cluster and the programs to drive it.
type world struct {
	name       string // of the test cluster; empty for one of KUBECONFIG
	kubeconfig string
	config     *rest.Config
	client     kubernetes.Interface
	nodes      []string
	helm       string
	tool       string // the static test program
}

// built is what make e2e built, by the environment variable that names it.
func built(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Skipf("SKIPPED, NOTHING CHECKED: %s is not set; run make e2e", variable)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s: %v; run make e2e", variable, err)
	}
	return path
}

// newWorld boots a cluster of that name, or takes the one of KUBECONFIG. args are
// for testcluster up.
func newWorld(t *testing.T, name string, args ...string) *world {
	t.Helper()
	w := &world{}
	testcluster := built(t, "E2E_TESTCLUSTER")
	if kubeconfig := os.Getenv("KUBECONFIG"); kubeconfig != "" {
		t.Logf("using the cluster of KUBECONFIG=%s; scenarios that need the test cluster are skipped", kubeconfig)
		w.kubeconfig = kubeconfig
	} else {
		if runtime.GOOS != "linux" || os.Getuid() != 0 {
			t.Skip("SKIPPED, NOTHING CHECKED: booting a cluster needs Linux and root; set KUBECONFIG to use another")
		}
		w.name = name
		begin := time.Now()
		run(t, testcluster, append([]string{"up", "--name", name, "--replace"}, args...)...)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("the cluster's logs: %s", w.saveLogs(t))
			}
			if t.Failed() && os.Getenv("E2E_KEEP") != "" {
				t.Logf("kept: %s down --name %s", testcluster, name)
				return
			}
			run(t, testcluster, "down", "--name", name)
		})
		w.kubeconfig = strings.TrimSpace(run(t, testcluster, "kubeconfig", "--name", name))
		t.Logf("figure: cluster %s up in %.1f s", name, time.Since(begin).Seconds())
	}
	var err error
	if w.config, err = clientcmd.BuildConfigFromFlags("", w.kubeconfig); err != nil {
		t.Fatal(err)
	}
	w.config.QPS, w.config.Burst = 100, 200
	if w.client, err = kubernetes.NewForConfig(w.config); err != nil {
		t.Fatal(err)
	}
	w.helm = strings.TrimSpace(run(t, testcluster, "tool", "helm"))
	w.tool = buildTool(t)
	list, err := w.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list.Items {
		w.nodes = append(w.nodes, n.Name)
	}
	slices.Sort(w.nodes)
	return w
}

// saveLogs copies what tells why, before the cluster goes.
func (w *world) saveLogs(t *testing.T) string {
	dir, err := os.MkdirTemp("", "zarf-registry-e2e-")
	if err != nil {
		return err.Error()
	}
	for file, args := range map[string][]string{
		"pods":                   {"get", "pods", "-A", "-o", "yaml"},
		"events":                 {"get", "events", "-A", "--sort-by=.lastTimestamp"},
		"secrets-and-configmaps": {"get", "secrets,configmaps", "-A"},
	} {
		out, _ := w.command(t, "kubectl", args...).CombinedOutput()
		os.WriteFile(filepath.Join(dir, file), out, 0o600)
	}
	pods, err := w.client.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{})
	if err == nil {
		for _, p := range pods.Items {
			out, _ := w.command(t, "kubectl", "-n", namespace, "logs", "--all-containers", "--prefix", p.Name).CombinedOutput()
			os.WriteFile(filepath.Join(dir, p.Name+".log"), out, 0o600)
		}
	}
	exec.Command("cp", "-r", "/var/lib/zarf-registry-test/"+w.name+"/log", dir).Run()
	return dir
}

// testClusterOnly skips a scenario that needs more than an API server.
func (w *world) testClusterOnly(t *testing.T) {
	t.Helper()
	if w.name == "" {
		t.Skip("SKIPPED, NOTHING CHECKED: this scenario needs the test cluster; unset KUBECONFIG")
	}
}

// command prepares a program to run against the cluster.
func (w *world) command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	if name == "kubectl" {
		name = strings.TrimSpace(run(t, built(t, "E2E_TESTCLUSTER"), "tool", "kubectl"))
	}
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.kubeconfig)
	return cmd
}

// run runs a program and returns what it wrote to stdout.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	return output(t, exec.Command(name, args...))
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, errOut, err := try(cmd)
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, out, errOut)
	}
	return out
}

// try runs a program that may fail.
func try(cmd *exec.Cmd) (stdout, stderr string, err error) {
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// onNode runs the test program in a node's namespaces.
func (w *world) onNode(t *testing.T, node string, args ...string) (string, error) {
	t.Helper()
	out, errOut, err := try(exec.Command(built(t, "E2E_TESTCLUSTER"), append([]string{"exec", "--name", w.name, node, "--"}, args...)...))
	return out + errOut, err
}

func buildTool(t *testing.T) string {
	t.Helper()
	tool := filepath.Join(t.TempDir(), "tool")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", tool, "./tool")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	output(t, cmd)
	return tool
}

// installArgs are those of the README's command, and where the chart is.
func installArgs(t *testing.T, verb string, args ...string) []string {
	return append([]string{verb, release, built(t, "E2E_CHART"), "-n", namespace, "--create-namespace", "--set", "registryProxy=true", "--timeout", "5m"}, args...)
}

// push pushes an archive with init-hook and returns what it says it pushed.
func (w *world) push(t *testing.T, archive string) string {
	t.Helper()
	return strings.TrimSpace(output(t, w.command(t, built(t, "E2E_INIT_HOOK"), "images", "push", archive)))
}

// runPod runs a pod and waits until it runs or ended; it returns how long that
// took and where the kubelet says the image came from.
func (w *world) runPod(t *testing.T, pod *corev1.Pod) (time.Duration, string) {
	t.Helper()
	begin := time.Now()
	pods := w.client.CoreV1().Pods(pod.Namespace)
	made, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now := int64(0)
		pods.Delete(context.Background(), made.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
	eventually(t, 2*time.Minute, "pod "+made.Name+" to run", func() error {
		p, err := pods.Get(t.Context(), made.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		switch p.Status.Phase {
		case corev1.PodRunning, corev1.PodSucceeded:
			return nil
		}
		return fmt.Errorf("phase %s: %s", p.Status.Phase, mustJSON(p.Status.ContainerStatuses))
	})
	took := time.Since(begin)
	var pulled string
	eventually(t, 20*time.Second, "the event of the pull", func() error {
		events, err := w.client.CoreV1().Events(pod.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + made.Name + ",reason=Pulled"})
		if err != nil {
			return err
		}
		if len(events.Items) == 0 {
			return fmt.Errorf("no event yet")
		}
		pulled = events.Items[0].Message
		return nil
	})
	return took, pulled
}

// pod is a pod of the restricted kind on a node.
func pod(name, ns, node, image string, args ...string) *corev1.Pod {
	no, yes, id := false, true, int64(65532)
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  &no,
			TerminationGracePeriodSeconds: &grace,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			SecurityContext:               &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &id, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "main", Image: image, Args: args, ImagePullPolicy: corev1.PullAlways,
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}
}

// eventually polls until check is content, and fails with its last error.
func eventually(t *testing.T, within time.Duration, what string, check func() error) {
	t.Helper()
	end := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited %s for %s: %v", within, what, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func mustJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// registryPods are the pods of a component of the release.
func (w *world) pods(t *testing.T, component string) []corev1.Pod {
	t.Helper()
	list, err := w.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + release + ",app.kubernetes.io/component=" + component})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func ready(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
