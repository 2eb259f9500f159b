package credentials

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook/reload"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// listenerTime is the wait timeout for the registry to open or close its plain listener. A kubelet
// refreshes the Secrets of a pod every 60 to 90 seconds.
const listenerTime = 2 * time.Minute

// OpenPlain creates the pull credential and waits until the registry has opened its plain listener.
// A registry that does not run yet opens it on startup.
func (m *Manager) OpenPlain(ctx context.Context) (string, error) {
	wrote, err := m.WritePull(ctx)
	if err != nil {
		return "", err
	}
	pods, err := m.awaitPlain(ctx, true)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s; the listener is open on %d registry pods", wrote, pods), nil
}

// ClosePlain waits until the registry has closed its plain listener. The pull credential stays, so
// that copies of it in other namespaces are valid again after the next switch to nodeport mode.
func (m *Manager) ClosePlain(ctx context.Context) (string, error) {
	name := m.Settings.Name + names.SuffixPull
	secret, err := m.Secret(ctx, name)
	if err != nil {
		return "", err
	}
	if secret == nil {
		return "nothing: it was never open", nil
	}
	if _, open := secret.Data[names.KeyHtpasswd]; open {
		data := maps.Clone(secret.Data)
		delete(data, names.KeyHtpasswd)
		if err := m.WriteSecret(ctx, secret, name, names.ComponentCredentials, corev1.SecretTypeDockerConfigJson,
			data); err != nil {
			return "", err
		}
	}
	// Copy and wait even if the key is already gone: the run that deleted it may have been killed before
	// the listener closed.
	pods, err := m.awaitPlain(ctx, false)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("closed on %d registry pods", pods), nil
}

// awaitPlain writes the Secret that the plain listener follows, and waits until the listener is open, or
// closed, on every ready registry pod. It returns the number of these pods.
func (m *Manager) awaitPlain(ctx context.Context, open bool) (int, error) {
	if err := m.WriteRegistryAuth(ctx); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, listenerTime)
	defer cancel()
	var refresher reload.Refresher
	for {
		pods, wrong, err := m.plainPods(ctx, open)
		if err == nil && len(wrong) == 0 {
			return pods, nil
		}
		if err == nil {
			err = refresher.Refresh(ctx, m.Pods, slices.Collect(maps.Keys(wrong)))
		}
		if err != nil && ctx.Err() == nil && !release.IsTransient(err) {
			return 0, err
		}
		if ended := release.Sleep(ctx, release.PollInterval); ended != nil {
			return 0, m.plainTimeout(open, wrong, err, ended)
		}
	}
}

// plainTimeout is the error of awaitPlain whose time has ended; last is that of its last try.
func (m *Manager) plainTimeout(open bool, wrong map[string]string, last, ended error) error {
	want := "open"
	if !open {
		want = "close"
	}
	complaints := m.Pods.Complaints(wrong)
	if last != nil {
		complaints = append(complaints, last.Error())
	}
	return fmt.Errorf("waiting for the registry to %s its plain listener, which follows the key %s of %s: %s; see "+
		"the log of that pod: %w",
		want, names.KeyPullHtpasswd, m.Object("Secret", m.Settings.Name+names.SuffixRegistryAuth),
		strings.Join(complaints, "; "), ended)
}

// plainPods returns the number of ready registry pods, and a message for each one whose plain
// listener is not in the wanted state.
func (m *Manager) plainPods(ctx context.Context, open bool) (pods int, wrong map[string]string, err error) {
	ready, err := m.readyRegistries(ctx)
	if err != nil {
		return 0, nil, err
	}
	wrong = map[string]string{}
	for _, pod := range ready {
		switch isOpen, err := m.Listener.PlainOpen(ctx, &pod); {
		case err != nil:
			wrong[pod.Name] = err.Error()
		case isOpen != open && open:
			wrong[pod.Name] = "it is still closed"
		case isOpen != open:
			wrong[pod.Name] = "it is still open"
		}
	}
	return len(ready), wrong, nil
}

// readyRegistries returns the registry pods that serve clients.
func (m *Manager) readyRegistries(ctx context.Context) ([]corev1.Pod, error) {
	pods, err := m.ListPods(ctx, names.ComponentRegistry)
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !release.PodServes(p) }), err
}
