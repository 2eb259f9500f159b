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
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	namespace = "zarf"
	release   = "zarf-registry"
)

// world is a cluster and the programs to drive it.
type world struct {
	name       string // of the test cluster; empty for one of KUBECONFIG
	address    string // what image references begin with
	kubeconfig string
	config     *rest.Config
	client     kubernetes.Interface
	nodes      []string
	sets       []string // what helm install and upgrade are always told
	// The programs: of the cluster, and the static test program.
	testcluster, helm, kubectl, hook, tool string
}

// busy has a place for each cluster that works at the same time. Four keep two
// cores busy, for more than half of a scenario is waiting: three left a quarter idle.
var busy = make(chan struct{}, 4)

// place takes a place as soon as there is one.
func place(t *testing.T) {
	busy <- struct{}{}
	t.Cleanup(func() { <-busy })
}

// layout describes a test cluster. The zero value has two nodes and the init-hook image
// on n1. The cluster's kind comes from [kinds].
type layout struct {
	// bare leaves the init-hook image out: nodes hold nothing but pause.
	bare bool
	// long is for a scenario that takes longer than others: it gets its place first, so
	// that not all wait for it in the end.
	long bool
	// open turns NetworkPolicy enforcement off, which takes a sixth of a cluster's CPU time.
	// Dual-stack clusters are always open: kube-router 2.1.0 stops enforcing new policies
	// there, because its ip6tables rules name sets without their prefix ("Set KUBE-SRC-…
	// doesn't exist", it exists as inet6:KUBE-SRC-…).
	open bool
	// aside is for a cluster that is mostly left alone: it needs no place among the busy.
	aside bool
	args  []string // more arguments for testcluster up
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

// ownCluster boots a cluster of that name beside those of other tests. It skips
// the test where KUBECONFIG names a cluster, which is for TestMainJob.
func ownCluster(t *testing.T, name string, l layout) *world {
	t.Helper()
	if os.Getenv("KUBECONFIG") != "" {
		t.Skip("SKIPPED, NOTHING CHECKED: this scenario needs a test cluster of its own; unset KUBECONFIG")
	}
	t.Parallel()
	if !l.aside {
		if !l.long {
			time.Sleep(time.Second) // all begin at once
		}
		place(t)
	}
	return newWorld(t, name, l)
}

// newWorld boots a cluster of that name, or takes the one of KUBECONFIG.
func newWorld(t *testing.T, name string, l layout) *world {
	t.Helper()
	w := &world{
		testcluster: built(t, "E2E_TESTCLUSTER"),
		hook:        built(t, "E2E_INIT_HOOK"),
		tool:        buildTool(t),
		address:     "127.0.0.1:31999",
	}
	k := cmp.Or(kinds[name], commonKind)
	if k.family == "IPv6" {
		w.address = "[::1]:31999"
	}
	if kubeconfig := os.Getenv("KUBECONFIG"); kubeconfig != "" {
		t.Logf("using the cluster of KUBECONFIG=%s; scenarios that need the test cluster are skipped", kubeconfig)
		w.kubeconfig = kubeconfig
	} else {
		if runtime.GOOS != "linux" || os.Getuid() != 0 {
			t.Skip("SKIPPED, NOTHING CHECKED: booting a cluster needs Linux and root; set KUBECONFIG to use another")
		}
		w.name = name
		w.up(t, k, l)
	}
	var err error
	if w.config, err = clientcmd.BuildConfigFromFlags("", w.kubeconfig); err != nil {
		t.Fatal(err)
	}
	w.config.QPS, w.config.Burst = 100, 200
	if w.client, err = kubernetes.NewForConfig(w.config); err != nil {
		t.Fatal(err)
	}
	w.helm = strings.TrimSpace(run(t, w.testcluster, "tool", "helm"))
	w.kubectl = strings.TrimSpace(run(t, w.testcluster, "tool", "kubectl"))
	list, err := w.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list.Items {
		w.nodes = append(w.nodes, n.Name)
	}
	slices.Sort(w.nodes)
	if w.name != "" && !l.bare {
		w.waitForImage(t, w.nodes[0], "init-hook")
	}
	return w
}

// up boots the test cluster, to be taken down at the end of the test.
func (w *world) up(t *testing.T, k kind, l layout) {
	t.Helper()
	begin := time.Now()
	args := []string{"up", "--name", w.name, "--replace", "--ip-family", k.family, "--kube-proxy", k.kubeProxy}
	if !l.bare {
		args = append(args, "--load", "n1="+filepath.Join(built(t, "E2E_IMAGES"), "init-hook.tar"))
	}
	if l.open || k.family == "DualStack" {
		args = append(args, "--network-policy=false")
	}
	// Before up: also what came up in part is to go.
	t.Cleanup(func() {
		if t.Failed() && w.client != nil {
			t.Logf("the cluster's logs: %s; its last events:\n%s", w.saveLogs(t), w.lastEvents(t))
		}
		if t.Failed() && os.Getenv("E2E_KEEP") != "" {
			t.Logf("kept: %s down --name %s", w.testcluster, w.name)
			return
		}
		run(t, w.testcluster, "down", "--name", w.name)
	})
	run(t, w.testcluster, append(args, l.args...)...)
	w.kubeconfig = strings.TrimSpace(run(t, w.testcluster, "kubeconfig", "--name", w.name))
	t.Logf("figure: cluster %s up in %.1f s", w.name, time.Since(begin).Seconds())
}

// must runs a step that what follows builds on.
func must(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	if !t.Run(name, f) {
		t.Fatalf("%q failed: what follows builds on it", name)
	}
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
		out, _ := w.command(t, w.kubectl, args...).CombinedOutput()
		os.WriteFile(filepath.Join(dir, file), out, 0o600)
	}
	pods, err := w.client.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{})
	if err == nil {
		for _, p := range pods.Items {
			out, _ := w.command(t, w.kubectl, "-n", namespace, "logs", "--all-containers", "--prefix", p.Name).CombinedOutput()
			os.WriteFile(filepath.Join(dir, p.Name+".log"), out, 0o600)
		}
	}
	exec.Command("cp", "-r", "/var/lib/zarf-registry-test/"+w.name+"/log", dir).Run()
	return dir
}

