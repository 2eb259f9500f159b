// Package program builds the project's programs and their image layers for every architecture,
// reproducibly: the same sources and toolchain give the same bytes on every machine.
//
// It runs the go command and writes files. Images and payloads are assembled elsewhere.
package program

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"

	"github.com/zarf-dev/zarf-registry/internal/injector"
)

// versionVariable is the variable that the linker sets to the version.
const versionVariable = "github.com/zarf-dev/zarf-registry/internal/version.Version"

// tags are build tags by program. registry-node speaks only HTTP/1.1, and every node fetches it:
// without HTTP/2 it is 0.14 MB smaller, compressed.
var tags = map[string]string{"registry-node": "nethttpomithttp2"}

// Build builds the Go program of package pkg into the file output, static and for Linux. Paths, the
// state of the repository, and environment variables that select instructions do not influence the
// result.
func Build(ctx context.Context, pkg, architecture, version, output string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags="+tags[path.Base(pkg)],
		"-ldflags", "-s -w -X "+versionVariable+"="+version, "-o", output, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture,
		"GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building %s for %s: %w", pkg, architecture, err)
	}
	return nil
}

// Layer writes the image layer of the program in the file program to the file layer. It does
// nothing if program.stamp says that the layer is current: compressing a large program takes
// seconds.
func Layer(name, program, layer string) error {
	stampFile := program + ".stamp"
	before, err := stamp(program, layer)
	if err != nil {
		return fmt.Errorf("layer of %s: %w", name, err)
	}
	if last, err := os.ReadFile(stampFile); err == nil && string(last) == before {
		return nil
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("layer of %s: %w", name, err)
	}
	compressed, err := injector.BuildLayer(name, content)
	if err != nil {
		return err
	}
	if err := WriteFile(layer, compressed, 0o644); err != nil {
		return fmt.Errorf("layer of %s: %w", name, err)
	}
	after, err := stamp(program, layer)
	if err != nil {
		return fmt.Errorf("layer of %s: %w", name, err)
	}
	if err := WriteFile(stampFile, []byte(after), 0o644); err != nil {
		return fmt.Errorf("layer of %s: %w", name, err)
	}
	return nil
}

// stamp identifies the inputs of a layer and the layer itself, so that a new compressor or a
// modified layer count as changes.
func stamp(program, layer string) (string, error) {
	tool, err := os.Executable()
	if err != nil {
		return "", err
	}
	var all string
	for _, file := range []string{tool, program, layer} {
		content, err := os.ReadFile(file)
		if err != nil && (file != layer || !errors.Is(err, fs.ErrNotExist)) {
			return "", err
		}
		all += fmt.Sprintf("%x\n", sha256.Sum256(content))
	}
	return all, nil
}

// WriteFile writes a file atomically.
func WriteFile(name string, content []byte, mode fs.FileMode) error {
	temp, err := os.CreateTemp(filepath.Dir(name), ".new-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }() // fails after the rename
	_, err = temp.Write(content)
	if err := errors.Join(err, temp.Chmod(mode), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), name)
}
