package main

import (
	"context"
	"fmt"
	"io"
	"net/http"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
)

const (
	// layersAtOnce is the number of concurrent downloads of containerd (max_concurrent_downloads).
	layersAtOnce = 3
	// layers is their number in large images, smallLayer the size of that in the small one.
	layers, smallLayer = 8, 10_000
	tag                = "v1"
)

// prepare issues the certificates and pushes the images to the registry's storage.
func (b *benchmark) prepare(ctx context.Context) (err error) {
	if err := b.issue(); err != nil {
		return err
	}
	process, err := registries.StartOurs(ctx, b.registry, b.path("registry"), "", b.certificates)
	if err != nil {
		return err
	}
	defer process.Stop()
	client := registries.NewClient(b.certificates.Push())
	defer client.CloseIdleConnections()
	if b.small, err = registries.PushImage(ctx, client, process, "bench/small", tag, 0, 1, smallLayer); err != nil {
		return err
	}
	b.large = map[int64]registries.Image{}
	for _, c := range crowds[1:] { // the first has the image of the second
		if b.large[c.image], err = registries.PushImage(ctx, client, process, fmt.Sprintf("bench/%d", c.image), tag, 0,
			layers, c.image/b.divisor/layers); err != nil {
			return err
		}
	}
	return nil
}

// client returns a client in the namespace, with connections of its own.
func (m member) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: m.dial, DisableCompression: true,
		MaxIdleConnsPerHost: layersAtOnce}}
}

// pull sends the requests of a container runtime that pulls an image, once each, and verifies what it gets.
func pull(ctx context.Context, client *http.Client, server string, i registries.Image) error {
	base := server + "/v2/" + i.Repository
	accept := i.Manifest.MediaType
	if _, err := registries.Get(ctx, client, http.MethodHead, base+"/manifests/"+tag, accept, i.Manifest.Size,
		io.Discard); err != nil {
		return err
	}
	if err := verified(ctx, client, base+"/manifests/", accept, i.Manifest); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(layersAtOnce)
	for _, d := range i.Blobs {
		group.Go(func() error { return verified(ctx, client, base+"/blobs/", "", d) })
	}
	return group.Wait()
}

// verified gets content.
func verified(ctx context.Context, client *http.Client, base, accept string, d ocispec.Descriptor) error {
	verifier := d.Digest.Verifier()
	_, err := registries.Get(ctx, client, http.MethodGet, base+d.Digest.String(), accept, d.Size, verifier)
	if err == nil && !verifier.Verified() {
		return fmt.Errorf("%s: wrong content", d.Digest)
	}
	return err
}
