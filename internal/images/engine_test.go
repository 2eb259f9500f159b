package images

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/client"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/dockerdaemon"
	"github.com/zarf-dev/zarf-registry/internal/dockerdaemon/dockerdaemontest"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// newStore returns a temporary store and its otherwise empty parent directory.
func newStore(t *testing.T) (store *blobstore.Store, parent string) {
	t.Helper()
	parent = t.TempDir()
	store, err := blobstore.OpenTemp(parent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return store, parent
}

// diskFiles returns the sizes of the files in a directory, by path.
func diskFiles(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	found := map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		found[strings.TrimPrefix(path, dir+"/")] = info.Size()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// checkNothingPartial verifies that a store has only complete blobs.
func checkNothingPartial(t *testing.T, store *blobstore.Store) {
	t.Helper()
	for name := range diskFiles(t, store.Dir()) {
		if strings.HasPrefix(name, "ingest/") {
			t.Errorf("the store has %s", name)
		}
	}
	report, err := store.Verify(t.Context(), nil)
	if err != nil || len(report.Corrupt) > 0 {
		t.Errorf("the store's blobs: %+v, %v", report, err)
	}
}

func layer(seed uint64, size int64) dockerdaemontest.Layer {
	return dockerdaemontest.Layer{Seed: seed, Size: size}
}

// streamed describes the expected content of an image in a stream.
type streamed struct {
	Reference string
	Layers    []digest.Digest // of all its platforms
	Omitted   []string        // architectures
}

// describeStreamed reads all blobs of a source and describes its images.
func describeStreamed(t *testing.T, src *Source) []streamed {
	t.Helper()
	var found []streamed
	for _, image := range src.Images() {
		s := streamed{Reference: image.Reference}
		for _, p := range image.Omitted {
			s.Omitted = append(s.Omitted, p.Architecture)
		}
		nodes, err := graph(t.Context(), src, image.Descriptor)
		if err != nil {
			t.Fatal(err)
		}
		if totalSize(nodes) != image.Size || image.Size == 0 {
			t.Errorf("%s has %d bytes, but its size is %d", image.name(), totalSize(nodes), image.Size)
		}
		for _, node := range nodes {
			raw := fetchAll(t, src, node)
			var manifest ocispec.Manifest
			if !oci.IsManifest(node.MediaType) {
				continue
			}
			if err := json.Unmarshal(raw, &manifest); err != nil {
				t.Fatal(err)
			}
			if manifest.Config.MediaType != ocispec.MediaTypeImageConfig {
				t.Errorf("the configuration is a %s", manifest.Config.MediaType)
			}
			for _, l := range manifest.Layers {
				if !oci.IsNonDistributable(l.MediaType) && strings.HasPrefix(l.MediaType, "application/vnd.oci.image.layer") {
					s.Layers = append(s.Layers, l.Digest)
				}
			}
		}
		found = append(found, s)
	}
	return found
}

func TestOpenStreamReadsEngineArchives(t *testing.T) {
	base, app, tool, empty := layer(1, 70_000), layer(2, 3000), layer(3, 512), layer(0, 0)
	one := dockerdaemontest.Image{Names: []string{"one:1", "ghcr.io/a/one:latest"},
		Layers: []dockerdaemontest.Layer{base, app, empty}}
	two := dockerdaemontest.Image{Names: []string{"two:2"}, Layers: []dockerdaemontest.Layer{base, tool, empty, tool}}
	nameless := dockerdaemontest.Image{Layers: []dockerdaemontest.Layer{tool, base}}
	foreign := dockerdaemontest.Image{Names: []string{"windows:1"}, Layers: []dockerdaemontest.Layer{{Seed: 9, Size: 900,
		Foreign: true}, app}}
	digests := func(layers ...dockerdaemontest.Layer) (found []digest.Digest) {
		for _, l := range layers {
			found = append(found, l.Digest())
		}
		return found
	}
	packed := func(layers ...dockerdaemontest.Layer) (found []digest.Digest) {
		for _, l := range layers {
			found = append(found, digest.FromBytes(dockerdaemontest.Gzip(l)))
		}
		return found
	}
	const hub = "docker.io/library/"
	full := []streamed{
		{Reference: hub + "one:1", Layers: digests(base, app, empty)},
		{Reference: "ghcr.io/a/one:latest", Layers: digests(base, app, empty)},
		{Reference: hub + "two:2", Layers: digests(base, tool, empty, tool)},
	}
	short := slices.Clone(full)
	for i := range short {
		short[i].Reference = strings.TrimPrefix(short[i].Reference, hub)
	}

	for name, c := range map[string]struct {
		files dockerdaemontest.Files
		kind  string
		want  []streamed
	}{
		"an engine before 25, images that share layers": {dockerdaemontest.Legacy(one, two), "docker archive", short},
		"an engine before 25, an image by its ID": {dockerdaemontest.Legacy(nameless), "docker archive",
			[]streamed{{Layers: digests(tool, base)}}},
		"an engine since 25, images that share layers": {
			dockerdaemontest.Modern(one, two), "OCI archive", full,
		},
		"an engine since 25, an image by its ID": {
			dockerdaemontest.Modern(nameless), "OCI archive", []streamed{{Layers: digests(tool, base)}},
		},
		"an engine since 25, a foreign layer": {
			dockerdaemontest.Modern(foreign), "OCI archive", []streamed{{Reference: hub + "windows:1", Layers: digests(app)}},
		},
		"containerd's store, one platform of several": {
			dockerdaemontest.Containerd(dockerdaemontest.Index{Name: "one:1", Images: []dockerdaemontest.Image{one},
				Absent: []string{"arm64", "s390x"}, Attested: true}),
			"OCI archive", []streamed{{Reference: hub + "one:1", Layers: packed(base, app, empty),
				Omitted: []string{"arm64", "s390x"}}},
		},
		"containerd's store, one platform of several, and the manifest alone of another": {
			dockerdaemontest.Containerd(dockerdaemontest.Index{Name: "one:1", Images: []dockerdaemontest.Image{one},
				Absent: []string{"s390x"}, Bare: []string{"arm64"}}),
			"OCI archive", []streamed{{Reference: hub + "one:1", Layers: packed(base, app, empty),
				Omitted: []string{"s390x", "arm64"}}},
		},
		"containerd's store, all platforms": {
			dockerdaemontest.Containerd(dockerdaemontest.Index{Name: "one:1", Attested: true, Images: []dockerdaemontest.Image{
				one, {Architecture: "arm64", Layers: []dockerdaemontest.Layer{layer(4, 999)}},
			}}),
			"OCI archive", []streamed{{Reference: hub + "one:1", Layers: packed(base, app, empty, layer(4, 999))}},
		},
		"containerd's store, several images, one by its ID, a foreign layer": {
			dockerdaemontest.Containerd(
				dockerdaemontest.Index{Name: "one:1", Images: []dockerdaemontest.Image{one}},
				dockerdaemontest.Index{Images: []dockerdaemontest.Image{two}},
				dockerdaemontest.Index{Name: "windows:1", Images: []dockerdaemontest.Image{foreign}},
			),
			"OCI archive", []streamed{
				{Reference: hub + "one:1", Layers: packed(base, app, empty)},
				{Layers: packed(base, tool, empty, tool)},
				{Reference: hub + "windows:1", Layers: packed(app)},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			store, _ := newStore(t)
			src, err := OpenStream(t.Context(), bytes.NewReader(c.files.Bytes(t)), store)
			if err != nil {
				t.Fatal(err)
			}
			if src.Kind() != c.kind {
				t.Errorf("recognized as an %s, want %s", src.Kind(), c.kind)
			}
			if diff := cmp.Diff(c.want, describeStreamed(t, src)); diff != "" {
				t.Error(diff)
			}
			if err := src.Close(); err != nil {
				t.Error(err)
			}
			checkNothingPartial(t, store)
		})
	}
}

func TestOpenStreamIgnoresDataAfterTheTar(t *testing.T) {
	image := dockerdaemontest.Image{Names: []string{"one:1"}, Layers: []dockerdaemontest.Layer{layer(1, 70_000),
		layer(0, 0)}}
	for kind, files := range map[string]dockerdaemontest.Files{
		"docker archive": dockerdaemontest.Legacy(image),
		"OCI archive":    dockerdaemontest.Modern(image),
	} {
		raw := files.Bytes(t)
		for how, stream := range map[string][]byte{
			"compressed":              gzipped(t, raw),
			"padded":                  append(slices.Clone(raw), make([]byte, 10_000)...),
			"padded and compressed":   gzipped(t, append(slices.Clone(raw), make([]byte, 10_000)...)),
			"with text after it":      append(slices.Clone(raw), "text"...),
			"with half an end marker": raw[:len(raw)-tarBlock],
		} {
			t.Run(kind+", "+how, func(t *testing.T) {
				store, _ := newStore(t)
				src, err := OpenStream(t.Context(), bytes.NewReader(stream), store)
				if err != nil {
					t.Fatal(err)
				}
				if got := describeStreamed(t, src); src.Kind() != kind || len(got) != 1 || len(got[0].Layers) != 2 {
					t.Errorf("%s: %+v", src.Kind(), got)
				}
			})
		}
	}
}

// with returns the entries and others.
func with(files dockerdaemontest.Files, more ...dockerdaemontest.File) dockerdaemontest.Files {
	files = maps.Clone(files)
	for _, f := range more {
		files[f.Name] = f
	}
	return files
}

// saveAndOpen saves images from the engine in the environment and opens them.
func saveAndOpen(ctx context.Context, t *testing.T, store *blobstore.Store, refs ...string) (src *Source, err error) {
	t.Helper()
	engine, err := dockerdaemon.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer engine.Close()
	err = engine.Save(ctx, refs, func(r io.Reader) error {
		src, err = OpenStream(ctx, r, store)
		return err
	})
	return src, err
}

func TestImagesFromAnEngine(t *testing.T) {
	one := dockerdaemontest.Image{Names: []string{"one:1"}, Layers: []dockerdaemontest.Layer{layer(1, 400_000),
		layer(2, 3000)}}
	two := dockerdaemontest.Image{Names: []string{"two:2"}, Layers: []dockerdaemontest.Layer{layer(1, 400_000),
		layer(3, 3000)}}
	for name, files := range map[string]dockerdaemontest.Files{
		"before 25": dockerdaemontest.Legacy(one, two),
		"since 25":  dockerdaemontest.Modern(one, two),
		"containerd's": dockerdaemontest.Containerd(dockerdaemontest.Index{Name: "one:1",
			Images: []dockerdaemontest.Image{one}}, dockerdaemontest.Index{Name: "two:2",
			Images: []dockerdaemontest.Image{two}}),
	} {
		raw := files.Bytes(t)
		start := func(t *testing.T, stream func(w io.Writer, names []string) error) {
			engine := &dockerdaemontest.Engine{Images: map[string]string{"one:1": string(one.ID()), "two:2": string(two.ID())},
				Stream: stream}
			engine.ListenUnix(t)
		}
		fails := func(t *testing.T, want string) {
			t.Helper()
			store, _ := newStore(t)
			_, err := saveAndOpen(t.Context(), t, store, "one:1", "two:2")
			if err == nil || !strings.HasPrefix(err.Error(), "docker engine at unix://") ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("error %v\nwant  %s", err, want)
			}
			checkNothingPartial(t, store)
		}
		t.Run(name, func(t *testing.T) {
			t.Run("all requested images", func(t *testing.T) {
				start(t, func(w io.Writer, names []string) error {
					if diff := cmp.Diff([]string{"one:1", "two:2"}, names); diff != "" {
						t.Error(diff)
					}
					_, err := w.Write(raw)
					return err
				})
				store, _ := newStore(t)
				src, err := saveAndOpen(t.Context(), t, store, "docker.io/library/one:1", "two:2")
				if err != nil {
					t.Fatal(err)
				}
				if got := describeStreamed(t, src); len(got) != 2 || len(got[0].Layers) != 2 || len(got[1].Layers) != 2 {
					t.Errorf("images: %+v", got)
				}
			})
			t.Run("an engine that fails in the middle of a file", func(t *testing.T) {
				start(t, func(w io.Writer, _ []string) error {
					w.Write(raw[:100_000])
					return errors.New(`open "/var/lib/docker": no such file`)
				})
				fails(t, `save one:1, two:2: image source (stream): the engine failed: open "/var/lib/docker": no such file`)
			})
			t.Run("a connection that is reset", func(t *testing.T) {
				start(t, func(w io.Writer, _ []string) error {
					w.Write(raw[:100_000])
					dockerdaemontest.Reset(w)
					return nil
				})
				fails(t, "save one:1, two:2: image source (stream): is truncated: it ends within entry ")
			})
			t.Run("a connection that is reset after the last byte", func(t *testing.T) {
				start(t, func(w io.Writer, _ []string) error {
					w.Write(raw)
					w.(interface{ Flush() }).Flush()
					dockerdaemontest.Reset(w)
					return nil
				})
				fails(t, "failed after its last entry: unexpected EOF")
			})
			t.Run("a stream without an end stops with the context", func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				enough := errors.New("enough")
				start(t, func(w io.Writer, _ []string) error {
					tw := tar.NewWriter(w)
					if err := tw.WriteHeader(&tar.Header{Name: "endless", Size: 1 << 50, Typeflag: tar.TypeReg}); err != nil {
						return err
					}
					for written := 0; ; written++ {
						if _, err := tw.Write(make([]byte, 1<<16)); err != nil {
							return nil //nolint:nilerr // the client has gone
						}
						if written == 64 {
							cancel(enough)
						}
					}
				})
				store, _ := newStore(t)
				if _, err := saveAndOpen(ctx, t, store, "one:1"); !errors.Is(err, enough) {
					t.Errorf("error: %v", err)
				}
				checkNothingPartial(t, store)
			})
		})
	}
}

