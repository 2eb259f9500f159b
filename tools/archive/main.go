// Command archive writes an OCI archive of an image that contains one static program. The demo uses it
// to build an image without a container engine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/build"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "archive:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	reference := flag.String("reference", "", "name of the image")
	output := flag.String("output", "", "path of the archive")
	flag.Parse()
	if *reference == "" || *output == "" || flag.NArg() != 1 {
		return errors.New("usage: archive --reference NAME:TAG --output FILE PROGRAM")
	}
	program := flag.Arg(0)
	name := filepath.Base(program)
	layer, err := build.FileLayer(name, program)
	if err != nil {
		return err
	}
	store := &graph.Store{}
	image, err := build.Image(store, build.Spec{Reference: *reference, Entrypoint: []string{"/" + name}},
		build.Variant{Architecture: runtime.GOARCH, Layers: []build.Layer{layer}})
	if err != nil {
		return err
	}
	return images.WriteArchive(context.Background(), *output, store, image)
}
