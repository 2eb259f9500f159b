// Package heal replaces the image of the release's own pods that wait for an image which their node
// does not have, with one that the node reports and that may carry programs (nodeimages). Only containers
// that run the loader are changed: the program comes from the payload.
//
// It also continues rollouts of the proxies, and copies the names of the registry's repositories to a ConfigMap, for
// the policy that rewrites references.
//
// It creates nothing except events. The healer runs it in the cluster (Healer), zarf-registry heal from a
// workstation (Once); both decide with Decide.
package heal

import (
	"fmt"
	"slices"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
)

const (
	// loader is the first word of the command of injected programs.
	loader = "/payload/loader"
	// maxReplacements limits how many images of a pod are replaced. The first replacement works, unless
	// that image is deleted in the meantime, or the node reports only some of its images.
	maxReplacements = 10
	// maxListed is the number of images in a message. An event has at most 1024 characters.
	maxListed = 5
)

// Pod is the part of a pod that decisions need.
type Pod struct {
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		ResourceVersion   string            `json:"resourceVersion"`
		DeletionTimestamp string            `json:"deletionTimestamp"`
		Annotations       map[string]string `json:"annotations"`
		Labels            map[string]string `json:"labels"`
		OwnerReferences   []struct {
			UID string `json:"uid"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		NodeName       string      `json:"nodeName"`
		InitContainers []Container `json:"initContainers"`
		Containers     []Container `json:"containers"`
		Affinity       struct {
			NodeAffinity struct {
				Required struct {
					Terms []struct {
						MatchFields []struct {
							Values []string `json:"values"`
						} `json:"matchFields"`
					} `json:"nodeSelectorTerms"`
				} `json:"requiredDuringSchedulingIgnoredDuringExecution"`
			} `json:"nodeAffinity"`
		} `json:"affinity"`
	} `json:"spec"`
	Status struct {
		Phase                 string            `json:"phase"`
		Conditions            []Condition       `json:"conditions"`
		InitContainerStatuses []ContainerStatus `json:"initContainerStatuses"`
		ContainerStatuses     []ContainerStatus `json:"containerStatuses"`
	} `json:"status"`
}

// Container is the part of a container that decisions need.
type Container struct {
	Name    string   `json:"name"`
	Image   string   `json:"image"`
	Command []string `json:"command"`
}

// ContainerStatus is what the kubelet reports about a container.
type ContainerStatus struct {
	Name         string `json:"name"`
	RestartCount int    `json:"restartCount"`
	State        struct {
		Waiting *struct {
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"waiting"`
		Running    *struct{} `json:"running"`
		Terminated *struct{} `json:"terminated"`
	} `json:"state"`
}

// Condition is a condition of a pod or a node.
type Condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

// isReady reports whether the conditions of a pod or a node say that it is ready.
func isReady(conditions []Condition) bool {
	return slices.Contains(conditions, Condition{"Ready", "True"})
}

// Node is the part of a node that decisions need.
type Node struct {
	Status struct {
		Conditions []Condition        `json:"conditions"`
		Images     []nodeimages.Image `json:"images"`
	} `json:"status"`
}

// Action is what to do about a pod.
type Action string

// The actions.
const (
	// Nothing: no container waits for an image that the node lacks.
	Nothing Action = "nothing"
	// Wait: an image is missing, or may be, but the node may not have reported its images yet.
	Wait Action = "wait"
	// Replace: the images of Decision.Containers are to be replaced with Decision.Image.
	Replace Action = "replace"
	// Report: no image of the node is left to try.
	Report Action = "report"
)

// Decision says what to do about a pod, and why.
type Decision struct {
	Action Action
	// Containers are the paths of the containers in the pod, as in spec/initContainers/0.
	Containers []string
	// Before is the image that is missing, Image its replacement.
	PreviousImage, Image string
	// Reason is a sentence for logs and events.
	Reason string
}

// pullFailures are the kubelet's reasons for a container that waits for its image. ErrImageNeverPull is
// that of a container which must not be pulled.
var pullFailures = []string{
	"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "InvalidImageName",
	"RegistryUnavailable", "SignatureValidationFailed",
}

// PullFailed reports whether a reason for which a container waits says that its image cannot be had.
func PullFailed(reason string) bool { return slices.Contains(pullFailures, reason) }

// pendingContainer is one of injected programs that has not started, or cannot start again without an image.
type pendingContainer struct {
	path, image string
	failing     bool // the kubelet reports that it cannot get the image
}

func (p Pod) waiting() []pendingContainer {
	if p.Spec.NodeName == "" || p.Metadata.DeletionTimestamp != "" {
		return nil
	}
	var found []pendingContainer
	look := func(field string, containers []Container, statuses []ContainerStatus) {
		for i, c := range containers {
			if len(c.Command) == 0 || c.Command[0] != loader {
				continue
			}
			w := pendingContainer{path: fmt.Sprintf("spec/%s/%d", field, i), image: c.Image}
			n := slices.IndexFunc(statuses, func(s ContainerStatus) bool { return s.Name == c.Name })
			if n >= 0 {
				state := statuses[n].State
				if state.Running != nil || state.Terminated != nil {
					continue
				}
				w.failing = state.Waiting != nil && PullFailed(state.Waiting.Reason) && !p.replaced(state.Waiting.Message)
			}
			// Containers of a pod that has run wait for other reasons too, as in CrashLoopBackOff.
			if w.failing || p.Status.Phase == "Pending" {
				found = append(found, w)
			}
		}
	}
	look("initContainers", p.Spec.InitContainers, p.Status.InitContainerStatuses)
	look("containers", p.Spec.Containers, p.Status.ContainerStatuses)
	return found
}

