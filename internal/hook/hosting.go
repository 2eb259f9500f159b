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

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Tools that build and push images, such as Tilt and Skaffold, look for the cluster's registry in
// this ConfigMap (KEP-1755). There is only one per cluster, so the first registry that creates it
// owns it.
const (
	// HostingNamespace and HostingName locate that ConfigMap.
	HostingNamespace = "kube-public"
	HostingName      = "local-registry-hosting"
	// HostingKey is its only key.
	HostingKey = "localRegistryHosting.v1"

	hostingHelp = "https://github.com/zarf-dev/zarf-registry/blob/main/docs/reference/expose.md" +
		"#tools-that-look-for-a-registry"
)

// hostingConfigMap returns the ConfigMap that describes this registry. Its host is the address for
// clients outside the cluster. Without one it is the loopback address, which works on the nodes
// only.
func (r *run) hostingConfigMap() *corev1.ConfigMap {
	o := &r.Settings
	inside := fmt.Sprintf("%s.%s.svc.%s:5000", o.Name, o.Namespace, o.PKI.ClusterDomain)
	outside := o.Address
	if o.Expose.Address != "" {
		outside = o.Expose.Address
	}
	var text strings.Builder
	for _, field := range [][2]string{{"host", outside}, {"hostFromContainerRuntime", o.Address},
		{"hostFromClusterNetwork", inside}, {"help", hostingHelp}} {
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

// advertise writes the ConfigMap unless another registry owns it. With an external registry, or if
// advertising is off, it deletes the ConfigMap that this release wrote. Nothing depends on the
// ConfigMap, so a missing permission is no failure.
func (f *finishRun) advertise(ctx context.Context) (string, error) {
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

func (f *finishRun) tryAdvertise(ctx context.Context) (string, error) {
	want := f.hostingConfigMap()
	have, err := f.cluster.HostingConfigMaps.Get(ctx, HostingName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err := f.cluster.HostingConfigMaps.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return "left alone: another registry has just created it", nil
		}
		if err != nil {
			return "", fmt.Errorf("creating %s: %w", hostingObject, err)
		}
		return "wrote " + hostingObject, nil
	case err != nil:
		return "", fmt.Errorf("reading %s: %w", hostingObject, err)
	case !f.ownsHosting(have):
		return fmt.Sprintf("left alone: %s belongs to %s", hostingObject, hostingOwnerOf(have)), nil
	case maps.Equal(have.Data, want.Data):
		return "unchanged", nil
	}
	changed := have.DeepCopy()
	changed.Data = want.Data
	if _, err := f.cluster.HostingConfigMaps.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return "", fmt.Errorf("updating %s: %w", hostingObject, err)
	}
	return "updated " + hostingObject, nil
}

const hostingObject = "ConfigMap " + HostingNamespace + "/" + HostingName

// withdraw deletes the ConfigMap if this release wrote it.
func (r *run) withdraw(ctx context.Context) (string, error) {
	have, err := r.cluster.HostingConfigMaps.Get(ctx, HostingName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "nothing: it does not exist", nil
	case err != nil:
		return r.unlessForbidden("", fmt.Errorf("reading %s: %w", hostingObject, err))
	case !r.ownsHosting(have):
		return fmt.Sprintf("left alone: %s belongs to %s", hostingObject, hostingOwnerOf(have)), nil
	}
	// Delete only the object that was read: another may have been created since.
	err = r.cluster.HostingConfigMaps.Delete(ctx, HostingName,
		*metav1.NewPreconditionDeleteOptions(string(have.UID)))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return r.unlessForbidden("", fmt.Errorf("deleting %s: %w", hostingObject, err))
	}
	return "deleted " + hostingObject, nil
}

func (r *run) unlessForbidden(did string, err error) (string, error) {
	if apierrors.IsForbidden(err) {
		r.Log.Warn("cannot advertise the registry to tools: grant the permission, or set localRegistryHosting=false", "error",
			err.Error())
		return "nothing: the permission is missing", nil
	}
	return did, err
}

func (r *run) ownsHosting(have *corev1.ConfigMap) bool {
	return have.Labels[names.LabelManagedBy] == names.Manager &&
		have.Annotations[names.AnnotationOwner] == r.hostingOwner()
}

// hostingOwnerOf describes the owner of the ConfigMap for messages.
func hostingOwnerOf(have *corev1.ConfigMap) string {
	if owner := have.Annotations[names.AnnotationOwner]; owner != "" &&
		have.Labels[names.LabelManagedBy] == names.Manager {
		return "release " + owner
	}
	return "another owner"
}
