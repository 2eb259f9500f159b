// Package inventory is a compact list of the blobs that a registry has, small enough for a slow link: six
// bytes for each blob. Of 2⁴⁸ blobs that the registry does not have, a list of n blobs contains n nevertheless,
// so those who rely on it ask the registry in the end.
package inventory

import (
	"bytes"
	"crypto/sha256"
	_ "crypto/sha512" // for digest.SHA512
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
)

// The format, version 1:
//
//	26 bytes  "zarf-registry inventory 1\n"
//	 4 bytes  number of blobs n, big endian
//	6n bytes  the first 6 bytes of each blob's digest, ascending
//	 8 bytes  the first 8 bytes of the SHA-256 of all of the above
const (
	header       = "zarf-registry inventory 1\n"
	prefixSize   = 6
	checksumSize = 8
	// maxSize bounds what is read: more than ten million blobs.
	maxSize = 64 << 20
)

type prefix [prefixSize]byte

// Set is a set of blobs. The zero value is empty.
type Set struct{ prefixes []prefix } // sorted

// New returns the set of these blobs. Invalid digests are left out.
func New(digests []digest.Digest) *Set {
	s := &Set{}
	for _, d := range digests {
		if p, ok := prefixOf(d); ok {
			s.prefixes = append(s.prefixes, p)
		}
	}
	slices.SortFunc(s.prefixes, compare)
	s.prefixes = slices.Compact(s.prefixes)
	return s
}

// FromCatalog returns the blobs that images in a registry need, apart from manifests, which thin archives contain. A
// blob that clients know by a digest other than SHA-256 is left out: the catalog does not have that digest.
func FromCatalog(content *catalog.Catalog) *Set {
	manifests := map[digest.Digest]bool{}
	for _, m := range content.Manifests {
		manifests[m.Digest] = true
	}
	var blobs []digest.Digest
	for _, m := range content.Manifests {
		for _, d := range m.Needs {
			if _, stored := content.Blobs[d]; stored && !manifests[d] {
				blobs = append(blobs, d)
			}
		}
	}
	return New(blobs)
}

func compare(a, b prefix) int { return bytes.Compare(a[:], b[:]) }

func prefixOf(d digest.Digest) (p prefix, ok bool) {
	if d.Validate() != nil {
		return p, false
	}
	_, err := hex.Decode(p[:], []byte(d.Encoded()[:2*prefixSize]))
	return p, err == nil
}

// Has reports whether the set contains a blob.
func (s *Set) Has(d digest.Digest) bool {
	p, ok := prefixOf(d)
	if ok {
		_, ok = slices.BinarySearchFunc(s.prefixes, p, compare)
	}
	return ok
}

// Len returns the number of blobs.
func (s *Set) Len() int { return len(s.prefixes) }

// Bytes returns the encoded set.
func (s *Set) Bytes() []byte {
	encoded := append([]byte(header), binary.BigEndian.AppendUint32(nil, uint32(len(s.prefixes)))...)
	for _, p := range s.prefixes {
		encoded = append(encoded, p[:]...)
	}
	sum := sha256.Sum256(encoded)
	return append(encoded, sum[:checksumSize]...)
}

// Read reads an encoded set. It returns an error if a byte has changed.
func Read(r io.Reader) (*Set, error) {
	encoded, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err != nil {
		return nil, err
	}
	damaged := errors.New("the inventory is damaged or incomplete: copy it again")
	switch {
	case !bytes.HasPrefix(encoded, []byte(header)):
		return nil, errors.New("this is not an inventory of this version: write one with zarf-registry images inventory")
	case len(encoded) > maxSize:
		return nil, fmt.Errorf("the inventory is larger than %d bytes", maxSize)
	case len(encoded) < len(header)+4+checksumSize:
		return nil, damaged
	}
	content, sum := encoded[:len(encoded)-checksumSize], encoded[len(encoded)-checksumSize:]
	if want := sha256.Sum256(content); !bytes.Equal(sum, want[:checksumSize]) {
		return nil, damaged
	}
	n := binary.BigEndian.Uint32(content[len(header):])
	content = content[len(header)+4:]
	if int64(len(content)) != int64(n)*prefixSize {
		return nil, damaged
	}
	s := &Set{}
	for p := range slices.Chunk(content, prefixSize) {
		s.prefixes = append(s.prefixes, prefix(p))
	}
	if !slices.IsSortedFunc(s.prefixes, compare) {
		return nil, damaged
	}
	return s, nil
}
