// Package workloads finds which images a cluster's workloads refer to: pods, and the templates from which controllers
// create pods. It knows no registry, and it does not find references in custom resources.
package workloads

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/zarf-dev/zarf-registry/internal/catalog"
	"github.com/zarf-dev/zarf-registry/internal/images"
)

// workload is an object that refers to images.
type workload struct {
	name  string // "Deployment shop/web"
	uid   types.UID
	owner types.UID // of its controller
	names []images.Name
}

// Set is the workloads of a cluster.
type Set struct{ all []workload }

// List lists the workloads in all namespaces: pods, Deployments, ReplicaSets, StatefulSets, DaemonSets,
// ReplicationControllers, Jobs and CronJobs. ReplicaSets include those of previous revisions, so that a rollback finds
// its images. An error means that the set would be incomplete.
func List(ctx context.Context, client kubernetes.Interface) (*Set, error) {
	s := &Set{}
	var errs []error
	done := func(kind string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("listing the %s of all namespaces: %w", kind, err))
		}
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	done("pods", err)
	for i := range pods.Items {
		pod := &pods.Items[i]
		s.add("Pod", pod, pod.Spec, running(pod)...)
	}
	deployments, err := client.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	done("Deployments", err)
	for _, o := range deployments.Items {
		s.add("Deployment", &o, o.Spec.Template.Spec)
	}
	replicaSets, err := client.AppsV1().ReplicaSets("").List(ctx, metav1.ListOptions{})
	done("ReplicaSets", err)
	for _, o := range replicaSets.Items {
		s.add("ReplicaSet", &o, o.Spec.Template.Spec)
	}
	statefulSets, err := client.AppsV1().StatefulSets("").List(ctx, metav1.ListOptions{})
	done("StatefulSets", err)
	for _, o := range statefulSets.Items {
		s.add("StatefulSet", &o, o.Spec.Template.Spec)
	}
	daemonSets, err := client.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	done("DaemonSets", err)
	for _, o := range daemonSets.Items {
		s.add("DaemonSet", &o, o.Spec.Template.Spec)
	}
	controllers, err := client.CoreV1().ReplicationControllers("").List(ctx, metav1.ListOptions{})
	done("ReplicationControllers", err)
	for _, o := range controllers.Items {
		if o.Spec.Template != nil {
			s.add("ReplicationController", &o, o.Spec.Template.Spec)
		}
	}
	jobs, err := client.BatchV1().Jobs("").List(ctx, metav1.ListOptions{})
	done("Jobs", err)
	for _, o := range jobs.Items {
		s.add("Job", &o, o.Spec.Template.Spec)
	}
	cronJobs, err := client.BatchV1().CronJobs("").List(ctx, metav1.ListOptions{})
	done("CronJobs", err)
	for _, o := range cronJobs.Items {
		s.add("CronJob", &o, o.Spec.JobTemplate.Spec.Template.Spec)
	}
	return s, errors.Join(errs...)
}

// AddList adds references that a list names, as a workload of that name.
func (s *Set) AddList(name string, references []string) error {
	w := workload{name: name}
	for _, reference := range references {
		n, err := images.ParseName(reference)
		if err != nil {
			return err
		}
		w.names = append(w.names, n)
	}
	s.all = append(s.all, w)
	return nil
}

func (s *Set) add(kind string, o metav1.Object, spec corev1.PodSpec, more ...string) {
	w := workload{name: kind + " " + o.GetNamespace() + "/" + o.GetName(), uid: o.GetUID()}
	if owner := metav1.GetControllerOf(o); owner != nil {
		w.owner = owner.UID
	}
	for _, reference := range append(references(spec), more...) {
		// What cannot be parsed cannot be pulled either.
		if n, err := images.ParseName(reference); err == nil && !slices.Contains(w.names, n) {
			w.names = append(w.names, n)
		}
	}
	if len(w.names) > 0 {
		s.all = append(s.all, w)
	}
}

// references returns the images of a pod's specification.
func references(spec corev1.PodSpec) []string {
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
	var using []workload
	for _, w := range s.all {
		if slices.ContainsFunc(w.names, func(n images.Name) bool { return refersTo(n, image) }) {
			using = append(using, w)
		}
	}
	var found []string
	for _, w := range using {
		if w.owner == "" || !slices.ContainsFunc(using, func(o workload) bool { return o.uid == w.owner }) {
			found = append(found, w.name)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func refersTo(n images.Name, image *catalog.Image) bool {
	if image.Repository != n.Path && !strings.HasSuffix(image.Repository, "/"+n.Path) {
		return false
	}
	if n.Digest != "" {
		return slices.ContainsFunc(image.Members, func(m *catalog.Manifest) bool { return m.Is(n.Digest) })
	}
	return slices.Contains(image.Tags, n.Tag) || slices.Contains(image.Tags, n.ZarfTag)
}
