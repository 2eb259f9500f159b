package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/status"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestVolumes installs on volumes that can get lost: on a node, or between nodes. zarf-registry status names claim, pod
// and node, and the commands that it advises help.
func TestVolumes(t *testing.T) {
	onlyInLongRuns(t)
	w := ownCluster(t, "e2e-volumes", layout{open: true})
	w.wrongOwner(t)
	must(t, "a volume on a node that is cordoned", func(t *testing.T) {
		w.mustInstall(t, proxyMode, storageOn("local"))
		node := w.moveRegistry(t)
		w.advises(t, "node affinity", "describe pod/zarf-registry-", "persistentvolumeclaim/zarf-registry")
		w.claimIsBound(t)
		w.kubectlRun(t, "uncordon", node)
		w.registryReady(t)
		w.isHealthy(t)
	})
	w.startOver(t)
	must(t, "a volume that a node which is down has attached", func(t *testing.T) {
		w.mustInstall(t, proxyMode, storageOn("attached"))
		kubelet := "kubelet." + w.pods(t, "registry")[0].Spec.NodeName
		run(t, w.testcluster, "kill", "--name", w.name, kubelet)
		node := w.moveRegistry(t)
		words := []string{"FailedAttachVolume", "persistentvolumeclaim/zarf-registry"}
		_, text := w.interrupted(t, words, proxyMode, storageOn("attached"))
		for _, word := range words {
			if !strings.Contains(text, word) {
				t.Errorf("the error of zarf-registry install lacks %q: %s", word, text)
			}
		}
		w.kubectlRun(t, "taint", "nodes", node, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
		w.registryReady(t)
		run(t, w.testcluster, "restart", "--name", w.name, kubelet)
		w.kubectlRun(t, "taint", "nodes", node, "node.kubernetes.io/out-of-service-")
		w.kubectlRun(t, "uncordon", node)
		eventually(t, "a healthy cluster", func() error {
			r := w.install(t, nil, proxyMode, storageOn("attached"))
			return r.err
		})
		w.isHealthy(t)
	})
}

// storageOn selects a StorageClass of the test cluster for the registry.
func storageOn(class string) string { return "--set=registry.persistence.storageClass=" + class }

// wrongOwner installs on a volume that only root can write.
func (w *world) wrongOwner(t *testing.T) {
	t.Helper()
	must(t, "a volume that root owns", func(t *testing.T) {
		// Of an earlier installation.
		w.kubectlRun(t, "delete", "persistentvolumeclaim", "-n", w.namespace, release, "--ignore-not-found")
		words := []string{"permission denied"}
		_, text := w.interrupted(t, words, proxyMode, storageOn("root-owned"))
		for _, word := range append(words, " on node n") {
			if !strings.Contains(text, word) {
				t.Errorf("the error of zarf-registry install lacks %q: %s", word, text)
			}
		}
		w.kubectlRun(t, "delete", "-n", w.namespace, "persistentvolumeclaim/"+release, "pod/"+w.pods(t, "registry")[0].Name)
		w.mustInstall(t, proxyMode, storageOn("standard"))
		w.isHealthy(t)
	})
	w.startOver(t)
}

// interrupted runs zarf-registry install until zarf-registry status says all of that in one of the next steps, and returns the
// step and the output of zarf-registry install.
func (w *world) interrupted(t *testing.T, words []string, args ...string) (step, text string) {
	t.Helper()
	cmd := w.command(t, w.hook, append([]string{"install", "--timeout=4m", noRotation}, args...)...)
	log := require.Value(os.Create(filepath.Join(t.TempDir(), "log")))(t)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	read := func() string {
		return string(require.Value(os.ReadFile(log.Name()))(t))
	}
	require.NoError(t, cmd.Start())
	defer func() {
		if cmd.ProcessState == nil { // the test failed
			cmd.Process.Kill()
			cmd.Wait()
		}
	}()
	eventually(t, "zarf-registry install to wait for the registry", func() error {
		if text := read(); !strings.Contains(text, "waiting for the registry: ") {
			return errors.New(text)
		}
		return nil
	})
	step = w.advises(t, words...)
	w.claimIsBound(t)
	cmd.Process.Signal(os.Interrupt)
	if err := cmd.Wait(); err == nil {
		t.Errorf("zarf-registry install succeeded: %s", read())
	}
	return step, read()
}

// advises waits until zarf-registry status says all of that in one of the next steps, and returns the step.
func (w *world) advises(t *testing.T, words ...string) (step string) {
	t.Helper()
	eventually(t, "advice of zarf-registry status", func() error {
		var report status.Report
		out, errOut, err := try(w.command(t, w.hook, "status", "-n", w.namespace, "--output=json"))
		if e := json.Unmarshal([]byte(out), &report); e != nil {
			return fmt.Errorf("%w, %w: %s", err, e, errOut) // not installed yet
		}
	steps:
		for _, step = range report.Next {
			for _, word := range words {
				if !strings.Contains(step, word) {
					continue steps
				}
			}
			// What Kubernetes says may have changed meanwhile.
			if text, _, _ := try(w.command(t, w.hook, "status", "-n", w.namespace)); !strings.Contains(text, step) {
				return fmt.Errorf("zarf-registry status lacks %q: %s", step, text)
			}
			return nil
		}
		return fmt.Errorf("no step says all of %q: %s", words, mustJSON(report.Next))
	})
	t.Logf("advice: %s", step)
	return step
}

// claimIsBound fails unless zarf-registry status reports a bound claim of the registry.
func (w *world) claimIsBound(t *testing.T) {
	t.Helper()
	report, text := w.status(t)
	if r := report.Registry; r.Claim == nil || r.Claim.Phase != "Bound" || r.Claim.Volume == "" ||
		!strings.Contains(text, "claim "+release+": Bound to volume pvc-") {
		t.Errorf("the registry's claim is %s, want a bound one: %s", mustJSON(r), text)
	}
}

func (w *world) kubectlRun(t *testing.T, args ...string) {
	t.Helper()
	output(t, w.command(t, w.kubectl, args...))
}

// moveRegistry cordons the registry's node and deletes the pod, and returns the node.
func (w *world) moveRegistry(t *testing.T) (node string) {
	t.Helper()
	pod := w.pods(t, "registry")[0]
	w.kubectlRun(t, "cordon", pod.Spec.NodeName)
	require.NoError(t, w.client.CoreV1().Pods(w.namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}))
	return pod.Spec.NodeName
}

// registryReady waits until the registry's Deployment is available.
func (w *world) registryReady(t *testing.T) {
	t.Helper()
	w.kubectlRun(t, "wait", "-n", w.namespace, "deployment/"+release, "--for=condition=Available", "--timeout=3m")
}

// startOver uninstalls the release and deletes its claim.
func (w *world) startOver(t *testing.T) {
	t.Helper()
	must(t, "helm uninstall, and the claim is deleted", func(t *testing.T) {
		w.uninstall(t)
		w.kubectlRun(t, "delete", "persistentvolumeclaim", "-n", w.namespace, release)
	})
}
