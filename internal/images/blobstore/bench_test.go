package blobstore

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const benchSize = 64 << 20

func benchContent(b *testing.B) ([]byte, ocispec.Descriptor) {
	b.Helper()
	raw := make([]byte, benchSize)
	_, _ = rand.NewChaCha8([32]byte{}).Read(raw)
	return raw, ocispec.Descriptor{Digest: digest.FromBytes(raw), Size: benchSize}
}

// BenchmarkHash is what the hash alone takes: the other benchmarks' bound.
func BenchmarkHash(b *testing.B) {
	raw, _ := benchContent(b)
	b.SetBytes(benchSize)
	for b.Loop() {
		digest.FromBytes(raw)
	}
}

// BenchmarkGet is a blob's first use by a process.
func BenchmarkGet(b *testing.B) {
	raw, desc := benchContent(b)
	s := openStore(b, b.TempDir(), Options{})
	if err := s.Put(context.Background(), desc, raw); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(benchSize)
	b.ReportAllocs()
	for b.Loop() {
		clear(s.verified)
		if _, err := s.Get(context.Background(), desc); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEnsure is a blob that is fetched from memory.
func BenchmarkEnsure(b *testing.B) {
	raw, desc := benchContent(b)
	s := openStore(b, b.TempDir(), Options{})
	b.SetBytes(benchSize)
	b.ReportAllocs()
	for b.Loop() {
		_ = os.Remove(s.path(desc.Digest))
		fetched, err := s.Ensure(context.Background(), desc, func(context.Context, int64) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(raw)), nil
		})
		if err != nil || fetched != benchSize {
			b.Fatal(fetched, err)
		}
	}
}
