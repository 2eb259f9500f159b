package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/test/e2e/soak"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// inject injects the fault of a step and repairs it.
func (s *soaking) inject(t *testing.T, step soak.Step) {
	t.Helper()
	during := func(inject, repair func()) {
		// Repair even if the test fails.
		defer repair()
		inject()
		time.Sleep(step.Hold)
	}
	component := func(name string) {
		during(func() { s.cluster(t, "kill", name) }, func() { s.cluster(t, "restart", name) })
	}
	switch step.Kind.Name {
	case "kill the registry":
		s.killPod(t, s.w.waitForRegistry(t, ""), step.Variant)
	case "kill a proxy":
		for _, p := range s.w.pods(t, "proxy") {
			if p.Spec.NodeName == step.Node {
				s.killPod(t, p, step.Variant)
			}
		}
	case "kill a kubelet":
		component("kubelet." + step.Node)
	case "kill containerd":
		component("containerd." + step.Node)
	case "kill the API server":
		component("kube-apiserver")
	case "cut a node off":
		during(func() { s.cluster(t, "unplug", step.Node) }, func() { s.cluster(t, "plug", step.Node) })
	case soak.FillVolume:
		filler := s.w.stateOf("volumes", "filler")
		during(func() { fill(t, filler) }, func() { os.Remove(filler) })
	case "corrupt a certificate":
		component := map[string]string{"server-tls": "registry", "node-tls": "proxy"}[step.Variant]
		during(func() {
			begin := metav1.Now()
			s.corrupt(t, step.Variant)
			observed := []string{"cannot reload certificates"}
			if s.certManager { // which may issue another one first
				observed = append(observed, "certificates loaded")
			}
			s.observed(t, component, begin, observed...)
		}, func() {
			s.w.certs(t, "renew")
			eventually(t, "certs show to report no problem", func() error {
				// cert-manager's certificate is the one that the pods still use.
				for _, p := range s.running(t, component) {
					if err := s.updateVolumes(t, p); err != nil {
						return err
					}
				}
				out, errOut, err := try(s.w.command(t, s.w.hook, "certs", "show"))
				if err != nil {
					err = fmt.Errorf("%w: %s%s", err, out, errOut)
				}
				return err
			})
		})
	case "corrupt the push certificate":
		during(func() { s.corrupt(t, step.Variant) }, func() { s.w.certs(t, "renew") })
	case "corrupt the payload":
		during(func() { s.corruptPayload(t, step) }, func() { s.w.helmChart(t, "upgrade", s.mode()) })
	case "rotate":
		if step.Variant == "CA" {
			s.w.certs(t, "rotate", "--ca")
		} else {
			s.w.certs(t, "rotate")
		}
	case "rotate the credential":
		output(t, s.w.command(t, s.w.hook, "credentials", "rotate"))
		s.mark(t)
	case soak.Switch:
		s.switchMode(t)
	case soak.Upgrade:
		current := s.w.revision(t)
		s.upgrade(t)
		s.w.rollback(t, current)
	case soak.UpgradeWithout:
		s.upgradeWithout(t, step)
	case soak.AddNode:
		s.w.addNode(t, step.Node)
		s.answers(t, step.Node)
	case soak.RemoveNode:
		output(t, s.w.command(t, s.w.kubectl, "drain", step.Node, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
			"--timeout=3m"))
		s.unwatch(step.Node)
		s.w.removeNode(t, step.Node)
	case "reboot a node":
		s.unwatch(step.Node) // its pull loop ends with the node
		s.cluster(t, "reboot", step.Node)
		s.watch(t, step.Node)
	case soak.LoseNode:
		s.loseNode(t, step.Variant == soak.Removed)
	default:
		t.Fatalf("unknown fault %q", step.Kind.Name)
	}
}

// answers waits until the registry's address answers on a new node, and starts its pull loop.
func (s *soaking) answers(t *testing.T, node string) {
	t.Helper()
	eventually(t, "the loopback address of node "+node+" to answer",
		func() error { return s.w.dial(t, node, s.w.address) })
	s.watch(t, node)
}

// upgrade upgrades to a version with the same programs.
func (s *soaking) upgrade(t *testing.T) {
	t.Helper()
	output(t, s.w.command(t, s.w.helm, append([]string{"upgrade", release, otherVersion(t, built(t, "E2E_CHART")), "-n",
		namespace, "--timeout", "5m", s.mode(), "--set=initHook.image.tag=" + chartVersion(t, built(t, "E2E_CHART"))},
		s.w.sets...)...))
}

// spare returns a node that the registry does not need: another one has a ready registry.
func (s *soaking) spare(t *testing.T) string {
	t.Helper()
	needed := s.w.waitForRegistry(t, "").Spec.NodeName
	return s.w.nodes[slices.IndexFunc(s.w.nodes, func(n string) bool { return n != needed })]
}

