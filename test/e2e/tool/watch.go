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
	client *http.Client
	known  map[string]bool // verified blobs that need not be pulled again; nil: pull all

	mu     sync.Mutex
	images []string // REPOSITORY@DIGEST
	auth   [2]string
	older  int // index of the next older image
}

// idleTimeout is the idle timeout of a pull: longer than a proxy holds a pull, and about as long as
// container runtimes wait.
const idleTimeout = 75 * time.Second

// idleConn is a connection with an idle timeout. A proxy that is killed together with its network
// namespace leaves half-open connections.
type idleConn struct{ net.Conn }

func (c idleConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(idleTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func newWatcher(base string) *watcher {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return idleConn{conn}, nil
	}
	return &watcher{base: base, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: dial}}}
}

// watch pulls images until stdin ends and prints the result of each pull. Lines of stdin are "image
// REPOSITORY@DIGEST" and "auth USER PASSWORD". Two loops pull in parallel with a pause after each
// pull, one of them at a limited rate so that a pull is in progress at most times. Every other pull
// is of the newest image; the others go through all images.
func watch(base string, pause time.Duration) error {
	w := newWatcher(base)
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	pullAgain := func(slow bool) error {
		for i := 0; ; i++ {
			time.Sleep(pause)
			image := w.next(i)
			if image == "" {
				continue
			}
			a := soak.Attempt{Image: image, Slow: slow, Begin: time.Now()}
			var err error
			a.Bytes, err = w.pull(image, slow)
			a.Took = time.Since(a.Begin)
			if err != nil {
				a.Err, a.Corrupt = err.Error(), errors.Is(err, errCorrupt)
			}
			mu.Lock()
			err = out.Encode(a)
			mu.Unlock()
			if err != nil {
				return err
			}
		}
	}
	ended := make(chan error, 3)
	go func() { ended <- w.listen(os.Stdin) }()
	go func() { ended <- pullAgain(false) }()
	go func() { ended <- pullAgain(true) }()
	return <-ended
}

// each pulls all images of stdin once, as watch does, and prints each result.
func each(base string) error {
	w := newWatcher(base)
	w.known = map[string]bool{}
	if err := w.listen(os.Stdin); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	for _, image := range w.images {
		a := soak.Attempt{Image: image, Begin: time.Now()}
		var err error
		if a.Bytes, err = w.pull(image, false); err != nil {
			a.Err = err.Error()
		}
		a.Took = time.Since(a.Begin)
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) listen(stdin io.Reader) error {
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		w.mu.Lock()
		switch {
		case len(fields) == 2 && fields[0] == "image":
			w.images = append(w.images, fields[1])
		case len(fields) == 3 && fields[0] == "auth":
			w.auth = [2]string(fields[1:])
		}
		w.mu.Unlock()
	}
	return lines.Err()
}

func (w *watcher) next(i int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.images) == 0 {
		return ""
	}
	if i%2 == 0 {
		return w.images[len(w.images)-1]
	}
	w.older++
	return w.images[w.older%len(w.images)]
}

var errCorrupt = errors.New("CORRUPT: content does not match its digest")

// pull pulls a manifest and its blobs. Content that does not match its digest is errCorrupt.
func (w *watcher) pull(image string, slow bool) (int64, error) {
	repository, digest, _ := strings.Cut(image, "@")
	body, err := w.get(repository, "manifests", digest, 0)
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
		var rate int64
		if slow {
			rate = 2 << 20
		}
		body, err := w.get(repository, "blobs", blob, rate)
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

// get downloads a digest, at rate bytes a second or, for 0, without a limit.
func (w *watcher) get(repository, kind, digest string, rate int64) ([]byte, error) {
	what := kind + " " + digest
	send := func(auth [2]string) (*http.Response, error) {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet,
			w.base+"/v2/"+repository+"/"+kind+"/"+digest, nil)
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
	if err == nil && response.StatusCode == http.StatusUnauthorized {
		response.Body.Close()
		w.mu.Lock()
		auth := w.auth
		w.mu.Unlock()
		response, err = send(auth)
	}
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
		if rate > 0 {
			time.Sleep(time.Duration(n) * time.Second / time.Duration(rate))
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
