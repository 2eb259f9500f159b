package registrycheck

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/deletion"
	"github.com/zarf-dev/zarf-registry/internal/api/gc"
)

// requestTimeout is longer than every pause and every wait for the collector.
const requestTimeout = 2 * time.Minute

// offlineStart is how long registry garbage-collect takes until it marks.
const offlineStart = 50 * time.Millisecond

// backoff is how long a client waits after a failure, so that a fault does not affect most of its operations.
const backoff = 30 * time.Millisecond

// client carries out operations one after another, and records each request.
type client struct {
	cluster *cluster
	history *history
	pool    *pool
	id      int
	http    *http.Client
	random  *rand.Rand // of the current operation
}

func newClient(c *cluster, id int) *client {
	return &client{
		cluster: c, history: c.history, pool: c.plan.pool, id: id,
		http: &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: requestTimeout},
	}
}

// request is an HTTP request.
type request struct {
	method, path string
	body         []byte
	header       map[string]string
	// breakAfter makes the client close the connection after so many bytes of the body; 0 for never.
	breakAfter int
}

type response struct {
	status int
	header http.Header
	body   []byte
	err    error
	epoch  int // of the process that received the request
}

// errBroken is why a client closes a connection.
var errBroken = errors.New("the client closes the connection")

// send sends a request to a process or to the proxy. While no process listens, it waits.
func (c *client) send(server int, r request) response {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		host, epoch := c.cluster.proxy, 0
		if server != viaProxy {
			host, epoch = c.cluster.servers[server].front, c.cluster.servers[server].currentEpoch()
		}
		answer := c.once(host, r)
		answer.epoch = epoch
		if !errors.Is(answer.err, syscall.ECONNREFUSED) || time.Since(began) > startTimeout {
			return answer
		}
	}
}

