package loader_test

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// The fuzz targets compare the loader's C code with Go's. Go's fuzzer is guided by the coverage of
// the Go code; it does not measure that of the C code.

// outputLimit is OUTPUT_LIMIT in fuzz.c.
const outputLimit = 8 << 20

// A peer is a running loader-fuzz, the C code under test.
type peer struct {
	mu     sync.Mutex
	stdin  io.Writer
	stdout *bufio.Reader
	stderr *bytes.Buffer
	wait   func() error
}

func startPeer(tb testing.TB) *peer {
	tb.Helper()
	cmd := exec.Command(buildFuzz(tb))
	// Leak detection is not needed here and requires ptrace, which some sandboxes deny.
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0")
	stderr := &bytes.Buffer{}
	cmd.Stderr = stderr
	stdin := require.Value(cmd.StdinPipe())(tb)
	stdout := require.Value(cmd.StdoutPipe())(tb)
	require.NoError(tb, cmd.Start())
	p := &peer{stdin: stdin, stdout: bufio.NewReader(stdout), stderr: stderr, wait: cmd.Wait}
	tb.Cleanup(func() {
		stdin.Close()
		p.wait()
	})
	return p
}

// request sends a request and returns whether the C code accepts the data, and its output.
func (p *peer) request(t *testing.T, kind byte, pieceSize int, data []byte) (accepted bool, response []byte) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	request := []byte{kind}
	request = binary.LittleEndian.AppendUint32(request, uint32(pieceSize))
	request = binary.LittleEndian.AppendUint32(request, uint32(len(data)))
	_, err := p.stdin.Write(append(request, data...))
	var header [5]byte
	if err == nil {
		_, err = io.ReadFull(p.stdout, header[:])
	}
	if err == nil {
		response = make([]byte, binary.LittleEndian.Uint32(header[1:]))
		_, err = io.ReadFull(p.stdout, response)
	}
	if err != nil {
		t.Fatalf("loader-fuzz died: %v, %v\n%s", err, p.wait(), p.stderr)
	}
	return header[0] == 1, response
}

// inflateGo is the reference for the loader's gunzip: Go's, with the additional rules of inflate.h.
func inflateGo(stream []byte) ([]byte, error) {
	if len(stream) > 3 && stream[3]&0xe0 != 0 {
		return nil, errors.New("reserved header flags")
	}
	rest := bytes.NewReader(stream)
	z, err := gzip.NewReader(rest)
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	out, err := io.ReadAll(io.LimitReader(z, outputLimit+1))
	switch {
	case err != nil:
		return nil, err
	case len(out) > outputLimit:
		return nil, errors.New("inflates to more than the limit")
	case rest.Len() > 0:
		return nil, errors.New("something follows")
	}
	return out, nil
}

func compareInflate(t *testing.T, p *peer, stream []byte, pieceSize int) {
	t.Helper()
	want, err := inflateGo(stream)
	accepted, got := p.request(t, 'i', pieceSize, stream)
	switch {
	case accepted && err != nil:
		t.Fatalf("C accepts a stream that Go rejects: %v", err)
	case !accepted && err == nil:
		t.Fatalf("C rejects a stream that Go accepts: %s", got)
	case accepted && !bytes.Equal(got, want):
		t.Fatalf("C inflates to %d bytes, Go to %d, and they differ", len(got), len(want))
	}
}

// gzipOf wraps a deflate stream that inflates to output.
func gzipOf(deflated, output []byte) []byte {
	stream := append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}, deflated...)
	stream = binary.LittleEndian.AppendUint32(stream, crc32.ChecksumIEEE(output))
	return binary.LittleEndian.AppendUint32(stream, uint32(len(output)))
}

// deflate compresses at a level of compress/flate.
func deflate(tb testing.TB, level int, data []byte) []byte {
	tb.Helper()
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, level)
	require.NoError(tb, err)
	_, err = w.Write(data)
	require.NoError(tb, errors.Join(err, w.Close()))
	return b.Bytes()
}

