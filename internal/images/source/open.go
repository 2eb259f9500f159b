// Package source reads images from where they are: registries and the Docker engine, by their names ([Resolve]), and
// OCI layouts, OCI archives, docker archives and Zarf packages ([Open]). It does not decide where they go.
package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Open opens an OCI layout directory, an OCI archive (a tar of a layout), a docker archive, as written
// by docker save before version 25 and by other tools, or a Zarf package, as an archive or unpacked.
// Archives may be compressed with gzip or zstd. The format is detected from the content, not the name.
// If an archive is an OCI and a docker archive, the OCI layout is used.
//
// Open reads and verifies the manifests of all images, and checks that every blob exists and has the
// right size: see [Source.Incomplete]. It fails if no image is complete. Digests of blobs are
// verified when they are read. Only compressed archives are unpacked,
// to a temporary file that [Source.Close] removes.
func Open(ctx context.Context, path string) (*Source, error) {
	s, err := open(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("image source %s: %w", path, err)
	}
	return s, nil
}

func open(ctx context.Context, path string) (*Source, error) {
	info, err := os.Stat(path)
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, pathErr.Err
	}
	if err != nil {
		return nil, err
	}
	switch {
	case info.IsDir():
		root, err := os.OpenRoot(path)
		if err != nil {
			return nil, err
		}
		return load(ctx, path, "layout", directory{root})
	case info.Mode().IsRegular():
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		return openFile(ctx, file)
	}
	return nil, errors.New("is neither a file nor a directory")
}

func openFile(ctx context.Context, file *os.File) (*Source, error) {
	a, err := openArchive(ctx, file)
	if err != nil {
		return nil, err
	}
	return load(ctx, file.Name(), "archive", a)
}

// load detects the format and reads the images.
func load(ctx context.Context, path, where string, files files) (*Source, error) {
	s := &Source{path: path, files: files}
	if err := s.load(ctx, where); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Source) load(ctx context.Context, where string) error {
	has := func(name string) bool {
		_, err := s.files.file(name)
		return err == nil
	}
	const indexFile, layoutFile, dockerFile = ocispec.ImageIndexFile, ocispec.ImageLayoutFile, "manifest.json"
	var err error
	switch {
	case has(indexFile) && has(layoutFile):
		s.kind = "OCI " + where
		err = s.loadLayout(ctx)
	case has(dockerFile):
		s.kind = "docker " + where
		err = s.loadDocker(ctx)
	case has(zarfDefinition):
		s.kind = "Zarf package"
		err = s.loadZarf(ctx)
	default:
		return fmt.Errorf("contains no image: has neither %s and %s (OCI layout) nor %s (docker archive)", layoutFile,
			indexFile, dockerFile)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.kind, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := errors.Join(s.broken...); err != nil && len(s.images) == 0 {
		return fmt.Errorf("%s: %w", s.kind, err)
	}
	if len(s.images) == 0 {
		return fmt.Errorf("%s: contains no image", s.kind)
	}
	return nil
}
