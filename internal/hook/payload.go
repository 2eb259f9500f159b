package hook

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/injector"
	"github.com/zarf-dev/zarf-registry/internal/names"
)

// Programs are the programs that this binary carries for the nodes.
type Programs interface {
	// Payload returns a program's payload for an architecture, as in
	// GOARCH. An error names what is missing and how to get it.
	Payload(program, architecture string) (*injector.Payload, error)
}

const (
	// payloadWriters is how many ConfigMaps are written at once: etcd commits a
	// megabyte in some milliseconds, so more would only queue there, and
	// managed control planes throttle bursts (zarf-dev/zarf#5093).
	payloadWriters = 4
	// payloadTries bounds how often one write is tried when the API server is
	// overloaded; with the waits below that is about a minute.
	payloadTries = 8
	// payloadWait is the first wait after an overload, doubled each time up to
	// payloadMaxWait, unless the answer names one.
	payloadWait    = 250 * time.Millisecond
	payloadMaxWait = 15 * time.Second
)

// The loader's own exit codes; any other is the program's.
const (
	loaderExitFirst = 101
	loaderExitLast  = 109
)

// seed writes the payload of every architecture that the cluster has.
func (p *preparation) seed(ctx context.Context) (string, error) {
	if !p.Settings.Injector.Enabled {
		return "nothing: injector.enabled=false, the nodes pull ordinary images", nil
	}
	return p.seedPrograms(ctx, p.Settings.Programs())
}

