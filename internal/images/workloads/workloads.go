// Package workloads finds which images workloads refer to: pods, and the templates from which controllers create pods,
// of a cluster or of manifests. It knows no registry. Only in manifests does it find references of custom resources.
package workloads

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
)

// user is an object that refers to images.
type user struct {
	name       string    // "Deployment shop/web"
	uid, owner types.UID // its own, and that of its controller
}

// workload is what an object refers to.
type workload struct {
	user
	names []name.Name // of its containers and volumes, and what they run
	needs []need      // what it needs to run

	namespace string
	labels    map[string]string
}

// Set is a number of workloads.
type Set struct{ all []workload }

// List lists the workloads in all namespaces: pods, Deployments, ReplicaSets, StatefulSets, DaemonSets,
// ReplicationControllers, Jobs and CronJobs. ReplicaSets include those of previous revisions, so that a rollback finds
// its images. An error means that the set would be incomplete.
func List(ctx context.Context, client kubernetes.Interface) (*Set, error) {
	s := &Set{}
	var errs []error
	options := metav1.ListOptions{}
	core, apps, batch := client.CoreV1(), client.AppsV1(), client.BatchV1()
	for _, k := range []struct {
		kind string
		list func() (runtime.Object, error)
	}{
		{"Pod", func() (runtime.Object, error) { return core.Pods("").List(ctx, options) }},
		{"Deployment", func() (runtime.Object, error) { return apps.Deployments("").List(ctx, options) }},
		{"ReplicaSet", func() (runtime.Object, error) { return apps.ReplicaSets("").List(ctx, options) }},
		{"StatefulSet", func() (runtime.Object, error) { return apps.StatefulSets("").List(ctx, options) }},
		{"DaemonSet", func() (runtime.Object, error) { return apps.DaemonSets("").List(ctx, options) }},
		{"ReplicationController", func() (runtime.Object, error) {
			return core.ReplicationControllers("").List(ctx, options)
		}},
		{"Job", func() (runtime.Object, error) { return batch.Jobs("").List(ctx, options) }},
		{"CronJob", func() (runtime.Object, error) { return batch.CronJobs("").List(ctx, options) }},
	} {
		list, err := k.list()
		if err == nil {
			err = meta.EachListItem(list, func(o runtime.Object) error {
				_ = s.add(k.kind, o) // what cannot be parsed cannot be pulled either
				return nil
			})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("listing the %ss of all namespaces: %w", k.kind, err))
		}
	}
	return s, errors.Join(errs...)
}

// podSpec returns the specification of an object's pods, or nil.
func podSpec(o runtime.Object) *corev1.PodSpec {
	switch o := o.(type) {
	case *corev1.Pod:
		return &o.Spec
	case *corev1.PodTemplate:
		return &o.Template.Spec
	case *corev1.ReplicationController:
		if o.Spec.Template != nil {
			return &o.Spec.Template.Spec
		}
	case *appsv1.Deployment:
		return &o.Spec.Template.Spec
	case *appsv1.ReplicaSet:
		return &o.Spec.Template.Spec
	case *appsv1.StatefulSet:
		return &o.Spec.Template.Spec
	case *appsv1.DaemonSet:
		return &o.Spec.Template.Spec
	case *batchv1.Job:
		return &o.Spec.Template.Spec
	case *batchv1.CronJob:
		return &o.Spec.JobTemplate.Spec.Template.Spec
	}
	return nil
}

// AddList adds references that a list names, as a workload of that name.
func (s *Set) AddList(list string, references []string) error {
	w := workload{user: user{name: list}}
	for _, reference := range references {
		n, err := name.Parse(reference)
		if err != nil {
			return err
		}
		w.names = append(w.names, n)
	}
	s.all = append(s.all, w)
	return nil
}

// add adds an object that has pods. The error is about references that are left out because they cannot be parsed.
func (s *Set) add(kind string, o runtime.Object) error {
	spec := podSpec(o)
	object, err := meta.Accessor(o)
	if err != nil || spec == nil {
		return err
	}
	w := newWorkload(kind, object)
	if owner := metav1.GetControllerOf(object); owner != nil {
		w.owner = owner.UID
	}
	found, err := parse(references(spec))
	if !ended(o) {
		for _, n := range found {
			w.needs = append(w.needs, need{name: n})
		}
		w.needs = append(w.needs, mentioned(spec)...)
	}
	w.names = found
	if pod, ok := o.(*corev1.Pod); ok {
		running, _ := parse(running(pod))
		w.names = append(found, running...)
	}
	if len(w.names)+len(w.needs) > 0 {
		s.all = append(s.all, w)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", w.name, err)
	}
	return err
}

func newWorkload(kind string, o metav1.Object) workload {
	name := cmp.Or(o.GetName(), o.GetGenerateName())
	if o.GetNamespace() != "" {
		name = o.GetNamespace() + "/" + name
	}
	return workload{user: user{name: kind + " " + name, uid: o.GetUID()}, namespace: o.GetNamespace(),
		labels: o.GetLabels()}
}

// parse parses references. Empty ones are left out: an admission webhook may complete them.
func parse(references []string) ([]name.Name, error) {
	var names []name.Name
	var errs []error
	for _, reference := range references {
		n, err := name.Parse(reference)
		switch {
		case reference == "":
		case err != nil:
			errs = append(errs, err)
		case !slices.Contains(names, n):
			names = append(names, n)
		}
	}
	return names, errors.Join(errs...)
}

// references returns the images of a pod's specification.
func references(spec *corev1.PodSpec) []string {
	var found []string
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		found = append(found, c.Image)
	}
	for _, c := range spec.EphemeralContainers {
		found = append(found, c.Image)
	}
	for _, v := range spec.Volumes {
		if v.Image != nil {
			found = append(found, v.Image.Reference)
		}
	}
	return found
}

// running returns the images of a pod by the digests that the runtime has pulled: a tag may have moved since.
func running(pod *corev1.Pod) []string {
	var found []string
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
		pod.Status.EphemeralContainerStatuses) {
		id := strings.TrimPrefix(c.ImageID, "docker-pullable://")
		if strings.Contains(id, "@") { // otherwise the digest is that of a configuration
			found = append(found, id)
		}
	}
	return found
}

// Using returns the names of the workloads that use an image, sorted: of an object and its controller, only the
// controller. A workload uses an image by its tag, its digest or that of one of its platforms. The registry's host does
// not count, and neither do leading components of the repository, because nodes reach an image by several names:
// addresses of the registry, mirrors, and rewritten references.
func (s *Set) Using(image *catalog.Image) []string {
	var using []user
	for _, w := range s.all {
		if slices.ContainsFunc(w.names, func(n name.Name) bool { return refersTo(n, image) }) {
			using = append(using, w.user)
		}
	}
	return withoutOwned(using)
}

// withoutOwned returns the names of the users, sorted: of an object and its controller, only the controller's.
func withoutOwned(users []user) []string {
	var found []string
	for _, u := range users {
		if u.owner == "" || !slices.ContainsFunc(users, func(o user) bool { return o.uid == u.owner }) {
			found = append(found, u.name)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func refersTo(n name.Name, image *catalog.Image) bool {
	if image.Repository != n.Path && !strings.HasSuffix(image.Repository, "/"+n.Path) {
		return false
	}
	if n.Digest != "" {
		return slices.ContainsFunc(image.Members, func(m *catalog.Manifest) bool { return m.Is(n.Digest) })
	}
	return slices.Contains(image.Tags, n.Tag) || slices.Contains(image.Tags, n.ZarfTag)
}
