package install

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
)

// rejected creates the objects of the manifest that do not exist with a dry run, and returns what the API server
// rejects: node ports that are taken, addresses and names that are malformed, and rights that this identity lacks.
// Without it, Helm would report the first one after prepare.
func (r *run) rejected(ctx context.Context, manifest string) []preflight.Finding {
	var findings []preflight.Finding
	for _, document := range documents(manifest) {
		objects, err := r.Helm.KubeClient.Build(strings.NewReader(document), false)
		if err != nil { // rendering has built all of them, so the API server may be restarting
			continue
		}
		for _, o := range objects {
			scoped := o.Mapping.Scope.Name() == meta.RESTScopeNameNamespace
			err := o.Client.Post().NamespaceIfScoped(o.Namespace, scoped).Resource(o.Mapping.Resource.Resource).
				VersionedParams(&metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}, metav1.ParameterCodec).
				Body(o.Object).Do(ctx).Error()
			if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) && !apierrors.IsBadRequest(err) ||
				strings.Contains(err.Error(), "does not support dry run") {
				continue // nil; it exists; its namespace does not; or Helm finds out
			}
			if o.Get() == nil {
				continue // Helm patches it; as a new object, its node port would be taken, and a quota counts it twice
			}
			object := o.Mapping.GroupVersionKind.Kind + " " + o.Name
			if scoped {
				object = fmt.Sprintf("%s %s/%s", o.Mapping.GroupVersionKind.Kind, o.Namespace, o.Name)
			}
			f := preflight.Finding{Check: "admission", Severity: preflight.Blocker, Object: object,
				Cause:  "the API server rejects it: " + err.Error(),
				Remedy: fmt.Sprintf("correct the values under %s that this is about", valuesOf(document))}
			if r.settings.Preflight.Ignores(f.Check) {
				f.Severity = preflight.Warning
			}
			findings = append(findings, f)
		}
	}
	return findings
}

// valuesOf returns the path of the values for the template of a rendered document, as its first line names it.
func valuesOf(document string) string {
	const source = "# Source: "
	line, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(document), "---")), "\n")
	folder := path.Base(path.Dir(strings.TrimPrefix(line, source)))
	if !strings.HasPrefix(line, source) {
		return "its name"
	}
	other := map[string]string{"certificates": "pki", "extra": "extraObjects",
		"garbage-collection": "registry.garbageCollection", "init-hook": "initHook", "node-config": "nodeConfig",
		"pause-images": "injector"}
	return cmp.Or(other[folder], folder)
}
