package program

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// LicensesText is the name of the file with the texts that [Licenses] returns.
const LicensesText = "LICENSES.txt"

// licensePlatforms are the platforms whose packages [Licenses] looks at. Other architectures link the same modules.
var licensePlatforms = []string{"linux", "darwin"}

// licenseFile matches the names of files with the terms of a license.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright)([.-].*)?$`)

// Licenses returns the license texts of packages and of all that they link: those in the folder of each package and
// in the folders above it, up to that of its module. Equal texts are listed once, after the modules that have them.
// A module without any is an error.
func Licenses(ctx context.Context, packages ...string) ([]byte, error) {
	root, err := goCommand(ctx, "", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	files := map[string][]string{"Go standard library": {filepath.Join(root, "LICENSE")}} // by module
	seen := map[string]bool{}                                                             // folders
	for _, system := range licensePlatforms {
		list, err := goCommand(ctx, system, append([]string{"list", "-deps", "-f",
			"{{with .Module}}{{.Path}} {{.Version}}\t{{.Dir}}\t{{$.Dir}}{{end}}"}, packages...)...)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(list) {
			module, dirs, ok := strings.Cut(strings.TrimSpace(line), "\t")
			if !ok {
				continue // the standard library
			}
			module = strings.TrimSpace(module) // the project has no version
			top, dir, _ := strings.Cut(dirs, "\t")
			for ; strings.HasPrefix(dir, top) && !seen[dir]; dir = filepath.Dir(dir) {
				seen[dir] = true
				found, err := licenseFiles(dir)
				if err != nil {
					return nil, err
				}
				files[module] = append(files[module], found...)
			}
		}
	}
	modules := map[string][]string{} // by text
	for _, module := range slices.Sorted(maps.Keys(files)) {
		if len(files[module]) == 0 {
			return nil, fmt.Errorf("module %s has no license file", module)
		}
		for _, file := range files[module] {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			if key := string(bytes.TrimSpace(text)); !slices.Contains(modules[key], module) {
				modules[key] = append(modules[key], module)
			}
		}
	}
	var all bytes.Buffer
	for _, text := range slices.SortedFunc(maps.Keys(modules), func(a, b string) int {
		return cmp.Or(slices.Compare(modules[a], modules[b]), cmp.Compare(a, b))
	}) {
		fmt.Fprintf(&all, "%s\n%s\n\n%s\n\n", strings.Repeat("=", 80), strings.Join(modules[text], "\n"), text)
	}
	return all.Bytes(), nil
}

// licenseFiles returns the files in a folder that contain the terms of a license.
func licenseFiles(dir string) (files []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.Type().IsRegular() && licenseFile.MatchString(e.Name()) && filepath.Ext(e.Name()) != ".go" {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, err
}

// goCommand returns the output of a go command for an operating system.
func goCommand(ctx context.Context, system string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system)
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return "", fmt.Errorf("go %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

// LicensesLayer returns the image layer with license texts as the file /licenses/LICENSES.txt.
func LicensesLayer(texts []byte) ([]byte, error) {
	var layer bytes.Buffer
	compressor, err := gzip.NewWriterLevel(&layer, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	archive := tar.NewWriter(compressor)
	for _, header := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "licenses/", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "licenses/" + LicensesText, Mode: 0o444, Size: int64(len(texts))},
	} {
		header.ModTime, header.Format = time.Unix(0, 0), tar.FormatUSTAR
		err = errors.Join(err, archive.WriteHeader(&header))
	}
	if err == nil {
		_, err = archive.Write(texts)
	}
	err = errors.Join(err, archive.Close(), compressor.Close())
	return layer.Bytes(), err
}
