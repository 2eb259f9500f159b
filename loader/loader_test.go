package loader_test

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// script returns a program of at least this size that prints its name and arguments. Noise follows
// its exit.
func script(name string, size int) []byte {
	program := []byte("#!/bin/sh\necho " + name + " \"$@\"\nexit 0\n")
	noise := make([]byte, max(0, size-len(program)))
	rand.NewChaCha8(sha256.Sum256([]byte(name))).Read(noise)
	return append(program, noise...)
}

// repack compresses a layer's archive again, padded by a gzip header to size bytes, or unpadded if
// size is 0.
func repack(t *testing.T, layer []byte, level, size int) []byte {
	t.Helper()
	archive := inflated(t, layer)
	pack := func(extra int) []byte {
		var b bytes.Buffer
		w, err := gzip.NewWriterLevel(&b, level)
		require.NoError(t, err)
		if extra > 0 {
			w.Extra = make([]byte, extra)
		}
		_, err = w.Write(archive)
		require.NoError(t, errors.Join(err, w.Close()))
		return b.Bytes()
	}
	packed := pack(0)
	if size == 0 {
		return packed
	}
	const extraLength = 2 // the size of the extra field itself
	packed = pack(size - len(packed) - extraLength)
	if len(packed) != size {
		t.Fatalf("the layer has %d bytes, wanted %d", len(packed), size)
	}
	return packed
}

func inflated(t *testing.T, layer []byte) []byte {
	t.Helper()
	return require.Value(io.ReadAll(require.Value(gzip.NewReader(bytes.NewReader(layer)))(t)))(t)
}

func layerOf(t *testing.T, program []byte) []byte {
	t.Helper()
	return require.Value(injector.BuildLayer("registry", program))(t)
}

func encode(t *testing.T, m machine, layer []byte) *injector.Payload {
	t.Helper()
	payload, err := injector.Encode(
		injector.Program{Name: "registry", Architecture: m.architecture}, layer, readFile(t, m.loader),
	)
	require.NoError(t, err)
	return payload
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, data, 0o644))
}

// replaceFile replaces a file atomically, as a kubelet does.
func replaceFile(t *testing.T, path string, data []byte) {
	t.Helper()
	writeFile(t, path+".new", data)
	require.NoError(t, os.Rename(path+".new", path))
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	return require.Value(os.ReadFile(path))(t)
}

// writeVolume writes the objects of a payload as plain files of one folder.
func writeVolume(t *testing.T, dir string, payload *injector.Payload) {
	t.Helper()
	for _, object := range payload.Objects() {
		for key, value := range object.Data {
			writeFile(t, filepath.Join(dir, key), value)
		}
	}
}

// A pod consists of the folders passed to the loader.
type pod struct{ payload, target string }

func newPod(t *testing.T, payload *injector.Payload) pod {
	t.Helper()
	p := pod{t.TempDir(), filepath.Join(t.TempDir(), "registry")}
	if payload != nil {
		writeVolume(t, p.payload, payload)
	}
	return p
}

func (p pod) chunk(index int) string { return filepath.Join(p.payload, injector.ChunkKey(index)) }
func (p pod) manifest() string       { return filepath.Join(p.payload, injector.ManifestKey) }