func (c *client) once(host string, r request) response {
	var body io.Reader = http.NoBody
	if r.breakAfter > 0 {
		body = io.MultiReader(bytes.NewReader(r.body[:r.breakAfter]), failingReader{})
	} else if len(r.body) > 0 {
		body = bytes.NewReader(r.body)
	}
	message, err := http.NewRequest(r.method, "http://"+host+r.path, body)
	if err != nil {
		return response{err: err}
	}
	message.ContentLength = int64(len(r.body))
	message.SetBasicAuth(userName, password)
	message.Header.Set("Accept", "application/vnd.oci.image.manifest.v1+json,application/vnd.oci.image.index.v1+json")
	for key, value := range r.header {
		message.Header.Set(key, value)
	}
	c.history.mu.Lock()
	c.history.requests++
	c.history.mu.Unlock()
	answer, err := c.http.Do(message)
	if err != nil {
		return response{err: err}
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	return response{status: answer.StatusCode, header: answer.Header, body: content, err: err}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errBroken }

// record sends a request and records it as an event.
func (c *client) record(e event, r request) (*event, response) {
	e.Client, e.Head = c.id, r.method == http.MethodHead
	e.Call = c.history.now()
	answer := c.send(e.Server, r)
	e.Return, e.Epoch, e.Status = c.history.now(), answer.epoch, answer.status
	switch {
	case answer.err != nil:
		e.Outcome, e.Error = unknown, answer.err.Error()
	case answer.status < 300:
		e.Outcome = done
	case answer.status == http.StatusNotFound:
		e.Outcome = absent
	case answer.status < 500:
		e.Outcome, e.Error = refused, string(answer.body)
	default:
		e.Outcome, e.Error = unknown, string(answer.body)
	}
	if e.Outcome == unknown && e.Server >= 0 { // or an earlier process, if this one had just started
		e.Epoch = c.cluster.servers[e.Server].currentEpoch()
	}
	c.history.add(&e)
	if e.Outcome == unknown {
		time.Sleep(backoff)
	}
	return &e, answer
}

// do carries out an operation.
func (c *client) do(o operation) {
	c.random = rand.New(rand.NewPCG(o.seed, 0))
	switch o.action {
	case push:
		c.push(o)
	case retag:
		c.putManifest(o, o.item, o.tag)
	case pullTag:
		if d := c.getManifest(o.server, o.repository, o.tag, ""); d != "" {
			c.pullContent(o, c.pool.byName[d])
		}
	case pullDigest:
		if d := c.getManifest(o.server, o.repository, "", o.item.digest); d != "" {
			c.pullContent(o, o.item)
		}
	case untag:
		c.record(event{Kind: deleteTag, Server: o.server, Repository: o.repository, Tag: o.tag},
			request{method: http.MethodDelete, path: "/v2/" + o.repository + "/manifests/" + o.tag})
	case removeManifest:
		c.record(event{Kind: deleteManifest, Server: o.server, Repository: o.repository, Digest: o.item.digest.String()},
			request{method: http.MethodDelete, path: "/v2/" + o.repository + "/manifests/" + o.item.digest.String()})
	case removeManifests:
		c.deleteManifests(o)
	case removeBlob:
		c.record(event{Kind: deleteBlob, Server: o.server, Repository: o.repository, Digest: o.blob.digest.String()},
			request{method: http.MethodDelete, path: "/v2/" + o.repository + "/blobs/" + o.blob.digest.String()})
	case list:
		c.list(o.server, o.repository, c.random.IntN(2) == 0)
	case discover:
		c.referrers(o.server, o.repository, o.item, c.random.IntN(2) == 0)
	case check:
		c.readBlob(o.server, o.repository, o.blob.digest)
	case mount:
		c.mount(o, o.blob)
	case upload:
		c.upload(o, o.blob, "")
	case cancelUpload:
		c.cancel(o)
	case corruptedUpload:
		c.corrupt(o)
	}
}

// deleteManifests deletes one or two manifests in one request, unless an index that remains refers to them.
func (c *client) deleteManifests(o operation) {
	digests := []digest.Digest{o.item.digest}
	if other := c.pool.items[c.random.IntN(images+indexes)]; other != o.item && c.random.IntN(2) == 0 {
		digests = append(digests, other.digest)
	}
	s := c.cluster.servers[o.server]
	e := event{Kind: deleteManifest, Client: c.id, Server: o.server, Epoch: s.currentEpoch(), Repository: o.repository,
		Conditional: true, Call: c.history.now()}
	kept, err := s.deleteManifests(o.repository, digests)
	e.Return = c.history.now()
	if err != nil {
		e.Epoch = s.currentEpoch()
	}
	for _, d := range digests {
		one := e
		one.Digest, one.Outcome, one.Error = d.String(), done, kept[d]
		switch {
		case err != nil:
			one.Outcome, one.Error = unknown, err.Error()
		case kept[d] != "":
			one.Outcome = refused
		}
		c.history.add(&one)
	}
	if err != nil {
		time.Sleep(backoff)
	}
}

// deleteManifests returns why manifests were kept.
func (s *server) deleteManifests(repository string, digests []digest.Digest) (kept map[digest.Digest]string, err error) {
	query, err := json.Marshal(deletion.Request{
		Since: time.Now().Add(time.Hour), Manifests: map[string][]digest.Digest{repository: digests},
	})
	if err != nil {
		return nil, err
	}
	answer, err := s.post(deletion.Path, nil, query)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, errors.New(answer.Status)
	}
	kept = map[digest.Digest]string{}
	for lines := json.NewDecoder(answer.Body); ; {
		var line deletion.Event
		switch err := lines.Decode(&line); {
		case err != nil:
			return nil, err
		case line.Error != "":
			return nil, errors.New(line.Error)
		case line.End:
			return kept, nil
		}
		kept[line.Digest] = line.Kept
	}
}

// push pushes an image like a client that skips what the registry has. If the registry does not have it after
// all, the client pushes everything once more, as garbage-collection.md says.
func (c *client) push(o operation) {
	if c.pushBlobs(o, o.item, false); !c.putManifest(o, o.item, o.tag) {
		c.pushBlobs(o, o.item, true)
		c.putManifest(o, o.item, o.tag)
	}
}

func (c *client) pushBlobs(o operation, i *item, force bool) {
	for _, child := range i.children {
		c.pushBlobs(o, child, force)
		c.putManifest(o, child, "")
	}
	for _, b := range i.blobs {
		switch choice := c.random.IntN(4); {
		case force || choice == 0:
			c.upload(o, b, "")
		case choice == 1:
			c.mount(o, b)
		default:
			if !c.readBlob(o.server, o.repository, b.digest, http.MethodHead) {
				c.upload(o, b, "")
			}
		}
	}
}

