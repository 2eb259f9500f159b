package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
)

// FromEngine returns the images that save writes to a temporary file, as engines save them.
func FromEngine(ctx context.Context, save func(*os.File) error) (*Source, error) {
	file, err := os.CreateTemp("", "zarf-registry-engine-")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(file.Name()) // a crash leaves nothing behind
	if err := save(file); err != nil {
		_ = file.Close()
		if blobstore.IsDiskFull(err) {
			err = fmt.Errorf("%w: make room in %s, or set TMPDIR", err, os.TempDir())
		}
		return nil, err
	}
	s, err := openFile(ctx, file)
	if err != nil {
		return nil, fmt.Errorf("images of the Docker engine: %w", err)
	}
	return s, nil
}

// inEngine finds the references at some positions in the Docker engine. It sets what it finds and what fails. lacking
// is the engine's error about all that it does not have.
func (o ResolveOptions) inEngine(ctx context.Context, refs []string, at []int, found [][]graph.Item,
	failed []error) (lacking error) {
	if len(at) == 0 {
		return nil
	}
	var names []string
	for _, i := range at {
		names = append(names, strings.TrimPrefix(refs[i], name.DaemonPrefix))
	}
	source, lacking := o.Engine(ctx, names)
	if source == nil {
		return lacking
	}
	for n, i := range at {
		items, err := o.fromEngine(ctx, source, names[n])
		if found[i] = items; err != nil && (lacking == nil || !errors.Is(err, errNotSent)) {
			failed[i] = fmt.Errorf("image %s: %w", refs[i], err)
		}
	}
	return lacking
}

var errNotSent = errors.New("the Docker engine did not send it")

func (o ResolveOptions) fromEngine(ctx context.Context, source *Source, ref string) ([]graph.Item, error) {
	named, err := name.Named(ref)
	if err != nil {
		return nil, err
	}
	for _, image := range source.Images() {
		other, err := name.Named(image.Reference)
		if err != nil || other.String() != named.String() {
			continue
		}
		image.Reference = named.String()
		if err := o.Platforms.Filter(ctx, source, &image, &source.made); err != nil {
			return nil, err
		}
		item, err := o.describeImage(ctx, source, image)
		return []graph.Item{item}, err
	}
	return nil, fmt.Errorf("%w: got %s", errNotSent, names(source.Images()))
}
