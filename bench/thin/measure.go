package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/blobstore"
	"github.com/zarf-dev/zarf-registry/internal/images/inventory"
	"github.com/zarf-dev/zarf-registry/internal/images/remote"
)

// atOnce is how many requests are sent at once where nothing is measured.
const atOnce = 4

// measurement is the state of all runs.
type measurement struct {
	options
	dir            string
	certificates   *registries.Certificates
	report         *results.Report
	previous, next []image
	upstream       *registries.Process
}

// prepare pushes the previous images to a registry, whose storage is the template of those that are measured, and
// starts the upstream registry, which has the next images, too. The caller must call stop.
func (m *measurement) prepare(ctx context.Context) (stop func() error, err error) {
	template, err := registries.StartOurs(ctx, m.registry, m.path("template"), "", m.certificates)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(m.push(ctx, template, m.previous), template.Stop()); err != nil {
		return nil, err
	}
	if m.upstream, err = m.startCopy(ctx, "upstream"); err != nil {
		return nil, err
	}
	var changed []image
	for n, i := range m.next {
		if i.tag != m.previous[n].tag {
			changed = append(changed, i)
		}
	}
	if err := m.push(ctx, m.upstream, changed); err != nil {
		return nil, errors.Join(err, m.upstream.Stop())
	}
	return m.upstream.Stop, nil
}

func (m *measurement) path(name string) string { return filepath.Join(m.dir, name) }

// startCopy starts a registry that has the previous images. Files are links, because registries replace files and do
// not change them.
func (m *measurement) startCopy(ctx context.Context, name string) (*registries.Process, error) {
	const storage = "storage"
	if err := linkTree(filepath.Join(m.path("template"), storage), filepath.Join(m.path(name), storage)); err != nil {
		return nil, err
	}
	return registries.StartOurs(ctx, m.registry, m.path(name), "", m.certificates)
}

func linkTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return os.MkdirAll(filepath.Join(to, relative), 0o755)
		}
		return os.Link(path, filepath.Join(to, relative))
	})
}

// push pushes images whole, blobs that a repository already has as well.
func (m *measurement) push(ctx context.Context, p *registries.Process, list []image) error {
	client := registries.NewClient(m.certificates.Push())
	defer client.CloseIdleConnections()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, i := range list {
		group.Go(func() error {
			for _, b := range i.blobs {
				if err := registries.Push(ctx, client, p, i.repository, b.open(), b.Size, b.Digest); err != nil {
					return err
				}
			}
			return registries.PushManifest(ctx, client, p, i.repository, i.tag, i.manifest.MediaType, i.text)
		})
	}
	return group.Wait()
}

// transfer measures one archive, from upstream to a registry that has the previous images.
func (m *measurement) transfer(ctx context.Context, subject string) (err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(m.path("run"))) }()
	inside, err := m.startCopy(ctx, "run")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inside.Stop()) }()
	var have *inventory.Set
	if subject == subjectThin {
		if have, err = m.inventory(ctx, inside); err != nil {
			return fmt.Errorf("inventory: %w", err)
		}
	}
	add := func(what, unit string, value float64) { m.report.Add(tableArchive, subject, what, unit, value) }
	path := filepath.Join(m.path("run"), "archive.tar")
	began := time.Now()
	if err := m.pull(ctx, have, path); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	pulled := time.Since(began)
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	began = time.Now()
	sent, err := m.pushArchive(ctx, path, inside)
	if err != nil {
		return fmt.Errorf("push: %w", err)
	}
	pushed := time.Since(began)
	incomplete, err := m.incomplete(ctx, inside, m.next)
	if err != nil {
		return err
	}
	add("size", "MB", float64(info.Size())/1e6)
	add("bytes per byte of manifests and new blobs", "", float64(info.Size())/float64(newBytes(m.previous, m.next)))
	add("pull", "s", pulled.Seconds())
	add("push", "s", pushed.Seconds())
	add("sent by the push", "MB", float64(sent)/1e6)
	add("incomplete images", "", float64(incomplete))
	return nil
}

