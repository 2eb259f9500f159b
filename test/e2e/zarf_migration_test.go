package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/images/build"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// zarfRegistry is the name of the registry that Zarf deploys: Helm release, Deployment and Service.
const zarfRegistry = "zarf-docker-registry"

// The values of the release while Zarf's registry still has the port, and after that.
const (
	besideZarf = "--set=reservePort=false,initHook.verifyPulls=false,initHook.ignorePreflight={port,placement}"
	afterZarf  = "--set=reservePort=true,initHook.verifyPulls=true,initHook.ignorePreflight=null"
)

// rounds is the number of images that the container runtimes pull in turn. Zarf's registry takes 70 ms of CPU time
// for each request's password, so pushing and copying more would take minutes.
const rounds = 10

// TestZarfMigration replaces the registry that zarf init has deployed in nodeport mode, as docs/reference/zarf.md
// describes, while every node pulls.
func TestZarfMigration(t *testing.T) {
	onlyInLongRuns(t)
	w := ownCluster(t, "e2e-migration", layout{bare: true, open: true, namespace: "registry"})
	m := &migration{world: w, zarf: newZarf(t, w)}
	initPackage := m.initPackage(t)
	must(t, "pods pull from Zarf's registry", func(t *testing.T) {
		// Zarf waits until some pod runs.
		output(t, m.command(t, m.kubectl, "-n", "kube-system", "run", "pause", "--image="+knownPause))
		m.zarf.run(t, "init", initPackage, "--confirm")
		m.answers(t, false)
		m.zarf.deploy(t, "before", m.zarf.workload(t, "before"))
		m.pushToZarf(t)
	})
	stop := m.pullLoop(t, "zarf-pull", m.password(t, "registry-readonly"))
	must(t, "preflight names Zarf's Service", func(t *testing.T) {
		_, text := m.preflight(t, 3, "--namespace", m.namespace, "--registry-proxy")
		if !strings.Contains(text, "Service "+namespace+"/"+zarfRegistry) ||
			!strings.Contains(text, "docs/reference/zarf.md") {
			t.Error("it does not")
		}
	})
	must(t, "the release is installed beside Zarf's registry, without proxies", func(t *testing.T) {
		// Where a host port has precedence over a node port, proxies would answer before the registry has the images.
		m.mustInstall(t, "--namespace", m.namespace, "--registry-proxy", besideZarf, "--set=proxy.nodeSelector.migrated=no")
		if proxies := m.pods(t, "proxy"); len(proxies) > 0 {
			t.Errorf("there are %d proxies", len(proxies))
		}
		m.answers(t, false)
	})
	must(t, "images are copied, and later those that were pushed meanwhile", func(t *testing.T) {
		m.copyAll(t)
		m.toZarf(t, "push", m.makeArchive(t, "example.com/e2e/moving:1", 8))
		m.toZarf(t, "push", m.makeArchive(t, "example.com/e2e/later:1", 8))
		m.copyAll(t)
	})
	must(t, "the proxies start beside kube-proxy, which still answers", func(t *testing.T) {
		m.mustInstall(t, "--namespace", m.namespace, "--set=proxy.nodeSelector=null")
		if proxies := m.pods(t, "proxy"); len(proxies) != len(m.nodes) {
			t.Errorf("there are %d proxies on %d nodes", len(proxies), len(m.nodes))
		}
		m.answers(t, false)
	})
	must(t, "the proxies answer", m.takeOver)
	if long() {
		must(t, "there is a way back", func(t *testing.T) {
			m.mustInstall(t, "--namespace", m.namespace, besideZarf)
			m.patchZarfService(t, `{"type":"NodePort","ports":[{"port":5000,"nodePort":31999}]}`)
			m.answers(t, false)
			m.takeOver(t)
		})
	} else {
		t.Log("SHORTENED: no way back, no later zarf init, and no nodeport mode")
	}
	must(t, "Zarf uses the registry as an external one", func(t *testing.T) {
		m.zarf.run(t, append([]string{"tools", "update-creds", "registry", "--registry-url", m.address, "--confirm"},
			m.zarf.credentials(t)...)...)
		if mode := m.registryMode(t); mode != "external" {
			t.Errorf("Zarf's state has the registry mode %s", mode)
		}
		if repositories := m.zarf.run(t, "tools", "registry", "catalog"); !strings.Contains(repositories, "e2e/hello") {
			t.Error("Zarf does not list the repository e2e/hello")
		}
	})
	must(t, "Zarf's registry is removed", func(t *testing.T) {
		// Slow pulls of the loop that Zarf's registry still serves take 15 s.
		time.Sleep(20 * time.Second)
		m.zarf.run(t, "package", "remove", "init", "--components=zarf-injector,zarf-seed-registry,zarf-registry", "--confirm")
		m.registryIsGone(t)
		m.isHealthy(t)
	})
	must(t, "no pull has failed", func(t *testing.T) {
		time.Sleep(2 * time.Second) // late failures count too
		stop()
	})
	must(t, "the old references work on a new node", func(t *testing.T) {
		// The package's pod starts before the node's proxy, and the kubelet retries.
		m.provoked = append(m.provoked, m.agentReference(workloadImage("before")))
		m.addNode(t, "late")
		eventually(t, "the package's pod on node late", func() error {
			pods, err := m.client.CoreV1().Pods("before").List(t.Context(),
				metav1.ListOptions{FieldSelector: "spec.nodeName=late,status.phase=Running"})
			if err == nil && len(pods.Items) == 0 {
				err = errors.New("it does not run yet")
			}
			return err
		})
		for name, image := range map[string]string{"tag": "e2e/hello:1", "digest": m.pinned, "moving": "e2e/moving:1",
			"later": "e2e/later:1"} {
			_, event := m.runPod(t, pod(name, "late", m.address+"/"+image))
			t.Logf("%s: %s", image, event)
		}
	})
	must(t, "Zarf deploys packages", func(t *testing.T) { m.zarf.deploy(t, "after", m.zarf.workload(t, "after")) })
	if !long() {
		return
	}
	must(t, "a later zarf init leaves the registry alone", func(t *testing.T) {
		m.zarf.run(t, "init", initPackage, "--confirm")
		if mode := m.registryMode(t); mode != "external" {
			t.Errorf("Zarf's state has the registry mode %s", mode)
		}
		m.registryIsGone(t)
	})
	must(t, "nodeport mode, in which pods pull with the same credential", func(t *testing.T) {
		puller, password := m.credential(t, "-credentials")
		stop := m.pullLoop(t, puller, password)
		m.mustInstall(t, "--namespace", m.namespace, "--registry-proxy=false")
		m.isIn(t, state.ModeNodePort, state.SourceValue)
		m.zarf.deploy(t, "nodeport", m.zarf.workload(t, "nodeport"))
		stop()
	})
}