// written lists the target's folder.
func (p pod) written(t *testing.T) []string {
	t.Helper()
	entries := require.Value(os.ReadDir(filepath.Dir(p.target)))(t)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func wantResult(t *testing.T, got, want result) {
	t.Helper()
	if got != want {
		t.Fatalf("got %+v\nwant %+v", got, want)
	}
}

func TestExecutesTheProgram(t *testing.T) {
	payloads := map[string]struct {
		layer  []byte
		chunks int
	}{
		"of a few bytes":                     {layerOf(t, script("few", 0)), 1},
		"of a full block of the archive":     {layerOf(t, script("block", 512)), 1},
		"of a block and a byte":              {layerOf(t, script("block", 513)), 1},
		"of a window less one byte":          {layerOf(t, script("window", 131071-512)), 1},
		"of exactly a window":                {layerOf(t, script("window", 131072-512)), 1},
		"of exactly a chunk":                 {repack(t, layerOf(t, script("chunk", 990_000)), 9, 1_000_000), 1},
		"of a chunk and a byte":              {repack(t, layerOf(t, script("chunk", 990_000)), 9, 1_000_001), 2},
		"of exactly three chunks":            {repack(t, layerOf(t, script("three", 2_990_000)), 9, 3_000_000), 3},
		"of more than ten chunks":            {layerOf(t, script("many", 10_500_000)), 11},
		"compressed fast":                    {repack(t, layerOf(t, script("fast", 300_000)), flate.BestSpeed, 0), 1},
		"uncompressed":                       {repack(t, layerOf(t, script("stored", 2_500_000)), flate.NoCompression, 0), 3},
		"compressed with Huffman codes only": {repack(t, layerOf(t, script("huffman", 300_000)), flate.HuffmanOnly, 0), 1},
		"that compresses to a thousandth":    {layerOf(t, append(script("zeros", 0), make([]byte, 40_000_000)...)), 1},
	}
	onEachMachine(t, func(t *testing.T, m machine) {
		for name, test := range payloads {
			t.Run(name, func(t *testing.T) {
				payload := encode(t, m, test.layer)
				if len(payload.Chunks) != test.chunks {
					t.Fatalf("%d chunks, wanted %d", len(payload.Chunks), test.chunks)
				}
				p := newPod(t, payload)
				got := run(t, m.command(p.payload, p.target, "an argument", ""))
				if got.code != 0 || got.stderr != "" || !strings.HasSuffix(got.stdout, " an argument \n") {
					t.Fatalf("%+v", got)
				}
				if sum := sha256.Sum256(readFile(t, p.target)); sum != programSum(t, payload) {
					t.Errorf("the target's SHA-256 differs from the program's")
				}
				info := require.Value(os.Stat(p.target))(t)
				if info.Mode() != 0o555 {
					t.Errorf("the target's mode is %v", info.Mode())
				}
				if names := p.written(t); !slices.Equal(names, []string{"registry"}) {
					t.Errorf("written: %v", names)
				}
			})
		}
	})
}

func TestPassesArgumentsAndEnvironment(t *testing.T) {
	self := require.Value(os.Executable())(t)
	layer := layerOf(t, readFile(t, self))
	onEachMachine(t, func(t *testing.T, m machine) {
		payload := encode(t, m, layer)
		arguments := []string{"--one=1", "", "three words here", "-s", "-w"}
		for _, options := range [][]string{nil, {"-w", "1"}, {"-s"}, {"-s", "-w", "1"}, {"-w", "1", "-s"}} {
			p := newPod(t, payload)
			cmd := m.command(slices.Concat(options, []string{p.payload, p.target}, arguments)...)
			environment := []string{"EMPTY=", roleVariable + "=print", "ODD=a=b c"} // in order: emulators reorder it
			cmd.Env = append(environment, "ZARF_REGISTRY_PROGRAM=stale")
			wantResult(t, run(t, cmd), result{stdout: fmt.Sprintf(
				"%q\n%q\n", append([]string{p.target}, arguments...),
				append(environment, fmt.Sprintf("ZARF_REGISTRY_PROGRAM=%x", programSum(t, payload))),
			)})
		}
	})
}

// raw returns a payload that Encode would refuse: with any layer and manifest.
func raw(m machine, layer []byte, change func(*injector.Manifest)) *injector.Payload {
	manifest := injector.Manifest{
		Program:       injector.Program{Name: "registry", Architecture: m.architecture},
		LayerSize:     len(layer),
		LayerSHA256:   sha256.Sum256(layer),
		ProgramOffset: 512,
		ProgramSize:   1000,
	}
	payload := &injector.Payload{Loader: []byte("loader"), Chunks: slices.Collect(slices.Chunk(layer, injector.ChunkSize))}
	for _, chunk := range payload.Chunks {
		manifest.Chunks = append(manifest.Chunks, injector.Chunk{Size: len(chunk), SHA256: sha256.Sum256(chunk)})
	}
	if change != nil {
		change(&manifest)
	}
	payload.Manifest = manifest.Bytes()
	return payload
}

// Claim (amd64/an altered chunk; amd64/another program): The loader executes no altered program.
func TestFailures(t *testing.T) {
	const repair = ": re-run helm upgrade or zarf-registry prepare to repair the payload\n"
	const rebuild = ": re-run helm upgrade or zarf-registry prepare; if it stays, this payload was built wrong: use " +
		"another version\n"
	program := script("program", 2_500_000)
	layer := layerOf(t, program)
	archive := inflated(t, layer)
	compress := func(archive []byte) []byte { return gzipOf(deflate(t, 1, archive), archive) }
	onEachMachine(t, func(t *testing.T, m machine) {
		payload := encode(t, m, layer)
		chunk1 := payload.Chunks[1]
		edit := func(old, new string) func(*testing.T, pod) {
			return func(t *testing.T, p pod) {
				manifest := strings.Replace(string(payload.Manifest), old, new, 1)
				if manifest == string(payload.Manifest) {
					t.Fatalf("the manifest does not contain %q", old)
				}
				writeFile(t, p.manifest(), []byte(manifest))
			}
		}
		replaced := func(payload *injector.Payload) func(*testing.T, pod) {
			return func(t *testing.T, p pod) { writeVolume(t, p.payload, payload) }
		}
		other := "arm64"
		if m.architecture == other {
			other = "amd64"
		}
		altered := slices.Clone(chunk1)
		altered[500_000] ^= 1

		for name, test := range map[string]struct {
			spoil  func(t *testing.T, p pod)
			code   int
			stderr string // %s = the target
		}{
			"no manifest":      {func(t *testing.T, p pod) { os.Remove(p.manifest()) }, 102, "manifest: missing" + repair},
			"no folder at all": {func(t *testing.T, p pod) { os.RemoveAll(p.payload) }, 102, "manifest: missing" + repair},
			"a manifest that is a folder": {func(t *testing.T, p pod) {
				os.Remove(p.manifest())
				os.Mkdir(p.manifest(), 0o755)
			}, 102, "manifest: cannot be read: is a directory" + repair},
			"no first chunk":  {func(t *testing.T, p pod) { os.Remove(p.chunk(0)) }, 102, "chunk 00: missing" + repair},
			"no middle chunk": {func(t *testing.T, p pod) { os.Remove(p.chunk(1)) }, 102, "chunk 01: missing" + repair},
			"no last chunk":   {func(t *testing.T, p pod) { os.Remove(p.chunk(2)) }, 102, "chunk 02: missing" + repair},
			"a chunk behind a loop of links": {func(t *testing.T, p pod) {
				os.Remove(p.chunk(1))
				os.Symlink(p.chunk(1), p.chunk(1))
			}, 102, "chunk 01: cannot be read: too many symbolic links" + repair},

			"an empty manifest": {func(t *testing.T, p pod) { writeFile(t, p.manifest(), nil) }, 103,
				`manifest line 1: expected "zarf-registry payload 1"` + repair},
			"a manifest of a later version": {
				edit("payload 1", "payload 2"), 103, `manifest line 1: expected "zarf-registry payload 1"` + repair,
			},
			"a manifest that is too long": {func(t *testing.T, p pod) {
				writeFile(t, p.manifest(), append(slices.Clone(payload.Manifest), make([]byte, 8192-len(payload.Manifest)+1)...))
			}, 103, "manifest line 1: expected a manifest of at most 8192 bytes" + repair},
			"a manifest of the maximum size that is invalid": {func(t *testing.T, p pod) {
				writeFile(t, p.manifest(), append(slices.Clone(payload.Manifest), make([]byte, 8192-len(payload.Manifest))...))
			}, 103, "manifest line 13: expected the end, after the last chunk" + repair},
			"a name with an escaped line break": {
				edit("program registry", `program reg\nistry`), 103, "manifest line 2: expected the end of the line" + repair,
			},
			"too many chunks": {
				edit("chunks 3", "chunks 65"), 103, "manifest line 9: expected a number of chunks from 1 to 64" + repair,
			},
			"more chunks than announced": {
				edit("chunks 3", "chunks 4"), 103, `manifest line 13: expected "chunk NN BYTES HEX"` + repair,
			},
			"a chunk larger than a ConfigMap": {edit("chunk 00 1000000", "chunk 00 1048577"), 103,
				"manifest line 10: expected a chunk size from 1 to 1048576" + repair},
			"chunks that do not add up": {edit("chunk 00 1000000", "chunk 00 1000001"), 103,
				"manifest line 13: expected chunks that add up to the layer size" + repair},
			"a number that overflows": {edit("program-offset 512", "program-offset 18446744073709552128"), 103,
				"manifest line 6: expected a program offset from 0 to 65536" + repair},
			"a program that is too large": {edit("program-size 2500000", "program-size 268435457"), 103,
				"manifest line 7: expected a program size from 1 to 268435456" + repair},

			"an altered chunk": {func(t *testing.T, p pod) { writeFile(t, p.chunk(1), altered) }, 104,
				fmt.Sprintf("chunk 01: sha256 is %x, manifest says %x", sha256.Sum256(altered), sha256.Sum256(chunk1)) + repair},
			"an altered manifest": {edit(fmt.Sprintf("%x", sha256.Sum256(chunk1)), strings.Repeat("0", 64)), 104,
				fmt.Sprintf("chunk 01: sha256 is %x, manifest says %064x", sha256.Sum256(chunk1), 0) + repair},
			"a truncated chunk": {func(t *testing.T, p pod) { writeFile(t, p.chunk(1), chunk1[:999_999]) }, 104,
				"chunk 01: has 999999 bytes, manifest says 1000000" + repair},
			"an empty chunk": {func(t *testing.T, p pod) { writeFile(t, p.chunk(1), nil) }, 104,
				"chunk 01: has 0 bytes, manifest says 1000000" + repair},
			"a chunk that is too long": {
				func(t *testing.T, p pod) { writeFile(t, p.chunk(1), append(slices.Clone(chunk1), 0)) },
				104,
				"chunk 01: has more bytes than the 1000000 of the manifest" + repair,
			},
			"another chunk": {func(t *testing.T, p pod) { writeFile(t, p.chunk(1), payload.Chunks[0]) }, 104,
				fmt.Sprintf(
					"chunk 01: sha256 is %x, manifest says %x", sha256.Sum256(payload.Chunks[0]), sha256.Sum256(chunk1),
				) + repair},

			"a layer that is not gzip": {
				replaced(raw(m, archive[:3000], nil)), 105, "program registry: the gzip header is damaged" + rebuild,
			},
			"a truncated layer": {
				replaced(raw(m, layer[:1_500_000], func(m *injector.Manifest) { m.ProgramSize = len(program) })),
				105,
				"program registry: the gzip stream ends early" + rebuild,
			},
			"a layer with trailing data": {replaced(raw(m, append(compress(archive[:2048]), 0), nil)), 105,
				"program registry: something follows the gzip stream" + rebuild},
			"a layer with a wrong gzip checksum": {replaced(
				raw(m, gzipOf(deflate(t, 1, archive[:2048]), archive[:2047]), nil),
			), 105,
				"program registry: the gzip checksum or size is wrong" + rebuild},
			"a layer that is too short for its program": {replaced(raw(m, compress(archive[:1000]), nil)), 105,
				"program registry: has 488 bytes, manifest says 1000" + rebuild},
			"a layer that ends before its program": {replaced(raw(m, compress(archive[:100]), nil)), 105,
				"program registry: has 0 bytes, manifest says 1000" + rebuild},
			"a layer that inflates endlessly": {replaced(raw(m, compress(make([]byte, 50_000_000)), nil)), 105,
				"program registry: the gzip stream inflates to more than it may" + rebuild},
			"another program": {replaced(raw(m, compress(archive[:2048]), nil)), 105,
				fmt.Sprintf("program registry: sha256 is %x, manifest says %064x", sha256.Sum256(archive[512:1512]), 0) + rebuild},
			"a program that starts elsewhere": {edit("program-offset 512", "program-offset 513"), 105,
				fmt.Sprintf(
					"program registry: sha256 is %x, manifest says %x", sha256.Sum256(archive[513:2_500_513]), sha256.Sum256(program),
				) + rebuild},

			"a payload for another architecture": {edit("architecture "+m.architecture, "architecture "+other), 106,
				"manifest: the payload is for " + other + ", this node is " + m.architecture +
					": give the pod a nodeSelector kubernetes.io/arch that fits its payload\n"},
			"a payload for an architecture with the same prefix": {edit(
				"architecture "+m.architecture, "architecture "+m.architecture+"e",
			), 106,
				"manifest: the payload is for " + m.architecture + "e, this node is " + m.architecture +
					": give the pod a nodeSelector kubernetes.io/arch that fits its payload\n"},
			"no folder for the target": {func(t *testing.T, p pod) { os.Remove(filepath.Dir(p.target)) }, 108,
				"cannot create %s.tmp: no such file or directory: mount a writable emptyDir there\n"},
			"a file in place of the target's folder": {func(t *testing.T, p pod) {
				os.Remove(filepath.Dir(p.target))
				writeFile(t, filepath.Dir(p.target), nil)
			}, 108, "cannot create %s.tmp: not a directory: mount a writable emptyDir there\n"},
			"a folder in place of the target": {func(t *testing.T, p pod) { os.Mkdir(p.target, 0o755) }, 108,
				"cannot replace %s: is a directory: mount a writable emptyDir there\n"},
			"a folder in place of the temporary file": {func(t *testing.T, p pod) { os.Mkdir(p.target+".tmp", 0o755) }, 108,
				"cannot create %s.tmp: file exists: mount a writable emptyDir there\n"},
			"a program that cannot be executed": {replaced(raw(m, compress(archive[:2048]), func(manifest *injector.Manifest) {
				manifest.ProgramOffset = 513
				manifest.ProgramSHA256 = sha256.Sum256(archive[513:1513])
			})), 109,
				"cannot execute %s: exec format error: the volume must not be mounted noexec, and the program must be one for " +
					m.architecture + "\n"},
		} {
			t.Run(name, func(t *testing.T) {
				p := newPod(t, payload)
				test.spoil(t, p)
				want := "zarf-registry loader: " + strings.ReplaceAll(test.stderr, "%s", p.target)
				wantResult(t, run(t, m.command("-w", "0", p.payload, p.target)), result{code: test.code, stderr: want})
				if info, err := os.Lstat(p.target); err == nil && info.Mode().IsRegular() && test.code != 109 {
					t.Errorf("a target was left")
				}
				if info, err := os.Lstat(p.target + ".tmp"); err == nil && info.Mode().IsRegular() {
					t.Errorf("a temporary file was left")
				}
			})
		}
	})
}

func TestUsage(t *testing.T) {
	onEachMachine(t, func(t *testing.T, m machine) {
		const usage = ": usage: loader [-s] [-w SECONDS] [--mount=PATH]... [--env=NAME]... DIR TARGET " +
			"[ARG...]\n"
		long := strings.Repeat("x", 4092)
		for name, test := range map[string]struct {
			args   []string
			stderr string
		}{
			"no arguments":       {nil, "DIR and TARGET are needed"},
			"only a folder":      {[]string{"/payload"}, "DIR and TARGET are needed"},
			"only a wait time":   {[]string{"-w", "1"}, "DIR and TARGET are needed"},
			"no wait time":       {[]string{"-w"}, "-w takes a number of seconds from 0 to 3600"},
			"an empty wait time": {[]string{"-w", "", "/payload", "/program"}, "-w takes a number of seconds from 0 to 3600"},
			"a negative wait time": {
				[]string{"-w", "-1", "/payload", "/program"}, "-w takes a number of seconds from 0 to 3600",
			},
			"a wait time with a unit": {
				[]string{"-w", "20s", "/payload", "/program"}, "-w takes a number of seconds from 0 to 3600",
			},
			"a wait time that is too long": {
				[]string{"-w", "3601", "/payload", "/program"}, "-w takes a number of seconds from 0 to 3600",
			},
			"a wait time that overflows": {
				[]string{"-w", "4294967297", "/payload", "/program"}, "-w takes a number of seconds from 0 to 3600",
			},
			"only an option":                 {[]string{"-s"}, "DIR and TARGET are needed"},
			"too many mounts":                {slices.Repeat([]string{"--mount=/x"}, 257), "more than 256 mounts or variables"},
			"too many variables":             {slices.Repeat([]string{"--env=X"}, 257), "more than 256 mounts or variables"},
			"an unknown option":              {[]string{"--help", "/program"}, "unknown option"},
			"a folder name that is too long": {[]string{long, "/program"}, "DIR or TARGET is too long"},
			"a target name that is too long": {[]string{"/payload", long}, "DIR or TARGET is too long"},
		} {
			t.Run(name, func(t *testing.T) {
				wantResult(t, run(t, m.command(test.args...)), result{
					code: 101, stderr: "zarf-registry loader: " + test.stderr + usage,
				})
			})
		}
	})
}

func TestLineBreakInAPath(t *testing.T) {
	onEachMachine(t, func(t *testing.T, m machine) {
		p := newPod(t, encode(t, m, layerOf(t, script("program", 0))))
		got := run(t, m.command(p.payload, "/no\nsuch/folder"))
		wantResult(t, got, result{
			code: 108,
			stderr: "zarf-registry loader: cannot create /no?such/folder.tmp: no such file or directory: mount a writable " +
				"emptyDir there\n",
		})
	})
}

// writeGeneration writes the files of a volume like a kubelet: as links through ..data, which is
// switched atomically.
func writeGeneration(t *testing.T, dir, generation string, payload *injector.Payload) {
	t.Helper()
	data := filepath.Join(dir, generation)
	require.NoError(t, os.Mkdir(data, 0o755))
	writeVolume(t, data, payload)
	entries, err := os.ReadDir(data)
	require.NoError(t, err)
	err = errors.Join(
		os.Symlink(generation, filepath.Join(dir, "..data_tmp")),
		os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")),
	)
	for _, entry := range entries {
		link := filepath.Join(dir, entry.Name())
		if _, missing := os.Lstat(link); missing != nil {
			err = errors.Join(err, os.Symlink(filepath.Join("..data", entry.Name()), link))
		}
	}
	require.NoError(t, err)
}

func TestWaitsUntilThePayloadIsRepaired(t *testing.T) {
	t.Parallel()
	before, after := layerOf(t, script("before", 2_500_000)), layerOf(t, script("after", 3_500_000))
	onEachMachine(t, func(t *testing.T, m machine) {
		payload, next := encode(t, m, before), encode(t, m, after)
		altered := slices.Clone(payload.Chunks[1])
		altered[0] ^= 1
		for name, test := range map[string]struct {
			spoil  func(t *testing.T, p pod)
			repair func(t *testing.T, p pod)
			waits  string
			runs   string
		}{
			"a chunk comes late": {
				func(t *testing.T, p pod) { writeVolume(t, p.payload, payload); os.Remove(p.chunk(2)) },
				func(t *testing.T, p pod) { replaceFile(t, p.chunk(2), payload.Chunks[2]) },
				"chunk 02: missing", "before",
			},
			"the first chunk comes late": {
				func(t *testing.T, p pod) { writeVolume(t, p.payload, payload); os.Remove(p.chunk(0)) },
				func(t *testing.T, p pod) { replaceFile(t, p.chunk(0), payload.Chunks[0]) },
				"chunk 00: missing", "before",
			},
			"an altered chunk is repaired": {
				func(t *testing.T, p pod) { writeVolume(t, p.payload, payload); writeFile(t, p.chunk(1), altered) },
				func(t *testing.T, p pod) { replaceFile(t, p.chunk(1), payload.Chunks[1]) },
				"chunk 01: sha256 is ", "before",
			},
			"a truncated chunk is repaired": {
				func(t *testing.T, p pod) { writeVolume(t, p.payload, payload); writeFile(t, p.chunk(1), altered[:5]) },
				func(t *testing.T, p pod) { replaceFile(t, p.chunk(1), payload.Chunks[1]) },
				"chunk 01: has 5 bytes, ", "before",
			},
			"the manifest comes last": {
				func(t *testing.T, p pod) { writeVolume(t, p.payload, payload); os.Remove(p.manifest()) },
				func(t *testing.T, p pod) { replaceFile(t, p.manifest(), payload.Manifest) },
				"manifest: missing", "before",
			},
			"a damaged manifest is repaired": {
				func(t *testing.T, p pod) {
					writeVolume(t, p.payload, payload)
					writeFile(t, p.manifest(), []byte("zarf"))
				},
				func(t *testing.T, p pod) { replaceFile(t, p.manifest(), payload.Manifest) },
				"manifest line 1: expected ", "before",
			},
			"a mix of two payloads becomes the later one": {
				func(t *testing.T, p pod) {
					mix := *payload
					mix.Chunks = []([]byte){payload.Chunks[0], next.Chunks[1], next.Chunks[2]}
					writeGeneration(t, p.payload, "..first", &mix)
				},
				func(t *testing.T, p pod) { writeGeneration(t, p.payload, "..second", next) },
				"chunk 01: sha256 is ", "after",
			},
			"a mix of two payloads becomes the earlier one": {
				func(t *testing.T, p pod) {
					mix := *payload
					mix.Manifest = next.Manifest
					writeGeneration(t, p.payload, "..first", &mix)
				},
				func(t *testing.T, p pod) { writeGeneration(t, p.payload, "..second", payload) },
				"chunk 00: sha256 is ", "before",
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				p := newPod(t, nil)
				test.spoil(t, p)
				cmd := m.command("-w", "120", p.payload, p.target)
				var stdout strings.Builder
				cmd.Stdout = &stdout
				pipe := require.Value(cmd.StderrPipe())(t)
				require.NoError(t, cmd.Start())
				t.Cleanup(func() { cmd.Process.Kill() })
				stderr := bufio.NewReader(pipe)
				line, err := stderr.ReadString('\n')
				if err != nil || !strings.HasPrefix(line, "zarf-registry loader: "+test.waits) ||
					!strings.HasSuffix(line, ": waiting up to 120 s for it to come right\n") {
					t.Fatalf("%q, %v", line, err)
				}
				if names := p.written(t); slices.Contains(names, "registry") {
					t.Errorf("written while waiting: %v", names)
				}
				test.repair(t, p)
				rest, _ := io.ReadAll(stderr)
				if err := cmd.Wait(); err != nil || len(rest) > 0 || stdout.String() != test.runs+"\n" {
					t.Fatalf("%v, stdout %q, stderr %q", err, &stdout, rest)
				}
				if names := p.written(t); !slices.Equal(names, []string{"registry"}) {
					t.Errorf("written: %v", names)
				}
			})
		}
	})
}