func (p *preparation) seedPrograms(ctx context.Context, programs []string) (string, error) {
	have, err := p.payloadObjects(ctx)
	if err != nil {
		return "", err
	}
	var written, bytes, kept, replaced int
	for _, arch := range p.nodeArchitectures() {
		for _, program := range programs {
			payload, err := p.payload(program, arch)
			if err != nil {
				return "", err
			}
			s := seeding{Hook: p.Hook, payload: payload, have: have}
			if err := s.run(ctx); err != nil {
				return "", err
			}
			written += s.written
			bytes += s.bytes
			kept += s.kept
			replaced += s.replaced
		}
	}
	restarted := 0
	if written > 0 {
		if restarted, err = p.restartLoaders(ctx); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("wrote %d ConfigMaps (%d bytes; %d of them replaced wrong ones), %d were right already, restarted %d waiting pods", written, bytes, replaced, kept, restarted), nil
}

// nodeArchitectures are those that nodes have and the chart renders for.
func (i *inspection) nodeArchitectures() []string {
	found := map[string]bool{}
	for _, n := range i.nodes {
		if arch := n.Status.NodeInfo.Architecture; slices.Contains(i.Settings.Architectures, arch) {
			found[arch] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// payload encodes a program once: preflight looks whether it is there, and seed
// writes it.
func (i *inspection) payload(program, architecture string) (*injector.Payload, error) {
	key := injector.Program{Name: program, Architecture: architecture}
	if p := i.payloads[key]; p != nil {
		return p, nil
	}
	p, err := i.Programs.Payload(program, architecture)
	if err != nil {
		return nil, err
	}
	if i.payloads == nil {
		i.payloads = map[injector.Program]*injector.Payload{}
	}
	i.payloads[key] = p
	return p, nil
}

func (h *Hook) payloadObjects(ctx context.Context) (map[string]*corev1.ConfigMap, error) {
	list, err := h.Cluster.ConfigMaps.List(ctx, h.selector(names.ComponentPayload))
	if err != nil {
		return nil, fmt.Errorf("listing the payload ConfigMaps in namespace %s: %w", h.Settings.Namespace, err)
	}
	have := make(map[string]*corev1.ConfigMap, len(list.Items))
	for i := range list.Items {
		have[list.Items[i].Name] = &list.Items[i]
	}
	return have, nil
}

// payloadNames are the names of the same, in order.
func (h *Hook) payloadNames(ctx context.Context) ([]string, error) {
	list, err := h.Cluster.ConfigMapNames.List(ctx, h.selector(names.ComponentPayload))
	if err != nil {
		return nil, fmt.Errorf("listing the payload ConfigMaps in namespace %s: %w", h.Settings.Namespace, err)
	}
	names := make([]string, len(list.Items))
	for i, object := range list.Items {
		names[i] = object.Name
	}
	slices.Sort(names)
	return names, nil
}

// seeding writes one payload: what is right already is kept, what differs is
// replaced, chunk 00 comes last because pods wait for it.
//
// The ConfigMaps are not immutable. A kubelet would not watch immutable ones, but
// neither would it ever look at one again that it has seen: on Kubernetes 1.36 a
// damaged chunk that was put right stayed damaged for new pods of that node. The
// loader's checksums are what guards the content.
type seeding struct {
	*Hook
	payload *injector.Payload
	have    map[string]*corev1.ConfigMap

	written, bytes, kept, replaced int
}

func (s *seeding) run(ctx context.Context) error {
	objects := s.payload.Objects()
	var todo []injector.Object
	for _, o := range objects {
		existing := s.have[s.name(o)]
		if existing != nil && right(existing, o) {
			s.kept++
			continue
		}
		if existing != nil {
			s.replaced++
			s.Log.Warn("a payload ConfigMap differs from what it must hold and is replaced", "configMap", existing.Name)
		}
		todo = append(todo, o)
		s.written++
		for _, v := range o.Data {
			s.bytes += len(v)
		}
	}
	first := func(o injector.Object) bool { return o.Index == 0 }
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(payloadWriters)
	for _, o := range slices.DeleteFunc(slices.Clone(todo), first) {
		group.Go(func() error { return s.write(groupCtx, o) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if i := slices.IndexFunc(todo, first); i >= 0 {
		return s.write(ctx, todo[i])
	}
	return nil
}

func (s *seeding) name(o injector.Object) string {
	return injector.ConfigMapName(s.Settings.Name, s.Settings.Injector.PayloadID, s.payload.Program, o.Index)
}

func (s *seeding) write(ctx context.Context, o injector.Object) error {
	name := s.name(o)
	if old := s.have[name]; old != nil {
		err := retryOverload(ctx, func() error {
			return s.Cluster.ConfigMaps.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &old.UID}})
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting %s: %w", s.object("ConfigMap", name), err)
		}
	}
	err := retryOverload(ctx, func() error {
		_, err := s.Cluster.ConfigMaps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.Settings.Namespace, Labels: s.labels(names.ComponentPayload), Annotations: annotations()},
			BinaryData: o.Data,
		}, metav1.CreateOptions{})
		return err
	})
	if apierrors.IsAlreadyExists(err) {
		// A write whose answer was lost, or another run's: right either way if
		// the content is.
		list, listErr := s.Cluster.ConfigMaps.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if listErr == nil && len(list.Items) == 1 && right(&list.Items[0], o) {
			return nil
		}
		return fmt.Errorf("creating %s: somebody else made it meanwhile, with other content; run this again when no other run is under way: %w", s.object("ConfigMap", name), errors.Join(err, listErr))
	}
	if err != nil {
		return fmt.Errorf("creating %s: %w", s.object("ConfigMap", name), err)
	}
	return nil
}

func right(c *corev1.ConfigMap, o injector.Object) bool {
	return (c.Immutable == nil || !*c.Immutable) && len(c.Data) == 0 &&
		maps.EqualFunc(c.BinaryData, o.Data, slices.Equal)
}

// retryOverload repeats a write that the API server was too busy for. Any other
// answer ends it.
func retryOverload(ctx context.Context, write func() error) error {
	wait := payloadWait
	for try := 1; ; try++ {
		err := write()
		if err == nil || !overloaded(err) || try == payloadTries {
			return err
		}
		pause := wait + rand.N(wait/2)
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
			pause = time.Duration(seconds)*time.Second + rand.N(wait/2)
		}
		if sleepErr := sleep(ctx, pause); sleepErr != nil {
			return errors.Join(err, sleepErr)
		}
		wait = min(2*wait, payloadMaxWait)
	}
}

// overloaded tells the answers of a busy API server from refusals. etcd's own
// "too many requests" arrives as an internal error that quotes it.
func overloaded(err error) bool {
	return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) && (strings.Contains(err.Error(), "too many requests") || strings.Contains(err.Error(), "ResourceExhausted"))
}

