package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// smallestClaim is less than the project's own images need. A smaller size lacks its unit.
const smallestClaim = 64 << 20

// defaultClass marks the StorageClass of claims that name none.
const defaultClass = "storageclass.kubernetes.io/is-default-class"

// The values of the registry's claim.
const (
	valueClass    = "registry.persistence.storageClass"
	valueSize     = "registry.persistence.size"
	valueExisting = "registry.persistence.existingClaim"
	valueModes    = "registry.persistence.accessModes"
)

// lookAtStorage finds claims that will not get a volume, or that the registry cannot use.
func (i *Inspection) lookAtStorage(ctx context.Context) ([]Finding, error) {
	storage := i.Settings.Storage
	var findings []Finding
	if class := storage.CacheClass; class != "" {
		found, err := i.class(ctx, &class, "cache.storageClass", nil)
		if err != nil {
			return nil, err
		}
		findings = append(findings, found...)
	}
	if storage.Claim.Name == "" {
		return findings, nil
	}
	claim, err := i.Cluster.Claims.Get(ctx, storage.Claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		claim = nil
	case release.MissingPermission(err):
		return findings, nil
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", i.Object("PersistentVolumeClaim", storage.Claim.Name), err)
	}
	look := i.ownClaim
	if storage.Claim.Existing {
		look = i.existingClaim
	}
	found, err := look(ctx, claim)
	return append(findings, found...), err
}

func (i *Inspection) storageFinding(severity Severity, claim, remedy, cause string, args ...any) Finding {
	return Finding{Check: checkStorage, Severity: severity, Object: i.Object("PersistentVolumeClaim", claim),
		Cause: fmt.Sprintf(cause, args...), Remedy: remedy}
}

// existingClaim judges the user's claim, nil if it does not exist.
func (i *Inspection) existingClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) ([]Finding, error) {
	name := i.Settings.Storage.Claim.Name
	const other = "name another: --set " + valueExisting + "=CLAIM, or let the chart create one: --set " + valueExisting +
		"="
	block := func(remedy, cause string, args ...any) ([]Finding, error) {
		return []Finding{i.storageFinding(Blocker, name, remedy, cause, args...)}, nil
	}
	switch {
	case claim == nil:
		return block("create it, or "+other, "does not exist, but %s names it", valueExisting)
	case claim.DeletionTimestamp != nil:
		return block("wait until it is gone and create it again, or "+other, "is being deleted")
	case claim.Status.Phase == corev1.ClaimLost:
		return block("restore the volume, or "+other, "has lost its volume %s", claim.Spec.VolumeName)
	case claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock:
		return block(other, "has the volumeMode Block, and the registry needs a file system")
	}
	modes := claim.Spec.AccessModes
	writable := slices.DeleteFunc(slices.Clone(modes), func(m corev1.PersistentVolumeAccessMode) bool {
		return m == corev1.ReadOnlyMany
	})
	shared := slices.Contains(modes, corev1.ReadWriteMany)
	switch {
	case len(writable) == 0:
		return block(other, "has the access mode ReadOnlyMany only, and the registry writes")
	case i.Settings.Storage.Claim.Shared && !shared:
		return block("run one pod (--set registry.replicas=1), or "+other,
			"has the access modes %v, and several registry pods need ReadWriteMany", modes)
	}
	if claim.Spec.VolumeName == "" {
		return i.class(ctx, claim.Spec.StorageClassName, "", claim)
	}
	if shared {
		return nil, nil
	}
	users, err := i.otherUsers(ctx, name)
	if err != nil || len(users) == 0 {
		return nil, err
	}
	f := i.storageFinding(Warning, name, "stop that pod first, or "+other,
		"its access mode %s allows pods of one node only, and others use it: %s", modes[0], release.List(users))
	if slices.Contains(modes, corev1.ReadWriteOncePod) {
		f.Severity = Blocker
		f.Cause = fmt.Sprintf("its access mode ReadWriteOncePod allows one pod only, and another uses it: %s",
			release.List(users))
	}
	return []Finding{f}, nil
}

// otherUsers returns the pods of others that use a claim.
func (i *Inspection) otherUsers(ctx context.Context, claim string) ([]string, error) {
	pods, err := i.Observer.Cluster.Pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing the pods in namespace %s: %w", i.Settings.Namespace, release.RefuseForbidden(err))
	}
	var users []string
	for _, p := range pods.Items {
		uses := slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
		})
		if uses && !release.PodEnded(p) && !i.ours(&p) {
			users = append(users, fmt.Sprintf("%s on node %s", i.Object("pod", p.Name), p.Spec.NodeName))
		}
	}
	return users, nil
}

