package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
	"github.com/zarf-dev/zarf-registry/test/s3test"
)

const (
	blobsOfImage = 10 // a manifest, a configuration and layers
	imagesOfRepo = 10
	minBlobs     = 10 * blobsOfImage
	blobBytes    = 100
	filesAtOnce  = 8
	connections  = 64
	garbageShare = 10 // one of so many images is deleted
)

// bucket is a slow S3 server.
type bucket struct {
	dir      string
	server   *s3test.Server
	front    *http.Server
	requests atomic.Int64
}

// startBucket starts a server that takes delay longer for each request. Its files are in dir.
func startBucket(ctx context.Context, program, dir string, delay time.Duration) (*bucket, error) {
	b := &bucket{dir: filepath.Join(dir, "s3", "bucket")}
	address, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return nil, err
	}
	if b.server, err = s3test.Start(program, address, b.dir); err != nil {
		return nil, err
	}
	target, err := url.Parse(b.server.Endpoint)
	if err != nil {
		return nil, errors.Join(err, b.stop())
	}
	proxy := &httputil.ReverseProxy{
		Transport: &http.Transport{MaxIdleConnsPerHost: connections},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // it is signed
		},
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, b.stop())
	}
	b.front = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.requests.Add(1)
		time.Sleep(delay)
		proxy.ServeHTTP(w, r)
	})}
	go func() { _ = b.front.Serve(listener) }() // until it is closed
	b.server.Endpoint = "http://" + listener.Addr().String()
	return b, nil
}

func (b *bucket) stop() (err error) {
	if b.front != nil {
		err = b.front.Close()
	}
	b.server.Stop()
	return err
}

// image is a stored image.
type image struct {
	repository string
	manifest   ocispec.Descriptor
	blobs      []ocispec.Descriptor // first the configuration
}

// blob returns the content of a stored blob.
func blob(n int) []byte {
	content, _ := io.ReadAll(registries.Random(uint64(n), blobBytes)) // cannot fail
	return content
}

// store writes images to the files of the bucket, as distribution does.
func (b *bucket) store(ctx context.Context, blobs int) ([]image, error) {
	images := make([]image, blobs/blobsOfImage)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(filesAtOnce)
	for n := range images {
		group.Go(func() (err error) {
			if ctx.Err() == nil {
				images[n], err = b.storeImage(n)
			}
			return err
		})
	}
	return images, group.Wait()
}

// storeImage stores an image, whose blobs no other image has. The first blob is its configuration.
func (b *bucket) storeImage(n int) (image, error) {
	i := image{repository: fmt.Sprintf("bench/app-%d", n/imagesOfRepo)}
	for k := range blobsOfImage - 1 {
		content := blob(n*blobsOfImage + k)
		if k == 0 {
			content = fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","author":"%d"}`, n)
		}
		d := ocispec.Descriptor{Digest: digest.FromBytes(content), Size: int64(len(content))}
		i.blobs = append(i.blobs, d)
		if err := errors.Join(b.write(storage.BlobPath(d.Digest), string(content)),
			b.write(storage.LayerPath(i.repository, d.Digest), d.Digest.String())); err != nil {
			return i, err
		}
	}
	manifest, desc, err := registries.Manifest(i.blobs[0], i.blobs[1:]...)
	if err != nil {
		return i, err
	}
	i.manifest = desc
	link, tag := desc.Digest.String(), fmt.Sprintf("t%d", n)
	current := storage.TagPath(i.repository, tag)
	history := filepath.Join(filepath.Dir(filepath.Dir(current)), "index/sha256", desc.Digest.Encoded(), "link")
	return i, errors.Join(b.write(storage.BlobPath(desc.Digest), manifest),
		b.write(storage.RevisionPath(i.repository, desc.Digest), link), b.write(current, link), b.write(history, link))
}

func (b *bucket) write(path, content string) error {
	path = filepath.Join(b.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o600)
}
