package signature

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// cosignRepository is what cosign 3.1.3 wrote. Its repository has an image for each kind of key, with the name of the
// key as its tag, signed twice:
//
//	cosign sign --tlog-upload=false --use-signing-config=false --key KEY.key IMAGE
//	cosign sign --tlog-upload=false --use-signing-config=false --new-bundle-format=false --key KEY.key IMAGE
//
// The image attested has attestations only, in both formats, by the key p256.
//
//go:embed testdata/cosign-3.1.3.json
var cosignRepository []byte

// memory is a repository in memory.
type memory struct {
	Keys      map[string]string        `json:"keys"` // PEM
	Tags      map[string]digest.Digest `json:"tags"`
	Manifests []digest.Digest          `json:"manifests"`
	Content   map[digest.Digest]string `json:"content"`

	failure error // of every method
	reads   int
}

func (m *memory) Read(_ context.Context, d digest.Digest, limit int64) ([]byte, error) {
	m.reads++
	content, ok := m.Content[d]
	if m.failure == nil && (!ok || int64(len(content)) > limit) {
		return nil, fs.ErrNotExist
	}
	return []byte(content), m.failure
}

func (m *memory) Tagged(_ context.Context, tag string) (digest.Digest, error) {
	return m.Tags[tag], m.failure
}

func (m *memory) Referrers(
	_ context.Context, subject digest.Digest, types []string, limit int,
) (found []digest.Digest, err error) {
	for _, d := range m.Manifests {
		var manifest v1.Manifest
		if json.Unmarshal([]byte(m.Content[d]), &manifest) == nil && manifest.Subject != nil &&
			manifest.Subject.Digest == subject && len(found) < limit &&
			slices.Contains(types, cmp.Or(manifest.ArtifactType, manifest.Config.MediaType)) {
			found = append(found, d)
		}
	}
	return found, m.failure
}

// add stores a blob.
func (m *memory) add(content string) digest.Digest {
	d := digest.FromString(content)
	m.Content[d] = content
	return d
}

// push stores a manifest.
func (m *memory) push(content string) digest.Digest {
	d := m.add(content)
	m.Manifests = append(m.Manifests, d)
	return d
}

// without returns a copy without the manifests for which drop returns true.
func (m *memory) without(drop func(content string) bool) *memory {
	c := &memory{Keys: m.Keys, Tags: maps.Clone(m.Tags), Content: maps.Clone(m.Content)}
	for _, d := range m.Manifests {
		if !drop(m.Content[d]) {
			c.Manifests = append(c.Manifests, d)
			continue
		}
		maps.DeleteFunc(c.Tags, func(_ string, tagged digest.Digest) bool { return tagged == d })
	}
	return c
}

func fromCosign(t *testing.T) *memory {
	t.Helper()
	var m memory
	if err := json.Unmarshal(cosignRepository, &m); err != nil {
		t.Fatal(err)
	}
	return &m
}