// putManifest reports whether the registry accepted the manifest, or whether pushing again is pointless.
func (c *client) putManifest(o operation, i *item, tag string) bool {
	reference, named := tag, i.digest
	if choice := c.random.IntN(6); tag == "" || choice < 2 {
		if choice == 0 {
			named = digest.SHA512.FromBytes(i.data)
		}
		if reference = named.String(); tag != "" {
			reference += "?tag=" + tag
		}
	}
	e, answer := c.record(event{Kind: putManifest, Server: o.server, Repository: o.repository, Tag: tag, Digest: i.digest.String()},
		request{method: http.MethodPut, path: "/v2/" + o.repository + "/manifests/" + reference, body: i.data,
			header: map[string]string{"Content-Type": i.mediaType}})
	if e.Outcome == absent {
		e.Outcome = refused
	}
	subject := ""
	if i.subject != nil {
		subject = i.subject.digest.String()
	}
	if got := answer.header.Get("Docker-Content-Digest"); e.Outcome == done && got != named.String() {
		c.history.violate("digest", "a push was acknowledged with digest "+got, e)
	}
	if got := answer.header.Get("OCI-Subject"); e.Outcome == done && got != subject {
		c.history.violate("subject", "a push was acknowledged with subject "+got, e)
	}
	return e.Outcome != refused
}

// getManifest reads a manifest by tag or digest, and returns its digest, or "" if it does not know it.
func (c *client) getManifest(server int, repository, tag string, d digest.Digest) digest.Digest {
	r := request{method: http.MethodGet, path: "/v2/" + repository + "/manifests/" + tag}
	if tag == "" {
		r.path += d.String()
	}
	if c.random.IntN(4) == 0 {
		r.method = http.MethodHead
	}
	read := event{Kind: getManifest, Server: server, Repository: repository, Tag: tag, Digest: d.String()}
	e, answer := c.record(read, r)
	if e.Outcome == absent && e.Head && server >= 0 {
		// For a client that may push, a manifest without what it needs does not exist. GET tells whether it is stored.
		e.Kind, r.method = askManifest, http.MethodGet
		e, answer = c.record(read, r)
	}
	if e.Outcome != done {
		return ""
	}
	found := digest.Digest(answer.header.Get("Docker-Content-Digest"))
	content, ok := c.pool.content[found]
	if ok {
		e.Digest = c.pool.byName[found].digest.String()
	}
	switch {
	case tag == "" && found != d:
		c.history.violate("digest", "a manifest has another digest", e)
	case !ok:
		c.history.violate("content", "nobody pushed this manifest", e)
	case r.method == http.MethodGet && !bytes.Equal(content, answer.body):
		c.history.violate("content", fmt.Sprintf("a manifest has other content: %.300s", answer.body), e)
	case answer.header.Get("Content-Length") != fmt.Sprint(len(content)):
		c.history.violate("content", "a manifest has length "+answer.header.Get("Content-Length"), e)
	default:
		return found
	}
	return ""
}

// pullContent reads what a manifest needs.
func (c *client) pullContent(o operation, i *item) {
	for _, child := range i.children {
		if c.getManifest(o.server, o.repository, "", child.digest) != "" {
			c.pullContent(o, child)
		}
	}
	for _, b := range i.blobs {
		c.readBlob(o.server, o.repository, b.digest)
	}
}

// readBlob reports whether the blob exists. Without a method, it is read completely, in part, or not at all.
func (c *client) readBlob(server int, repository string, d digest.Digest, method ...string) bool {
	r := request{method: http.MethodGet, path: "/v2/" + repository + "/blobs/" + d.String()}
	content := c.pool.content[d]
	want := content
	switch choice := c.random.IntN(4); {
	case len(method) > 0:
		r.method = method[0]
	case choice == 0:
		r.method = http.MethodHead
	case choice == 1 && len(content) > 1:
		from := 1 + c.random.IntN(len(content)-1)
		want = content[from:]
		r.header = map[string]string{"Range": fmt.Sprintf("bytes=%d-", from)}
	}
	e, answer := c.record(event{Kind: readBlob, Server: server, Repository: repository, Digest: d.String()}, r)
	if e.Outcome != done {
		return false
	}
	if got := answer.header.Get("Docker-Content-Digest"); got != d.String() {
		c.history.violate("digest", "a blob has digest "+got, e)
	}
	if r.method == http.MethodGet && !bytes.Equal(want, answer.body) {
		c.history.violate("content", fmt.Sprintf("a blob has other content: %d bytes instead of %d", len(answer.body),
			len(want)), e)
	}
	if length := answer.header.Get("Content-Length"); length != fmt.Sprint(len(want)) {
		c.history.violate("content", "a blob has length "+length, e)
	}
	return true
}

