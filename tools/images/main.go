// Command images builds the project's images as OCI archives for amd64 and arm64. It builds init-hook with
// the embedded payload; the layers of registry, registry-node and probe are those of the payload. Archives
// of the same sources are identical. The digests of the images that init-hook makes of itself are written to
// a file of the chart, whose CronJobs refer to them.
//
// make images runs it in the repository's root, after make payload.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/build"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/tools/program"
)

func main() { program.Main("images", run) }

const initHook = "init-hook"

func run(ctx context.Context) error {
	version := flag.String("version", "dev", "version of the programs and tag of the images")
	registry := flag.String("registry", "ghcr.io/zarf-dev/zarf-registry", "prefix of the images' names")
	output := flag.String("output", "dist/images", "folder to write the archives to")
	payload := flag.String("payload", "internal/payload/embedded/dist", "folder with the payload")
	work := flag.String("work", "bin/images", "folder to write the programs to")
	digests := flag.String("digests", "charts/zarf-registry/files/init-hook.json", "file to write the digests to")
	list := flag.String("architectures", strings.Join(build.Architectures, ","), "architectures to build for")
	flag.Parse()
	architectures := strings.Split(*list, ",")
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if _, _, err := name.Repository(build.NewSpec(*registry, initHook, *version).Reference); err != nil {
		return err
	}
	for _, dir := range []string{*output, *work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, arch := range architectures {
		file := filepath.Join(*work, initHook+"-"+arch)
		if err := program.Build(ctx, "./cmd/"+initHook, "linux/"+arch, *version, file); err != nil {
			return err
		}
		if err := program.Layer(initHook, file, file+".tar.gz"); err != nil {
			return err
		}
	}
	index, err := write(ctx, os.Stdout, os.DirFS(*work), os.DirFS(*payload), *registry, *version, *output, architectures)
	if err != nil {
		return err
	}
	return writeDigests(os.DirFS(*payload), *digests, *work, *version, index, architectures)
}

// writeDigests writes the digests of the images that finish pushes, by architecture, and of the published index.
func writeDigests(payload fs.FS, file, work, version, index string, architectures []string) error {
	digests := map[string]string{"index": index}
	for _, arch := range architectures {
		_, image, err := build.SelfImage(payload, filepath.Join(work, initHook+"-"+arch), arch, "docker.io/zarf-registry",
			initHook, version)
		if err != nil {
			return err
		}
		digests[arch] = image.Descriptor.Digest.String()
	}
	return program.WriteJSON(file, digests)
}

// write writes an archive for each image, prints its name, digest and size, and returns the digest of init-hook's
// index.
func write(ctx context.Context, out io.Writer, work, payload fs.FS, registry, version, output string,
	architectures []string) (string, error) {
	licenses, err := build.GzipLayer(payload, build.LicensesFile)
	if err != nil {
		return "", fmt.Errorf("%w (make payload writes it)", err)
	}
	var variants []build.Variant
	for _, arch := range architectures {
		layer, err := build.GzipLayer(work, initHook+"-"+arch+".tar.gz")
		if err != nil {
			return "", fmt.Errorf("image of %s for %s: %w", initHook, arch, err)
		}
		variants = append(variants, build.Variant{Architecture: arch, Layers: []build.Layer{layer, licenses}})
	}
	store := &graph.Store{}
	hook, err := build.Image(store, build.NewSpec(registry, initHook, version), variants...)
	if err != nil {
		return "", err
	}
	programs, list, err := build.ProgramImages(payload, registry, version)
	if err != nil {
		return "", fmt.Errorf("%w (make payload builds the programs)", err)
	}
	if err := writeArchive(ctx, out, store, hook, filepath.Join(output, initHook+".tar")); err != nil {
		return "", err
	}
	for i, image := range list {
		if err := writeArchive(ctx, out, programs, image, filepath.Join(output, build.ProgramNames[i]+".tar")); err != nil {
			return "", err
		}
	}
	return hook.Descriptor.Digest.String(), nil
}

func writeArchive(ctx context.Context, out io.Writer, store *graph.Store, image graph.Image, name string) error {
	if err := images.WriteArchive(ctx, name, store, image); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n  %s\n  %s, %s\n", image.Reference, image.Descriptor.Digest, name, space.FormatBytes(image.Size))
	return nil
}