func parse(t *testing.T, files map[string]string) []Key {
	t.Helper()
	keys, err := ParseKeys(asBytes(files))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func asBytes(files map[string]string) map[string][]byte {
	data := map[string][]byte{}
	for name, text := range files {
		data[name] = []byte(text)
	}
	return data
}

var kinds = []string{"p256", "p384", "p521", "rsa", "ed25519"}

func TestSignaturesByCosign(t *testing.T) {
	all := fromCosign(t)
	bundles := func(content string) bool { return strings.Contains(content, typeBundle) }
	payloads := func(content string) bool { return strings.Contains(content, typeSimpleSigning) }
	for format, repository := range map[string]*memory{
		"both":           all,
		"bundles":        all.without(payloads),
		"simple signing": all.without(bundles),
	} {
		for _, kind := range kinds {
			t.Run(format+", "+kind, func(t *testing.T) {
				image := []byte(all.Content[all.Tags[kind]])
				found, err := Verify(t.Context(), repository, parse(t, all.Keys), image)
				if err != nil || found.By == nil || found.By.Name != kind {
					t.Errorf("with all keys: %+v, %v", found, err)
				}
				others := maps.Clone(all.Keys)
				delete(others, kind)
				found, err = Verify(t.Context(), repository, parse(t, others), image)
				want := 1
				if format == "both" {
					want = 2
				}
				if err != nil || found.By != nil || found.Others != want {
					t.Errorf("with other keys: %+v, %v; want %d signatures by others", found, err, want)
				}
			})
		}
	}
	unsigned := all.without(func(content string) bool { return bundles(content) || payloads(content) })
	found, err := Verify(t.Context(), unsigned, parse(t, all.Keys), []byte(all.Content[all.Tags["p256"]]))
	if err != nil || found != (Result{}) {
		t.Errorf("without signatures: %+v, %v", found, err)
	}
}

// Claim: Attestations are not signatures.
func TestAttestationsAreNotSignatures(t *testing.T) {
	all := fromCosign(t)
	image := []byte(all.Content[all.Tags["attested"]])
	found, err := Verify(t.Context(), all, parse(t, all.Keys), image)
	if err != nil || found.By != nil || found.Others != 1 {
		t.Errorf("Verify() = %+v, %v; want a bundle that is not a signature", found, err)
	}
	if len(all.Tags) < 11 || all.Tags[fmt.Sprintf("sha256-%s.att", digest.FromBytes(image).Encoded())] == "" {
		t.Errorf("the image has no attestation in the other format: %v", all.Tags)
	}
}

// signer makes signatures that cosign would not make.
type signer struct {
	t       *testing.T
	private *ecdsa.PrivateKey
	Key
}

func newSigner(t *testing.T) signer {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signer{t, private, Key{Name: "test", public: &private.PublicKey, Fingerprint: strings.Repeat("0", 64)}}
}

func (s signer) sign(message string) string {
	hash := sha256.Sum256([]byte(message))
	sig, err := s.private.Sign(rand.Reader, hash[:], crypto.SHA256)
	if err != nil {
		s.t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(sig)
}

// bundle returns a bundle with a statement.
func (s signer) bundle(payloadType, statement string) string {
	sig := s.sign(fmt.Sprintf("DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(statement), statement))
	return fmt.Sprintf(`{"mediaType":%q,"dsseEnvelope":{"payloadType":%q,"payload":%q,"signatures":[{"sig":%q}]}}`,
		typeBundle, payloadType, base64.StdEncoding.EncodeToString([]byte(statement)), sig)
}

func statement(kind, predicate string, subject digest.Digest) string {
	return fmt.Sprintf(`{"_type":%q,"predicateType":%q,"subject":[{"digest":{%q:%q}}],"predicate":{}}`,
		kind, predicate, subject.Algorithm(), subject.Encoded())
}

// refer pushes a referrer with a layer.
func (m *memory) refer(subject digest.Digest, artifactType, layerType, layer string, annotations map[string]string) {
	encoded, _ := json.Marshal(v1.Manifest{
		ArtifactType: artifactType, Config: v1.DescriptorEmptyJSON, Subject: &v1.Descriptor{Digest: subject},
		Layers: []v1.Descriptor{{MediaType: layerType, Digest: m.add(layer), Annotations: annotations}},
	})
	m.push(string(encoded))
}

func TestBundles(t *testing.T) {
	const (
		inToto = "application/vnd.in-toto+json"
		v1Type = "https://in-toto.io/Statement/v1"
		sign   = "https://sigstore.dev/cosign/sign/v1"
	)
	const image = `{"layers":[]}`
	d, other := digest.FromString(image), digest.FromString("another image")
	longer := digest.SHA512.FromString(image)
	s := newSigner(t)
	encode := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	altered := strings.Replace(s.bundle(inToto, statement(v1Type, sign, other)), encode(statement(v1Type, sign, other)),
		encode(statement(v1Type, sign, d)), 1)
	bare := fmt.Sprintf(`{"dsseEnvelope":{"payloadType":%q,"signatures":[{"sig":%q}]}}`, inToto,
		s.sign("DSSEv1 28 "+inToto+" 0 "))
	message := func(signed string) string {
		return fmt.Sprintf(`{"messageSignature":{"signature":%q}}`, s.sign(signed))
	}
	for name, tt := range map[string]struct {
		bundle string
		signed bool
	}{
		"a signature":                       {s.bundle(inToto, statement(v1Type, sign, d)), true},
		"of the SHA-512 digest":             {s.bundle(inToto, statement(v1Type, sign, longer)), true},
		"of another image":                  {s.bundle(inToto, statement(v1Type, sign, other)), false},
		"an SBOM":                           {s.bundle(inToto, statement(v1Type, "https://spdx.dev/Document", d)), false},
		"without a predicate":               {s.bundle(inToto, statement(v1Type, "", d)), false},
		"another type of statement":         {s.bundle(inToto, statement("https://in-toto.io/Statement/v0.1", sign, d)), false},
		"another type of payload":           {s.bundle("text/plain", statement(v1Type, sign, d)), false},
		"a signature of the manifest":       {message(image), true},
		"a signature of another manifest":   {message("another image"), false},
		"a signature of the digest":         {message(d.String()), false},
		"an altered statement":              {altered, false},
		"not JSON":                          {"bundle", false},
		"nothing":                           {"{}", false},
		"a signature of another signer":     {newSigner(t).bundle(inToto, statement(v1Type, sign, d)), false},
		"an empty signature":                {`{"messageSignature":{"signature":""}}`, false},
		"a statement that is not JSON":      {s.bundle(inToto, "signed"), false},
		"a payload of simple signing":       {message(`{"critical":{}}`), false},
		"a signature without the statement": {bare, false},
	} {
		t.Run(name, func(t *testing.T) {
			repository := &memory{Content: map[digest.Digest]string{}}
			repository.refer(d, typeBundle, typeBundle, tt.bundle, nil)
			found, err := Verify(t.Context(), repository, []Key{s.Key}, []byte(image))
			if err != nil || (found.By != nil) != tt.signed || found.Others != 1 && !tt.signed {
				t.Errorf("Verify() = %+v, %v", found, err)
			}
		})
	}
}

func TestSimpleSigning(t *testing.T) {
	const image = `{"layers":[]}`
	d := digest.FromString(image)
	s := newSigner(t)
	payload := func(kind string, d digest.Digest) string {
		return fmt.Sprintf(`{"critical":{"identity":{"docker-reference":"elsewhere/app"},`+
			`"image":{"docker-manifest-digest":%q},"type":%q}}`, d, kind)
	}
	const kind = "cosign container image signature"
	good := payload(kind, d)
	for name, tt := range map[string]struct {
		payload, signed string // signed is the payload that is signed
		want            bool
	}{
		"a signature":             {good, good, true},
		"of another image":        {payload(kind, digest.FromString("another image")), "", false},
		"of another type":         {payload("attestation", d), "", false},
		"of another payload":      {good, good + " ", false},
		"of a digest, without it": {`{"critical":{"type":"` + kind + `"}}`, "", false},
		"not JSON":                {"signed", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			repository := &memory{Content: map[digest.Digest]string{}}
			repository.refer(d, typeReferrer, typeSimpleSigning, tt.payload, map[string]string{
				"dev.cosignproject.cosign/signature": s.sign(cmp.Or(tt.signed, tt.payload))})
			found, err := Verify(t.Context(), repository, []Key{s.Key}, []byte(image))
			if err != nil || (found.By != nil) != tt.want {
				t.Errorf("Verify() = %+v, %v", found, err)
			}
		})
	}
}

func TestHostileRepositories(t *testing.T) {
	const image = `{"layers":[]}`
	d := digest.FromString(image)
	s := newSigner(t)
	good := fmt.Sprintf(`{"messageSignature":{"signature":%q}}`, s.sign(image))
	verify := func(repository *memory) (Result, error) {
		return Verify(t.Context(), repository, []Key{s.Key}, []byte(image))
	}
	empty := func() *memory { return &memory{Content: map[digest.Digest]string{}} }

	t.Run("many signatures cost a limited number of reads", func(t *testing.T) {
		repository := empty()
		for i := range 10 * maxSignatures {
			repository.refer(d, typeBundle, typeBundle, fmt.Sprintf("%d", i), nil)
		}
		found, err := verify(repository)
		if err != nil || found.Others != maxSignatures || repository.reads > 2*maxSignatures {
			t.Errorf("Verify() = %+v, %v after %d reads", found, err, repository.reads)
		}
	})
	t.Run("referrers of other types hide none", func(t *testing.T) {
		repository := empty()
		for i := range 2 * maxSignatures {
			repository.refer(d, "application/example", typeBundle, fmt.Sprintf("%d", i), nil)
		}
		repository.refer(d, typeBundle, typeBundle, good, nil)
		if found, err := verify(repository); err != nil || found.By == nil {
			t.Errorf("Verify() = %+v, %v", found, err)
		}
	})
	t.Run("a bundle of more than a mebibyte is ignored", func(t *testing.T) {
		repository := empty()
		repository.refer(d, typeBundle, typeBundle, good+strings.Repeat(" ", maxSize), nil)
		if found, err := verify(repository); err != nil || found.By != nil {
			t.Errorf("Verify() = %+v, %v", found, err)
		}
	})
	t.Run("a missing blob is ignored", func(t *testing.T) {
		repository := empty()
		repository.refer(d, typeBundle, typeBundle, good, nil)
		delete(repository.Content, digest.FromString(good))
		if found, err := verify(repository); err != nil || found != (Result{}) {
			t.Errorf("Verify() = %+v, %v", found, err)
		}
	})
	t.Run("an invalid digest is ignored", func(t *testing.T) {
		repository := empty()
		repository.push(fmt.Sprintf(`{"artifactType":%q,"subject":{"digest":%q},`+
			`"layers":[{"mediaType":%q,"digest":"../../x"}]}`, typeBundle, d, typeBundle))
		if found, err := verify(repository); err != nil || found != (Result{}) || repository.reads != 1 {
			t.Errorf("Verify() = %+v, %v", found, err)
		}
	})
	t.Run("an error of the storage is not a missing signature", func(t *testing.T) {
		repository := empty()
		repository.failure = errors.New("storage is gone")
		if _, err := verify(repository); !errors.Is(err, repository.failure) {
			t.Errorf("Verify() = %v", err)
		}
		carrier := fmt.Appendf(nil, `{"layers":[{"mediaType":%q,"digest":%q}]}`, typeBundle, d)
		if _, err := IsCarrier(t.Context(), repository, carrier); !errors.Is(err, repository.failure) {
			t.Errorf("IsCarrier() = %v", err)
		}
	})
}

// Claim: An image cannot pose as a signature.
func TestCarriers(t *testing.T) {
	all := fromCosign(t)
	images := map[digest.Digest]bool{}
	for _, tag := range append(slices.Clone(kinds), "attested") {
		images[all.Tags[tag]] = true
	}
	carriers := 0
	for _, d := range all.Manifests {
		is, err := IsCarrier(t.Context(), all, []byte(all.Content[d]))
		if err != nil || is == images[d] {
			t.Errorf("IsCarrier(%s) = %v, %v", all.Content[d], is, err)
		}
		carriers++
	}
	if carriers < 20 {
		t.Errorf("only %d manifests", carriers)
	}

	repository := &memory{Content: map[digest.Digest]string{}}
	archive, document := repository.add("\x1f\x8b\x08"), repository.add(`{"signed":true}`)
	both := repository.add(polyglot(t))
	large := repository.add(`"` + strings.Repeat("x", maxCarried) + `"`)
	half := repository.add(`"` + strings.Repeat("x", maxCarried/2) + `"`)
	layer := func(kind string, d digest.Digest) string { return fmt.Sprintf(`{"mediaType":%q,"digest":%q}`, kind, d) }
	layers := func(list ...string) string { return `{"layers":[` + strings.Join(list, ",") + `]}` }
	bundle := layer(typeBundle, document)
	tar := "application/vnd.oci.image.layer.v1.tar+gzip"
	for name, tt := range map[string]struct {
		manifest string
		want     bool
	}{
		"a bundle":                            {`{"layers":[` + layer(typeBundle, document) + `]}`, true},
		"an image":                            {`{"layers":[` + layer(tar, archive) + `]}`, false},
		"an image with the type of a bundle":  {`{"layers":[` + layer(typeBundle, archive) + `]}`, false},
		"an image with an artifact type":      {`{"artifactType":"` + typeBundle + `",` + layers(layer(tar, document))[1:], false},
		"a bundle and a layer":                {layers(bundle, layer(tar, archive)), false},
		"no layers":                           {`{"config":{},"layers":[]}`, false},
		"a missing layer":                     {layers(layer(typeBundle, digest.FromString("missing"))), false},
		"a layer that is too large":           {`{"layers":[` + layer(typeBundle, large) + `]}`, false},
		"layers that are together too large":  {layers(layer(typeBundle, half), layer(typeBundle, half)), false},
		"an invalid digest":                   {`{"layers":[` + layer(typeBundle, "../x") + `]}`, false},
		"too many layers":                     {layers(slices.Repeat([]string{bundle}, maxSignatures+1)...), false},
		"not JSON":                            {`layers`, false},
		"a list of referrers":                 {`{"manifests":[{"artifactType":"a"},{"artifactType":"b"}]}`, true},
		"an empty list of referrers":          {`{"manifests":[]}`, true},
		"an index":                            {`{"manifests":[{"platform":{"os":"linux"}}]}`, false},
		"an index without platforms":          {`{"manifests":[{}]}`, false},
		"an index with a referrer":            {`{"manifests":[{"artifactType":"a"},{"platform":{"os":"linux"}}]}`, false},
		"an index with artifact types":        {`{"manifests":[{"artifactType":"a","platform":{"os":"linux"}}]}`, false},
		"both an index and an image":          {`{"manifests":[],"layers":[` + layer(typeBundle, document) + `]}`, false},
		"both a list and an image's config":   {`{"manifests":[],"config":{}}`, false},
		"a document that is no manifest":      {`{}`, false},
		"an SBOM":                             {`{"layers":[` + layer("text/spdx+json", document) + `]}`, true},
		"an SBOM that is not JSON, and hence": {`{"layers":[` + layer("text/spdx", document) + `]}`, false},
		"an archive that is a document, too":  {`{"layers":[` + layer("text/spdx+json", both) + `]}`, false},
	} {
		is, err := IsCarrier(t.Context(), repository, []byte(tt.manifest))
		if err != nil || is != tt.want {
			t.Errorf("%s: IsCarrier() = %v, %v", name, is, err)
		}
	}
}

func TestParseKeys(t *testing.T) {
	keys := fromCosign(t).Keys
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	private := newSigner(t).private
	sec1, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	shortPublic, err := x509.MarshalPKIXPublicKey(&short.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	many := map[string]string{}
	for i := range maxKeys + 1 {
		many[fmt.Sprint(i)] = keys["p256"]
	}
	rsaKey := parse(t, map[string]string{"rsa": keys["rsa"]})[0]
	pkcs1 := encode("RSA PUBLIC KEY", x509.MarshalPKCS1PublicKey(rsaKey.public.(*rsa.PublicKey)))
	for name, tt := range map[string]struct {
		files map[string]string
		names string // of the keys, or what the error contains
		fails bool
	}{
		"one":               {map[string]string{"a.pub": keys["p256"]}, "a.pub", false},
		"several files":     {map[string]string{"b": keys["rsa"], "a": keys["ed25519"]}, "a b", false},
		"several in a file": {map[string]string{"a": keys["p256"] + "\n" + keys["rsa"] + "\n \n"}, "a a#2", false},
		"PKCS #1":           {map[string]string{"a": pkcs1}, "a", false},
		"no file":           {nil, "no public key", true},
		"an empty file":     {map[string]string{"a": "\n"}, "a: empty", true},
		"a private key": {map[string]string{"a": encode("EC PRIVATE KEY", sec1)},
			"a: a private key (EC PRIVATE KEY)", true},
		"cosign's private key": {map[string]string{"cosign.key": encode("ENCRYPTED SIGSTORE PRIVATE KEY", sec1)},
			"cosign.key: a private key", true},
		"a certificate":    {map[string]string{"a": encode("CERTIFICATE", sec1)}, `a: PEM of type "CERTIFICATE"`, true},
		"text":             {map[string]string{"a": "secret"}, "a: not PEM", true},
		"text after a key": {map[string]string{"a": keys["p256"] + "secret"}, "a: not PEM", true},
		"damaged":          {map[string]string{"a": encode("PUBLIC KEY", []byte("x"))}, "a: ", true},
		"a short RSA key": {map[string]string{"a": encode("PUBLIC KEY", shortPublic)},
			"1024 bits: want at least 2048", true},
		"too many":            {many, "33 public keys: want at most 32", true},
		"one of two is wrong": {map[string]string{"a": keys["p256"], "b": "x"}, "b: not PEM", true},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := ParseKeys(asBytes(tt.files))
			var names []string
			for _, k := range found {
				names = append(names, k.Name)
			}
			switch {
			case tt.fails && (err == nil || !strings.Contains(err.Error(), tt.names)):
				t.Errorf("ParseKeys() = %v, want %q", err, tt.names)
			case !tt.fails && (err != nil || strings.Join(names, " ") != tt.names):
				t.Errorf("ParseKeys() = %v, %v, want %s", names, err, tt.names)
			}
		})
	}
	key := parse(t, map[string]string{"a": keys["p256"]})[0]
	block, _ := pem.Decode([]byte(keys["p256"]))
	if want := digest.FromBytes(block.Bytes).Encoded(); key.Fingerprint != want ||
		key.String() != "a (SHA-256 "+want[:16]+"…)" {
		t.Errorf("String() = %s, fingerprint %s, want %s", key, key.Fingerprint, want)
	}
}

func FuzzVerify(f *testing.F) {
	var m memory
	if err := json.Unmarshal(cosignRepository, &m); err != nil {
		f.Fatal(err)
	}
	for _, content := range m.Content {
		f.Add([]byte(content))
	}
	keys, err := ParseKeys(map[string][]byte{"p256": []byte(m.Keys["p256"])})
	if err != nil {
		f.Fatal(err)
	}
	const image = `{"layers":[]}` // nobody has signed it
	f.Fuzz(func(t *testing.T, content []byte) {
		repository := &memory{Content: map[digest.Digest]string{}}
		repository.refer(digest.FromString(image), typeBundle, typeBundle, string(content), nil)
		repository.refer(digest.FromString(image), typeReferrer, typeSimpleSigning, string(content), map[string]string{
			"dev.cosignproject.cosign/signature": string(content)})
		repository.Tags = map[string]digest.Digest{
			"sha256-" + digest.FromString(image).Encoded() + ".sig": repository.add(string(content))}
		found, err := Verify(t.Context(), repository, keys, []byte(image))
		if err != nil || found.By != nil {
			t.Errorf("Verify() = %+v, %v", found, err)
		}
		if is, err := IsCarrier(t.Context(), repository, content); err != nil || is && len(content) == 0 {
			t.Errorf("IsCarrier() = %v, %v", is, err)
		}
	})
}

// polyglot is a JSON document that is also an archive with a file outside its directory.
func polyglot(t *testing.T) string {
	t.Helper()
	body := " a file from an unsigned layer"
	body += strings.Repeat(" ", 1024-2-len(body)) + `"]`
	header := []byte(strings.Repeat(" ", 512))
	name := `["/` + strings.Repeat("./", 44) + "etc/motd"
	copy(header, name)
	copy(header[100:], "0000644 0000000 0000000 ")
	copy(header[124:], fmt.Sprintf("%011o ", len(body)))
	copy(header[136:], "00000000000 ")
	header[156] = '0'
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	copy(header[148:], fmt.Sprintf("%06o  ", sum))
	content := string(header) + body
	entry, err := tar.NewReader(strings.NewReader(content)).Next()
	if !json.Valid([]byte(content)) || err != nil || !strings.Contains(entry.Name, "etc/motd") {
		t.Fatalf("valid JSON: %t; as an archive: %+v, %v", json.Valid([]byte(content)), entry, err)
	}
	return content
}
