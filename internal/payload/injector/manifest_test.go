package injector_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// manifestText is a valid manifest of two chunks. Each SHA-256 is a repeated hexadecimal digit.
var manifestText = strings.NewReplacer(
	"A", strings.Repeat("a", 64), "B", strings.Repeat("b", 64), "C", strings.Repeat("c", 64), "D", strings.Repeat("d", 64),
).
	Replace(`zarf-registry payload 1
program registry-node
architecture arm64
layer-size 1000010
layer-sha256 A
program-offset 512
program-size 2500000
program-sha256 B
chunks 2
chunk 00 1000000 C
chunk 01 10 D
`)

func TestParseManifest(t *testing.T) {
	sum := func(b byte) (s [32]byte) { return [32]byte(bytes.Repeat([]byte{b}, 32)) }
	want := &injector.Manifest{
		Program:       injector.Program{Name: "registry-node", Architecture: "arm64"},
		LayerSize:     1_000_010,
		LayerSHA256:   sum(0xaa),
		ProgramOffset: 512,
		ProgramSize:   2_500_000,
		ProgramSHA256: sum(0xbb),
		Chunks:        []injector.Chunk{{Size: 1_000_000, SHA256: sum(0xcc)}, {Size: 10, SHA256: sum(0xdd)}},
	}
	got := require.Value(injector.ParseManifest([]byte(manifestText)))(t)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if text := string(got.Bytes()); text != manifestText {
		t.Errorf("written again it is\n%s", text)
	}
}

func TestParseManifestRefuses(t *testing.T) {
	a64 := strings.Repeat("a", 64)
	for name, test := range map[string]struct{ old, new, want string }{
		"another title": {"payload 1", "payload 2",
			`manifest line 1: "zarf-registry payload 2": must be "zarf-registry payload 1" and 0 words`},
		"a Windows line break": {"payload 1\n", "payload 1\r\n",
			`manifest line 1: "zarf-registry payload 1\r": must be "zarf-registry payload 1" and 0 words`},
		"no final line break": {
			"d\n", "d", `manifest line 11: "chunk 01 10 ` + strings.Repeat("d", 64) + `": must be "chunk 01" and 2 words`,
		},
		"a missing line": {
			"architecture arm64\n", "", `manifest line 3: "layer-size 1000010": must be "architecture" and 1 words`,
		},
		"two spaces": {"program registry-node", "program  registry-node",
			`manifest line 2: "program  registry-node": must be "program" and 1 words`},
		"a trailing space": {"chunks 2", "chunks 2 ", `manifest line 9: "chunks 2 ": must be "chunks" and 1 words`},
		"an unknown key": {
			"program-offset", "program-start", `manifest line 6: "program-start 512": must be "program-offset" and 1 words`,
		},
		"a longer key": {"chunks 2", "chunkset 2", `manifest line 9: "chunkset 2": must be "chunks" and 1 words`},
		"a name in upper case": {
			"registry-node", "Registry", `manifest line 2: program "Registry": must be 1 to 32 of a-z, 0-9 and '-'`,
		},
		"an empty name": {"registry-node", "", `manifest line 2: program "": must be 1 to 32 of a-z, 0-9 and '-'`},
		"a name too long": {"registry-node", strings.Repeat("n", 33),
			`manifest line 2: program "` + strings.Repeat("n", 33) + `": must be 1 to 32 of a-z, 0-9 and '-'`},
		"a leading zero": {"program-size 25", "program-size 025",
			`manifest line 7: program-size "02500000": must be a number from 1 to 268435456 without leading zeros`},
		"a sign": {"program-size 25", "program-size +25",
			`manifest line 7: program-size "+2500000": must be a number from 1 to 268435456 without leading zeros`},
		"a number that overflows": {"offset 512", "offset 18446744073709552128",
			`manifest line 6: program-offset "18446744073709552128": must be a number from 0 to 65536 without leading zeros`},
		"a program too large": {"program-size 2500000", "program-size 268435457",
			`manifest line 7: program-size "268435457": must be a number from 1 to 268435456 without leading zeros`},
		"an empty program": {"program-size 2500000", "program-size 0",
			`manifest line 7: program-size "0": must be a number from 1 to 268435456 without leading zeros`},
		"a sum in upper case": {a64, strings.ToUpper(a64),
			`manifest line 5: layer-sha256 "` + strings.ToUpper(a64) + `": must be 64 lower-case hexadecimal digits`},
		"a sum too short": {
			a64, a64[1:], `manifest line 5: layer-sha256 "` + a64[1:] + `": must be 64 lower-case hexadecimal digits`,
		},
		"no chunks": {
			"chunks 2", "chunks 0", `manifest line 9: chunks "0": must be a number from 1 to 64 without leading zeros`,
		},
		"too many chunks": {
			"chunks 2", "chunks 65", `manifest line 9: chunks "65": must be a number from 1 to 64 without leading zeros`,
		},
		"fewer chunks than announced": {"chunks 2", "chunks 3", `manifest line 12: "": must be "chunk 02" and 2 words`},
		"more chunks than announced": {
			"chunks 2", "chunks 1", `manifest continues after its last chunk: "chunk 01 10 dddddddddddddddddddddddddddd"`,
		},
		"chunks out of order": {"chunk 01", "chunk 02",
			`manifest line 11: "chunk 02 10 ` + strings.Repeat("d", 64) + `": must be "chunk 01" and 2 words`},
		"a chunk too large": {"00 1000000", "00 1048577",
			`manifest line 10: chunk 00 "1048577": must be a number from 1 to 1048576 without leading zeros`},
		"a sum that does not match": {
			"layer-size 1000010", "layer-size 1000011", "manifest: layer-size is 1000011, the chunks add up to 1000010",
		},
		"a file that is too long": {"d\n", "d\n" + strings.Repeat("\n", 8192),
			fmt.Sprintf("manifest has %d bytes: must have at most 8192", len(manifestText)+8192)},
	} {
		t.Run(name, func(t *testing.T) {
			changed := strings.Replace(manifestText, test.old, test.new, 1)
			if changed == manifestText {
				t.Fatalf("the manifest does not contain %q", test.old)
			}
			_, err := injector.ParseManifest([]byte(changed))
			wantError(t, err, test.want)
		})
	}
}

// FuzzParseManifest: no input causes a panic, and an accepted one is canonical.
func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(manifestText))
	f.Add([]byte(strings.Replace(manifestText, "1000010", "1000011", 1)))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := injector.ParseManifest(data)
		if err != nil {
			if m != nil {
				t.Errorf("a manifest and an error: %v", err)
			}
			return
		}
		if !bytes.Equal(m.Bytes(), data) {
			t.Errorf("written again it is\n%s", m.Bytes())
		}
		total := 0
		for _, chunk := range m.Chunks {
			total += chunk.Size
		}
		if total != m.LayerSize {
			t.Errorf("the layer has %d bytes, its chunks %d", m.LayerSize, total)
		}
	})
}
