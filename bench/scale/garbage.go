package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/internal/api/gc"
)

const (
	tableGarbage = "Pushes while garbage is collected"

	// pushers is the number of clients that push at once.
	pushers = 4
	// garbageBytes is the size of a blob, which does not matter to the collector.
	garbageBytes      = 512
	garbageRepository = "bench/garbage"
	// withoutCollection is how long pushes are measured for comparison.
	withoutCollection = 20 * time.Second
	retryAfter        = time.Second
)

// collector is who collects while images are pushed.
type collector struct {
	name string
	// collect returns the number of blobs that were removed.
	collect func(ctx context.Context, g *garbage) (int, error)
}

func collectors(blobs int) []collector {
	return []collector{
		{"no collection", func(ctx context.Context, _ *garbage) (int, error) { return 0, pause(ctx, withoutCollection) }},
		{garbageName(blobs), func(ctx context.Context, g *garbage) (int, error) { return g.collect(ctx) }},
		{garbageName(blobs) + ", by another process",
			func(ctx context.Context, g *garbage) (int, error) { return g.collectElsewhere(ctx) }},
	}
}

func garbageName(blobs int) string { return fmt.Sprintf("%d blobs", blobs) }

// garbage is a registry with garbage, and what was pushed to it.
type garbage struct {
	blobs   int
	program string
	dir     string
	process *registries.Process
	client  *http.Client

	mu      sync.Mutex
	images  []image
	waits   map[bool][]time.Duration // of manifests, by whether the image contains garbage
	refused int                      // manifests, which were pushed again
}

