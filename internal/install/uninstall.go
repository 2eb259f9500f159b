package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/kube"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Installed returns the newest revision of a release, or nil if it does not exist. It refuses one of another chart.
func Installed(helm *action.Configuration, name string) (*release.Release, error) {
	rel, err := helm.Releases.Last(name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading release %s: %w", name, err)
	}
	return rel, refuseForeign(rel)
}

// Object is one of the chart's.
type Object struct {
	Kind, Namespace, Name string
	// Kept means that an uninstall leaves it: the volume claim, unless the values say otherwise.
	Kept bool
}

// String returns the object as messages name it.
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// Objects returns the objects of a release, in the order of its manifest, without those that only hooks create.
func Objects(rel *release.Release) ([]Object, error) {
	var objects []Object
	for part := range strings.SplitSeq("\n"+rel.Manifest, "\n---") {
		var o metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(part), &o); err != nil {
			return nil, fmt.Errorf("reading the manifest of release %s: %w", rel.Name, err)
		}
		if o.Kind != "" {
			objects = append(objects, Object{o.Kind, o.Namespace, o.Name,
				o.Kind == "PersistentVolumeClaim" && o.Annotations[kube.ResourcePolicyAnno] == kube.KeepPolicy})
		}
	}
	return objects, nil
}

// Uninstall does the work of the release's cleanup Job and then removes the chart's objects, as helm uninstall does. It
// creates the pods that restore files on nodes, and calls cleanup once with the arguments of that Job, or of another
// one with the same settings: a release that never worked may have no cleanup Job. If the release is gone, it only
// calls cleanup, without arguments. Uninstall reports whether there was a release. Repeated, it continues an
// interrupted run. The time limit bounds Helm's part.
func Uninstall(ctx context.Context, helm *action.Configuration, name string, limit time.Duration,
	cleanup func(ctx context.Context, args []string) error,
) (found bool, err error) {
	rel, err := Installed(helm, name)
	switch {
	case err != nil:
		return false, err
	case rel == nil:
		return false, cleanup(ctx, nil)
	}
	args, err := jobArguments(rel, "cleanup")
	if err != nil {
		args, err = jobArguments(rel, "prepare")
	}
	if err != nil {
		return true, err
	}
	if err := createRestorers(helm, rel, limit); err != nil {
		return true, err
	}
	if err := cleanup(ctx, args); err != nil {
		return true, err
	}
	uninstall := action.NewUninstall(helm)
	uninstall.DisableHooks, uninstall.Timeout = true, limit
	if _, err := uninstall.Run(name); err != nil {
		return true, fmt.Errorf("removing the objects of release %s: %w; --log-level=debug shows why; then run this again",
			name, err)
	}
	return true, nil
}

// createRestorers creates the DaemonSets that give nodes their files back, as Helm does before the cleanup Job, which
// waits for their pods. Those of an interrupted run are replaced. It does nothing for a release without nodeConfig.
func createRestorers(helm *action.Configuration, rel *release.Release, limit time.Duration) error {
	for _, h := range rel.Hooks {
		if h.Kind != "DaemonSet" || !slices.Contains(h.Events, release.HookPreDelete) {
			continue
		}
		failed := func(err error) error {
			return fmt.Errorf("creating the DaemonSet %s, whose pods give nodes their files back: %w", h.Name, err)
		}
		objects, err := helm.KubeClient.Build(strings.NewReader(h.Manifest), false)
		if err != nil {
			return failed(err)
		}
		if _, errs := helm.KubeClient.Delete(objects); len(errs) > 0 { // a missing one is no error
			return failed(errors.Join(errs...))
		}
		if client, ok := helm.KubeClient.(kube.InterfaceExt); ok {
			if err := client.WaitForDelete(objects, limit); err != nil {
				return failed(fmt.Errorf("waiting until the previous one is gone: %w", err))
			}
		}
		if _, err := helm.KubeClient.Create(objects); err != nil {
			return failed(err)
		}
	}
	return nil
}
