package registrycheck

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/scrub"
)

// The image that is damaged. Nobody else deals with its repository, nor with its content.
const damagedRepository, damagedTag = "damaged", "v0"

// Damages.
const (
	removed   = "removed"
	emptied   = "emptied"
	shortened = "shortened"
	altered   = "altered"  // the size remains
	unlinked  = "unlinked" // from the repository
)

// damage happens to a file of the storage, after a number of operations.
type damage struct {
	kind   string
	part   int // of the image: 0 is the manifest, 1 its config, and then its layers
	server int
	after  int
	seed   uint64 // of decisions meanwhile
}

// planDamage plans damages while the clients carry out so many operations.
func (p *plan) planDamage(operations int) {
	random := rand.New(rand.NewPCG(p.seed, 5))
	p.kinds = append(p.kinds, damageContent)
	for range max(3, operations/150) {
		p.damages = append(p.damages, damage{
			kind:   []string{removed, emptied, shortened, altered, unlinked}[random.IntN(5)],
			part:   random.IntN(1 + len(p.pool.damaged.blobs)),
			server: random.IntN(p.replicas), after: random.IntN(operations), seed: random.Uint64(),
		})
	}
	slices.SortFunc(p.damages, func(a, b damage) int { return a.after - b.after })
}

// damager damages an image and pushes it again. Every step must succeed; requests that another fault interrupts are
// repeated.
type damager struct {
	*client
	image *item
}

func (c *cluster) newDamager() *damager {
	return &damager{newClient(c, clients+100), c.plan.pool.damaged}
}

// carryOut damages the image: clients must not be told that the content exists, and the next push must repair it.
func (d *damager) carryOut(x damage) {
	d.random = rand.New(rand.NewPCG(x.seed, 0))
	d.push(x.server)
	d.mustBeIntact("before any damage")
	if !d.apply(x) {
		return
	}
	content, path := &d.image.blob, "/manifests/"
	if x.part > 0 {
		content, path = d.image.blobs[x.part-1], "/blobs/"
	}
	what := fmt.Sprintf("%s of %d bytes, %s", path+content.digest.String(), len(content.data), x.kind)
	if x.part > 0 && x.kind == altered {
		d.scrub(x.server, content, what)
	}
	path = "/v2/" + damagedRepository + path + content.digest.String()
	if answer := d.ask(d.any(), request{method: http.MethodHead, path: path}); answer.status != http.StatusNotFound {
		d.history.violate("damage", fmt.Sprintf("status %d says that damaged content exists: %s", answer.status, what))
	}
	d.push(x.server)
	d.mustBeIntact("after a push: " + what)
}

// ask repeats a request until it has a response that no other fault explains.
func (d *damager) ask(server int, r request) response {
	for began := time.Now(); ; time.Sleep(backoff) {
		answer := d.send(server, r)
		if answer.err == nil && answer.status < 500 {
			return answer
		}
		if time.Since(began) > requestTimeout {
			d.history.violate("damage", fmt.Sprintf("%s %s fails: %v, status %d: %s", r.method, r.path, answer.err,
				answer.status, answer.body))
			return answer
		}
	}
}

// push pushes the image like a client that skips what the registry says that it has. If the registry refuses the
// manifest, it uploads everything.
func (d *damager) push(server int) {
	manifests := "/v2/" + damagedRepository + "/manifests/"
	o := operation{repository: damagedRepository, server: server}
	for began, all := time.Now(), false; ; all = true {
		if !all && d.ask(server, request{method: http.MethodHead, path: manifests + damagedTag}).status == http.StatusOK {
			return
		}
		for _, b := range d.image.blobs {
			path := "/v2/" + damagedRepository + "/blobs/" + b.digest.String()
			if all || d.ask(server, request{method: http.MethodHead, path: path}).status != http.StatusOK {
				d.upload(o, b, "")
			}
		}
		answer := d.ask(server, request{method: http.MethodPut, path: manifests + damagedTag, body: d.image.data,
			header: map[string]string{"Content-Type": d.image.mediaType}})
		if answer.status == http.StatusCreated {
			return
		}
		if time.Since(began) > requestTimeout {
			d.history.violate("damage", fmt.Sprintf("a push fails: status %d: %s", answer.status, answer.body))
			return
		}
	}
}

