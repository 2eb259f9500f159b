package images

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/blob"
	"github.com/zarf-dev/zarf-registry/internal/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/oci"
)

// streamName is the path of a stream in messages.
const streamName = "(stream)"

// OpenStream reads an OCI archive or docker archive, such as the save stream of a Docker engine, once
// and to its end. It writes the content to the store, which the caller keeps open while the source is
// in use. Only metadata files are held in memory. Streams may be compressed with gzip or zstd. After an error,
// the store keeps the complete blobs that were read.
//
// In addition to [Open]'s checks, it verifies the digests of files in blobs/ immediately and requires
// the end-of-archive marker, because the last entries of a save stream describe the rest. It checks
// ctx before each read of r, but cannot interrupt a read that blocks.
func OpenStream(ctx context.Context, r io.Reader, store *blobstore.Store) (*Source, error) {
	s, err := openStream(ctx, r, store)
	if err != nil {
		return nil, fmt.Errorf("image source %s: %w", streamName, err)
	}
	return s, nil
}

func openStream(ctx context.Context, r io.Reader, store *blobstore.Store) (*Source, error) {
	st := &stream{
		listed:  archive{entries: map[string]entry{}},
		store:   store,
		content: map[string]blob.Blob{},
	}
	if err := st.read(ctx, r); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	s := &Source{path: streamName, files: st, store: store}
	if err := s.load(ctx, "archive"); err != nil {
		return nil, err
	}
	return s, nil
}

// stream is files of a tar that were written to a store.
type stream struct {
	listed  archive // without a file: only its entries are used
	store   *blobstore.Store
	content map[string]blob.Blob // of entries that are not links
}

func (s *stream) file(name string) (blob.Blob, error) {
	if target := s.listed.entries[name].target; target != "" {
		b, ok := s.content[target]
		if !ok {
			return blob.Blob{}, fmt.Errorf("%s: is a link to %s, which is not a file in the archive", name, target)
		}
		return b, nil
	}
	b, ok := s.content[name]
	if !ok {
		return blob.Blob{}, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return b, nil
}

func (s *stream) names() []string { return s.listed.names() }

func (s *stream) whole() bool { return true }

// Close does nothing: the store owns the files.
func (s *stream) Close() error { return nil }

// readAhead is as large as the buffer of [io.Copy].
const readAhead = 32 << 10

// read reads the whole stream.
func (s *stream) read(ctx context.Context, r io.Reader) error {
	source := &tailReader{Reader: contextReader{ctx, r}}
	buffered := bufio.NewReaderSize(source, readAhead)
	// A short read is not an error yet: index reports it.
	head, _ := buffered.Peek(tarBlock)
	what := describe(head)
	z, format, err := decompress(head, buffered)
	if err != nil {
		return err
	}
	if format != "" {
		what = format + noTarIn
	}
	tarred := &offsetReader{Reader: z}
	err = s.index(ctx, tarred, what)
	switch {
	case err == nil:
		// The rest is padding, or an error message of the engine.
		if _, err = io.Copy(io.Discard, tarred); err != nil && !errors.Is(err, errInflated) {
			err = fmt.Errorf("failed after its last entry: %w", err)
		}
	case errors.Is(err, tar.ErrHeader):
		_, _ = io.CopyN(io.Discard, tarred, tailSize)
	}
	if message := source.engineError(); message != "" {
		return fmt.Errorf("the engine failed: %s", message)
	}
	return err
}

// index stores each entry. what describes the stream if it is not a tar.
func (s *stream) index(ctx context.Context, r *offsetReader, what string) error {
	tr := tar.NewReader(r)
	var last string
	var end int64 // of the last entry, padding included
	for {
		header, err := tr.Next()
		switch {
		case errors.Is(err, io.EOF) && last == "":
			if r.offset > 0 {
				what = "a tar without entries"
			}
			return fmt.Errorf("%w: it is %s", errNotAnArchive, what)
		case errors.Is(err, io.EOF) && r.offset < end+tarBlock:
			return fmt.Errorf("is truncated: it ends after entry %s, without the marker of an archive's end", last)
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF) && last != "":
			return fmt.Errorf("is truncated: it ends after entry %s", last)
		case (errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF)) && last == "":
			return fmt.Errorf("%w: it is %s", errNotAnArchive, what)
		case err != nil && last == "":
			return err
		case errors.Is(err, errInflated):
			return errInflated
		case errors.Is(err, tar.ErrHeader):
			return fmt.Errorf("is damaged after entry %s: %w", last, err)
		case err != nil:
			return fmt.Errorf("failed after entry %s: %w", last, err)
		}
		last = header.Name
		if err := s.listed.add(header, r.offset); err != nil {
			return fmt.Errorf("entry %.100q %w", header.Name, err)
		}
		end = r.offset
		if header.Typeflag != tar.TypeReg {
			continue
		}
		end += (header.Size + tarBlock - 1) / tarBlock * tarBlock
		if err := s.addFile(ctx, header, tr); err != nil {
			return err
		}
	}
}