func TestGivesUpWaiting(t *testing.T) {
	onEachMachine(t, func(t *testing.T, m machine) {
		p := newPod(t, encode(t, m, layerOf(t, script("program", 1_500_000))))
		require.NoError(t, os.Remove(p.chunk(1)))
		wantResult(t, run(t, m.command("-w", "1", p.payload, p.target)), result{code: 102, stderr: "" +
			"zarf-registry loader: chunk 01: missing: waiting up to 1 s for it to come right\n" +
			"zarf-registry loader: chunk 01: missing: re-run helm upgrade or zarf-registry prepare to repair the payload\n"})
		if names := p.written(t); len(names) > 0 {
			t.Errorf("written: %v", names)
		}
	})
}

func TestExistingTarget(t *testing.T) {
	program := script("program", 1_500_000)
	layer := layerOf(t, program)
	altered := slices.Clone(program)
	altered[len(altered)-1] ^= 1
	onEachMachine(t, func(t *testing.T, m machine) {
		payload := encode(t, m, layer)
		inode := func(path string) uint64 {
			return require.Value(os.Lstat(path))(t).Sys().(*syscall.Stat_t).Ino
		}
		for name, test := range map[string]struct {
			put  func(t *testing.T, p pod)
			kept bool
		}{
			"that is valid is executed without reading a chunk": {func(t *testing.T, p pod) {
				writeFile(t, p.target, program)
				os.Chmod(p.target, 0o555)
				os.Remove(p.chunk(0))
			}, true},
			"of the right size with other content is replaced": {func(t *testing.T, p pod) {
				writeFile(t, p.target, altered)
				os.Chmod(p.target, 0o555)
			}, false},
			"that is truncated is replaced": {func(t *testing.T, p pod) {
				writeFile(t, p.target, program[:1000])
				os.Chmod(p.target, 0o555)
			}, false},
			"with trailing data is replaced": {func(t *testing.T, p pod) {
				writeFile(t, p.target, append(slices.Clone(program), '\n'))
				os.Chmod(p.target, 0o555)
			}, false},
			"that is empty is replaced":           {func(t *testing.T, p pod) { writeFile(t, p.target, nil) }, false},
			"that is not executable is replaced":  {func(t *testing.T, p pod) { writeFile(t, p.target, program) }, false},
			"that is a dangling link is replaced": {func(t *testing.T, p pod) { os.Symlink("/no/such/file", p.target) }, false},
		} {
			t.Run(name, func(t *testing.T) {
				p := newPod(t, payload)
				test.put(t, p)
				before := inode(p.target)
				wantResult(t, run(t, m.command("-w", "0", p.payload, p.target, "x")), result{stdout: "program x\n"})
				if kept := inode(p.target) == before; kept != test.kept {
					t.Errorf("kept = %v", kept)
				}
				if got := readFile(t, p.target); !bytes.Equal(got, program) {
					t.Errorf("the target is not the program")
				}
			})
		}

		t.Run("that the loader wrote is executed again", func(t *testing.T) {
			p := newPod(t, payload)
			want := result{stdout: "program\n"}
			wantResult(t, run(t, m.command(p.payload, p.target)), want)
			before := inode(p.target)
			wantResult(t, run(t, m.command(p.payload, p.target)), want)
			if inode(p.target) != before {
				t.Errorf("it was written again")
			}
		})

		t.Run("that is a link is replaced, not followed", func(t *testing.T) {
			p := newPod(t, payload)
			victim := filepath.Join(t.TempDir(), "victim")
			writeFile(t, victim, []byte("precious"))
			require.NoError(t, errors.Join(os.Symlink(victim, p.target), os.Symlink(victim, p.target+".tmp")))
			wantResult(t, run(t, m.command("-w", "0", p.payload, p.target)), result{stdout: "program\n"})
			if got := readFile(t, victim); string(got) != "precious" {
				t.Errorf("the link's target was written to")
			}
			if names := p.written(t); !slices.Equal(names, []string{"registry"}) {
				t.Errorf("written: %v", names)
			}
		})
	})
}