// Waits reports whether a container of an injected program may wait for an image on the pod's node, and
// whether the kubelet has reported that it cannot get that.
func (p Pod) Waits() (waits, failing bool) {
	list := p.waiting()
	return len(list) > 0, slices.ContainsFunc(list, func(w pendingContainer) bool { return w.failing })
}

// Decide decides about a pod whose node reports images. A container needs another image if the kubelet
// cannot get its image, or if the node does not have it: a pull from a registry that does not answer
// fails only after minutes. inUse are images of the release's other pods.
func Decide(p Pod, images []nodeimages.Image, rules nodeimages.Rules, inUse []string) Decision {
	var d Decision
	lacks := func(w pendingContainer) bool {
		return len(images) == 0 || rules.Complete(images) && !nodeimages.Reported(images, w.image)
	}
	list := p.waiting()
	first := slices.IndexFunc(list, func(w pendingContainer) bool { return w.failing })
	if first < 0 {
		first = slices.IndexFunc(list, lacks)
	}
	if first < 0 {
		return Decision{Action: Nothing}
	}
	d.PreviousImage = list[first].image
	for _, w := range list {
		if w.image == d.PreviousImage {
			d.Containers = append(d.Containers, w.path)
		}
	}
	previous := p.previous()
	d.Image = rules.Choose(images, inUse, append(previous, d.PreviousImage)...)
	node := "node " + p.Spec.NodeName
	had := nodeimages.Reported(images, d.PreviousImage)
	none := d.Image == "" || len(previous) >= maxReplacements
	switch {
	case had && none:
		// The image may have been deleted since the node's last report.
		d.Action, d.Image = Wait, ""
		d.Reason = fmt.Sprintf("%s has image %s, but its kubelet pulls it: AlwaysPullImages, or "+
			"imagePullCredentialsVerificationPolicy, does not let pods use images of the node; it reports %s", node,
			d.PreviousImage, listed(images))
	case had:
		// A kubelet that has pulled an image under one name uses it under that name only, also with the default policy:
		// https://github.com/kubernetes/kubernetes/issues/138175
		d.Action = Replace
		d.Reason = fmt.Sprintf("%s has image %s, but its kubelet pulls it: replaced with %s", node, d.PreviousImage, d.Image)
	case len(images) == 0:
		d.Action, d.Reason = Wait, node+" does not report any image yet"
	case none:
		d.Action, d.Image = Report, ""
		d.Reason = fmt.Sprintf("%s does not have image %s, and no other trusted pause image is left to try; it "+
			"reports %s", node, d.PreviousImage, listed(images))
		if len(previous) > 0 {
			d.Reason += "; replaced before: " + strings.Join(previous, ", ")
		}
		d.Reason += "; load a pause image on the node, or set injector.image"
	default:
		d.Action = Replace
		d.Reason = fmt.Sprintf("%s does not have image %s: replaced with %s, which it has", node, d.PreviousImage, d.Image)
		if !nodeimages.Reported(images, d.Image) {
			d.Reason = fmt.Sprintf("%s does not have image %s: replaced with %s, which it may have", node, d.PreviousImage,
				d.Image)
		}
	}
	return d
}

// previous returns the images of the pod that were replaced.
func (p Pod) previous() []string {
	if list := p.Metadata.Annotations[names.AnnotationPreviousImages]; list != "" {
		return strings.Split(list, ",")
	}
	return nil
}

// replaced reports whether the kubelet's message is about an image that was replaced: for a moment after that, it still
// reports the failure.
func (p Pod) replaced(message string) bool {
	return slices.ContainsFunc(p.previous(), func(image string) bool { return strings.Contains(message, `"`+image+`"`) })
}

// listed returns the names of some images, for a message.
func listed(images []nodeimages.Image) string {
	var found []string
	for _, image := range images {
		if len(image.Names) > 0 {
			found = append(found, image.Names[len(image.Names)-1]) // the kubelet lists digests first
		}
	}
	if more := len(found) - maxListed; more > 0 {
		found = append(found[:maxListed], fmt.Sprintf("%d more", more))
	}
	return strings.Join(found, ", ")
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// patch returns the JSON patch for a decision to replace an image. It fails if the pod has changed
// since: a program that has started meanwhile must not be restarted.
func (d Decision) patch(p Pod) []operation {
	operations := []operation{{"test", "/metadata/resourceVersion", p.Metadata.ResourceVersion}}
	for _, path := range d.Containers {
		operations = append(operations, operation{"test", "/" + path + "/image", d.PreviousImage},
			operation{"replace", "/" + path + "/image", d.Image})
	}
	if p.Metadata.Annotations == nil {
		operations = append(operations, operation{"add", "/metadata/annotations", map[string]string{}})
	}
	key := strings.ReplaceAll(names.AnnotationPreviousImages, "/", "~1")
	return append(operations, operation{"add", "/metadata/annotations/" + key,
		strings.Join(append(p.previous(), d.PreviousImage), ",")})
}
