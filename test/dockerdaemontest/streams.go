// Package dockerdaemontest is a Docker engine for tests: save streams byte for byte
// of the shapes that engines write, and an engine that answers with them.
package dockerdaemontest

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// Layer is a layer as an engine has it. Its zero value is one of no bytes.
type Layer struct {
	Data []byte
	// Foreign marks a layer that may not be redistributed: engines from 25 on name
	// it in the OCI manifest by its owner's descriptor, which has no blob.
	Foreign bool
}

// Digest is the digest of the content.
func (l Layer) Digest() digest.Digest { return digest.FromBytes(l.Data) }

// Image is an image of one platform.
type Image struct {
	// Names are references with a tag, in docker's short form. An image that is
	// saved by its ID has none.
	Names        []string
	Architecture string // amd64 where it is empty
	Layers       []Layer
}

// Config is the image's configuration.
func (i Image) Config() []byte {
	config := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: i.architecture()},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{}},
	}
	for _, layer := range i.Layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, layer.Digest())
	}
	return toJSON(config)
}

func (i Image) architecture() string { return cmp.Or(i.Architecture, "amd64") }

// ID is what the engine calls the image where its store is not containerd's.
func (i Image) ID() digest.Digest { return digest.FromBytes(i.Config()) }

// File is an entry of a stream: a regular file with Data or, if it is set, a symbolic link to Link.
type File struct {
	Data []byte
	Link string
}

// Files are the entries of a stream by name; directories are understood.
type Files map[string]File

func (f Files) add(name string, data []byte) { f[name] = File{Data: data} }

func (f Files) addBlob(data []byte) digest.Digest {
	d := digest.FromBytes(data)
	f.add(oci.BlobPath(d), data)
	return d
}

// Write writes the entries as a tar as engines do: sorted by name, each directory
// before what is in it.
func (f Files) Write(w io.Writer) error {
	tw := tar.NewWriter(w)
	written := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		for i, c := range name {
			if dir := name[:i+1]; c == '/' && !written[dir] {
				written[dir] = true
				if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755,
					ModTime: time.Unix(0, 0)}); err != nil {
					return err
				}
			}
		}
		if err := f[name].write(tw, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return tw.Close()
}

func (f File) write(tw *tar.Writer, name string) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(f.Data)),
		ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if f.Link != "" {
		header.Typeflag, header.Linkname = tar.TypeSymlink, f.Link
	}
	if err := tw.WriteHeader(header); err != nil {
		return err
	}
	_, err := tw.Write(f.Data)
	return err
}

// Bytes is the stream.
func (f Files) Bytes(t testing.TB) []byte {
	t.Helper()
	var buf bytes.Buffer
	require.NoError(t, f.Write(&buf))
	return buf.Bytes()
}

// saved is an element of manifest.json.
type saved struct {
	Config       string
	RepoTags     []string
	Layers       []string
	LayerSources map[digest.Digest]ocispec.Descriptor `json:",omitempty"`
}

// v1Config is the configuration that docker before 1.10 wants for each layer.
func v1Config(i Image, layer int) []byte {
	return fmt.Appendf(nil, `{"id":"%s","created":"1970-01-01T00:00:00Z","container_config":{},"os":"linux"}`,
		v1ID(i, layer))
}

func v1ID(i Image, layer int) string {
	ids := []string{}
	for _, l := range i.Layers[:layer+1] {
		ids = append(ids, string(l.Digest()))
	}
	return digest.FromString(strings.Join(ids, " ")).Encoded()
}

// foreign is the descriptor that a foreign layer has from its owner.
func foreign(l Layer) ocispec.Descriptor {
	return ocispec.Descriptor{
		MediaType: oci.MediaTypeDockerForeignLayer,
		Digest:    digest.FromString("foreign " + string(l.Digest())),
		Size:      1 << 20,
		URLs:      []string{"https://example.com/layer"},
	}
}

// repositories is what docker before 1.10 reads: tags, and the ID of the last
// layer.
type repositories map[string]map[string]string

func (r repositories) add(names []string, id string) {
	for _, name := range names {
		repository, tag := name[:strings.LastIndex(name, ":")], name[strings.LastIndex(name, ":")+1:]
		if r[repository] == nil {
			r[repository] = map[string]string{}
		}
		r[repository][tag] = id
	}
}

