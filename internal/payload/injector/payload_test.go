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
	layer, err := injector.BuildLayer(name, program)
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

func encode(t *testing.T, program []byte) *injector.Payload {
	t.Helper()
	payload, err := injector.Encode(node, layerOf(t, node.Name, program), loader)
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

func compress(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func inflate(t *testing.T, layer []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
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
		header, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
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
		"a program too large": {
			"registry",
			make([]byte, injector.MaxProgramSize+1),
			"program registry has 268435457 bytes: must have 1 to 268435456",
		},
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
	if err != nil {
		t.Fatal(err)
	}
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
			if err := w.WriteHeader(header); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(someText); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	if !bytes.Equal(archiveOf(&tar.Header{Name: node.Name, Mode: 0o555}), archive) {
		t.Fatal("a valid archive would not be accepted either")
	}
	for name, test := range map[string]struct {
		program injector.Program
		layer   []byte
		loader  []byte
		want    string
	}{
		"a program without a name": {injector.Program{Architecture: "amd64"}, layerOf(t, node.Name, someText), loader,
			`program name "": must be 1 to 32 of a-z, 0-9 and '-'`},
		"an architecture with a variant": {injector.Program{
			Name: "registry", Architecture: "arm/v7",
		}, layerOf(t, node.Name, someText), loader,
			`architecture "arm/v7": must be 1 to 32 of a-z, 0-9 and '-'`},
		"no loader": {
			node, layerOf(t, node.Name, someText), nil, "loader for amd64 has 0 bytes: must have 1 to 40384",
		},
		"a loader that is too large": {
			node, layerOf(t, node.Name, someText), make([]byte, 40385), "loader for amd64 has 40385 bytes: must have 1 to 40384",
		},
		"an uncompressed program": {node, someText, loader,
			"layer of registry-node for amd64: reading the gzip header: gzip: invalid header"},
		"a truncated layer": {node, layerOf(t, node.Name, someText)[:100], loader,
			"layer of registry-node for amd64: reading the archive's end: unexpected EOF"},
		"a layer with a wrong checksum": {node, append(slices.Clone(large[:len(large)-5]), 1, 2, 3, 4, 5), loader,
			"layer of registry-node for amd64: inflating: gzip: invalid checksum"},
		"trailing data": {node, append(layerOf(t, node.Name, someText), 1, 2, 3), loader,
			"layer of registry-node for amd64: 3 bytes follow the gzip stream"},
		"a layer with reserved header flags": {node, []byte("\x1f\x8b\x08\x20\x00\x00\x00\x00\x00\x00"), loader,
			"layer of registry-node for amd64: reading the gzip header: gzip: invalid header"},
		"a layer that is not an archive": {node, compress(t, nil), loader,
			"layer of registry-node for amd64: reading the archive's header: EOF"},
		"an archive that ends within its program": {node, compress(t, archive[:520]), loader,
			"layer of registry-node for amd64: reading the program: EOF"},
		"an archive without an end": {node, compress(t, archive[:1024]), loader,
			"layer of registry-node for amd64: reading the archive's end: unexpected EOF"},
		"the layer of another program": {node, layerOf(t, "registry", someText), loader,
			"layer of registry-node for amd64: the archive starts with \"registry\" of 17 bytes: must start with " +
				"registry-node as BuildLayer writes it"},
		"a file with another mode": {node, compress(t, archiveOf(&tar.Header{Name: node.Name, Mode: 0o755})), loader,
			"layer of registry-node for amd64: the archive starts with \"registry-node\" of 17 bytes: must start with " +
				"registry-node as BuildLayer writes it"},
		"a file with an owner": {node, compress(t, archiveOf(&tar.Header{Name: node.Name, Mode: 0o555, Uid: 1000})), loader,
			"layer of registry-node for amd64: the archive starts with \"registry-node\" of 17 bytes: must start with " +
				"registry-node as BuildLayer writes it"},
		"a file with an extended header": {node, compress(
			t, archiveOf(&tar.Header{Name: node.Name, Mode: 0o555, PAXRecords: map[string]string{"comment": "x"}}),
		), loader,
			"layer of registry-node for amd64: reading the archive's header: unexpected EOF"},
		"two files": {node, compress(
			t, archiveOf(&tar.Header{Name: node.Name, Mode: 0o555}, &tar.Header{Name: "other"}),
		), loader,
			"layer of registry-node for amd64: the archive contains more than the program"},
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
	content, err := injector.Inflate(node.Name, layer)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(layer []byte, content injector.Inflated) string {
		t.Helper()
		payload, err := injector.EncodeInflated(node, layer, []byte("loader"), content)
		if err != nil {
			t.Fatal(err)
		}
		return string(payload.Manifest)
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

func TestVerify(t *testing.T) {
	program := noise(2_500_000)
	payload := encode(t, program)
	chunk1 := sha256.Sum256(payload.Chunks[1])
	altered := slices.Clone(payload.Chunks[1])
	altered[0] ^= 1
	at := func(objects []injector.Object, index int) map[string][]byte {
		for _, object := range objects {
			if object.Index == index {
				return object.Data
			}
		}
		t.Fatalf("no object %d", index)
		return nil
	}
	edit := func(old, new string) func([]injector.Object) []injector.Object {
		return func(objects []injector.Object) []injector.Object {
			data := at(objects, 0)
			changed := bytes.Replace(data["manifest"], []byte(old), []byte(new), 1)
			if bytes.Equal(changed, data["manifest"]) {
				t.Fatalf("the manifest does not contain %q", old)
			}
			data["manifest"] = changed
			return objects
		}
	}
	for name, test := range map[string]struct {
		change func([]injector.Object) []injector.Object
		want   string // "" = no error
	}{
		"a valid payload":  {func(o []injector.Object) []injector.Object { return o }, ""},
		"in another order": {func(o []injector.Object) []injector.Object { slices.Reverse(o); return o }, ""},
		"nothing":          {func(o []injector.Object) []injector.Object { return nil }, "manifest: missing"},
		"no object 00":     {func(o []injector.Object) []injector.Object { return o[:2] }, "manifest: missing"},
		"no loader": {
			func(o []injector.Object) []injector.Object { delete(at(o, 0), "loader"); return o }, "loader: missing",
		},
		"no object 01": {func(o []injector.Object) []injector.Object { return o[1:] }, "chunk 01: missing"},
		"an altered chunk": {func(o []injector.Object) []injector.Object { at(o, 1)["chunk-01"] = altered; return o },
			fmt.Sprintf("chunk 01: sha256 is %x, manifest says %x", sha256.Sum256(altered), chunk1)},
		"a truncated chunk": {func(o []injector.Object) []injector.Object { at(o, 1)["chunk-01"] = altered[:7]; return o },
			"chunk 01: has 7 bytes, manifest says 1000000"},
		"a damaged manifest": {edit("chunks 3", "chunks 03"),
			`manifest line 9: chunks "03": must be a number from 1 to 64 without leading zeros`},
		"another layer": {edit(
			fmt.Sprintf("layer-sha256 %x", sha256.Sum256(bytes.Join(payload.Chunks, nil))),
			"layer-sha256 "+strings.Repeat("0", 64),
		),
			fmt.Sprintf("layer: sha256 is %x, manifest says %064x", sha256.Sum256(bytes.Join(payload.Chunks, nil)), 0)},
		"another program": {edit("program-size 2500000", "program-size 2499999"),
			fmt.Sprintf(
				"program registry-node: sha256 is %x, manifest says %x", sha256.Sum256(program[:2_499_999]), sha256.Sum256(program),
			)},
		"a program larger than its layer": {edit("program-size 2500000", "program-size 2600000"),
			"layer: inflating program registry-node: unexpected EOF"},
		"a program much smaller than its layer": {edit("program-size 2500000", "program-size 2000000"),
			"layer: inflates to more than the limit"},
	} {
		t.Run(name, func(t *testing.T) {
			manifest, err := verify(test.change(payload.Objects()))
			if test.want != "" {
				wantError(t, err, test.want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if manifest.Program != node || manifest.ProgramSize != len(program) || len(manifest.Chunks) != 3 {
				t.Errorf("%+v", manifest)
			}
		})
	}
}

// verify verifies the objects of a payload, in any order, as the loader does: manifest, loader and every
// chunk exist, and the program matches the manifest. It returns the manifest.
func verify(objects []injector.Object) (*injector.Manifest, error) {
	data := make(map[int]map[string][]byte, len(objects))
	for _, object := range objects {
		data[object.Index] = object.Data
	}
	for _, key := range []string{injector.ManifestKey, injector.LoaderKey} {
		if len(data[0][key]) == 0 {
			return nil, fmt.Errorf("%s: missing", key)
		}
	}
	manifest, err := injector.ParseManifest(data[0][injector.ManifestKey])
	if err != nil {
		return nil, err
	}
	chunks := make([][]byte, len(manifest.Chunks))
	for i := range chunks {
		chunk, found := data[i][injector.ChunkKey(i)]
		if !found {
			return nil, fmt.Errorf("chunk %02d: missing", i)
		}
		chunks[i] = chunk
	}
	if _, err := manifest.Decode(chunks); err != nil {
		return nil, err
	}
	return manifest, nil
}

func TestDecode(t *testing.T) {
	for _, size := range []int{1, 512, 999_999, 3_000_000} {
		program := noise(size)
		payload := encode(t, program)
		manifest, err := injector.ParseManifest(payload.Manifest)
		if err != nil {
			t.Fatal(err)
		}
		got, err := manifest.Decode(payload.Chunks)
		if err != nil || !bytes.Equal(got, program) {
			t.Errorf("%d bytes: got %d, %v", size, len(got), err)
		}
		_, err = manifest.Decode(payload.Chunks[1:])
		wantError(t, err, fmt.Sprintf("%d chunks: manifest says %d", len(payload.Chunks)-1, len(payload.Chunks)))
	}
}
