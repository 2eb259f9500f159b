// Command payload builds the programs that init-hook embeds: registry and registry-node, the loader that runs them
// on nodes without their images, and the probe for verifying pulls. Each program becomes the layer of its image,
// NAME-ARCHITECTURE.tar.gz; licenses.tar.gz is the layer with license texts. The loader is copied to
// loader-ARCHITECTURE. The digests of the payloads are written to a file of the chart, so that its pods are replaced
// only when their program changes.
//
// make payload runs it in the repository's root.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/images/build"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/tools/program"
)

func main() { program.Main("payload", run) }

func run(ctx context.Context) error {
	output := flag.String("output", "internal/payload/embedded/dist", "folder to write the payload to")
	digests := flag.String("digests", "charts/zarf-registry/files/programs.json", "file to write the digests to")
	work := flag.String("work", "bin/payload", "folder to write the programs to")
	list := flag.String("architectures", strings.Join(build.Architectures, ","), "architectures to build for")
	flag.Parse()
	architectures := strings.Split(*list, ",")
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	for _, dir := range []string{*output, *work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := buildLoader(ctx, *work, architectures); err != nil {
		return err
	}
	for _, arch := range architectures {
		for _, name := range program.Injected {
			if err := program.Build(ctx, "./cmd/"+name, "linux/"+arch, "", filepath.Join(*work, name+"-"+arch)); err != nil {
				return err
			}
		}
	}

	var layers errgroup.Group
	layers.SetLimit(runtime.NumCPU())
	for _, arch := range architectures {
		for _, name := range build.ProgramNames {
			layers.Go(func() error {
				file := filepath.Join(*work, name+"-"+arch)
				return program.Layer(name, file, file+".tar.gz")
			})
		}
	}
	if err := layers.Wait(); err != nil {
		return err
	}
	if err := writeLicenses(ctx, *work); err != nil {
		return err
	}
	return finish(*work, *output, *digests, architectures)
}

// writeLicenses writes the license texts of all that programs link, and the layer with them.
func writeLicenses(ctx context.Context, work string) error {
	texts, err := program.Licenses(ctx, "./cmd/...")
	if err != nil {
		return err
	}
	if err := program.WriteFile(filepath.Join(work, program.LicensesText), texts); err != nil {
		return err
	}
	layer, err := program.LicensesLayer(texts)
	if err != nil {
		return err
	}
	return program.WriteFile(filepath.Join(work, build.LicensesFile), layer)
}

// buildLoader builds the C programs with the loader's Makefile.
func buildLoader(ctx context.Context, work string, architectures []string) error {
	out, err := filepath.Abs(work)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "make",
		append([]string{"--no-print-directory", "-C", "loader", "OUT=" + out}, architectures...)...)
	// Do not inherit the flags of a make that runs this program.
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building loader and probe: %w (make deps installs the compilers)", err)
	}
	return nil
}

// finish copies loaders and layers to output, writes the digests, and prints sizes. It encodes each payload like
// init-hook, to detect a program that has become too large. It removes all other files from output, because the whole
// folder is embedded. The digests are removed first and written last: after an interruption, the chart has none instead
// of those of other programs.
func finish(work, output, digestFile string, architectures []string) error {
	// make images writes the second one again, after building init-hook with this payload.
	for _, file := range []string{digestFile, filepath.Join(filepath.Dir(digestFile), "init-hook.json")} {
		if err := os.RemoveAll(file); err != nil {
			return err
		}
	}
	kept := []string{".gitignore", injector.InflatedFile}
	take := func(name string) ([]byte, error) {
		content, err := os.ReadFile(filepath.Join(work, name))
		if err != nil {
			return nil, err
		}
		kept = append(kept, name)
		return content, program.WriteFile(filepath.Join(output, name), content)
	}
	if _, err := take(build.LicensesFile); err != nil {
		return err
	}
	digests, contents := map[string]string{}, map[string]injector.Inflated{}
	for _, arch := range architectures {
		loaderName := "loader-" + arch
		loader, err := take(loaderName)
		if err != nil {
			return err
		}
		fmt.Printf("%-28s %s\n", loaderName, space.FormatBytes(int64(len(loader))))
		for _, name := range build.ProgramNames {
			layerName := name + "-" + arch + ".tar.gz"
			layer, err := take(layerName)
			if err != nil {
				return err
			}
			line := fmt.Sprintf("%-28s %s", layerName, space.FormatBytes(int64(len(layer))))
			p := injector.Program{Name: name, Architecture: arch}
			content, err := injector.Inflate(name, layer)
			if err != nil {
				return fmt.Errorf("layer of %s: %w", p, err)
			}
			contents[p.Key()] = content
			if slices.Contains(program.Injected, name) {
				payload, err := injector.EncodeInflated(p, layer, loader, content)
				if err != nil {
					return err
				}
				digests[payload.Key()] = payload.Digest()
				line += fmt.Sprintf(" in %d ConfigMaps", len(payload.Chunks))
			}
			fmt.Println(line)
		}
	}
	entries, err := os.ReadDir(output)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !slices.Contains(kept, entry.Name()) {
			if err := os.RemoveAll(filepath.Join(output, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := program.WriteJSON(filepath.Join(output, injector.InflatedFile), contents); err != nil {
		return err
	}
	return program.WriteJSON(digestFile, digests)
}
