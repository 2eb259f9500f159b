package injector_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/test/require"
)

var (
	node     = injector.Program{Name: "registry-node", Architecture: "amd64"}
	loader   = []byte("the loader")
	someText = []byte("#!/bin/sh\nexit 0\n")
)

// noise is incompressible.
func noise(size int) []byte {
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(data)
	return data
}

func layerOf(t *testing.T, name string, program []byte) []byte {
	t.Helper()
	return require.Value(injector.BuildLayer(name, program))(t)
}

func encode(t *testing.T, program []byte) *injector.Payload {
	t.Helper()
	return require.Value(injector.Encode(node, layerOf(t, node.Name, program), loader))(t)
}

func compress(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	require.NoError(t, errors.Join(err, w.Close()))
	return b.Bytes()
}

func inflate(t *testing.T, layer []byte) []byte {
	t.Helper()
	return require.Value(io.ReadAll(require.Value(gzip.NewReader(bytes.NewReader(layer)))(t)))(t)
}

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestBuildLayer(t *testing.T) {
	for _, size := range []int{1, 511, 512, 513, 1_500_000} {
		program := noise(size)
		layer := layerOf(t, node.Name, program)
		archive := inflate(t, layer)
		if padded := (size + 511) / 512 * 512; len(archive) != 512+padded+1024 {
			t.Errorf("%d bytes give an archive of %d", size, len(archive))
		}
		if !bytes.Equal(archive[512:512+size], program) {
			t.Errorf("the program of %d bytes does not begin at byte 512", size)
		}
		r := tar.NewReader(bytes.NewReader(archive))
		header := require.Value(r.Next())(t)
		if header.Name != node.Name || header.Mode != 0o555 || header.Uid != 0 || header.Gid != 0 || header.Uname != "" ||
			header.Gname != "" ||
			!header.ModTime.Equal(time.Unix(0, 0)) || header.Typeflag != tar.TypeReg || header.Format != tar.FormatUSTAR {
			t.Errorf("%+v", header)
		}
		if _, err := r.Next(); err != io.EOF {
			t.Errorf("after the program: %v", err)
		}
		if again := layerOf(t, node.Name, program); !bytes.Equal(layer, again) {
			t.Errorf("two layers of one program differ")
		}
	}
}

// The digest of an image must not change unnoticed. (That of the compressed layer may, with Go's
// compress/flate.)
func TestArchiveIsStable(t *testing.T) {
	const want = "28b8d4bb2fa64558883e2517da69065af60b98e631006f9c7bbc55729f94dd0e"
	if got := fmt.Sprintf("%x", sha256.Sum256(inflate(t, layerOf(t, node.Name, someText)))); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestBuildLayerRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		name    string
		program []byte
		want    string
	}{
		"no name":          {"", someText, `program name "": must be 1 to 32 of a-z, 0-9 and '-'`},
		"a path":           {"bin/registry", someText, `program name "bin/registry": must be 1 to 32 of a-z, 0-9 and '-'`},
		"an empty program": {"registry", nil, "program registry has 0 bytes: must have 1 to 268435456"},
		"a program too large": {"registry", make([]byte, injector.MaxProgramSize+1),
			"program registry has 268435457 bytes: must have 1 to 268435456"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := injector.BuildLayer(test.name, test.program)
			wantError(t, err, test.want)
		})
	}
}

