package payload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// payloadWriters is the number of concurrent ConfigMap writes. etcd commits a megabyte in
// milliseconds, so more would only queue there, and managed control planes throttle bursts
// (zarf-dev/zarf#5093).
const payloadWriters = 4

// These are the loader's exit codes that another payload may repair.
const (
	loaderExitFirst = 101
	loaderExitLast  = 109
)

// Seed writes the payload of the programs that programs returns for each architecture.
func (s *Seeder) Seed(ctx context.Context, architectures []string, programs func(architecture string) []string) (string,
	error) {
	have, err := s.objects(ctx)
	if err != nil {
		return "", err
	}
	var total counts
	for _, arch := range architectures {
		for _, program := range programs(arch) {
			payload, err := s.Payload(program, arch)
			if err != nil {
				return "", err
			}
			if cause := s.Mismatch(payload); cause != "" {
				return "", exitcode.Refuse("%s: %s: %s", payload.Program, cause, RemedyMismatch)
			}
			w := writer{Seeder: s, payload: payload, have: have, counts: &total}
			if err := w.run(ctx); err != nil {
				return "", err
			}
		}
	}
	// Also if nothing was written: a run that was killed after its last write restarted none.
	restarted, err := s.restartLoaders(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("wrote %d ConfigMaps (%d bytes; %d of them replaced others), kept %d, "+
		"restarted %d waiting pods",
		total.written, total.bytes, total.replaced, total.kept, restarted), nil
}

// counts counts ConfigMaps by outcome.
type counts struct{ written, bytes, kept, replaced int }

// Payload encodes a program, once.
func (s *Seeder) Payload(program, architecture string) (*injector.Payload, error) {
	key := injector.Program{Name: program, Architecture: architecture}
	if p := s.encoded[key]; p != nil {
		return p, nil
	}
	p, err := s.Programs.Payload(program, architecture)
	if err != nil {
		return nil, err
	}
	if s.encoded == nil {
		s.encoded = map[injector.Program]*injector.Payload{}
	}
	s.encoded[key] = p
	return p, nil
}

// RemedyMismatch says what to do about a payload with a Mismatch.
const RemedyMismatch = "use the chart of the same release as this program (its own is embedded: zarf-registry " +
	"install), or set initHook.image.tag to that of the chart's release"

// Mismatch says why a payload is not the one that the chart's pods mount. It is empty if it is.
func (s *Seeder) Mismatch(p *injector.Payload) string {
	want := s.Settings.Injector.Digests[p.Key()]
	if have := p.Digest(); want != "" && want != have {
		return fmt.Sprintf("chart and program are of different builds: the chart expects the payload %.12s, "+
			"and this program has %.12s", want, have)
	}
	return ""
}

// configMapName returns the name of a ConfigMap of a program's payload.
func (s *Seeder) configMapName(p injector.Program, index int) string {
	return injector.ConfigMapName(s.Settings.Name, s.Settings.Injector.ID(p.Key()), p, index)
}

func (s *Seeder) objects(ctx context.Context) (map[string]*corev1.ConfigMap, error) {
	list, err := s.Cluster.ConfigMaps.List(ctx, s.Selector(names.ComponentPayload))
	if err != nil {
		return nil, fmt.Errorf("listing the payload ConfigMaps in namespace %s: %w", s.Settings.Namespace, err)
	}
	have := make(map[string]*corev1.ConfigMap, len(list.Items))
	for i := range list.Items {
		have[list.Items[i].Name] = &list.Items[i]
	}
	return have, nil
}

// objectNames returns the sorted names of the release's payload ConfigMaps.
func (s *Seeder) objectNames(ctx context.Context) ([]string, error) {
	list, err := s.Cluster.ConfigMapNames.List(ctx, s.Selector(names.ComponentPayload))
	if err != nil {
		return nil, fmt.Errorf("listing the payload ConfigMaps in namespace %s: %w", s.Settings.Namespace, err)
	}
	names := make([]string, len(list.Items))
	for i, object := range list.Items {
		names[i] = object.Name
	}
	slices.Sort(names)
	return names, nil
}

// writer writes one payload. It keeps correct chunks, replaces others, and writes chunk 00, with the
// manifest, last: pods wait for it, and supervising loaders start another program when it changes.
// A loader that starts in between waits until all chunks match the manifest.
//
// The ConfigMaps are not immutable, although kubelets would not watch immutable ones: a kubelet
// never reads an immutable ConfigMap again. On Kubernetes 1.36 a damaged chunk stayed damaged for
// new pods of the node after it was fixed. The loader's checksums guard the content.
type writer struct {
	*Seeder
	payload *injector.Payload
	have    map[string]*corev1.ConfigMap
	*counts
}

func (w *writer) run(ctx context.Context) error {
	objects := w.payload.Objects()
	var todo []injector.Object
	for _, o := range objects {
		existing := w.have[w.name(o)]
		if existing != nil && right(existing, o) {
			w.kept++
			continue
		}
		if existing != nil {
			w.replaced++
			w.Log.Info("replacing a payload ConfigMap with other content", "configMap", existing.Name)
		}
		todo = append(todo, o)
		w.written++
		for _, v := range o.Data {
			w.bytes += len(v)
		}
	}
	first := func(o injector.Object) bool { return o.Index == 0 }
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(payloadWriters)
	for _, o := range slices.DeleteFunc(slices.Clone(todo), first) {
		group.Go(func() error { return w.write(groupCtx, o) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if i := slices.IndexFunc(todo, first); i >= 0 {
		if err := w.write(ctx, todo[i]); err != nil {
			return err
		}
	}
	var rest []string // of a previous program that was larger
	for i := len(objects); i < w.payload.MaxChunks(); i++ {
		if name := w.configMapName(w.payload.Program, i); w.have[name] != nil {
			rest = append(rest, name)
		}
	}
	return w.deleteConfigMaps(ctx, rest)
}

func (w *writer) name(o injector.Object) string {
	return w.configMapName(w.payload.Program, o.Index)
}

func (w *writer) write(ctx context.Context, o injector.Object) error {
	name := w.name(o)
	configMap := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.Settings.Namespace, Labels: w.Labels(names.ComponentPayload),
			Annotations: release.Annotations()},
		BinaryData: o.Data,
	}
	old := w.have[name]
	if old != nil && old.Immutable != nil && *old.Immutable { // then it can only be deleted
		if err := w.deleteConfigMaps(ctx, []string{name}); err != nil {
			return err
		}
		old = nil
	}
	verb := "creating"
	err := release.RetryOverload(ctx, func() (err error) {
		if old == nil {
			_, err = w.Cluster.ConfigMaps.Create(ctx, configMap, metav1.CreateOptions{})
		} else {
			verb, configMap.ResourceVersion = "updating", old.ResourceVersion
			_, err = w.Cluster.ConfigMaps.Update(ctx, configMap, metav1.UpdateOptions{})
		}
		return err
	})
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		// The response to this write was lost, or another run wrote it. Either is fine if the content is
		// correct.
		list, listErr := w.Cluster.ConfigMaps.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if listErr == nil && len(list.Items) == 1 && right(&list.Items[0], o) {
			return nil
		}
		return fmt.Errorf("%s %s: another run wrote it meanwhile with other content; run this again when no other "+
			"run is in progress: %w", verb, w.Object("ConfigMap", name), errors.Join(err, listErr))
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, w.Object("ConfigMap", name), err)
	}
	return nil
}

