package e2e

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/images/build"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	// fluxVersion is the version of testcluster's tool source-controller.
	fluxVersion   = "v1.9.6"
	fluxNamespace = "flux-system"
	// fluxHost is where Flux reads from the registry.
	fluxHost = release + "-expose." + namespace + ".svc"
	fluxUser = "flux"
)

// TestFlux runs Flux's source-controller, whose image and whose source, the chart of the release itself, come from the
// release's registry. helm-controller does not run: Helm upgrades with the chart that source-controller serves, as
// TestHelm4 does with switches and rollbacks.
func TestFlux(t *testing.T) {
	onlyInLongRuns(t)
	w := ownCluster(t, "e2e-flux", layout{args: []string{"--nodes", "1"}})
	f := newFlux(t, w)
	password := f.prepare(t)
	must(t, "zarf-registry install, with a Service for Flux", func(t *testing.T) {
		w.apply(t, nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
		w.pushHello(t)
		w.pushFresh(t)
	})
	must(t, "source-controller runs from the registry", f.start)
	must(t, "source-controller serves the chart from the registry", func(t *testing.T) {
		chart := f.pushChart(t, "1.0.0")
		f.logIn(t, password)
		f.kubectlApply(t, manifests(t, []unstructured.Unstructured{*f.source}))
		f.serves(t, "1.0.0", chart)
	})
	must(t, "an upgrade with that chart continues the release", func(t *testing.T) {
		w.restartsNothing(t, func() { f.upgrade(t, nodePortMode) })
		w.isIn(t, state.ModeNodePort, state.SourceValue)
	})
}

// flux is source-controller, and what else of Flux is played.
type flux struct {
	*world
	program string
	// source is the OCIRepository of docs/reference/helm.md.
	source *unstructured.Unstructured
	ca     []byte // of the certificate that the registry serves to Flux
}

func newFlux(t *testing.T, w *world) *flux {
	t.Helper()
	// Flux links Helm 4.
	w.helm = strings.TrimSpace(run(t, w.testcluster, "tool", "helm4"))
	f := &flux{world: w, program: strings.TrimSpace(run(t, w.testcluster, "tool", "source-controller"))}
	t.Cleanup(func() {
		if t.Failed() {
			out, err := w.command(t, w.kubectl, "-n", fluxNamespace, "logs", "deployment/source-controller",
				"--tail=50").CombinedOutput()
			t.Logf("the log of source-controller (%v):\n%s", err, out)
		}
	})
	f.source = documented(t, "OCIRepository")
	// What is documented belongs together.
	helmRelease := documented(t, "HelmRelease")
	name, _, _ := unstructured.NestedString(helmRelease.Object, "spec", "chartRef", "name")
	target, _, _ := unstructured.NestedString(helmRelease.Object, "spec", "targetNamespace")
	if name != f.source.GetName() || target != namespace || f.source.GetNamespace() != fluxNamespace ||
		helmRelease.GetNamespace() != fluxNamespace {
		t.Fatalf("the documented HelmRelease %v does not fit the documented OCIRepository %v", helmRelease.Object,
			f.source.Object)
	}
	return f
}

// documented returns the object of a kind in an example of docs/reference/helm.md.
func documented(t *testing.T, kind string) *unstructured.Unstructured {
	t.Helper()
	page := require.Value(os.ReadFile("../../docs/reference/helm.md"))(t)
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1) {
		for document := range bytes.SplitSeq(block[1], []byte("\n---\n")) {
			o := &unstructured.Unstructured{}
			if err := sigsyaml.Unmarshal(document, &o.Object); err == nil && o.GetKind() == kind {
				return o
			}
		}
	}
	t.Fatalf("the page has no %s", kind)
	return nil
}

// prepare creates the namespaces, the certificate and the user with which Flux reads, and adds the values for them. It
// returns the user's password.
func (f *flux) prepare(t *testing.T) (password string) {
	t.Helper()
	for _, name := range []string{namespace, fluxNamespace} {
		f.kubectlRun(t, "create", "namespace", name)
	}
	theirs := newCorporate(t)
	f.ca = theirs.pem
	password = "reads charts"
	f.putSecret(t, "flux-tls", theirs.issue(t, "registry", time.Now(), []string{fluxHost}, "", x509.ExtKeyUsageServerAuth))
	f.putSecret(t, "flux-users", htpasswd(t, fluxUser, password))
	f.kept = []string{"secret/flux-tls", "secret/flux-users"}
	f.sets = append(f.sets, "--set=expose.service.enabled=true", "--set=expose.service.type=ClusterIP",
		"--set=expose.tls.existingSecret=flux-tls", "--set=expose.pullUsersSecret=flux-users",
		"--set=expose.hosts={"+fluxHost+"}")
	return password
}