// collectWhilePushing measures how long pushed manifests wait.
func (b *benchmark) collectWhilePushing(ctx context.Context, blobs int, c collector) (err error) {
	g := &garbage{
		blobs: blobs, program: b.registry, dir: filepath.Join(b.dir, "garbage"), waits: map[bool][]time.Duration{},
		client: registries.NewClient(b.certificates.Push()),
	}
	defer g.client.CloseIdleConnections()
	defer func() { err = errors.Join(err, os.RemoveAll(g.dir)) }()
	if g.process, err = registries.StartOurs(ctx, g.program, g.dir, "", b.certificates); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.process.Stop()) }()
	if err := g.store(ctx); err != nil {
		return err
	}
	pushing, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(ctx)
	for n := range pushers {
		group.Go(func() error { return g.push(running, pushing, n) })
	}
	var removed int
	var took time.Duration
	group.Go(func() (err error) {
		defer stop()
		began := time.Now()
		removed, err = c.collect(running, g)
		took = time.Since(began)
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	memory, err := g.process.PeakMemory()
	if err != nil {
		return err
	}
	incomplete := g.incomplete(ctx, b.certificates)

	add := func(what, unit string, value float64) { b.report.Add(tableGarbage, c.name, what, unit, value) }
	all := slices.Sorted(slices.Values(slices.Concat(g.waits[false], g.waits[true])))
	add("collection", "s", took.Seconds())
	add("removed blobs", "", float64(removed))
	add("pushed images", "", float64(len(all)))
	if len(g.waits[false]) == 0 || len(g.waits[true]) == 0 {
		return errors.New("no image was pushed")
	}
	add("longest wait of a manifest, new layers", "s", slices.Max(g.waits[false]).Seconds())
	add("longest wait of a manifest, layers are garbage", "s", slices.Max(g.waits[true]).Seconds())
	add("p99 of all", "ms", quantile(all, 0.99).Seconds()*1e3)
	add("refused at first", "", float64(g.refused))
	add("incomplete images", "", float64(incomplete))
	add("memory", "MB", float64(memory)/1e6)
	return nil
}

// blob returns the content of a garbage blob.
func (g *garbage) blob(n int) []byte {
	content, _ := io.ReadAll(registries.Random(uint64(n), garbageBytes)) // cannot fail
	return content
}

// store stores the garbage as distribution does.
func (g *garbage) store(ctx context.Context) error {
	root := filepath.Join(g.dir, "storage/docker/registry/v2")
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pushers)
	for n := range g.blobs {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			content := g.blob(n)
			d := digest.FromBytes(content)
			link := filepath.Join("repositories", garbageRepository, "_layers/sha256", d.Encoded(), "link")
			data := filepath.Join("blobs/sha256", d.Encoded()[:2], d.Encoded(), "data")
			for path, content := range map[string][]byte{data: content, link: []byte(d)} {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					return err
				}
				if err := os.WriteFile(path, content, 0o600); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// push pushes images until pushing ends: one with new layers, then one with layers that are garbage, and so on.
func (g *garbage) push(ctx, pushing context.Context, pusher int) error {
	random := rand.New(rand.NewPCG(uint64(pusher), 0))
	for n := 0; pushing.Err() == nil; n++ {
		contains := n%2 == 1
		blobs := [][]byte{fmt.Appendf(nil, `{"pusher":%d,"image":%d}`, pusher, n)}
		for range 2 {
			if contains {
				blobs = append(blobs, g.blob(random.IntN(g.blobs)))
			} else {
				blobs = append(blobs, fmt.Appendf(nil, "layer %d", random.Uint64()))
			}
		}
		if err := g.pushImage(ctx, fmt.Sprintf("t%d-%d", pusher, n), blobs, contains); err != nil {
			return err
		}
	}
	return nil
}

// pushImage pushes an image like a client that skips what the registry has, and again if the registry refuses it.
func (g *garbage) pushImage(ctx context.Context, tag string, blobs [][]byte, contains bool) error {
	i := image{Repository: garbageRepository}
	for _, content := range blobs {
		i.Blobs = append(i.Blobs, ocispec.Descriptor{Digest: digest.FromBytes(content), Size: int64(len(content))})
	}
	text, manifest, err := registries.Manifest(i.Blobs[0], i.Blobs[1:]...)
	if err != nil {
		return err
	}
	i.Manifest = manifest
	upload := func(skip bool) error {
		for n, b := range i.Blobs {
			if skip {
				status, _, err := g.send(ctx, http.MethodHead, "/v2/"+i.Repository+"/blobs/"+b.Digest.String(), "", "")
				if err != nil {
					return err
				}
				if status == http.StatusOK {
					continue
				}
			}
			if err := registries.Push(ctx, g.client, g.process, i.Repository, bytes.NewReader(blobs[n]), b.Size,
				b.Digest); err != nil && !strings.Contains(err.Error(), "503") {
				return err
			}
		}
		return nil
	}
	if err := upload(true); err != nil {
		return err
	}
	began := time.Now()
	for refused := 0; ; refused++ {
		status, body, err := g.send(ctx, http.MethodPut, "/v2/"+i.Repository+"/manifests/"+tag, manifest.MediaType, text)
		switch {
		case err != nil:
			return err
		case status == http.StatusCreated:
			g.mu.Lock()
			defer g.mu.Unlock()
			g.waits[contains] = append(g.waits[contains], time.Since(began))
			g.images = append(g.images, i)
			g.refused += refused
			return nil
		case status == http.StatusServiceUnavailable:
			if err := pause(ctx, retryAfter); err != nil {
				return err
			}
		case status == http.StatusBadRequest || status == http.StatusNotFound:
			if err := upload(false); err != nil {
				return err
			}
		default:
			return fmt.Errorf("pushing a manifest: status %d: %s", status, body)
		}
	}
}

// send sends a small request and returns status and body of the response.
func (g *garbage) send(ctx context.Context, method, path, mediaType, body string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, method, g.process.URL(path), strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if mediaType != "" {
		request.Header.Set("Content-Type", mediaType)
	}
	response, err := registries.Do(g.client, request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, string(answer), err
}

// collect lets the registry collect.
func (g *garbage) collect(ctx context.Context) (int, error) {
	query := gc.Request{Timeout: gc.DefaultTimeout}.Query()
	status, body, err := g.send(ctx, http.MethodPost, gc.Path+"?"+query.Encode(), "", "")
	if err != nil || status != http.StatusOK {
		return 0, errors.Join(err, fmt.Errorf("collecting garbage: status %d: %s", status, body))
	}
	var last gc.Event
	for lines := json.NewDecoder(strings.NewReader(body)); lines.More(); {
		last = gc.Event{}
		if err := lines.Decode(&last); err != nil {
			return 0, err
		}
	}
	if last.Result == nil {
		return 0, fmt.Errorf("collecting garbage: %s", last.Error)
	}
	return last.Result.Blobs, nil
}

// collectElsewhere runs registry garbage-collect.
func (g *garbage) collectElsewhere(ctx context.Context) (int, error) {
	command := exec.CommandContext(ctx, g.program, "garbage-collect", "--config="+filepath.Join(g.dir, "config.yml"),
		"--grace-period=0s")
	out, err := command.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", command, err, out[max(0, len(out)-1000):])
	}
	return bytes.Count(out, []byte("\nblob ")), nil
}

// incomplete returns how many images cannot be pulled completely.
func (g *garbage) incomplete(ctx context.Context, certificates *registries.Certificates) (n int) {
	client := registries.NewClient(certificates.Node())
	defer client.CloseIdleConnections()
	for _, i := range g.images {
		at := g.process.URL("/v2/" + i.Repository)
		_, err := registries.Get(ctx, client, http.MethodGet, at+"/manifests/"+i.Manifest.Digest.String(),
			i.Manifest.MediaType, i.Manifest.Size, io.Discard)
		for _, b := range i.Blobs {
			if err == nil {
				_, err = registries.Get(ctx, client, http.MethodGet, at+"/blobs/"+b.Digest.String(), "", b.Size, io.Discard)
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			n++
		}
	}
	return n
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
