package inventory_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/images/inventory"
)

func blobs(from, to int) (all []digest.Digest) {
	for i := from; i < to; i++ {
		all = append(all, digest.FromString(fmt.Sprint(i)))
	}
	return all
}

func TestRoundTrip(t *testing.T) {
	for _, n := range []int{0, 1, 12000} {
		set := inventory.New(append(blobs(0, n), "sha256:invalid"))
		encoded := set.Bytes()
		if want := 38 + 6*n; len(encoded) != want {
			t.Errorf("%d blobs have %d bytes, want %d", n, len(encoded), want)
		}
		read, err := inventory.Read(bytes.NewReader(encoded))
		if err != nil || read.Len() != n {
			t.Fatalf("%d blobs: read %d, error %v", n, read.Len(), err)
		}
		for i, d := range blobs(0, n+100) {
			if read.Has(d) != (i < n) {
				t.Errorf("blob %d of %d: %t", i, n, read.Has(d))
			}
		}
		if read.Has("nothing") {
			t.Error("it has an invalid digest")
		}
	}
	if set := inventory.New([]digest.Digest{digest.SHA512.FromString("a")}); !set.Has(digest.SHA512.FromString("a")) {
		t.Error("a SHA-512 digest is lost")
	}
}

func TestOfListsWhatImagesNeed(t *testing.T) {
	image, index := digest.FromString("image"), digest.FromString("index")
	layer, garbage, lost := digest.FromString("layer"), digest.FromString("garbage"), digest.FromString("lost")
	content := &catalog.Catalog{
		Manifests: []*catalog.Manifest{
			{Digest: image, Needs: []digest.Digest{layer, lost}},
			{Digest: index, Needs: []digest.Digest{image}},
		},
		Blobs: map[digest.Digest]catalog.Blob{image: {}, index: {}, layer: {}, garbage: {}},
	}
	if list := inventory.FromCatalog(content); !list.Has(layer) || list.Len() != 1 {
		t.Errorf("it lists %d blobs; that of the layer: %t", list.Len(), list.Has(layer))
	}
}

func TestDamageIsFound(t *testing.T) {
	encoded := inventory.New(blobs(0, 20)).Bytes()
	for i := range encoded {
		damaged := bytes.Clone(encoded)
		damaged[i] ^= 4
		if _, err := inventory.Read(bytes.NewReader(damaged)); err == nil {
			t.Errorf("a change of byte %d is not found", i)
		}
		if _, err := inventory.Read(bytes.NewReader(encoded[:i])); err == nil {
			t.Errorf("the first %d bytes are accepted", i)
		}
	}
	if _, err := inventory.Read(strings.NewReader("nginx:1")); err == nil || !strings.Contains(err.Error(), "images inventory") {
		t.Errorf("a list of images: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(inventory.New(blobs(0, 3)).Bytes())
	f.Fuzz(func(t *testing.T, encoded []byte) {
		if set, err := inventory.Read(bytes.NewReader(encoded)); err == nil && !bytes.Equal(set.Bytes(), encoded) {
			t.Errorf("%x is read, but written as %x", encoded, set.Bytes())
		}
	})
}
