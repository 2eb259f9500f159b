package main

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/tools/program"
)

const (
	fileSignature = fileSums + ".sigstore.json"
	suffixBundle  = ".tar.gz"
	suffixSum     = ".sha256"
)

// bundleName is the name of the bundle without its suffix, and of the only folder in it. The chart's package
// is zarf-registry-VERSION.
func (r release) bundleName() string { return "zarf-registry-bundle-" + r.version }

// pack writes the bundle of the files in dir that SHA256SUMS lists, of SHA256SUMS and, if it exists, its
// signature. Files that do not match SHA256SUMS are refused. Next to the bundle it writes its checksum.
func (r release) pack(dir string, out io.Writer) error {
	want, err := readSums(filepath.Join(dir, fileSums))
	if err != nil {
		return err
	}
	name := r.bundleName() + suffixBundle
	sum := sha256.New()
	err = program.WriteTo(filepath.Join(dir, name), func(w io.Writer) error {
		buffered := bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<20)
		z := gzip.NewWriter(buffered) // no name and no time
		t := tar.NewWriter(z)
		return errors.Join(r.packFiles(t, dir, want), t.Close(), z.Close(), buffered.Flush())
	})
	if err != nil {
		return err
	}
	info, err := os.Stat(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	fmt.Fprintf(out, "%-36s %10s  %s\n", name, space.FormatBytes(info.Size()), digest)
	return program.WriteFile(filepath.Join(dir, name+suffixSum), fmt.Appendf(nil, "%s  %s\n", digest, name))
}

// packFiles writes the files sorted by name, all with the commit's time.
func (r release) packFiles(t *tar.Writer, dir string, want map[string]string) error {
	names := []string{fileSums}
	if _, err := os.Stat(filepath.Join(dir, fileSignature)); err == nil {
		names = append(names, fileSignature)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	names = slices.AppendSeq(names, maps.Keys(want))
	slices.Sort(names)
	folder := r.bundleName() + "/"
	header := tar.Header{Typeflag: tar.TypeDir, Name: folder, Mode: 0o755, ModTime: r.source.time, Format: tar.FormatPAX}
	if err := t.WriteHeader(&header); err != nil {
		return err
	}
	for _, name := range names {
		got, err := packFile(t, filepath.Join(dir, name), tar.Header{Typeflag: tar.TypeReg, Name: path.Join(folder, name),
			Mode: modeOf(name), ModTime: r.source.time, Format: tar.FormatPAX})
		if err != nil {
			return err
		}
		if sum, listed := want[name]; listed && sum != got {
			return fmt.Errorf("%s does not match %s: run make release again", name, fileSums)
		}
	}
	return nil
}

// modeOf returns the mode of a file. That on the disk is lost where the files were downloaded.
func modeOf(name string) int64 {
	if strings.HasPrefix(name, workstationProgram+"-") && filepath.Ext(name) == "" {
		return 0o755
	}
	return 0o644
}

// packFile writes a file and returns its SHA-256 hash.
func packFile(t *tar.Writer, file string, header tar.Header) (sum string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	header.Size = info.Size()
	if err := t.WriteHeader(&header); err != nil {
		return "", err
	}
	hash := sha256.New()
	_, err = io.Copy(io.MultiWriter(t, hash), f)
	return hex.EncodeToString(hash.Sum(nil)), err
}

// readSums reads hashes by file name, as writeSums writes them.
func readSums(file string) (map[string]string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w (make release writes it)", err)
	}
	sums := map[string]string{}
	for line := range strings.Lines(string(content)) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok || filepath.Base(name) != name {
			return nil, fmt.Errorf("%s: invalid line %q: run make release again", file, strings.TrimSpace(line))
		}
		sums[name] = sum
	}
	return sums, nil
}
