package registrycheck

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
)

// Few names, tags and images, so that operations meet.
var (
	repositories = []string{"a", "b/c", "d"}
	tagNames     = []string{"v0", "v1", "v2", "v3"}
)

const (
	clients = 8
	images  = 8
	layers  = 12
	indexes = 3
	// twins are layers that have a SHA-512 digest, too.
	twins = 3
	// referrers are artifacts with a subject, such as signatures.
	referrers = 5
)

// artifactType is that of referrers.
const artifactType = "application/example"

// Servers that are not processes of the layout.
const (
	viaProxy = -1
	offline  = -2 // registry garbage-collect
)

// blob is a config or layer.
type blob struct {
	digest digest.Digest
	data   []byte
	// sha256 is the same content by its SHA-256 digest, if digest is another one.
	sha256 *blob
}

// item is a manifest and what it needs.
type item struct {
	blob
	mediaType string
	blobs     []*blob
	children  []*item // of an index
	subject   *item   // of a referrer, or nil
}

// pool is the content of a run, which depends only on the seed.
type pool struct {
	blobs   []*blob
	items   []*item
	content map[digest.Digest][]byte
	byName  map[digest.Digest]*item // manifests, by SHA-256 and by SHA-512 digest
	// Only collections deal with the last item and the last two blobs, which it needs: it often is garbage.
	victim *item
	// damaged belongs to the damager.
	damaged *item
}

func newPool(random *rand.Rand) *pool {
	p := &pool{content: map[digest.Digest][]byte{}, byName: map[digest.Digest]*item{}}
	for i := range layers {
		size := 100 + random.IntN(20_000)
		if i%6 == 0 {
			size = 200_000 // so that connections break within it
		}
		data := make([]byte, size)
		for j := range data {
			data[j] = byte(random.Uint32())
		}
		p.blob(data)
	}
	for _, b := range p.blobs[:twins] {
		twin := &blob{digest.SHA512.FromBytes(b.data), b.data, b}
		p.blobs, p.content[twin.digest] = append(p.blobs, twin), b.data
	}
	for range images {
		shuffled := random.Perm(layers + twins)[:1+random.IntN(3)]
		var parts []*blob
		for _, i := range shuffled {
			parts = append(parts, p.blobs[i])
		}
		config := p.blob(fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","seed":%d}`, random.Uint64()))
		p.image(config, parts, "", nil)
	}
	for range indexes {
		var children []*item
		for _, i := range random.Perm(images)[:2] {
			children = append(children, p.items[i])
		}
		p.index(children)
	}
	empty := p.blob([]byte("{}"))
	for i := range referrers {
		// Of images and indexes; the last one of a referrer.
		subject := p.items[random.IntN(images+indexes)]
		if i == referrers-1 {
			subject = p.items[images+indexes]
		}
		p.image(empty, []*blob{p.blob(fmt.Appendf(nil, "signature %d", random.Uint64()))}, artifactType, subject)
	}
	config := p.blob(fmt.Appendf(nil, `{"victim":%d}`, random.Uint64()))
	p.image(config, []*blob{p.blob(fmt.Appendf(nil, "layer %d", random.Uint64()))}, "", nil)
	p.victim = p.items[len(p.items)-1]
	p.damagedImage(random)
	return p
}

func (p *pool) blob(data []byte) *blob {
	b := &blob{digest: digest.FromBytes(data), data: data}
	p.blobs, p.content[b.digest] = append(p.blobs, b), data
	return b
}

func (p *pool) image(config *blob, layers []*blob, artifactType string, subject *item) {
	m := v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, ArtifactType: artifactType,
		Config: v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: config.digest, Size: int64(len(config.data))},
	}
	for _, l := range layers {
		m.Layers = append(m.Layers,
			v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: l.digest, Size: int64(len(l.data))})
	}
	if subject != nil {
		m.Subject = subject.descriptor()
	}
	p.add(&item{mediaType: m.MediaType, blobs: append([]*blob{config}, layers...), subject: subject}, m)
}

func (p *pool) index(children []*item) {
	m := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	for _, c := range children {
		m.Manifests = append(m.Manifests, *c.descriptor())
	}
	p.add(&item{mediaType: m.MediaType, children: children}, m)
}

func (p *pool) add(i *item, manifest any) {
	i.data, _ = json.Marshal(manifest)
	i.digest = digest.FromBytes(i.data)
	p.items = append(p.items, i)
	for _, algorithm := range []digest.Algorithm{digest.SHA256, digest.SHA512} {
		d := algorithm.FromBytes(i.data)
		p.content[d], p.byName[d] = i.data, i
	}
}