// start pushes an image of source-controller and runs it with the manifests of its module.
func (f *flux) start(t *testing.T) {
	t.Helper()
	const name = "fluxcd/source-controller"
	layer := require.Value(build.FileLayer("source-controller", f.program))(t)
	store := &graph.Store{}
	image, err := build.Image(store, build.Spec{Reference: "ghcr.io/" + name + ":" + fluxVersion,
		Entrypoint: []string{"/source-controller"}}, build.Variant{Architecture: "amd64", Layers: []build.Layer{layer}})
	require.NoError(t, err)
	want := f.address + "/" + name
	if got := f.push(t, writeImages(t, store, image)); got != want+":"+fluxVersion {
		t.Fatalf("push printed %q", got)
	}
	pull := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-pull"},
		Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: f.pullSecret(t).Data[corev1.DockerConfigJsonKey]}}
	_, err = f.client.CoreV1().Secrets(fluxNamespace).Create(t.Context(), pull, metav1.CreateOptions{})
	dir := t.TempDir()
	require.NoError(t, errors.Join(err,
		os.CopyFS(filepath.Join(dir, "config"), os.DirFS(filepath.Join(filepath.Dir(f.program), "../module/config"))),
		os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(`namespace: `+fluxNamespace+`
resources: [config/crd, config/rbac, config/manager]
images:
  - {name: `+name+`, newName: "`+want+`", newTag: `+fluxVersion+`}
patches:
  - target: {kind: Deployment}
    patch: '- {op: add, path: /spec/template/spec/imagePullSecrets, value: [{name: zarf-registry-pull}]}'
`), 0o600)))
	f.kubectlRun(t, "apply", "--server-side", "-k", dir)
	f.kubectlRun(t, "wait", "--for=condition=Established", "--timeout=1m", "crd/ocirepositories.source.toolkit.fluxcd.io")
	f.kubectlRun(t, "rollout", "status", "-n", fluxNamespace, "deployment/source-controller", "--timeout=3m")
	pods, err := f.client.CoreV1().Pods(fluxNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 1 || pods.Items[0].Spec.Containers[0].Image != want+":"+fluxVersion {
		t.Errorf("pods of source-controller: %s, %v", mustJSON(pods.Items), err)
	}
}

// pushChart packages the chart with a version, carries it over the air gap into the registry, and returns the package.
func (f *flux) pushChart(t *testing.T, version string) []byte {
	t.Helper()
	dir, connected := t.TempDir(), connectedRegistry(t)
	output(t, f.command(t, f.helm, "package", built(t, "E2E_CHART"), "--version", version, "--destination", dir))
	file := filepath.Join(dir, "zarf-registry-"+version+".tgz")
	output(t, f.command(t, f.helm, "push", "--plain-http", file, "oci://"+connected+"/charts"))
	archive := filepath.Join(dir, "carried.tar")
	output(t, f.command(t, f.hook, "images", "pull", connected+"/charts/zarf-registry:"+version, "--plain-http", "--out",
		archive, "--store-dir", t.TempDir()))
	if got, want := f.push(t, archive), f.address+"/charts/zarf-registry:"+version; got != want {
		t.Errorf("push printed %q, want %q", got, want)
	}
	return require.Value(os.ReadFile(file))(t)
}

// logIn creates the Secrets that the OCIRepository names, as documented.
func (f *flux) logIn(t *testing.T, password string) {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(ca, f.ca, 0o600))
	f.kubectlRun(t, "-n", fluxNamespace, "create", "secret", "docker-registry", "registry-login",
		"--docker-server="+fluxHost, "--docker-username="+fluxUser, "--docker-password="+password)
	f.kubectlRun(t, "-n", fluxNamespace, "create", "secret", "generic", "registry-ca", "--from-file=ca.crt="+ca)
}

// ociRepository is what source-controller reports of an OCIRepository.
type ociRepository struct {
	Metadata metav1.ObjectMeta
	Status   struct {
		ObservedGeneration int64
		Artifact           *fluxArtifact
		Conditions         []metav1.Condition
	}
}

type fluxArtifact struct{ URL, Revision, Digest string }

func (f *flux) repository(t *testing.T, name string) (r ociRepository) {
	t.Helper()
	data, err := f.client.CoreV1().RESTClient().Get().AbsPath("/apis/source.toolkit.fluxcd.io/v1/namespaces",
		fluxNamespace, "ocirepositories", name).DoRaw(t.Context())
	if err := errors.Join(err, json.Unmarshal(data, &r)); err != nil {
		t.Fatalf("reading the OCIRepository %s: %v: %s", name, err, data)
	}
	return r
}

