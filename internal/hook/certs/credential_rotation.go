package certs

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

	"github.com/zarf-dev/zarf-registry/internal/api/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// credentialRotation replaces one credential.
type credentialRotation struct {
	*command
	credential Credential
	// htpasswd is the file that the registry must load. It is nil if the plain listener is closed.
	htpasswd []byte
	nodes    nodes.ReadyNodes
}

// secretName returns the name of the Secret that holds the credential.
func (c *credentialRotation) secretName() string {
	if c.credential == PullCredential {
		return c.Settings.Name + names.SuffixPull
	}
	return c.Settings.Name + names.SuffixCredentials
}

func (c *credentialRotation) write(ctx context.Context) (string, error) {
	if source := c.saved.PushSecret; source != "" && c.credential == PushCredential {
		return "", exitcode.Refuse("the push credential is a copy of %s: change it there, then run zarf-registry certs renew",
			c.Object("Secret", source))
	}
	name := c.secretName()
	err := release.RetryOnConflict(ctx, func() error {
		secret, err := c.Secret(ctx, name)
		if err != nil {
			return err
		}
		if secret == nil && c.credential == PullCredential {
			return exitcode.Refuse("%s does not exist: only nodeport mode has a pull credential", c.Object("Secret", name))
		}
		if secret == nil {
			return c.missingSecret(name)
		}
		return c.replace(ctx, secret)
	})
	if err != nil {
		return "", err
	}
	htpasswd, err := c.copyRegistryAuth(ctx, authChange{push: true, pull: true})
	if err != nil {
		return "", err
	}
	if c.credential != PullCredential {
		c.htpasswd = htpasswd
	}
	if c.credential == PullCredential {
		c.Log.Warn("update all copies of the pull Secret in other namespaces, and all other uses of its password, now",
			"secret", name)
	}
	return "wrote " + c.Object("Secret", name), nil
}

func (c *credentialRotation) replace(ctx context.Context, secret *corev1.Secret) error {
	data, password := maps.Clone(secret.Data), newPassword()
	data[names.KeyPassword] = password
	// A pull Secret without htpasswd means that the plain listener is closed. It stays closed.
	_, has := data[names.KeyHtpasswd]
	c.htpasswd = nil
	var err error
	if has || c.credential != PullCredential {
		if c.htpasswd, err = newHtpasswd(data[names.KeyUsername], password); err != nil {
			return fmt.Errorf("hashing the password of %s: %w", c.Object("Secret", secret.Name), err)
		}
		data[names.KeyHtpasswd] = c.htpasswd
	}
	kind := corev1.SecretTypeOpaque
	if c.credential == PullCredential {
		kind = corev1.SecretTypeDockerConfigJson
		if data[corev1.DockerConfigJsonKey], err = dockerConfig(c.saved.Desired.Address, string(data[names.KeyUsername]),
			string(password)); err != nil {
			return err
		}
	}
	return c.WriteSecret(ctx, secret, secret.Name, names.ComponentCredentials, kind, data)
}

// await waits until every ready registry pod has loaded the credential.
func (c *credentialRotation) await(ctx context.Context) (string, error) {
	if c.htpasswd == nil {
		return "nothing: the listener of the node port is closed", nil
	}
	sum := sha256.Sum256(c.htpasswd)
	want := hex.EncodeToString(sum[:])
	end := time.Now().Add(waitTimeout(ctx, commandTimeout))
	var refreshed time.Time
	for {
		pods, late, err := c.late(ctx, want)
		switch {
		case err != nil && (!release.IsTransient(err) || !time.Now().Before(end)):
			return "", err
		case err == nil && len(late) == 0:
			return fmt.Sprintf("loaded by %d registry pods", pods), nil
		case !time.Now().Before(end):
			return "", fmt.Errorf("%s is written, but not every registry pod has loaded it: %s; see the logs of these pods; "+
				"restarting a pod loads it",
				c.Object("Secret", c.secretName()), strings.Join(c.complaints(late), "; "))
		}
		if len(late) > 0 && time.Since(refreshed) >= RefreshInterval {
			refreshed = time.Now()
			if err := c.RefreshPods(ctx, slices.Collect(maps.Keys(late))); err != nil {
				c.Log.Info("cannot annotate pods; their kubelets refresh the Secrets within 90 seconds", "error", err.Error())
			}
		}
		if err := release.Sleep(ctx, min(rotationPoll, max(0, time.Until(end)))); err != nil {
			return "", err
		}
	}
}

// late returns the number of ready registry pods, and for each one that has not loaded the
// credential the reason.
func (c *credentialRotation) late(ctx context.Context, want string) (int, map[string]string, error) {
	pods, err := c.RunningPods(ctx, &c.nodes, names.ComponentRegistry, func(*corev1.Pod) {})
	if err != nil {
		return 0, nil, err
	}
	late, ready := map[string]string{}, 0
	for _, pod := range pods {
		if !release.PodReady(pod) {
			continue
		}
		ready++
		report, err := c.QueryPod(ctx, &pod)
		switch {
		case err != nil:
			late[pod.Name] = err.Error()
		case report.Credentials == nil:
			late[pod.Name] = "it does not report its credentials"
		case c.has(report.Credentials) != want:
			late[pod.Name] = "it has loaded another one"
		}
	}
	return ready, late, nil
}

func (c *credentialRotation) has(report *reloadstatus.Credentials) string {
	if c.credential == PullCredential {
		return report.Pull
	}
	return report.Push
}

// loadTimeout is how long AwaitPush waits. Kubelets of annotated pods need a few seconds.
const loadTimeout = 2 * time.Minute

// AwaitPush waits until the registry has loaded the push credential, and that of Zarf. If it does not in time, it logs
// a warning, and pushes with a changed credential may be refused.
func (m *Manager) AwaitPush(ctx context.Context) (string, error) {
	auth, err := m.requiredSecret(ctx, m.Settings.Name+names.SuffixRegistryAuth)
	if err != nil {
		return "", err
	}
	wait := &credentialRotation{command: &command{Manager: m}, credential: PushCredential,
		htpasswd: auth.Data[names.KeyHtpasswd]}
	limited, stop := context.WithTimeout(ctx, loadTimeout)
	did, err := wait.await(limited)
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