// mount mounts a blob from any repository, or uploads it if the registry does not have it.
func (c *client) mount(o operation, b *blob) {
	path := "/v2/" + o.repository + "/blobs/uploads/?mount=" + b.digest.String()
	if c.random.IntN(2) == 0 {
		path += "&from=" + url.QueryEscape(repositories[c.random.IntN(len(repositories))])
	}
	e, answer := c.record(event{Kind: mountBlob, Server: o.server, Repository: o.repository, Digest: b.digest.String()},
		request{method: http.MethodPost, path: path})
	if answer.status == http.StatusAccepted {
		e.Outcome = refused // the response begins an upload
		c.upload(o, b, answer.header.Get("Location"))
	}
	c.alsoBySHA256(e, b)
}

// alsoBySHA256 records that content has its SHA-256 digest, too.
func (c *client) alsoBySHA256(e *event, b *blob) {
	if b.sha256 != nil {
		also := *e
		also.Digest = b.sha256.digest.String()
		c.history.add(&also)
	}
}

// upload uploads a blob: in one request, in two, in chunks, or in chunks of which one breaks off. With several
// processes, each request may go to another one.
func (c *client) upload(o operation, b *blob, location string) {
	if location == "" && c.random.IntN(5) == 0 {
		c.finish(o, b, http.MethodPost, "/v2/"+o.repository+"/blobs/uploads/", b.data)
		return
	}
	if location == "" {
		location = c.begin(o)
	}
	if location == "" {
		return
	}
	rest := b.data
	switch style := c.random.IntN(4); {
	case style < 2 || len(rest) < 3:
	default:
		middle := 1 + c.random.IntN(len(rest)-2)
		r := request{
			method: http.MethodPatch, path: location, body: rest[:middle],
			header: map[string]string{"Content-Type": "application/octet-stream", "Content-Range": fmt.Sprintf("0-%d", middle-1)},
		}
		if style == 3 && middle > 1 {
			r.breakAfter = middle / 2
		}
		answer := c.send(c.any(), r)
		if answer.err != nil { // continue where the registry is
			answer = c.send(c.any(), request{method: http.MethodGet, path: location})
			// Until the registry has noticed the disconnect, it may still write.
			if answer.err != nil || answer.status != http.StatusNoContent {
				return
			}
			_, last, ok := strings.Cut(answer.header.Get("Range"), "-")
			if _, err := fmt.Sscan(last, &middle); err != nil || !ok {
				return
			}
			if middle > 0 {
				middle++ // an empty upload has the range 0-0, too
			}
		}
		if answer.status >= 300 || middle > len(rest) {
			return
		}
		location, rest = answer.header.Get("Location"), rest[middle:]
	}
	c.finish(o, b, http.MethodPut, location, rest)
}

// begin begins an upload and returns its location, or "".
func (c *client) begin(o operation) string {
	answer := c.send(o.server, request{method: http.MethodPost, path: "/v2/" + o.repository + "/blobs/uploads/"})
	if answer.err != nil || answer.status != http.StatusAccepted {
		return ""
	}
	return answer.header.Get("Location")
}

// finish sends the rest of an upload.
func (c *client) finish(o operation, b *blob, method, location string, rest []byte) *event {
	e, _ := c.record(event{Kind: uploadBlob, Server: c.any(), Repository: o.repository, Digest: b.digest.String()},
		request{method: method, path: withQuery(location, "digest", b.digest.String()), body: rest,
			header: map[string]string{"Content-Type": "application/octet-stream"}})
	if e.Outcome == absent {
		e.Outcome = refused
	}
	c.alsoBySHA256(e, b)
	return e
}