// restartLoaders deletes the pods whose loader gave up on a payload that was
// wrong: new ones start at once, these only when their back-off is over.
func (h *Hook) restartLoaders(ctx context.Context) (int, error) {
	restarted := 0
	for _, component := range []string{names.ComponentRegistry, names.ComponentProxy, names.ComponentNodeConfig} {
		pods, err := h.Cluster.Pods.List(ctx, h.selector(component))
		if err != nil {
			return restarted, fmt.Errorf("listing the %s pods in namespace %s: %w", component, h.Settings.Namespace, err)
		}
		for _, pod := range pods.Items {
			if !loaderFailed(pod) {
				continue
			}
			if err := h.Cluster.Pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return restarted, fmt.Errorf("deleting %s, whose loader gave up: %w", h.object("pod", pod.Name), err)
			}
			restarted++
		}
	}
	return restarted, nil
}

func loaderFailed(pod corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses), func(c corev1.ContainerStatus) bool {
		for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if t != nil && !c.Ready && t.ExitCode >= loaderExitFirst && t.ExitCode <= loaderExitLast {
				return true
			}
		}
		return false
	})
}

// collect deletes the payload that no pod needs any more.
func (f *finishing) collect(ctx context.Context) (string, error) {
	have, err := f.payloadNames(ctx)
	if err != nil {
		return "", err
	}
	pods, err := f.Cluster.Pods.List(ctx, metav1.ListOptions{LabelSelector: fmt.Sprintf("%s=%s", names.LabelInstance, f.Settings.Release)})
	if err != nil {
		return "", fmt.Errorf("listing the pods in namespace %s: %w", f.Settings.Namespace, err)
	}
	needed := map[string]bool{}
	for _, pod := range pods.Items {
		if pod.Labels[names.LabelComponent] == names.ComponentProxy && !f.usesProxy(pod) {
			continue // it is about to end with its DaemonSet
		}
		for _, v := range pod.Spec.Volumes {
			if v.Projected == nil {
				continue
			}
			for _, s := range v.Projected.Sources {
				if s.ConfigMap != nil {
					needed[s.ConfigMap.Name] = true
				}
			}
		}
	}
	var present []string // what pods that start from now on need
	if f.Settings.Injector.Enabled {
		for _, program := range f.Settings.Programs() {
			for _, arch := range f.Settings.Architectures {
				name := injector.ConfigMapName(f.Settings.Name, f.Settings.Injector.PayloadID, injector.Program{Name: program, Architecture: arch}, 0)
				present = append(present, strings.TrimSuffix(name, "00"))
			}
		}
	}
	former := slices.DeleteFunc(slices.Clone(have), func(name string) bool {
		return needed[name] || slices.ContainsFunc(present, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
	if err := f.deleteConfigMaps(ctx, former); err != nil {
		return "", err
	}
	return fmt.Sprintf("deleted %d ConfigMaps of former payloads, %d remain", len(former), len(have)-len(former)), nil
}

// deleteConfigMaps deletes ConfigMaps that may be gone already.
func (h *Hook) deleteConfigMaps(ctx context.Context, names []string) error {
	for _, name := range names {
		if err := h.Cluster.ConfigMaps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting %s: %w", h.object("ConfigMap", name), err)
		}
	}
	return nil
}
