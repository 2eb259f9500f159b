// Package registrycheck checks that the registry keeps its promises to concurrent clients, whatever happens to
// its processes, its volume and its connections.
//
// A seed determines what eight clients do, when garbage is collected, and which faults occur. The registry is
// the real program, one process or two on shared storage, with a proxy. All requests are recorded, and the history
// is checked afterwards: tags are linearizable, and acknowledged content stays available and intact until it is
// deleted. docs/dev/consistency.md says what is checked and what is not.
//
//	go test ./test/registrycheck -seeds 100 -run TestSeeds
//
// A seed repeats the operations and faults, not their exact timing.
package registrycheck

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
)

var (
	first      = flag.Uint64("seed", 1, "first seed")
	seeds      = flag.Uint64("seeds", 4, "number of seeds")
	operations = flag.Int("operations", 1000, "number of operations of each seed")
	planted    = flag.Bool("planted", false, "check that planted bugs are found")
	s3         = flag.String("s3", "", "path of versitygw: the registry stores in S3")
	xfs        = flag.Bool("xfs", false, "cut the power of a volume with XFS instead of ext4")
	output     = flag.String("output", top+"/dist/registrycheck", "directory for the histories of violations")
)

// report is the result of a seed.
type report struct {
	plan       *plan
	history    *history
	took       time.Duration
	violations []violation
}

func TestSeeds(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a minute: run make registrycheck-short")
	}
	program := build(t, nil)
	var mu sync.Mutex
	var reports []*report
	t.Run("seed", func(t *testing.T) {
		for seed := *first; seed < *first+*seeds; seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				r := checkSeed(t, program, seed, *operations, *output)
				t.Log(r)
				if len(r.violations) > 0 {
					t.Errorf("repeat with: go test ./test/registrycheck -run TestSeeds -seed %d -seeds 1", seed)
				}
				mu.Lock()
				defer mu.Unlock()
				reports = append(reports, r)
			})
		}
	})
	t.Log(summary(reports))
}

// checkSeed runs a seed and checks its history. It keeps the history of a violation below output.
func checkSeed(t *testing.T, program programs, seed uint64, operations int, output string) *report {
	t.Helper()
	began := time.Now()
	p := newPlan(seed, operations)
	h := newHistory()
	c := newCluster(t, program, p, h)
	execute(c, p)
	c.settle(h)
	audit(c)

	dir, err := filepath.Abs(filepath.Join(output, fmt.Sprintf("seed-%d", seed)))
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	require.NoError(t, err)
	r := &report{plan: p, history: h}
	r.violations = slices.Concat(h.violations, checkTags(h.events, dir), checkContent(h.events, p.pool))
	r.took = time.Since(began)
	if len(r.violations) == 0 {
		_ = os.RemoveAll(dir)
		return r
	}
	c.keepLogs(dir)
	byCall := func(a, b *event) int { return cmp.Compare(a.Call, b.Call) }
	slices.SortFunc(h.events, byCall)
	errs := []error{write(filepath.Join(dir, "history.json"), h.events)}
	for i, v := range r.violations {
		slices.SortFunc(v.events, byCall)
		errs = append(errs, write(filepath.Join(dir, fmt.Sprintf("violation-%d.json", i+1)), v.events))
	}
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	t.Logf("history: %s", dir)
	return r
}

