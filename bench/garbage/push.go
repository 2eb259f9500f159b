package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
)

const (
	pushers    = 2
	pushedRepo = "bench/pushed"
	retryAfter = time.Second
	sample     = 20 // of the images that were not deleted
)

// pushes are images that were pushed.
type pushes struct {
	*garbage
	name string

	mu     sync.Mutex
	images []image
	waits  []time.Duration // of manifests, from their first request until they are stored
}

// pushMeanwhile measures how long pushed manifests wait while do runs.
func (g *garbage) pushMeanwhile(ctx context.Context, name string, do func(context.Context) error) error {
	p := &pushes{garbage: g, name: name}
	pushing, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(ctx)
	for n := range pushers {
		group.Go(func() error { return p.push(running, pushing, n) })
	}
	group.Go(func() error {
		defer stop()
		return do(running)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if len(p.waits) == 0 {
		return errors.New("no image was pushed")
	}
	slices.Sort(p.waits)
	add := func(what, unit string, value float64) { g.report.Add(tableWaits, name, what, unit, value) }
	add("pushed", "", float64(len(p.waits)))
	add("p50", "s", quantile(p.waits, 0.5).Seconds())
	add("p99", "s", quantile(p.waits, 0.99).Seconds())
	add("longest", "s", p.waits[len(p.waits)-1].Seconds())
	add("incomplete images", "", float64(p.incomplete(ctx)))
	return nil
}

// push pushes images until pushing ends: one with new layers, then one with layers that may be garbage, and so on.
func (p *pushes) push(ctx, pushing context.Context, pusher int) error {
	random := rand.New(rand.NewPCG(uint64(pusher), 0))
	for n := 0; pushing.Err() == nil; n++ {
		blobs := [][]byte{fmt.Appendf(nil, `{"pusher":%d,"image":%d,"name":%q}`, pusher, n, p.name)}
		for range 2 {
			content := fmt.Appendf(nil, "%s %d", p.name, random.Uint64())
			if n%2 == 1 { // a layer of an image that was deleted
				content = blob(random.IntN(p.deleted)*blobsOfImage + 1 + random.IntN(blobsOfImage-2))
			}
			blobs = append(blobs, content)
		}
		if err := p.pushImage(ctx, fmt.Sprint(pushedRepo, pusher), fmt.Sprint("t", n), blobs); err != nil {
			return err
		}
	}
	return nil
}

// pushImage pushes an image like a client that skips what the registry has, and again if the registry refuses it.
// Nobody else may push to the repository: versitygw removes a directory that is empty for a moment while another
// request creates a file in it.
func (p *pushes) pushImage(ctx context.Context, repository, tag string, blobs [][]byte) error {
	i := image{repository: repository}
	for _, content := range blobs {
		i.blobs = append(i.blobs, ocispec.Descriptor{Digest: digest.FromBytes(content), Size: int64(len(content))})
	}
	text, manifest, err := registries.Manifest(i.blobs[0], i.blobs[1:]...)
	if err != nil {
		return err
	}
	i.manifest = manifest
	if err := p.upload(ctx, i, blobs, true); err != nil {
		return err
	}
	for began := time.Now(); ; {
		status, answer, err := p.send(ctx, http.MethodPut, "/v2/"+i.repository+"/manifests/"+tag, manifest.MediaType, text)
		switch {
		case err != nil:
			return err
		case status == http.StatusCreated:
			p.mu.Lock()
			defer p.mu.Unlock()
			p.waits, p.images = append(p.waits, time.Since(began)), append(p.images, i)
			return nil
		case status == http.StatusServiceUnavailable:
			err = program.Sleep(ctx, retryAfter)
		case status == http.StatusBadRequest || status == http.StatusNotFound: // a blob was just removed
			err = p.upload(ctx, i, blobs, false)
		default:
			err = fmt.Errorf("pushing a manifest: status %d: %s", status, answer)
		}
		if err != nil {
			return err
		}
	}
}

// upload uploads the blobs of an image, or only those that its repository does not have.
func (p *pushes) upload(ctx context.Context, i image, blobs [][]byte, missing bool) error {
	for n, b := range i.blobs {
		if missing {
			status, _, err := p.send(ctx, http.MethodHead, "/v2/"+i.repository+"/blobs/"+b.Digest.String(), "", "")
			if err != nil {
				return err
			}
			if status == http.StatusOK {
				continue
			}
		}
		if err := registries.Push(ctx, p.client, p.process, i.repository, bytes.NewReader(blobs[n]), b.Size,
			b.Digest); err != nil {
			return err
		}
	}
	return nil
}

// incomplete returns how many of the images, and of a sample of those that were not deleted, cannot be pulled.
func (p *pushes) incomplete(ctx context.Context) int {
	client := registries.NewClient(p.certificates.Node())
	defer client.CloseIdleConnections()
	kept, all := p.stored[p.deleted:], p.images
	for k := 0; k < len(kept); k += max(1, len(kept)/sample) {
		all = append(all, kept[k])
	}
	var failed atomic.Int64
	var group errgroup.Group
	group.SetLimit(sample)
	for _, i := range all {
		group.Go(func() error {
			at := p.process.URL("/v2/" + i.repository)
			_, err := registries.Get(ctx, client, http.MethodGet, at+"/manifests/"+i.manifest.Digest.String(),
				i.manifest.MediaType, i.manifest.Size, io.Discard)
			for _, b := range i.blobs {
				if err == nil {
					_, err = registries.Get(ctx, client, http.MethodGet, at+"/blobs/"+b.Digest.String(), "", b.Size, io.Discard)
				}
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				failed.Add(1)
			}
			return nil
		})
	}
	_ = group.Wait() // no function fails
	return int(failed.Load())
}

// quantile returns a quantile of sorted, which must not be empty.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
