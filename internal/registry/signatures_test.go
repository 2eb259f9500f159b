package registry

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/internal/registry/verify"
)

const (
	bundleType  = "application/vnd.dev.sigstore.bundle.v0.3+json"
	payloadType = "application/vnd.dev.cosign.simplesigning.v1+json"
)

// signer signs images as cosign does; package signature tests what cosign writes.
type signer struct {
	t       testing.TB
	private *ecdsa.PrivateKey
	public  []byte // PEM
}

func newSigner(t testing.TB) signer {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return signer{t, private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})}
}

func (s signer) sign(message string) []byte {
	s.t.Helper()
	hash := sha256.Sum256([]byte(message))
	signature, err := s.private.Sign(rand.Reader, hash[:], crypto.SHA256)
	if err != nil {
		s.t.Fatal(err)
	}
	return signature
}

// attach signs a manifest and pushes the bundle as its referrer. It returns the digest of that.
func (s signer) attach(c client, repository, manifest string) digest.Digest {
	s.t.Helper()
	bundle, err := json.Marshal(map[string]any{"mediaType": bundleType,
		"messageSignature": map[string]any{"signature": s.sign(manifest)}})
	if err != nil {
		s.t.Fatal(err)
	}
	return c.pushDocument(repository, digest.FromString(manifest), bundleType, string(bundle))
}

// pushDocument pushes a manifest with one layer that refers to a subject.
func (c client) pushDocument(repository string, subject digest.Digest, mediaType, content string) digest.Digest {
	c.t.Helper()
	c.pushBlob(repository, "{}")
	manifest := artifact(subject, mediaType)
	manifest["layers"] = []any{describe(mediaType, c.pushBlob(repository, content), len(content))}
	d, _ := c.put(repository, "", ociManifest, manifest)
	return d
}

func (c client) pushManifest(repository, name, manifest string) digest.Digest {
	c.t.Helper()
	var m struct{ MediaType string }
	if err := json.Unmarshal([]byte(manifest), &m); err != nil {
		c.t.Fatal(err)
	}
	c.must(http.StatusCreated, "PUT", "/v2/"+repository+"/manifests/"+name, strings.NewReader(manifest), "Content-Type",
		m.MediaType)
	return digest.FromString(manifest)
}

// pushIndex pushes an index of manifests.
func (c client) pushIndex(repository, tag string, children ...digest.Digest) (digest.Digest, string) {
	c.t.Helper()
	index := encode(c.t, ociIndex, indexOf(children...))
	return c.pushManifest(repository, tag, index), index
}

