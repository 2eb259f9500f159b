package preflight

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
)

// replaceTime bounds the wait until a deleted claim is gone.
const replaceTime = 30 * time.Second

// ReplaceClaim deletes the chart's claim if it never got a volume and differs from what the chart wants, because a
// claim cannot be changed. Helm creates it again. The claim of a volume is never deleted.
func (i *Inspection) ReplaceClaim(ctx context.Context) (string, error) {
	wanted := i.Settings.Storage.Claim
	if wanted.Name == "" || wanted.Existing {
		return "nothing: the chart has no claim", nil
	}
	object := i.Object("PersistentVolumeClaim", wanted.Name)
	claim, err := i.Cluster.Claims.Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "nothing: it does not exist", nil
	case release.MissingPermission(err):
		return "nothing: this identity may not read it", nil
	case err != nil:
		return "", fmt.Errorf("reading %s: %w", object, err)
	case claim.Spec.VolumeName != "" || claim.Status.Phase != corev1.ClaimPending:
		return "nothing: it has a volume", nil
	case !i.ours(claim):
		return "nothing: it is not of this release", nil
	}
	classes, err := i.classes(ctx)
	if err != nil {
		return "", err
	}
	different := claimDifference(claim, wanted, classes)
	if different == "" {
		return "nothing: it is as wanted", nil
	}
	// Both the version and the UID, so that a claim that has just got a volume stays.
	precondition := metav1.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion}
	err = i.Cluster.Claims.Delete(ctx, wanted.Name, metav1.DeleteOptions{Preconditions: &precondition})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("deleting %s, which never got a volume: %w", object, release.RefuseForbidden(err))
	}
	for deadline := i.Now().Add(replaceTime); ; {
		now, err := i.Cluster.Claims.Get(ctx, wanted.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && now.UID != claim.UID:
			return fmt.Sprintf("deleted %s, which never got a volume: %s", object, different), nil
		case err != nil:
			return "", fmt.Errorf("reading %s: %w", object, err)
		case i.Now().After(deadline):
			return "", fmt.Errorf("%s is still being deleted, because a pod uses it (kubectl --namespace %s describe "+
				"persistentvolumeclaim %s); then run this again", object, claim.Namespace, claim.Name)
		}
		if err := release.Sleep(ctx, release.PollInterval); err != nil {
			return "", err
		}
	}
}

// claimDifference describes how a claim differs from what the chart wants, or returns "".
func claimDifference(claim *corev1.PersistentVolumeClaim, wanted settings.Claim,
	classes []storagev1.StorageClass) string {
	has, want := className(claim), ""
	switch {
	case wanted.StorageClass != nil:
		want = *wanted.StorageClass
	case claim.Spec.StorageClassName == nil, classes == nil:
		want = has // it gets the default class when there is one, or that is unknown
	default:
		// The API server writes the default class into a new claim.
		for _, c := range classes {
			if c.Annotations[defaultClass] == "true" && (c.Name == has || want == "") {
				want = c.Name
			}
		}
	}
	size, err := resource.ParseQuantity(wanted.Size)
	requested := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	switch {
	case has != want || wanted.StorageClass != nil && claim.Spec.StorageClassName == nil:
		return fmt.Sprintf("its StorageClass was %q, wanted is %q", has, want)
	case modesOf(claim) != strings.Join(wanted.AccessModes, ","):
		return fmt.Sprintf("its access modes were %s, wanted are %s", modesOf(claim), strings.Join(wanted.AccessModes, ","))
	case err == nil && size.Cmp(requested) != 0:
		return fmt.Sprintf("its size was %s, wanted is %s", requested.String(), wanted.Size)
	}
	return ""
}
