// Package e2e tests the project on a real cluster: the one in KUBECONFIG, or those that it boots
// with test/cluster. make e2e builds what the tests need and passes the paths in environment
// variables.
//
// Without those builds, or where no cluster can be booted, all tests are skipped with a message.
// Scenarios that need the test cluster (to add nodes, to enter a node's network namespace) are
// skipped on a cluster of KUBECONFIG. Package scenarios lists all scenarios; [choose] selects those of a run.
package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/zarf-dev/zarf-registry/test/e2e/scenarios"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// The release, and its namespace unless a layout names another.
const (
	namespace = "zarf"
	release   = "zarf-registry"
)

// world is a cluster and the programs that drive it.
type world struct {
	name       string // of the test cluster; empty for one of KUBECONFIG
	network    network
	namespace  string // of the release
	policies   bool   // NetworkPolicies are enforced
	address    string // registry host of image references
	kubeconfig string
	config     *rest.Config
	client     kubernetes.Interface
	nodes      []string
	sets       []string // arguments of every helm install and upgrade
	provoked   []string // parts of messages about failed pulls that noFailedPulls accepts
	kept       []string // objects of the test in the namespace, which an uninstall leaves
	explained  *sync.Once
	// Paths of programs; tool is the static test program.
	testcluster, helm, kubectl, hook, tool string
}

// busy limits how many clusters are busy at a time, to one for each CPU and at least two. More than half of a scenario is
// waiting: one cluster after the other takes 15 % longer. But on a slow virtual machine twice as many exceed the time that
// the product gives a node to pull.
var busy = make(chan struct{}, max(runtime.NumCPU(), 2))

// place waits for a place in busy and keeps it until the test ends. The longest scenario begins first, so that none is
// left over at the end.
func place(t *testing.T) {
	time.Sleep(time.Duration(ranks[scenarioOf(t)]) * 20 * time.Millisecond)
	busy <- struct{}{}
	begin := time.Now()
	t.Cleanup(func() {
		<-busy
		took.Store(scenarioOf(t), time.Since(begin))
	})
}

// took has the duration of each scenario that had a place.
var took sync.Map

// keepsBudget reports whether the scenarios took less than twice as long as package scenarios says, where two of them share
// two cores. Other machines, and runs of a few scenarios, have no budget.
func keepsBudget() bool {
	var sum, budget float64
	count := 0
	took.Range(func(test, duration any) bool {
		i := slices.IndexFunc(scenarios.All, func(s scenarios.Scenario) bool { return s.Test == test })
		minutes := duration.(time.Duration).Minutes()
		fmt.Printf("%s took %.1f minutes, planned %.1f\n", test, minutes, scenarios.All[i].Minutes)
		sum, budget, count = sum+minutes, budget+scenarios.All[i].Minutes, count+1
		return true
	})
	if count < 5 || runtime.NumCPU() != 2 || long() || sum < 2*budget {
		return true
	}
	fmt.Printf("%d scenarios took %.1f minutes together, planned %.1f: find out why, or update test/e2e/scenarios/table.go\n",
		count, sum, budget)
	return false
}

// layout describes a test cluster. The zero value has two nodes and the init-hook image
// on n1. The cluster's network comes from package scenarios, unless the layout names one.
type layout struct {
	// bare does not load the init-hook image: nodes hold only pause images.
	bare bool
	// open turns NetworkPolicy enforcement off, which takes a sixth of a cluster's CPU time.
	// Clusters with IPv6 are always open: kube-router 2.1.0 enforces nothing there, because its ip6tables
	// rules name sets without their prefix ("Set KUBE-DST-… doesn't exist", it exists as
	// inet6:KUBE-DST-…).
	open bool
	// aside is for a cluster that is mostly idle: it does not count as busy.
	aside bool
	// namespace is the release's, if it is not the usual one.
	namespace string
	network   *network
	args      []string // more arguments for testcluster up
}

// built returns a path from the environment variable that make e2e sets.
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

// ownCluster boots a test cluster. The test runs in parallel with others. It is skipped on a
// cluster of KUBECONFIG, which only TestMainJob uses.
func ownCluster(t *testing.T, name string, l layout) *world {
	t.Helper()
	if os.Getenv("KUBECONFIG") != "" {
		t.Skip("SKIPPED, NOTHING CHECKED: this scenario needs a test cluster of its own; unset KUBECONFIG")
	}
	t.Parallel()
	if l.network == nil {
		networkOf(t, name) // skips before it waits for a place
	}
	if !l.aside {
		place(t)
	}
	w := newWorld(t, name, l)
	w.sets = []string{noRotation}
	w.noFailedPulls(t)
	return w
}