func TestEncode(t *testing.T) {
	program := noise(2_500_000)
	layer := layerOf(t, node.Name, program)
	payload := encode(t, program)
	sum := func(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }
	want := fmt.Sprintf(`zarf-registry payload 1
program registry-node
architecture amd64
layer-size %d
layer-sha256 %s
program-offset 512
program-size 2500000
program-sha256 %s
chunks 3
chunk 00 1000000 %s
chunk 01 1000000 %s
chunk 02 %d %s
`, len(layer), sum(layer), sum(program), sum(layer[:1_000_000]), sum(layer[1_000_000:2_000_000]), len(layer)-2_000_000,
		sum(layer[2_000_000:]))
	if string(payload.Manifest) != want {
		t.Errorf("got %s\nwant %s", payload.Manifest, want)
	}

	var order []int
	for _, object := range payload.Objects() {
		order = append(order, object.Index)
		keys := []string{fmt.Sprintf("chunk-%02d", object.Index)}
		if object.Index == 0 {
			keys = append(keys, "loader", "manifest")
		}
		for _, key := range keys {
			if len(object.Data[key]) == 0 {
				t.Errorf("object %d has no %s", object.Index, key)
			}
		}
		if len(object.Data) != len(keys) {
			t.Errorf("object %d has more than %v", object.Index, keys)
		}
	}
	if !slices.Equal(order, []int{1, 2, 0}) {
		t.Errorf("the order is %v: the object with the manifest must be the last", order)
	}
}

func TestPayloadOfOneChunk(t *testing.T) {
	if objects := encode(t, someText).Objects(); len(objects) != 1 || objects[0].Index != 0 || len(objects[0].Data) != 3 {
		t.Errorf("%+v", objects)
	}
}

func TestLargestObjectFits(t *testing.T) {
	payload, err := injector.Encode(node, layerOf(t, node.Name, noise(1_500_000)), make([]byte, injector.MaxLoaderSize))
	require.NoError(t, err)
	for _, object := range payload.Objects() {
		size := 0
		for _, value := range object.Data {
			size += len(value)
		}
		if size > injector.MaxObjectSize {
			t.Errorf("object %d has %d bytes, a ConfigMap holds %d", object.Index, size, injector.MaxObjectSize)
		}
	}
	if left := injector.MaxObjectSize - injector.ChunkSize - injector.MaxLoaderSize; left < injector.MaxManifestSize {
		t.Errorf("%d bytes are left for the manifest", left)
	}
}

func TestLargestManifestFits(t *testing.T) {
	m := injector.Manifest{Program: injector.Program{Name: strings.Repeat("n", 32), Architecture: strings.Repeat("a", 32)}}
	m.LayerSize, m.ProgramOffset, m.ProgramSize = injector.MaxChunks*injector.MaxObjectSize, 65536, injector.MaxProgramSize
	for range injector.MaxChunks {
		m.Chunks = append(m.Chunks, injector.Chunk{Size: injector.MaxObjectSize})
	}
	if _, err := injector.ParseManifest(m.Bytes()); err != nil {
		t.Error(err)
	}
}

