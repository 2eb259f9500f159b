package cluster

import (
	"strings"
	"testing"
)

func TestParseCgroups(t *testing.T) {
	const rest = "22 27 0:21 / /proc rw - proc proc rw\n"
	for name, c := range map[string]struct {
		mountinfo        string
		unified          bool
		mounts, tracking string
		second           string
	}{
		"version 2": {
			mountinfo: "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n",
			unified:   true, mounts: "/sys/fs/cgroup", tracking: "/sys/fs/cgroup",
		},
		"version 1": {
			mountinfo: "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n33 31 0:30 / " +
				"/sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n",
			mounts: "/sys/fs/cgroup/cpu,cpuacct /sys/fs/cgroup/pids", tracking: "/sys/fs/cgroup/pids",
		},
		"hybrid, where Kubernetes uses version 1": {
			mountinfo: "33 31 0:30 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n34 31 0:31 / /sys/fs/cgroup/systemd rw " +
				"- cgroup cgroup rw,name=systemd\n35 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			mounts: "/sys/fs/cgroup/pids /sys/fs/cgroup/systemd", tracking: "/sys/fs/cgroup/pids /sys/fs/cgroup/systemd",
			second: "/sys/fs/cgroup/unified",
		},
		"version 1 without the pids controller": {
			mountinfo: "32 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", mounts: "/sys/fs/cgroup/memory",
			tracking: "/sys/fs/cgroup/memory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := parseCgroups([]byte(rest + c.mountinfo))
			if got.unified != c.unified || strings.Join(got.mounts, " ") != c.mounts ||
				strings.Join(got.second, " ") != c.second || strings.Join(got.tracking(), " ") != c.tracking {
				t.Errorf("got %+v, tracking %v", got, got.tracking())
			}
		})
	}
	if got := parseCgroups([]byte(rest)); len(got.mounts) != 0 {
		t.Errorf("without cgroups: %+v", got)
	}
}

func TestInCgroup(t *testing.T) {
	path := cgroupOf("a")
	for content, want := range map[string]bool{
		"0::/zarf-registry-test/a\n":                                   true,
		"0::/zarf-registry-test/a/n1/system\n":                         true,
		"9:name=systemd:/\n8:pids:/zarf-registry-test/a/n1/kubepods\n": true,
		"0::/docker/1234/zarf-registry-test/a/cp/system\n":             true,
		"0::/zarf-registry-test/ab/n1\n":                               false,
		"0::/zarf-registry-test\n":                                     false,
		"0::/\n":                                                       false,
		"":                                                             false,
	} {
		if got := inCgroup(content, path); got != want {
			t.Errorf("%q: got %t", content, got)
		}
	}
}
