package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/deletion"
	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/api/scrub"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

const (
	tableSteps = "Catalog, deletion and collection"
	tableWaits = "Manifests of pushes"

	rowCatalog    = "catalog"
	rowScrub      = "scrub"
	rowDelete     = "deletion"
	rowMark       = "marking"
	rowRemark     = "marking again"
	rowSweep      = "removal"
	rowCollection = "collection"
	rowAlone      = "no collection"
	rowMeanwhile  = "during a collection"
)

// garbage is one run.
type garbage struct {
	options
	bucket       *bucket
	process      *registries.Process
	certificates *registries.Certificates
	client       *http.Client
	report       *results.Report
	stored       []image
	deleted      int // of the stored images, the first ones
}

func measure(
	ctx context.Context, o options, dir string, certificates *registries.Certificates, report *results.Report,
) (err error) {
	dir = filepath.Join(dir, "run")
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	g := &garbage{options: o, certificates: certificates, client: registries.NewClient(certificates.Push()),
		report: report}
	defer g.client.CloseIdleConnections()
	if g.bucket, err = startBucket(ctx, o.s3, dir, o.delay); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.bucket.stop()) }()
	if g.stored, err = g.bucket.store(ctx, o.blobs); err != nil {
		return err
	}
	if g.process, err = registries.StartOurs(ctx, o.registry, filepath.Join(dir, "registry"), g.bucket.server.Driver(""),
		certificates); err != nil {
		return err
	}
	defer g.process.Stop()
	if err := g.rest(ctx); err != nil {
		return err
	}
	g.deleted = len(g.stored) / garbageShare
	for _, step := range []struct {
		row string
		do  func(context.Context) error
	}{{rowCatalog, g.catalog}, {rowScrub, g.scrub}, {rowDelete, g.delete}} {
		s, err := g.begin()
		if err != nil {
			return err
		}
		if err := step.do(ctx); err != nil {
			return err
		}
		if _, err := s.end(step.row, storage.Concurrency, g.scale()); err != nil {
			return err
		}
	}
	alone := func(ctx context.Context) error { return program.Sleep(ctx, o.alone) }
	if err := g.pushMeanwhile(ctx, rowAlone, alone); err != nil {
		return err
	}
	return g.pushMeanwhile(ctx, rowMeanwhile, g.collect)
}

// rest waits until the registry has read what it reads once after a start.
func (g *garbage) rest(ctx context.Context) error {
	for {
		before := g.bucket.requests.Load()
		if err := program.Sleep(ctx, time.Second); err != nil {
			return err
		}
		if g.bucket.requests.Load()-before < 10 {
			return nil
		}
	}
}

// step is a measurement in progress.
type step struct {
	*garbage
	began    time.Time
	requests int64
}

// begin begins a measurement. Its memory is the most since then, also in the phases that follow.
func (g *garbage) begin() (*step, error) { return g.phase(), g.process.ResetPeak() }

func (g *garbage) phase() *step { return &step{g, time.Now(), g.bucket.requests.Load()} }

// end reports what happened since the beginning. The registry sends so many requests at once; with 1,000,000 blobs, it
// sends scale times as many. The time is that of the delay alone, because elsewhere S3 has cores of its own.
func (s *step) end(name string, atOnce int, scale float64) (time.Duration, error) {
	requests := float64(s.bucket.requests.Load() - s.requests)
	expected := time.Duration(requests * scale / float64(atOnce) * float64(s.delay))
	return expected, s.add(name, requests, expected)
}

func (s *step) add(name string, requests float64, expected time.Duration) error {
	s.report.Add(tableSteps, name, "took", "s", time.Since(s.began).Seconds())
	s.report.Add(tableSteps, name, "requests to S3", "", requests)
	s.report.Add(tableSteps, name, "at 1,000,000 blobs", "min", expected.Minutes())
	memory, err := s.process.PeakMemory()
	s.report.Add(tableSteps, name, "memory", "MB", float64(memory)/1e6)
	return err
}

// scale is how many times as large a registry with 1,000,000 blobs is.
func (g *garbage) scale() float64 { return 1_000_000 / float64(g.blobs) }