// inventory measures images inventory, and returns what images pull --have reads of it.
func (m *measurement) inventory(ctx context.Context, p *registries.Process) (*inventory.Set, error) {
	client := registries.NewClient(m.certificates.Push())
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL(catalog.Path), nil)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	response, err := registries.Do(client, request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	content, err := catalog.Read(response.Body)
	if err != nil {
		return nil, err
	}
	encoded := inventory.FromCatalog(content).Bytes()
	took := time.Since(began)
	have, err := inventory.Read(bytes.NewReader(encoded))
	if err != nil {
		return nil, err
	}
	add := func(what, unit string, value float64) {
		m.report.Add(tableInventory, subjectInventory, what, unit, value)
	}
	add("blobs", "", float64(have.Len()))
	add("size", "kB", float64(len(encoded))/1e3)
	add("took", "s", took.Seconds())
	return have, nil
}

// pull does what images pull does with an empty cache, with --have if have is not nil.
func (m *measurement) pull(ctx context.Context, have *inventory.Set, path string) (err error) {
	upstream, err := m.upstream.Client(m.certificates)
	if err != nil {
		return err
	}
	defer upstream.Close()
	store, err := blobstore.OpenTemp(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	archive, err := images.CreateArchive(path)
	if err != nil {
		return err
	}
	if have != nil {
		archive.Omit(have.Has)
	}
	var references []string
	for _, i := range m.next {
		references = append(references, m.upstream.Address+"/"+i.repository+":"+i.tag)
	}
	items, err := images.Resolve(ctx, references, images.ResolveOptions{Store: store,
		Registry: func(context.Context, string) (*remote.Registry, error) { return upstream, nil }})
	if err != nil {
		return err
	}
	if _, err := images.Pull(ctx, items, archive, images.Options{}); err != nil {
		return err
	}
	return archive.Write(ctx)
}

// pushArchive does what images push does, and returns the number of bytes sent.
func (m *measurement) pushArchive(ctx context.Context, path string, p *registries.Process) (sent int64, err error) {
	source, err := images.Open(ctx, path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	items, err := source.Items("")
	if err != nil {
		return 0, err
	}
	registry, err := p.Client(m.certificates)
	if err != nil {
		return 0, err
	}
	defer registry.Close()
	pushed, err := images.Push(ctx, items, registry, images.Options{})
	for _, r := range pushed {
		sent += r.BytesSent
	}
	return sent, err
}

// incomplete reads images in full, and returns how many cannot be read. The error is that of the context.
func (m *measurement) incomplete(ctx context.Context, p *registries.Process, list []image) (int, error) {
	client := registries.NewClient(m.certificates.Node())
	defer client.CloseIdleConnections()
	var incomplete atomic.Int64
	group := new(errgroup.Group)
	group.SetLimit(atOnce)
	for _, i := range list {
		group.Go(func() error {
			if err := readImage(ctx, client, p, i); err != nil {
				fmt.Fprintln(os.Stderr, err)
				incomplete.Add(1)
			}
			return nil
		})
	}
	err := errors.Join(group.Wait(), ctx.Err())
	return int(incomplete.Load()), err
}

func readImage(ctx context.Context, client *http.Client, p *registries.Process, i image) error {
	at := p.URL("/v2/" + i.repository)
	if err := read(ctx, client, at+"/manifests/"+i.tag, i.manifest); err != nil {
		return err
	}
	for _, b := range i.blobs {
		if err := read(ctx, client, at+"/blobs/"+b.Digest.String(), b.Descriptor); err != nil {
			return err
		}
	}
	return nil
}

func read(ctx context.Context, client *http.Client, url string, desc ocispec.Descriptor) error {
	verifier := desc.Digest.Verifier()
	if _, err := registries.Get(ctx, client, http.MethodGet, url, desc.MediaType, desc.Size, verifier); err != nil {
		return err
	}
	if !verifier.Verified() {
		return fmt.Errorf("GET %s: the digest differs", url)
	}
	return nil
}