// Legacy are the entries of what an engine before 25 saves: for each layer a
// directory, with a link where another image or place has the same layer.
func Legacy(images ...Image) Files {
	files := Files{}
	var manifest []saved
	tags := repositories{}
	at := map[digest.Digest]string{}
	for _, image := range images {
		config := image.Config()
		s := saved{Config: digest.FromBytes(config).Encoded() + ".json", RepoTags: image.Names,
			LayerSources: map[digest.Digest]ocispec.Descriptor{}}
		files.add(s.Config, config)
		for i, layer := range image.Layers {
			id := v1ID(image, i)
			name := id + "/layer.tar"
			s.Layers = append(s.Layers, name)
			if layer.Foreign {
				s.LayerSources[layer.Digest()] = foreign(layer)
			}
			if _, exists := files[name]; exists {
				continue
			}
			files.add(id+"/VERSION", []byte("1.0"))
			files.add(id+"/json", v1Config(image, i))
			if first, exists := at[layer.Digest()]; exists {
				files[name] = File{Link: "../" + first}
				continue
			}
			at[layer.Digest()] = name
			files.add(name, layer.Data)
		}
		tags.add(image.Names, v1ID(image, len(image.Layers)-1))
		manifest = append(manifest, s)
	}
	if len(tags) > 0 {
		files.add("repositories", append(toJSON(tags), '\n'))
	}
	files.add("manifest.json", append(toJSON(manifest), '\n'))
	return files
}

// Modern are the entries of what an engine from 25 on saves whose store is not
// containerd's: an OCI layout of uncompressed layers, and manifest.json besides.
// As in the engine, images without a name are in index.json only where no image
// before them is.
func Modern(images ...Image) Files {
	files := Files{}
	var list []saved
	tags := repositories{}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, image := range images {
		manifest := ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2},
			MediaType: ocispec.MediaTypeImageManifest,
			Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: files.addBlob(image.Config()),
				Size: int64(len(image.Config()))},
			Layers: []ocispec.Descriptor{},
		}
		s := saved{Config: oci.BlobPath(manifest.Config.Digest), RepoTags: image.Names,
			LayerSources: map[digest.Digest]ocispec.Descriptor{}}
		for i, layer := range image.Layers {
			desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: files.addBlob(layer.Data),
				Size: int64(len(layer.Data))}
			files.addBlob(v1Config(image, i))
			if layer.Foreign {
				desc = foreign(layer)
			}
			manifest.Layers = append(manifest.Layers, desc)
			s.Layers = append(s.Layers, oci.BlobPath(layer.Digest()))
			s.LayerSources[layer.Digest()] = desc
		}
		raw := toJSON(manifest)
		desc := ocispec.Descriptor{MediaType: manifest.MediaType, Digest: files.addBlob(raw), Size: int64(len(raw))}
		for _, name := range image.Names {
			index.Manifests = append(index.Manifests, named(desc, name))
		}
		if len(index.Manifests) == 0 {
			index.Manifests = append(index.Manifests, desc)
		}
		tags.add(image.Names, image.Layers[len(image.Layers)-1].Digest().Encoded())
		list = append(list, s)
	}
	files.add("index.json", toJSON(index))
	files.add("manifest.json", append(toJSON(list), '\n'))
	files.add("oci-layout", []byte(`{"imageLayoutVersion": "1.0.0"}`))
	if len(tags) > 0 {
		files.add("repositories", append(toJSON(tags), '\n'))
	}
	return files
}

// named is desc with the annotations that docker and containerd give it in
// index.json.
func named(desc ocispec.Descriptor, name string) ocispec.Descriptor {
	parsed, err := reference.ParseDockerRef(name)
	if err != nil {
		panic(err) // of a test's constant
	}
	desc.Annotations = map[string]string{
		oci.AnnotationContainerdName: parsed.String(),
		ocispec.AnnotationRefName:    parsed.(reference.Tagged).Tag(),
	}
	return desc
}