func TestOpenStreamRejects(t *testing.T) {
	image := dockerdaemontest.Image{Names: []string{"one:1"}, Layers: []dockerdaemontest.Layer{layer(1, 9000)}}
	modern, legacy := dockerdaemontest.Modern(image), dockerdaemontest.Legacy(image)
	whole := modern.Bytes(t)
	layerFile := oci.BlobPath(image.Layers[0].Digest())
	data := []byte("data")
	sha512Name := oci.BlobPath(digest.SHA512.FromBytes(data))
	// archive/tar does not write sparse files.
	sparse := makeTar(t, file{name: "a", data: data})
	copy(sparse[257:], "ustar  \x00")
	sparse[156] = tar.TypeGNUSparse
	copy(sparse[148:], headerChecksum(sparse[:tarBlock]))

	for name, c := range map[string]struct {
		stream []byte
		err    string
	}{
		"nothing": {nil, "is not an image archive: it is empty"},
		"text":    {[]byte("no tar at all"), "is not an image archive: it is text"},
		"long text": {bytes.Repeat([]byte("no tar at all\n"), 1000),
			"is not an image archive: it is text"},
		"JSON": {[]byte(`{"a":1}`), "is not an image archive: it is JSON text"},
		"gzip-compressed text": {gzipped(t, []byte("text")),
			"is not an image archive: it is gzip-compressed data without a tar in it"},
		"truncated gzip-compressed data": {gzipped(t, whole)[:4000], "is truncated: it ends within entry " +
			slices.Sorted(maps.Keys(modern))[0]},
		"an engine's error instead": {dockerdaemontest.StreamError("boom"), "the engine failed: boom"},
		"an engine's error after a file": {slices.Concat(makeTar(t, file{name: "a", data: data})[:2*tarBlock],
			dockerdaemontest.StreamError("boom")), "the engine failed: boom"},
		"an engine's long error after a file": {
			slices.Concat(makeTar(t, file{name: "a", data: data})[:2*tarBlock],
				dockerdaemontest.StreamError(strings.Repeat("boom ", 300))),
			"the engine failed: " + strings.Repeat("boom ", 300),
		},
		"an engine's error at the end": {slices.Concat(whole, dockerdaemontest.StreamError("boom")),
			"the engine failed: boom"},
		"a tar that ends between files": {bytes.TrimSuffix(whole, make([]byte, 2*tarBlock)),
			"is truncated: it ends after entry repositories, without the marker of an archive's end"},
		"a tar without entries": {make([]byte, 2*tarBlock), "is not an image archive: it is a tar without entries"},
		"a name that leads out": {makeTar(t, file{name: "../a", data: data}),
			`entry "../a" leads out of the archive`},
		"a name that leads out and in": {makeTar(t, file{name: "b/../../a", data: data}),
			`entry "b/../../a" leads out of the archive`},
		"an absolute name": {makeTar(t, file{name: "/a", data: data}), `entry "/a" is an absolute path`},
		"a link that leads out": {makeTar(t, file{name: "a/b", link: "../../x"}),
			`entry "a/b" is a link to "../../x", which leads out of the archive`},
		"an absolute link": {makeTar(t, file{name: "a", link: "/etc/passwd"}),
			`entry "a" is a link to "/etc/passwd", which is an absolute path`},
		"a hard link that leads out": {makeTar(t, file{name: "a", link: "../x", kind: tar.TypeLink}),
			`entry "a" is a link to "../x", which leads out of the archive`},
		"a duplicate file": {makeTar(t, file{name: "a", data: data}, file{name: "./a", data: data}),
			`entry "./a" occurs twice`},
		"a link with the name of a file": {makeTar(t, file{name: "a", data: data}, file{name: "a", link: "b"}),
			`entry "a" occurs twice`},
		"a sparse file": {sparse, `entry "a" is stored as a sparse file: pack the archive without that`},
		"a tar without images": {makeTar(t, file{name: "a", data: data}, file{name: "b"}),
			"contains no image: has neither oci-layout and index.json (OCI layout) nor manifest.json (docker archive), but a, b"},
		"a blob that does not match": {with(modern, dockerdaemontest.File{Name: layerFile, Data: noise(7,
			9000)}).Bytes(t), "entry " + layerFile + ": does not match its digest: it was altered or damaged"},
		"a blob with another digest": {makeTar(t, file{name: "blobs/sha256/" + digest.FromString("x").Encoded(),
			data: data}), "entry blobs/sha256/" + digest.FromString("x").Encoded() +
			": does not match its digest: it was altered or damaged"},
		"a SHA-512 blob that does not match": {makeTar(t, file{name: sha512Name, data: []byte("date")}), "entry " + sha512Name +
			": does not match its digest: it was altered or damaged"},
		"a missing layer": {without(legacy, "layer.tar").Bytes(t), "docker archive: image one:1: layer " +
			legacyLayer(legacy) + ": is missing from the source"},
		"a layer that is a broken link": {
			with(legacy, dockerdaemontest.File{Name: legacyLayer(legacy), Link: "../x/layer.tar"}).Bytes(t),
			"docker archive: image one:1: layer: " + legacyLayer(legacy) +
				": is a link to x/layer.tar, which is not a file in the archive",
		},
		"an index that is not JSON": {with(modern, dockerdaemontest.File{Name: "index.json", Data: []byte("{")}).Bytes(t),
			"OCI archive: index.json: is not valid JSON: unexpected end of JSON input"},
		"an index of 5 MB": {with(modern, dockerdaemontest.File{Name: "index.json", Data: make([]byte,
			5<<20)}).Bytes(t), "OCI archive: index.json: has 5242880 bytes: want at most 4194304"},
	} {
		t.Run(name, func(t *testing.T) {
			store, _ := newStore(t)
			_, err := OpenStream(t.Context(), bytes.NewReader(c.stream), store)
			if want := "image source (stream): " + c.err; err == nil || err.Error() != want {
				t.Errorf("error %v\nwant  %s", err, want)
			}
			checkNothingPartial(t, store)
		})
	}
}