func TestUnsuitableVolumes(t *testing.T) {
	onEachMachine(t, func(t *testing.T, m machine) {
		payload := encode(t, m, layerOf(t, script("program", 2_500_000)))
		for name, test := range map[string]struct {
			mount string
			want  result // %s = the target
		}{
			"full": {"-o size=1m", result{107, "left:\n",
				"zarf-registry loader: cannot write %s.tmp: no space left on device, 2500000 bytes are needed: raise the " +
					"volume's sizeLimit or free space on the node\n"}},
			"out of inodes": {"-o size=10m,nr_inodes=1", result{107, "left:\n",
				"zarf-registry loader: cannot create %s.tmp: no space left on device, 2500000 bytes are needed: raise the " +
					"volume's sizeLimit or free space on the node\n"}},
			"read-only": {"-o ro", result{108, "left:\n",
				"zarf-registry loader: cannot create %s.tmp: read-only file system: mount a writable emptyDir there\n"}},
			"noexec": {"-o noexec", result{109, "left: registry\n",
				"zarf-registry loader: cannot execute %s: permission denied: the volume must not be mounted noexec, and the " +
					"program must be one for " + m.architecture + "\n"}},
		} {
			t.Run(name, func(t *testing.T) {
				p := newPod(t, payload)
				dir := filepath.Dir(p.target)
				script := "mount -t tmpfs " + test.mount + " none '" + dir + "'\n" +
					`code=0; "$@" || code=$?; echo left: $(ls -A '` + dir + `'); exit $code`
				test.want.stderr = strings.ReplaceAll(test.want.stderr, "%s", p.target)
				wantResult(t, inMountNamespace(t, script, m.command("-w", "0", p.payload, p.target)), test.want)
			})
		}
	})
}

