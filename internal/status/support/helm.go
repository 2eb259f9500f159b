package support

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/mask"
	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// helm adds the history of the Helm release, and the masked values of its deployed and its last revision.
func (c *collector) helm(ctx context.Context) error {
	ctx, cancel := request(ctx)
	defer cancel()
	// With namespaceOverride, the release is in another namespace than its objects.
	home := c.Namespace
	deployment, err := c.Client.AppsV1().Deployments(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if err == nil {
		home = cmp.Or(deployment.Annotations[names.AnnotationReleaseNamespace], home)
	}
	history, err := storage.Init(driver.NewSecrets(records{c.Client.CoreV1().Secrets(home), ctx})).History(c.Release)
	switch {
	case errors.Is(err, driver.ErrReleaseNotFound):
		return nil // as with Argo CD
	case err != nil:
		c.failed(ctx, "helm", err)
		return nil
	}
	history = slices.DeleteFunc(history, func(r *release.Release) bool { return r.Info == nil })
	if len(history) == 0 {
		c.missing("helm", errors.New("no record of the release can be decoded"))
		return nil
	}
	releaseutil.SortByRevision(history)
	shown := []*release.Release{history[len(history)-1]}
	for _, rel := range history {
		if rel.Info.Status == release.StatusDeployed && rel != shown[0] {
			shown = append(shown, rel)
		}
	}
	if last := shown[0]; last.Chart != nil && last.Chart.Metadata != nil {
		c.chart = fmt.Sprintf("%s %s, revision %d, %s", last.Chart.Metadata.Name, last.Chart.Metadata.Version, last.Version,
			last.Info.Status)
	}
	if err := c.file("helm/history.txt", func(w io.Writer) error { return writeHistory(w, history) }); err != nil {
		return err
	}
	for _, rel := range shown {
		err := c.file(fmt.Sprintf("helm/values-%d.yaml", rel.Version), func(w io.Writer) error {
			text, err := yaml.Marshal(masked(rel.Config))
			fmt.Fprintf(w, "%s", text)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// records lists Helm's Secrets with the context of the request: Helm's own has no end.
type records struct {
	typed.SecretInterface
	request context.Context
}

func (s records) List(_ context.Context, options metav1.ListOptions) (*corev1.SecretList, error) {
	return s.SecretInterface.List(s.request, options)
}

func writeHistory(w io.Writer, history []*release.Release) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "REVISION\tUPDATED\tSTATUS\tCHART\tAPP VERSION\tDESCRIPTION\n")
	for _, rel := range history {
		chart, app := "", ""
		if rel.Chart != nil && rel.Chart.Metadata != nil {
			chart, app = rel.Chart.Metadata.Name+"-"+rel.Chart.Metadata.Version, rel.Chart.Metadata.AppVersion
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\n", rel.Version, rel.Info.LastDeployed.UTC().Format(time.RFC3339),
			rel.Info.Status, chart, app, strings.ReplaceAll(rel.Info.Description, "\n", "; "))
	}
	return table.Flush()
}

// masked returns what is shown of a release's values.
func masked(values map[string]any) map[string]any {
	shown := make(map[string]any, len(values))
	for key, value := range values { // the sections auth and secrets by their keys: both have names, too
		shown[key] = mask.Document(value)
	}
	// Values of other types, which the chart refuses, have no such fields.
	if text, ok, _ := unstructured.NestedString(values, "nodeConfig", "k3s", "registries"); ok {
		masked := noderuntime.Masked(noderuntime.KindRegistries, []byte(text))
		_ = unstructured.SetNestedField(shown, masked, "nodeConfig", "k3s", "registries")
	}
	found, _, _ := unstructured.NestedFieldNoCopy(values, "nodeConfig", "containerd", "hosts")
	hosts, _ := found.(map[string]any)
	for host, text := range hosts {
		masked := noderuntime.Masked(noderuntime.KindHosts, fmt.Append(nil, text))
		_ = unstructured.SetNestedField(shown, masked, "nodeConfig", "containerd", "hosts", host)
	}
	objects, _ := shown["extraObjects"].([]any)
	for i, object := range objects {
		if _, template := object.(string); template {
			objects[i] = mask.Redacted
		}
	}
	return shown
}
