package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
)

const (
	// Numbers of blobs that are transferred one after the other, and at once.
	sequential = 2
	parallel   = 4
	// smallClients is the number of clients that send small requests.
	smallClients = 8

	repository = "bench/image"

	tablePush  = "Pushes"
	tablePull  = "Pulls"
	tableSmall = "Small requests"
)

// blob is a blob to push and pull.
type blob struct {
	ocispec.Descriptor
	content []byte
}

func makeBlobs(size int64) ([]blob, error) {
	blobs := make([]blob, sequential+parallel)
	for n := range blobs {
		content := make([]byte, size)
		if _, err := io.ReadFull(registries.Random(uint64(n), size), content); err != nil {
			return nil, err
		}
		blobs[n] = blob{ocispec.Descriptor{Digest: digest.FromBytes(content), Size: size}, content}
	}
	return blobs, nil
}

// measurement is one run of a subject.
type measurement struct {
	options
	certificates *registries.Certificates
	blobs        []blob
	add          func(table, what, unit string, value float64)
	verify       bool // the digests of pulled blobs

	process *registries.Process
}

// run performs all measurements once. It uses dir, which it removes.
func (m *measurement) run(ctx context.Context, s subject, dir string) (err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if m.process, err = s.start(ctx, dir, m.certificates); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.process.Stop()) }()
	pusher, node := registries.NewClient(m.certificates.Push()), registries.NewClient(m.certificates.Node())
	defer pusher.CloseIdleConnections()
	defer node.CloseIdleConnections()

	push := func(ctx context.Context, b blob) error {
		return registries.Push(ctx, pusher, m.process, repository, bytes.NewReader(b.content), b.Size, b.Digest)
	}
	pull := func(ctx context.Context, b blob) error {
		into, hash := io.Discard, digest.SHA256.Hash()
		if m.verify {
			into = hash
		}
		_, err := registries.Get(ctx, node, http.MethodGet, m.process.URL("/v2/"+repository+"/blobs/"+b.Digest.String()), "",
			b.Size, into)
		if err == nil && m.verify && digest.NewDigest(digest.SHA256, hash) != b.Digest {
			err = fmt.Errorf("digest mismatch: %s", b.Digest)
		}
		return err
	}
	// Excludes one-time work, such as hashing the password, from the measurement.
	warm := []byte("warm")
	if err := push(ctx, blob{ocispec.Descriptor{Digest: digest.FromBytes(warm), Size: int64(len(warm))},
		warm}); err != nil {
		return err
	}
	first, rest := m.blobs[:sequential], m.blobs[sequential:]
	for _, phase := range []struct {
		table, how string
		limit      int // blobs at once
		blobs      []blob
		do         func(context.Context, blob) error
	}{
		{tablePush, "one", 1, first, push},
		{tablePush, "four", parallel, rest, push},
		{tablePull, "one", 1, slices.Concat(first, first), pull},
		{tablePull, "four", parallel, slices.Concat(rest, rest), pull},
	} {
		if err := m.transfer(ctx, phase.table, phase.how, phase.limit, phase.blobs, phase.do); err != nil {
			return err
		}
	}
	return m.smallRequests(ctx, pusher)
}

// transfer pushes or pulls blobs, at most limit at a time, and reports the results.
func (m *measurement) transfer(ctx context.Context, table, how string, limit int, blobs []blob,
	do func(context.Context, blob) error) error {
	total := int64(0)
	seconds, cpu, memory, err := m.usage(func() error {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(limit)
		for _, b := range blobs {
			total += b.Size
			group.Go(func() error { return do(ctx, b) })
		}
		return group.Wait()
	})
	if err != nil {
		return err
	}
	m.add(table, how+" at a time", "MB/s", float64(total)/1e6/seconds)
	m.add(table, how+": CPU per GiB", "s", cpu/(float64(total)/(1<<30)))
	m.add(table, how+": memory", "MB", float64(memory)/1e6)
	return nil
}

// usage runs do. It returns the duration, and the registry's CPU time in seconds and peak memory in
// bytes meanwhile.
func (m *measurement) usage(do func() error) (seconds, cpu float64, memory int64, err error) {
	if err := m.process.ResetPeak(); err != nil {
		return 0, 0, 0, err
	}
	before, err := m.process.CPU()
	if err != nil {
		return 0, 0, 0, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return 0, 0, 0, err
	}
	seconds = time.Since(began).Seconds()
	after, err := m.process.CPU()
	if err != nil {
		return 0, 0, 0, err
	}
	memory, err = m.process.PeakMemory()
	return seconds, after - before, memory, err
}

// smallRequests measures requests for a manifest by tag and by digest.
func (m *measurement) smallRequests(ctx context.Context, pusher *http.Client) error {
	manifest, desc, err := registries.Manifest(m.blobs[0].Descriptor, m.blobs[1].Descriptor)
	if err != nil {
		return err
	}
	if err := registries.PushManifest(ctx, pusher, m.process, repository, "v1", desc.MediaType, manifest); err != nil {
		return err
	}
	if _, err := m.request(ctx, desc, m.small/5); err != nil { // opens connections and fills caches
		return err
	}
	var took []time.Duration
	seconds, cpu, _, err := m.usage(func() error {
		took, err = m.request(ctx, desc, m.small)
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(took)
	m.add(tableSmall, "requests", "/s", float64(len(took))/seconds)
	m.add(tableSmall, "p50", "ms", milliseconds(quantile(took, 0.5)))
	m.add(tableSmall, "p99", "ms", milliseconds(quantile(took, 0.99)))
	m.add(tableSmall, "CPU per request", "ms", cpu/float64(len(took))*1e3)
	return nil
}

// request sends small requests for the given time and returns their durations.
func (m *measurement) request(ctx context.Context, manifest ocispec.Descriptor, during time.Duration) (
	all []time.Duration, err error) {
	url := m.process.URL("/v2/" + repository + "/manifests/")
	deadline := time.Now().Add(during)
	took := make([][]time.Duration, smallClients)
	group, ctx := errgroup.WithContext(ctx)
	for n := range smallClients {
		group.Go(func() error {
			client := registries.NewClient(m.certificates.Node())
			defer client.CloseIdleConnections()
			for {
				for _, request := range []struct{ method, name string }{{http.MethodHead, "v1"},
					{http.MethodGet, manifest.Digest.String()}} {
					began := time.Now()
					if began.After(deadline) {
						return nil
					}
					if _, err := registries.Get(ctx, client, request.method, url+request.name, manifest.MediaType, manifest.Size,
						io.Discard); err != nil {
						return err
					}
					took[n] = append(took[n], time.Since(began))
				}
			}
		})
	}
	err = group.Wait()
	return slices.Concat(took...), err
}

// quantile returns a quantile of sorted, which must not be empty.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }
