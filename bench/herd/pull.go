package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
)

const (
	// layersAtOnce is the number of concurrent downloads of containerd (max_concurrent_downloads).
	layersAtOnce = 3
	repository   = "bench/herd"
	tag          = "v1"
)

// image is the pushed image.
type image struct{ registries.Image }

func (b *benchmark) push(ctx context.Context, to *registries.Process) (image, error) {
	client := registries.NewClient(b.certificates.Push())
	defer client.CloseIdleConnections()
	i, err := registries.PushImage(ctx, client, to, repository, tag, 0, b.layers, b.imageBytes/int64(b.layers))
	return image{i}, err
}

// progress calls reached once so many bytes have been written.
type progress struct {
	left    atomic.Int64
	once    sync.Once
	reached func()
}

func (p *progress) Write(part []byte) (int, error) {
	if p.left.Add(-int64(len(part))) <= 0 {
		p.once.Do(p.reached)
	}
	return len(part), nil
}

var errWrong = errors.New("wrong content")

// pull sends the requests of a container runtime that pulls the image, once each, and verifies what it gets.
func (i image) pull(ctx context.Context, client *http.Client, server string, delivered io.Writer) error {
	base := server + "/v2/" + repository
	accept := i.Manifest.MediaType
	if _, err := registries.Get(ctx, client, http.MethodHead, base+"/manifests/"+tag, accept, i.Manifest.Size,
		io.Discard); err != nil {
		return err
	}
	if err := verified(ctx, client, base+"/manifests/", accept, i.Manifest, delivered); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(layersAtOnce)
	for _, d := range i.Blobs {
		group.Go(func() error { return verified(ctx, client, base+"/blobs/", "", d, delivered) })
	}
	return group.Wait()
}

// verified gets content. Its error is errWrong if all of it arrived, but is not what the digest names.
func verified(ctx context.Context, client *http.Client, base, accept string, d ocispec.Descriptor,
	delivered io.Writer) error {
	verifier := d.Digest.Verifier()
	if _, err := registries.Get(ctx, client, http.MethodGet, base+d.Digest.String(), accept, d.Size,
		io.MultiWriter(verifier, delivered)); err != nil {
		return err
	}
	if !verifier.Verified() {
		return fmt.Errorf("%s: %w", d.Digest, errWrong)
	}
	return nil
}

// outcome is what the nodes have got.
type outcome struct {
	took          []time.Duration // of pulls that succeeded
	failed, wrong int             // numbers of pulls
	failure       error           // of one failed pull
}

// pullAll makes all nodes pull at the same moment.
func (b *benchmark) pullAll(ctx context.Context, delivered io.Writer) (o outcome) {
	var mu sync.Mutex
	var nodes sync.WaitGroup
	start := make(chan time.Time)
	for _, n := range b.fabric.nodes {
		client := &http.Client{Transport: &http.Transport{DialContext: n.dial, DisableCompression: true}}
		nodes.Go(func() {
			defer client.CloseIdleConnections()
			began := <-start
			err := b.image.pull(ctx, client, "http://"+proxyAddress, delivered)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				o.took = append(o.took, time.Since(began))
				return
			case errors.Is(err, errWrong):
				o.wrong++
			default:
				o.failed++
			}
			o.failure = fmt.Errorf("%s: %w", n.name, err)
		})
	}
	now := time.Now()
	for range b.fabric.nodes {
		start <- now
	}
	nodes.Wait()
	return o
}