// serves waits until source-controller has read a version of the chart from the registry and nothing is wrong. What it
// serves must be the package.
func (f *flux) serves(t *testing.T, version string, chart []byte) {
	t.Helper()
	eventually(t, "the OCIRepository to be ready with "+version, func() error {
		r := f.repository(t, f.source.GetName())
		a := r.Status.Artifact
		if a == nil || !strings.HasPrefix(a.Revision, version+"@") || r.Status.ObservedGeneration != r.Metadata.Generation ||
			!meta.IsStatusConditionTrue(r.Status.Conditions, "Ready") {
			return errors.New(mustJSON(r.Status))
		}
		return nil
	})
	a, got := f.artifact(t)
	if !bytes.Equal(got, chart) {
		t.Errorf("source-controller serves %d bytes that are not the chart, of %d bytes", len(got), len(chart))
	}
	if !strings.HasPrefix(a.Revision, version+"@") {
		t.Errorf("the artifact is %s, want version %s", mustJSON(a), version)
	}
}

// artifact downloads the artifact from source-controller's Service, and verifies its digest, as helm-controller does.
func (f *flux) artifact(t *testing.T) (fluxArtifact, []byte) {
	t.Helper()
	a := f.repository(t, f.source.GetName()).Status.Artifact
	if a == nil {
		t.Fatal("the OCIRepository has no artifact")
	}
	from, err := url.Parse(a.URL)
	if err != nil || from.Host != "source-controller."+fluxNamespace+".svc.cluster.local." {
		t.Fatalf("the artifact's URL is %q (%v)", a.URL, err)
	}
	data, err := f.client.CoreV1().Services(fluxNamespace).ProxyGet("http", "source-controller", "http", from.Path,
		nil).DoRaw(t.Context())
	require.NoError(t, err, "downloading", a.URL, data)
	if sum := fmt.Sprintf("sha256:%x", sha256.Sum256(data)); sum != a.Digest {
		t.Fatalf("what was downloaded has the digest %s, not %s", sum, a.Digest)
	}
	return *a, data
}

// upgrade upgrades the release with the chart that source-controller serves.
func (f *flux) upgrade(t *testing.T, args ...string) {
	t.Helper()
	begin := time.Now()
	f.helmUpgrade(t, args...)
	t.Logf("figure: helm upgrade --install %s with the chart of source-controller returned after %.1f s",
		strings.Join(args, " "), time.Since(begin).Seconds())
	label := "zarf-registry-" + strings.Replace(trackedVersion(t, f.repository(t,
		f.source.GetName()).Status.Artifact.Revision), "+", "_", 1)
	labels := output(t, f.command(t, f.kubectl, "get", "-n", namespace, "deployment/"+release, "service/"+release,
		"service/"+release+"-expose", "-o", `jsonpath={.items[*].metadata.labels.helm\.sh/chart}`))
	if want := strings.Join([]string{label, label, label}, " "); labels != want {
		t.Errorf("the objects are of %q, want %q", labels, want)
	}
}

// trackedVersion returns the version that helm-controller gives a chart: with the beginning of the manifest's digest,
// so that a tag that has moved is an upgrade.
func trackedVersion(t *testing.T, revision string) string {
	t.Helper()
	version, digest, found := strings.Cut(revision, "@sha256:")
	if !found || len(digest) != 64 {
		t.Fatalf("the artifact's revision is %q", revision)
	}
	return version + "+" + digest[:12]
}

// helmUpgrade runs Helm on the chart that source-controller serves, with the version, the values and the options that
// helm-controller uses.
func (f *flux) helmUpgrade(t *testing.T, args ...string) {
	t.Helper()
	a, data := f.artifact(t)
	dir, version := t.TempDir(), trackedVersion(t, a.Revision)
	file := filepath.Join(dir, "artifact.tgz")
	require.NoError(t, os.WriteFile(file, data, 0o600))
	run(t, "tar", "-xzf", file, "-C", dir)
	output(t, f.command(t, f.helm, "package", filepath.Join(dir, "zarf-registry"), "--version", version, "--destination",
		dir))
	output(t, f.command(t, f.helm, slices.Concat([]string{"upgrade", "--install", release,
		filepath.Join(dir, "zarf-registry-"+version+".tgz"), "-n", namespace, "--reset-values", "--wait", "--wait-for-jobs",
		"--timeout", "5m"}, f.sets, args)...))
}