// migration is a cluster whose registry is replaced.
type migration struct {
	*world
	zarf   *zarf
	pinned string // reference by digest to an image that has no tag
}

// registryIsGone fails if Zarf's registry exists.
func (m *migration) registryIsGone(t *testing.T) {
	t.Helper()
	_, err := m.client.AppsV1().Deployments(namespace).Get(t.Context(), zarfRegistry, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the Deployment of Zarf's registry: %v", err)
	}
}

// initPackage makes an init package that has Zarf's own registry and agent, and returns its path. It lacks the
// injector, which is not part of Zarf's module, so it loads the registry's image onto the nodes.
func (m *migration) initPackage(t *testing.T) string {
	t.Helper()
	const image, tag = "library/registry", "3.1.1"
	run(t, m.testcluster, "load", "--name", m.name, distributionArchive(t, m.address+"/"+image+":"+tag))
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Dir(m.zarf.agentSource()))))
	definition := require.Value(os.ReadFile(filepath.Join(dir, "zarf-registry/zarf.yaml")))(t)
	// Zarf pushes a component's images before it installs the charts.
	header, components, _ := strings.Cut(string(definition), "\ncomponents:\n")
	_, component, _ := strings.Cut(components, "\n  - name: zarf-registry\n")
	component, _, ok := strings.Cut(component, "\n    images:\n")
	if !ok {
		t.Fatalf("unexpected definition: %s", definition)
	}
	header = strings.NewReplacer("kind: ZarfPackageConfig", "kind: ZarfInitConfig", "name: init-package-zarf-registry",
		"name: init").Replace(header)
	const agent = `
  - name: zarf-agent
    required: true
    import:
      path: ../zarf-agent
`
	text := header + "\ncomponents:\n  - name: zarf-registry\n    required: true\n" + component + agent
	require.NoError(t, os.WriteFile(filepath.Join(dir, "zarf-registry/zarf.yaml"), []byte(text), 0o600))
	args := append(m.zarf.agentImage(t), "--set", "REGISTRY_IMAGE="+image, "--set", "REGISTRY_IMAGE_TAG="+tag, "--set",
		"PROXY_IMAGE=none", "--set", "PROXY_IMAGE_TAG=none")
	return m.zarf.create(t, filepath.Join(dir, "zarf-registry"), args...)
}

