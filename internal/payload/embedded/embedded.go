// Package embedded provides the programs that are compiled into init-hook for delivery to nodes,
// for every architecture. It does not build them: make payload fills its folder dist before
// init-hook is compiled.
//
// The files in dist, for each of [Architectures]:
//
//	registry-ARCH.tar.gz, registry-node-ARCH.tar.gz, probe-ARCH.tar.gz
//	        the program as the layer of its image, see injector.BuildLayer
//	loader-ARCH
//	        the loader, an ELF file
//
// and injector.InflatedFile, and licenses.tar.gz, the layer with the license texts.
package embedded

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
)

//go:embed all:dist
var dist embed.FS

// Architectures are the architectures that programs are built for, as in GOARCH.
var Architectures = []string{"amd64", "arm64"}

// Layers returns the folder with the layers, NAME-ARCH.tar.gz. It is read-only and safe for
// concurrent use.
func Layers() fs.FS {
	sub, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // the name is valid
	}
	return sub
}

// Load returns the layer of a program. The caller must not modify it. The error names a missing
// program.
func Load(name, architecture string) ([]byte, error) {
	return read(name + "-" + architecture + ".tar.gz")
}

// Loader returns the loader for an architecture. The caller must not modify it.
func Loader(architecture string) ([]byte, error) {
	return read("loader-" + architecture)
}

// Inflated returns what make payload recorded about the content of a program's layer, the zero value if
// nothing.
func Inflated(name, architecture string) (injector.Inflated, error) {
	recorded, err := injector.ReadInflated(Layers())
	if err != nil {
		return injector.Inflated{}, fmt.Errorf("embedded file %w", err)
	}
	return recorded[injector.Program{Name: name, Architecture: architecture}.Key()], nil
}

func read(file string) ([]byte, error) {
	data, err := dist.ReadFile(path.Join("dist", file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("this program was built without %s: build it with make build, "+
			"or limit the architectures to %v", file, Architectures)
	}
	return data, err
}
