package templates

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/test/golden"
)

type objects = []runtime.Object

// situation is what the chart decides by.
type situation struct {
	objects  objects           // of an IPv4 cluster, unless they have its Service; nil means no cluster
	values   []string          // in addition to those for proxy mode
	packaged map[string]string // digests of the Jobs' image in the package
}

func (s situation) rendering(t testing.TB, sets ...string) rendering {
	t.Helper()
	r := rendering{values: proxyMode(t, slices.Concat(sets, s.values)...), hookDigests: s.packaged}
	if s.objects == nil {
		return r
	}
	if !slices.ContainsFunc(s.objects, func(o runtime.Object) bool {
		service, ok := o.(*corev1.Service)
		return ok && service.Name == "kubernetes"
	}) {
		s.objects = append(slices.Clip(s.objects), kubernetes(corev1.IPv4Protocol))
	}
	r.cluster = newCluster(s.objects...)
	return r
}

// inSituations compares what a function shows of renderings, with some more values, with a golden file.
func inSituations(t *testing.T, file string, all map[string]situation, show func(*output) string, sets ...string) {
	t.Helper()
	golden := golden.Open(t, "decisions/"+file)
	for name, s := range all {
		t.Run(name, func(t *testing.T) { golden.Check(t, name, show(s.rendering(t, sets...).render(t))) })
	}
}

// hookPods shows the image of the Jobs and of the CronJob, and where they run. Those with the same have one line.
func hookPods(out *output) string {
	of := map[string][]string{}
	show := func(name string, spec corev1.PodSpec) {
		c := spec.Containers[0]
		text := fmt.Sprintf("%s (%s, pull Secrets %v) on %v", c.Image, c.ImagePullPolicy, spec.ImagePullSecrets, spec.NodeSelector)
		if near := near(spec); near != "" {
			text += "\n  near " + near
		}
		nodes := &corev1.NodeAffinity{}
		if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
			nodes = spec.Affinity.NodeAffinity
		}
		if required := nodes.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			for _, term := range required.NodeSelectorTerms {
				text += fmt.Sprintf("\n  requires %v %v", term.MatchExpressions, term.MatchFields)
			}
		}
		for _, term := range nodes.PreferredDuringSchedulingIgnoredDuringExecution {
			text += fmt.Sprintf("\n  prefers %d %v %v", term.Weight, term.Preference.MatchExpressions, term.Preference.MatchFields)
		}
		of[text] = append(of[text], strings.TrimPrefix(name, "zarf-registry-"))
	}
	for _, job := range all[*batchv1.Job](out) {
		show(job.Name, job.Spec.Template.Spec)
	}
	for _, job := range all[*batchv1.CronJob](out) {
		show(job.Name, job.Spec.JobTemplate.Spec.Template.Spec)
	}
	var lines []string
	for text, names := range of {
		lines = append(lines, strings.Join(slices.Sorted(slices.Values(names)), ", ")+": "+text)
	}
	slices.Sort(lines)
	if digests := decided(out).Push.HookDigests; len(digests) > 0 {
		lines = append(lines, "the Jobs are told "+fmt.Sprint(slices.Sorted(maps.Keys(digests)), digests))
	}
	return strings.Join(lines, "\n")
}
