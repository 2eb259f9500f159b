// Package signature finds out whether an image is signed by one of a set of public keys, offline. It knows the
// formats that cosign writes with a key:
//
//   - bundles (cosign 3): a referrer of the image with a Sigstore bundle, which contains either a DSSE envelope with
//     an in-toto statement about the image, or a signature of the image's manifest;
//   - simple signing (cosign 1 and 2): a manifest with the tag sha256-DIGEST.sig, or a referrer, whose layers are
//     payloads with a signature in an annotation.
//
// It does not verify certificates, transparency logs or timestamps, and attestations are not signatures, also
// if the same key has signed them.
//
// Everything that it reads may come from anyone who pushes. So sizes and numbers are limited, and what is
// malformed counts as absent.
package signature

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// maxSignatures is how many signatures of an image are considered. A signature that an attacker hides behind
	// as many others is not found: the image is denied.
	maxSignatures = 64
	// maxSize is the size of a signature's manifest or blob, in bytes. Most have less than a kilobyte, those with
	// certificates some.
	maxSize = 1 << 20
)

// The media types of signatures.
const (
	typeBundle        = "application/vnd.dev.sigstore.bundle.v0.3+json"
	typeSimpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json"
	// typeReferrer is the artifact type of simple signing as a referrer.
	typeReferrer = "application/vnd.dev.cosign.artifact.sig.v1+json"
)

// Repository is the repository of an image.
type Repository interface {
	// Read returns a manifest or a blob. The error is [fs.ErrNotExist] if it does not exist, or if it is
	// larger than limit.
	Read(ctx context.Context, d digest.Digest, limit int64) ([]byte, error)
	// Tagged returns the digest of a tag's manifest; "" if the tag does not exist.
	Tagged(ctx context.Context, tag string) (digest.Digest, error)
	// Referrers returns manifests whose subject is given and whose artifact type is one of types, limit at most. It
	// need not consider all of the referrers, if there are many.
	Referrers(ctx context.Context, subject digest.Digest, types []string, limit int) ([]digest.Digest, error)
}

// Result is what is known about an image.
type Result struct {
	// By is the key that has signed the image; nil if none has.
	By *Key
	// Others is how many signatures were found that are not by one of the keys.
	Others int
}

// Verify looks for a signature of an image by one of the keys. An error means that the repository could not be
// read.
func Verify(ctx context.Context, repository Repository, keys []Key, manifest []byte) (Result, error) {
	s := search{repository: repository, keys: keys, manifest: manifest, left: maxSignatures,
		digests: []digest.Digest{digest.SHA256.FromBytes(manifest), digest.SHA512.FromBytes(manifest)}}
	for _, look := range []func(context.Context) error{s.referrers, s.tag} {
		if err := look(ctx); err != nil || s.result.By != nil {
			return s.result, err
		}
	}
	return s.result, nil
}

type search struct {
	repository Repository
	keys       []Key
	manifest   []byte
	digests    []digest.Digest // of manifest
	left       int             // signatures to consider
	result     Result
}

func (s *search) referrers(ctx context.Context) error {
	for _, d := range s.digests {
		found, err := s.repository.Referrers(ctx, d, []string{typeBundle, typeReferrer}, max(s.left, 0))
		if err != nil {
			return fmt.Errorf("listing the referrers of %s: %w", d, err)
		}
		for _, referrer := range found {
			if err := s.signature(ctx, referrer); err != nil || s.result.By != nil {
				return err
			}
		}
	}
	return nil
}

// tag looks at the tag that cosign derives from the image's digest. Only that of SHA-256 is short enough to be a
// tag.
func (s *search) tag(ctx context.Context) error {
	d := s.digests[0]
	tag := d.Algorithm().String() + "-" + d.Encoded() + ".sig"
	found, err := s.repository.Tagged(ctx, tag)
	if err != nil {
		return fmt.Errorf("reading tag %s: %w", tag, err)
	}
	if found == "" {
		return nil
	}
	return s.signature(ctx, found)
}

