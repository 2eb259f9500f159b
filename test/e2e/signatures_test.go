package e2e

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// signing is a machine outside the cluster with cosign.
type signing struct {
	outside
	cosign string
}

// generate makes a key pair and returns the public key.
func (s signing) generate(t *testing.T, name string) []byte {
	t.Helper()
	s.must(t, "env", "COSIGN_PASSWORD=", s.cosign, "generate-key-pair", "--output-key-prefix",
		filepath.Join(s.home, name))
	public, err := os.ReadFile(filepath.Join(s.home, name+".pub"))
	if err != nil {
		t.Fatal(err)
	}
	return public
}

// sign signs an image by digest, offline.
func (s signing) sign(t *testing.T, key, repository, digest string, args ...string) {
	t.Helper()
	image := s.address + "/" + repository + "@" + digest
	s.must(t, append([]string{"env", "COSIGN_PASSWORD=", s.cosign, "sign", "--yes", "--tlog-upload=false",
		"--use-signing-config=false", "--key", filepath.Join(s.home, key+".key"), image}, args...)...)
}

func (s signing) digest(t *testing.T, image string) string {
	t.Helper()
	return strings.TrimSpace(s.must(t, s.crane, "digest", s.address+"/"+image))
}

// pushNew pushes an image that nobody has, and returns its digest.
func (s signing) pushNew(t *testing.T, image string) string {
	t.Helper()
	s.push(t, s.makeArchive(t, "example.com/"+image, 8))
	return s.digest(t, image)
}

// runs runs a pod with an image on the node.
func (s signing) runs(t *testing.T, image string) {
	t.Helper()
	s.runPod(t, pod(fmt.Sprintf("signed-%d", time.Now().UnixNano()), s.nodes[0], s.world.address+"/"+image))
}

// denied checks that a pod with an image does not run, and that the event says why.
func (s signing) denied(t *testing.T, image string, want ...string) {
	t.Helper()
	p := pod(fmt.Sprintf("unsigned-%d", time.Now().UnixNano()), s.nodes[0], s.world.address+"/"+image)
	s.provoked = append(s.provoked, s.world.address+"/"+image)
	made, err := s.client.CoreV1().Pods(workloads).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.client.CoreV1().Pods(workloads).Delete(t.Context(), made.Name, *metav1.NewDeleteOptions(0))
	var message string
	eventually(t, "the event about the failed pull", func() error {
		events, err := s.client.CoreV1().Events(workloads).List(t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(made.UID) + ",reason=Failed"})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.HasPrefix(e.Message, "Failed to pull image") {
				message = e.Message
				return nil
			}
		}
		return fmt.Errorf("%d events", len(events.Items))
	})
	t.Logf("event: %s", message)
	for _, part := range want {
		if !strings.Contains(message, part) {
			t.Errorf("the event lacks %q", part)
		}
	}
}

// verification returns what the registry reports about signatures.
func (s signing) verification(t *testing.T) *reloadstatus.Signatures {
	t.Helper()
	var report reloadstatus.Report
	registry := s.pods(t, "registry")[0]
	out, err := s.onNode(t, s.nodes[0], "curl", "--silent", "--max-time", "5",
		"http://"+net.JoinHostPort(registry.Status.PodIP, "5090")+reloadstatus.Path)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return report.Signatures
}

// useKeys replaces the public keys, and waits until the registry uses them.
func (s signing) useKeys(t *testing.T, keys map[string][]byte) {
	t.Helper()
	s.putSecret(t, "cosign-keys", keys)
	registry := s.pods(t, "registry")[0].Name
	eventually(t, "the registry to load the keys", func() error {
		// An annotation makes the kubelet update mounted Secrets.
		output(t, s.command(t, s.kubectl, "-n", namespace, "annotate", "--overwrite", "pod", registry,
			"e2e/refreshed="+fmt.Sprint(time.Now().UnixNano())))
		if v := s.verification(t); v == nil || len(v.Keys) != len(keys) {
			return fmt.Errorf("it uses %s", mustJSON(v))
		}
		return nil
	})
}

