package registry

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/test/powercut"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	// recordedRoot makes the test program a registry with the storage in this directory. It writes its address to
	// standard output.
	recordedRoot = "ZARF_REGISTRY_RECORDED_ROOT"
	collectPath  = "/collect-garbage"
)

// openUnguarded returns a registry in which everybody may do everything, also collect garbage.
func openUnguarded(root string) (*Server, http.Handler, error) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	config, users := filepath.Join(dir, "config.yml"), filepath.Join(dir, "htpasswd")
	err = os.WriteFile(config, fmt.Appendf(nil, "version: 0.1\nstorage: {filesystem: {rootdirectory: %q}, "+
		"maintenance: {uploadpurging: {enabled: false}}}\n", root), 0o600)
	if err == nil { // the password is "p"
		err = os.WriteFile(users, []byte("push:$2a$04$RjHjqLP.PTiHFrWMfIaOTO0GkuRFkBpGhMbVkM0Gh0xKy0OHxOX2W\n"), 0o600)
	}
	if err != nil {
		return nil, nil, err
	}
	options := Options{PlainListen: "127.0.0.1:0", Htpasswd: users, Log: slog.New(slog.DiscardHandler)}
	if options.Config, err = LoadConfig(config); err != nil {
		return nil, nil, err
	}
	s, err := Open(options)
	if err != nil {
		return nil, nil, err
	}
	s.collector.Times = quick
	s.source.Rebuilt.Store(true)
	next := s.source
	return s, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != collectPath {
			next.ServeHTTP(w, r)
			return
		}
		request := gc.Request{Timeout: time.Minute, DeleteUntagged: true}
		if _, err := s.collector.Collect(r.Context(), request, func(gc.Event) {}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}), nil
}

// serveRecorded is the registry whose file operations are recorded.
func serveRecorded(root string) error {
	_, handler, err := openUnguarded(root)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, handler)
}

// recorded is a registry whose file operations are recorded, with what its clients know.
type recorded struct {
	client
	process *powercut.Process

	mu      sync.Mutex
	changes map[string][]change // by path: of a manifest by tag or digest, or of a blob
	bodies  map[digest.Digest]string
	uploads []upload // of a blob that arrives in chunks
}

// upload is how a client continues an upload after so many events.
type upload struct {
	after    int
	location string
}

// change is a request that changed what a path serves.
type change struct {
	// from and to are the numbers of events before the request and after its response.
	from, to int
	// now is the digest that the path serves afterwards, or "".
	now digest.Digest
}

func record(t *testing.T, root string) *recorded {
	t.Helper()
	process := powercut.Start(t, root, []string{recordedRoot + "=" + root}, "/proc/self/exe")
	var address string
	eventually(t, "the registry listens", func() (ok bool) {
		address, _, ok = strings.Cut(process.Output(), "\n")
		return ok
	})
	return &recorded{
		client:  client{Client: &http.Client{}, t: t, base: "http://" + address},
		process: process, changes: map[string][]change{}, bodies: map[digest.Digest]string{},
	}
}

// change carries out a request that changes what paths serve.
func (r *recorded) change(now digest.Digest, request func(), paths ...string) {
	from := r.process.Events()
	request()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, path := range paths {
		r.changes[path] = append(r.changes[path], change{from, r.process.Events(), now})
	}
}

func blobURL(repository string, d digest.Digest) string {
	return "/v2/" + repository + "/blobs/" + d.String()
}

func manifestURL(repository, reference string) string {
	return "/v2/" + repository + "/manifests/" + reference
}

func (r *recorded) know(content string) digest.Digest {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := digest.FromString(content)
	r.bodies[d] = content
	return d
}

func (r *recorded) blob(repository, content string) digest.Digest {
	d := r.know(content)
	r.change(d, func() { r.pushBlob(repository, content) }, blobURL(repository, d))
	return d
}

// image pushes an image and returns its manifest's digest.
func (r *recorded) image(repository, tag, layer string) digest.Digest {
	r.blob(repository, "{}")
	r.blob(repository, layer)
	return r.manifest(repository, tag, ociManifest, imageOf(layer))
}

func (r *recorded) manifest(repository, tag, mediaType string, manifest map[string]any) digest.Digest {
	content := encode(r.t, mediaType, manifest)
	d := r.know(content)
	paths := []string{manifestURL(repository, d.String())}
	if tag != "" {
		paths = append(paths, manifestURL(repository, tag))
	}
	r.change(d, func() {
		r.must(http.StatusCreated, "PUT", paths[len(paths)-1], strings.NewReader(content), "Content-Type", mediaType)
	}, paths...)
	return d
}