// Index is an image of several platforms in containerd's store.
type Index struct {
	Name string // with a tag, in docker's short form; empty where it is saved by its ID
	// Images are the images that the store has, of one architecture each; their
	// names do not count. Layers are compressed with gzip, as they were pulled.
	Images []Image
	// Absent are architectures of which the store has nothing, and Bare ones of
	// which it has the manifest alone.
	Absent, Bare []string
	// Attested adds attestations of each image: their manifests are there with all
	// they refer to for Images, and missing for the others.
	Attested bool
}

// Containerd are the entries of what an engine saves whose store is containerd's.
func Containerd(indexes ...Index) Files {
	files := Files{}
	var manifest []saved
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, image := range indexes {
		desc, s := image.add(files)
		if image.Name != "" {
			desc = named(desc, image.Name)
			s.RepoTags = []string{image.Name}
		}
		index.Manifests = append(index.Manifests, desc)
		manifest = append(manifest, s)
	}
	files.add("index.json", toJSON(index))
	files.add("manifest.json", toJSON(manifest))
	files.add("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return files
}

func (i Index) add(files Files) (ocispec.Descriptor, saved) {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	var attestations []ocispec.Descriptor
	attest := func(of ocispec.Descriptor, into Files) {
		if !i.Attested {
			return
		}
		statement := toJSON(map[string]string{"_type": "https://in-toto.io/Statement/v0.1", "subject": of.Digest.String()})
		desc := addManifest(into, toJSON(ocispec.Image{Platform: unknown}), ocispec.Descriptor{
			MediaType: "application/vnd.in-toto+json", Digest: into.addBlob(statement), Size: int64(len(statement)),
		})
		desc.Platform = &unknown
		desc.Annotations = map[string]string{"vnd.docker.reference.type": "attestation-manifest",
			"vnd.docker.reference.digest": of.Digest.String()}
		attestations = append(attestations, desc)
	}
	var s saved
	for n, image := range i.Images {
		var layers []ocispec.Descriptor
		for _, layer := range image.Layers {
			desc := foreign(layer)
			if !layer.Foreign {
				packed := Gzip(layer)
				desc = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: files.addBlob(packed),
					Size: int64(len(packed))}
			}
			layers = append(layers, desc)
		}
		desc := addManifest(files, image.Config(), layers...)
		desc.Platform = &ocispec.Platform{OS: "linux", Architecture: image.architecture()}
		index.Manifests = append(index.Manifests, desc)
		attest(desc, files)
		if n == 0 { // the engine's own platform is what manifest.json has
			s.Config = oci.BlobPath(image.ID())
			for _, layer := range layers {
				s.Layers = append(s.Layers, oci.BlobPath(layer.Digest))
			}
		}
	}
	for _, architecture := range slices.Concat(i.Absent, i.Bare) {
		elsewhere := Files{}
		config := Image{Architecture: architecture}.Config()
		desc := addManifest(elsewhere, config, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip,
			Digest: digest.FromString(architecture), Size: 1000})
		if slices.Contains(i.Bare, architecture) {
			files[oci.BlobPath(desc.Digest)] = elsewhere[oci.BlobPath(desc.Digest)]
		}
		desc.Platform = &ocispec.Platform{OS: "linux", Architecture: architecture}
		index.Manifests = append(index.Manifests, desc)
		attest(desc, elsewhere)
	}
	index.Manifests = append(index.Manifests, attestations...)
	raw := toJSON(index)
	return ocispec.Descriptor{MediaType: index.MediaType, Digest: files.addBlob(raw), Size: int64(len(raw))}, s
}

// unknown is the platform of attestations.
var unknown = ocispec.Platform{OS: "unknown", Architecture: "unknown"}

func addManifest(files Files, config []byte, layers ...ocispec.Descriptor) ocispec.Descriptor {
	raw := toJSON(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: files.addBlob(config),
			Size: int64(len(config))},
		Layers: layers,
	})
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: files.addBlob(raw), Size: int64(len(raw))}
}

// Gzip is the layer as it was pulled.
func Gzip(l Layer) []byte {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write(l.Data); err != nil {
		panic(err) // memory does not fail
	}
	if err := z.Close(); err != nil {
		panic(err) // memory does not fail
	}
	return buf.Bytes()
}

func toJSON(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // of a test's constants
	}
	return raw
}
