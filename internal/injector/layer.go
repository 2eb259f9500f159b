package injector

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"time"
)

const tarBlock = 512

// BuildLayer makes the image layer that holds one program, as the package comment describes it: the same program gives the same bytes.
func BuildLayer(name string, program []byte) ([]byte, error) {
	archive, err := buildArchive(name, program)
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	compressor, err := gzip.NewWriterLevel(&layer, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = compressor.Write(archive)
	if err := errors.Join(err, compressor.Close()); err != nil {
		return nil, fmt.Errorf("compressing the layer of %s: %w", name, err)
	}
	return layer.Bytes(), nil
}

func buildArchive(name string, program []byte) ([]byte, error) {
	if !nameForm.MatchString(name) {
		return nil, fmt.Errorf("program name %q: must be 1 to 32 of a-z, 0-9 and '-'", name)
	}
	if len(program) < 1 || len(program) > MaxProgramSize {
		return nil, fmt.Errorf("program %s has %d bytes: must have 1 to %d", name, len(program), MaxProgramSize)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg,
		Name:     name,
		Mode:     0o555,
		Size:     int64(len(program)),
		ModTime:  time.Unix(0, 0),
		Format:   tar.FormatUSTAR,
	})
	if err == nil {
		_, err = w.Write(program)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("building the archive of %s: %w", name, err)
	}
	return archive.Bytes(), nil
}

// readLayer returns the program of a layer, which must inflate to the very archive that BuildLayer makes of that program.
func readLayer(name string, layer []byte) ([]byte, error) {
	archive, err := inflate(layer, tarBlock+MaxProgramSize+maxTrailer)
	if err != nil {
		return nil, err
	}
	header, err := tar.NewReader(bytes.NewReader(archive)).Next()
	if err != nil {
		return nil, fmt.Errorf("reading the archive: %w", err)
	}
	if header.Size > int64(len(archive)-tarBlock) {
		return nil, fmt.Errorf("the archive ends inside its entry %s", header.Name)
	}
	program := archive[tarBlock : tarBlock+header.Size]
	want, err := buildArchive(name, program)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(archive, want) {
		return nil, fmt.Errorf("the archive is not the one that BuildLayer makes of %s", name)
	}
	return program, nil
}

// inflate returns what a gzip stream inflates to. It refuses what the loader refuses: reserved header flags, anything after the
// first member, and more than limit bytes.
func inflate(stream []byte, limit int64) ([]byte, error) {
	const flags, reserved = 3, 0xe0 // RFC 1952, 2.3.1
	if len(stream) > flags && stream[flags]&reserved != 0 {
		return nil, gzip.ErrHeader
	}
	// A bytes.Reader is a ByteReader, so that not a byte beyond the member is taken from it.
	rest := bytes.NewReader(stream)
	decompressor, err := gzip.NewReader(rest)
	if err != nil {
		return nil, fmt.Errorf("reading the gzip header: %w", err)
	}
	decompressor.Multistream(false)
	data, err := io.ReadAll(io.LimitReader(decompressor, limit+1))
	if err != nil {
		return nil, fmt.Errorf("inflating: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("inflates to more than %d bytes", limit)
	}
	if rest.Len() > 0 {
		return nil, fmt.Errorf("%d bytes follow the gzip stream", rest.Len())
	}
	return data, nil
}