func (i *item) descriptor() *v1.Descriptor {
	return &v1.Descriptor{MediaType: i.mediaType, Digest: i.digest, Size: int64(len(i.data))}
}

// action is what a client does in one operation, which may be several requests.
type action string

const (
	push            action = "push an image"
	retag           action = "push a manifest only"
	pullTag         action = "pull by tag"
	pullDigest      action = "pull by digest"
	untag           action = "delete a tag"
	removeManifest  action = "delete a manifest"
	removeManifests action = "delete manifests that no index needs"
	removeBlob      action = "delete a blob"
	list            action = "list tags"
	discover        action = "list referrers"
	check           action = "read a blob"
	mount           action = "mount a blob"
	upload          action = "upload a blob"
	cancelUpload    action = "cancel an upload"
	corruptedUpload action = "upload a blob with a wrong digest"
)

// weights are how often each action occurs.
var weights = []struct {
	action
	weight int
}{
	{push, 26}, {retag, 6}, {pullTag, 16}, {pullDigest, 8}, {untag, 6}, {removeManifest, 5},
	{removeManifests, 5}, {removeBlob, 2}, {list, 6}, {discover, 5}, {check, 8}, {mount, 6}, {upload, 5}, {cancelUpload, 2}, {corruptedUpload, 2},
}

// operation is an action with everything that it depends on.
type operation struct {
	action
	repository, tag string // tag is empty for a push by digest
	item            *item
	blob            *blob
	server          int
	seed            uint64 // of decisions within the operation
}

// collection is a run of the garbage collector.
type collection struct {
	server   int
	untagged bool
	grace    time.Duration
	after    int // operations
	// racing are operations that begin when the collector reaches the phase race.
	racing []operation
	race   string
	// prepare are operations before the collection, which make an image garbage and upload its layer again.
	prepare []operation
	// When the collector reaches the phase, its process is paused for so long, or killed.
	phase string
	pause time.Duration
	kill  bool
}

// fault is something that happens to the registry after a number of operations.
type fault struct {
	name   string
	server int
	after  int
	time.Duration
}

// Faults.
const (
	killProcess  = "kill"
	pauseProcess = "pause"
	fillDisk     = "full disk"
	cutPower     = "power"
	cut          = "cut"
	// damageContent is not one of the faults at a time: damager carries it out.
	damageContent = "damage"
)

// plan is everything that a seed determines.
type plan struct {
	seed     uint64
	pool     *pool
	replicas int
	// cut means that connections break after a random number of bytes.
	cut         bool
	kinds       []string // of faults
	clients     [][]operation
	collections []collection
	faults      []fault
	damages     []damage
}