// upgradeWithout upgrades while a node is not ready, and rolls back when it has returned.
func (s *soaking) upgradeWithout(t *testing.T, step soak.Step) {
	t.Helper()
	current := s.w.revision(t)
	if step.Variant == soak.NoKubelet {
		s.cluster(t, "kill", "kubelet."+step.Node)
	} else {
		s.unwatch(step.Node)
		s.cluster(t, "off", step.Node)
	}
	eventually(t, "the node to be not ready", func() error { return s.w.readiness(t, step.Node, false) })
	s.upgrade(t)
	if step.Variant == soak.NoKubelet {
		s.cluster(t, "restart", "kubelet."+step.Node)
	} else {
		s.cluster(t, "on", step.Node)
		s.answers(t, step.Node)
	}
	eventually(t, "the node to be ready", func() error { return s.w.readiness(t, step.Node, true) })
	s.w.rollback(t, current)
}

// loseNode cuts the registry's node off until its pods are evicted and the registry runs elsewhere. Then the node
// comes back, or another one with its name and an empty disk joins.
func (s *soaking) loseNode(t *testing.T, replaced bool) {
	t.Helper()
	lost := s.w.waitForRegistry(t, "").Spec.NodeName
	s.note("   it is %s", lost)
	s.cluster(t, "unplug", lost)
	begin := time.Now()
	eventually(t, "the registry to run on other nodes", func() error {
		elsewhere := false
		for _, p := range s.w.pods(t, "registry") {
			if p.Spec.NodeName == lost && p.DeletionTimestamp == nil {
				return fmt.Errorf("pod %s on node %s is not evicted", p.Name, lost)
			}
			elsewhere = elsewhere || p.Spec.NodeName != lost && ready(p)
		}
		if !elsewhere {
			return errors.New("no registry pod is ready")
		}
		return nil
	})
	t.Logf("figure: node %s lost, the registry ready elsewhere after %.1f s", lost, time.Since(begin).Seconds())
	if !replaced {
		s.cluster(t, "plug", lost)
		return
	}
	s.unwatch(lost)
	s.w.removeNode(t, lost)
	s.w.addNode(t, lost)
	s.cluster(t, "load", "--nodes", lost, "--wait", filepath.Join(built(t, "E2E_IMAGES"), "init-hook.tar"))
	s.answers(t, lost)
}

// corrupt truncates the certificate in a Secret of the release.
func (s *soaking) corrupt(t *testing.T, name string) {
	t.Helper()
	secret := s.w.secret(t, "-"+name)
	secret.Data["tls.crt"] = secret.Data["tls.crt"][:len(secret.Data["tls.crt"])/2]
	require.Value(s.w.client.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{}))(t)
}

