package workloads

import (
	"cmp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/images/name"
)

// relatedPrefix is that of the environment variables by which operators are told the images of what they create.
// https://sdk.operatorframework.io/docs/best-practices/common-recommendation
const relatedPrefix = "RELATED_IMAGE_"

// need is a reference of a workload.
type need struct {
	name name.Name
	// where it is found, apart from the containers and volumes of pods: "spec.image", "RELATED_IMAGE_X".
	where    string
	possible bool
}

// Need is an image that workloads need.
type Need struct {
	name.Name
	// Possible means that the reference is only in arguments or environment variables of containers. It may be that of
	// another image than they use, or no image at all.
	Possible bool

	users []user
}

// Needs returns the references of the workloads for which counts returns true (nil: of all), sorted: those that their
// pods pull, now or when they are replaced, and environment variables RELATED_IMAGE_*. Pods and Jobs that have ended,
// and ReplicaSets of previous revisions, need none.
func (s *Set) Needs(counts func(namespace string, labels map[string]string) bool) []*Need {
	found := map[name.Name]*Need{}
	var all []*Need
	for _, w := range s.all {
		if counts != nil && !counts(w.namespace, w.labels) {
			continue
		}
		for _, one := range w.needs {
			n := found[one.name]
			if n == nil {
				n = &Need{Name: one.name, Possible: true}
				found[one.name] = n
				all = append(all, n)
			}
			u := w.user
			if one.where != "" {
				u.name += " (" + one.where + ")"
			}
			n.add(one.possible, u)
		}
	}
	slices.SortFunc(all, func(a, b *Need) int { return cmp.Compare(a.String(), b.String()) })
	return all
}

func (n *Need) add(possible bool, users ...user) {
	n.Possible = n.Possible && possible
	n.users = append(n.users, users...)
}

// Merge adds the workloads that need the same image by another reference.
func (n *Need) Merge(other *Need) { n.add(other.Possible, other.users...) }

// By returns the names of the workloads that need the image, sorted: of an object and its controller, only the
// controller. Where the reference is follows in parentheses unless it is the image of a container or volume:
// "Deployment shop/operator (RELATED_IMAGE_DB)".
func (n *Need) By() []string { return withoutOwned(n.users) }

// ended reports whether an object creates and runs no containers any more.
func ended(o runtime.Object) bool {
	switch o := o.(type) {
	case *corev1.Pod:
		return o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed
	case *appsv1.ReplicaSet:
		return o.Spec.Replicas != nil && *o.Spec.Replicas == 0 && metav1.GetControllerOf(o) != nil
	case *batchv1.Job:
		return slices.ContainsFunc(o.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed)
		})
	}
	return false
}

// mentioned returns the references in environment variables and arguments of containers.
func mentioned(spec *corev1.PodSpec) []need {
	var found []need
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, v := range c.Env {
			if n, ok := related(v.Name, v.Value); ok {
				found = append(found, n)
			} else if n, ok := complete(v.Value); ok {
				found = append(found, need{n, "variable " + v.Name, true})
			}
		}
		for _, text := range slices.Concat(c.Command, c.Args) {
			flag, value, ok := strings.Cut(text, "=")
			where := "argument " + flag
			if !ok || !strings.HasPrefix(flag, "-") {
				where, value = "argument", text
			}
			if n, ok := complete(value); ok {
				found = append(found, need{n, where, true})
			}
		}
	}
	return found
}

// related returns the reference in a variable with relatedPrefix.
func related(variable, value string) (need, bool) {
	n, err := name.Parse(value)
	return need{name: n, where: variable}, err == nil && strings.HasPrefix(variable, relatedPrefix)
}

// complete parses a reference that names its registry, and a tag or digest: few other texts look like that.
func complete(text string) (name.Name, bool) {
	n, err := name.Parse(text)
	if err != nil || !strings.HasPrefix(text, n.Registry+"/") || !strings.ContainsAny(n.Registry, ".:") {
		return name.Name{}, false
	}
	return n, strings.ContainsAny(strings.TrimPrefix(text, n.Registry), ":@")
}
