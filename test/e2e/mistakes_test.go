package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestMistakes makes mistakes in the values of a first installation. Preflight names the value or the object, and
// nothing changes; the corrected command succeeds, also after an installation that failed; and what failed can be uninstalled,
// although no node can have the image of its Job.
func TestMistakes(t *testing.T) {
	onlyInLongRuns(t)
	w := ownCluster(t, "e2e-mistakes", layout{bare: true, open: true, args: []string{"--nodes", "1"}})
	for name, c := range map[string]struct {
		sets, words []string
	}{
		"a StorageClass that does not exist": {[]string{storageOn("nope")},
			[]string{"storage: StorageClass nope", "registry.persistence.storageClass"}},
		"a PriorityClass that does not exist": {[]string{"--set=proxy.priorityClassName=nope"},
			[]string{"priority-class: PriorityClass nope", "proxy.priorityClassName"}},
		"a node selector that no node matches": {[]string{"--set=registry.nodeSelector.disk=ssd"},
			[]string{"placement: node n1", "registry.nodeSelector", "kubectl label --overwrite node n1 disk=ssd"}},
		"an existing claim that does not exist": {[]string{"--set=registry.persistence.existingClaim=nope"},
			[]string{"PersistentVolumeClaim nope"}},
		"an S3 endpoint that does not answer": {[]string{"--set=registry.storage.type=s3", "--set=registry.storage.s3.bucket=b",
			"--set=registry.storage.s3.region=r", "--set=registry.storage.s3.regionEndpoint=http://minio.default.svc:9000"},
			[]string{"storage: endpoint http://minio.default.svc:9000", "Service default/minio does not exist"}},
		"a request that is larger than any node": {[]string{"--set=registry.resources.requests.memory=4Ti",
			"--set=registry.resources.limits.memory=4Ti"}, []string{"registry.resources.requests.memory", "node n1"}},
		"an image of injected programs that no node has": {[]string{"--set=injector.image=example.com/pause:9"},
			[]string{"pause-image: image example.com/pause:9", "injector.image"}},
		"a size without a unit": {[]string{"--set-string=registry.persistence.size=20"},
			[]string{"registry.persistence.size", "20Gi"}},
	} {
		must(t, name, func(t *testing.T) {
			_, text := w.preflight(t, 3, append([]string{"--registry-proxy"}, c.sets...)...)
			for _, word := range c.words {
				if !strings.Contains(text, word) {
					t.Errorf("zarf-registry install --dry-run does not report %q: %s", word, text)
				}
			}
		})
	}
	must(t, "zarf-registry install is refused, and changes nothing", func(t *testing.T) {
		w.failsToInstall(t, "1m", []string{"nothing was changed", "StorageClass nope"}, storageOn("nope"))
		if _, err := w.client.CoreV1().Namespaces().Get(t.Context(), w.namespace, metav1.GetOptions{}); err == nil {
			t.Error("the namespace remains")
		}
	})
	slow := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Provisioner: "example.com/none"}
	require.Value(w.client.StorageV1().StorageClasses().Create(t.Context(), slow, metav1.CreateOptions{}))(t)
	must(t, "a provisioner that does not exist, and the installation is uninstalled", func(t *testing.T) {
		w.failsToInstall(t, "60s", []string{"unbound immediate PersistentVolumeClaims", "zarf-registry uninstall --namespace"},
			storageOn("slow"))
		w.helmUninstall(t)
		output(t, w.command(t, w.hook, "cleanup", "-n", w.namespace))
		w.nothingLeft(t, "persistentvolumeclaim/"+release)
	})
	must(t, "the corrected command after helm uninstall, which kept the claim", func(t *testing.T) {
		w.mustInstall(t, proxyMode, storageOn("standard"))
		w.isHealthy(t)
		w.claimHas(t, "standard")
	})
	w.startOver(t)
	must(t, "the corrected command after a failed one", func(t *testing.T) {
		w.failsToInstall(t, "60s", []string{"unbound immediate PersistentVolumeClaims", "persistentvolumeclaim/zarf-registry shows more"},
			storageOn("slow"))
		w.mustInstall(t, proxyMode, storageOn("standard"))
		w.isHealthy(t)
		w.claimHas(t, "standard")
	})
	w.startOver(t)
	must(t, "the wait names the event of a controller", func(t *testing.T) {
		w.failsToInstall(t, "90s", []string{"ReplicaSet " + w.namespace + "/" + release + "-", "no PriorityClass with name gone"},
			"--set=registry.priorityClassName=gone", "--set=initHook.ignorePreflight={priority-class}")
		w.mustInstall(t, proxyMode, "--reset-values")
		w.isHealthy(t)
	})
	w.uninstall(t)
}

// failsToInstall runs zarf-registry install with that timeout, which must fail and say all of these words.
func (w *world) failsToInstall(t *testing.T, timeout string, words []string, args ...string) (text string) {
	t.Helper()
	r := w.install(t, nil, append([]string{proxyMode, "--timeout=" + timeout}, args...)...)
	if r.err == nil {
		t.Fatalf("zarf-registry install %v succeeded: %s", args, r.text)
	}
	for _, word := range words {
		if !strings.Contains(r.text, word) {
			t.Errorf("the error of zarf-registry install %v lacks %q: %s", args, word, r.text)
		}
	}
	return r.text
}

// claimHas fails unless the registry's claim has a volume of that StorageClass.
func (w *world) claimHas(t *testing.T, class string) {
	t.Helper()
	claim, err := w.client.CoreV1().PersistentVolumeClaims(w.namespace).Get(t.Context(), release, metav1.GetOptions{})
	require.NoError(t, err)
	if got := claim.Spec.StorageClassName; got == nil || *got != class || claim.Status.Phase != corev1.ClaimBound {
		t.Errorf("the claim is %s", mustJSON(claim))
	}
}
