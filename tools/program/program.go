// Package program builds the project's programs and their image layers. Builds are reproducible: the same
// sources and toolchain give the same bytes on every machine.
package program

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
)

// versionPackage has the variables for version and commit. The linker sets them.
const versionPackage = "github.com/zarf-dev/zarf-registry/internal/version"

// Injected are the Go programs that the loader runs on nodes. The payload's others, in C, link nothing.
var Injected = []string{"registry", "registry-node"}

// tags are build tags by program. registry-node needs only HTTP/1.1; without HTTP/2 its payload, which
// every node fetches, is 0.14 MB smaller.
var tags = map[string]string{"registry-node": "nethttpomithttp2"}

// Main is the main function of the tool with a name. An interrupt ends run's context.
func Main(name string, run func(ctx context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Build builds the Go package pkg as a static program for a platform, such as linux/amd64, and writes it to
// output. The result does not depend on paths or environment variables such as GOAMD64. The commit is linked with the
// version. An empty version is not linked, nor is the commit: programs of the payload learn theirs when they start, so
// that they are the same in all releases between which their sources do not change.
func Build(ctx context.Context, pkg, platform, version, output string) error {
	system, architecture, _ := strings.Cut(platform, "/")
	ldflags := "-s -w"
	if version != "" {
		ldflags += " -X " + versionPackage + ".Version=" + version + " -X " + versionPackage + ".Commit=" + commit(ctx)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags="+tags[path.Base(pkg)],
		"-ldflags", ldflags, "-o", output, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+architecture,
		"GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building %s for %s: %w", pkg, platform, err)
	}
	return nil
}

// commit returns the hash of the commit, as the Makefile does; it is empty without a repository.
func commit(ctx context.Context) string {
	hash, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(hash))
}

// Layer writes the image layer of the file program to the file layer. Compressing a large program takes
// seconds, so Layer does nothing if PROGRAM.stamp shows that the layer is up to date.
func Layer(name, program, layer string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("layer of %s: %w", name, err)
		}
	}()
	stampFile := program + ".stamp"
	before, err := stamp(program, layer)
	if err != nil {
		return err
	}
	if last, err := os.ReadFile(stampFile); err == nil && string(last) == before {
		return nil
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	compressed, err := injector.BuildLayer(name, content)
	if err != nil {
		return err
	}
	if err := WriteFile(layer, compressed); err != nil {
		return err
	}
	after, err := stamp(program, layer)
	if err != nil {
		return err
	}
	return WriteFile(stampFile, []byte(after))
}

// stamp returns hashes of this program, whose compressor creates the layer, of the layer's program, and of
// the layer.
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
func WriteFile(name string, content []byte) error {
	return WriteTo(name, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// WriteJSON writes a value as indented JSON.
func WriteJSON(name string, value any) error {
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(name, append(content, '\n'))
}

// WriteTo writes a file atomically with what write writes. Others may read it.
func WriteTo(name string, write func(io.Writer) error) error {
	temp, err := os.CreateTemp(filepath.Dir(name), ".new-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }() // fails after the rename
	err = write(temp)
	if err := errors.Join(err, temp.Chmod(0o644), temp.Close()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.Rename(temp.Name(), name)
}