func right(c *corev1.ConfigMap, o injector.Object) bool {
	return (c.Immutable == nil || !*c.Immutable) && len(c.Data) == 0 &&
		maps.EqualFunc(c.BinaryData, o.Data, slices.Equal)
}

// restartLoaders deletes the pods whose loader failed on a damaged payload. Their successors start
// at once, while the pods themselves would wait for their back-off.
func (s *Seeder) restartLoaders(ctx context.Context) (int, error) {
	components := strings.Join([]string{names.ComponentHealer, names.ComponentRegistry, names.ComponentProxy,
		names.ComponentCache, names.ComponentNodeConfig}, ", ")
	pods, err := s.Cluster.Pods.List(ctx, metav1.ListOptions{LabelSelector: fmt.Sprintf("%s=%s,%s in (%s)",
		names.LabelInstance, s.Settings.Release, names.LabelComponent, components)})
	if err != nil {
		return 0, fmt.Errorf("listing the pods in namespace %s: %w", s.Settings.Namespace, err)
	}
	restarted := 0
	for _, pod := range pods.Items {
		if !loaderFailed(pod) {
			continue
		}
		err := s.Cluster.Pods.Delete(ctx, pod.Name,
			*metav1.NewPreconditionDeleteOptions(string(pod.UID)))
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return restarted, fmt.Errorf("deleting %s, whose loader gave up: %w", s.Object("pod", pod.Name), err)
		}
		restarted++
	}
	return restarted, nil
}

