package support

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/mask"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// page is how many objects are read at a time.
const page = 500

type kind struct {
	group, version, resource string
	// cluster means that the objects have no namespace.
	cluster bool
	// selector selects the objects; nil means those of the release.
	selector *metav1.ListOptions
	// custom means that only some clusters know the kind.
	custom bool
}

// kinds returns the kinds whose objects are read. A cluster need not know all of them.
func (c *collector) kinds() []kind {
	return []kind{
		{"", "v1", "namespaces", true, &metav1.ListOptions{FieldSelector: "metadata.name=" + c.Namespace}, false},
		{"", "v1", "nodes", true, &metav1.ListOptions{}, false},
		{"", "v1", "pods", false, nil, false},
		{"", "v1", "configmaps", false, nil, false},
		{"", "v1", "persistentvolumeclaims", false, nil, false},
		{"", "v1", "serviceaccounts", false, nil, false},
		{"", "v1", "services", false, nil, false},
		{"discovery.k8s.io", "v1", "endpointslices", false, nil, false},
		{"apps", "v1", "daemonsets", false, nil, false},
		{"apps", "v1", "deployments", false, nil, false},
		{"batch", "v1", "cronjobs", false, nil, false},
		{"batch", "v1", "jobs", false, nil, false},
		{"networking.k8s.io", "v1", "ingresses", false, nil, false},
		{"networking.k8s.io", "v1", "networkpolicies", false, nil, false},
		{"policy", "v1", "poddisruptionbudgets", false, nil, false},
		{"rbac.authorization.k8s.io", "v1", "roles", false, nil, false},
		{"rbac.authorization.k8s.io", "v1", "rolebindings", false, nil, false},
		{"rbac.authorization.k8s.io", "v1", "clusterroles", true, nil, false},
		{"rbac.authorization.k8s.io", "v1", "clusterrolebindings", true, nil, false},
		{"admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", true, nil, false},
		{"admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", true, nil, false},
		{"admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", true, nil, true},
		{"admissionregistration.k8s.io", "v1", "mutatingadmissionpolicybindings", true, nil, true},
		{"cert-manager.io", "v1", "certificates", false, nil, true},
		{"cert-manager.io", "v1", "issuers", false, nil, true},
		{"gateway.networking.k8s.io", "v1", "httproutes", false, nil, true},
		{"gateway.networking.k8s.io", "v1", "backendtlspolicies", false, nil, true},
	}
}

func (c *collector) objects(ctx context.Context) error {
	for _, k := range c.kinds() {
		name := "objects/" + k.resource + ".yaml"
		err := c.file(name, func(w io.Writer) error {
			return c.list(ctx, k, func(object *unstructured.Unstructured) error {
				c.prepare(k, object)
				text, err := yaml.Marshal(mask.Document(object.Object))
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(w, "---\n%s", text)
				return err
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// list passes the objects of a kind to handle, page by page. A kind that the cluster does not know has none.
func (c *collector) list(ctx context.Context, k kind, handle func(*unstructured.Unstructured) error) error {
	options := metav1.ListOptions{LabelSelector: names.LabelInstance + "=" + c.Release}
	if k.selector != nil {
		options = *k.selector
	}
	options.Limit = page
	resource := c.Objects.Resource(schema.GroupVersionResource{Group: k.group, Version: k.version, Resource: k.resource})
	var reader dynamic.ResourceInterface = resource
	if !k.cluster {
		reader = resource.Namespace(c.Namespace)
	}
	for {
		items, err := c.page(ctx, reader, options)
		if apierrors.IsForbidden(err) && k.custom && c.unknown(ctx, k) {
			return nil
		}
		if err != nil || items == nil {
			return err
		}
		for i := range items.Items {
			if err := handle(&items.Items[i]); err != nil {
				return err
			}
		}
		if options.Continue = items.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// unknown reports whether the cluster does not know a kind. It rejects those who may not read it before it says so.
func (c *collector) unknown(ctx context.Context, k kind) bool {
	ctx, cancel := request(ctx)
	defer cancel()
	api := discovery.ToDiscoveryInterfaceWithContext(c.Client.Discovery())
	list, err := api.ServerResourcesForGroupVersionWithContext(ctx, k.group+"/"+k.version)
	return apierrors.IsNotFound(err) || err == nil && !slices.ContainsFunc(list.APIResources,
		func(r metav1.APIResource) bool { return r.Name == k.resource })
}

// page reads a page; nil if the cluster does not know the kind.
func (c *collector) page(ctx context.Context, reader dynamic.ResourceInterface, options metav1.ListOptions) (
	*unstructured.UnstructuredList, error) {
	ctx, cancel := request(ctx)
	defer cancel()
	items, err := reader.List(ctx, options)
	return items, explain(ctx, err)
}

// prepare removes what says nothing about a release: who set which field, and the programs in payloads. It
// keeps what the summary shows of nodes.
func (c *collector) prepare(k kind, object *unstructured.Unstructured) {
	unstructured.RemoveNestedField(object.Object, "metadata", "managedFields")
	switch k.resource {
	case "configmaps":
		binary, _, _ := unstructured.NestedMap(object.Object, "binaryData")
		for key, value := range binary {
			text, _ := value.(string)
			binary[key] = fmt.Sprintf("(%d bytes of base64)", len(text))
		}
		if binary != nil {
			object.Object["binaryData"] = binary
		}
	case "nodes":
		var n corev1.Node
		if runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &n) == nil {
			n.Status.Images = nil
			c.nodes = append(c.nodes, n)
		}
	}
}

// events adds the events of the namespace, oldest first.
func (c *collector) events(ctx context.Context) error {
	ctx, cancel := request(ctx)
	defer cancel()
	list, err := c.Client.CoreV1().Events(c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		c.failed(ctx, "events.txt", err)
		return nil
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int {
		return cmp.Or(last(a).Compare(last(b)), cmp.Compare(a.Name, b.Name))
	})
	return c.file("events.txt", func(w io.Writer) error {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprint(table, "LAST\tCOUNT\tTYPE\tREASON\tOBJECT\tMESSAGE\n")
		for _, e := range list.Items {
			count := e.Count
			if e.Series != nil {
				count = e.Series.Count
			}
			fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s %s\t%s\n", last(e).UTC().Format(time.RFC3339), max(count, 1), e.Type,
				e.Reason, e.InvolvedObject.Kind, e.InvolvedObject.Name, strings.ReplaceAll(e.Message, "\n", " "))
		}
		return table.Flush()
	})
}

// last returns when an event was last seen.
func last(e corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}
