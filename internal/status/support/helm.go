package support

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// helm adds the history of the Helm release, and values and manifest of its deployed and its last revision.
func (c *collector) helm(ctx context.Context) error {
	ctx, cancel := request(ctx)
	defer cancel()
	// With namespaceOverride, the release is in another namespace than its objects.
	home := c.Namespace
	deployment, err := c.Client.AppsV1().Deployments(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if err == nil {
		home = cmp.Or(deployment.Annotations[names.AnnotationReleaseNamespace], home)
	}
	records := driver.NewSecrets(secrets{c.Client.CoreV1().Secrets(home), ctx})
	history, err := storage.Init(records).History(c.Release)
	switch {
	case errors.Is(err, driver.ErrReleaseNotFound):
		return nil // as with Argo CD
	case err != nil:
		c.result.SecretsRead = false
		c.failed(ctx, "helm", err)
		return nil
	}
	history = slices.DeleteFunc(history, func(r *release.Release) bool { return r.Info == nil })
	if len(history) == 0 {
		c.result.SecretsRead = false
		c.missing("helm", errors.New("no record of the release can be decoded"))
		return nil
	}
	releaseutil.SortByRevision(history)
	shown := []*release.Release{history[len(history)-1]}
	for _, rel := range history {
		c.learnValues(rel.Config)
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
		manifests, unreadable := c.manifests(rel) // learns, so the values come next
		err := c.file(fmt.Sprintf("helm/values-%d.yaml", rel.Version), func(w io.Writer) error {
			text, err := yaml.Marshal(c.values(rel.Config))
			fmt.Fprintf(w, "%s", text)
			return err
		})
		if err != nil {
			return err
		}
		err = c.file(fmt.Sprintf("helm/manifest-%d.yaml", rel.Version), func(w io.Writer) error {
			for _, m := range manifests {
				if _, err := fmt.Fprintf(w, "---\n%s", m); err != nil {
					return err
				}
			}
			return unreadable
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// secrets lists Secrets with the context of the request: Helm's own has no end.
type secrets struct {
	typed.SecretInterface
	request context.Context
}

func (s secrets) List(_ context.Context, options metav1.ListOptions) (*corev1.SecretList, error) {
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

// learnValues adds the secrets in a release's values to those that are searched for.
func (c *collector) learnValues(values map[string]any) {
	c.mask.Values(withoutAuth(values))
	c.learnDocument(values, "")
	if registries, ok := lookup(values, "nodeConfig", "k3s", "registries").(map[string]any); ok {
		text, err := yaml.Marshal(registries)
		if err == nil { // what was decoded from YAML can be encoded
			c.learnText(string(text))
		}
	}
}

// withoutAuth returns values without the chart's section auth: it contains names of Secrets and of credentials,
// and no secrets.
func withoutAuth(values map[string]any) map[string]any {
	rest := maps.Clone(values)
	delete(rest, "auth")
	return rest
}

// values returns what is shown of a release's values.
func (c *collector) values(values map[string]any) any {
	if c.unmasked {
		return values
	}
	masked := c.mask.Values(withoutAuth(values)).(map[string]any)
	if auth, ok := values["auth"].(map[string]any); ok {
		masked["auth"] = c.mask.Object(auth)
	}
	switch registries := lookup(values, "nodeConfig", "k3s", "registries").(type) {
	case string:
		set(masked, shownFile(noderuntime.KindRegistries, registries), "nodeConfig", "k3s", "registries")
	case map[string]any:
		text, _ := yaml.Marshal(registries) // likewise
		set(masked, shownFile(noderuntime.KindRegistries, string(text)), "nodeConfig", "k3s", "registries")
	}
	if hosts, ok := lookup(values, "nodeConfig", "containerd", "hosts").(map[string]any); ok {
		shown := map[string]any{}
		for host, text := range hosts {
			shown[c.mask.String(host)] = shownFile(noderuntime.KindHosts, fmt.Sprint(text))
		}
		set(masked, shown, "nodeConfig", "containerd", "hosts")
	}
	return masked
}

// shownFile returns the masked content of a file of a container runtime.
func shownFile(kind noderuntime.Kind, text string) string {
	return noderuntime.Diff(string(kind), kind, nil, []byte(text))
}

func lookup(v any, keys ...string) any {
	for _, key := range keys {
		table, _ := v.(map[string]any)
		v = table[key]
	}
	return v
}

// set replaces a value that exists.
func set(v map[string]any, value any, keys ...string) {
	table, _ := lookup(v, keys[:len(keys)-1]...).(map[string]any)
	if table != nil {
		table[keys[len(keys)-1]] = value
	}
}

// manifests returns the masked objects of a release, with hooks. What is no object is left out, because its
// secrets are unknown.
func (c *collector) manifests(rel *release.Release) (documents []string, unreadable error) {
	texts := []string{rel.Manifest}
	for _, hook := range rel.Hooks {
		texts = append(texts, hook.Manifest)
	}
	var objects []map[string]any
	for _, text := range texts {
		split := releaseutil.SplitManifests(text)
		for i := range len(split) {
			document := split[fmt.Sprintf("manifest-%d", i)]
			var object map[string]any
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				unreadable = errors.New("a document that is no YAML is left out")
				continue
			}
			if len(object) == 0 {
				continue
			}
			var secret corev1.Secret
			if object["kind"] == "Secret" && yaml.Unmarshal([]byte(document), &secret) == nil {
				for key, value := range secret.StringData {
					if secret.Data == nil {
						secret.Data = map[string][]byte{}
					}
					secret.Data[key] = []byte(value)
				}
				c.learn(&secret)
			}
			objects = append(objects, object)
		}
	}
	for _, object := range objects {
		text, err := yaml.Marshal(c.object(object))
		if err != nil {
			unreadable = err
			continue
		}
		documents = append(documents, string(text))
	}
	return documents, unreadable
}