// lastEvents is what the release's namespace went through last, for where only the
// test's own log is kept.
func (w *world) lastEvents(t *testing.T) string {
	out, _ := w.command(t, w.kubectl, "get", "events", "-n", namespace, "--sort-by=.lastTimestamp", "--no-headers").CombinedOutput()
	lines := strings.SplitAfter(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "")
}

// testClusterOnly skips a scenario that needs more than an API server.
func (w *world) testClusterOnly(t *testing.T) {
	t.Helper()
	if w.name == "" {
		t.Skip("SKIPPED, NOTHING CHECKED: this scenario needs the test cluster; unset KUBECONFIG")
	}
}

// command prepares a program to run against the cluster. A program that hangs is
// killed before the whole test is; pull loops end by themselves after ten minutes.
func (w *world) command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	return w.longCommand(t, 11*time.Minute, name, args...)
}

func (w *world) longCommand(t *testing.T, atMost time.Duration, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), atMost)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
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

// onNode runs a program in a node's namespaces; "cp" is the control plane's, which
// is outside of all nodes.
func (w *world) onNode(t *testing.T, node string, args ...string) (string, error) {
	t.Helper()
	out, errOut, err := try(w.command(t, w.testcluster, append([]string{"exec", "--name", w.name, node, "--"}, args...)...))
	return out + errOut, err
}

// dial says whether an address answers from a node.
func (w *world) dial(t *testing.T, node, address string) error {
	t.Helper()
	if out, err := w.onNode(t, node, w.tool, "dial", address); err != nil {
		return fmt.Errorf("dialling %s from %s: %s", address, node, strings.TrimSpace(out))
	}
	return nil
}

// programs is where the test program is built, for all tests together.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "zarf-registry-e2e-programs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = dir
	flag.Parse()
	// busy limits how many of them work at once.
	if err := flag.Set("test.parallel", "100"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// tool builds the test program and returns its path.
var tool = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programs, "tool")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./tool")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the test program: %w\n%s", err, out)
	}
	return path, nil
})

func buildTool(t *testing.T) string {
	t.Helper()
	path, err := tool()
	if err != nil {
		t.Fatal(err)
	}
	return path
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
