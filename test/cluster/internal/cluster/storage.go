package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	provisioner          = "provisioner"
	provisionerDriver    = "zarf-registry.test/directory"
	storageClass         = "standard"
	annotationDriver     = "volume.kubernetes.io/storage-provisioner"
	annotationProvidedBy = "pv.kubernetes.io/provisioned-by"
)

// startStorage starts the provisioner and makes its StorageClass the default.
func (c *Cluster) startStorage(ctx context.Context, client kubernetes.Interface) error {
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: storageClass,
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: provisionerDriver,
	}
	if _, err := client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the StorageClass: %w", err)
	}
	return c.start(Process{ID: provisioner, Args: []string{
		c.self(), "internal", "provision",
		"--kubeconfig=" + c.path(configDir, adminConfig),
		"--volumes=" + c.path(volumeDir),
	}})
}

// Provision creates a directory and a PersistentVolume for each claim of the StorageClass, and
// removes both once the claim is gone, until the context ends. A volume has no node affinity: all
// nodes see the same directory, so it can follow a pod to another node. Its size is not enforced.
func Provision(ctx context.Context, kubeconfig, volumes string, log *slog.Logger) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("provisioning: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("provisioning: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	p := &volumeProvisioner{
		client: client, dir: volumes, log: log,
		claims:  factory.Core().V1().PersistentVolumeClaims().Lister(),
		volumes: factory.Core().V1().PersistentVolumes().Lister(),
		classes: factory.Storage().V1().StorageClasses().Lister(),
	}
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default: // already reported
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { notify() },
		UpdateFunc: func(any, any) { notify() },
		DeleteFunc: func(any) { notify() },
	}
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().PersistentVolumeClaims().Informer(),
		factory.Core().V1().PersistentVolumes().Informer(),
		factory.Storage().V1().StorageClasses().Informer(),
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("provisioning: %w", err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for {
		// Each pass looks at everything: a test cluster has a handful of volumes.
		again := time.Minute
		if err := p.reconcile(ctx); err != nil {
			log.Error("reconciling volumes", "error", err)
			again = time.Second
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(again):
		}
	}
}

type volumeProvisioner struct {
	client  kubernetes.Interface
	dir     string
	log     *slog.Logger
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
}

func (p *volumeProvisioner) reconcile(ctx context.Context) error {
	var errs []error
	claims, err := p.claims.List(labels.Everything())
	errs = append(errs, err)
	for _, claim := range claims {
		// The volume controller sets the annotation once it has found the class.
		if claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil ||
			claim.Annotations[annotationDriver] != provisionerDriver || claim.Spec.StorageClassName == nil {
			continue
		}
		class, err := p.classes.Get(*claim.Spec.StorageClassName)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, p.provision(ctx, claim, class))
	}
	volumes, err := p.volumes.List(labels.Everything())
	errs = append(errs, err)
	for _, volume := range volumes {
		if volume.Annotations[annotationProvidedBy] == provisionerDriver && volume.Status.Phase == corev1.VolumeReleased &&
			volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
			errs = append(errs, p.reclaim(ctx, volume))
		}
	}
	return errors.Join(errs...)
}

func (p *volumeProvisioner) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim,
	class *storagev1.StorageClass) error {
	volume := volumeFor(claim, class, p.dir)
	if _, err := p.volumes.Get(volume.Name); err == nil {
		return nil // created, but not bound yet
	}
	path := volume.Spec.HostPath.Path
	// Any user may write, as with fsGroup, which hostPath does not support.
	const mode = 0o777
	if err := errors.Join(os.MkdirAll(path, mode), os.Chmod(path, mode)); err != nil {
		return fmt.Errorf("making the directory of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	_, err := p.client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating the volume of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	p.log.Info("volume provisioned", "claim", claim.Namespace+"/"+claim.Name, "volume", volume.Name)
	return nil
}

func (p *volumeProvisioner) reclaim(ctx context.Context, volume *corev1.PersistentVolume) error {
	if volume.Spec.HostPath == nil || filepath.Dir(volume.Spec.HostPath.Path) != p.dir {
		return fmt.Errorf("volume %s is outside of %s: not removing it", volume.Name, p.dir)
	}
	if err := os.RemoveAll(volume.Spec.HostPath.Path); err != nil {
		return fmt.Errorf("removing the directory of volume %s: %w", volume.Name, err)
	}
	if err := p.client.CoreV1().PersistentVolumes().Delete(ctx, volume.Name, metav1.DeleteOptions{}); err != nil &&
		!apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting volume %s: %w", volume.Name, err)
	}
	p.log.Info("volume removed", "volume", volume.Name)
	return nil
}

// volumeFor returns the volume for a claim. Its name is derived from the claim's UID, so that it
// cannot be created twice.
func volumeFor(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass,
	dir string) *corev1.PersistentVolume {
	name := "pvc-" + string(claim.UID)
	reclaim := corev1.PersistentVolumeReclaimDelete
	if class.ReclaimPolicy != nil {
		reclaim = *class.ReclaimPolicy
	}
	kind := corev1.HostPathDirectory
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annotationProvidedBy: provisionerDriver}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   slices.Clone(claim.Spec.AccessModes),
			PersistentVolumeReclaimPolicy: reclaim,
			StorageClassName:              class.Name,
			VolumeMode:                    claim.Spec.VolumeMode,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(dir, name), Type: &kind},
			},
		},
	}
}
