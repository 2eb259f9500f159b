package cluster

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
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