// newWorld boots a test cluster, or uses the one of KUBECONFIG.
func newWorld(t *testing.T, name string, l layout) *world {
	t.Helper()
	w := &world{
		testcluster: built(t, "E2E_TESTCLUSTER"),
		hook:        built(t, "E2E_ZARF_REGISTRY"),
		tool:        buildTool(t),
		namespace:   cmp.Or(l.namespace, namespace),
		policies:    true,
		explained:   &sync.Once{},
	}
	if l.network != nil {
		w.network = *l.network
	} else {
		w.network = networkOf(t, name)
	}
	worlds.Store(t.Name(), w)
	require.NoError(t, os.RemoveAll(failures(t)))
	w.address = net.JoinHostPort(w.loopback(), "31999")
	if kubeconfig := os.Getenv("KUBECONFIG"); kubeconfig != "" {
		t.Logf("using the cluster of KUBECONFIG=%s; scenarios that need the test cluster are skipped", kubeconfig)
		w.kubeconfig = kubeconfig
	} else {
		if err := boots(); err != nil {
			t.Skip("SKIPPED, NOTHING CHECKED: " + err.Error())
		}
		w.name = name
		w.up(t, l)
	}
	w.config = require.Value(clientcmd.BuildConfigFromFlags("", w.kubeconfig))(t)
	w.config.QPS, w.config.Burst = 100, 200
	w.client = require.Value(kubernetes.NewForConfig(w.config))(t)
	w.helm = built(t, "E2E_HELM")
	w.kubectl = strings.TrimSpace(run(t, w.testcluster, "tool", "kubectl"))
	list := require.Value(w.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}))(t)
	for _, n := range list.Items {
		w.nodes = append(w.nodes, n.Name)
	}
	slices.Sort(w.nodes)
	if w.name != "" && !l.bare {
		w.waitForImage(t, w.nodes[0], "init-hook")
	}
	return w
}

// boots returns why this machine boots no test clusters.
func boots() error {
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		return errors.New("booting a cluster needs Linux and root; set KUBECONFIG to use another")
	}
	return nil
}

// up boots the test cluster and removes it at the end of the test.
func (w *world) up(t *testing.T, l layout) {
	t.Helper()
	begin := time.Now()
	// Volumes on the host's disk would be as full as that disk, and status reports it from 85 % on.
	// The node grace is that of production: nodes stay ready while a busy machine delays their kubelets, and during the
	// soak test's faults except the loss of a node.
	args := []string{"up", "--name", w.name, "--replace", "--ip-family", w.network.Family,
		"--kube-proxy", w.network.KubeProxy, "--volumes-size", strconv.Itoa(8 << 30), "--node-grace", "50s"}
	if !l.bare {
		args = append(args, "--load", "n1="+filepath.Join(built(t, "E2E_IMAGES"), "init-hook.tar"))
	}
	if w.policies = !l.open && w.network.Family == "IPv4"; !w.policies {
		args = append(args, "--network-policy=false")
	}
	// Before up, which may fail half-way.
	t.Cleanup(func() {
		if t.Failed() {
			explain(t, "the end")
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

// must runs a step that later steps build on.
func must(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	if !t.Run(name, f) {
		explain(t, name)
		t.Fatalf("%q failed, and later steps build on it", name)
	}
}

// stateOf returns a path below the directory with the state of the test cluster.
func (w *world) stateOf(elements ...string) string {
	return filepath.Join("/var/lib/zarf-registry-test", w.name, filepath.Join(elements...))
}

// lastEvents returns the last events of the release's namespace, for runs of which only the test's
// log is kept.
func (w *world) lastEvents(t *testing.T) string {
	out, _ := w.command(t, w.kubectl, "get", "events", "-n", w.namespace, "--sort-by=.lastTimestamp",
		"--no-headers").CombinedOutput()
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

// command returns a command with the cluster's KUBECONFIG. A command that hangs is killed before
// the test times out; pull loops end by themselves after ten minutes.
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

// run runs a program and returns its stdout.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	return output(t, exec.Command(name, args...))
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, errOut, err := try(cmd)
	require.NoError(t, err, strings.Join(cmd.Args, " "), out, errOut)
	return out
}

// try runs a program that may fail.
func try(cmd *exec.Cmd) (stdout, stderr string, err error) {
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// onNode runs a program in a node's namespaces. "cp" is the control plane, outside of all nodes.
func (w *world) onNode(t *testing.T, node string, args ...string) (string, error) {
	t.Helper()
	out, errOut, err := try(w.command(t, w.testcluster, append([]string{"exec", "--name", w.name, node, "--"},
		args...)...))
	return out + errOut, err
}

// dial connects to an address from a node.
func (w *world) dial(t *testing.T, node, address string) error {
	t.Helper()
	if out, err := w.onNode(t, node, w.tool, "dial", address); err != nil {
		return fmt.Errorf("dialing %s from %s: %s", address, node, strings.TrimSpace(out))
	}
	return nil
}

// programs is the folder with the programs that tests build.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "zarf-registry-e2e-programs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = dir
	// helm, kubectl, crictl and init-hook end soon: collecting garbage is a seventh of their CPU time.
	if os.Getenv("GOGC") == "" {
		os.Setenv("GOGC", "400")
	}
	flag.Parse()
	// busy limits how many of them are busy.
	if err := errors.Join(flag.Set("test.parallel", "100"), choose()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if !keepsBudget() {
		code = max(code, 1)
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// tool builds the test program and returns its path.
var tool = sync.OnceValues(func() (string, error) { return buildProgram("tool") })

// buildProgram builds a static program of this directory and returns its path.
func buildProgram(name string) (string, error) {
	path := filepath.Join(programs, name)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the program %s: %w\n%s", name, err, out)
	}
	return path, nil
}

func buildTool(t *testing.T) string {
	t.Helper()
	return require.Value(tool())(t)
}

// patience is how long a scenario waits for anything. It limits only how late a failure is reported: no scenario judges
// time but the soak test, since it depends on the machine; those that measure it log a figure.
const patience = 5 * time.Minute

// eventually polls until check returns nil, and otherwise fails with its last error.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	end := time.Now().Add(patience)
	for {
		begin := time.Now()
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited %s for %s: %v", patience, what, err)
		}
		// A check that runs programs, such as zarf-registry status, takes at most a third of the time.
		time.Sleep(max(200*time.Millisecond, 2*time.Since(begin)))
	}
}

func mustJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