// headerChecksum returns the checksum field of a tar header.
func headerChecksum(header []byte) string {
	sum := 0
	for i, b := range header {
		if i >= 148 && i < 156 {
			b = ' '
		}
		sum += int(b)
	}
	const digits = "01234567"
	var field []byte
	for shift := 15; shift >= 0; shift -= 3 {
		field = append(field, digits[sum>>shift&7])
	}
	return string(field) + "\x00 "
}

func without(files dockerdaemontest.Files, suffix string) dockerdaemontest.Files {
	files = maps.Clone(files)
	maps.DeleteFunc(files, func(name string, _ dockerdaemontest.File) bool { return strings.HasSuffix(name, suffix) })
	return files
}

func legacyLayer(files dockerdaemontest.Files) string {
	for name := range files {
		if strings.HasSuffix(name, "/layer.tar") {
			return name
		}
	}
	return ""
}

func TestOpenStreamOfATruncatedStream(t *testing.T) {
	shared := layer(1, 4000)
	one := dockerdaemontest.Image{Names: []string{"one:1"}, Layers: []dockerdaemontest.Layer{shared, layer(2, 700)}}
	two := dockerdaemontest.Image{Names: []string{"two:1"}, Layers: []dockerdaemontest.Layer{shared}}
	for name, files := range map[string]dockerdaemontest.Files{
		"before 25": dockerdaemontest.Legacy(one, two),
		"since 25":  dockerdaemontest.Modern(one, two),
		"containerd's": dockerdaemontest.Containerd(dockerdaemontest.Index{Name: "one:1",
			Images: []dockerdaemontest.Image{one}, Absent: []string{"arm64"}}),
	} {
		t.Run(name, func(t *testing.T) {
			raw := files.Bytes(t)
			store, _ := newStore(t)
			// One of the marker's two blocks is enough. A prime step hits all kinds of positions.
			for cut := 0; cut < len(raw)-tarBlock; cut += 211 {
				if _, err := OpenStream(t.Context(), bytes.NewReader(raw[:cut]), store); err == nil {
					t.Errorf("opened a stream that was cut at %d of %d", cut, len(raw))
				}
			}
			checkNothingPartial(t, store)
		})
	}
}