func (r *recorded) remove(paths ...string) {
	r.change("", func() { r.must(http.StatusAccepted, "DELETE", paths[0], nil) }, paths...)
}

// use does everything that changes the storage.
func (r *recorded) use() {
	first := r.image("a", "v1", strings.Repeat("layer 1 ", 5000))
	r.image("a", "v1", "layer 2") // moves the tag
	untagged := r.image("deep/er/b", "v1", "layer 3")

	// In chunks, with the state of the digest in between.
	chunked := strings.Repeat("chunked ", 3000)
	d := r.know(chunked)
	r.change(d, func() {
		location := r.begin("chunks")
		for _, chunk := range []string{chunked[:9000], chunked[9000:]} {
			location = r.must(http.StatusAccepted, "PATCH", r.base+location, strings.NewReader(chunk)).Header.Get("Location")
			r.uploads = append(r.uploads, upload{r.process.Events(), location})
		}
		r.must(http.StatusCreated, "PUT", r.base+location+"&digest="+d.String(), nil)
	}, blobURL("chunks", d))
	r.change(d, func() { r.must(http.StatusCreated, "POST", "/v2/c/blobs/uploads/?mount="+d.String(), nil) }, blobURL("c", d))

	// A blob that another client is just storing.
	var pushing sync.WaitGroup
	for range 3 {
		pushing.Go(func() { r.blob("d", "at once") })
	}
	pushing.Wait()
	r.image("d", "v1", "at once")

	child := r.image("e", "", "layer 4")
	index := r.manifest("e", "v1", ociIndex, indexOf(child))
	referrer := r.manifest("e", "", ociManifest, artifact(index, "application/x-signature"))

	// What is deleted does not come back without its blobs.
	r.remove(manifestURL("deep/er/b", "v1"))
	r.remove(manifestURL("a", first.String()))
	r.remove(manifestURL("e", index.String()), manifestURL("e", "v1"))
	r.change("", func() { r.must(http.StatusOK, "POST", collectPath, nil) }, manifestURL("e", child.String()),
		manifestURL("e", referrer.String()), manifestURL("deep/er/b", untagged.String()), collectPath)
	r.image("e", "v2", "layer 4") // again
	r.image("f", "v1", "layer 5")
}

// lasting reports whether a path must serve the same until the next change, once it was acknowledged. Garbage
// collection may remove blobs, and a removed one may be back.
func lasting(path string) bool { return strings.Contains(path, "/manifests/") }

// acceptable returns what a path may serve after so many events.
func acceptable(changes []change, after int) (values []digest.Digest) {
	values = []digest.Digest{""}
	for _, c := range changes {
		if c.to <= after {
			values = nil
		}
		if c.from <= after {
			values = append(values, c.now)
		}
	}
	return values
}

// needs returns the paths of what a manifest refers to.
func needs(repository, content string) (paths []string) {
	var m struct {
		Config            struct{ Digest digest.Digest }
		Layers, Manifests []struct{ Digest digest.Digest }
	}
	_ = json.Unmarshal([]byte(content), &m) // is a manifest
	if m.Config.Digest != "" {
		paths = append(paths, blobURL(repository, m.Config.Digest))
	}
	for _, layer := range m.Layers {
		paths = append(paths, blobURL(repository, layer.Digest))
	}
	for _, child := range m.Manifests {
		paths = append(paths, manifestURL(repository, child.Digest.String()))
	}
	return paths
}