// execute runs the plan.
func execute(c *cluster, p *plan) {
	var running, working sync.WaitGroup
	var finished atomic.Int64
	over := make(chan struct{})
	reached := func(operations int) {
		for finished.Load() < int64(operations) {
			select {
			case <-over:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	for id, list := range p.clients {
		working.Go(func() {
			client := newClient(c, id)
			for _, o := range list {
				client.do(o)
				finished.Add(1)
			}
		})
	}
	running.Go(func() {
		for _, f := range p.faults {
			reached(f.after)
			c.inject(f)
		}
	})
	running.Go(func() {
		d := c.newDamager()
		for _, x := range p.damages {
			reached(x.after)
			d.carryOut(x)
		}
	})
	running.Go(func() {
		for _, run := range p.collections {
			reached(run.after)
			collector := newClient(c, clients)
			collector.collect(run, func() {
				for i, o := range run.racing {
					running.Go(func() { newClient(c, clients+1+i).do(o) })
				}
			})
			collector.random = rand.New(rand.NewPCG(p.seed, 4))
			for _, o := range slices.Concat(run.prepare, run.racing) { // before the next collection may remove it
				collector.readBlob(o.server, o.repository, o.blob.digest)
			}
		}
	})
	working.Wait()
	close(over)
	running.Wait()
}

// audit reads everything, collects all garbage, and reads everything again. No fault interferes, so every request
// must succeed, and every collection, which is repeated for five minutes if its storage is too slow for its lease.
func audit(c *cluster) {
	before, repeated := len(c.history.events), map[*event]bool{}
	client := newClient(c, clients)
	client.random = rand.New(rand.NewPCG(c.plan.seed, 3))
	for _, run := range []collection{{}, {server: offline}, {server: offline, untagged: true}} {
		// Storage that is slow for a moment ends a collection, which is then repeated.
		for end := time.Now().Add(5 * time.Minute); run.server == offline; {
			e := client.collect(run, func() {})
			if e.Error != leaseLost || time.Now().After(end) {
				break
			}
			repeated[e] = true
		}
		for _, repository := range repositories {
			client.list(0, repository, false)
			for _, tag := range tagNames {
				client.getManifest(0, repository, tag, "")
			}
			for _, i := range c.plan.pool.items {
				client.getManifest(0, repository, "", i.digest)
				client.referrers(0, repository, i, false)
			}
			for _, b := range c.plan.pool.blobs {
				client.readBlob(0, repository, b.digest)
			}
		}
	}
	for _, e := range c.history.events[before:] {
		if e.Outcome == refused || e.Outcome == unknown || e.Kind == collectGarbage && e.Error != "" && !repeated[e] {
			c.history.violate("failure", fmt.Sprintf("%s %s %s%s fails without a fault: %s", e.Kind, e.Repository, e.Tag, e.Digest,
				e.Error), e)
		}
	}
}

func (r *report) String() string {
	counts := map[outcome]int{}
	for _, e := range r.history.events {
		counts[e.Outcome]++
	}
	operations := len(r.plan.collections)
	for _, list := range r.plan.clients {
		operations += len(list)
	}
	for _, run := range r.plan.collections {
		operations += len(run.prepare) + len(run.racing)
	}
	text := fmt.Sprintf("seed %d: processes: %d; faults: %s; operations: %d, requests: %d; events done: %d, absent: %d, "+
		"refused: %d, unknown: %d; %.1f s; violations: %d", r.plan.seed, r.plan.replicas,
		cmp.Or(strings.Join(r.plan.kinds, ", "), "none"), operations, r.history.requests, counts[done], counts[absent],
		counts[refused], counts[unknown], r.took.Seconds(), len(r.violations))
	for _, v := range r.violations {
		text += "\n  " + v.message
		if v.page != "" {
			text += "\n    " + v.page
		}
	}
	return text
}

// summary adds reports up.
func summary(reports []*report) string {
	var requests, violations int
	kinds := map[string]int{}
	layouts := map[int]int{}
	slowest := time.Duration(0)
	for _, r := range reports {
		requests += r.history.requests
		violations += len(r.violations)
		layouts[r.plan.replicas]++
		for _, k := range r.plan.kinds {
			kinds[k]++
		}
		slowest = max(slowest, r.took)
	}
	text := fmt.Sprintf("%d seeds, %d with one process, %d with two; %d requests, %d violations; slowest seed %.1f s; faults:",
		len(reports), layouts[1], layouts[2], requests, violations, slowest.Seconds())
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		text += fmt.Sprintf(" %s in %d,", k, kinds[k])
	}
	return strings.TrimSuffix(text, ",")
}