// distributionArchive writes an OCI archive of an image with distribution's program.
func distributionArchive(t *testing.T, reference string) string {
	t.Helper()
	program := require.Value(buildProgram("distribution"))(t)
	layer := require.Value(build.FileLayer("bin/registry", program))(t)
	store := &graph.Store{}
	image, err := build.Image(store, build.Spec{Reference: reference}, build.Variant{Architecture: "amd64", Layers: []build.Layer{layer}})
	require.NoError(t, err)
	return writeImages(t, store, image)
}

// pullLoop pulls on every node, with the container runtime and with clients, until the returned function is called.
func (m *migration) pullLoop(t *testing.T, user, password string) (stop func()) {
	t.Helper()
	return m.loop(t, nothingFails, []string{"CRICTL_CREDS=" + user + ":" + password}, func(stopFile string) []string {
		return []string{"crictl", m.address + "/" + freshImages, strconv.Itoa(rounds), slowImage, stopFile, freshPause}
	})
}

// password returns a password that Zarf has generated.
func (m *migration) password(t *testing.T, key string) string {
	t.Helper()
	return strings.TrimSpace(output(t, m.zarf.command(t, "tools", "get-creds", key)))
}

// registryMode returns the registry mode in Zarf's state.
func (m *migration) registryMode(t *testing.T) string {
	t.Helper()
	secret := require.Value(m.client.CoreV1().Secrets(namespace).Get(t.Context(), "zarf-state", metav1.GetOptions{}))(t)
	var s struct{ RegistryInfo struct{ RegistryMode string } }
	require.NoError(t, json.Unmarshal(secret.Data["state"], &s))
	return s.RegistryInfo.RegistryMode
}

// pushToZarf pushes the images of the loop, some with a tag, and one that Zarf has pushed by digest, which has none.
func (m *migration) pushToZarf(t *testing.T) {
	t.Helper()
	for _, archive := range []string{
		makeTinyArchive(t, "example.com/"+freshImages, rounds),
		m.makeArchive(t, "example.com/"+slowImage, 4<<20),
		m.makeArchive(t, "example.com/e2e/hello:1", 8),
		m.makeArchive(t, "example.com/e2e/moving:1", 8),
	} {
		m.toZarf(t, "push", archive)
	}
	connected := connectedRegistry(t)
	var pushed struct {
		Items []struct{ Reference, Digest string }
	}
	out := m.images(t, "", "push", m.makeArchive(t, "example.com/e2e/pinned:1", 8), "--to", connected, "--plain-http",
		"--output=json")
	if err := json.Unmarshal([]byte(out), &pushed); err != nil || len(pushed.Items) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	m.pinned = "e2e/pinned@" + pushed.Items[0].Digest
	m.toZarf(t, "copy", connected+"/"+m.pinned, "--from-plain-http")
}

// toZarf runs zarf-registry images push or copy with Zarf's registry as the destination.
func (m *migration) toZarf(t *testing.T, args ...string) {
	t.Helper()
	prefix := "--"
	if args[0] == "copy" {
		prefix = "--to-"
	}
	m.images(t, m.password(t, "registry"), append(args, "--to", m.forward(t), prefix+"plain-http", prefix+"username=zarf-push",
		"--password-stdin")...)
}

// images runs a command of zarf-registry images, with a password for Zarf's registry.
func (m *migration) images(t *testing.T, password string, args ...string) string {
	t.Helper()
	cmd := m.command(t, m.hook, append([]string{"images"}, args...)...)
	cmd.Stdin = strings.NewReader(password)
	return output(t, cmd)
}

