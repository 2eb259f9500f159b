package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

const (
	clients             = 2
	catalogRequests     = 1000
	catalogRepositories = 100 // and those of the pushes

	tablePull    = "Pulls"
	tablePush    = "Pushes"
	tableChunks  = "Pushes in chunks"
	tableBoth    = "Three pulls for each push"
	tableCatalog = "Catalog and resources"
)

// sizes are those of zb. Shares are those in its mixed tests; images is the number of images in the other tests.
var sizes = []struct {
	name   string
	factor int64
	share  float64
	images int
}{{"1 MB", 1, 0.2, 100}, {"10 MB", 10, 0.7, 30}, {"100 MB", 100, 0.1, 6}}

const (
	mixed       = "mixed"
	mixedImages = 20
)

// layer is the layer of an image.
type layer struct {
	ocispec.Descriptor
	content []byte
}

// image is what a pull requests.
type image struct {
	repository       string
	manifest, config ocispec.Descriptor
	layer            ocispec.Descriptor
}

// run is one run of all subjects.
type run struct {
	options
	report       *results.Report
	number       int
	certificates *registries.Certificates
	layers       []layer // by the index in sizes
}

// test is a number of images, by their size, that clients transfer.
type test struct {
	table, what string
	clients     int
	images      []int
	do          func(ctx context.Context, m *measurement, size, n int) error
}

// tests are in the order of the tables' columns.
func (r *run) all() []test {
	all := []test{{tableCatalog, "catalog", clients, slices.Repeat([]int{0}, catalogRequests),
		func(ctx context.Context, m *measurement, _, _ int) error { return m.catalog(ctx) }}}
	for _, kind := range []struct {
		table string
		do    func(ctx context.Context, m *measurement, size, n int) error
	}{
		{tablePull, pull}, {tablePush, pushWith(registries.Push)},
		{tableChunks, pushWith(registries.PushChunks)}, {tableBoth, pullOrPush},
	} {
		for n, size := range sizes {
			all = append(all, test{kind.table, size.name, clients, slices.Repeat([]int{n}, size.images), kind.do})
		}
		if kind.table != tableBoth { // as in zb
			all = append(all, test{kind.table, mixed, clients, r.mix(), kind.do})
		}
		if kind.table == tablePull {
			all = append(all, test{kind.table, "100 MB, one client", 1, slices.Repeat([]int{2}, 2*sizes[2].images), kind.do})
		}
	}
	return all
}

