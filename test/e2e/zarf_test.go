package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// TestZarf lets Zarf use the release as its external registry, in nodeport mode, in proxy mode and after the way back.
func TestZarf(t *testing.T) {
	w := ownCluster(t, "e2e-zarf", layout{open: true, namespace: "registry"})
	z := newZarf(t, w)
	must(t, "install", func(t *testing.T) {
		w.apply(t, nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
	})
	must(t, "zarf init", func(t *testing.T) { z.initialize(t, z.agentPackage(t)) })
	must(t, "zarf package deploy in nodeport mode", func(t *testing.T) { z.deploy(t, "first", z.workload(t, "first")) })
	must(t, "the agent changes no pod of ours", w.nothingMutated)
	must(t, "zarf tools registry in nodeport mode", func(t *testing.T) { testZarfTools(t, z) })
	z.underLoop(t, "helm upgrade to proxy mode", func(t *testing.T) {
		w.helmChart(t, "upgrade", proxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
	})
	must(t, "zarf package deploy in proxy mode", func(t *testing.T) { z.deploy(t, "second", z.workload(t, "second")) })
	must(t, "zarf tools registry in proxy mode", func(t *testing.T) { testZarfTools(t, z) })
	must(t, "init-hook pushes Zarf's packages", func(t *testing.T) { testZarfPackage(t, z) })
	must(t, "Zarf reads archives of init-hook", func(t *testing.T) {
		image, archive := w.carry(t, "zarf/carried:1")
		z.deploy(t, "carried", z.pack(t, "carried", image, archive))
	})
	testZarfRegistryKilled(t, z)
	must(t, "zarf tools update-creds registry after a rotation", func(t *testing.T) {
		output(t, w.command(t, w.hook, "credentials", "rotate", "-n", w.namespace))
		z.run(t, append([]string{"tools", "update-creds", "registry", "--confirm"}, z.credentials(t)...)...)
	})
	z.underLoop(t, "helm upgrade back to nodeport mode", func(t *testing.T) {
		w.helmChart(t, "upgrade", nodePortMode, "--set=rewrite.enabled=true")
		w.isIn(t, state.ModeNodePort, state.SourceValue)
	})
	must(t, "zarf package deploy in nodeport mode again, with rewritten references", func(t *testing.T) {
		z.rewritten = true
		z.deploy(t, "third", z.workload(t, "third"))
	})
	testZarfDestroy(t, z)
}

// TestZarfIPv6 does so on a cluster where only proxies can work.
func TestZarfIPv6(t *testing.T) {
	onlyInLongRuns(t)
	w := ownCluster(t, "e2e-zarf-ipv6", layout{open: true, namespace: "registry"})
	z := newZarf(t, w)
	must(t, "helm install", func(t *testing.T) {
		w.helmChart(t, "install")
		w.isIn(t, state.ModeProxy, state.SourceCluster)
	})
	must(t, "zarf init", func(t *testing.T) { z.initialize(t, z.agentPackage(t)) })
	must(t, "zarf package deploy", func(t *testing.T) { z.deploy(t, "first", z.workload(t, "first")) })
	must(t, "the agent changes no pod of ours", w.nothingMutated)
	must(t, "zarf tools registry", func(t *testing.T) { testZarfTools(t, z) })
	testZarfRegistryKilled(t, z)
	testZarfDestroy(t, z)
}

// underLoop runs a step as must does, while nodes pull what Zarf has pushed.
func (z *zarf) underLoop(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	during(t, name, func(t *testing.T) (stop func()) { return z.w.pullLoop(t, "zarf/first:1") }, f)
}

func testZarfRegistryKilled(t *testing.T, z *zarf) {
	z.underLoop(t, "the registry is killed", func(t *testing.T) {
		old := z.w.pods(t, "registry")[0].Name
		z.w.deletePod(t, old, 0)
		z.w.waitForRegistry(t, old)
	})
}

// testZarfTools mirrors, lists and deletes images.
func testZarfTools(t *testing.T, z *zarf) {
	w := z.w
	extra := w.address + "/zarf/extra"
	tag := strings.TrimPrefix(w.agentReference(workloadImage("extra")), extra+":")
	file := z.workload(t, "extra")
	mirrored := func() {
		t.Helper()
		z.run(t, "package", "mirror-resources", file, "--confirm")
		if got := z.tags(t, extra); !slices.Equal(got, []string{"1", tag}) {
			t.Errorf("the tags of %s are %q", extra, got)
		}
	}
	gone := func() {
		t.Helper()
		if got := z.tags(t, extra); len(got) > 0 {
			t.Errorf("the tags of %s are %q", extra, got)
		}
	}

	mirrored()
	catalog := strings.Fields(z.run(t, "tools", "registry", "catalog"))
	if !slices.Contains(catalog, "zarf/first") || !slices.Contains(catalog, "zarf/extra") {
		t.Errorf("the catalog is %q", catalog)
	}
	// What Zarf does not know, it would prune.
	if slices.ContainsFunc(catalog, func(name string) bool { return strings.HasPrefix(name, "zarf-registry/") }) {
		t.Errorf("the catalog has our own images: %q", catalog)
	}
	digest := strings.TrimSpace(z.run(t, "tools", "registry", "digest", extra+":1"))
	z.run(t, "tools", "registry", "delete", extra+"@"+digest)
	gone()
	ours := w.address + "/" + w.saved(t).HookImage.Reference
	z.fails(t, "belongs to the registry itself", "tools", "registry", "delete", ours)

	mirrored()
	z.run(t, "tools", "registry", "prune", "--confirm")
	gone()
	w.pullEverywhere(t, w.address+"/zarf/first:1")
	z.run(t, "tools", "registry", "digest", ours)
}

// testZarfPackage pushes a package with init-hook, from its file and unpacked. A pod finds its image.
func testZarfPackage(t *testing.T, z *zarf) {
	w := z.w
	image := workloadImage("pushed")
	file, unpacked := z.workload(t, "pushed"), filepath.Join(t.TempDir(), "unpacked")
	z.run(t, "tools", "archiver", "decompress", file, unpacked)
	want := w.agentReference(image)
	for _, source := range []string{file, unpacked} {
		if listed := output(t, w.command(t, w.hook, "images", "list", source)); !strings.Contains(listed, image) {
			t.Errorf("zarf-registry images list %s printed %s", source, listed)
		}
		got := output(t, w.command(t, w.hook, "images", "push", "-n", w.namespace, "--zarf-tags", source))
		if both := w.address + "/zarf/pushed:1\n" + want + "\n"; got != both {
			t.Errorf("zarf-registry images push %s printed %q, want %q", source, got, both)
		}
	}
	p := pod("pushed", w.nodes[0], image)
	p.Namespace = "first" // where the agent is at work
	if _, event := w.runPod(t, p); !strings.Contains(event, want) {
		t.Errorf("the event is not about a pull of %s: %s", want, event)
	}
}

// tags lists a repository's tags with Zarf.
func (z *zarf) tags(t *testing.T, repository string) []string {
	t.Helper()
	tags := strings.Fields(z.run(t, "tools", "registry", "ls", repository))
	slices.Sort(tags)
	return tags
}

// testZarfDestroy removes Zarf, and then all Helm releases that Zarf takes for its own.
func testZarfDestroy(t *testing.T, z *zarf) {
	w := z.w
	z.underLoop(t, "zarf destroy leaves the release alone", func(t *testing.T) {
		w.restartsNothing(t, func() { z.run(t, "destroy", "--confirm") })
		w.isHealthy(t)
		if _, err := w.client.CoreV1().Namespaces().Get(t.Context(), "zarf", metav1.GetOptions{}); err == nil {
			t.Error("the namespace zarf is left")
		}
	})
	must(t, "zarf destroy --remove-components uninstalls it like Helm, except for its volume", func(t *testing.T) {
		z.run(t, "destroy", "--confirm", "--remove-components")
		w.nothingLeft(t, "persistentvolumeclaim/"+release)
		claim, err := w.client.CoreV1().PersistentVolumeClaims(w.namespace).Get(t.Context(), release, metav1.GetOptions{})
		if err != nil || claim.Status.Phase != corev1.ClaimBound {
			t.Errorf("the volume claim: %v, %v", claim, err)
		}
		if !long() {
			t.Log("SHORTENED: the release is not installed again")
			return
		}
		w.helmChart(t, "install", proxyMode)
		w.pullEverywhere(t, w.address+"/zarf/first:1")
	})
}
