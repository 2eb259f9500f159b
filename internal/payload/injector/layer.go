package injector

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"
)

const tarBlock = 512

// BuildLayer builds the image layer of a program, as the package comment describes. It is
// deterministic.
func BuildLayer(name string, program []byte) ([]byte, error) {
	if !nameForm.MatchString(name) {
		return nil, fmt.Errorf("program name %q: must be 1 to 32 of a-z, 0-9 and '-'", name)
	}
	if len(program) < 1 || len(program) > MaxProgramSize {
		return nil, fmt.Errorf("program %s has %d bytes: must have 1 to %d", name, len(program), MaxProgramSize)
	}
	var layer bytes.Buffer
	compressor, err := gzip.NewWriterLevel(&layer, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	archive := tar.NewWriter(compressor)
	err = archive.WriteHeader(header(name, int64(len(program))))
	if err == nil {
		_, err = archive.Write(program)
	}
	if err := errors.Join(err, archive.Close(), compressor.Close()); err != nil {
		return nil, fmt.Errorf("building the layer of %s: %w", name, err)
	}
	return layer.Bytes(), nil
}

func header(name string, size int64) *tar.Header {
	return &tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: 0o555, Size: size, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
	}
}

// Inflated describes the content of a layer. To inflate the layers takes most of a Job's CPU time, so make
// payload records this in [InflatedFile].
type Inflated struct {
	LayerSHA256   string `json:"layerSHA256"`   // of the layer that this describes
	ArchiveSHA256 string `json:"archiveSHA256"` // the diff ID of the image
	ProgramSHA256 string `json:"programSHA256"`
	ProgramSize   int64  `json:"programSize"` // bytes
}

// InflatedFile is beside the layers: a JSON object with an [Inflated] for each [Program.Key].
const InflatedFile = "inflated.json"

// ReadInflated reads [InflatedFile]. The map is empty if there is no such file.
func ReadInflated(fsys fs.FS) (map[string]Inflated, error) {
	contents := map[string]Inflated{}
	data, err := fs.ReadFile(fsys, InflatedFile)
	if err == nil {
		err = json.Unmarshal(data, &contents)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", InflatedFile, err)
	}
	return contents, nil
}

// Inflate describes the content of a layer. The archive must equal, byte for byte, what BuildLayer builds
// from the program in it. It keeps only one block of the archive in memory.
func Inflate(name string, layer []byte) (Inflated, error) {
	z, err := openGzip(layer)
	if err != nil {
		return Inflated{}, err
	}
	archive, program := sha256.New(), sha256.New()
	content := io.TeeReader(z, archive)
	var block [tarBlock]byte
	if _, err := io.ReadFull(content, block[:]); err != nil {
		return Inflated{}, fmt.Errorf("reading the archive's header: %w", err)
	}
	got, err := tar.NewReader(bytes.NewReader(block[:])).Next()
	if err != nil {
		return Inflated{}, fmt.Errorf("reading the archive's header: %w", err)
	}
	size := got.Size
	var want bytes.Buffer
	if err := tar.NewWriter(&want).WriteHeader(header(name, size)); err != nil {
		return Inflated{}, fmt.Errorf("building the expected header: %w", err)
	}
	if !bytes.Equal(block[:], want.Bytes()) || size < 1 || size > MaxProgramSize {
		return Inflated{}, fmt.Errorf("the archive starts with %q of %d bytes: must start with %s as BuildLayer writes it",
			got.Name, size, name)
	}

	if _, err := io.CopyN(program, content, size); err != nil {
		return Inflated{}, fmt.Errorf("reading the program: %w", err)
	}
	end := make([]byte, (tarBlock-size%tarBlock)%tarBlock+2*tarBlock)
	if _, err := io.ReadFull(content, end); err != nil {
		return Inflated{}, fmt.Errorf("reading the archive's end: %w", err)
	}
	if slices.ContainsFunc(end, func(b byte) bool { return b != 0 }) {
		return Inflated{}, errors.New("the archive contains more than the program")
	}
	if err := z.finish(); err != nil {
		return Inflated{}, err
	}
	sum := sha256.Sum256(layer)
	return Inflated{LayerSHA256: hex.EncodeToString(sum[:]), ArchiveSHA256: hex.EncodeToString(archive.Sum(nil)),
		ProgramSHA256: hex.EncodeToString(program.Sum(nil)), ProgramSize: size}, nil
}

// gzipReader reads a single gzip member, as strictly as the loader.
type gzipReader struct {
	*gzip.Reader
	rest *bytes.Reader // what follows the member
}

func openGzip(stream []byte) (*gzipReader, error) {
	const flags, reserved = 3, 0xe0 // RFC 1952, section 2.3.1
	// A bytes.Reader is a ByteReader, so that nothing beyond the member is consumed.
	z := &gzipReader{rest: bytes.NewReader(stream)}
	var err error
	z.Reader, err = gzip.NewReader(z.rest)
	if err == nil && stream[flags]&reserved != 0 {
		err = gzip.ErrHeader
	}
	if err != nil {
		return nil, fmt.Errorf("reading the gzip header: %w", err)
	}
	z.Multistream(false)
	return z, nil
}

// finish checks that the member ends here, its checksum is correct and nothing follows.
func (z *gzipReader) finish() error {
	n, err := io.CopyN(io.Discard, z, 1)
	switch {
	case n == 0 && !errors.Is(err, io.EOF):
		return fmt.Errorf("inflating: %w", err)
	case n > 0:
		return errors.New("inflates to more than the limit")
	case z.rest.Len() > 0:
		return fmt.Errorf("%d bytes follow the gzip stream", z.rest.Len())
	}
	return nil
}
