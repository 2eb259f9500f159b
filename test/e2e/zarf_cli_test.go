package e2e

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/build"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// zarfVersion is the version of testcluster's tool zarf.
const zarfVersion = "v0.84.0"

// zarf is Zarf's command line. Its home is a directory of the test, so it finds no configuration, cache or
// credentials of this machine. Packages are created without SBOMs, which is faster.
type zarf struct {
	w             *world
	program, home string
	rewritten     bool // by the chart's policy, before the agent sees a pod
}

func newZarf(t *testing.T, w *world) *zarf {
	t.Helper()
	return &zarf{w: w, program: strings.TrimSpace(run(t, w.testcluster, "tool", "zarf")), home: t.TempDir()}
}

func (z *zarf) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := z.w.command(t, z.program, args...)
	cmd.Dir = z.home
	cmd.Env = append(cmd.Env, "HOME="+z.home, "TMPDIR="+z.home, "ZARF_NO_COLOR=true")
	return cmd
}

// run runs Zarf, which must succeed, and returns its stdout, without the log that it writes to stderr.
func (z *zarf) run(t *testing.T, args ...string) string {
	t.Helper()
	begin := time.Now()
	out, errOut, err := try(z.command(t, args...))
	t.Logf("zarf %s, after %.1f s:\n%s%s", strings.Join(args, " "), time.Since(begin).Seconds(), errOut, out)
	require.NoError(t, err)
	return out
}

// fails runs Zarf, which must fail with a message that contains those words.
func (z *zarf) fails(t *testing.T, words string, args ...string) {
	t.Helper()
	out, errOut, err := try(z.command(t, args...))
	if err == nil || !strings.Contains(errOut, words) {
		t.Errorf("zarf %s: %v, want %q: %s%s", strings.Join(args, " "), err, words, errOut, out)
	}
}

// agentPackage makes an init package that has only Zarf's agent, and returns its path. The component is Zarf's own;
// a registry on this machine takes the place of the one that has the agent's image.
func (z *zarf) agentPackage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, errors.Join(
		os.CopyFS(filepath.Join(dir, "zarf-agent"), os.DirFS(z.agentSource())),
		os.WriteFile(filepath.Join(dir, "zarf.yaml"), []byte(`kind: ZarfInitConfig
metadata:
  name: init
components:
  - name: zarf-agent
    required: true
    import:
      path: zarf-agent
`), 0o600)))
	return z.create(t, dir, z.agentImage(t)...)
}

// agentSource returns the directory of Zarf's package with the agent.
func (z *zarf) agentSource() string {
	return filepath.Join(filepath.Dir(z.program), "../module/packages/zarf-agent")
}

// agentImage serves the agent's image from a registry on this machine, and returns the arguments of zarf package
// create for it.
func (z *zarf) agentImage(t *testing.T) []string {
	t.Helper()
	const name = "zarf-dev/zarf/agent"
	layer := require.Value(build.FileLayer("zarf", z.program))(t)
	store := &graph.Store{}
	image, err := build.Image(store, build.Spec{Reference: "ghcr.io/" + name + ":" + zarfVersion,
		Entrypoint: []string{"/zarf", "internal", "agent"}}, build.Variant{Architecture: "amd64", Layers: []build.Layer{layer}})
	require.NoError(t, err)
	connected := connectedRegistry(t)
	run(t, z.w.hook, "images", "push", writeImages(t, store, image), "--to", connected, "--plain-http")
	return []string{"--set", "AGENT_IMAGE_DOMAIN=ghcr.io/", "--set", "AGENT_IMAGE=" + name, "--set",
		"AGENT_IMAGE_TAG=" + zarfVersion, "--registry-override", "ghcr.io=" + connected}
}

// create makes a package from the definition in a directory, and returns its path.
func (z *zarf) create(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out := t.TempDir()
	z.run(t, slices.Concat([]string{"package", "create", dir, "--output", out, "--skip-sbom", "--confirm"}, args)...)
	packages, err := filepath.Glob(filepath.Join(out, "*.tar.zst"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("zarf package create wrote %v (%v)", packages, err)
	}
	return packages[0]
}

// workload makes a package, named like its namespace, with an image of the test program and a DaemonSet that runs
// it, and returns its path.
func (z *zarf) workload(t *testing.T, name string) string {
	t.Helper()
	image := workloadImage(name)
	return z.pack(t, name, image, z.w.makeArchive(t, image, 1<<20))
}

// workloadImage is the image of a workload's package.
func workloadImage(name string) string { return "example.com/zarf/" + name + ":1" }

// pack makes such a package with an image from an archive.
func (z *zarf) pack(t *testing.T, name, image, archive string) string {
	t.Helper()
	dir := t.TempDir()
	for file, content := range map[string]string{
		"zarf.yaml": `kind: ZarfPackageConfig
metadata:
  name: ` + name + `
components:
  - name: ` + name + `
    required: true
    manifests:
      - name: ` + name + `
        namespace: ` + name + `
        files: [daemonset.yaml]
    imageArchives:
      - path: ` + archive + `
        images: ["` + image + `"]
`,
		"daemonset.yaml": `apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: ` + name + `
spec:
  selector:
    matchLabels: {app: ` + name + `}
  template:
    metadata:
      labels: {app: ` + name + `}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers:
        - name: main
          image: ` + image + `
`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600))
	}
	return z.create(t, dir)
}

