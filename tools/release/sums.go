package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/tools/program"
)

const fileSums = "SHA256SUMS"

// sums returns the SHA-256 hashes of the files in dir, by name.
func sums(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, e := range entries {
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		found[e.Name()] = hex.EncodeToString(sum.Sum(nil))
	}
	return found, nil
}

// writeSums writes SHA256SUMS and prints the files of the release.
func writeSums(dir string, out io.Writer) error {
	sums, err := sums(dir)
	if err != nil {
		return err
	}
	var lines []byte
	for _, name := range slices.SortedFunc(maps.Keys(sums), cmp.Compare) {
		lines = fmt.Appendf(lines, "%s  %s\n", sums[name], name)
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-36s %10s  %s\n", name, space.FormatBytes(info.Size()), sums[name])
	}
	return program.WriteFile(filepath.Join(dir, fileSums), lines)
}