// TestRunsInARestrictedPod applies Kubernetes' "restricted" profile and the chart's settings except
// seccomp: not root, no capabilities, no new privileges, a read-only root file system.
func TestRunsInARestrictedPod(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs to change the user: run it as root")
	}
	need(t, "setpriv")
	onEachMachine(t, func(t *testing.T, m machine) {
		p := newPod(t, encode(t, m, layerOf(t, script("program", 2_500_000))))
		// Only root can enter the parents of a test's folders, so the volume is mounted at an accessible
		// path.
		script := `
			mount -t tmpfs -o mode=1777 none /mnt
			mkdir /mnt/payload /mnt/program
			chmod 1777 /mnt/program
			cp '` + p.payload + `'/* /mnt/payload
			mount -o remount,bind,ro /
			touch /root/x 2>/dev/null && exit 1
			exec setpriv --reuid=65532 --regid=65532 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs "$@"`
		cmd := m.command("/mnt/payload", "/mnt/program/registry", "x")
		wantResult(t, inMountNamespace(t, script, cmd), result{stdout: "program x\n"})
	})
}

// TestNeedsFewSystemCalls kills the loader at any system call that sys.h does not list: while it
// waits, fails and succeeds.
func TestNeedsFewSystemCalls(t *testing.T) {
	self := require.Value(os.Executable())(t)
	onThisMachine(t, func(t *testing.T, m machine) { // the filter would affect an emulator
		strictly := func(args ...string) *exec.Cmd {
			cmd := exec.Command(self, append([]string{m.loader}, args...)...)
			// A preemption between filter and execve would be a forbidden call.
			cmd.Env = []string{roleVariable + "=strict", "GODEBUG=asyncpreemptoff=1"}
			return cmd
		}
		// The probe only exits, so the filter suits it too.
		p := newPod(t, encode(t, m, layerOf(t, readFile(t, m.probe))))
		wantResult(t, run(t, strictly(p.payload, p.target)), result{})
		wantResult(t, run(t, strictly("-s", p.payload, p.target)), result{})
		wantResult(t, run(t, strictly("--mount=/absent", p.payload, p.target)), refused("/absent is not mounted there"))
		require.NoError(t, os.Remove(p.manifest()))
		wantResult(t, run(t, strictly("-w", "1", p.payload, p.target)), result{code: 102, stderr: "" +
			"zarf-registry loader: manifest: missing: waiting up to 1 s for it to come right\n" +
			"zarf-registry loader: manifest: missing: re-run helm upgrade or zarf-registry prepare to repair the payload\n"})

		// The filter must work: a shell needs more calls.
		if got := run(t, func() *exec.Cmd {
			cmd := exec.Command(self, "/bin/sh", "-c", "true")
			cmd.Env = []string{roleVariable + "=strict", "GODEBUG=asyncpreemptoff=1"}
			return cmd
		}()); got.code != -1 {
			t.Errorf("the filter did not kill a shell: %+v", got)
		}
	})
}

