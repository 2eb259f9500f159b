package cluster

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	// annotationNode names the node that the scheduler chose for the first pod of a claim.
	annotationNode = "volume.kubernetes.io/selected-node"

	// parameterKind is the parameter of StorageClasses whose volumes differ from those of storageClass.
	parameterKind = "kind"
	kindAttached  = "attached"
	kindRootOwned = "root-owned"

	flexVolumeDriver = "zarf-registry.test/attached"
)

// flexVolumeScript is the driver of volumes that one node at a time can attach. Kubernetes itself keeps track
// of attachments, as it does for CSI drivers.
//
//go:embed flexvolume.sh
var flexVolumeScript []byte

// storageClasses returns the StorageClasses of a cluster, the default one first.
func storageClasses() []*storagev1.StorageClass {
	class := func(name, kind string) *storagev1.StorageClass {
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisionerDriver}
		if kind != "" {
			class.Parameters = map[string]string{parameterKind: kind}
		}
		return class
	}
	standard, local := class(storageClass, ""), class("local", "")
	standard.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
	local.VolumeBindingMode = new(storagev1.VolumeBindingWaitForFirstConsumer)
	return []*storagev1.StorageClass{standard, local, class("attached", kindAttached), class("root-owned", kindRootOwned)}
}

// startStorage creates the StorageClasses and starts their provisioner.
func (c *Cluster) startStorage(ctx context.Context, client kubernetes.Interface) error {
	for _, class := range storageClasses() {
		if _, err := client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating StorageClass %s: %w", class.Name, err)
		}
	}
	return c.start(Process{ID: provisioner, Args: []string{
		c.self(), "internal", "provision",
		"--kubeconfig=" + c.path(configDir, adminConfig),
		"--volumes=" + c.path(volumeDir),
	}})
}

// installFlexVolume writes the driver of attached volumes where the controller manager and kubelets look for it.
func (c *Cluster) installFlexVolume() error {
	dir := c.path(volumePluginDir, strings.ReplaceAll(flexVolumeDriver, "/", "~"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("installing the driver of attached volumes: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(flexVolumeDriver)), flexVolumeScript, 0o755); err != nil {
		return fmt.Errorf("installing the driver of attached volumes: %w", err)
	}
	return nil
}

// Provision creates a directory and a PersistentVolume for each claim of the StorageClasses, and
// removes both once the claim is gone, until the context ends. All nodes see the same directory; sizes are
// not enforced.
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
		if waits(class) && claim.Annotations[annotationNode] == "" {
			continue // the scheduler has not chosen a node yet
		}
		errs = append(errs, p.provision(ctx, claim, class))
	}
	volumes, err := p.volumes.List(labels.Everything())
	errs = append(errs, err)
	for _, volume := range volumes {
		if volume.Annotations[annotationProvidedBy] == provisionerDriver && volume.Status.Phase == corev1.VolumeReleased {
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
	path := directoryOf(volume)
	// Any user may write, as with fsGroup, which hostPath does not support.
	mode := os.FileMode(0o777)
	if class.Parameters[parameterKind] == kindRootOwned {
		mode = 0o700 // as on an NFS server that ignores fsGroup
	}
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
	path := directoryOf(volume)
	if filepath.Dir(path) != p.dir {
		return fmt.Errorf("volume %s is outside of %s: not removing it", volume.Name, p.dir)
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("removing the directory of volume %s: %w", volume.Name, err)
	}
	if err := p.client.CoreV1().PersistentVolumes().Delete(ctx, volume.Name, metav1.DeleteOptions{}); err != nil &&
		!apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting volume %s: %w", volume.Name, err)
	}
	p.log.Info("volume removed", "volume", volume.Name)
	return nil
}

// waits reports whether the volumes of a class are created for a node.
func waits(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// optionDirectory is the option of an attached volume that names its directory. flexvolume.sh reads it.
const optionDirectory = "directory"

// directoryOf returns the directory of a volume that volumeFor returned.
func directoryOf(volume *corev1.PersistentVolume) string {
	switch {
	case volume.Spec.HostPath != nil:
		return volume.Spec.HostPath.Path
	case volume.Spec.FlexVolume != nil:
		return volume.Spec.FlexVolume.Options[optionDirectory]
	}
	return ""
}

// volumeFor returns the volume for a claim. Its name is derived from the claim's UID, so that it
// cannot be created twice.
func volumeFor(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass,
	dir string) *corev1.PersistentVolume {
	name := "pvc-" + string(claim.UID)
	directory, kind := filepath.Join(dir, name), corev1.HostPathDirectory
	source := corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: directory, Type: &kind}}
	if class.Parameters[parameterKind] == kindAttached {
		source = corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{
			Driver: flexVolumeDriver, Options: map[string]string{optionDirectory: directory}}}
	}
	var affinity *corev1.VolumeNodeAffinity
	if waits(class) {
		affinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname,
				Operator: corev1.NodeSelectorOpIn, Values: []string{claim.Annotations[annotationNode]}}},
		}}}}
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annotationProvidedBy: provisionerDriver}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   slices.Clone(claim.Spec.AccessModes),
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              class.Name,
			VolumeMode:                    claim.Spec.VolumeMode,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			NodeAffinity:           affinity,
			PersistentVolumeSource: source,
		},
	}
}