// newPlan returns the plan of about so many operations. The seed determines layout and faults: one process and
// two alternate, and so do the combinations of faults.
func newPlan(seed uint64, operations int) *plan {
	random := rand.New(rand.NewPCG(seed, 0))
	p := &plan{seed: seed, pool: newPool(random), replicas: 1 + int(seed%2)}
	for i, kind := range []string{killProcess, pauseProcess, fillDisk, cut} {
		if seed/2>>i&1 == 1 {
			p.kinds = append(p.kinds, kind)
		}
	}
	p.cut = slices.Contains(p.kinds, cut)

	// A process may show another one, on the same file system, what is lost then.
	if p.replicas == 1 && seed/32%2 == 0 && *s3 == "" {
		p.kinds = append(p.kinds, cutPower)
	}

	number := max(1, operations/180)
	const racing = 10
	rest := operations - number*(racing+len(repositories)+3)
	for c := range clients {
		share := rest / clients
		if c < rest%clients {
			share++
		}
		var list []operation
		for range share {
			list = append(list, p.operation(random))
		}
		p.clients = append(p.clients, list)
	}
	for i := range number {
		c := collection{
			server: random.IntN(p.replicas), untagged: random.IntN(2) == 0,
			grace: time.Duration(max(0, random.IntN(800)-400)) * time.Millisecond,
			after: (rest*i + random.IntN(rest)) / (number + 1),
		}
		if random.IntN(4) == 0 {
			c.server = offline
		}
		victim, at := p.pool.victim, repositories[random.IntN(len(repositories))]
		layer := victim.blobs[1]
		prepare := func(a action, repository string) {
			o := p.operation(random)
			o.action, o.repository, o.tag, o.item, o.blob = a, repository, "", victim, layer
			o.server = random.IntN(p.replicas) // not through the proxy
			c.prepare = append(c.prepare, o)
		}
		for _, repository := range repositories {
			prepare(removeManifest, repository)
		}
		if c.untagged {
			prepare(push, at)
		}
		prepare(upload, at)
		// A third of the collections race with the victim. In another third, only mounts at the collector say that its
		// layer is in use: neither its age nor a push does.
		aimed, mounts := racing/2, false
		switch random.IntN(3) {
		case 0:
			aimed = 0
		case 1:
			mounts, c.grace = true, 0
		}
		for i := range racing {
			o := p.operation(random)
			o.action = []action{push, push, mount, mount, mount, retag, upload}[random.IntN(7)]
			o.server = random.IntN(p.replicas)
			if i < aimed {
				o.repository, o.item, o.blob = at, victim, layer
				if mounts {
					o.action, o.server = mount, max(0, c.server) // not offline
				}
			}
			c.racing = append(c.racing, o)
		}
		phases := []string{gc.Marking, gc.Settling, gc.Settling, gc.Remarking, gc.Sweeping, gc.Sweeping}
		c.phase = phases[random.IntN(len(phases))]
		if c.race = c.phase; random.IntN(3) == 0 {
			c.race = phases[random.IntN(len(phases))]
		}
		if mounts {
			c.race = gc.Sweeping
		}
		switch random.IntN(4) {
		case 0, 1:
			if slices.Contains(p.kinds, pauseProcess) {
				c.pause = pauseTime(random)
			}
		case 2:
			c.kill = slices.Contains(p.kinds, killProcess)
		}
		p.collections = append(p.collections, c)
	}
	for range max(1, operations/250) {
		kinds := slices.DeleteFunc(slices.Clone(p.kinds), func(k string) bool { return k == cut })
		if len(kinds) == 0 {
			break
		}
		f := fault{name: kinds[random.IntN(len(kinds))], server: random.IntN(p.replicas), after: random.IntN(rest)}
		switch f.name {
		case killProcess, cutPower:
			f.Duration = time.Duration(random.IntN(200)) * time.Millisecond
		case pauseProcess:
			f.Duration = pauseTime(random)
		case fillDisk:
			f.Duration = time.Duration(100+random.IntN(300)) * time.Millisecond
		}
		p.faults = append(p.faults, f)
	}
	slices.SortFunc(p.faults, func(a, b fault) int { return a.after - b.after })
	if seed%3 == 0 {
		p.planDamage(rest)
	}
	return p
}

// pauseTime is shorter or longer than the collector's lease.
func pauseTime(random *rand.Rand) time.Duration {
	if random.IntN(2) == 0 {
		return time.Duration(20+random.IntN(200)) * time.Millisecond
	}
	return leaseDuration + time.Duration(200+random.IntN(400))*time.Millisecond
}

func (p *plan) operation(random *rand.Rand) operation {
	sum := 0
	for _, w := range weights {
		sum += w.weight
	}
	n := random.IntN(sum)
	o := operation{
		repository: repositories[random.IntN(len(repositories))],
		tag:        tagNames[random.IntN(len(tagNames))],
		item:       p.pool.items[random.IntN(len(p.pool.items)-1)],
		blob:       p.pool.blobs[random.IntN(len(p.pool.blobs)-2)],
		server:     random.IntN(p.replicas),
		seed:       random.Uint64(),
	}
	for _, w := range weights {
		if n -= w.weight; n < 0 {
			o.action = w.action
			break
		}
	}
	switch o.action {
	case push, retag:
		if o.seed%4 == 0 {
			o.tag = ""
		}
	case pullTag, pullDigest, check, list, discover:
		if o.seed%3 == 0 {
			o.server = viaProxy
		}
	}
	return o
}

// sum identifies a plan, apart from what the seed of an operation decides.
func (p *plan) sum() string {
	h := sha256.New()
	for _, c := range p.clients {
		for _, o := range c {
			fmt.Fprintln(h, o.action, o.repository, o.tag, o.item.digest, o.blob.digest, o.server, o.seed)
		}
	}
	for _, c := range p.collections {
		fmt.Fprintln(h, c.server, c.untagged, c.grace, c.after, c.phase, c.pause, c.kill, c.race, len(c.prepare),
			len(c.racing))
	}
	fmt.Fprintln(h, p.faults, p.damages)
	return hex.EncodeToString(h.Sum(nil))
}