func TestEncodeRefuses(t *testing.T) {
	large := layerOf(t, node.Name, noise(8_000_000))
	archive := inflate(t, layerOf(t, node.Name, someText))
	archiveOf := func(headers ...*tar.Header) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, header := range headers {
			header.Size, header.ModTime = int64(len(someText)), time.Unix(0, 0)
			require.NoError(t, w.WriteHeader(header))
			require.Value(w.Write(someText))(t)
		}
		require.NoError(t, w.Close())
		return b.Bytes()
	}
	if !bytes.Equal(archiveOf(&tar.Header{Name: node.Name, Mode: 0o555}), archive) {
		t.Fatal("a valid archive would not be accepted either")
	}
	const begins = `the archive starts with "%s" of 17 bytes: must start with registry-node as BuildLayer writes it`
	for name, test := range map[string]struct {
		layer []byte
		want  string
	}{
		"an uncompressed program": {someText, "reading the gzip header: gzip: invalid header"},
		"a truncated layer":       {layerOf(t, node.Name, someText)[:100], "reading the archive's end: unexpected EOF"},
		"a wrong checksum": {append(slices.Clone(large[:len(large)-5]), 1, 2, 3, 4, 5),
			"inflating: gzip: invalid checksum"},
		"trailing data": {append(layerOf(t, node.Name, someText), 1, 2, 3), "3 bytes follow the gzip stream"},
		"reserved header flags": {[]byte("\x1f\x8b\x08\x20\x00\x00\x00\x00\x00\x00"),
			"reading the gzip header: gzip: invalid header"},
		"no archive": {compress(t, nil), "reading the archive's header: EOF"},
		"an archive that ends within its program": {compress(t, archive[:520]), "reading the program: EOF"},
		"an archive without an end":               {compress(t, archive[:1024]), "reading the archive's end: unexpected EOF"},
		"the layer of another program":            {layerOf(t, "registry", someText), fmt.Sprintf(begins, "registry")},
		"a file with another mode": {compress(t, archiveOf(&tar.Header{Name: node.Name, Mode: 0o755})),
			fmt.Sprintf(begins, node.Name)},
		"a file with an owner": {compress(t, archiveOf(&tar.Header{Name: node.Name, Mode: 0o555, Uid: 1000})),
			fmt.Sprintf(begins, node.Name)},
		"a file with an extended header": {compress(t, archiveOf(&tar.Header{Name: node.Name, Mode: 0o555,
			PAXRecords: map[string]string{"comment": "x"}})), "reading the archive's header: unexpected EOF"},
		"two files": {compress(t, archiveOf(&tar.Header{Name: node.Name, Mode: 0o555}, &tar.Header{Name: "other"})),
			"the archive contains more than the program"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := injector.Encode(node, test.layer, loader)
			wantError(t, err, "layer of registry-node for amd64: "+test.want)
		})
	}
	layer := layerOf(t, node.Name, someText)
	for name, test := range map[string]struct {
		program       injector.Program
		layer, loader []byte
		want          string
	}{
		"a program without a name": {injector.Program{Architecture: "amd64"}, layer, loader,
			`program name "": must be 1 to 32 of a-z, 0-9 and '-'`},
		"an architecture with a variant": {injector.Program{Name: "registry", Architecture: "arm/v7"}, layer, loader,
			`architecture "arm/v7": must be 1 to 32 of a-z, 0-9 and '-'`},
		"no loader": {node, layer, nil, "loader for amd64 has 0 bytes: must have 1 to 40384"},
		"a loader that is too large": {node, layer, make([]byte, 40385),
			"loader for amd64 has 40385 bytes: must have 1 to 40384"},
		"more chunks than the chart reads": {node, large, loader,
			fmt.Sprintf("layer of registry-node for amd64 has %d bytes: must have at most 5000000 (5 ConfigMaps)", len(large))},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := injector.Encode(test.program, test.layer, test.loader)
			wantError(t, err, test.want)
		})
	}
}

func TestEncodeInflated(t *testing.T) {
	layer, other := layerOf(t, node.Name, noise(3000)), layerOf(t, node.Name, noise(3001))
	content := require.Value(injector.Inflate(node.Name, layer))(t)
	encode := func(layer []byte, content injector.Inflated) string {
		t.Helper()
		return string(require.Value(injector.EncodeInflated(node, layer, []byte("loader"), content))(t).Manifest)
	}
	if got, want := encode(layer, content), encode(layer, injector.Inflated{}); got != want {
		t.Errorf("with its content, the manifest is\n%s\nwant\n%s", got, want)
	}
	if got, want := encode(other, content), encode(other, injector.Inflated{}); got != want {
		t.Errorf("with the content of another layer, the manifest is\n%s\nwant\n%s", got, want)
	}
	content.ProgramSize = 4
	if got := encode(layer, content); !strings.Contains(got, "\nprogram-size 4\n") {
		t.Errorf("the layer is inflated again:\n%s", got)
	}
	content.ProgramSHA256 = "ff"
	if _, err := injector.EncodeInflated(node, layer, []byte("loader"), content); err == nil {
		t.Error("an invalid checksum is accepted")
	}
}

func TestMaxChunks(t *testing.T) {
	for name, want := range map[string]int{"registry-node": 5, "registry": 16, "probe": 64} {
		if got := (injector.Program{Name: name}).MaxChunks(); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}