// mustBeIntact reads the image.
func (d *damager) mustBeIntact(when string) {
	server := d.any()
	if d.random.IntN(2) == 0 {
		server = viaProxy
	}
	read := func(path string, want *blob) {
		answer := d.ask(server, request{method: http.MethodGet, path: "/v2/" + damagedRepository + path})
		if answer.status != http.StatusOK || !bytes.Equal(answer.body, want.data) {
			d.history.violate("damage", fmt.Sprintf("%s is not intact %s: status %d, %d bytes instead of %d", path, when,
				answer.status, len(answer.body), len(want.data)))
		}
	}
	read("/manifests/"+damagedTag, &d.image.blob)
	for _, b := range d.image.blobs {
		read("/blobs/"+b.digest.String(), b)
	}
}

// apply damages the storage such that no power cut undoes it.
func (d *damager) apply(x damage) bool {
	content, link := &d.image.blob, "_manifests/revisions"
	if x.part > 0 {
		content, link = d.image.blobs[x.part-1], "_layers"
	}
	algorithm, hex := content.digest.Algorithm().String(), content.digest.Encoded()
	name := filepath.Join("blobs", algorithm, hex[:2], hex, "data")
	if x.kind == unlinked {
		name = filepath.Join("repositories", damagedRepository, link, algorithm, hex, "link")
	}
	d.cluster.outage.Lock()
	defer d.cluster.outage.Unlock()
	path, err := d.cluster.find(name)
	if err == nil {
		err = damageFile(path, x.kind, content.data)
	}
	if err != nil {
		d.cluster.t.Errorf("damage %s: %v", name, err)
	}
	return err == nil
}

func damageFile(path, kind string, data []byte) error {
	var err error
	switch kind {
	case removed, unlinked:
		err = os.Remove(path)
	case emptied:
		err = os.Truncate(path, 0)
	case shortened:
		err = os.Truncate(path, int64(len(data)-1))
	case altered:
		var file *os.File
		if file, err = os.OpenFile(path, os.O_WRONLY, 0); err == nil {
			middle := len(data) / 2
			_, err = file.WriteAt([]byte{data[middle] ^ 1}, int64(middle))
			err = errors.Join(err, file.Close())
		}
	}
	for _, name := range []string{path, filepath.Dir(path)} {
		if file, failed := os.Open(name); failed == nil {
			err = errors.Join(err, file.Sync(), file.Close())
		}
	}
	return err
}

// find returns the path of a file of the storage, which is below a bucket if the registry stores in S3.
func (c *cluster) find(name string) (found string, err error) {
	err = filepath.WalkDir(c.volume, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err == nil && strings.HasSuffix(path, "/docker/registry/v2/"+name) {
			found = path
			return fs.SkipAll
		}
		return err
	})
	if err == nil && found == "" {
		err = fs.ErrNotExist
	}
	return found, err
}

// scrub lets a process read everything that is stored. It must find the damaged content, and no other damage.
func (d *damager) scrub(server int, damaged *blob, what string) {
	for began := time.Now(); ; time.Sleep(backoff) {
		problems, err := d.scrubOnce(d.cluster.servers[server])
		for _, p := range problems {
			if _, ok := d.pool.content[p.Digest]; ok && p.Kind == scrub.Damaged && p.Digest != damaged.digest {
				d.history.violate("scrub", "intact content is reported: "+p.String())
			}
		}
		if err == nil {
			return
		}
		if time.Since(began) > requestTimeout {
			d.history.violate("scrub", fmt.Sprintf("reading all content fails: %v: %s", err, what))
			return
		}
	}
}

func (d *damager) scrubOnce(s *server) (problems []scrub.Problem, err error) {
	answer, err := s.post(scrub.Path, scrub.Request{Rate: 1 << 30}.Query(), nil)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, errors.New(answer.Status)
	}
	for lines := json.NewDecoder(answer.Body); ; {
		var line scrub.Event
		if err := lines.Decode(&line); err != nil {
			return problems, err
		}
		switch {
		case line.Problem != nil:
			problems = append(problems, *line.Problem)
		case line.Error != "":
			return problems, errors.New(line.Error)
		case line.Result != nil:
			return problems, nil
		}
	}
}

// damagedImage adds the image that is damaged to the known content only.
func (p *pool) damagedImage(random *rand.Rand) {
	blobs, items := len(p.blobs), len(p.items)
	large := make([]byte, 150_000)
	for i := range large {
		large[i] = byte(random.Uint32())
	}
	layers := []*blob{p.blob(fmt.Appendf(nil, "small %d", random.Uint64())), p.blob(large)}
	p.image(p.blob(fmt.Appendf(nil, `{"damaged":%d}`, random.Uint64())), layers, "", nil)
	p.damaged = p.items[items]
	p.blobs, p.items = p.blobs[:blobs], p.items[:items]
}
