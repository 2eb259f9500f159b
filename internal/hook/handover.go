package hook

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/hook/reload"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// handOverTimeout bounds the wait for the proxies to run a changed program. A kubelet takes 90
// seconds to show it to its pods if it is not asked to, and the loader gives the program three
// minutes to become ready.
const handOverTimeout = 4 * time.Minute

// silentTimeout bounds the wait for proxies none of which can be asked.
const silentTimeout = 20 * time.Second

// handOver waits until the proxies on ready nodes run the program of the payload. Their loaders start
// it beside the previous one, which ends when it is ready.
func (f *finishRun) handOver(ctx context.Context) (string, error) {
	if !f.Settings.Injector.Enabled {
		return "nothing: injector.enabled=false, a changed image replaces the proxies", nil
	}
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	h := &handover{finishRun: f, want: map[string]string{}, current: map[string]bool{}}
	begin, refresher := time.Now(), reload.Refresher{}
	for {
		late, err := h.look(ctx)
		previous, silent := h.sort(late)
		switch {
		case err != nil && !release.IsTransient(err):
			return "", err
		case err == nil && len(late) == 0:
			return fmt.Sprintf("%d proxies run it, %d of them changed to it", len(h.current), h.changed), nil
		case err == nil && len(previous) == 0 && time.Since(begin) >= silentTimeout:
			f.Log.Warn("cannot ask proxies for their program; they serve, and start a changed one within 90 seconds",
				"pods", release.List(silent))
			return fmt.Sprintf("%d proxies run it, %d cannot be asked", len(h.current), len(silent)), nil
		case refresher.Due():
			if err := refresher.Refresh(ctx, f.pods, append(slices.Collect(maps.Keys(late)), h.caches(ctx)...)); err != nil {
				f.Log.Info("cannot annotate pods; their kubelets refresh the ConfigMaps within 90 seconds", "error", err.Error())
			}
		}
		if sleepErr := release.Sleep(ctx, release.PollInterval); sleepErr != nil {
			return "", fmt.Errorf("waiting for the proxies to run the new program: %s; the log of each pod says why: %w",
				release.List(slices.Concat(previous, silent)), errors.Join(err, sleepErr))
		}
	}
}

// handover is the state of one wait.
type handover struct {
	*finishRun
	want    map[string]string // SHA-256 of the program, by architecture
	nodes   nodes.ReadyNodes
	current map[string]bool // proxies that run it, by name and UID
	changed int
	asked   bool
}

// errPrevious is the state of a proxy that runs another program.
var errPrevious = errors.New("it runs the previous program")

// look asks the proxies that did not run the program before, and returns what those lack that still
// do not.
func (h *handover) look(ctx context.Context) (map[string]error, error) {
	pods, err := h.RunningPods(ctx, &h.nodes, names.ComponentProxy, func(*corev1.Pod) {})
	if err != nil {
		return nil, err
	}
	var (
		mu    sync.Mutex
		late  = map[string]error{}
		group errgroup.Group
	)
	group.SetLimit(reload.MaxQueries)
	for _, pod := range pods {
		key := pod.Name + " " + string(pod.UID) // names can be reused
		if h.current[key] || !h.UsesProxy(pod) {
			continue
		}
		want, err := h.program(pod.Spec.NodeSelector[corev1.LabelArchStable])
		if err != nil {
			return nil, &exitcode.Refusal{Err: err}
		}
		group.Go(func() error {
			report, err := h.pods.Loaded(ctx, &pod)
			if err == nil && report.Program != want {
				err = errPrevious
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				late[pod.Name] = err
				return nil
			}
			h.current[key] = true
			if h.asked {
				h.changed++
			}
			return nil
		})
	}
	_ = group.Wait() // never fails
	h.asked = true
	return late, nil
}

// caches returns the names of the caches, whose program is the same. Nothing waits for them: pulls do not need them.
func (h *handover) caches(ctx context.Context) (found []string) {
	if !h.Settings.Cache.Enabled {
		return nil
	}
	pods, _ := h.ListPods(ctx, names.ComponentCache) // they start it within 90 seconds anyway
	for _, pod := range pods {
		found = append(found, pod.Name)
	}
	return found
}

// program returns the SHA-256 of the proxies' program for an architecture.
func (h *handover) program(architecture string) (string, error) {
	if sum := h.want[architecture]; sum != "" {
		return sum, nil
	}
	p, err := h.payload.Payload("registry-node", architecture)
	if err != nil {
		return "", err
	}
	manifest, err := injector.ParseManifest(p.Manifest)
	if err != nil {
		return "", fmt.Errorf("payload of %s: %w", p.Program, err)
	}
	h.want[architecture] = hex.EncodeToString(manifest.ProgramSHA256[:])
	return h.want[architecture], nil
}

// sort describes proxies that run another program, and those that cannot be asked: they serve, and
// change on their own.
func (h *handover) sort(late map[string]error) (previous, silent []string) {
	for _, pod := range slices.Sorted(maps.Keys(late)) {
		line := fmt.Sprintf("%s: %v", h.Object("pod", pod), late[pod])
		if errors.Is(late[pod], errPrevious) {
			previous = append(previous, line)
		} else {
			silent = append(silent, line)
		}
	}
	return previous, silent
}
