package e2e

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	// zarfRelease is the release in place of the registry of Zarf's init package.
	zarfRelease = "zarf-docker-registry"
	zarfClient  = "zarf-registry-client-tls"
)

// TestZarfInit deploys examples/zarf-init: Zarf's registry is this one, in proxy mode with mutual TLS, on nodes that
// hold only pause images.
func TestZarfInit(t *testing.T) {
	w := ownCluster(t, "e2e-zarf-init", layout{bare: true})
	z := newZarf(t, w)
	initPackage := z.examplePackage(t)
	z.initInternal(t, initPackage)
	must(t, "zarf package deploy", func(t *testing.T) { z.deploy(t, "first", z.workload(t, "first")) })
	must(t, "clients in all namespaces reach the registry", func(t *testing.T) {
		service := require.Value(w.client.CoreV1().Services(namespace).Get(t.Context(), zarfRelease, metav1.GetOptions{}))(t)
		if !w.podReaches(t, "flux", w.nodes[0], w.address+"/zarf/first:1", service.Spec.ClusterIP+":5000") {
			t.Error("a pod in another namespace cannot connect")
		}
	})
	must(t, "the agent reads from the registry, and refers Flux to it", w.refersFlux)
	must(t, "zarf tools registry", func(t *testing.T) {
		catalog := strings.Fields(z.run(t, "tools", "registry", "catalog"))
		if !slices.Contains(catalog, "zarf/first") || !slices.Contains(catalog, "zarf-dev/zarf/agent") ||
			slices.ContainsFunc(catalog, func(name string) bool { return strings.HasPrefix(name, "zarf-registry/") }) {
			t.Errorf("the catalog is %q", catalog)
		}
		if tags := z.tags(t, w.address+"/zarf/first"); len(tags) != 2 || tags[0] != "1" {
			t.Errorf("the tags are %q", tags)
		}
		z.run(t, "package", "mirror-resources", z.workload(t, "extra"), "--confirm")
		z.run(t, "tools", "registry", "prune", "--confirm")
		if tags := z.tags(t, w.address+"/zarf/extra"); len(tags) > 0 {
			t.Errorf("the tags of what was pruned are %q", tags)
		}
		w.pullEverywhere(t, w.address+"/zarf/first:1")
		if list := z.run(t, "connect", "list"); !strings.Contains(list, "registry") {
			t.Errorf("zarf connect list printed %s", list)
		}
	})
	must(t, "the registry is killed while the agent runs", func(t *testing.T) {
		stop := w.pullLoop(t, "zarf/first:1")
		output(t, w.command(t, w.kubectl, "delete", "pod", "-n", namespace, "--grace-period=0", "--force", "-l",
			"app.kubernetes.io/instance="+zarfRelease+",app.kubernetes.io/component=registry"))
		output(t, w.command(t, w.kubectl, "rollout", "status", "-n", namespace, "deployment/"+zarfRelease, "--timeout=2m"))
		stop()
		pods, err := w.client.CoreV1().Pods(namespace).List(t.Context(),
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + zarfRelease})
		if err != nil || len(pods.Items) < len(w.nodes)+1 {
			t.Fatalf("listing pods: %v, %v", pods, err)
		}
		for _, p := range pods.Items {
			if p.Labels["zarf-agent"] != "" || !strings.Contains(p.Spec.Containers[0].Image, "/pause") {
				t.Errorf("the agent changed pod %s: labels %v, image %s", p.Name, p.Labels, p.Spec.Containers[0].Image)
			}
		}
	})
	z.updatesCredentials(t)
	if long() {
		must(t, "the CronJob replaces a certificate of Zarf's", func(t *testing.T) {
			client := w.get(t, zarfClient)
			client.Data = w.get(t, "zarf-registry-server-tls").Data
			require.Value(w.client.CoreV1().Secrets(namespace).Update(t.Context(), client, metav1.UpdateOptions{}))(t)
			w.runCronJob(t, zarfRelease+"-certificates")
			w.clientOfZarf(t)
		})
		must(t, "zarf init again", func(t *testing.T) {
			z.run(t, "init", initPackage, "--registry-mode", "proxy", "--registry-port", "31999", "--confirm")
			w.clientOfZarf(t)
			z.deploy(t, "third", z.workload(t, "third"))
		})
	} else {
		t.Log("SHORTENED: no certificate of Zarf's for the CronJob, and no second zarf init")
	}
	must(t, "zarf destroy", func(t *testing.T) {
		z.run(t, "destroy", "--confirm")
		_, err := w.client.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("the namespace is left: %v", err)
		}
	})
}

// TestZarfInitIPv6 does the same where no node port can work.
func TestZarfInitIPv6(t *testing.T) {
	onlyInLongRuns(t)
	w := ownCluster(t, "e2e-zarf-init6", layout{bare: true, open: true})
	z := newZarf(t, w)
	z.initInternal(t, z.examplePackage(t))
	must(t, "zarf package deploy", func(t *testing.T) { z.deploy(t, "first", z.workload(t, "first")) })
	z.updatesCredentials(t)
}