// TestSignatures signs images with cosign from outside the cluster. Nodes run signed images only.
//
// Claim (an upgrade enforces signatures once the stored images are verified): With
// `registry.signatures.mode=enforce`, nodes run [signed images](signatures.md) only, once the stored images
// were verified.
//
// Claim (anonymous clients outside read signed images only): With `enforce`, anonymous clients outside the
// cluster read signed images only.
func TestSignatures(t *testing.T) {
	w := ownCluster(t, "e2e-signatures", layout{args: []string{"--nodes", "1"}})
	host := w.nodeAddresses(t, w.nodes[0])[0]
	authority, err := pki.NewCA("company", time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(pki.Leaf{CommonName: "registry", IPAddresses: []net.IP{net.ParseIP(host)},
		Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	tool := func(name string) string { return strings.TrimSpace(run(t, w.testcluster, "tool", name)) }
	s := signing{outside{world: w, address: net.JoinHostPort(host, "30443"), home: t.TempDir(), crane: tool("crane")},
		tool("cosign")}
	s.ca = filepath.Join(s.home, "ca.crt")
	if err := os.WriteFile(s.ca, authority.KeyPair().Certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.putSecret(t, "outside-tls", map[string][]byte{corev1.TLSCertKey: pair.Certificate,
		corev1.TLSPrivateKeyKey: pair.Key})
	first, second := s.generate(t, "first"), s.generate(t, "second")
	values := func(mode string) []string {
		return []string{proxyMode, "--set=expose.hosts={" + host + "}", "--set=expose.service.enabled=true",
			"--set=expose.service.type=NodePort", "--set=expose.service.nodePort=30443",
			"--set=expose.tls.existingSecret=outside-tls", "--set=expose.anonymousPull=true", "--set=registry.signatures.mode=" + mode,
			"--set=registry.signatures.existingSecret=cosign-keys"}
	}

	must(t, "helm install without the Secret changes nothing", func(t *testing.T) {
		w.helmChartFails(t, []string{"signatures: Secret zarf/cosign-keys: does not exist", "nothing was changed",
			"create secret generic cosign-keys --from-file=cosign.pub"}, "install", values("audit")...)
	})
	w.putSecret(t, "cosign-keys", map[string][]byte{"first.pub": first})
	must(t, "audit serves unsigned images, and counts them", func(t *testing.T) {
		w.helmChart(t, "upgrade", append(values("audit"), "--install")...)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		s.must(t, s.crane, "auth", "login", s.address, "-u", "zarf-push", "-p",
			string(w.secret(t, "-credentials").Data["password"]))
		s.pushNew(t, "e2e/unsigned:1")
		s.runs(t, "e2e/unsigned:1")
		if got := s.verification(t); got.Enforced || len(got.Keys) != 1 {
			t.Errorf("the registry reports %s", mustJSON(got))
		}
	})
	must(t, "an upgrade enforces signatures once the stored images are verified", func(t *testing.T) {
		w.apply(t, values("enforce")...)
		eventually(t, "signatures to be enforced", func() error {
			if got := s.verification(t); !got.Enforced || got.UnsignedTags == nil || *got.UnsignedTags != 1 {
				return fmt.Errorf("the registry reports %s", mustJSON(got))
			}
			return nil
		})
		digest := s.digest(t, "e2e/unsigned:1")
		s.denied(t, "e2e/unsigned:1", "image e2e/unsigned:1 ("+digest+") is not signed by first.pub (SHA-256 ",
			"run cosign sign --key KEY REGISTRY/e2e/unsigned@"+digest)
	})
	for format, args := range map[string][]string{"a bundle": nil, "simple signing": {"--new-bundle-format=false"}} {
		must(t, "an image that is signed with "+format+" runs at once", func(t *testing.T) {
			repository := "e2e/" + strings.ReplaceAll(format, " ", "-")
			digest := s.pushNew(t, repository+":1")
			s.denied(t, repository+":1", "is not signed by")
			s.sign(t, "first", repository, digest, args...)
			s.runs(t, repository+":1")
			s.must(t, "env", "COSIGN_PASSWORD=", s.cosign, "verify", "--key", filepath.Join(s.home, "first.pub"),
				"--insecure-ignore-tlog=true", s.address+"/"+repository+"@"+digest)
		})
	}
	must(t, "anonymous clients outside read signed images only", func(t *testing.T) {
		anonymous := s
		anonymous.home = t.TempDir()
		for image, want := range map[string]string{"e2e/a-bundle:1": "200", "e2e/unsigned:1": "403"} {
			repository, tag, _ := strings.Cut(image, ":")
			manifest := "https://" + s.address + "/v2/" + repository + "/manifests/" + tag
			if got := anonymous.status(t, "--header", "Accept: application/vnd.oci.image.index.v1+json, "+
				"application/vnd.oci.image.manifest.v1+json", manifest); got != want {
				t.Errorf("%s: status %s, want %s", image, got, want)
			}
		}
	})
	must(t, "an index covers its images", func(t *testing.T) {
		s.pushNew(t, "e2e/index:amd64")
		s.must(t, s.crane, "index", "append", "--manifest", s.address+"/e2e/index:amd64", "--tag", s.address+"/e2e/index:1")
		var index struct{ Manifests []struct{ Digest string } }
		text := s.must(t, s.crane, "manifest", s.address+"/e2e/index:1")
		if err := json.Unmarshal([]byte(text), &index); err != nil || len(index.Manifests) != 1 {
			t.Fatalf("%v: %s", err, text)
		}
		child := index.Manifests[0].Digest
		s.denied(t, "e2e/index@"+child, "is not signed by")
		s.sign(t, "first", "e2e/index", s.digest(t, "e2e/index:1"))
		s.runs(t, "e2e/index:1")
		s.runs(t, "e2e/index@"+child)
	})
	must(t, "an attestation is not a signature", func(t *testing.T) {
		digest := s.pushNew(t, "e2e/attested:1")
		predicate := filepath.Join(s.home, "predicate.json")
		if err := os.WriteFile(predicate, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		s.must(t, "env", "COSIGN_PASSWORD=", s.cosign, "attest", "--yes", "--tlog-upload=false",
			"--use-signing-config=false", "--key", filepath.Join(s.home, "first.key"), "--predicate", predicate, s.address+"/e2e/attested@"+digest)
		s.denied(t, "e2e/attested:1", "but has 1 other signatures")
	})
	must(t, "keys are rotated with two keys", func(t *testing.T) {
		digest := s.pushNew(t, "e2e/rotated:1")
		s.sign(t, "second", "e2e/rotated", digest)
		s.denied(t, "e2e/rotated:1", "but has 1 other signatures")
		s.useKeys(t, map[string][]byte{"first.pub": first, "second.pub": second})
		s.runs(t, "e2e/rotated:1")
		s.runs(t, "e2e/a-bundle:1")
		s.useKeys(t, map[string][]byte{"second.pub": second})
		s.runs(t, "e2e/rotated:1")
		s.denied(t, "e2e/a-bundle:1", "is not signed by second.pub")
	})
	must(t, "an upgrade while signatures are enforced verifies pulls of the project's own images", func(t *testing.T) {
		w.helmChart(t, "upgrade", append(values("enforce"), "--set=registry.podAnnotations.e2e=again")...)
		s.denied(t, "e2e/unsigned:1", "is not signed by second.pub") // at once, after a restart
	})
	if !long() {
		t.Log("SHORTENED: signatures are not turned off again")
		return
	}
	must(t, "an upgrade turns it off", func(t *testing.T) {
		w.apply(t, values("off")...)
		s.runs(t, "e2e/unsigned:1")
	})
}
