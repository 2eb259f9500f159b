package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// First arguments of the floor's child processes. The others are the host, a layout, and for a pull the
// output directory.
const (
	floorPushMode = "floor-push"
	floorPullMode = "floor-pull"
)

const (
	// floorConnections is as many as init-hook uses for layers.
	floorConnections = 6
	floorRepository  = "bench/floor"
)

// floor is a client that does the minimum: it checks for no existing blobs, verifies nothing, and
// uses one repository.
type floor struct {
	http.Client
	base   string
	layout string
}

func newFloor(args []string) *floor {
	return &floor{
		Client: http.Client{Transport: &http.Transport{MaxConnsPerHost: floorConnections,
			MaxIdleConnsPerHost: floorConnections}},
		base:   "http://" + args[0] + "/v2/" + floorRepository,
		layout: args[1],
	}
}

// floorPush sends every blob of a layout, then the manifests. Go sends the files with sendfile.
func floorPush(ctx context.Context, args []string) error {
	f := newFloor(args)
	blobs, manifests, err := f.contents()
	if err != nil {
		return err
	}
	err = each(ctx, blobs, func(ctx context.Context, desc ocispec.Descriptor) error {
		upload, err := f.send(ctx, http.MethodPost, f.base+"/blobs/uploads/", nil, ocispec.Descriptor{}, http.StatusAccepted)
		if err != nil {
			return err
		}
		return f.put(ctx, upload.String()+"&digest="+desc.Digest.String(), desc)
	})
	if err != nil {
		return err
	}
	return each(ctx, manifests, func(ctx context.Context, desc ocispec.Descriptor) error {
		return f.put(ctx, f.base+"/manifests/"+desc.Digest.String(), desc)
	})
}

// floorPull writes every blob of a layout from the registry to files in args[2].
func floorPull(ctx context.Context, args []string) error {
	f, out := newFloor(args), args[2]
	blobs, manifests, err := f.contents()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(blobFile(out, blobs[0].Digest)), 0o755); err != nil {
		return err
	}
	get := func(from string) func(context.Context, ocispec.Descriptor) error {
		return func(ctx context.Context, desc ocispec.Descriptor) error { return f.get(ctx, from, desc, out) }
	}
	if err := each(ctx, blobs, get(f.base+"/blobs/")); err != nil {
		return err
	}
	return each(ctx, manifests, get(f.base+"/manifests/"))
}

// contents lists the manifests and blobs of the layout.
func (f *floor) contents() (blobs, manifests []ocispec.Descriptor, err error) {
	var index ocispec.Index
	if err := readJSON(filepath.Join(f.layout, ocispec.ImageIndexFile), &index); err != nil {
		return nil, nil, err
	}
	seen := map[string]bool{}
	for _, desc := range index.Manifests {
		var manifest ocispec.Manifest
		if err := readJSON(blobFile(f.layout, desc.Digest), &manifest); err != nil {
			return nil, nil, err
		}
		for _, blob := range append(manifest.Layers, manifest.Config) {
			if !seen[blob.Digest.String()] {
				seen[blob.Digest.String()] = true
				blobs = append(blobs, blob)
			}
		}
	}
	if len(blobs) == 0 {
		return nil, nil, errors.New("the layout has no images")
	}
	return blobs, index.Manifests, nil
}

func readJSON(path string, v any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, v)
}

// each calls do for all descriptors, floorConnections at a time.
func each(ctx context.Context, all []ocispec.Descriptor, do func(context.Context, ocispec.Descriptor) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(floorConnections)
	for _, desc := range all {
		group.Go(func() error { return do(ctx, desc) })
	}
	return group.Wait()
}

func (f *floor) put(ctx context.Context, to string, desc ocispec.Descriptor) error {
	file, err := os.Open(blobFile(f.layout, desc.Digest))
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = f.send(ctx, http.MethodPut, to, file, desc, http.StatusCreated)
	return err
}

// send sends a request and returns the Location of the response.
func (f *floor) send(ctx context.Context, method, to string, body io.Reader, desc ocispec.Descriptor,
	want int) (*url.URL, error) {
	request, err := http.NewRequestWithContext(ctx, method, to, body)
	if err != nil {
		return nil, err
	}
	request.ContentLength = desc.Size
	if desc.MediaType != "" {
		request.Header.Set("Content-Type", desc.MediaType)
	}
	response, err := f.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != want {
		return nil, fmt.Errorf("%s %s: %s: %s", method, to, response.Status, strings.TrimSpace(string(text)))
	}
	return response.Location()
}

// get writes a blob or manifest to its file in out.
func (f *floor) get(ctx context.Context, from string, desc ocispec.Descriptor, out string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from+desc.Digest.String(), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", desc.MediaType)
	response, err := f.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", request.URL, response.Status)
	}
	file, err := os.Create(blobFile(out, desc.Digest))
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(onlyWriter{file}, response.Body, make([]byte, 256<<10))
	return errors.Join(err, file.Close())
}