// initInternal initializes Zarf with the package of the example.
func (z *zarf) initInternal(t *testing.T, initPackage string) {
	t.Helper()
	w := z.w
	must(t, "the nodes hold only pause", func(t *testing.T) {
		for _, node := range w.nodes {
			w.onlyPause(t, node)
		}
	})
	must(t, "a pod runs, for which Zarf waits", func(t *testing.T) {
		output(t, w.command(t, w.kubectl, "run", "some", "-n", "kube-system", "--image="+w.pauseImage(t)))
	})
	must(t, "zarf init", func(t *testing.T) {
		z.run(t, "init", initPackage, "--registry-mode", "proxy", "--registry-port", "31999", "--confirm")
		output(t, w.command(t, w.kubectl, "rollout", "status", "-n", namespace, "deployment/agent-hook", "--timeout=1m"))
		w.clientOfZarf(t)
		if _, err := os.Stat(filepath.Join(z.home, ".zarf-registry-installer")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the installer is left: %v", err)
		}
		output(t, w.command(t, w.hook, "status", "-n", namespace, "--release", zarfRelease, "--name", zarfRelease))
	})
}

// updatesCredentials replaces Zarf's certificates and passwords. A Job of the release makes the certificates fit
// again: its image comes from the registry.
func (z *zarf) updatesCredentials(t *testing.T) {
	t.Helper()
	w := z.w
	must(t, "zarf tools update-creds registry", func(t *testing.T) {
		client, users := w.clientOfZarf(t), w.get(t, zarfRelease+"-auth").Data["htpasswd"]
		z.run(t, "tools", "update-creds", "registry", "--confirm")
		if bytes.Equal(client, w.clientOfZarf(t)) {
			t.Error("the client certificate is the previous one")
		}
		if bytes.Equal(users, w.get(t, zarfRelease+"-auth").Data["htpasswd"]) {
			t.Error("the registry accepts the previous password")
		}
		z.deploy(t, "second", z.workload(t, "second"))
	})
}

// refersFlux creates a source of Flux, without Flux. For it, Zarf's agent connects to the registry's Service and
// reads the artifact.
func (w *world) refersFlux(t *testing.T) {
	t.Helper()
	w.kubectlApply(t, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: ocirepositories.source.toolkit.fluxcd.io
spec:
  group: source.toolkit.fluxcd.io
  names: {kind: OCIRepository, plural: ocirepositories}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`)
	output(t, w.command(t, w.kubectl, "wait", "--for=condition=Established", "--timeout=1m", "crd",
		"ocirepositories.source.toolkit.fluxcd.io"))
	w.kubectlApply(t, `apiVersion: source.toolkit.fluxcd.io/v1
kind: OCIRepository
metadata: {name: first, namespace: first}
spec: {interval: 1h, url: "oci://example.com/zarf/first", ref: {tag: "1"}}
`)
	got := output(t, w.command(t, w.kubectl, "get", "ocirepository", "first", "-n", "first", "-o",
		"jsonpath={.spec.url}:{.spec.ref.tag} {.spec.certSecretRef.name}"))
	_, tagged, _ := strings.Cut(w.agentReference(workloadImage("first")), "/")
	if want := "oci://" + zarfRelease + ".zarf.svc.cluster.local:5000/" + tagged + " " + zarfClient; got != want {
		t.Errorf("the source is %s, want %s", got, want)
	}
	log := output(t, w.command(t, w.kubectl, "logs", "-n", namespace, "-l", "app=agent-hook", "--tail=-1"))
	if !strings.Contains(log, "Flux OCIRepository") || strings.Contains(log, "unable to determine mediaType") {
		t.Errorf("the agent has not read the artifact: %s", log)
	}
}

// examplePackage makes the package of examples/zarf-init, with what its README says to put there, and returns its
// path.
func (z *zarf) examplePackage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program := require.Value(os.Open(z.w.hook))(t)
	defer program.Close()
	installer, err := os.Create(filepath.Join(dir, "zarf-registry"))
	require.NoError(t, err)
	_, err = io.Copy(installer, program)
	require.NoError(t, errors.Join(err, installer.Close(), os.CopyFS(dir, os.DirFS("../../examples/zarf-init")),
		os.CopyFS(filepath.Join(dir, "zarf-agent"), os.DirFS(z.agentSource()))))
	return z.create(t, dir, z.agentImage(t)...)
}

// clientOfZarf returns the certificate that Zarf's clients present, which must be of the registry's CA.
func (w *world) clientOfZarf(t *testing.T) []byte {
	t.Helper()
	client := w.get(t, zarfClient).Data
	bundle := require.Value(pki.ParseBundle(client["ca.crt"]))(t)
	pair := pki.KeyPair{Certificate: client["tls.crt"], Key: client["tls.key"]}
	if err := pki.Check(pair, bundle, pki.Requirement{Role: pki.OrganizationClient}, time.Now()); err != nil {
		t.Errorf("Zarf's client certificate: %v", err)
	}
	if !bytes.Equal(w.get(t, zarfRelease+"-node-tls").Data["ca.crt"], client["ca.crt"]) {
		t.Error("Zarf's clients trust another CA")
	}
	return client["tls.crt"]
}
