// Package programs gives the hook the project's own programs: as payloads for nodes, and as images that it pushes into
// the release's registry and verifies with.
//
// It decides neither when to push nor what a verification means: package hook does.
package programs

import (
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/build"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/internal/payload/embedded"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// imagesBelow is the path prefix of the project's own images in the registry.
const imagesBelow = "zarf-registry"

// pushedHost stands for the registry in references of images to push, which drops it.
const pushedHost = "docker.io/"

// Embedded are the programs embedded in this binary.
type Embedded struct{}

// Payload returns a program for an architecture, as in GOARCH. It fails if the binary was built without it.
func (Embedded) Payload(program, architecture string) (*injector.Payload, error) {
	layer, err := embedded.Load(program, architecture)
	if err != nil {
		return nil, err
	}
	loader, err := embedded.Loader(architecture)
	if err != nil {
		return nil, err
	}
	content, err := embedded.Inflated(program, architecture)
	if err != nil {
		return nil, err
	}
	return injector.EncodeInflated(injector.Program{Name: program, Architecture: architecture}, layer, loader, content)
}

// Registry is the release's registry, with the images that the hook pushes into it.
type Registry struct {
	*cluster.Registry
	log *slog.Logger
	// own is init-hook's own image, and ownImage its content. If it is nil, missing says why. They are used
	// only for pushing.
	own      *state.HookImage
	ownImage graph.Item
	missing  string
}

// New prepares access to the registry, without a connection. inCluster says that this process runs in a pod. Only
// pushes from a workstation need a permission outside the namespace: to list nodes.
func New(ctx context.Context, s settings.Settings, config *rest.Config, client kubernetes.Interface, inCluster bool,
	log *slog.Logger) (*Registry, error) {
	r := &Registry{Registry: cluster.NewRegistry(config, client, s.Namespace, s.Release), log: log}
	r.Direct = inCluster
	if s.Mode != state.ModeProxy && s.Mode != state.ModeNodePort { // that needs the chart's settings, and a registry
		r.missing = "this command pushes no images"
		return r, nil
	}
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program's own file: %w", err)
	}
	architectures := []string{runtime.GOARCH}
	if !r.Direct {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("listing nodes: %w", err)
		}
		architectures = nil
		for _, n := range nodes.Items {
			architectures = append(architectures, n.Status.NodeInfo.Architecture)
		}
	}
	if r.missing = unfit(executable, architectures); r.missing == "" {
		if err := r.setOwn(executable); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// setOwn makes an image of this program's file.
func (r *Registry) setOwn(executable string) error {
	source, image, err := build.SelfImage(embedded.Layers(), executable, runtime.GOARCH, pushedHost+imagesBelow,
		"init-hook", version.Version)
	if err != nil {
		return err
	}
	r.ownImage = graph.Item{Image: image, Content: source}
	r.own = &state.HookImage{
		Reference:    strings.TrimPrefix(image.Reference, pushedHost) + "@" + image.Descriptor.Digest.String(),
		Architecture: runtime.GOARCH,
	}
	return nil
}

// unfit returns why this program's file cannot be an image FROM scratch for the nodes of
// the cluster, or "" if it can.
func unfit(executable string, architectures []string) string {
	if runtime.GOOS != "linux" {
		return "this program runs on " + runtime.GOOS
	}
	if !slices.Contains(architectures, runtime.GOARCH) {
		return "no node has architecture " + runtime.GOARCH
	}
	file, err := elf.Open(executable)
	if err != nil {
		return "its executable cannot be read: " + err.Error()
	}
	defer func() { _ = file.Close() }()
	if slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return "this program is linked dynamically (built without CGO_ENABLED=0)"
	}
	if _, err := fs.Stat(embedded.Layers(), build.LicensesFile); err != nil {
		return "this program was built without make payload: " + err.Error()
	}
	return ""
}

// probeImage returns the repository of the image that verifies a mode.
func probeImage(mode state.Mode) string { return imagesBelow + "/probe-" + string(mode) }

// probeTag returns the reference by which the image that verifies a mode is pushed.
func probeTag(mode state.Mode) string { return probeImage(mode) + ":" + version.Version }

// ProbeImage returns the reference of the image that verifies a mode, with its digest: others may move the tag.
func (r *Registry) ProbeImage(mode state.Mode) (string, error) {
	list, err := r.images()
	if err != nil {
		return "", err
	}
	for _, image := range list {
		if image.Reference == pushedHost+probeTag(mode) {
			return probeTag(mode) + "@" + image.Descriptor.Digest.String(), nil
		}
	}
	return "", fmt.Errorf("this program has no image %s", probeTag(mode))
}

// HookImage returns init-hook's own image, or nil and the reason why it is missing.
func (r *Registry) HookImage() (own *state.HookImage, missing string) { return r.own, r.missing }

// PushProgramImages pushes the images of the embedded programs and of init-hook itself,
// so that Jobs of later upgrades can pull them from the registry.
func (r *Registry) PushProgramImages(ctx context.Context, access release.PushAccess) ([]string, error) {
	registry, err := r.Open(access, remote.Options{Log: r.log})
	if err != nil {
		return nil, err
	}
	defer registry.Close()
	list, err := r.images()
	if err != nil {
		return nil, err
	}
	_, err = images.Push(ctx, list, registry, images.Options{Done: func(result images.Result) {
		r.log.Info("image pushed", "image", strings.TrimPrefix(result.Reference, registry.Host()+"/"),
			"digest", result.Digest.String(), "sent", result.BytesSent, "skipped", result.BytesSkipped, "took",
			result.Duration.Round(time.Millisecond).String())
	}})
	if err != nil {
		return nil, err
	}
	var pushed []string
	for _, image := range list {
		pushed = append(pushed, strings.TrimPrefix(image.Reference, pushedHost))
	}
	return pushed, nil
}

// images returns the images that PushProgramImages pushes.
func (r *Registry) images() ([]graph.Item, error) {
	carried, list, err := build.ProgramImages(embedded.Layers(), pushedHost+imagesBelow, version.Version)
	if err != nil {
		return nil, err
	}
	var made []graph.Item
	for _, image := range list {
		if !strings.HasPrefix(image.Reference, pushedHost+imagesBelow+"/probe:") {
			made = append(made, graph.Item{Image: image, Content: carried})
			continue
		}
		// One image under two names: the registry serves each of them in one mode only.
		for _, mode := range []state.Mode{state.ModeProxy, state.ModeNodePort} {
			image.Reference = pushedHost + probeTag(mode)
			made = append(made, graph.Item{Image: image, Content: carried})
		}
	}
	if r.own != nil {
		made = append(made, r.ownImage)
	}
	return made, nil
}