// agentReference returns the reference to which Zarf's agent changes an image with a host and a tag: in its
// registry, and with the checksum of the image's name in the tag.
func (w *world) agentReference(image string) string {
	_, path, _ := strings.Cut(image, "/")
	name := image[:strings.LastIndex(image, ":")]
	return fmt.Sprintf("%s/%s-zarf-%d", w.address, path, crc32.ChecksumIEEE([]byte(name)))
}

// deploy deploys a workload's package. Its pods must run on every node, with the image that the agent chose, or left
// as it was.
func (z *zarf) deploy(t *testing.T, name, file string) {
	t.Helper()
	z.run(t, "package", "deploy", file, "--timeout=3m", "--confirm")
	w := z.w
	set := require.Value(w.client.AppsV1().DaemonSets(name).Get(t.Context(), name, metav1.GetOptions{}))(t)
	image := set.Spec.Template.Spec.Containers[0].Image
	want := w.agentReference(image)
	if z.rewritten {
		_, path, _ := strings.Cut(image, "/")
		want = w.address + "/" + path
	}
	eventually(t, "pods of "+name+" to run on every node", func() error {
		pods, err := w.client.CoreV1().Pods(name).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var running []string
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				running = append(running, p.Spec.NodeName)
			}
			if got := p.Spec.Containers[0].Image; got != want {
				t.Errorf("pod %s has the image %s, want %s", p.Name, got, want)
			}
		}
		if slices.Sort(running); !slices.Equal(running, w.nodes) {
			return fmt.Errorf("they run on %v", running)
		}
		return nil
	})
}

// nothingMutated replaces all pods of the release, without the label that Zarf has given its namespace, and
// fails if the agent changed one of them.
func (w *world) nothingMutated(t *testing.T) {
	t.Helper()
	output(t, w.command(t, w.kubectl, "label", "namespace", w.namespace, "zarf.dev/agent-"))
	// The agent is at work in that namespace.
	const image = "example.com/a:1"
	stranger := output(t, w.command(t, w.kubectl, "run", "stranger", "-n", w.namespace, "--image="+image,
		"--dry-run=server", "-o", "jsonpath={.spec.containers[0].image}"))
	if want := w.agentReference(image); stranger != want {
		t.Errorf("the agent changed the image of another pod to %s, want %s", stranger, want)
	}
	output(t, w.command(t, w.kubectl, "delete", "pods", "-n", w.namespace, "-l", "app.kubernetes.io/instance="+release,
		"--wait=false"))
	w.waitForRegistry(t, "")
	w.rolloutsEnd(t)
	pods, err := w.client.CoreV1().Pods(w.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) < 2 {
		t.Fatalf("listing pods: %v, %v", pods, err)
	}
	for _, p := range pods.Items {
		if p.Labels["zarf-agent"] != "" || strings.Contains(p.Spec.Containers[0].Image, "-zarf-") {
			t.Errorf("the agent changed pod %s: labels %v, image %s", p.Name, p.Labels, p.Spec.Containers[0].Image)
		}
	}
}

// initialize runs zarf init with the release as external registry.
func (z *zarf) initialize(t *testing.T, initPackage string) {
	t.Helper()
	z.run(t, slices.Concat([]string{"init", initPackage, "--registry-url", z.w.address, "--timeout=3m", "--confirm"},
		z.credentials(t))...)
}

// credentials returns the arguments of Zarf for the release's push credential, which is valid in both modes. Zarf also
// reads with it, and gives it to pods.
func (z *zarf) credentials(t *testing.T) (args []string) {
	t.Helper()
	for _, use := range []string{"push", "pull"} {
		user, password := z.w.credential(t, "-credentials")
		args = append(args, "--registry-"+use+"-username", user, "--registry-"+use+"-password", password)
	}
	return args
}

// credential returns the user name and the password in a Secret of the release.
func (w *world) credential(t *testing.T, suffix string) (user, password string) {
	t.Helper()
	secret, err := w.client.CoreV1().Secrets(w.namespace).Get(t.Context(), release+suffix, metav1.GetOptions{})
	require.NoError(t, err)
	return string(secret.Data["username"]), string(secret.Data["password"])
}
