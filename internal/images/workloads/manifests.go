package workloads

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/zarf-dev/zarf-registry/internal/images/name"
)

// AddManifests adds the objects of manifests, such as rendered Helm charts: YAML documents or JSON, also lists. It
// returns how many objects there were. Name is that of the file, for errors.
//
// In objects of kinds that Kubernetes itself does not have, the references are all fields image whose text is a
// reference, apart from metadata and status, and environment variables RELATED_IMAGE_*.
func (s *Set) AddManifests(r io.Reader, name string) (objects int, err error) {
	const sniffed = 4096 // bytes from which the decoder tells JSON from YAML
	documents := yaml.NewYAMLOrJSONDecoder(r, sniffed)
	for number := 1; ; number++ {
		var document any
		switch err := documents.Decode(&document); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return objects, fmt.Errorf("%s: document %d: %w", name, number, err)
		case document == nil: // only comments
			continue
		}
		n, err := s.addObject(document, "", "")
		if err != nil {
			return objects, fmt.Errorf("%s: document %d: %w", name, number, err)
		}
		objects += n
	}
}

// addObject adds an object, or those of a list. apiVersion and kind are those of an object that does not name its own.
func (s *Set) addObject(document any, apiVersion, kind string) (objects int, err error) {
	content, _ := document.(map[string]any)
	o := &unstructured.Unstructured{Object: content}
	if content != nil && o.GetKind() == "" && kind != "" {
		o.SetAPIVersion(apiVersion)
		o.SetKind(kind)
	}
	if o.GetAPIVersion() == "" || o.GetKind() == "" {
		return 0, errors.New("not a Kubernetes manifest: it has no apiVersion and kind (render charts with helm template)")
	}
	items, ok := content["items"].([]any)
	if !ok || !strings.HasSuffix(o.GetKind(), "List") {
		return 1, s.addOne(o)
	}
	for i, item := range items {
		// kubectl's List names the kind of each item, and those of the API do not.
		n, err := s.addObject(item, o.GetAPIVersion(), strings.TrimSuffix(o.GetKind(), "List"))
		if err != nil {
			return objects, fmt.Errorf("item %d: %w", i+1, err)
		}
		objects += n
	}
	return objects, nil
}

func (s *Set) addOne(o *unstructured.Unstructured) error {
	version, err := schema.ParseGroupVersion(o.GetAPIVersion())
	if err != nil {
		return err
	}
	if !scheme.Scheme.IsGroupRegistered(version.Group) {
		w := newWorkload(o.GetKind(), o)
		w.needs = fields(o.Object, "")
		s.all = append(s.all, w)
		return nil
	}
	typed := withPods(o.GetKind())
	if typed == nil {
		return nil
	}
	// Whatever the version, the template of the pods is the same.
	encoded, err := json.Marshal(o.Object)
	if err == nil {
		err = json.Unmarshal(encoded, typed)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", newWorkload(o.GetKind(), o).name, err)
	}
	return s.add(o.GetKind(), typed)
}

// withPods returns an empty object of a kind of Kubernetes, or nil for kinds without pods.
func withPods(kind string) runtime.Object {
	for _, version := range []schema.GroupVersion{corev1.SchemeGroupVersion, appsv1.SchemeGroupVersion,
		batchv1.SchemeGroupVersion} {
		o, err := scheme.Scheme.New(version.WithKind(kind))
		if err == nil && (podSpec(o) != nil || kind == "ReplicationController") { // whose template is a pointer
			return o
		}
	}
	return nil
}

// fields returns the references in the fields of a custom resource, whose path begins with at.
func fields(content map[string]any, at string) []need {
	var found []need
	variable, _ := content["name"].(string)
	value, _ := content["value"].(string)
	if n, ok := related(variable, value); ok {
		found = append(found, n)
	}
	for key, value := range content {
		path := at + key
		switch value := value.(type) {
		case map[string]any:
			if path != "metadata" && path != "status" {
				found = append(found, fields(value, path+".")...)
			}
		case []any:
			for i, item := range value {
				if object, ok := item.(map[string]any); ok {
					found = append(found, fields(object, fmt.Sprintf("%s[%d].", path, i))...)
				}
			}
		case string:
			if n, err := name.Parse(value); err == nil && key == "image" {
				found = append(found, need{name: n, where: path})
			}
		}
	}
	return found
}