func (c *client) any() int { return c.random.IntN(len(c.cluster.servers)) }

func withQuery(location, key, value string) string {
	separator := "?"
	if strings.Contains(location, "?") {
		separator = "&"
	}
	return location + separator + key + "=" + url.QueryEscape(value)
}

// cancel begins an upload, sends a part and cancels it. The upload must be unknown afterwards.
func (c *client) cancel(o operation) {
	location := c.begin(o)
	if location == "" {
		return
	}
	part := o.blob.data[:len(o.blob.data)/2]
	answer := c.send(o.server, request{method: http.MethodPatch, path: location, body: part,
		header: map[string]string{"Content-Type": "application/octet-stream"}})
	if answer.err != nil || answer.status != http.StatusAccepted {
		return
	}
	location = answer.header.Get("Location")
	answer = c.send(o.server, request{method: http.MethodDelete, path: location})
	if answer.err != nil || answer.status != http.StatusNoContent {
		return
	}
	if e := c.finish(o, o.blob, http.MethodPut, location, o.blob.data[len(part):]); e.Outcome == done {
		c.history.violate("canceled upload", "a canceled upload was finished", e)
	}
}

// corrupt uploads content under the digest of other content.
func (c *client) corrupt(o operation) {
	location := c.begin(o)
	if location == "" {
		return
	}
	wrong := bytes.Clone(o.blob.data)
	wrong[c.random.IntN(len(wrong))] ^= 1
	if e := c.finish(o, o.blob, http.MethodPut, location, wrong); e.Outcome == done {
		c.history.violate("upload", "content was accepted under the digest of other content", e)
	}
}

// list lists the tags of a repository, in pages of two if paged.
func (c *client) list(server int, repository string, paged bool) {
	e := event{Kind: listTags, Client: c.id, Server: server, Repository: repository, Call: c.history.now(), Outcome: done}
	next := "/v2/" + repository + "/tags/list"
	if paged {
		next += "?n=2"
	}
	for next != "" {
		answer := c.send(server, request{method: http.MethodGet, path: next})
		next = ""
		var page struct{ Tags []string }
		switch {
		case answer.err == nil && answer.status == http.StatusNotFound: // nothing was ever tagged
		case answer.err != nil || answer.status != http.StatusOK:
			e.Outcome, e.Status = unknown, answer.status
			e.Error = fmt.Sprint(answer.err, string(answer.body))
		case json.Unmarshal(answer.body, &page) != nil:
			c.history.violate("list", "a list of tags is not valid: "+string(answer.body))
		default:
			e.List = append(e.List, page.Tags...)
			next = nextPage(answer)
		}
	}
	e.Return = c.history.now()
	c.history.add(&e)
}

// nextPage returns the path of the next page of a list, or "".
func nextPage(answer response) string {
	link, _, _ := strings.Cut(answer.header.Get("Link"), ">")
	return strings.TrimPrefix(link, "<")
}

// referrers lists the referrers of a manifest, one by one if paged.
func (c *client) referrers(server int, repository string, i *item, paged bool) {
	e := event{Kind: listReferrers, Client: c.id, Server: server, Repository: repository, Digest: i.digest.String(),
		Call: c.history.now(), Outcome: done}
	next := "/v2/" + repository + "/referrers/" + i.digest.String()
	if paged {
		next += "?n=1"
	}
	for next != "" {
		answer := c.send(server, request{method: http.MethodGet, path: next})
		next = ""
		var page v1.Index
		switch {
		case answer.err != nil || answer.status != http.StatusOK:
			e.Outcome, e.Status = unknown, answer.status
			e.Error = fmt.Sprint(answer.err, string(answer.body))
		case json.Unmarshal(answer.body, &page) != nil || page.MediaType != v1.MediaTypeImageIndex:
			c.history.violate("list", "a list of referrers is not valid: "+string(answer.body))
		default:
			for _, d := range page.Manifests {
				found := c.pool.byName[d.Digest]
				if found == nil || d.Size != int64(len(found.data)) || d.MediaType != found.mediaType ||
					d.ArtifactType != artifactType {
					c.history.violate("list", "a list of referrers has a wrong descriptor: "+string(answer.body))
					continue
				}
				e.List = append(e.List, found.digest.String())
			}
			next = nextPage(answer)
		}
	}
	e.Return = c.history.now()
	c.history.add(&e)
}

