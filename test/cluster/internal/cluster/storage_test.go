package cluster

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func testClaim() *corev1.PersistentVolumeClaim {
	class := storageClass
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "data", UID: "1234",
			Annotations: map[string]string{annotationDriver: provisionerDriver}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

var testClass = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: storageClass},
	Provisioner: provisionerDriver}

// reconcileOnce runs one pass and returns how many objects it wrote.
func reconcileOnce(t *testing.T, client *fake.Clientset, dir string) (writes int, err error) {
	t.Helper()
	factory := informers.NewSharedInformerFactory(client, 0)
	p := &volumeProvisioner{
		client: client, dir: dir, log: slog.New(slog.DiscardHandler),
		claims:  factory.Core().V1().PersistentVolumeClaims().Lister(),
		volumes: factory.Core().V1().PersistentVolumes().Lister(),
		classes: factory.Storage().V1().StorageClasses().Lister(),
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	client.ClearActions()
	err = p.reconcile(ctx)
	for _, action := range client.Actions() {
		if action.GetVerb() == "create" || action.GetVerb() == "delete" {
			writes++
		}
	}
	return writes, err
}

func TestClaimGetsOneDirectory(t *testing.T) {
	dir := t.TempDir()
	client := fake.NewClientset(testClass, testClaim())
	for pass, want := range []int{1, 0} {
		if writes, err := reconcileOnce(t, client, dir); err != nil || writes != want {
			t.Fatalf("pass %d: %d writes, want %d, %v", pass, writes, want, err)
		}
	}
	volume, err := client.CoreV1().PersistentVolumes().Get(context.Background(), "pvc-1234", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if volume.Spec.NodeAffinity != nil {
		t.Error("the volume could not follow its pod to another node")
	}
	if volume.Spec.AccessModes[0] != corev1.ReadWriteMany || volume.Spec.ClaimRef.UID != "1234" ||
		volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		t.Errorf("got %+v", volume.Spec)
	}
	if info, err := os.Stat(volume.Spec.HostPath.Path); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("an unprivileged user cannot write: %v, %v", info, err)
	}
}

func TestVolumesOfOtherClasses(t *testing.T) {
	classes := map[string]*storagev1.StorageClass{}
	for _, class := range storageClasses() {
		classes[class.Name] = class
	}
	provisioned := func(t *testing.T, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
		t.Helper()
		client := fake.NewClientset(classes[*claim.Spec.StorageClassName], claim)
		if _, err := reconcileOnce(t, client, t.TempDir()); err != nil {
			t.Fatal(err)
		}
		return client.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-1234", metav1.GetOptions{})
	}
	claimOf := func(class string) *corev1.PersistentVolumeClaim {
		claim := testClaim()
		claim.Spec.StorageClassName = &class
		return claim
	}
	t.Run("a local one is on the node that the scheduler chooses", func(t *testing.T) {
		claim := claimOf("local")
		if _, err := provisioned(t, claim); !apierrors.IsNotFound(err) {
			t.Errorf("before the scheduler chose a node: %v, want no volume", err)
		}
		claim.Annotations[annotationNode] = "n2"
		volume, err := provisioned(t, claim)
		if err != nil {
			t.Fatal(err)
		}
		got := volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
		if got.Key != corev1.LabelHostname || !slices.Equal(got.Values, []string{"n2"}) {
			t.Errorf("got %+v, want node n2", got)
		}
	})
	t.Run("an attached one has the driver and its directory", func(t *testing.T) {
		volume, err := provisioned(t, claimOf("attached"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(directoryOf(volume)); err != nil || volume.Spec.FlexVolume.Driver != flexVolumeDriver {
			t.Errorf("%v, %+v", err, volume.Spec.FlexVolume)
		}
	})
	t.Run("one that root owns cannot be written by others", func(t *testing.T) {
		volume, err := provisioned(t, claimOf("root-owned"))
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(directoryOf(volume)); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v", err, info)
		}
	})
}

func TestOtherClaimsAreIgnored(t *testing.T) {
	now := metav1.Now()
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"another provisioner": func(c *corev1.PersistentVolumeClaim) { c.Annotations[annotationDriver] = "other" },
		"bound":               func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "mine" },
		"being deleted": func(c *corev1.PersistentVolumeClaim) {
			c.DeletionTimestamp, c.Finalizers = &now, []string{"kubernetes.io/pvc-protection"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			claim := testClaim()
			change(claim)
			if writes, err := reconcileOnce(t, fake.NewClientset(testClass, claim), t.TempDir()); err != nil || writes != 0 {
				t.Errorf("%d writes, %v", writes, err)
			}
		})
	}
}

func TestReleasedVolumeIsRemoved(t *testing.T) {
	dir := t.TempDir()
	volume := volumeFor(testClaim(), testClass, dir)
	volume.Status.Phase = corev1.VolumeReleased
	if err := os.Mkdir(volume.Spec.HostPath.Path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := reconcileOnce(t, fake.NewClientset(testClass, volume), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(volume.Spec.HostPath.Path); !os.IsNotExist(err) {
		t.Errorf("its directory is kept: %v", err)
	}
}

func TestDirectoriesOutsideTheVolumesAreKept(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.Mkdir(victim, 0o755); err != nil {
		t.Fatal(err)
	}
	volume := volumeFor(testClaim(), testClass, t.TempDir())
	volume.Spec.HostPath.Path = victim
	volume.Status.Phase = corev1.VolumeReleased
	if _, err := reconcileOnce(t, fake.NewClientset([]runtime.Object{testClass, volume}...), t.TempDir()); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat(victim); err != nil {
		t.Errorf("the directory is gone: %v", err)
	}
}