// read reads a manifest by tag or digest.
func (c client) read(method, repository, name string) answer {
	c.t.Helper()
	a, err := c.send(method, "/v2/"+repository+"/manifests/"+name, nil, "Accept",
		v1.MediaTypeImageManifest+", "+v1.MediaTypeImageIndex)
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

// verified are the options of a registry that verifies signatures.
func verified(t testing.TB, mode verify.Mode, signers ...signer) (dir string, change func(*Options)) {
	t.Helper()
	dir = t.TempDir()
	for n, s := range signers {
		writeFile(t, filepath.Join(dir, fmt.Sprintf("key%d.pub", n+1)), s.public)
	}
	return dir, func(o *Options) { o.Signatures, o.SignatureKeys = mode, dir }
}

// enforcing starts a registry that enforces signatures of the signers.
func enforcing(t testing.TB, root string, signers ...signer) *instance {
	t.Helper()
	_, change := verified(t, verify.Enforce, signers...)
	i := start(t, newTestCA(t), root, change)
	i.waitEnforcing()
	return i
}

func (i *instance) waitEnforcing() {
	i.t.Helper()
	eventually(i.t, "signatures are enforced", func() bool { return i.server.signatures.Report().Enforced })
}

func TestWhoReadsUnsignedImages(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	_, change := verified(t, verify.Enforce, s)
	for _, open := range []bool{false, true} {
		e := startExposed(t, change, func(o *Options) {
			o.AnonymousPull, o.ExposeAnonymousPull = open, open
		})
		e.waitEnforcing()
		signed, manifest := e.pusher().pushImage("a", "signed", "signed")
		unsigned, _ := e.pusher().pushImage("a", "unsigned", "unsigned")
		s.attach(e.pusher(), "a", manifest)
		clients := map[string]struct {
			client client
			all    bool // also unsigned ones
		}{
			"a node":                          {e.node(), false},
			"a node with the push credential": {e.node().as(pushUser, pushPassword), false},
			"a cache":                         {e.client(e.ca.client(t, pki.OrganizationCache)), false},
			"a pusher":                        {e.pusher(), true},
			"a pusher without its credential": {e.client(e.ca.client(t, pki.OrganizationPush)), true},
			"a client of Zarf":                {e.client(e.ca.client(t, pki.OrganizationClient)), true},
			"the pull user of the node port":  {e.plain().as(pullUser, pullPassword), false},
			"the push user at the node port":  {e.plain().as(pushUser, pushPassword), true},
			"the push user by port-forward":   {e.loopback().as(pushUser, pushPassword), true},
			"the pull user by port-forward":   {e.loopback().as(pullUser, pullPassword), false},
			"the push user outside":           {e.outsider().as(pushUser, pushPassword), true},
			"a user outside":                  {e.outsider().as(outsideUser, outsidePassword), true},
		}
		if open {
			type access = struct {
				client client
				all    bool
			}
			clients["an anonymous client of the node port"] = access{e.plain(), false}
			clients["an anonymous client outside"] = access{e.outsider(), false}
			clients["a client with a wrong password"] = access{e.outsider().as(pushUser, "wrong"), false}
		}
		for name, tt := range clients {
			t.Run(fmt.Sprintf("%s, anonymous pull %t", name, open), func(t *testing.T) {
				c := tt.client
				c.t = t
				for _, method := range []string{http.MethodGet, http.MethodHead} {
					for _, ref := range []string{"signed", signed.String()} {
						if a := c.read(method, "a", ref); a.StatusCode != http.StatusOK ||
							a.Header.Get("Docker-Content-Digest") != signed.String() {
							t.Errorf("%s of %s: status %d", method, ref, a.StatusCode)
						}
					}
					want := http.StatusForbidden
					if tt.all {
						want = http.StatusOK
					}
					for _, ref := range []string{"unsigned", unsigned.String()} {
						a := c.read(method, "a", ref)
						if a.StatusCode != want || method == http.MethodGet && !tt.all && a.code() != "DENIED" {
							t.Errorf("%s of %s: status %d, want %d: %s", method, ref, a.StatusCode, want, a.body)
						}
					}
				}
				for _, path := range []string{"/v2/a/tags/list", "/v2/a/blobs/" + digest.FromString("unsigned").String()} {
					c.must(http.StatusOK, http.MethodGet, path, nil) // only manifests are verified
				}
				if a := c.read(http.MethodGet, "a", "missing"); a.StatusCode != http.StatusNotFound ||
					a.code() != "MANIFEST_UNKNOWN" {
					t.Errorf("missing tag: status %d, %s", a.StatusCode, a.body)
				}
				if a := c.read(http.MethodGet, "b", signed.String()); a.StatusCode != http.StatusNotFound {
					t.Errorf("manifest of another repository: status %d, %s", a.StatusCode, a.body)
				}
			})
		}
	}
}

func TestDenialsNameImageKeysAndRemedy(t *testing.T) {
	t.Parallel()
	signers := []signer{newSigner(t), newSigner(t), newSigner(t), newSigner(t), newSigner(t)}
	i := enforcing(t, t.TempDir(), signers...)
	d, manifest := i.pusher().pushImage("team/app", "v1", "layer")
	newSigner(t).attach(i.pusher(), "team/app", manifest)
	var body struct{ Errors []struct{ Message string } }
	a := i.node().read(http.MethodGet, "team/app", "v1")
	if err := json.Unmarshal([]byte(a.body), &body); err != nil || len(body.Errors) != 1 {
		t.Fatal(a.body)
	}
	got := body.Errors[0].Message
	for n := range 4 {
		mentions(t, got, fmt.Sprintf("key%d.pub (SHA-256 %s…)", n+1, i.server.signatures.Report().Keys[n][:16]))
	}
	mentions(t, got, "image team/app:v1 ("+d.String()+") is not signed by ",
		" or 1 other keys, but has 1 other ", "run cosign sign --key KEY REGISTRY/team/app@"+d.String())
}

func TestPullRightAfterSigning(t *testing.T) {
	t.Parallel()
	s, root := newSigner(t), t.TempDir()
	i := enforcing(t, root, s)
	d, manifest := i.pusher().pushImage("a", "v1", "layer")
	payload := fmt.Sprintf(`{"critical":{"image":{"docker-manifest-digest":%q},`+
		`"type":"cosign container image signature"}}`, d)
	for _, format := range []string{"bundle", "payload"} {
		if a := i.node().read(http.MethodGet, "a", "v1"); a.StatusCode != http.StatusForbidden {
			t.Fatalf("before: status %d", a.StatusCode)
		}
		var signature digest.Digest
		if format == "bundle" {
			signature = s.attach(i.pusher(), "a", manifest)
		} else {
			blob := i.pusher().pushBlob("a", payload)
			signature = i.pusher().pushManifest("a", "sha256-"+d.Encoded()+".sig", fmt.Sprintf(
				`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":2},"layers":[{"mediaType":%q,`+
					`"digest":%q,"size":%d,"annotations":{"dev.cosignproject.cosign/signature":%s}}]}`, v1.MediaTypeImageManifest,
				v1.MediaTypeImageConfig, digest.FromString("{}"), payloadType, blob, len(payload), quoted(s.sign(payload))))
		}
		if a := i.node().read(http.MethodGet, "a", "v1"); a.StatusCode != http.StatusOK || a.body != manifest {
			t.Fatalf("with a %s: status %d, %s", format, a.StatusCode, a.body)
		}
		i.pusher().must(http.StatusAccepted, "DELETE", "/v2/a/manifests/"+signature.String(), nil)
		if a := i.node().read(http.MethodGet, "a", "v1"); a.StatusCode != http.StatusForbidden {
			t.Fatalf("after the %s was deleted: status %d", format, a.StatusCode)
		}
	}
}

func quoted(data []byte) string {
	encoded, _ := json.Marshal(data)
	return string(encoded)
}

func TestAnotherReplicaSigns(t *testing.T) {
	t.Parallel()
	s, root := newSigner(t), t.TempDir()
	_, change := verified(t, verify.Enforce, s)
	here, there := open(t, newTestCA(t), root, change), start(t, newTestCA(t), root, change)
	began := time.Now()
	var later atomic.Int64
	here.server.signatures.Now = func() time.Time { return began.Add(time.Duration(later.Load())) }
	here.run()
	here.waitEnforcing()
	d, manifest := there.pusher().pushImage("a", "v1", "layer")
	signed := func(after time.Duration) bool {
		t.Helper()
		later.Add(int64(after))
		switch a := here.node().read(http.MethodGet, "a", d.String()); a.StatusCode {
		case http.StatusOK:
			return true
		case http.StatusForbidden:
			return false
		default:
			t.Fatalf("status %d", a.StatusCode)
			return false
		}
	}
	if signed(0) {
		t.Fatal("signed before the signature")
	}
	signature := s.attach(there.pusher(), "a", manifest)
	if first, second := signed(2*time.Second-1), signed(1); first || !second {
		t.Errorf("after a signature: %t, %t", first, second)
	}
	there.pusher().must(http.StatusAccepted, "DELETE", "/v2/a/manifests/"+signature.String(), nil)
	if first, second := signed(time.Minute-1), signed(1); !first || second {
		t.Errorf("after a deletion: %t, %t", first, second)
	}
}

func TestIndexesCoverTheirImages(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	i := enforcing(t, t.TempDir(), s)
	p := i.pusher()
	child, _ := p.pushImage("a", "child", "layer")
	inner, innerText := p.pushIndex("a", "inner", child)
	outer, outerText := p.pushIndex("a", "outer", inner)
	_, other := p.pushIndex("b", "other", mustPush(p, "b"))
	status := func(want int, names ...string) {
		t.Helper()
		for _, name := range names {
			if a := i.node().read(http.MethodGet, "a", name); a.StatusCode != want {
				t.Errorf("%s: status %d, want %d: %s", name, a.StatusCode, want, a.body)
			}
		}
	}
	status(http.StatusForbidden, "child", "inner", "outer")
	s.attach(p, "b", other)
	status(http.StatusForbidden, "child", "inner", "outer")
	signature := s.attach(p, "a", innerText)
	status(http.StatusOK, "child", child.String(), "inner")
	status(http.StatusForbidden, "outer")
	p.must(http.StatusAccepted, "DELETE", "/v2/a/manifests/"+signature.String(), nil)
	status(http.StatusForbidden, "child", "inner")
	s.attach(p, "a", outerText)
	status(http.StatusOK, "child", "inner", "outer", outer.String())
	p.must(http.StatusAccepted, "DELETE", "/v2/a/manifests/"+outer.String(), nil)
	status(http.StatusForbidden, "child", "inner")
	status(http.StatusNotFound, "outer")
	// A list of referrers is served, and covers nothing.
	p.pushManifest("a", "list", fmt.Sprintf(
		`{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":1,"artifactType":"a"}]}`,
		v1.MediaTypeImageIndex, v1.MediaTypeImageManifest, child))
	status(http.StatusOK, "list")
	status(http.StatusForbidden, "child")
}

func mustPush(c client, repository string) digest.Digest {
	d, _ := c.pushImage(repository, "child", "layer")
	return d
}

func TestSignaturesNeedNone(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	i := enforcing(t, t.TempDir(), s)
	image, manifest := i.pusher().pushImage("a", "v1", "layer")
	bundle := s.attach(i.pusher(), "a", manifest)
	disguised := i.pusher().pushDocument("a", image, bundleType, "\x1f\x8b an archive")
	if a := i.node().read(http.MethodGet, "a", bundle.String()); a.StatusCode != http.StatusOK {
		t.Errorf("bundle: status %d, %s", a.StatusCode, a.body)
	}
	if a := i.node().read(http.MethodGet, "a", disguised.String()); a.StatusCode != http.StatusForbidden {
		t.Errorf("image with the type of a bundle: status %d, %s", a.StatusCode, a.body)
	}
}

// TestATagIsResolvedOnce moves the tag between verification and response.
//
// Claim: A tag that moves during a verification does not change the served content.
func TestATagIsResolvedOnce(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	i := enforcing(t, t.TempDir(), s)
	_, manifest := i.pusher().pushImage("a", "v1", "layer")
	s.attach(i.pusher(), "a", manifest)
	verify := func(name string) (*http.Request, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://registry/v2/a/manifests/"+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		return i.server.signatures.Require(r, request.Target{Repository: "a", Manifest: name})
	}
	served, err := verify("v1")
	if err != nil {
		t.Fatal(err)
	}
	i.pusher().pushImage("a", "v1", "another layer")
	if want := "/v2/a/manifests/" + digest.FromString(manifest).String(); served.URL.Path != want {
		t.Errorf("the request is for %s, want %s", served.URL.Path, want)
	}
	if _, err := verify("v1"); err == nil {
		t.Error("the tag's other image is served")
	}
	if _, err := verify("missing"); err == nil {
		t.Error("a tag that may exist by the time of the response is served")
	}
}

func TestKeysAreFollowed(t *testing.T) {
	t.Parallel()
	before, after := newSigner(t), newSigner(t)
	dir, change := verified(t, verify.Enforce, before)
	i := start(t, newTestCA(t), t.TempDir(), change)
	i.waitEnforcing()
	_, manifest := i.pusher().pushImage("a", "v1", "layer")
	before.attach(i.pusher(), "a", manifest)
	status := func() int { return i.node().read(http.MethodGet, "a", "v1").StatusCode }
	if status() != http.StatusOK {
		t.Fatal("the image is denied")
	}
	first := i.loaded().Signatures
	if !first.Enforced || len(first.Keys) != 1 || first.Problem != "" || first.UnsignedTags == nil {
		t.Errorf("report %+v", first)
	}

	writeFile(t, filepath.Join(dir, "key1.pub"), []byte("rubbish"))
	eventually(t, "the failure is reported", func() bool { return i.loaded().Signatures.Problem != "" })
	if got := i.loaded().Signatures; status() != http.StatusOK || !slices.Equal(got.Keys, first.Keys) {
		t.Errorf("an invalid file changes the keys: %+v", got)
	}
	if got := i.metric("zarf_registry_signature_key_reload_errors_total"); got == 0 {
		t.Error("the failure is not counted")
	}

	writeFile(t, filepath.Join(dir, "key1.pub"), slices.Concat(before.public, after.public))
	eventually(t, "both keys are in use", func() bool { return len(i.loaded().Signatures.Keys) == 2 })
	if status() != http.StatusOK {
		t.Error("the image is denied while both keys are in use")
	}
	writeFile(t, filepath.Join(dir, "key1.pub"), after.public)
	eventually(t, "the image is denied", func() bool { return status() == http.StatusForbidden })
	after.attach(i.pusher(), "a", manifest)
	if status() != http.StatusOK {
		t.Error("the image is denied after it was signed with the new key")
	}
}

func TestWithoutValidKeysNothingIsSigned(t *testing.T) {
	t.Parallel()
	i := enforcing(t, t.TempDir())
	i.pusher().pushImage("a", "v1", "layer")
	a := i.node().read(http.MethodGet, "a", "v1")
	if a.StatusCode != http.StatusForbidden || !strings.Contains(a.body, "no valid public key (registry.signatures)") {
		t.Errorf("status %d, %s", a.StatusCode, a.body)
	}
	if got := i.loaded().Signatures.Problem; !strings.Contains(got, "no public key: add the public key of cosign") {
		t.Errorf("problem %q", got)
	}
}

// Claim: An image cannot pose as one of the project's own.
func TestOwnImagesNeedNoSignature(t *testing.T) {
	t.Parallel()
	s, own := newSigner(t), filepath.Join(t.TempDir(), "own-images")
	_, change := verified(t, verify.Enforce, s)
	i := start(t, newTestCA(t), t.TempDir(), change, func(o *Options) { o.OwnImages = own })
	i.waitEnforcing()
	child, _ := i.pusher().pushImage("zarf-registry/probe-proxy", "v1", "layer")
	index, _ := i.pusher().pushIndex("zarf-registry/probe-proxy", "index", child)
	i.pusher().pushImage("zarf-registry/probe-proxy", "v2", "another layer")
	status := func(tag string) int {
		return i.node().read(http.MethodGet, "zarf-registry/probe-proxy", tag).StatusCode
	}
	if status("v1") != http.StatusForbidden {
		t.Error("the name of the repository is enough")
	}
	writeFile(t, own, []byte(index.String()+"\n"+digest.FromString("older").String()+"\n"))
	eventually(t, "the own image is served", func() bool { return status("v1") == http.StatusOK })
	if status("index") != http.StatusOK || status("v2") != http.StatusForbidden {
		t.Errorf("status %d of the index, %d of another image", status("index"), status("v2"))
	}
	loaded := i.loaded().Signatures.OwnImages
	if data, err := os.ReadFile(own); err != nil || loaded != digest.FromBytes(data).Encoded() {
		t.Errorf("report %s, %v", loaded, err)
	}
	// Without a moment in which the file is empty, which is valid.
	if err := os.Rename(writeFile(t, own+".new", []byte("rubbish")), own); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the failure is reported", func() bool {
		return strings.Contains(i.loaded().Signatures.Problem, "rubbish")
	})
	if status("v1") != http.StatusOK {
		t.Error("an invalid file changes what is exempt")
	}
}

