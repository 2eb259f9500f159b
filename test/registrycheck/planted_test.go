package registrycheck

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// bug is a mistake that the checker must find.
type bug struct {
	name   string
	change change
}

var bugs = []bug{
	{"garbage is collected without the lease", change{
		"internal/registry/collect/gc.go",
		"	collect := r.collect\n",
		"	collect := r.simulate\n",
	}},
	{"garbage is marked once", change{
		"internal/registry/collect/gc.go",
		"		if marked, err = r.mark(ctx, marked.references); err != nil {\n",
		"		if err != nil {\n",
	}},
	{"the collector does not wait for manifests", change{
		"internal/registry/collect/lease.go",
		"		err = poll.Sleep(ctx, c.times.DrainPeriod+2*c.propagation)\n",
		"",
	}},
	{"pushes rescue nothing from the sweep", change{
		"internal/registry/collect/inuse.go",
		"	return u.removeUnless(d, func() bool { return u.marked.kept(d) }, do)\n",
		"	return u.removeUnless(d, func() bool { return false }, do)\n",
	}},
	{"other processes ignore the list of garbage", change{
		"internal/registry/collect/garbagelist.go",
		"	return c.otherCollects(r) && (r.garbage == nil || slices.ContainsFunc(digests, r.garbage.has))\n",
		"	return false\n",
	}},
	{"the tag moves before the manifest is stored", change{
		"internal/registry/spec/manifests.go",
		"	if err := s.store(ctx, p); err != nil {\n",
		"	for _, tag := range p.tags {\n		_, _ = s.writeTag(ctx, p.repository, tag, p.name())\n	}\n" +
			"	if err := s.store(ctx, p); err != nil {\n",
	}},
	{"a mount does not record that the blob is in use", change{
		"internal/registry/collect/admission.go",
		"	use := c.Rely(d)\n",
		"	use := c.Rely()\n",
	}},
	{"an upload is finished without a check of its digest", change{
		distribution + "/registry/storage/blobwriter.go",
		"	if !verified {\n		dcontext.GetLoggerWithFields(",
		"	if false {\n		dcontext.GetLoggerWithFields(",
	}},
	{"deleting a manifest leaves its tags", change{
		"internal/registry/spec/delete.go",
		"		if err != nil || !r.removed[content.RepositoryDigest{Repository: r.repository, Digest: d}] {\n",
		"		if true {\n",
	}},
	{"an index loses its manifests to a deletion", change{
		"internal/registry/spec/delete.go",
		"	existed, dirs := false, []string{}\n",
		"	r.intent.End()\n	time.Sleep(200 * time.Millisecond)\n	existed, dirs := false, []string{}\n",
	}},
	{"a referrer loses its back link to a deletion", change{
		"internal/registry/spec/delete.go",
		"		_, err := r.intent.Delete(ctx, dir)\n		return err\n	})\n	if err == nil {\n",
		"		go func() {\n			time.Sleep(200 * time.Millisecond)\n" +
			"			_ = r.Driver.Delete(context.WithoutCancel(ctx), dir)\n		}()\n		return nil\n	})\n	if err == nil {\n",
	}},
	{"garbage collection does not follow indexes", change{
		"internal/registry/collect/mark.go",
		"		queue = append(queue, m.references[k].needs...) // none",
		"		for _, needed := range m.references[k].needs {\n			if _, ok := m.references[needed]; !ok {\n" +
			"				queue = append(queue, needed)\n			}\n		} // none",
	}},
	{"garbage collection removes the referrers of kept images", change{
		"internal/registry/collect/mark.go",
		"		if r.subject != (content.Key{}) {\n",
		"		if false {\n",
	}},
	{"links are written in place", change{
		"internal/registry/storage/durable.go",
		"	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)\n",
		"	temporary = target\n	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)\n",
	}},
	{"a collector continues without its lease", change{
		"internal/registry/collect/sweep.go",
		"		if err := r.leaseErr(); err != nil {\n			return err\n		}\n",
		"",
	}},
	{"uploads are not synced", change{
		"internal/registry/storage/durable.go",
		"	if err := w.file.Sync(); err != nil {\n",
		"	if err := error(nil); err != nil {\n",
	}},
	{"the size of stored content is not compared", change{
		"internal/registry/content/intact.go",
		"	case r.Size != 0 && r.Size != data.Size():\n",
		"	case false:\n",
	}},
	{"a push keeps what is stored", change{
		"internal/registry/content/intact.go",
		"	if ctx.Value(replaceKey{}) != nil && storage.BlobData.MatchString(name) {\n",
		"	if false {\n",
	}},
	{"reading all content marks nothing", change{
		"internal/registry/content/intact.go",
		"	if !verifier.Verified() {\n",
		"	if false {\n",
	}},
	{"a manifest exists without what it needs", change{
		"internal/registry/spec/manifests.go",
		"		err := s.Lacking(ctx, to.Repository, described)\n",
		"		err := error(nil)\n",
	}},
	{"the grace period does not protect uploads", change{
		"internal/registry/collect/gc.go",
		"cutoff: time.Now().Add(-request.Grace)",
		"cutoff: time.Now()",
	}},
}

// plantedSeeds is within how many seeds a bug must be found.
const plantedSeeds = 20

func TestPlanted(t *testing.T) {
	if !*planted {
		t.Skip("needs minutes: run make registrycheck-planted")
	}
	const atOnce = 4
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			program := build(t, &b.change)
			for tried := uint64(0); tried < plantedSeeds; tried += atOnce {
				var mu sync.Mutex
				var finding []*report
				t.Run("seeds", func(t *testing.T) {
					for seed := *first + tried; seed < *first+tried+atOnce; seed++ {
						t.Run(fmt.Sprint(seed), func(t *testing.T) {
							t.Parallel()
							r := checkSeed(t, program, seed, *operations, filepath.Join(*output, b.name))
							mu.Lock()
							defer mu.Unlock()
							if len(r.violations) > 0 {
								finding = append(finding, r)
							}
						})
					}
				})
				if len(finding) > 0 {
					r := slices.MinFunc(finding, func(a, b *report) int { return int(a.plan.seed) - int(b.plan.seed) })
					t.Logf("found within %d seeds, by %d of the last %d; %s", tried+atOnce, len(finding), atOnce, r)
					return
				}
			}
			t.Errorf("not found within %d seeds", plantedSeeds)
		})
	}
}