// catalog reads the catalog and counts its images.
func (g *garbage) catalog(ctx context.Context) error {
	response, err := g.stream(ctx, http.MethodGet, catalog.Path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	images := 0
	for events := json.NewDecoder(response.Body); ; {
		var e catalog.Event
		switch err := events.Decode(&e); {
		case err != nil:
			return fmt.Errorf("the catalog ends after %d images: %s: %w", images, response.Status, err)
		case e.Error != "":
			return errors.New(e.Error)
		case e.Manifest != nil && e.Manifest.Problem == "":
			images++
		case e.End != nil:
			if images != len(g.stored) {
				return fmt.Errorf("%d images, want %d", images, len(g.stored))
			}
			return nil
		}
	}
}

// scrub lets the registry read all blobs.
func (g *garbage) scrub(ctx context.Context) error {
	query := scrub.Request{Rate: 1 << 40}.Query()
	response, err := g.stream(ctx, http.MethodPost, scrub.Path+"?"+query.Encode())
	if err != nil {
		return err
	}
	defer response.Body.Close()
	for events := json.NewDecoder(response.Body); ; {
		var e scrub.Event
		if err := events.Decode(&e); err != nil {
			return fmt.Errorf("reading all blobs: %s: %w", response.Status, err)
		}
		switch {
		case e.Error != "":
			return errors.New(e.Error)
		case e.Result != nil && *e.Result != scrub.Result{Blobs: g.blobs, Bytes: e.Result.Bytes}:
			return fmt.Errorf("%+v, want %d blobs without problems", *e.Result, g.blobs)
		case e.Result != nil:
			return nil
		}
	}
}

// delete deletes images by their digests, as images prune does.
func (g *garbage) delete(ctx context.Context) error {
	query := deletion.Request{Since: time.Now().Add(time.Hour), Manifests: map[string][]digest.Digest{}}
	for _, i := range g.stored[:g.deleted] {
		query.Manifests[i.repository] = append(query.Manifests[i.repository], i.manifest.Digest)
	}
	body, err := json.Marshal(query)
	if err != nil {
		return err
	}
	status, answer, err := g.send(ctx, http.MethodPost, deletion.Path, "application/json", string(body))
	complete := status == http.StatusOK && strings.Contains(answer, `"end":true`) && !strings.Contains(answer, `"kept"`)
	if err == nil && !complete {
		err = fmt.Errorf("deleting manifests: status %d: %s", status, answer[max(0, len(answer)-1000):])
	}
	return err
}

// collect lets the registry collect, and measures the phases.
func (g *garbage) collect(ctx context.Context) error {
	query := gc.Request{Timeout: gc.DefaultTimeout}.Query()
	whole, err := g.begin()
	if err != nil {
		return err
	}
	response, err := g.stream(ctx, http.MethodPost, gc.Path+"?"+query.Encode())
	if err != nil {
		return err
	}
	defer response.Body.Close()
	rows := map[string]string{gc.Marking: rowMark, gc.Remarking: rowRemark, gc.Sweeping: rowSweep}
	var phase string
	var current *step
	var expected time.Duration
	for events := json.NewDecoder(response.Body); ; {
		var e gc.Event
		if err := events.Decode(&e); err != nil {
			return fmt.Errorf("collecting garbage: %s: %w", response.Status, err)
		}
		if e.Phase == phase && e.Phase != "" || e.Removed != nil { // a phase is repeated to keep the connection alive
			continue
		}
		if row := rows[phase]; row != "" {
			took, err := current.end(row, storage.Concurrency, g.scale())
			if err != nil {
				return err
			}
			expected += took
		}
		if phase == gc.Settling {
			expected += time.Since(current.began) // however many blobs there are
		}
		phase, current = e.Phase, g.phase()
		switch {
		case e.Error != "":
			return errors.New(e.Error)
		case e.Result != nil:
			if e.Result.Blobs < 1 || e.Result.Blobs > g.deleted*blobsOfImage {
				return fmt.Errorf("%d of %d blobs were removed", e.Result.Blobs, g.deleted*blobsOfImage)
			}
			return whole.add(rowCollection, float64(g.bucket.requests.Load()-whole.requests), expected)
		}
	}
}

// stream sends a request whose response has an event in each line.
func (g *garbage) stream(ctx context.Context, method, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, g.process.URL(path), nil)
	if err != nil {
		return nil, err
	}
	return registries.Do(g.client, request)
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
