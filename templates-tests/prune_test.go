package templates

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
)

func TestPruneCronJob(t *testing.T) {
	t.Parallel()
	const on = "registry.prune.enabled=true"
	for name, sets := range map[string][]string{
		"by default":           {"registryProxy=true"},
		"an external registry": {"registryURL=registry.example.com", on, "registry.prune.keepLast=1"},
	} {
		for _, o := range (rendering{values: with(t, nil, sets...)}).render(t).objects {
			if o.GetLabels()["app.kubernetes.io/component"] == "prune" {
				t.Errorf("%s: %s", name, o)
			}
		}
	}
	for name, test := range map[string]struct {
		sets     []string
		schedule string
		memory   string
		args     []string
	}{
		"one rule": {[]string{"registry.prune.keepLast=3"}, "30 2 * * 0", "256Mi",
			[]string{"--grace-period=24h", "--keep-last=3", "--timeout=30m"}},
		"all values set": {[]string{"registry.prune={schedule: '@daily', olderThan: 90d, keepLast: 2, match: ['ci/*', " +
			"'*:dev-*'], keep: [ci/base], untagged: true, gracePeriod: 0s, timeout: 2m, resources: {limits: {memory: 1Gi}}}"},
			"@daily", "1Gi",
			[]string{"--grace-period=0s", "--older-than=90d", "--keep-last=2", "--match=ci/*", "--match=*:dev-*",
				"--keep=ci/base", "--untagged", "--timeout=2m"}},
	} {
		out := rendering{values: proxyMode(t, append(test.sets, on)...)}.render(t)
		c := find[*batchv1.CronJob](t, out, "zarf-registry-prune")
		args := c.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Args
		want := slices.Concat(
			[]string{"images", "prune", "--namespace=zarf", "--release=zarf-registry", "--name=zarf-registry"}, test.args,
			[]string{"--log-format=json"},
		)
		memory := c.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().String()
		if memory != test.memory {
			t.Errorf("%s: its memory is limited to %s, want %s", name, memory, test.memory)
		}
		if diff := cmp.Diff(want, args); diff != "" || c.Spec.Schedule != test.schedule {
			t.Errorf("%s: %s: %s", name, c.Spec.Schedule, diff)
		}
	}
}