// check starts a registry on what a cut has left, and returns how that differs from what was acknowledged.
func (r *recorded) check(cut powercut.Cut, again bool) (problems []string) {
	root := cut.Restore(r.t)
	defer os.RemoveAll(root)
	server, handler, err := openUnguarded(root)
	if err != nil {
		return []string{fmt.Sprintf("the registry does not start: %v", err)}
	}
	defer server.source.Shutdown()
	send := func(method, path, body, mediaType string) *http.Response {
		request := httptest.NewRequest(method, path, strings.NewReader(body))
		request.Header.Set("Content-Type", mediaType)
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		return response.Result()
	}
	get := func(path string) (digest.Digest, error) {
		response := send("GET", path, "", "")
		content, err := io.ReadAll(response.Body)
		switch {
		case err != nil:
			return "", err
		case response.StatusCode == http.StatusNotFound:
			return "", nil
		case response.StatusCode != http.StatusOK:
			return "", fmt.Errorf("status %d: %s", response.StatusCode, content)
		}
		return digest.FromBytes(content), nil
	}
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, path := range slices.Sorted(maps.Keys(r.changes)) {
		if path == collectPath {
			continue
		}
		served, err := get(path)
		if err != nil {
			problem("%s: %v", path, err)
			continue
		}
		values := acceptable(r.changes[path], cut.After)
		if collected := r.changes[collectPath]; !lasting(path) && len(collected) > 0 && collected[0].from <= cut.After {
			values = append(values, "")
		}
		if !slices.Contains(values, served) {
			problem("%s serves %q, want one of %q", path, served, values)
		}
		if served == "" || !lasting(path) {
			continue
		}
		repository := strings.TrimPrefix(path[:strings.Index(path, "/manifests/")], "/v2/")
		for _, needed := range needs(repository, r.bodies[served]) {
			d, err := get(needed)
			if err != nil || !strings.HasSuffix(needed, d.String()) || d == "" {
				problem("%s lacks %s: %q, %v", path, needed, d, err)
			}
		}
	}
	// Clients that continue an upload either fail or have uploaded the right content.
	for _, u := range r.uploads {
		d := digest.FromString(strings.Repeat("chunked ", 3000))
		if u.after > cut.After {
			break
		}
		status := send("GET", u.location, "", "")
		if status.StatusCode != http.StatusNoContent {
			continue
		}
		var end int
		if _, err := fmt.Sscanf(status.Header.Get("Range"), "0-%d", &end); err != nil {
			problem("range %q: %v", status.Header.Get("Range"), err)
		}
		response := send("PATCH", status.Header.Get("Location"), r.bodies[d][end+1:], "application/octet-stream")
		if response.StatusCode == http.StatusAccepted {
			response = send("PUT", response.Header.Get("Location")+"&digest="+d.String(), "", "")
		}
		if served, err := get(blobURL("chunks", d)); response.StatusCode == http.StatusCreated && served != d {
			problem("a continued upload serves %q, %v", served, err)
		}
	}
	if !again {
		return problems
	}
	// What was not acknowledged can be pushed again, and garbage can be collected.
	if response := send("POST", collectPath, "", ""); response.StatusCode != http.StatusOK {
		content, _ := io.ReadAll(response.Body)
		problem("garbage collection fails: %s", content)
	}
	for d, content := range r.bodies {
		response := send("POST", "/v2/again/blobs/uploads/?digest="+d.String(), content, "application/octet-stream")
		if served, err := get(blobURL("again", d)); response.StatusCode != http.StatusCreated || served != d {
			problem("pushing %s again: status %d; served is %q, %v", d, response.StatusCode, served, err)
		}
	}
	return problems
}

func TestAcknowledgedContentSurvivesPowerCuts(t *testing.T) {
	t.Parallel()
	if s3 != nil {
		t.Skip("about file systems")
	}
	root := t.TempDir()
	r := record(t, root)
	r.use()
	require.NoError(t, r.process.Kill())
	checked, failed := map[[sha256.Size + 8]byte]bool{}, 0
	options := powercut.Options{Seed: 1, Random: 1, Alone: 10, Ignore: func(name string) bool {
		return strings.Contains(name, "/_uploads") && !strings.Contains(name, "/chunks/")
	}}
	if testing.Short() {
		options.Random, options.Alone = 0, 25
	}
	began, last := time.Now(), -1
	for cut := range r.process.Cuts(options) {
		acknowledged := 0
		for _, changes := range r.changes {
			for _, c := range changes {
				if c.to <= cut.After {
					acknowledged++
				}
			}
		}
		key := [sha256.Size + 8]byte(append(slices.Clone(cut.Sum[:]), fmt.Sprintf("%08d", acknowledged)...))
		if checked[key] {
			continue
		}
		checked[key] = true
		again := acknowledged != last
		last = acknowledged
		for _, problem := range r.check(cut, again) {
			t.Errorf("%s: %s", cut, problem)
			failed++
		}
		if failed > 20 {
			t.Fatal("and so on")
		}
	}
	t.Logf("%d events, %d cuts checked in %s", r.process.Events(), len(checked), time.Since(began).Round(time.Second))
	if len(checked) < 100 {
		t.Errorf("only %d cuts were checked", len(checked))
	}
}