// list returns the digests of a registry's images, by reference without a host.
func (m *migration) list(t *testing.T, password string, args ...string) map[string]string {
	t.Helper()
	var listed struct {
		Items []struct{ Reference, Digest string }
	}
	out := m.images(t, password, append([]string{"list", "--output=json"}, args...)...)
	require.NoError(t, json.Unmarshal([]byte(out), &listed), out)
	digests := map[string]string{}
	for _, image := range listed.Items {
		_, name, _ := strings.Cut(image.Reference, "/")
		digests[name] = image.Digest
	}
	if len(digests) == 0 {
		t.Fatal("no images are listed")
	}
	return digests
}

// forward forwards a port of this machine to Zarf's registry until the test ends.
func (m *migration) forward(t *testing.T) (address string) {
	t.Helper()
	cmd := m.command(t, m.kubectl, "-n", namespace, "port-forward", "service/"+zarfRegistry, ":5000")
	stdout := require.Value(cmd.StdoutPipe())(t)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	address, found := strings.CutPrefix(line, "Forwarding from ")
	if address, _, _ = strings.Cut(address, " "); err != nil || !found {
		t.Fatalf("kubectl port-forward printed %q (%v)", line, err)
	}
	return address
}

var markedManifest = regexp.MustCompile(`(?m)^(\S+): marking manifest (sha256:[0-9a-f]{64})`)

// copyAll copies all images of Zarf's registry: by tag, and all manifests by digest, because pods may refer to one
// that has no tag. Only the registry's program lists those.
func (m *migration) copyAll(t *testing.T) {
	t.Helper()
	from, password := m.forward(t), m.password(t, "registry")
	tags := m.list(t, password, "--from", from, "--plain-http", "--username=zarf-push", "--password-stdin")
	var references strings.Builder
	for name := range tags {
		fmt.Fprintf(&references, "%s/%s\n", from, name)
	}
	marked := output(t, m.command(t, m.kubectl, "-n", namespace, "exec", "deployment/"+zarfRegistry, "--", "registry",
		"garbage-collect", "--dry-run", "/etc/docker/registry/config.yml"))
	manifests := markedManifest.FindAllStringSubmatch(marked, -1)
	for _, match := range manifests {
		fmt.Fprintf(&references, "%s/%s@%s\n", from, match[1], match[2])
	}
	list := filepath.Join(t.TempDir(), "images.txt")
	require.NoError(t, os.WriteFile(list, []byte(references.String()), 0o600))
	begin := time.Now()
	m.images(t, password, "copy", "--namespace", m.namespace, "--file", list, "--from-plain-http", "--platform=all",
		"--from-username=zarf-push", "--password-stdin")
	t.Logf("figure: %d tags and %d manifests copied in %.1f s", len(tags), len(manifests), time.Since(begin).Seconds())
	copied := m.list(t, "", "--namespace", m.namespace)
	for name, digest := range tags {
		if copied[name] != digest {
			t.Errorf("%s is %s, want %s", name, copied[name], digest)
		}
	}
}

// takeOver lets the proxies answer in kube-proxy's place, and reserves the port for them.
func (m *migration) takeOver(t *testing.T) {
	m.patchZarfService(t, `{"type":"ClusterIP"}`)
	m.answers(t, true)
	m.mustInstall(t, "--namespace", m.namespace, afterZarf)
	m.isIn(t, state.ModeProxy, state.SourceValue)
	m.isHealthy(t)
	m.portIsOurs(t)
}

func (m *migration) patchZarfService(t *testing.T, spec string) {
	t.Helper()
	output(t, m.command(t, m.kubectl, "-n", namespace, "patch", "service", zarfRegistry, "--patch", `{"spec":`+spec+`}`))
}

// answers waits until every node reaches a proxy, which serves everyone, or Zarf's registry, which wants a password.
func (m *migration) answers(t *testing.T, proxy bool) {
	t.Helper()
	for _, node := range m.nodes {
		eventually(t, "the right registry to answer on "+node, func() error {
			out, err := m.onNode(t, node, m.tool, "get", "http://"+m.address+"/v2/")
			if proxy != (err == nil) || !proxy && !strings.Contains(out, "status 401") {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
}
