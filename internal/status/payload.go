package status

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
)

// Payload describes the ConfigMaps from which a program is injected.
type Payload struct {
	// Name is the name of its ConfigMaps without their number.
	Name string `json:"name"`
	// Present of Desired ConfigMaps exist. Desired is 0 if the first one, which records the
	// number, is missing.
	Present int `json:"present"`
	Desired int `json:"desired"`
	// Complete reports whether all exist. The loader verifies their content.
	Complete bool   `json:"complete"`
	Message  string `json:"message,omitempty"`
}

// payloads checks the payloads that restarted pods need.
func (c *collector) payloads(ctx context.Context) error {
	var templates []corev1.PodTemplateSpec
	if c.deployment != nil {
		templates = append(templates, c.deployment.Spec.Template)
	}
	for _, d := range slices.Concat(c.objects, c.configObjects) {
		// A DaemonSet without nodes has no payload.
		if d.Status.DesiredNumberScheduled > 0 {
			templates = append(templates, d.Spec.Template)
		}
	}
	names := payloadNames(templates)
	if len(names) == 0 {
		return nil
	}
	list, err := c.Metadata.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(
		c.Namespace).List(ctx, selector(c.Release, "payload"))
	if err != nil {
		return c.unreadable("listing the ConfigMaps in namespace "+c.Namespace, err)
	}
	present := map[string]bool{}
	for _, m := range list.Items {
		present[m.Name] = true
	}
	for _, name := range names {
		p, err := c.payload(ctx, name, present)
		if err != nil {
			return err
		}
		c.report.Payloads = append(c.report.Payloads, p)
		if !p.Complete {
			c.next("Payload %s/%s is incomplete (%s), so restarting pods will wait: %s writes it.", c.Namespace, name, p.Message,
				c.installCommand())
		}
	}
	return nil
}

// payload reads the manifest of a payload in its first ConfigMap.
func (c *collector) payload(ctx context.Context, name string, present map[string]bool) (Payload, error) {
	p := Payload{Name: name}
	for object := range present {
		if strings.HasPrefix(object, name+"-") {
			p.Present++
		}
	}
	first, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Get(ctx, name+"-00", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		p.Message = "ConfigMap " + name + "-00 is missing"
		return p, nil
	case err != nil:
		p.Message = "could not be read"
		return p, c.unreadable("reading ConfigMap "+c.Namespace+"/"+name+"-00", err)
	}
	manifest, err := injector.ParseManifest(first.BinaryData[injector.ManifestKey])
	if err != nil {
		p.Message = err.Error()
		return p, nil
	}
	p.Desired = len(manifest.Chunks)
	for i := range p.Desired {
		if object := fmt.Sprintf("%s-%02d", name, i); !present[object] {
			p.Message = "ConfigMap " + object + " is missing"
			return p, nil
		}
	}
	p.Complete = true
	return p, nil
}

// payloadNames returns the payloads in the volumes of pod templates.
func payloadNames(templates []corev1.PodTemplateSpec) []string {
	var names []string
	for _, t := range templates {
		for _, v := range t.Spec.Volumes {
			if v.Projected == nil {
				continue
			}
			for _, source := range v.Projected.Sources {
				if source.ConfigMap == nil {
					continue
				}
				name, first := strings.CutSuffix(source.ConfigMap.Name, "-00")
				if first && strings.Contains(name, "-payload-") && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	slices.Sort(names)
	return names
}
