package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/zarf-dev/zarf-registry/test/e2e/soak"
)

// watcher pulls images from the registry at base as a container runtime does: over a new connection
// for each pull, and with a credential only if the registry requests one.
type watcher struct {
	base   string
	slow   bool // read slowly
	client *http.Client
	known  map[string]bool // verified blobs that need not be pulled again; nil: pull all

	mu     sync.Mutex
	images []image
	auth   [2]string
	older  int // index of the next older image
}

// image is an image that was pushed to a tag. Another one may have replaced it there.
type image struct{ repository, tag, digest string }

// idleTimeout is the idle timeout of a pull: longer than a proxy holds a pull.
const idleTimeout = 5 * time.Minute

// idleConn is a connection with an idle timeout. A proxy that is killed together with its network
// namespace leaves half-open connections.
type idleConn struct{ net.Conn }

func (c idleConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(idleTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// slowRate is the rate of slow readers in bytes a second, and slowBuffer the size of their receive buffer: a
// large one hides that a connection was cut.
const slowRate, slowBuffer = 1 << 20, 64 << 10

func newWatcher(base string, slow bool) *watcher {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialFromNextPort(ctx, network, address, 10*time.Second)
		if err != nil {
			return nil, err
		}
		if slow {
			if err := conn.(*net.TCPConn).SetReadBuffer(slowBuffer); err != nil {
				return nil, errors.Join(err, conn.Close())
			}
		}
		return idleConn{conn}, nil
	}
	return &watcher{base: base, slow: slow, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: dial}}}
}

// watch pulls images until stdin ends and prints the result of each pull. Lines of stdin are "image
// REPOSITORY TAG DIGEST" and "auth USER PASSWORD". Two loops pull in parallel with a pause after each
// pull, one of them slowly so that a pull is in progress at most times. Every other pull is of the newest
// image, the others go through all images; half of each are by tag and half by digest.
func watch(base string, pause time.Duration) error {
	fast, slow := newWatcher(base, false), newWatcher(base, true)
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	pullAgain := func(w *watcher) error {
		for i := 0; ; i++ {
			time.Sleep(pause)
			next, ok := w.next(i)
			if !ok {
				continue
			}
			a := w.attempt(next, i%4 >= 2)
			mu.Lock()
			err := out.Encode(a)
			mu.Unlock()
			if err != nil {
				return err
			}
		}
	}
	ended := make(chan error, 3)
	go func() { ended <- listen(os.Stdin, fast, slow) }()
	go func() { ended <- pullAgain(fast) }()
	go func() { ended <- pullAgain(slow) }()
	return <-ended
}

// each pulls all images of stdin by digest, and each tag once, as watch does, and prints each result.
func each(base string) error {
	w := newWatcher(base, false)
	w.known = map[string]bool{}
	if err := listen(os.Stdin, w); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	tags := map[string]bool{}
	for _, i := range w.images {
		if err := out.Encode(w.attempt(i, false)); err != nil {
			return err
		}
		if tags[i.tag] {
			continue
		}
		tags[i.tag] = true
		if err := out.Encode(w.attempt(i, true)); err != nil {
			return err
		}
	}
	return nil
}

// listen reads lines for watchers.
func listen(stdin io.Reader, watchers ...*watcher) error {
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		for _, w := range watchers {
			w.mu.Lock()
			switch {
			case len(fields) == 4 && fields[0] == "image":
				w.images = append(w.images, image{fields[1], fields[2], fields[3]})
			case len(fields) == 3 && fields[0] == "auth":
				w.auth = [2]string(fields[1:])
			}
			w.mu.Unlock()
		}
	}
	return lines.Err()
}

func (w *watcher) next(i int) (image, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.images) == 0 {
		return image{}, false
	}
	if i%2 == 0 {
		return w.images[len(w.images)-1], true
	}
	w.older++
	return w.images[w.older%len(w.images)], true
}

