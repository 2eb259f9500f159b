package templates

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
)

// What its values change is in changes.golden.
func TestGarbageCollectionCronJob(t *testing.T) {
	t.Parallel()
	c := find[*batchv1.CronJob](t, renderedFile(t, "garbage-collection"), "zarf-registry-gc")
	job := c.Spec.JobTemplate.Spec
	want := strings.Fields("images prune --namespace=zarf --release=zarf-registry --name=zarf-registry " +
		"--grace-period=72h --older-than=90d --timeout=1h --log-format=json")
	if diff := cmp.Diff(want, job.Template.Spec.Containers[0].Args); diff != "" {
		t.Error(diff)
	}
	if component := near(job.Template.Spec); component != "registry" || *job.ActiveDeadlineSeconds != 7260 {
		t.Errorf("it prefers to run near %q, for %d s", component, *job.ActiveDeadlineSeconds)
	}
}