// sampleData returns content for each mode of deflate, at most a few hundred KiB each.
func sampleData() map[string][]byte {
	random := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 300_000)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	text := bytes.Repeat([]byte("The quick brown fox jumps over the lazy dog. "), 4000)
	for i := 0; i < len(text); i += 1 + random.IntN(200) {
		text[i] = byte(random.Uint32())
	}
	// Each byte is about half as frequent as the previous one, which leads to codes of 15 bits.
	var skewed []byte
	for i := range 18 {
		skewed = append(skewed, bytes.Repeat([]byte{byte(i * 7)}, 1<<(17-i))...)
	}
	random.Shuffle(len(skewed), func(i, j int) { skewed[i], skewed[j] = skewed[j], skewed[i] })
	// The same 32,768 bytes repeatedly: matches at the maximum distance.
	far := bytes.Repeat(noise[:32768], 9)
	return map[string][]byte{
		"nothing":               nil,
		"one byte":              {'x'},
		"one byte often":        bytes.Repeat([]byte{'x'}, 400_000),
		"noise":                 noise,
		"text":                  text,
		"a code of 15 bits":     skewed,
		"the longest distance":  far,
		"zeros, then noise":     slices.Concat(make([]byte, 140_000), noise),
		"short distances":       slices.Concat(bytes.Repeat([]byte("ab"), 70_000), bytes.Repeat([]byte("abcdefg"), 20_000)),
		"just a window":         noise[:131072],
		"a window and one byte": noise[:131073],
	}
}

var levels = []int{flate.NoCompression, flate.BestSpeed, 6, flate.BestCompression, flate.HuffmanOnly}

func TestInflatesGoStreams(t *testing.T) {
	p := startPeer(t)
	for name, data := range sampleData() {
		t.Run(name, func(t *testing.T) {
			for _, level := range levels {
				stream := gzipOf(deflate(t, level, data), data)
				for _, pieceSize := range []int{1, 8, 1000, len(stream)} {
					accepted, got := p.request(t, 'i', pieceSize, stream)
					if !accepted || !bytes.Equal(got, data) {
						t.Fatalf(
							"level %d in pieces of %d: accepted = %v, %d bytes, want %d", level, pieceSize, accepted, len(got), len(data),
						)
					}
				}
			}
		})
	}
}

func TestRejectsTruncatedStreams(t *testing.T) {
	p := startPeer(t)
	data := sampleData()["text"][:3000]
	for _, level := range levels {
		stream := gzipOf(deflate(t, level, data), data)
		for size := range stream {
			if accepted, _ := p.request(t, 'i', 100, stream[:size]); accepted {
				t.Fatalf("level %d: %d of %d bytes are accepted", level, size, len(stream))
			}
		}
	}
}

func TestGzipHeaders(t *testing.T) {
	p := startPeer(t)
	data := []byte("data")
	deflated := deflate(t, 6, data)
	tail := gzipOf(deflated, data)[10:]
	withHeaderSum := func(header []byte) []byte {
		return binary.LittleEndian.AppendUint16(header, uint16(crc32.ChecksumIEEE(header)))
	}
	header := func(flags byte, fields ...string) []byte {
		h := []byte{0x1f, 0x8b, 8, flags, 1, 2, 3, 4, 5, 6}
		for _, field := range fields {
			h = append(h, field...)
		}
		return h
	}
	long := string(bytes.Repeat([]byte{'n'}, 511))
	for name, test := range map[string]struct {
		header []byte
		accept bool
	}{
		"without optional fields": {header(0), true},
		"text flag":               {header(1), true},
		"extra field":             {header(4, "\x03\x00abc"), true},
		"empty extra field":       {header(4, "\x00\x00"), true},
		"name":                    {header(8, "name\x00"), true},
		"comment":                 {header(16, "comment\x00"), true},
		"name of 511 bytes":       {header(8, long+"\x00"), true},
		"name of 512 bytes":       {header(8, long+"n\x00"), false},
		"all fields and the header's checksum": {
			withHeaderSum(header(2|4|8|16, "\x01\x00x", "name\x00", "comment\x00")), true,
		},
		"wrong checksum of the header": {header(2, "\x00\x00"), false},
		"reserved flag":                {header(0x20), false},
		"another method":               {[]byte{0x1f, 0x8b, 7, 0, 0, 0, 0, 0, 0, 0}, false},
		"not gzip":                     {[]byte("PK\x03\x04......"), false},
	} {
		t.Run(name, func(t *testing.T) {
			stream := append(test.header, tail...)
			compareInflate(t, p, stream, 5)
			if accepted, response := p.request(t, 'i', 1, stream); accepted != test.accept {
				t.Errorf("accepted = %v: %s", accepted, response)
			}
		})
	}
}

func TestGzipTrailers(t *testing.T) {
	p := startPeer(t)
	data := sampleData()["text"]
	stream := gzipOf(deflate(t, 6, data), data)
	for at := len(stream) - 8; at < len(stream); at++ {
		changed := slices.Clone(stream)
		changed[at] ^= 1
		if accepted, _ := p.request(t, 'i', 100, changed); accepted {
			t.Errorf("byte %d of the trailer is not verified", at-len(stream)+8)
		}
	}
	for _, more := range []byte{0, 1, 0x1f} {
		if accepted, _ := p.request(t, 'i', 100, append(slices.Clone(stream), more)); accepted {
			t.Errorf("trailing data is accepted")
		}
	}
}