// attempt pulls an image, by its tag or by its digest.
func (w *watcher) attempt(i image, byTag bool) soak.Attempt {
	a := soak.Attempt{Image: i.repository + "@" + i.digest, Slow: w.slow, Begin: time.Now()}
	digest, err := i.digest, error(nil)
	if byTag {
		a.Image = i.repository + ":" + i.tag
		digest, err = w.resolve(i.repository, i.tag)
		a.Digest = digest
	}
	if err == nil {
		a.Bytes, err = w.pull(i.repository, digest)
	}
	a.Took = time.Since(a.Begin)
	if err != nil {
		a.Err, a.Corrupt = err.Error(), errors.Is(err, errCorrupt)
	}
	return a
}

// resolve returns the digest of a tag with the request that container runtimes make.
func (w *watcher) resolve(repository, tag string) (string, error) {
	response, err := w.request(http.MethodHead, repository, "manifests", tag)
	if err != nil {
		return "", fmt.Errorf("tag %s: %w", tag, err)
	}
	response.Body.Close()
	digest := response.Header.Get("Docker-Content-Digest")
	if response.StatusCode != http.StatusOK || digest == "" {
		return "", fmt.Errorf("tag %s: %s, digest %q", tag, response.Status, digest)
	}
	return digest, nil
}

var errCorrupt = errors.New("CORRUPT: content does not match its digest")

// pull pulls a manifest and its blobs. Content that does not match its digest is errCorrupt.
func (w *watcher) pull(repository, digest string) (int64, error) {
	body, err := w.get(repository, "manifests", digest)
	total := int64(len(body))
	if err != nil {
		return total, err
	}
	var manifest struct {
		Config struct{ Digest string }
		Layers []struct{ Digest string }
	}
	if err := json.Unmarshal(body, &manifest); err != nil {
		return total, fmt.Errorf("manifest: %w", err)
	}
	blobs := []string{manifest.Config.Digest}
	for _, l := range manifest.Layers {
		blobs = append(blobs, l.Digest)
	}
	for _, blob := range blobs {
		if w.known[blob] {
			continue
		}
		body, err := w.get(repository, "blobs", blob)
		total += int64(len(body))
		if err != nil {
			return total, err
		}
		if w.known != nil {
			w.known[blob] = true
		}
	}
	return total, nil
}

// request sends a request, with the credential if the registry requests one.
func (w *watcher) request(method, repository, kind, reference string) (*http.Response, error) {
	send := func(auth [2]string) (*http.Response, error) {
		request, err := http.NewRequestWithContext(context.Background(), method,
			w.base+"/v2/"+repository+"/"+kind+"/"+reference, nil)
		if err != nil {
			return nil, err
		}
		request.Header.Set("Accept", "application/vnd.oci.image.manifest.v1+json")
		if auth[0] != "" {
			request.SetBasicAuth(auth[0], auth[1])
		}
		return w.client.Do(request)
	}
	response, err := send([2]string{})
	if err != nil || response.StatusCode != http.StatusUnauthorized {
		return response, err
	}
	response.Body.Close()
	w.mu.Lock()
	auth := w.auth
	w.mu.Unlock()
	return send(auth)
}

// get downloads a digest.
func (w *watcher) get(repository, kind, digest string) ([]byte, error) {
	what := kind + " " + digest
	response, err := w.request(http.MethodGet, repository, kind, digest)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer response.Body.Close()
	var body bytes.Buffer
	for {
		n, err := io.CopyN(&body, response.Body, 64<<10)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return body.Bytes(), fmt.Errorf("%s, after %d bytes: %w", what, body.Len(), err)
		}
		if w.slow {
			time.Sleep(time.Duration(n) * time.Second / slowRate)
		}
	}
	if response.StatusCode != http.StatusOK {
		return body.Bytes(), fmt.Errorf("%s: %s: %s", what, response.Status, strings.TrimSpace(body.String()))
	}
	if got := sum(body.Bytes()); got != digest {
		return body.Bytes(), fmt.Errorf("%s: got %s (%d bytes): %w", what, got, body.Len(), errCorrupt)
	}
	return body.Bytes(), nil
}
