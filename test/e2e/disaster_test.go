package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestDisaster takes away what a cluster can lose, and follows docs/reference/disaster-recovery.md.
func TestDisaster(t *testing.T) {
	w := ownCluster(t, "e2e-disaster", layout{open: true})
	backup := filepath.Join(t.TempDir(), "backup.tar")
	must(t, "install, push and export", func(t *testing.T) {
		w.mustInstall(t, proxyMode)
		w.pushFresh(t)
		output(t, w.command(t, w.hook, "images", "export", "--out", backup))
	})
	must(t, "the volume is lost", func(t *testing.T) { w.losesVolume(t, backup) })
	must(t, "the volume is emptied", func(t *testing.T) { w.losesContent(t, backup) })
	must(t, "the state Secret is lost", w.losesState)
	w.underLoop(t, "the CA is lost", w.losesCA)
	must(t, "all certificates are lost", w.losesCertificates)
	must(t, "the cluster is restored from an old etcd snapshot", w.restoresEtcd)
}

// restored installs, restores the backup, and pulls an image from it on all nodes.
func (w *world) restored(t *testing.T, name, backup string) {
	t.Helper()
	w.mustInstall(t)
	if out := output(t, w.command(t, w.hook, "images", "push", backup)); !strings.Contains(out, w.address+"/"+slowImage) {
		t.Errorf("%s is not restored: %s", slowImage, out)
	}
	w.isHealthy(t)
	w.runsEverywhere(t, name, w.address+"/"+slowImage)
}

func (w *world) losesVolume(t *testing.T, backup string) {
	w.kubectlRun(t, "delete", "persistentvolumeclaim", "-n", w.namespace, release, "--wait=false")
	w.kubectlRun(t, "delete", "pod", "-n", w.namespace, "--selector=app.kubernetes.io/component=registry")
	w.advises(t, "PersistentVolumeClaim "+w.namespace+"/"+release+" does not exist: run zarf-registry install")
	w.restored(t, "lost-volume", backup)
}

func (w *world) losesContent(t *testing.T, backup string) {
	claim, err := w.client.CoreV1().PersistentVolumeClaims(w.namespace).Get(t.Context(), release, metav1.GetOptions{})
	require.NoError(t, err)
	// Without a restart: the registry keeps the directory of the volume.
	content := w.stateOf("volumes", claim.Spec.VolumeName, "docker")
	require.Value(os.Stat(content))(t)
	eventually(t, "the content to be removed", func() error { return os.RemoveAll(content) })
	w.advises(t, "The registry's storage has lost its content: run zarf-registry install")
	w.restored(t, "lost-content", backup)
}

// losesState loses the only record of the mode.
func (w *world) losesState(t *testing.T) {
	w.mustInstall(t, "--reset-values")
	w.isIn(t, state.ModeProxy, state.SourceState)
	w.kubectlRun(t, "delete", "secret", "-n", w.namespace, release+"-state")
	w.advises(t, "Secret "+w.namespace+"/"+release+"-state is missing, so the mode is unknown: zarf-registry install")
	w.mustInstall(t)
	w.isIn(t, state.ModeProxy, state.SourceCluster)
	w.isHealthy(t)
}

func (w *world) losesCA(t *testing.T) {
	before := w.certificates(t)
	w.kubectlRun(t, "delete", "secret", "-n", w.namespace, release+"-ca")
	w.advises(t, "The certificate in Secret "+w.namespace+"/"+release+"-ca is not usable (not found): zarf-registry certs renew")
	w.certs(t, "renew")
	eventually(t, "the end of the CA rotation", func() error {
		if report, text := w.status(t); !report.Healthy || report.State.Rotation != nil {
			return errors.New(text)
		}
		w.certs(t, "renew")
		return nil
	})
	w.changed(t, before, "ca", "server", "node", "push")
}

// losesCertificates loses what old and new certificates could both be verified with, so pulls can fail until all pods
// have loaded the new ones.
func (w *world) losesCertificates(t *testing.T) {
	before := w.certificates(t)
	for _, suffix := range []string{"ca", "server-tls", "node-tls", "push-tls"} {
		w.kubectlRun(t, "delete", "secret", "-n", w.namespace, release+"-"+suffix)
	}
	w.mustInstall(t)
	w.changed(t, before, "ca", "server", "node", "push")
	w.isHealthy(t)
	w.runsEverywhere(t, "lost-certificates", w.address+"/"+slowImage)
}

// restoresEtcd rotates, switches and pushes after the snapshot, whose Secrets and mode nobody has any more.
func (w *world) restoresEtcd(t *testing.T) {
	before := w.certificates(t)
	restoreEtcd := w.snapshot(t)
	w.certs(t, "rotate", "--ca")
	output(t, w.command(t, w.hook, "credentials", "rotate"))
	w.mustInstall(t, nodePortMode)
	w.push(t, w.makeArchive(t, "example.com/e2e/late:1", 1<<20))

	restoreEtcd()
	w.becomesHealthy(t)
	w.changed(t, before)
	w.isIn(t, state.ModeProxy, state.SourceState)
	w.push(t, w.makeArchive(t, "example.com/e2e/after:1", 1<<20))
	for _, name := range []string{"late", "after"} {
		w.runsEverywhere(t, "restored-"+name, w.address+"/e2e/"+name+":1")
	}
	w.mustInstall(t)
	w.isHealthy(t)
}

// snapshot copies etcd's database. The returned function restores it, and restarts all components, as etcd's and
// Kubernetes' documentation advise.
func (w *world) snapshot(t *testing.T) (restore func()) {
	t.Helper()
	data := w.stateOf("etcd")
	saved := filepath.Join(t.TempDir(), "etcd")
	component := func(verb string, names ...string) {
		t.Helper()
		for _, name := range names {
			run(t, w.testcluster, verb, "--name", w.name, name)
		}
	}
	component("kill", "etcd")
	run(t, "cp", "-a", data, saved)
	component("restart", "etcd")
	return func() {
		t.Helper()
		component("kill", "etcd")
		require.NoError(t, os.RemoveAll(data))
		run(t, "cp", "-a", saved, data)
		component("restart", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "provisioner", "coredns")
		for _, node := range w.nodes {
			component("restart", "kubelet."+node, "kube-proxy."+node)
		}
	}
}