func TestOpenStreamReportsStoreErrors(t *testing.T) {
	image := dockerdaemontest.Image{Names: []string{"one:1"}, Layers: []dockerdaemontest.Layer{layer(1, 9000)}}
	store, _ := newStore(t)
	ingest := filepath.Join(store.Dir(), "ingest")
	if err := os.RemoveAll(ingest); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ingest, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := OpenStream(t.Context(), bytes.NewReader(dockerdaemontest.Legacy(image).Bytes(t)), store)
	if err == nil || !strings.Contains(err.Error(), " cannot be stored: ") || !strings.Contains(err.Error(), store.Dir()) {
		t.Errorf("error: %v", err)
	}
}

// A stream is written to disk once and uses bounded memory.
func TestOpenStreamKeepsOneCopy(t *testing.T) {
	const large = 300 << 20
	size := int64(large)
	if testing.Short() {
		t.Log("in short mode, using 16 MiB instead of 300")
		size = 16 << 20
	}
	parts := []dockerdaemontest.Layer{layer(1, size/2), layer(2, size/4), layer(3, size/4)}
	one := dockerdaemontest.Image{Names: []string{"one:1"}, Layers: parts}
	two := dockerdaemontest.Image{Names: []string{"two:2"}, Layers: parts[:2]}
	for name, files := range map[string]dockerdaemontest.Files{
		"before 25": dockerdaemontest.Legacy(one, two),
		"since 25":  dockerdaemontest.Modern(one, two),
	} {
		t.Run(name, func(t *testing.T) {
			pr, pw := io.Pipe()
			go func() { pw.CloseWithError(files.Write(pw)) }()
			store, _ := newStore(t)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			src, err := OpenStream(t.Context(), pr, store)
			if err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			// All allocations, including freed ones.
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 8<<20 {
				t.Errorf("allocated %d bytes for a stream of %d", allocated, size)
			}
			var onDisk int64
			for _, n := range diskFiles(t, store.Dir()) {
				onDisk += n
			}
			if onDisk < size || onDisk > size+64<<10 {
				t.Errorf("%d bytes on disk for a stream of %d", onDisk, size)
			}
			if len(src.Images()) != 2 || src.Images()[0].Size < size {
				t.Errorf("images: %+v", src.Images())
			}
		})
	}
}