func loaderFailed(pod corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses),
		func(c corev1.ContainerStatus) bool {
			for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
				if t != nil && !c.Ready && t.ExitCode >= loaderExitFirst && t.ExitCode <= loaderExitLast {
					return true
				}
			}
			return false
		})
}

// Collect deletes the payload that no pod needs. leaving reports whether a pod is about to
// terminate.
func (s *Seeder) Collect(ctx context.Context, leaving func(corev1.Pod) bool) (string, error) {
	have, err := s.objectNames(ctx)
	if err != nil {
		return "", err
	}
	pods, err := s.Cluster.Pods.List(ctx, metav1.ListOptions{LabelSelector: fmt.Sprintf("%s=%s", names.LabelInstance,
		s.Settings.Release)})
	if err != nil {
		return "", fmt.Errorf("listing the pods in namespace %s: %w", s.Settings.Namespace, err)
	}
	needed := map[string]bool{}
	for _, pod := range pods.Items {
		if leaving(pod) {
			continue
		}
		for _, v := range pod.Spec.Volumes {
			if v.Projected == nil {
				continue
			}
			for _, source := range v.Projected.Sources {
				if source.ConfigMap != nil {
					needed[source.ConfigMap.Name] = true
				}
			}
		}
	}
	var current []string // prefixes that pods started from now on need
	if s.Settings.Injector.Enabled {
		for _, arch := range s.Settings.Architectures {
			for _, program := range s.Settings.Programs(arch) {
				name := s.configMapName(injector.Program{Name: program, Architecture: arch}, 0)
				current = append(current, strings.TrimSuffix(name, "00"))
			}
		}
	}
	previous := slices.DeleteFunc(slices.Clone(have), func(name string) bool {
		isCurrent := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		return needed[name] || slices.ContainsFunc(current, isCurrent)
	})
	if err := s.deleteConfigMaps(ctx, previous); err != nil {
		return "", err
	}
	return fmt.Sprintf("deleted %d ConfigMaps of previous payloads, %d remain", len(previous), len(have)-len(previous)),
		nil
}

// deleteConfigMaps deletes ConfigMaps. A missing one is not an error.
func (s *Seeder) deleteConfigMaps(ctx context.Context, names []string) error {
	for _, name := range names {
		if err := s.Cluster.ConfigMaps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting %s: %w", s.Object("ConfigMap", name), err)
		}
	}
	return nil
}

// Delete deletes all payload of the release.
func (s *Seeder) Delete(ctx context.Context) (string, error) {
	have, err := s.objectNames(ctx)
	if err != nil {
		return "", err
	}
	if err := s.deleteConfigMaps(ctx, have); err != nil {
		return "", err
	}
	return fmt.Sprintf("deleted %d ConfigMaps", len(have)), nil
}