// running returns the pods of a component that are not about to end.
func (s *soaking) running(t *testing.T, component string) []corev1.Pod {
	t.Helper()
	return slices.DeleteFunc(s.w.pods(t, component), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// updateVolumes annotates a pod: then its kubelet updates its volumes at once, which otherwise may take 90 s.
func (s *soaking) updateVolumes(t *testing.T, p corev1.Pod) error {
	t.Helper()
	if _, errOut, err := try(s.w.command(t, s.w.kubectl, "-n", namespace, "annotate", "--overwrite", "pod", p.Name,
		fmt.Sprintf("example.com/look=%d", time.Now().UnixNano()))); err != nil {
		return fmt.Errorf("annotating pod %s: %w: %s", p.Name, err, errOut)
	}
	return nil
}

// observed waits until each pod of a component has logged one of the messages since then.
func (s *soaking) observed(t *testing.T, component string, since metav1.Time, messages ...string) {
	t.Helper()
	logged := func(p corev1.Pod) error {
		if err := s.updateVolumes(t, p); err != nil {
			return err
		}
		time.Sleep(time.Second)
		log, err := s.w.client.CoreV1().Pods(namespace).GetLogs(p.Name, &corev1.PodLogOptions{SinceTime: &since}).
			DoRaw(t.Context())
		if err == nil && !slices.ContainsFunc(messages, func(m string) bool { return strings.Contains(string(log), m) }) {
			err = fmt.Errorf("pod %s has not logged it", p.Name)
		}
		return err
	}
	eventually(t, fmt.Sprintf("all pods of component %s to log %q", component, messages), func() error {
		pods := s.running(t, component)
		if len(pods) == 0 {
			return fmt.Errorf("no pod of component %s is running", component)
		}
		for _, p := range pods {
			if err := logged(p); err != nil {
				return err
			}
		}
		return nil
	})
	s.note("   pods of component %s logged %q after %.1f s", component, messages, time.Since(since.Time).Seconds())
}

// mode returns the value for the current mode.
func (s *soaking) mode() string {
	if s.proxy {
		return proxyMode
	}
	return nodePortMode
}

func (s *soaking) switchMode(t *testing.T) {
	t.Helper()
	if s.proxy {
		s.checkUnseen(t)
		s.secret = time.Time{}
		s.proxy = false
		begin := time.Now()
		credentialsDone := make(chan error, 1)
		go func() { credentialsDone <- s.credentials(t.Context()) }()
		s.w.helmChart(t, "upgrade", nodePortMode)
		require.NoError(t, <-credentialsDone)
		s.mark(t)
		// Positive control: in nodeport mode, the capture must see what nodes pull.
		eventually(t, "the capture to see plain text of images in nodeport mode", func() error {
			if found, _ := s.seenSince(begin); len(found) == 0 {
				return errors.New("nothing yet")
			}
			return nil
		})
		return
	}
	s.proxy = true
	s.w.helmChart(t, "upgrade", proxyMode)
	// A pull that has started through the node port continues there.
	switched := time.Now()
	eventually(t, "all current pulls to have started after the switch", func() error {
		for _, node := range s.w.nodes {
			if !s.account.Renewed(node, switched) {
				return fmt.Errorf("not yet on %s", node)
			}
		}
		return nil
	})
	s.secret = time.Now()
}

// cluster runs a command of the test cluster.
func (s *soaking) cluster(t *testing.T, args ...string) {
	t.Helper()
	if _, errOut, err := try(s.w.command(t, s.w.testcluster, append([]string{args[0], "--name", s.w.name},
		args[1:]...)...)); err != nil {
		t.Errorf("testcluster %s: %v: %s", strings.Join(args, " "), err, errOut)
	}
}

// killPod kills a pod without grace, or the process in it. A process that was killed before is left
// alone, because the kubelet would back off before restarting it.
func (s *soaking) killPod(t *testing.T, p corev1.Pod, how string) {
	t.Helper()
	if how == "its process" && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount == 0 {
		id := containerID(p)
		const script = `exec kill -9 "$(crictl inspect --output go-template --template '{{.info.pid}}' "$1")"`
		out, err := s.w.onNode(t, p.Spec.NodeName, "sh", "-c", script, "sh", id)
		if err == nil {
			return
		}
		s.note("killing its pod instead: %v: %s", err, out)
	}
	s.forceDelete(t, p)
}

// forceDelete deletes a pod without grace and waits until it has ended. The API server forgets such a
// pod earlier, and a pull that it still serves is no recovery.
func (s *soaking) forceDelete(t *testing.T, p corev1.Pod) {
	t.Helper()
	s.w.deletePod(t, p.Name, 0)
	eventually(t, p.Name+" to end", func() error {
		out, err := s.w.onNode(t, p.Spec.NodeName, "crictl", "pods", "--name", "^"+p.Name+"$", "--state", "Ready", "--quiet")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("pod %s is still running on node %s", p.Name, p.Spec.NodeName)
		}
		return err
	})
}

// fill writes a file until there is no space left.
func fill(t *testing.T, path string) {
	t.Helper()
	f := require.Value(os.Create(path))(t)
	defer f.Close()
	zeros := make([]byte, 1<<20)
	for range 16 << 10 { // 16 GiB: the volume has no limit
		if _, err := f.Write(zeros); errors.Is(err, syscall.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the volume has no limit")
}

// corruptPayload damages a chunk of the proxy's program and restarts a proxy from it.
func (s *soaking) corruptPayload(t *testing.T, step soak.Step) {
	t.Helper()
	cms := s.w.client.CoreV1().ConfigMaps(namespace)
	list, err := cms.List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=payload"})
	require.NoError(t, err)
	i := slices.IndexFunc(list.Items, func(cm corev1.ConfigMap) bool {
		return strings.HasSuffix(cm.Name, "-registry-node-amd64-01")
	})
	if i < 0 {
		t.Fatal("chunk 01 of registry-node is missing")
	}
	cm := &list.Items[i]
	if step.Variant == "a chunk missing" {
		err = cms.Delete(t.Context(), cm.Name, metav1.DeleteOptions{})
	} else {
		chunk := cm.BinaryData["chunk-01"]
		chunk[len(chunk)/2] ^= 1
		_, err = cms.Update(t.Context(), cm, metav1.UpdateOptions{})
	}
	require.NoError(t, err)
	time.Sleep(time.Second) // for the kubelet to update the volume
	for _, p := range s.w.pods(t, "proxy") {
		if p.Spec.NodeName == step.Node {
			s.forceDelete(t, p)
		}
	}
}