func TestStoredImagesAreAuditedBeforeSignaturesAreEnforced(t *testing.T) {
	t.Parallel()
	s, root := newSigner(t), t.TempDir()
	plain := start(t, newTestCA(t), root)
	p := plain.pusher()
	_, manifest := p.pushImage("a", "signed", "signed")
	s.attach(p, "a", manifest)
	const logged = 100
	for n := range logged + 5 {
		p.pushImage("b", fmt.Sprint(n), fmt.Sprint(n))
	}
	if plain.loaded().Signatures != nil || plain.metric("zarf_registry_unsigned_tags") != -1 {
		t.Error("a registry that verifies nothing reports results")
	}
	unsigned := func(i *instance) bool {
		i.t.Helper()
		return i.node().read(http.MethodGet, "b", "1").StatusCode == http.StatusOK
	}
	if !unsigned(plain) {
		t.Error("off: an unsigned image is denied")
	}

	dir, change := verified(t, verify.Enforce, s)
	first := start(t, newTestCA(t), root, change)
	first.waitEnforcing()
	const summary = `"verified the stored images","tags":106,"unsigned":105,"enforcing":true`
	eventually(t, "the summary is logged", func() bool { return strings.Contains(first.logs.String(), summary) })
	first.wantMetric("zarf_registry_unsigned_tags", logged+5)
	if got := strings.Count(first.logs.String(), `"image is not signed"`); got != logged {
		t.Errorf("%d images are in the log", got)
	}

	const enforcedPath = "/docker/registry/v2/zarf-registry/signatures-enforced"
	for _, mode := range []verify.Mode{verify.Off, verify.Audit} {
		if err := first.server.source.Driver.PutContent(t.Context(), enforcedPath, []byte("\n")); err != nil {
			t.Fatal(err)
		}
		i := start(t, newTestCA(t), root, func(o *Options) { o.Signatures, o.SignatureKeys = mode, dir })
		eventually(t, "the record is removed", func() bool {
			_, err := os.Stat(filepath.Join(root, enforcedPath))
			return os.IsNotExist(err)
		})
		if !unsigned(i) {
			t.Errorf("%s: an unsigned image is denied", mode)
		}
	}
}

