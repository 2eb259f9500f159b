package registry

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"testing"
)

// BenchmarkPull measures pulls of two blob sizes over one connection, with client and server in one
// process.
func BenchmarkPull(b *testing.B) {
	i := start(b, newTestCA(b), b.TempDir())
	node := i.node()
	for name, size := range map[string]int{"1 KiB": 1 << 10, "64 MiB": 64 << 20} {
		path := node.base + "/v2/a/blobs/" + i.pusher().pushBlob("a", random(size)).String()
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				response, err := node.Get(path)
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				if err != nil || n != int64(size) || response.StatusCode != http.StatusOK {
					b.Fatalf("status %d, %d bytes, %v", response.StatusCode, n, err)
				}
			}
		})
	}
}

// BenchmarkReferrers measures a list of 100 referrers in a repository with 1,000 manifests, by back links and without
// them, as right after an upgrade.
func BenchmarkReferrers(b *testing.B) {
	i := start(b, newTestCA(b), b.TempDir())
	c, node := i.pusher(), i.node()
	subject, _ := c.pushImage("a", "v1", "layer")
	other, _ := c.pushImage("a", "v2", "another layer")
	for n := range 1000 {
		of := other
		if n%10 == 0 {
			of = subject
		}
		c.put("a", "", ociManifest, artifact(of, "application/x-signature", "n", fmt.Sprint(n)))
	}
	eventually(b, "back links are rebuilt", i.server.source.Rebuilt.Load)
	for _, indexed := range []bool{true, false} {
		b.Run(fmt.Sprintf("indexed=%t", indexed), func(b *testing.B) {
			i.server.source.Rebuilt.Store(indexed)
			for b.Loop() {
				if found, _ := node.referrers("/v2/a/referrers/" + subject.String()); len(found) != 100 {
					b.Fatalf("%d referrers", len(found))
				}
			}
		})
	}
}

// BenchmarkPush measures uploads in one request each, over one connection and over eight. TMPDIR should be on a disk.
func BenchmarkPush(b *testing.B) {
	i := start(b, newTestCA(b), b.TempDir())
	for name, size := range map[string]int{"1 KiB": 1 << 10, "256 MiB": 256 << 20} {
		b.Run(name, func(b *testing.B) {
			c, content := i.pusher(), []byte(random(size))
			b.SetBytes(int64(size))
			for n := 0; b.Loop(); n++ {
				binary.BigEndian.PutUint64(content, uint64(n))
				c.pushBlob("a", string(content))
			}
		})
	}
	b.Run("1 KiB, 8 at once", func(b *testing.B) {
		b.SetParallelism(8 / runtime.GOMAXPROCS(0))
		b.RunParallel(func(p *testing.PB) {
			for c := i.pusher(); p.Next(); {
				c.pushBlob("a", random(1<<10))
			}
		})
	})
}
