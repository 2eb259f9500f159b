package credentials

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/hook/reload"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

const (
	// rotateTimeout is the wait timeout for pods if the context has no deadline.
	rotateTimeout = time.Hour
	// loadTimeout is how long AwaitPush waits. Kubelets of annotated pods need a few seconds.
	loadTimeout = 2 * time.Minute
)

// Credential names a pair of user name and password.
type Credential string

// The credentials of a release. In proxy mode, nothing uses the pull credential.
const (
	Push Credential = "push"
	Pull Credential = "pull"
)

// secretName returns the name of the Secret that holds a credential.
func (m *Manager) secretName(credential Credential) string {
	if credential == Pull {
		return m.Settings.Name + names.SuffixPull
	}
	return m.Settings.Name + names.SuffixCredentials
}

// Copy copies the push credential again, if it is the user's.
func (m *Manager) Copy(ctx context.Context, saved *state.State) (string, error) {
	if saved.PushSecret == "" {
		return "nothing: the credential is not a copy", nil
	}
	if err := m.RefuseZarfsName(ctx, saved.PushSecret); err != nil {
		return "", err
	}
	did, err := m.WritePush(ctx, saved.PushSecret, true)
	if err != nil {
		return "", err
	}
	_, err = m.copyRegistryAuth(ctx, authChange{push: true})
	return did, err
}

// Rotation replaces one generated credential: Write, then Await.
type Rotation struct {
	*Manager
	Credential Credential
	// Saved is the saved state.
	Saved *state.State
	// htpasswd is the file that the registry must load. It is nil if the plain listener is closed.
	htpasswd []byte
}

// Write replaces the credential in the Secrets.
func (r *Rotation) Write(ctx context.Context) (string, error) {
	if source := r.Saved.PushSecret; source != "" && r.Credential == Push {
		return "", exitcode.Refuse("the push credential is a copy of %s: change it there, then run zarf-registry certs renew",
			r.Object("Secret", source))
	}
	name := r.secretName(r.Credential)
	err := release.RetryOnConflict(ctx, func() error {
		secret, err := r.Secret(ctx, name)
		switch {
		case err != nil:
			return err
		case secret == nil && r.Credential == Pull:
			return exitcode.Refuse("%s does not exist: only nodeport mode has a pull credential", r.Object("Secret", name))
		case secret == nil:
			return r.missingSecret(name)
		}
		return r.replace(ctx, secret)
	})
	if err != nil {
		return "", err
	}
	htpasswd, err := r.copyRegistryAuth(ctx, authChange{push: true, pull: true})
	if err != nil {
		return "", err
	}
	if r.Credential == Pull {
		r.Log.Warn("update all copies of the pull Secret in other namespaces, and all other uses of its password, now",
			"secret", name)
	} else {
		r.htpasswd = htpasswd
	}
	return "wrote " + r.Object("Secret", name), nil
}

func (r *Rotation) replace(ctx context.Context, secret *corev1.Secret) error {
	data, password := maps.Clone(secret.Data), newPassword()
	data[names.KeyPassword] = password
	// A pull Secret without htpasswd means that the plain listener is closed. It stays closed.
	_, has := data[names.KeyHtpasswd]
	r.htpasswd = nil
	var err error
	if has || r.Credential != Pull {
		if r.htpasswd, err = newHtpasswd(data[names.KeyUsername], password); err != nil {
			return fmt.Errorf("hashing the password of %s: %w", r.Object("Secret", secret.Name), err)
		}
		data[names.KeyHtpasswd] = r.htpasswd
	}
	kind := corev1.SecretTypeOpaque
	if r.Credential == Pull {
		kind = corev1.SecretTypeDockerConfigJson
		if data[corev1.DockerConfigJsonKey], err = dockerConfig(r.Saved.Desired.Address, string(data[names.KeyUsername]),
			string(password)); err != nil {
			return err
		}
	}
	return r.WriteSecret(ctx, secret, secret.Name, names.ComponentCredentials, kind, data)
}

// Await waits until every ready registry pod has loaded the credential.
func (r *Rotation) Await(ctx context.Context) (string, error) {
	if r.htpasswd == nil {
		return "nothing: the listener of the node port is closed", nil
	}
	return r.await(ctx, r.Credential, r.htpasswd)
}

// AwaitPush waits until the registry has loaded the push credential, and that of Zarf. If it does not in time, it logs
// a warning, and pushes with a changed credential may be refused.
func (m *Manager) AwaitPush(ctx context.Context) (string, error) {
	auth, err := m.requiredSecret(ctx, m.Settings.Name+names.SuffixRegistryAuth)
	if err != nil {
		return "", err
	}
	limited, stop := context.WithTimeout(ctx, loadTimeout)
	did, err := m.await(limited, Push, auth.Data[names.KeyHtpasswd])
	stop()
	if ctx.Err() != nil {
		return "", err
	}
	if err != nil {
		m.Log.Warn("the registry has not loaded the push credential yet", "error", err.Error())
		return "not loaded yet: see the warning", nil
	}
	return did, nil
}

// await waits until every ready registry pod has loaded an htpasswd file.
func (m *Manager) await(ctx context.Context, credential Credential, htpasswd []byte) (string, error) {
	sum := sha256.Sum256(htpasswd)
	want := hex.EncodeToString(sum[:])
	end := time.Now().Add(reload.WaitTimeout(ctx, rotateTimeout))
	var ready nodes.ReadyNodes
	var refresher reload.Refresher
	for {
		pods, late, err := m.late(ctx, &ready, credential, want)
		switch {
		case err != nil && (!release.IsTransient(err) || !time.Now().Before(end)):
			return "", err
		case err == nil && len(late) == 0:
			return fmt.Sprintf("loaded by %d registry pods", pods), nil
		case !time.Now().Before(end):
			return "", fmt.Errorf("%s is written, but not every registry pod has loaded it: %s; see the logs of these pods; "+
				"restarting a pod loads it",
				m.Object("Secret", m.secretName(credential)), strings.Join(m.Pods.Complaints(late), "; "))
		}
		if err := refresher.Refresh(ctx, m.Pods, slices.Collect(maps.Keys(late))); err != nil {
			m.Log.Info("cannot annotate pods; their kubelets refresh the Secrets within 90 seconds", "error", err.Error())
		}
		if err := release.Sleep(ctx, min(reload.Poll, max(0, time.Until(end)))); err != nil {
			return "", err
		}
	}
}

// late returns the number of ready registry pods, and for each one that has not loaded the
// credential the reason.
func (m *Manager) late(
	ctx context.Context, nodes *nodes.ReadyNodes, credential Credential, want string,
) (int, map[string]string, error) {
	pods, err := m.RunningPods(ctx, nodes, names.ComponentRegistry, func(*corev1.Pod) {})
	if err != nil {
		return 0, nil, err
	}
	late, ready := map[string]string{}, 0
	for _, pod := range pods {
		if !release.PodReady(pod) {
			continue
		}
		ready++
		report, err := m.Pods.Loaded(ctx, &pod)
		switch {
		case err != nil:
			late[pod.Name] = err.Error()
		case report.Credentials == nil:
			late[pod.Name] = "it does not report its credentials"
		case digestOf(report.Credentials, credential) != want:
			late[pod.Name] = "it has loaded another one"
		}
	}
	return ready, late, nil
}

func digestOf(loaded *loaded.Credentials, credential Credential) string {
	if credential == Pull {
		return loaded.Pull
	}
	return loaded.Push
}
