package remote

import (
	"bytes"
	"io"
	"testing"
)

func TestPushAndPullBlobs(t *testing.T) {
	for name, plain := range map[string]bool{"over TLS": false, "over plain HTTP": true} {
		t.Run(name, func(t *testing.T) {
			registry := newTestRegistry(t, plain)
			reg := registry.client(t, nil)
			repo := repository(t, reg, "some/where")
			for i, size := range []int{0, 1, 2, 4095, 1 << 16, 1<<20 + 1, 5<<20 + 3} {
				for kind, open := range map[string]func([]byte) func() (io.ReadCloser, error){
					"reader": opener,
					"file":   func(b []byte) func() (io.ReadCloser, error) { return fileOpener(t, b) },
				} {
					b := noise(uint64(i)+100*uint64(len(kind)), size)
					desc := describe(b)
					var next int64
					mounted, err := repo.PushBlob(t.Context(), desc, "", open(b), func(offset, n int64) {
						if offset != next {
							t.Errorf("progress at %d, want %d", offset, next)
						}
						next += n
					})
					if err != nil || mounted || next != desc.Size {
						t.Fatalf("%d bytes of a %s: mounted %v, progress %d, error %v", size, kind, mounted, next, err)
					}
					registry.has(t, "some/where", b)
					for _, offset := range []int64{0, desc.Size / 2, desc.Size} {
						got, err := pull(t.Context(), repo, desc, offset)
						if err != nil || !bytes.Equal(got, b[offset:]) {
							t.Errorf("%d bytes from %d: got %d, error %v", size, offset, len(got), err)
						}
					}
				}
			}
		})
	}
}
