package signature

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxCarried is the size of all that a carrier carries, in bytes. It leaves room for SBOMs.
const maxCarried = 4 << 20

// carriedTypes are the media types of what cosign attaches to images, as far as it is JSON: signatures,
// attestations and SBOMs.
var carriedTypes = []string{
	typeBundle, typeSimpleSigning, "application/vnd.dsse.envelope.v1+json",
	"text/spdx+json", "application/vnd.cyclonedx+json", "application/vnd.syft+json",
}

// document is what matters of a manifest or index.
type document struct {
	Config    *v1.Descriptor  `json:"config"`
	Layers    []v1.Descriptor `json:"layers"`
	Manifests []v1.Descriptor `json:"manifests"`
}

// IsCarrier reports whether a manifest carries signatures or attestations, or lists referrers, and no files that could
// run: a runtime that starts it as an image gets an empty root file system. Media types alone do not decide, because a
// runtime may unpack a layer whatever its type: all of a carrier's layers are JSON documents that are not archives,
// too. Its config does not decide either, because cosign's signatures have that of an image. An error means that the
// repository could not be read.
func IsCarrier(ctx context.Context, repository Repository, manifest []byte) (bool, error) {
	var d document
	if json.Unmarshal(manifest, &d) != nil {
		return false, nil
	}
	if d.Config == nil && d.Layers == nil && d.Manifests != nil {
		return isReferrersList(d.Manifests), nil
	}
	if d.Manifests != nil || len(d.Layers) == 0 || len(d.Layers) > maxSignatures {
		return false, nil
	}
	left := int64(maxCarried)
	for _, layer := range d.Layers {
		if !slices.Contains(carriedTypes, layer.MediaType) || layer.Digest.Validate() != nil {
			return false, nil
		}
		content, err := repository.Read(ctx, layer.Digest, left)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if left -= int64(len(content)); !json.Valid(content) || isArchive(content) {
			return false, nil
		}
	}
	return true, nil
}

// isReferrersList reports whether an index is a list of artifacts, as clients push it under a fallback tag for
// registries without the referrers API. Images in indexes have a platform and no artifact type. What it lists
// is verified when it is pulled.
func isReferrersList(manifests []v1.Descriptor) bool {
	return !slices.ContainsFunc(manifests, func(m v1.Descriptor) bool { return m.ArtifactType == "" || m.Platform != nil })
}

// isArchive reports whether content begins as a tar archive does, which a JSON document can: the oldest kind of header
// needs no other bytes than text. What is compressed is not valid JSON. Readers of archives differ in what they
// tolerate, so the checksum decides alone, in any form that one of them accepts.
func isArchive(content []byte) bool {
	const size, from, to = 512, 148, 156 // of a header, and of the checksum in it
	if len(content) < size {
		return false
	}
	sum, signed := int64(0), int64(0)
	for i, b := range content[:size] {
		if i >= from && i < to {
			b = ' '
		}
		sum += int64(b)
		if signed += int64(b); b >= 0x80 { // as some implementations have computed it
			signed -= 0x100
		}
	}
	field := content[from:to]
	if field[0]&0x80 != 0 { // a binary number, of which the sum takes two bytes
		last := int64(field[6])<<8 | int64(field[7])
		return last == sum&0xffff || last == signed&0xffff
	}
	digits := strings.TrimLeft(string(field), " \x00")
	digits = digits[:len(digits)-len(strings.TrimLeft(digits, "01234567"))]
	n, err := strconv.ParseInt(digits, 8, 64)
	return err == nil && (n == sum || n == signed)
}
