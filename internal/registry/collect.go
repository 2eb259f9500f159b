package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/gc"
)

// GarbageCollect removes what no image needs from the storage of a registry, which may
// run meanwhile: see holdTimes. Its registry may be one that holds up no manifests, of a
// release before this one; then nobody must push. Report gets a line for each thing that
// is removed, right after it was.
func GarbageCollect(ctx context.Context, config *configuration.Configuration, request gc.Request, report func(gc.Event)) (gc.Result, error) {
	if config.Storage.Type() == driverInMemory {
		return gc.Result{}, errors.New("storage.inmemory is in the memory of the running registry: there is nothing to collect here; ask that one, with init-hook garbage-collect")
	}
	driver, err := openDriver(ctx, config.Storage)
	if err != nil {
		return gc.Result{}, err
	}
	root, _ := filesystemRoot(config.Storage)
	_, err = driver.Stat(ctx, repositoriesPath)
	if errors.As(err, new(storagedriver.PathNotFoundError)) {
		return gc.Result{}, nil // nothing was ever pushed
	}
	if err != nil {
		return gc.Result{}, fmt.Errorf("reading the storage: %w", err)
	}
	return collect(ctx, newGate(driver, root), &inUse{}, request, report)
}

// collect holds manifests up, marks and sweeps. Use is of this process.
func collect(ctx context.Context, g *gate, use *inUse, request gc.Request, report func(gc.Event)) (result gc.Result, err error) {
	if err := request.Validate(); err != nil {
		return gc.Result{}, err
	}
	cutoff := time.Now().Add(-request.Grace)
	ctx, cancel := context.WithTimeoutCause(ctx, request.Timeout, fmt.Errorf("not done within %s: what is left, the next collection removes", request.Timeout))
	defer cancel()
	lives := func() error { return nil }
	if !request.DryRun {
		report(gc.Event{Phase: gc.Settling})
		lease, err := g.hold(ctx)
		if err != nil {
			return gc.Result{}, err
		}
		lives = lease.lives
		defer func() { lease.release(result, err) }()
		// The storage says when things were pushed, by its own clock, which may be behind.
		if info, err := g.driver.Stat(ctx, holdPath); err == nil && info.ModTime().Add(-request.Grace).Before(cutoff) {
			cutoff = info.ModTime().Add(-request.Grace)
		}
	}

	report(gc.Event{Phase: gc.Marking})
	c := &contents{driver: g.driver}
	if err := c.read(ctx); err != nil {
		return gc.Result{}, because(ctx, fmt.Errorf("looking at what is stored: %w", err))
	}
	keep, err := c.mark(ctx, request.DeleteUntagged, cutoff)
	if err != nil {
		return gc.Result{}, because(ctx, err)
	}

	report(gc.Event{Phase: gc.Sweeping})
	s := &sweep{driver: g.driver, dry: request.DryRun, report: report, lives: lives, patience: g.times.lost, result: &result}
	for _, m := range c.manifests {
		if keep[m.digest] || err != nil {
			continue
		}
		err = s.manifest(ctx, m, c.history[m.repositoryDigest])
	}
	for _, d := range c.order {
		b := c.blobs[d]
		if keep[d] || err != nil {
			continue
		}
		if b.newest.After(cutoff) {
			result.Kept++
			continue
		}
		// Who was told in this process that the blob is there will name it in a manifest.
		removed := use.unless(d, cutoff, func() { err = s.blob(ctx, d, b) })
		if errors.Is(err, errWrittenMeanwhile) {
			removed, err = false, nil
		}
		if !removed {
			result.Kept++
		}
	}
	if err != nil {
		return result, because(ctx, fmt.Errorf("removing garbage: %w", err))
	}
	return result, nil
}

// because is err, or why ctx has ended, which is what err came from.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// contents is what is stored, but for uploads under way.
type contents struct {
	driver    storagedriver.StorageDriver
	manifests []storedManifest
	// tagged are the manifests that a tag leads to.
	tagged map[repositoryDigest]bool
	// history are the paths by which tags remember manifests that they led to.
	history map[repositoryDigest][]string
	blobs   map[digest.Digest]*storedBlob
	order   []digest.Digest // of blobs, as they were found
}

type repositoryDigest struct {
	repository string
	digest     digest.Digest
}

type storedManifest struct {
	repositoryDigest
	path   string
	pushed time.Time // for the last time
}

type storedBlob struct {
	path string // of its directory
	size int64
	// newest is when it was written, or taken into the newest of its repositories, be
	// it by a push that found it there.
	newest time.Time
	links  []string // directories, in repositories
}

