package registry

import (
	"io"
	"net/http"
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