// collect runs a collection. Racing is called in its phase, or at the end if there was no such phase.
func (c *client) collect(run collection, racing func()) *event {
	c.cluster.litter()
	for _, o := range run.prepare {
		c.do(o)
	}
	e := &event{
		Kind: collectGarbage, Client: c.id, Server: run.server, Untagged: run.untagged, Call: c.history.now(),
		Outcome: unknown,
	}
	racing = sync.OnceFunc(racing)
	if run.server == offline {
		c.collectOffline(e, run, racing)
	} else {
		s := c.cluster.servers[run.server]
		e.Epoch = s.currentEpoch()
		c.collectOnline(e, run, s, racing)
	}
	racing()
	e.Return = c.history.now()
	if e.Cutoff == 0 { // unknown; it is not later than this
		e.Cutoff = e.Return - run.grace
	}
	c.history.add(e)
	return e
}

// leaseLost is what a collection says whose storage accepted no heartbeat in time, which is a fiftieth of a release's.
const leaseLost = "lost the lease for garbage collection"

func (c *client) collectOnline(e *event, run collection, s *server, racing func()) {
	request := gc.Request{DeleteUntagged: run.untagged, Grace: run.grace, Timeout: requestTimeout}
	answer, err := s.post(gc.Path, request.Query(), nil)
	if err != nil {
		e.Error = err.Error()
		return
	}
	defer answer.Body.Close()
	if e.Status = answer.StatusCode; answer.StatusCode != http.StatusOK {
		e.Outcome = refused
		return
	}
	lines := json.NewDecoder(answer.Body)
	for phase := ""; ; {
		var line gc.Event
		if err := lines.Decode(&line); err != nil {
			e.Error = err.Error()
			return
		}
		if e.Cutoff == 0 { // the collector chooses it before it responds
			e.Cutoff = c.history.now() - run.grace
		}
		if line.Phase != "" && line.Phase != phase {
			phase = line.Phase
			switch {
			case phase != run.phase:
			case run.kill:
				go s.restart(0)
			case run.pause > 0:
				defer s.pause(run.pause)()
			}
			if phase == run.race {
				racing()
			}
		}
		if line.Result != nil || line.Error != "" {
			e.Outcome, e.Error = done, line.Error
			return
		}
	}
}

func (c *client) collectOffline(e *event, run collection, racing func()) {
	command := c.cluster.command("garbage-collect", c.cluster.program.registry, "garbage-collect",
		"--config="+c.cluster.config, "--grace-period="+run.grace.String(), fmt.Sprintf("--delete-untagged=%t", run.untagged))
	var said bytes.Buffer
	command.Stderr = io.MultiWriter(command.Stderr, &said)
	output, err := command.StdoutPipe()
	c.cluster.outage.Lock()
	if err == nil {
		err = command.Start()
	}
	c.cluster.collector = command.Process
	c.cluster.outage.Unlock()
	if err != nil {
		c.cluster.t.Error(err)
		return
	}
	disturb := func() {
		switch {
		case run.kill:
			_ = command.Process.Kill()
		case run.pause > 0:
			pauseFor(command.Process, run.pause)()
		}
	}
	// The command does not print its phases, so these are guesses.
	var others sync.WaitGroup
	defer others.Wait()
	for phase, after := range map[string]time.Duration{
		gc.Marking: 0, gc.Settling: drainPeriod / 4, gc.Remarking: drainPeriod,
	} {
		others.Go(func() {
			time.Sleep(offlineStart + after)
			if phase == run.phase {
				others.Go(disturb)
			}
			if phase == run.race {
				racing()
			}
		})
	}
	var once sync.Once
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if run.race == gc.Sweeping {
			racing()
		}
		if run.phase == gc.Sweeping {
			once.Do(disturb)
		}
	}
	e.Outcome = done
	if err := command.Wait(); err != nil {
		e.Error = err.Error()
		if strings.Contains(said.String(), leaseLost) {
			e.Error = leaseLost
		}
		if !errors.As(err, new(*exec.ExitError)) {
			c.cluster.t.Error(err)
		}
		return
	}
	e.Cutoff = c.history.now() - drainPeriod - run.grace // it is chosen before the collector waits
}