func (c *contents) read(ctx context.Context) error {
	c.tagged, c.history, c.blobs = map[repositoryDigest]bool{}, map[repositoryDigest][]string{}, map[digest.Digest]*storedBlob{}
	type link struct {
		digest digest.Digest
		path   string
		at     time.Time
	}
	var links []link
	walk := func(root string, visit func(storagedriver.FileInfo) error) error {
		return walkAll(ctx, c.driver, root, func(info storagedriver.FileInfo) error {
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case info.IsDir() && path.Base(info.Path()) == "_uploads":
				return storagedriver.ErrSkipDir
			case info.IsDir():
				return nil
			}
			return visit(info)
		})
	}
	err := walk(repositoriesPath, func(info storagedriver.FileInfo) error {
		name := info.Path()
		if m := revisionLink.FindStringSubmatch(name); m != nil {
			c.manifests = append(c.manifests, storedManifest{repositoryDigest{m[1], pathDigest(m[2], m[3])}, path.Dir(name), info.ModTime()})
		} else if m := historyLink.FindStringSubmatch(name); m != nil {
			key := repositoryDigest{m[1], pathDigest(m[2], m[3])}
			c.history[key] = append(c.history[key], path.Dir(name))
		} else if m := layerLink.FindStringSubmatch(name); m != nil {
			links = append(links, link{pathDigest(m[2], m[3]), path.Dir(name), info.ModTime()})
		} else if m := currentLink.FindStringSubmatch(name); m != nil {
			content, err := c.driver.GetContent(ctx, name)
			if errors.As(err, new(storagedriver.PathNotFoundError)) {
				return nil // the tag was deleted just now
			}
			if err != nil {
				return err
			}
			d, err := digest.Parse(strings.TrimSpace(string(content)))
			if err != nil {
				return fmt.Errorf("the tag %s leads to %q: %w; push that tag again, or delete it", name, content, err)
			}
			c.tagged[repositoryDigest{m[1], d}] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = walk(blobsPath, func(info storagedriver.FileInfo) error {
		if m := blobData.FindStringSubmatch(info.Path()); m != nil {
			d := pathDigest(m[1], m[2])
			c.blobs[d] = &storedBlob{path: path.Dir(info.Path()), size: info.Size(), newest: info.ModTime()}
			c.order = append(c.order, d)
		}
		return nil
	})
	for _, l := range links {
		if b := c.blobs[l.digest]; b != nil {
			b.links = append(b.links, l.path)
			if l.at.After(b.newest) {
				b.newest = l.at
			}
		}
	}
	return err
}

// walkAll visits everything in root, which may be missing. Tags are deleted meanwhile, and
// their directories with them. The drivers that list one directory after another end
// their walk at such a one, with the error of a path that is not there: all that comes
// after it would pass for garbage. S3 lists no directories, and is asked for all at once.
func walkAll(ctx context.Context, driver storagedriver.StorageDriver, root string, visit storagedriver.WalkFn) error {
	if driver.Name() != driverS3AWS {
		return storagedriver.WalkFallback(ctx, withoutVanished{driver}, root, visit)
	}
	err := driver.Walk(ctx, root, visit)
	if missing := (storagedriver.PathNotFoundError{}); errors.As(err, &missing) && missing.Path == root {
		return nil // nothing was ever pushed
	}
	return err
}

// withoutVanished takes a directory that is not there for an empty one.
type withoutVanished struct{ storagedriver.StorageDriver }

func (d withoutVanished) List(ctx context.Context, name string) ([]string, error) {
	names, err := d.StorageDriver.List(ctx, name)
	if errors.As(err, new(storagedriver.PathNotFoundError)) || driverFailed(err, fs.ErrNotExist) { // the latter while it is read
		return nil, nil
	}
	return names, err
}

func pathDigest(algorithm, encoded string) digest.Digest {
	return digest.NewDigestFromEncoded(digest.Algorithm(algorithm), encoded)
}

// mark returns the digests of what is kept: every manifest, or where untagged ones are
// removed those that were pushed after cutoff, that a tag or a kept index leads to, or
// that say of a kept one what it is (the OCI image specification's subject); and all
// that these lead to.
func (c *contents) mark(ctx context.Context, untagged bool, cutoff time.Time) (map[digest.Digest]bool, error) {
	known, subjects := map[digest.Digest]bool{}, map[digest.Digest][]digest.Digest{}
	for _, m := range c.manifests {
		known[m.digest] = true
	}
	read := map[digest.Digest]references{}
	refer := func(d digest.Digest) (references, error) {
		if r, ok := read[d]; ok || c.blobs[d] == nil { // what is not there leads nowhere
			return r, nil
		}
		content, err := c.driver.GetContent(ctx, path.Join(c.blobs[d].path, "data"))
		if err != nil {
			return references{}, fmt.Errorf("reading manifest %s: %w", d, err)
		}
		r, err := parseReferences(content)
		if err != nil {
			return references{}, fmt.Errorf("manifest %s: %w: what it needs is not known, so nothing is removed; delete it or push it again", d, err)
		}
		read[d] = r
		return r, nil
	}

	keep := map[digest.Digest]bool{}
	var queue []digest.Digest
	add := func(d digest.Digest) {
		if !keep[d] {
			keep[d] = true
			queue = append(queue, d)
		}
	}
	for _, m := range c.manifests {
		if !untagged || c.tagged[m.repositoryDigest] || m.pushed.After(cutoff) {
			add(m.digest)
			continue
		}
		r, err := refer(m.digest)
		if err != nil {
			return nil, err
		}
		if r.subject != "" {
			subjects[r.subject] = append(subjects[r.subject], m.digest)
		}
	}
	for len(queue) > 0 {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		d := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, about := range subjects[d] {
			add(about)
		}
		if !known[d] {
			continue // a layer, whatever is in it
		}
		r, err := refer(d)
		if err != nil {
			return nil, err
		}
		for _, needed := range r.needs {
			add(needed)
		}
	}
	return keep, nil
}

// references are what a manifest names.
type references struct {
	needs   []digest.Digest
	subject digest.Digest
}

// parseReferences takes every digest in a manifest for something that it needs, also
// where a format has it that nobody here has heard of. Only these name something
// without a need for it: annotations, and the subject, which does not live on because
// somebody has signed it.
func parseReferences(content []byte) (references, error) {
	var manifest map[string]any
	if err := json.Unmarshal(content, &manifest); err != nil {
		return references{}, err
	}
	var r references
	if subject, ok := manifest["subject"].(map[string]any); ok {
		text, _ := subject["digest"].(string)
		d, err := digest.Parse(text)
		if err != nil {
			return references{}, fmt.Errorf("its subject is %q: %w", text, err)
		}
		r.subject = d
		delete(manifest, "subject")
	}
	var look func(any)
	look = func(value any) {
		switch value := value.(type) {
		case map[string]any:
			for key, inner := range value {
				if key != "annotations" {
					look(inner)
				}
			}
		case []any:
			for _, inner := range value {
				look(inner)
			}
		case string:
			if d, err := digest.Parse(value); err == nil {
				r.needs = append(r.needs, d)
			}
		}
	}
	look(manifest)
	return r, nil
}

// sweep removes.
type sweep struct {
	driver storagedriver.StorageDriver
	dry    bool
	report func(gc.Event)
	lives  func() error
	// patience bounds one removal: what a storage does long after it was asked would be
	// done when nobody waits for it any more.
	patience time.Duration
	result   *gc.Result
}

// manifest removes a manifest from its repository. Its blob goes with the others.
func (s *sweep) manifest(ctx context.Context, m storedManifest, history []string) error {
	if err := s.remove(ctx, append(slices.Clone(history), m.path)...); err != nil {
		return err
	}
	s.result.Manifests++
	s.report(gc.Event{Removed: &gc.Removed{Repository: m.repository, Digest: m.digest.String()}})
	return nil
}

// blob removes a blob, first from the repositories: one that is half removed is found
// again as long as its data is there.
func (s *sweep) blob(ctx context.Context, d digest.Digest, b *storedBlob) error {
	if err := s.remove(ctx, append(slices.Clone(b.links), b.path)...); err != nil {
		return err
	}
	s.result.Blobs++
	s.result.Bytes += b.size
	s.report(gc.Event{Removed: &gc.Removed{Digest: d.String(), Bytes: b.size}})
	return nil
}

func (s *sweep) remove(ctx context.Context, paths ...string) error {
	for _, name := range paths {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := s.lives(); err != nil {
			return err
		}
		if s.dry {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, s.patience)
		err := s.driver.Delete(bounded, name)
		cancel()
		if driverFailed(err, syscall.ENOTEMPTY) {
			return errWrittenMeanwhile
		}
		if err != nil && !errors.As(err, new(storagedriver.PathNotFoundError)) {
			return err
		}
	}
	return nil
}

// driverFailed tells whether a storage driver failed with cause. Distribution's error does not unwrap.
func driverFailed(err, cause error) bool {
	var driverError storagedriver.Error
	return errors.As(err, &driverError) && errors.Is(driverError.Detail, cause)
}

// errWrittenMeanwhile says that a push has put a file into a directory while a collection removed it.
// The push has use of the blob, whose data is still there; what is left of it the next collection finds.
var errWrittenMeanwhile = errors.New("written while it was removed")

// inUse remembers which blobs clients of this process were told to be there: a push that
// need not send a blob goes on with it. What other replicas told they remember
// themselves; there a push that loses its blob is refused, and is whole when it is
// repeated. The zero value is empty. It is safe for concurrent use.
type inUse struct {
	mu     sync.Mutex
	last   map[digest.Digest]time.Time
	tidied time.Time
}

// note is to be called before the blob is looked for: either it is kept, or it is gone.
func (u *inUse) note(d digest.Digest) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if u.last == nil || now.Sub(u.tidied) > time.Hour {
		before := u.last
		u.last, u.tidied = map[digest.Digest]time.Time{}, now
		for d, at := range before {
			if now.Sub(at) < gc.DefaultGrace { // longer is no push under way
				u.last[d] = at
			}
		}
	}
	u.last[d] = now
}

// unless removes a blob that was not noted after cutoff. While remove runs nobody notes.
func (u *inUse) unless(d digest.Digest, cutoff time.Time, remove func()) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if at, ok := u.last[d]; ok && at.After(cutoff) {
		return false
	}
	remove()
	return true
}