// ownClaim judges the claim of the chart: what it would create, or what exists.
func (i *Inspection) ownClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) ([]Finding, error) {
	wanted := i.Settings.Storage.Claim
	size, err := resource.ParseQuantity(wanted.Size)
	switch {
	case err != nil:
		return []Finding{i.storageFinding(Blocker, wanted.Name, "--set "+valueSize+"=20Gi",
			"%s: %q is not a quantity: %v", valueSize, wanted.Size, err)}, nil
	case size.CmpInt64(smallestClaim) < 0:
		return []Finding{i.storageFinding(Blocker, wanted.Name, fmt.Sprintf("--set %s=%sGi", valueSize, wanted.Size),
			"%s: %q is %d bytes, too few for any image; is the unit missing?", valueSize, wanted.Size, size.Value())}, nil
	case claim == nil:
		return i.class(ctx, wanted.StorageClass, valueClass, nil)
	case !i.ours(claim):
		return []Finding{i.storageFinding(Blocker, wanted.Name,
			"use it: --set "+valueExisting+"="+wanted.Name+"; or rename the release's: --set fullnameOverride=NAME",
			"exists and is not of this release")}, nil
	case claim.DeletionTimestamp != nil:
		return []Finding{i.storageFinding(Blocker, wanted.Name, fmt.Sprintf(
			"wait until it is gone: kubectl --namespace %s wait --for=delete persistentvolumeclaim/%s", claim.Namespace,
			claim.Name), "is being deleted")}, nil
	case claim.Status.Phase == corev1.ClaimLost:
		return []Finding{i.storageFinding(Blocker, wanted.Name,
			"restore the volume, or delete the claim and run this again", "has lost its volume %s",
			claim.Spec.VolumeName)}, nil
	}
	if claim.Spec.VolumeName == "" { // ReplaceClaim replaces it if it differs
		return i.class(ctx, wanted.StorageClass, valueClass, nil)
	}
	classes, err := i.classes(ctx)
	return i.boundClaim(claim, size, classes), err
}

// boundClaim finds values that contradict the claim of a volume. The API server would refuse the change after prepare.
func (i *Inspection) boundClaim(claim *corev1.PersistentVolumeClaim, size resource.Quantity,
	classes []storagev1.StorageClass) []Finding {
	wanted := i.Settings.Storage.Claim
	const instead = "; to begin with an empty registry instead, delete the claim, with all images"
	var findings []Finding
	add := func(remedy, cause string, args ...any) {
		findings = append(findings, i.storageFinding(Blocker, wanted.Name, remedy+instead, cause, args...))
	}
	if class := className(claim); wanted.StorageClass != nil && *wanted.StorageClass != class {
		add(fmt.Sprintf("--set %s=%s", valueClass, class),
			"%s: %q differs from the StorageClass %q of the claim, which has a volume and cannot change", valueClass,
			*wanted.StorageClass, class)
	}
	if modes := modesOf(claim); modes != strings.Join(wanted.AccessModes, ",") {
		add(fmt.Sprintf("--set '%s={%s}'", valueModes, modes),
			"%s: %s differs from the access modes %s of the claim, which has a volume and cannot change", valueModes,
			strings.Join(wanted.AccessModes, ","), modes)
	}
	has := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	grows := slices.ContainsFunc(classes, func(c storagev1.StorageClass) bool {
		return c.Name == className(claim) && c.AllowVolumeExpansion != nil && *c.AllowVolumeExpansion
	})
	switch {
	case size.Cmp(has) < 0:
		add(fmt.Sprintf("--set %s=%s", valueSize, has.String()),
			"%s: %s is less than the %s of the claim, which cannot shrink", valueSize, wanted.Size, has.String())
	case size.Cmp(has) > 0 && classes != nil && !grows:
		add(fmt.Sprintf("--set %s=%s", valueSize, has.String()),
			"%s: %s is more than the %s of the claim, and its StorageClass %q does not allow volume expansion", valueSize,
			wanted.Size, has.String(), className(claim))
	}
	return findings
}