func TestSHA256(t *testing.T) {
	p := startPeer(t)
	data := sampleData()["noise"]
	sizes := []int{1000, 65535, 65536, 300_000}
	for size := range 200 {
		sizes = append(sizes, size)
	}
	for _, size := range sizes {
		for _, pieceSize := range []int{0, 1, 63, 64, 65, 1000} {
			want := sha256.Sum256(data[:size])
			if _, got := p.request(t, 's', pieceSize, data[:size]); !bytes.Equal(got, want[:]) {
				t.Fatalf("%d bytes in pieces of %d: %x, want %x", size, pieceSize, got, want)
			}
		}
	}
}

// FuzzInflate passes deflate streams to both sides. If Go can inflate the stream, it gets a
// matching gzip header and trailer, so that mutations reach the code behind the checksum.
func FuzzInflate(f *testing.F) {
	p := startPeer(f)
	for _, data := range sampleData() {
		for _, level := range levels {
			f.Add(deflate(f, level, data[:min(len(data), 2000)]), uint16(100))
		}
	}
	f.Fuzz(func(t *testing.T, deflated []byte, pieceSize uint16) {
		rest := bytes.NewReader(deflated)
		output, err := io.ReadAll(io.LimitReader(flate.NewReader(rest), outputLimit+1))
		if err != nil || len(output) > outputLimit {
			compareInflate(t, p, gzipOf(deflated, nil), int(pieceSize))
			return
		}
		compareInflate(t, p, gzipOf(deflated[:len(deflated)-rest.Len()], output), int(pieceSize))
	})
}

// FuzzGzip passes complete gzip streams to both sides.
func FuzzGzip(f *testing.F) {
	p := startPeer(f)
	for _, data := range sampleData() {
		data = data[:min(len(data), 300)]
		f.Add(gzipOf(deflate(f, 6, data), data), uint16(100))
	}
	f.Fuzz(func(t *testing.T, stream []byte, pieceSize uint16) { compareInflate(t, p, stream, int(pieceSize)) })
}

// FuzzManifest compares the two parsers: they accept the same manifests and encode them unchanged.
func FuzzManifest(f *testing.F) {
	p := startPeer(f)
	for _, chunks := range []int{1, 2, 3, 11, 64} {
		m := injector.Manifest{
			Program: injector.Program{Name: "registry-node", Architecture: "amd64"}, ProgramOffset: 512, ProgramSize: 5_701_632,
		}
		for i := range chunks {
			m.Chunks = append(m.Chunks, injector.Chunk{Size: injector.ChunkSize, SHA256: sha256.Sum256([]byte{byte(i)})})
			m.LayerSize += injector.ChunkSize
		}
		f.Add(m.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		accepted, response := p.request(t, 'm', 0, data)
		m, err := injector.ParseManifest(data)
		switch {
		case accepted && err != nil:
			t.Fatalf("C accepts a manifest that Go rejects: %v", err)
		case !accepted && err == nil:
			t.Fatalf("C rejects a manifest that Go accepts: %s", response)
		case accepted && !bytes.Equal(response, data):
			t.Fatalf("C reads it as\n%s", response)
		case accepted && !bytes.Equal(m.Bytes(), data):
			t.Fatalf("Go reads it as\n%s", m.Bytes())
		}
	})
}

// TestManifestParsersAgree damages each byte of a manifest in several ways.
func TestManifestParsersAgree(t *testing.T) {
	p := startPeer(t)
	valid := validManifest()
	check := func(data []byte) {
		t.Helper()
		accepted, response := p.request(t, 'm', 0, data)
		if _, err := injector.ParseManifest(data); accepted != (err == nil) {
			t.Fatalf("C: %v %s\nGo: %v\n%q", accepted, response, err, data)
		}
	}
	check(valid)
	for i := range valid {
		check(valid[:i])
		check(slices.Delete(slices.Clone(valid), i, i+1))
		for _, b := range []byte("0129afgAZ- \n\r\t\x00\xff") {
			changed := slices.Clone(valid)
			changed[i] = b
			check(changed)
			check(slices.Insert(slices.Clone(valid), i, b))
		}
	}
	for _, end := range []string{"\n", " ", "x", "chunk 02 1 " + fmt.Sprintf("%064x", 0) + "\n"} {
		check(append(slices.Clone(valid), end...))
	}
}

func validManifest() []byte {
	m := injector.Manifest{
		Program:       injector.Program{Name: "registry-node", Architecture: "amd64"},
		LayerSize:     1_000_010,
		ProgramOffset: 512,
		ProgramSize:   10_000,
	}
	m.Chunks = []injector.Chunk{{Size: injector.ChunkSize}, {Size: 10}}
	return m.Bytes()
}
