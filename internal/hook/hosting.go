package hook

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// KEP-1755 has tools that build and push images, such as Tilt and Skaffold, look for
// the cluster's registry in a ConfigMap of this name. There is one for the whole
// cluster, so it belongs to whoever came first.
const (
	// HostingNamespace and HostingName are where that ConfigMap is.
	HostingNamespace = "kube-public"
	HostingName      = "local-registry-hosting"
	// HostingKey is its only key.
	HostingKey = "localRegistryHosting.v1"

	hostingHelp = "https://github.com/zarf-dev/zarf-registry/blob/main/docs/expose.md#tools-that-look-for-a-registry"
)

// hostingConfigMap is what is said of this registry. host is the way from outside of
// the cluster; where there is none of its own it is the nodes' address, which is right
// for whoever is on a node.
func (r *run) hostingConfigMap() *corev1.ConfigMap {
	o := &r.Settings
	inside := fmt.Sprintf("%s.%s.svc.%s:5000", o.Name, o.Namespace, o.PKI.ClusterDomain)
	outside := o.Address
	if o.Expose.Address != "" {
		outside = o.Expose.Address
	}
	var text strings.Builder
	for _, field := range [][2]string{{"host", outside}, {"hostFromContainerRuntime", o.Address}, {"hostFromClusterNetwork", inside}, {"help", hostingHelp}} {
		fmt.Fprintf(&text, "%s: %s\n", field[0], strconv.Quote(field[1]))
	}
	annotated := release.Annotations()
	annotated[names.AnnotationOwner] = r.hostingOwner()
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: HostingName, Namespace: HostingNamespace, Labels: r.Labels(names.ComponentHosting), Annotations: annotated,
		},
		Data: map[string]string{HostingKey: text.String()},
	}
}

func (r *run) hostingOwner() string { return r.Settings.Namespace + "/" + r.Settings.Release }

// advertise writes the ConfigMap, unless it is somebody else's; with an external
// registry, or where nobody wants it, it removes the one that this release wrote.
// Nothing depends on it, so a missing right fails nothing.
func (f *finishing) advertise(ctx context.Context) (string, error) {
	if !f.Settings.Finish.LocalRegistryHosting || f.Settings.Mode == state.ModeExternal {
		return f.withdraw(ctx)
	}
	did := ""
	err := release.RetryOnConflict(ctx, func() (err error) {
		did, err = f.tryAdvertise(ctx)
		return err
	})
	return f.unlessForbidden(did, err)
}

func (f *finishing) tryAdvertise(ctx context.Context) (string, error) {
	want := f.hostingConfigMap()
	have, err := f.cluster.HostingConfigMaps.Get(ctx, HostingName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err := f.cluster.HostingConfigMaps.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return "left alone: somebody else has just made it", nil
		}
		if err != nil {
			return "", fmt.Errorf("creating %s: %w", hostingObject, err)
		}
		return "wrote " + hostingObject, nil
	case err != nil:
		return "", fmt.Errorf("reading %s: %w", hostingObject, err)
	case !f.ownsHosting(have):
		return fmt.Sprintf("left alone: %s is of %s", hostingObject, hostingOwnerOf(have)), nil
	case maps.Equal(have.Data, want.Data):
		return "it says so already", nil
	}
	changed := have.DeepCopy()
	changed.Data = want.Data
	if _, err := f.cluster.HostingConfigMaps.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return "", fmt.Errorf("updating %s: %w", hostingObject, err)
	}
	return "updated " + hostingObject, nil
}

const hostingObject = "ConfigMap " + HostingNamespace + "/" + HostingName

// withdraw removes the ConfigMap where this release wrote it.
func (r *run) withdraw(ctx context.Context) (string, error) {
	have, err := r.cluster.HostingConfigMaps.Get(ctx, HostingName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "there is none", nil
	case err != nil:
		return r.unlessForbidden("", fmt.Errorf("reading %s: %w", hostingObject, err))
	case !r.ownsHosting(have):
		return fmt.Sprintf("left alone: %s is of %s", hostingObject, hostingOwnerOf(have)), nil
	}
	// Only the one that was looked at: another may have been made since.
	err = r.cluster.HostingConfigMaps.Delete(ctx, HostingName, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return r.unlessForbidden("", fmt.Errorf("deleting %s: %w", hostingObject, err))
	}
	return "deleted " + hostingObject, nil
}

func (r *run) unlessForbidden(did string, err error) (string, error) {
	if apierrors.IsForbidden(err) {
		r.Log.Warn("tools that look for the cluster's registry are not told of this one: set localRegistryHosting=false, or grant the right", "error", err.Error())
		return "nothing: it is forbidden", nil
	}
	return did, err
}

func (r *run) ownsHosting(have *corev1.ConfigMap) bool {
	return have.Labels[names.LabelManagedBy] == names.Manager && have.Annotations[names.AnnotationOwner] == r.hostingOwner()
}

// hostingOwnerOf names in words whose ConfigMap it is.
func hostingOwnerOf(have *corev1.ConfigMap) string {
	if owner := have.Annotations[names.AnnotationOwner]; owner != "" && have.Labels[names.LabelManagedBy] == names.Manager {
		return "release " + owner
	}
	return "somebody else"
}