func TestAuditServesLogsAndCounts(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	_, change := verified(t, verify.Audit, s)
	i := start(t, newTestCA(t), t.TempDir(), change)
	eventually(t, "the stored images are audited", func() bool { return i.metric("zarf_registry_unsigned_tags") == 0 })
	_, manifest := i.pusher().pushImage("a", "signed", "signed")
	bundle := s.attach(i.pusher(), "a", manifest)
	i.pusher().pushImage("a", "unsigned", "unsigned")
	for _, name := range []string{"signed", "unsigned", "unsigned", bundle.String()} {
		if a := i.node().read(http.MethodGet, "a", name); a.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d", name, a.StatusCode)
		}
	}
	i.pusher().read(http.MethodGet, "a", "unsigned")
	for result, want := range map[string]float64{"signed": 1, "unsigned": 2, "exempt": 1, "failed": 0} {
		i.wantMetric(fmt.Sprintf("zarf_registry_signature_verifications_total{result=%q}", result), want)
	}
	i.wantMetric("zarf_registry_signatures_enforced", 0)
	if got := strings.Count(i.logs.String(), `"image is not signed","image":"a:unsigned"`); got != 1 {
		t.Errorf("the image is %d times in the log", got)
	}
}

// Claim: A storage that fails does not pass for a signature.
func TestAnUnreadableSignatureIsNotAMissingOne(t *testing.T) {
	t.Parallel()
	filesystemOnly(t)
	s, root := newSigner(t), t.TempDir()
	_, change := verified(t, verify.Enforce, s)
	i := start(t, newTestCA(t), root, change)
	i.waitEnforcing()
	d, _ := i.pusher().pushImage("a", "v1", "layer")
	data := filepath.Join(root, storage.BlobPath(d))
	if err := os.Remove(data); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	a := i.node().read(http.MethodGet, "a", "v1")
	if a.StatusCode != http.StatusServiceUnavailable || !strings.Contains(a.body, "could not be verified") {
		t.Errorf("status %d, %s", a.StatusCode, a.body)
	}
	if err := os.Remove(data); err != nil {
		t.Fatal(err)
	}
	writeFile(t, data, []byte("another manifest"))
	if a := i.node().read(http.MethodGet, "a", "v1"); a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a damaged manifest: status %d, %s", a.StatusCode, a.body)
	}
	i.wantMetric(`zarf_registry_signature_verifications_total{result="failed"}`, 2)
	again := start(t, newTestCA(t), root, change)
	eventually(t, "the stored images are audited", func() bool { return again.metric("zarf_registry_unsigned_tags") == 1 })
}

