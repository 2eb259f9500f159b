package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries/registriestest"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/cmd/registry/root"
	kube "github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/node/heal"
	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
)

// TestMain runs the registry, the healer and init-hook, which are the test binary. Its init-hook only lists nodes,
// because the real one embeds programs that have to be built first.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "serve", "garbage-collect":
			os.Exit(root.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
		case "heal":
			if err := runHealer(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		case "prepare":
			if err := readNodes(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	os.Exit(m.Run())
}

func readNodes(args []string) error {
	kubeconfig, _ := strings.CutPrefix(args[0], "--kubeconfig=")
	_, client, err := kube.Connect(kube.Access{Kubeconfig: kubeconfig})
	if err != nil {
		return err
	}
	nodes, err := client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	fmt.Printf("found %d nodes\n", len(nodes.Items))
	return nil
}

// runHealer does what registry-node heal does.
func runHealer(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config := heal.Config{Logger: slog.Default(), Now: time.Now, Startup: heal.Startup{Until: heal.UntilProxy},
		Rules: func() (nodeimages.Rules, error) { return pauseRules, nil }}
	flags := flag.NewFlagSet("heal", flag.ContinueOnError)
	namespace, release := flags.String("namespace", "", ""), flags.String("release", "", "")
	dir := flags.String("service-account-dir", "", "")
	flags.StringVar(&config.Startup.Taint, heal.FlagTaint, "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config.Connect = func() (*heal.Client, error) {
		client, err := heal.InCluster(*dir, time.Now)
		if err == nil {
			client.Namespace, client.Release = *namespace, *release
		}
		return client, err
	}
	return heal.New(config).Run(ctx)
}

func TestEverythingIsMeasuredInEveryRun(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, written := registriestest.Memory(t), t.TempDir()
	args := []string{"-force", "-n", "2", "-registry", self, "-init-hook", self, "-dir", dir, "-write", written,
		"-nodes", "1,7", "-pulls", "14", "-image", "30000", "-herds", "5x1", "-clusters", "3,1100"}
	if err := bench(t.Context(), args, new(bytes.Buffer)); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	r, err := results.Read(written)
	if err != nil {
		t.Fatal(err)
	}
	value := func(table, subject, what string) float64 {
		m := r.Find(table, subject, what)
		if m == nil || len(m.Runs) != 2 {
			t.Errorf("%s, %s, %s: %+v, want two values", table, subject, what, m)
			return math.NaN()
		}
		median, _, _ := m.Spread()
		return median
	}
	for _, table := range []string{tableSame, tableDifferent} {
		for _, nodes := range []string{"1 node", "7 nodes"} {
			if failed := value(table, nodes, "failed pulls"); failed != 0 {
				t.Errorf("%s, %s: %v pulls failed", table, nodes, failed)
			}
			for _, what := range []string{"throughput", "an image, p50", "an image, p99", "CPU per GiB", "memory",
				"connections"} {
				if value(table, nodes, what) <= 0 {
					t.Errorf("%s, %s: there is no %s", table, nodes, what)
				}
			}
		}
	}
	const herd = "5 nodes, 1 MB"
	if factor := value(tableHerd, herd, "sent per byte of image and node"); factor < 1 || factor > 1.1 {
		t.Errorf("the herd was sent %v times the image for each node", factor)
	}
	if first, last := value(tableHerd, herd, "first done"), value(tableHerd, herd, "last done"); first <= 0 ||
		last < first {
		t.Errorf("the first was done after %v s, the last after %v s", first, last)
	}
	if requests := value(tablePrepare, "cluster of 3 nodes", "requests"); requests != 1 {
		t.Errorf("%v requests for 3 nodes", requests)
	}
	if requests := value(tablePrepare, "cluster of 1100 nodes", "requests"); requests != 3 {
		t.Errorf("%v requests for 1100 nodes, want as many as there are pages", requests)
	}
	if read := value(tablePrepare, "cluster of 1100 nodes", "read"); read < 1100*0.005 {
		t.Errorf("%v MB were read of 1100 nodes", read)
	}
}

func TestHealersAreMeasured(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	written := t.TempDir()
	args := []string{"-force", "-n", "1", "-registry-node", self, "-dir", registriestest.Memory(t), "-write", written,
		"-nodes", "", "-herds", "", "-clusters", "", "-healers", "1000", "-rest", "2s"}
	if err := bench(t.Context(), args, new(bytes.Buffer)); err != nil {
		t.Fatal(err)
	}
	r, err := results.Read(written)
	if err != nil {
		t.Fatal(err)
	}
	value := func(taint bool, what string) float64 {
		m := r.Find(tableHealer, healerName(1000, taint), what)
		if m == nil {
			t.Fatalf("no %s", what)
		}
		median, _, _ := m.Spread()
		return median
	}
	for _, taint := range []bool{false, true} {
		if value(taint, "memory") <= 0 || value(taint, "CPU at start") <= 0 {
			t.Errorf("%+v", r.Measures)
		}
	}
	// 1000 nodes report every five minutes.
	if without, with := value(false, "read per minute"), value(true, "read per minute"); without != 0 || with < 1 {
		t.Errorf("%v MB are read without, %v MB with a startup taint", without, with)
	}
}

func TestCollectionsAreMeasured(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	written := t.TempDir()
	args := []string{"-force", "-n", "1", "-registry", self, "-dir", registriestest.Memory(t), "-write", written,
		"-nodes", "", "-herds", "", "-clusters", "", "-garbage", "5000"}
	if err := bench(t.Context(), args, new(bytes.Buffer)); err != nil {
		t.Fatal(err)
	}
	r, err := results.Read(written)
	if err != nil {
		t.Fatal(err)
	}
	value := func(subject, what string) float64 {
		m := r.Find(tableGarbage, subject, what)
		if m == nil {
			t.Fatalf("%s: no %s", subject, what)
		}
		return m.Runs[0]
	}
	for _, c := range collectors(5000) {
		if value(c.name, "incomplete images") != 0 || value(c.name, "pushed images") < 8 || value(c.name, "collection") < 20 {
			t.Errorf("%s: %+v", c.name, r.Measures)
		}
	}
	if removed := value(garbageName(5000), "removed blobs"); removed < 1 || removed > 5000 {
		t.Errorf("%v blobs were removed", removed)
	}
}

func TestCluster(t *testing.T) {
	c := newCluster(2)
	server := httptest.NewServer(c)
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: %q}}]\ncontexts: [{name: "+
		"a, context: {cluster: a}}]\ncurrent-context: a\n", server.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, client, err := kube.Connect(kube.Access{Kubeconfig: file})
	if err != nil {
		t.Fatal(err)
	}
	ctx, maps := t.Context(), client.CoreV1().ConfigMaps("zarf")
	if _, err := maps.Get(ctx, "a", metav1.GetOptions{}); err == nil {
		t.Error("found a ConfigMap that does not exist")
	}
	made, err := maps.Create(ctx, configMap("a", "x"), metav1.CreateOptions{})
	if err != nil || made.ResourceVersion == "" {
		t.Fatalf("%v, %v", made, err)
	}
	if _, err := maps.Create(ctx, configMap("a", "x"), metav1.CreateOptions{}); err == nil {
		t.Error("created twice")
	}
	if _, err := maps.Create(ctx, configMap("tried", "x"), metav1.CreateOptions{DryRun: []string{"All"}}); err != nil {
		t.Error(err)
	}
	if _, err := maps.Create(ctx, configMap("b", "y"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	found, err := maps.List(ctx, metav1.ListOptions{LabelSelector: "label=x"})
	if err != nil || len(found.Items) != 1 || found.Items[0].Name != "a" {
		t.Errorf("%v, %v", found, err)
	}
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if found, err := maps.List(ctx, metav1.ListOptions{}); err != nil || len(found.Items) != 1 {
		t.Errorf("%v, %v", found, err)
	}
}

func TestNodeSize(t *testing.T) {
	if size := nodeBytes(); size < 10_000 || size > 50_000 {
		t.Errorf("a node is %d bytes", size)
	}
}

func TestJainsIndex(t *testing.T) {
	for description, tt := range map[string]struct {
		took []time.Duration
		want float64
	}{
		"all equal":                     {[]time.Duration{2, 2, 2}, 1},
		"one takes three times as long": {[]time.Duration{1, 3}, 0.8},
		"one gets nearly everything":    {[]time.Duration{1, 1e12, 1e12, 1e12}, 0.25},
	} {
		if got := jain(tt.took); math.Abs(got-tt.want) > 1e-6 {
			t.Errorf("%s: %v, want %v", description, got, tt.want)
		}
	}
}

func TestFlags(t *testing.T) {
	o, err := parse([]string{"-nodes", "", "-herds", "2x3,4x5", "-clusters", "6"})
	if err != nil || len(o.nodes) != 0 || len(o.herds) != 2 || o.herds[1].String() != "4 nodes, 5 MB" ||
		o.clusters[0] != 6 {
		t.Errorf("%+v, %v", o, err)
	}
	for _, bad := range [][]string{{"-nodes", "x"}, {"-nodes", "0"}, {"-herds", "3"}, {"-herds", "axb"},
		{"-clusters", "-1"}, {"argument"}} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
}

func configMap(name, label string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"label": label}}}
}