// measure performs all tests once with each subject. It uses dir, which it removes.
func (r *run) measure(ctx context.Context, all []subject, dir string) (err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for n, size := range sizes {
		content, err := io.ReadAll(registries.Random(uint64(r.number)<<8|uint64(n), r.size*size.factor))
		if err != nil {
			return err
		}
		r.layers = append(r.layers, layer{ocispec.Descriptor{Digest: digest.FromBytes(content),
			Size: int64(len(content))}, content})
	}
	var running []*measurement
	for _, s := range all {
		m := &measurement{run: r, subject: s.Name, pusher: registries.NewClient(r.certificates.Push()),
			node: registries.NewClient(r.certificates.Node()), cpu: map[string]float64{}, bytes: map[string]int64{}}
		defer m.pusher.CloseIdleConnections()
		defer m.node.CloseIdleConnections()
		if m.process, err = s.start(ctx, filepath.Join(dir, s.Name), r.certificates); err != nil {
			return err
		}
		defer m.process.Stop()
		if err := m.prepare(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		running = append(running, m)
	}
	tests := r.all()
	for k, t := range tests {
		if !r.tests.MatchString(t.table + ": " + t.what) {
			continue
		}
		for _, n := range r.report.Order(r.number*len(tests)+k, len(running)) {
			if err := running[n].transfer(ctx, t); err != nil {
				return fmt.Errorf("%s: %s: %s: %w", running[n].subject, t.table, t.what, err)
			}
		}
	}
	for _, m := range running {
		if err := m.resources(); err != nil {
			return err
		}
	}
	return nil
}

// measurement is a subject in a run.
type measurement struct {
	*run
	subject      string
	process      *registries.Process
	pusher, node *http.Client
	images       []image            // to pull, by the index in sizes
	pushed       atomic.Int64       // images, for the names of repositories
	cpu          map[string]float64 // seconds, by table
	bytes        map[string]int64   // of layers, by table
}

// prepare pushes what the tests pull and list.
func (m *measurement) prepare(ctx context.Context) error {
	for range catalogRepositories {
		if _, err := m.push(ctx, 0, registries.Push); err != nil {
			return err
		}
	}
	for n := range sizes {
		i, err := m.push(ctx, n, registries.Push)
		if err != nil {
			return err
		}
		m.images = append(m.images, i)
		// The tests check only lengths.
		hash := digest.SHA256.Hash()
		if err := m.pull(ctx, i, hash); err != nil {
			return err
		}
		if digest.NewDigest(digest.SHA256, hash) != i.layer.Digest {
			return fmt.Errorf("digest mismatch: %s", i.layer.Digest)
		}
	}
	return nil
}

// resources reports CPU time and memory.
func (m *measurement) resources() error {
	for _, r := range []struct{ table, what string }{{tablePull, "CPU of pulls per GiB"},
		{tablePush, "CPU of pushes per GiB"}} {
		if total := m.bytes[r.table]; total > 0 {
			m.report.Add(tableCatalog, m.subject, r.what, "s", m.cpu[r.table]/(float64(total)/(1<<30)))
		}
	}
	memory, err := m.process.PeakMemory()
	m.report.Add(tableCatalog, m.subject, "memory", "MB", float64(memory)/1e6)
	return err
}

// transfer measures clients that together transfer images.
func (m *measurement) transfer(ctx context.Context, t test) error {
	before, err := m.process.CPU()
	if err != nil {
		return err
	}
	began := time.Now()
	group, running := errgroup.WithContext(ctx)
	group.SetLimit(t.clients)
	for n, size := range t.images {
		m.bytes[t.table] += m.layers[size].Size
		group.Go(func() error { return t.do(running, m, size, n) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	m.report.Add(t.table, m.subject, t.what, "/s", float64(len(t.images))/time.Since(began).Seconds())
	after, err := m.process.CPU()
	m.cpu[t.table] += after - before
	return err
}

// catalog requests the list of repositories.
func (m *measurement) catalog(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.process.URL("/v2/_catalog"), nil)
	if err != nil {
		return err
	}
	response, err := registries.Do(m.pusher, request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(repository(1))) {
		return errors.Join(err, fmt.Errorf("catalog: %s: %s", response.Status, body))
	}
	return nil
}

func pull(ctx context.Context, m *measurement, size, _ int) error {
	return m.pull(ctx, m.images[size], io.Discard)
}

func pushWith(upload upload) func(ctx context.Context, m *measurement, size, n int) error {
	return func(ctx context.Context, m *measurement, size, _ int) error {
		_, err := m.push(ctx, size, upload)
		return err
	}
}

func pullOrPush(ctx context.Context, m *measurement, size, n int) error {
	if n%4 < 3 {
		return pull(ctx, m, size, n)
	}
	return pushWith(registries.Push)(ctx, m, size, n)
}

// mix returns the sizes of mixed images, in an order that is random but the same for all subjects.
func (r *run) mix() (all []int) {
	for n, size := range sizes {
		all = append(all, slices.Repeat([]int{n}, int(size.share*mixedImages+0.5))...)
	}
	rand.New(rand.NewPCG(uint64(r.number), 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// upload uploads a blob.
type upload func(ctx context.Context, client *http.Client, p *registries.Process, repository string,
	content io.Reader, size int64, d digest.Digest) error

func repository(n int64) string { return fmt.Sprintf("bench/image-%d", n) }

// push pushes an image with the layer of a size to a new repository.
func (m *measurement) push(ctx context.Context, size int, upload upload) (image, error) {
	n, layer := m.pushed.Add(1), m.layers[size]
	i := image{repository: repository(n), layer: layer.Descriptor}
	config := fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","author":"%d"}`, n)
	i.config = ocispec.Descriptor{Digest: digest.FromBytes(config), Size: int64(len(config))}
	if err := upload(ctx, m.pusher, m.process, i.repository, bytes.NewReader(layer.content), layer.Size,
		layer.Digest); err != nil {
		return i, err
	}
	if err := upload(ctx, m.pusher, m.process, i.repository, bytes.NewReader(config), i.config.Size,
		i.config.Digest); err != nil {
		return i, err
	}
	manifest, desc, err := registries.Manifest(i.config, i.layer)
	if err != nil {
		return i, err
	}
	i.manifest = desc
	return i, registries.PushManifest(ctx, m.pusher, m.process, i.repository, tag, desc.MediaType, manifest)
}

const tag = "v1"

// pull pulls an image, and writes its layer to w.
func (m *measurement) pull(ctx context.Context, i image, w io.Writer) error {
	base := m.process.URL("/v2/" + i.repository)
	for _, part := range []struct {
		path, accept string
		size         int64
		to           io.Writer
	}{
		{"/manifests/" + tag, i.manifest.MediaType, i.manifest.Size, io.Discard},
		{"/blobs/" + i.config.Digest.String(), "", i.config.Size, io.Discard},
		{"/blobs/" + i.layer.Digest.String(), "", i.layer.Size, w},
	} {
		for _, method := range []string{http.MethodHead, http.MethodGet} {
			if _, err := registries.Get(ctx, m.node, method, base+part.path, part.accept, part.size, part.to); err != nil {
				return err
			}
		}
	}
	return nil
}
