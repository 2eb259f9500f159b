package images

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
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

// streamName is where an archive is said to be that comes as a stream.
const streamName = "(stream)"

// OpenStream reads an OCI archive or docker archive, such as the save stream of a
// Docker engine, once and to its end. What is in it goes straight into the store,
// which must stay open as long as the source is, and which the caller closes; of it
// all nothing but index.json and the like is held in memory. Streams may be
// compressed with gzip. After an error, the store has what came before it, in whole
// blobs.
//
// It is as strict as [Open], and stricter in this: content under a digest in blobs/
// that does not match it is an error now, and so is a stream without the marker of a
// tar's end, for what comes last in a save stream tells what the rest is. It looks at
// ctx before each read of r; to end a read that blocks is the caller's task.
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

// stream is files that came in a tar, and lie in a store by now.
type stream struct {
	listed  archive // of no file: its list of entries alone is used
	store   *blobstore.Store
	content map[string]blob.Blob // of entries that are no links
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

// Close does nothing: the files are the store's.
func (s *stream) Close() error { return nil }

// readAhead is how much of a stream is asked for at once: as much as [io.Copy] has
// between two files.
const readAhead = 32 << 10

// read reads the whole stream.
func (s *stream) read(ctx context.Context, r io.Reader) error {
	source := &tailReader{Reader: contextReader{ctx, r}}
	buffered := bufio.NewReaderSize(source, readAhead)
	// Fewer bytes than asked for are no error yet: they are told from a tar below.
	head, _ := buffered.Peek(tarBlock)
	what := describe(head)
	tarred := &offsetReader{Reader: buffered}
	if bytes.HasPrefix(head, gzipMagic) {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return fmt.Errorf("gzip: %w", err)
		}
		tarred.Reader = z
		what = "gzip-compressed data without a tar in it"
	}
	err := s.index(ctx, tarred, what)
	switch {
	case err == nil:
		// The rest is padding, or what the engine says that went wrong.
		if _, err = io.Copy(io.Discard, tarred); err != nil {
			err = fmt.Errorf("breaks off after its last entry: %w", err)
		}
	case errors.Is(err, tar.ErrHeader):
		_, _ = io.CopyN(io.Discard, tarred, tailSize)
	}
	if message := source.engineError(); message != "" {
		return fmt.Errorf("the engine could not finish it: %s", message)
	}
	return err
}

// index takes in each entry. what is said to be in the stream if it is no tar.
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
		case errors.Is(err, tar.ErrHeader):
			return fmt.Errorf("is damaged after entry %s: %w", last, err)
		case err != nil:
			return fmt.Errorf("breaks off after entry %s: %w", last, err)
		}
		last = header.Name
		if err := s.listed.add(header, r.offset); err != nil {
			return fmt.Errorf("entry %q %w", header.Name, err)
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

// take keeps the content of a file.
func (s *stream) addFile(ctx context.Context, header *tar.Header, tr *tar.Reader) error {
	name := path.Clean(header.Name)
	entry := &errorReader{Reader: tr}
	b, err := s.storeFile(ctx, name, entry, header.Size)
	var wrong *blob.Error
	switch {
	case errors.Is(entry.err, io.ErrUnexpectedEOF):
		return fmt.Errorf("is truncated: it ends within entry %s", header.Name)
	case entry.err != nil:
		return fmt.Errorf("breaks off within entry %s: %w", header.Name, entry.err)
	case errors.As(err, &wrong):
		return fmt.Errorf("entry %s: %w", header.Name, err)
	case err != nil:
		return fmt.Errorf("entry %s cannot be stored: %w", header.Name, err)
	case b.Open != nil:
		s.content[name] = b
	}
	return nil
}

// keep returns the file's content as it lies in the store, or in memory where it
// describes other files. What nobody reads any more is no blob.
func (s *stream) storeFile(ctx context.Context, name string, r io.Reader, size int64) (blob.Blob, error) {
	dir, base := path.Split(name)
	switch {
	case dir == "" && isIndexFile(base) && size <= oci.MaxManifestSize:
		raw, err := io.ReadAll(r)
		return blob.FromBytes(raw), err
	case dir != "" && (base == "VERSION" || base == "json"):
		// What docker before 1.10 has for each layer. The tar's next entry is behind it.
		return blob.Blob{}, nil
	}
	named, isBlob := oci.ParseBlobPath(name)
	var other digest.Verifier // the store computes SHA-256
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

// isIndexFile tells files that describe what else is in a source, by their names at
// its root.
func isIndexFile(name string) bool {
	switch name {
	case ocispec.ImageIndexFile, ocispec.ImageLayoutFile, dockerManifestFile, "repositories":
		return true
	}
	return false
}

// offsetReader knows how much was read.
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

// errorReader remembers the error that was not the end.
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

// tailSize is enough for what an engine says last.
const tailSize = 4 << 10

// tailReader remembers the last bytes of a stream.
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

// engineError is what an engine that fails in the middle of a stream writes into
// it, wherever it is by then: a line of JSON, and no more. The API's documentation
// does not tell of it; moby does, in getImagesGet.
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
	// Nothing behind it: or else it is in a file.
	if json.Unmarshal(r.tail[at:], &said) != nil {
		return ""
	}
	return said.ErrorDetail.Message
}
