package nodes

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// cachesTimeout bounds the wait for caches. They have had as much time as the proxies before it begins.
const cachesTimeout = time.Minute

// WaitCaches waits until each cache on a ready node is ready. Caches that do not become ready are reported, and
// are no error: proxies pull from the registry without them.
func (o *Observer) WaitCaches(ctx context.Context) (string, error) {
	limited, cancel := context.WithTimeout(ctx, cachesTimeout)
	defer cancel()
	ready := 0
	err := o.Wait(limited, "the caches", func() (missing string, err error) {
		ready, missing, err = o.cachesMissing(limited)
		return missing, err
	}, names.ComponentCache)
	switch {
	case ctx.Err() != nil:
		return "", err
	case err != nil:
		o.Log.Warn("not all caches are ready; proxies pull from the registry instead", "error", err.Error())
		return fmt.Sprintf("%d caches are ready, not all: see the warning", ready), nil
	}
	return fmt.Sprintf("%d caches are ready", ready), nil
}

// cachesMissing describes which caches are not ready, or returns "", and counts those that are.
func (o *Observer) cachesMissing(ctx context.Context) (ready int, missing string, err error) {
	nodes, err := o.NodesReady(ctx)
	if err != nil {
		return 0, "", err
	}
	pods, err := o.ListPods(ctx, names.ComponentCache)
	if err != nil {
		return 0, "", err
	}
	var waiting []string
	for _, p := range pods {
		nodeReady, nodeExists := nodes[p.Spec.NodeName]
		switch {
		case release.PodEnded(p), p.Spec.NodeName != "" && !nodeExists, nodeExists && !nodeReady:
		case release.PodReady(p):
			ready++
		default:
			waiting = append(waiting, p.Name)
		}
	}
	switch {
	case len(waiting) > 0:
		slices.Sort(waiting)
		return ready, "caches not ready: " + release.List(waiting), nil
	case ready == 0:
		return 0, "no cache exists", nil
	}
	return ready, "", nil
}