func TestProbeDoesNothing(t *testing.T) {
	onEachMachine(t, func(t *testing.T, m machine) {
		line := append(slices.Clone(m.emulator), m.probe)
		wantResult(t, run(t, exec.Command(line[0], line[1:]...)), result{})
	})
}

func TestProgramsAreSmallAndStatic(t *testing.T) {
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	onEachMachine(t, func(t *testing.T, m machine) {
		for path, limit := range map[string]int{m.loader: 18 << 10, m.probe: 1 << 10} {
			if size := len(readFile(t, path)); size > min(limit, injector.MaxLoaderSize) {
				t.Errorf("%s has %d bytes, more than %d", path, size, limit)
			}
			f := require.Value(elf.Open(path))(t)
			defer f.Close()
			if f.Machine != machines[m.architecture] || f.Type != elf.ET_EXEC {
				t.Errorf("%s: %v %v", path, f.Machine, f.Type)
			}
			for _, segment := range f.Progs {
				if segment.Type == elf.PT_INTERP || segment.Type == elf.PT_DYNAMIC {
					t.Errorf("%s is not static: it has a %v segment", path, segment.Type)
				}
				if segment.Flags&(elf.PF_W|elf.PF_X) == elf.PF_W|elf.PF_X {
					t.Errorf("%s: a %v segment is writable and executable", path, segment.Type)
				}
			}
		}
	})
}

func TestBuildsAreReproducible(t *testing.T) {
	onEachMachine(t, func(t *testing.T, m machine) {
		dir := t.TempDir()
		if output := runMake(t, dir, m.architecture); strings.Contains(output, "warning") {
			t.Errorf("the compiler warns:\n%s", output)
		}
		for _, path := range []string{m.loader, m.probe} {
			if !bytes.Equal(readFile(t, path), readFile(t, filepath.Join(dir, filepath.Base(path)))) {
				t.Errorf("two builds of %s differ", filepath.Base(path))
			}
		}
	})
}
