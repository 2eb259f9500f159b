package templates

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
)

func TestGarbageCollectionCronJob(t *testing.T) {
	t.Parallel()
	const on = "registry.garbageCollection.enabled=true"
	for name, sets := range map[string][]string{
		"by default":           {"registryProxy=true"},
		"an external registry": {"registryURL=registry.example.com", on},
	} {
		for _, o := range (rendering{values: with(t, nil, sets...)}).render(t).objects {
			if o.GetLabels()["app.kubernetes.io/component"] == "garbage-collection" {
				t.Errorf("%s: %s", name, o)
			}
		}
	}

	for name, test := range map[string]struct {
		sets     []string
		schedule string
		deadline int64
		command  string
		args     []string
	}{
		"defaults": {nil, "30 3 * * 0", 3660, "garbage-collect", []string{"--grace-period=24h", "--timeout=30m"}},
		"one rule": {[]string{"registry.garbageCollection.prune.keepLast=3"}, "30 3 * * 0", 3660, "images prune",
			[]string{"--grace-period=24h", "--keep-last=3", "--timeout=30m"}},
		"all values set": {[]string{"registry.garbageCollection={schedule: '@daily', gracePeriod: 0s, timeout: 2m, prune: " +
			"{olderThan: 90d, keepLast: 2, match: ['ci/*', '*:dev-*'], keep: [ci/base], untagged: true}}"},
			"@daily", 300, "images prune",
			[]string{"--grace-period=0s", "--older-than=90d", "--keep-last=2", "--match=ci/*", "--match=*:dev-*",
				"--keep=ci/base", "--untagged", "--timeout=2m"}},
	} {
		out := rendering{values: proxyMode(t, append(test.sets, on)...)}.render(t)
		c := find[*batchv1.CronJob](t, out, "zarf-registry-gc")
		job := c.Spec.JobTemplate.Spec
		args := job.Template.Spec.Containers[0].Args
		want := slices.Concat(
			strings.Fields(test.command), []string{"--namespace=zarf", "--release=zarf-registry", "--name=zarf-registry"}, test.args,
			[]string{"--log-format=json"},
		)
		if c.Spec.Schedule != test.schedule || *job.ActiveDeadlineSeconds != test.deadline {
			t.Errorf("%s: %s, %d s", name, c.Spec.Schedule, *job.ActiveDeadlineSeconds)
		}
		if diff := cmp.Diff(want, args); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if component, _ := near(job.Template.Spec); component != "registry" {
			t.Errorf("%s: it prefers to run near %q", name, component)
		}
	}
}