func TestVerifyOptions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		mode verify.Mode
		keys string
		want string
	}{
		"nothing":              {"", "", ""},
		"off":                  {verify.Off, "", ""},
		"enforced":             {verify.Enforce, "keys", ""},
		"an unknown mode":      {"on", "keys", "invalid --signatures on: want off, audit or enforce"},
		"enforced, keyless":    {verify.Enforce, "", "--signatures=enforce needs --signature-keys"},
		"audited, keyless":     {verify.Audit, "", "--signatures=audit needs --signature-keys"},
		"a mode in upper case": {"Enforce", "keys", "invalid --signatures Enforce"},
	} {
		o := Options{Listen: ":1", TLSDir: "tls", Htpasswd: "users", Signatures: tt.mode, SignatureKeys: tt.keys}
		err := o.validate()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// BenchmarkVerified measures a HEAD of a signed image whose verdict is in memory, with and without verification. Its
// metric p99 is what the verification itself takes.
func BenchmarkVerified(b *testing.B) {
	s := newSigner(b)
	i := enforcing(b, b.TempDir(), s)
	_, manifest := i.pusher().pushImage("a", "v1", "layer")
	s.attach(i.pusher(), "a", manifest)
	for name, c := range map[string]client{"verified": i.node(), "unverified": i.pusher()} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				response, err := c.Get(c.base + "/v2/a/manifests/" + digest.FromString(manifest).String())
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
		})
	}
	b.Run("verification only", func(b *testing.B) {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://registry/v2/a/manifests/v1", nil)
		if err != nil {
			b.Fatal(err)
		}
		var took []time.Duration
		for b.Loop() {
			began := time.Now()
			if _, err := i.server.signatures.Require(r, request.Target{Repository: "a", Manifest: "v1"}); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
	})
}
