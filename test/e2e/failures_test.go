package e2e

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// worlds are the clusters of running scenarios by the names of their tests.
var worlds sync.Map

// scenarioOf returns the name of the test that a subtest belongs to.
func scenarioOf(t *testing.T) string {
	name, _, _ := strings.Cut(t.Name(), "/")
	return name
}

// failures returns the folder for what explains failures of a scenario.
func failures(t *testing.T) string {
	root := cmp.Or(os.Getenv("E2E_FAILURES"), filepath.Join("..", "..", "dist", "e2e-failures"))
	return filepath.Join(root, scenarioOf(t))
}

// Run runs a step that later steps do not build on.
func (w *world) Run(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	if !t.Run(name, f) {
		explain(t, name)
	}
}

// explain keeps what explains the first failure of a scenario, before later steps change the cluster.
func explain(t *testing.T, step string) {
	t.Helper()
	if w, ok := worlds.Load(scenarioOf(t)); ok {
		w := w.(*world)
		w.explained.Do(func() { w.explain(t, step) })
	}
}

// explain writes events, objects, logs and what init-hook knows. Objects of the kind Secret are left out, and secrets in
// other places are masked.
func (w *world) explain(t *testing.T, step string) {
	t.Helper()
	dir, err := filepath.Abs(failures(t))
	if err != nil || w.client == nil {
		return
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Logf("keeping what explains the failure: %v", err)
		return
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Logf("keeping what explains the failure: %v", err)
		}
	}
	masker := w.masker()
	said := func(name, program string, args ...string) {
		out, err := w.command(t, program, args...).CombinedOutput()
		if err != nil {
			out = fmt.Appendf(out, "\n%s %s: %v\n", filepath.Base(program), strings.Join(args, " "), err)
		}
		write(name, masker.Replace(string(out)))
	}
	write("step.txt", step+"\n")
	said("events.txt", w.kubectl, "get", "events", "-A", "--sort-by=.lastTimestamp")
	for _, kind := range []string{"pods", "nodes", "deployments", "daemonsets", "jobs", "cronjobs", "services",
		"endpointslices", "persistentvolumeclaims"} {
		said(kind+".yaml", w.kubectl, "get", kind, "-A", "-o", "yaml")
	}
	said("status.txt", w.hook, "status", "-n", w.namespace)
	pods, err := w.client.CoreV1().Pods(w.namespace).List(context.Background(), metav1.ListOptions{})
	if err == nil {
		for _, p := range pods.Items {
			for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
				args := []string{"-n", w.namespace, "logs", p.Name, "-c", c.Name, "--timestamps"}
				said(p.Name+"_"+c.Name+".log", w.kubectl, args...)
				if c.RestartCount > 0 {
					said(p.Name+"_"+c.Name+".previous.log", w.kubectl, append(args, "--previous")...)
				}
			}
		}
	}
	if w.name != "" {
		write("nodes.log", masker.Replace(tails(w.stateOf("log"))))
	}
	t.Logf("FAILED in %q; what explains it is in %s; last events:\n%s", step, dir, w.lastEvents(t))
}

// tails returns the ends of the logs of container runtimes, kubelets and the control plane.
func tails(dir string) string {
	const most = 200 << 10
	var text strings.Builder
	filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || strings.Contains(path, "audit") {
			return nil
		}
		file, err := os.Open(path)
		if err != nil {
			return nil
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil && info.Size() > most {
			file.Seek(-most, io.SeekEnd)
		}
		data, _ := io.ReadAll(file)
		fmt.Fprintf(&text, "==> %s <==\n%s\n", path, data)
		return nil
	})
	return text.String()
}

// masker masks the values of the namespace's Secrets, plain and in base64.
func (w *world) masker() *strings.Replacer {
	var pairs []string
	list, err := w.client.CoreV1().Secrets(w.namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return strings.NewReplacer()
	}
	for _, s := range list.Items {
		for key, value := range s.Data {
			if text := strings.TrimSpace(string(value)); len(text) > 5 && s.Type != "helm.sh/release.v1" && !public(key, value) {
				pairs = append(pairs, text, "(masked)", base64.StdEncoding.EncodeToString(value), "(masked)")
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

// public reports whether a value of a Secret is also in other objects.
func public(key string, value []byte) bool {
	block, _ := pem.Decode(value)
	return key == "username" || key == "state.json" || key == "sum" || block != nil && block.Type == "CERTIFICATE"
}
