package pull

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

const (
	// cachesAtOnce is how many caches are filled at once: all of most clusters. Each fetches from the registry.
	cachesAtOnce = 16
	// RequestsPerCache is how many blobs are requested of a cache at once. Each keeps a connection to the API
	// server, and none transfers more than a byte.
	RequestsPerCache = 8
	// requestTries is how often one blob is requested. A load balancer in front of the API server may end the
	// connection, which is idle while the cache fetches the blob: with its usual minute, this allows ten. The
	// cache goes on fetching.
	requestTries = 10
	// requestPause is between two tries: enough for a registry that restarts, over all of them.
	requestPause = 3 * time.Second
	// maxErrorBody bounds what is read of an error response, in bytes.
	maxErrorBody = 4 << 10
)

// Cache is a cache pod.
type Cache struct {
	// Pod is its name, and Object "pod NAMESPACE/NAME" for messages.
	Pod, Object string
	// Transport reaches the pod alone, over mutual TLS, and Host is its HOST:PORT in requests.
	Transport http.RoundTripper
	Host      string
}

// Image is an image that caches fetch.
type Image struct {
	Reference string
	// Paths are those of the image's manifests and blobs by digest, such as /v2/app/blobs/sha256:…, and of its tag.
	Paths []string
}

// Fill makes each cache fetch the images, and returns once each holds them or failed, by cache and image. It
// requests manifests, and the last byte of each blob, which a cache sends when it has verified the whole. ctx
// bounds it.
func Fill(ctx context.Context, caches []Cache, images []Image, log *slog.Logger) []Result {
	results := make([][]Result, len(caches))
	var g errgroup.Group
	g.SetLimit(cachesAtOnce)
	for i, c := range caches {
		g.Go(func() error {
			results[i] = c.fill(ctx, images, log)
			return nil
		})
	}
	_ = g.Wait() // none fails
	return slices.Concat(results...)
}

func (c Cache) fill(ctx context.Context, images []Image, log *slog.Logger) []Result {
	begin := time.Now()
	results := make([]Result, len(images))
	var mu sync.Mutex // of results, and of left
	var g errgroup.Group
	g.SetLimit(RequestsPerCache)
	for i, image := range images {
		result, left := &results[i], len(image.Paths)
		*result = Result{Name: c.Pod, Image: image.Reference, Outcome: Filled}
		for _, target := range image.Paths {
			g.Go(func() error {
				err := c.request(ctx, target)
				mu.Lock()
				defer mu.Unlock()
				if err != nil && result.Outcome == Filled {
					result.Outcome, result.Message = Failed, oneLine(err.Error())
					result.Remedy = "check the log of " + c.Object
				}
				if left--; left == 0 {
					result.Seconds = seconds(time.Since(begin))
					c.report(log, *result)
				}
				return nil
			})
		}
	}
	_ = g.Wait() // none fails
	return results
}

func (c Cache) report(log *slog.Logger, r Result) {
	if r.Outcome == Failed {
		log.Warn("cache not filled", "cache", r.Name, "image", r.Image, "error", r.Message)
		return
	}
	log.Info("cache filled", "cache", r.Name, "image", r.Image, "seconds", r.Seconds)
}

// errRefused is wrapped by the errors of responses that another try would get again.
var errRefused = errors.New("refused")

// request returns when the cache holds what a path names.
func (c Cache) request(ctx context.Context, target string) error {
	var err error
	for try := range requestTries {
		if try > 0 && release.Sleep(ctx, requestPause) != nil {
			break
		}
		if err = c.requestOnce(ctx, target); err == nil || errors.Is(err, errRefused) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", target, cmp.Or(context.Cause(ctx), err))
	}
	return err
}

func (c Cache) requestOnce(ctx context.Context, target string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+c.Host+target, nil)
	if err != nil {
		return err
	}
	manifest := path.Base(path.Dir(target)) == "manifests"
	if manifest {
		r.Header.Set("Accept", oci.Accept)
	} else {
		r.Header.Set("Range", "bytes=-1")
	}
	response, err := c.Transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusPartialContent,
		// Registries send manifests whole, and an empty blob has no last byte.
		response.StatusCode == http.StatusOK && (manifest || response.ContentLength == 0):
		_, err = io.Copy(io.Discard, response.Body)
		return err
	case response.StatusCode == http.StatusOK:
		return fmt.Errorf("%w: the response is not the last byte", errRefused)
	}
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody)) // the status is enough
	err = fmt.Errorf("response %s: %s", response.Status, strings.TrimSpace(string(body)))
	if response.StatusCode < http.StatusInternalServerError {
		err = fmt.Errorf("%w: %w", errRefused, err)
	}
	return err
}