// TestRealEngine loads an image into the engine in the environment, saves it and removes it.
func TestRealEngine(t *testing.T) {
	engine, err := dockerdaemon.Open(t.Context())
	if err != nil {
		t.Skipf("needs an engine: set DOCKER_HOST to one, or start docker: %v", err)
	}
	defer engine.Close()
	api, err := client.New(client.WithHost(engine.Host()))
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	const name, other = "zarf-registry-test/one:1", "zarf-registry-test/two:2"
	shared := dockerdaemontest.Layer{Data: makeTar(t, file{name: "shared", data: noise(1, 100_000)})}
	one := dockerdaemontest.Image{Names: []string{name}, Layers: []dockerdaemontest.Layer{shared, {Data: makeTar(t,
		file{name: "one", data: noise(2, 1000)})}}}
	two := dockerdaemontest.Image{Names: []string{other}, Layers: []dockerdaemontest.Layer{shared, {Data: makeTar(t,
		file{name: "two"})}}}
	loaded, err := api.ImageLoad(t.Context(), bytes.NewReader(dockerdaemontest.Legacy(one, two).Bytes(t)))
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, loaded)
	if err := errors.Join(err, loaded.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, image := range []string{name, other} {
			if _, err := api.ImageRemove(context.WithoutCancel(t.Context()), image, client.ImageRemoveOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	store, _ := newStore(t)
	src, err := saveAndOpen(t.Context(), t, store, name, other)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]digest.Digest{}
	for _, image := range describeStreamed(t, src) {
		repository, tag, err := Repository(image.Reference)
		if err != nil {
			t.Fatal(err)
		}
		found[repository+":"+tag] = image.Layers
	}
	t.Logf("the engine at %s writes an %s", engine.Host(), src.Kind())
	for _, image := range []dockerdaemontest.Image{one, two} {
		var want []digest.Digest
		for _, l := range image.Layers {
			want = append(want, l.Digest())
		}
		if diff := cmp.Diff(want, found[image.Names[0]]); diff != "" {
			t.Errorf("layers of %s: %s", image.Names[0], diff)
		}
	}
	if _, err := saveAndOpen(t.Context(), t, store, "zarf-registry-test/none:1"); err == nil ||
		!strings.Contains(err.Error(), "docker pull zarf-registry-test/none:1") {
		t.Errorf("error for a missing image: %v", err)
	}
}