// class judges a StorageClass, nil for the default one, from a value or of an existing claim.
func (i *Inspection) class(ctx context.Context, class *string, value string,
	claim *corev1.PersistentVolumeClaim) ([]Finding, error) {
	classes, err := i.classes(ctx)
	if err != nil || classes == nil {
		return nil, err
	}
	name, object := "", "the default StorageClass"
	if class != nil {
		name, object = *class, "StorageClass "+*class
	}
	var known []string
	for _, c := range classes {
		known = append(known, c.Name)
		isDefault := c.Annotations[defaultClass] == "true"
		if (class == nil && isDefault || name == c.Name) && c.Provisioner != "kubernetes.io/no-provisioner" {
			return nil, nil
		}
	}
	if value != "cache.storageClass" {
		some, err := i.volumeFor(ctx, name, claim)
		if some || err != nil {
			return nil, err
		}
	}
	cause := fmt.Sprintf("%s names it, and", value)
	exists := slices.Contains(known, name)
	remedy := "create a StorageClass"
	if len(known) > 0 {
		remedy = fmt.Sprintf("--set %s=NAME of one that exists: %s", value, strings.Join(known, ", "))
	}
	switch {
	case claim != nil:
		cause = fmt.Sprintf("%s, which has no volume, names it, and",
			i.Object("PersistentVolumeClaim", claim.Name))
		remedy = fmt.Sprintf("delete the claim and create it with a StorageClass that exists (%s), or name another: "+
			"--set %s=CLAIM", strings.Join(known, ", "), valueExisting)
	case class == nil:
		cause = value + " is null, and"
	case name == "":
		object, cause = "value "+value, `is "", which disables dynamic provisioning, and`
	}
	switch {
	case name == "" && class != nil:
		cause += " no PersistentVolume without a class is available and fits"
	case exists:
		cause += " it has no provisioner, and none of its PersistentVolumes is available and fits"
	default:
		cause += " it does not exist"
	}
	f := Finding{Check: checkStorage, Severity: Blocker, Object: object, Remedy: remedy,
		Cause: cause + ", so the claim would get no volume"}
	if value == valueClass {
		f.Remedy += "; or without a volume, and images lost with the pod: --set registry.persistence.enabled=false"
	}
	return []Finding{f}, nil
}

// classes lists the StorageClasses. It returns nil if this identity may not read them.
func (i *Inspection) classes(ctx context.Context) ([]storagev1.StorageClass, error) {
	list, err := i.Cluster.StorageClasses.List(ctx, metav1.ListOptions{})
	switch {
	case release.MissingPermission(err):
		i.Log.Warn("cannot check StorageClasses", "error", err.Error())
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("listing StorageClasses: %w", err)
	}
	return append([]storagev1.StorageClass{}, list.Items...), nil
}

// volumeFor reports whether an administrator created a volume that the claim can get. It also does if this identity may
// not read volumes.
func (i *Inspection) volumeFor(ctx context.Context, class string, claim *corev1.PersistentVolumeClaim) (bool, error) {
	wanted := i.Settings.Storage.Claim
	if claim != nil {
		wanted.AccessModes = nil
		for _, m := range claim.Spec.AccessModes {
			wanted.AccessModes = append(wanted.AccessModes, string(m))
		}
		size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		wanted.Size = size.String()
	}
	list, err := i.Cluster.Volumes.List(ctx, metav1.ListOptions{})
	switch {
	case release.MissingPermission(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("listing PersistentVolumes: %w", err)
	}
	size, err := resource.ParseQuantity(wanted.Size)
	if err != nil {
		return false, fmt.Errorf("size %q of claim %s: %w", wanted.Size, wanted.Name, err)
	}
	return slices.ContainsFunc(list.Items, func(v corev1.PersistentVolume) bool {
		capacity := v.Spec.Capacity[corev1.ResourceStorage]
		reserved := v.Spec.ClaimRef
		ours := reserved == nil || reserved.Namespace == i.Settings.Namespace && reserved.Name == wanted.Name
		for _, m := range wanted.AccessModes {
			ours = ours && slices.Contains(v.Spec.AccessModes, corev1.PersistentVolumeAccessMode(m))
		}
		free := v.Status.Phase == corev1.VolumeAvailable || v.Status.Phase == corev1.VolumePending || v.Status.Phase == ""
		return ours && free && v.Spec.StorageClassName == class && capacity.Cmp(size) >= 0
	}), nil
}

// ours reports whether an object is of this release, or Helm would adopt it.
func (i *Inspection) ours(o metav1.Object) bool {
	return o.GetLabels()[names.LabelInstance] == i.Settings.Release ||
		o.GetAnnotations()[names.AnnotationReleaseName] == i.Settings.Release
}

func className(claim *corev1.PersistentVolumeClaim) string {
	if claim.Spec.StorageClassName == nil {
		return ""
	}
	return *claim.Spec.StorageClassName
}

func modesOf(claim *corev1.PersistentVolumeClaim) string {
	var modes []string
	for _, m := range claim.Spec.AccessModes {
		modes = append(modes, string(m))
	}
	return strings.Join(modes, ",")
}