// addFile stores the content of a file.
func (s *stream) addFile(ctx context.Context, header *tar.Header, tr *tar.Reader) error {
	name := path.Clean(header.Name)
	entry := &errorReader{Reader: tr}
	b, err := s.storeFile(ctx, name, entry, header.Size)
	var wrong *blob.Error
	switch {
	case errors.Is(entry.err, errInflated):
		return errInflated
	case errors.Is(entry.err, io.ErrUnexpectedEOF):
		return fmt.Errorf("is truncated: it ends within entry %s", header.Name)
	case entry.err != nil:
		return fmt.Errorf("failed within entry %s: %w", header.Name, entry.err)
	case errors.As(err, &wrong):
		return fmt.Errorf("entry %s: %w", header.Name, err)
	case err != nil:
		return fmt.Errorf("entry %s cannot be stored: %w", header.Name, err)
	case b.Open != nil:
		s.content[name] = b
	}
	return nil
}

// storeFile returns the file's content, in memory for metadata files and otherwise in the store. Files
// that nothing reads yield an empty blob.
func (s *stream) storeFile(ctx context.Context, name string, r io.Reader, size int64) (blob.Blob, error) {
	dir, base := path.Split(name)
	switch {
	case dir == "" && isIndexFile(base) && size <= oci.MaxManifestSize:
		raw, err := io.ReadAll(r)
		return blob.FromBytes(raw), err
	case dir != "" && (base == "VERSION" || base == "json"):
		// Per-layer files of Docker before 1.10. The tar reader skips their content.
		return blob.Blob{}, nil
	}
	named, isBlob := oci.ParseBlobPath(name)
	var other digest.Verifier // the store computes SHA-256 only
	if isBlob && named.Algorithm() != digest.SHA256 {
		other = named.Verifier()
		r = io.TeeReader(r, other)
	}
	desc, err := s.store.Add(ctx, r, size)
	switch {
	case err != nil:
		return blob.Blob{}, err
	case other != nil && !other.Verified(), other == nil && isBlob && desc.Digest != named:
		return blob.Blob{}, blob.MismatchError()
	}
	return s.store.Get(ctx, desc)
}

// isIndexFile reports whether a file at a source's root is a metadata file.
func isIndexFile(name string) bool {
	switch name {
	case ocispec.ImageIndexFile, ocispec.ImageLayoutFile, dockerManifestFile, "repositories":
		return true
	}
	return false
}

// offsetReader counts the bytes that were read.
type offsetReader struct {
	io.Reader
	offset int64
}

// Read implements [io.Reader].
func (r *offsetReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.offset += int64(n)
	return n, err
}

// errorReader records the first error other than EOF.
type errorReader struct {
	io.Reader
	err error
}

// Read implements [io.Reader].
func (r *errorReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// tailSize is enough for an engine's error message, in bytes.
const tailSize = 4 << 10

// tailReader keeps the last bytes of a stream.
type tailReader struct {
	io.Reader
	tail []byte
}

// Read implements [io.Reader].
func (r *tailReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n >= tailSize {
		r.tail = append(r.tail[:0], p[n-tailSize:n]...)
	} else if n > 0 {
		r.tail = append(r.tail[:copy(r.tail, r.tail[max(0, len(r.tail)+n-tailSize):])], p[:n]...)
	}
	return n, err
}

// engineError returns the error message of an engine that failed while it wrote the stream. It writes
// a line of JSON at the current position and stops. This is not documented; see getImagesGet in moby.
func (r *tailReader) engineError() string {
	at := bytes.LastIndex(r.tail, []byte(`{"errorDetail":`))
	if at < 0 {
		return ""
	}
	var said struct {
		ErrorDetail struct {
			Message string `json:"message"`
		} `json:"errorDetail"`
	}
	// If something follows, it is content of a file.
	if json.Unmarshal(r.tail[at:], &said) != nil {
		return ""
	}
	return said.ErrorDetail.Message
}