// signature looks at a manifest whose layers are signatures.
func (s *search) signature(ctx context.Context, d digest.Digest) error {
	content, err := s.read(ctx, d)
	if content == nil || err != nil {
		return err
	}
	var manifest v1.Manifest
	if json.Unmarshal(content, &manifest) != nil {
		return nil
	}
	for _, layer := range manifest.Layers {
		if layer.MediaType != typeBundle && layer.MediaType != typeSimpleSigning || layer.Digest.Validate() != nil {
			continue
		}
		if s.left--; s.left < 0 {
			return nil
		}
		content, err := s.read(ctx, layer.Digest)
		if err != nil {
			return err
		}
		if content == nil {
			continue
		}
		signed := func(k Key) bool { return k.signedBundle(content, s.manifest, s.digests) }
		if layer.MediaType == typeSimpleSigning {
			sig, err := base64.StdEncoding.DecodeString(layer.Annotations["dev.cosignproject.cosign/signature"])
			if err != nil {
				continue
			}
			signed = func(k Key) bool { return k.signedPayload(content, sig, s.digests) }
		}
		if i := slices.IndexFunc(s.keys, signed); i >= 0 {
			s.result.By = &s.keys[i]
			return nil
		}
		s.result.Others++
	}
	return nil
}

// read returns nil if there is no such content, or if it is too large.
func (s *search) read(ctx context.Context, d digest.Digest) ([]byte, error) {
	content, err := s.repository.Read(ctx, d, maxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading signature %s: %w", d, err)
	}
	return content, nil
}

// signedPayload reports whether the key has signed a simple-signing payload about one of the digests. The name
// of the image in it is not compared: a copy in another registry stays signed.
func (k Key) signedPayload(payload, sig []byte, digests []digest.Digest) bool {
	if !k.verify(payload, sig) {
		return false
	}
	var claim struct {
		Critical struct {
			Type  string `json:"type"`
			Image struct {
				Digest digest.Digest `json:"docker-manifest-digest"`
			} `json:"image"`
		} `json:"critical"`
	}
	return json.Unmarshal(payload, &claim) == nil && claim.Critical.Type == "cosign container image signature" &&
		slices.Contains(digests, claim.Critical.Image.Digest)
}

// bundle is a Sigstore bundle, as far as it matters for a signature by a key.
type bundle struct {
	Envelope *envelope `json:"dsseEnvelope"`
	Message  *struct {
		Signature []byte `json:"signature"`
	} `json:"messageSignature"`
}

// envelope is defined by https://github.com/secure-systems-lab/dsse.
type envelope struct {
	PayloadType string `json:"payloadType"`
	Payload     []byte `json:"payload"`
	Signatures  []struct {
		Sig []byte `json:"sig"`
	} `json:"signatures"`
}

// maxEnvelopeSignatures bounds the work for an envelope. Those in bundles have one.
const maxEnvelopeSignatures = 4

// signedBundle reports whether the key has signed a bundle for the manifest.
func (k Key) signedBundle(content, manifest []byte, digests []digest.Digest) bool {
	var b bundle
	if json.Unmarshal(content, &b) != nil {
		return false
	}
	if b.Message != nil && k.verify(manifest, b.Message.Signature) {
		return true
	}
	e := b.Envelope
	if e == nil || e.PayloadType != "application/vnd.in-toto+json" || len(e.Signatures) > maxEnvelopeSignatures {
		return false
	}
	signed := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(e.PayloadType), e.PayloadType, len(e.Payload), e.Payload)
	for _, s := range e.Signatures {
		if k.verify(signed, s.Sig) {
			return isSignature(e.Payload, digests)
		}
	}
	return false
}

// isSignature reports whether a statement (https://in-toto.io/Statement/v1) says that the signer has signed an image
// with one of the digests. Other statements about an image, such as an SBOM, do not.
func isSignature(payload []byte, digests []digest.Digest) bool {
	var statement struct {
		Type          string `json:"_type"`
		PredicateType string `json:"predicateType"`
		Subject       []struct {
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
	}
	if json.Unmarshal(payload, &statement) != nil || statement.Type != "https://in-toto.io/Statement/v1" ||
		statement.PredicateType != "https://sigstore.dev/cosign/sign/v1" {
		return false
	}
	for _, subject := range statement.Subject {
		for _, d := range digests {
			if subject.Digest[d.Algorithm().String()] == d.Encoded() {
				return true
			}
		}
	}
	return false
}
