package mask_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/status/mask"
)

// BenchmarkWriter masks lines of the registry's log, with the number of known values of a release.
func BenchmarkWriter(b *testing.B) {
	m := mask.New()
	for i := range 40 {
		m.Add(fmt.Sprintf("%d-a-Secret/with\"escapes", i))
	}
	text := []byte(strings.Repeat(`{"time":"2026-11-21T12:00:00.123456789Z","level":"INFO","msg":"audit","action":"push",`+
		`"reference":"team/app:1","digest":"sha256:0123456789012345678901234567890123456789012345678901234567890123",`+
		`"credential":"push","user":"zarf-push","listener":"mtls","remote":"10.42.0.7:51234"}`+"\n", 1000))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		w := m.Writer(io.Discard)
		if _, err := w.Write(text); err != nil {
			b.Fatal(err)
		}
	}
}
