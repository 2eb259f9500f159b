package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"oras.land/oras-go/v2/content"

	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/injector"
	"github.com/zarf-dev/zarf-registry/internal/programs"
	"github.com/zarf-dev/zarf-registry/internal/state"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// imagesBelow is the repository path of the project's own images in the registry.
const imagesBelow = "zarf-registry"

// carriedPrograms are the programs inside this binary.
type carriedPrograms struct{}

func (carriedPrograms) Payload(program, architecture string) (*injector.Payload, error) {
	layer, err := programs.Load(program, architecture)
	if err != nil {
		return nil, err
	}
	loader, err := programs.Loader(architecture)
	if err != nil {
		return nil, err
	}
	return injector.Encode(injector.Program{Name: program, Architecture: architecture}, layer, loader)
}

// inClusterRegistry is the registry as a hook Job's pod reaches it.
type inClusterRegistry struct{ log *slog.Logger }

// ProbeImage names the image that proves a mode.
func (inClusterRegistry) ProbeImage(mode state.Mode) string {
	return fmt.Sprintf("%s/probe-%s:%s", imagesBelow, mode, version.Version)
}

// HookImage is this program's own.
func (inClusterRegistry) HookImage() *state.HookImage { return nil }

// PlainOpen dials the pod.
func (inClusterRegistry) PlainOpen(context.Context, *corev1.Pod) (bool, error) { return false, nil }

// PushProgramImages pushes the images of the carried programs and of init-hook
// itself, so that Jobs of later upgrades can be pulled from the registry.
func (r inClusterRegistry) PushProgramImages(ctx context.Context, access hook.Access) ([]string, error) {
	registry, err := openRegistry(access, dialService)
	if err != nil {
		return nil, err
	}
	defer registry.Close()
	// The registry's name in these references is dropped when they are pushed.
	const repository = "docker.io/" + imagesBelow
	carried, list, err := images.ProgramImages(programs.Layers(), repository, version.Version)
	if err != nil {
		return nil, err
	}
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program's own file: %w", err)
	}
	own, ownImage, err := images.SelfImage(executable, runtime.GOARCH, repository, "init-hook", version.Version)
	if err != nil {
		return nil, err
	}

	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2) // an image has few blobs: two at once keep both ends busy
	push := func(source content.ReadOnlyStorage, image images.Image) {
		group.Go(func() error {
			result, err := images.Push(ctx, source, image, registry, images.PushOptions{})
			if err != nil {
				return err
			}
			r.log.Info("image pushed", "image", strings.TrimPrefix(result.Reference, registry.Host()+"/"), "digest", result.Digest.String(),
				"sent", result.BytesSent, "skipped", result.BytesSkipped, "took", result.Duration.Round(time.Millisecond).String())
			return nil
		})
	}
	for _, image := range list {
		push(carried, image)
	}
	push(own, ownImage)
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var pushed []string
	for _, image := range append(list, ownImage) {
		pushed = append(pushed, strings.TrimPrefix(image.Reference, "docker.io/"))
	}
	return pushed, nil
}

// dialService dials a Service of the pod's own namespace by the address that the
// kubelet put into the environment, and by its DNS name where there is none: the
// way to the registry must not depend on cluster DNS.
func dialService(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	service, _, _ := strings.Cut(host, ".")
	variable := strings.ToUpper(strings.ReplaceAll(service, "-", "_")) + "_SERVICE_HOST"
	if ip := os.Getenv(variable); ip != "" {
		host = ip
	}
	return (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, net.JoinHostPort(host, port))
}
