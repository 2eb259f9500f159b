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
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// credentialRotation replaces one credential.
type credentialRotation struct {
	*command
	credential Credential
	named      *state.PushCredential // nil for the push and the pull credential
	// htpasswd is the file that the registry must load. It is nil if the plain listener is closed.
	htpasswd []byte
	nodes    nodes.ReadyNodes
}

// secretName returns the name of the Secret that holds the credential.
func (c *credentialRotation) secretName() string {
	switch c.credential {
	case PullCredential:
		return c.Settings.Name + names.SuffixPull
	case PushCredential:
		return c.Settings.Name + names.SuffixCredentials
	}
	return c.namedSecret(string(c.credential))
}

// refuse returns an error if the credential does not exist or is a copy.
func (c *credentialRotation) refuse(ctx context.Context) error {
	source := ""
	switch c.credential {
	case PullCredential:
	case PushCredential:
		source = c.saved.PushSecret
	default:
		record, err := c.pushRecord(ctx)
		if err != nil {
			return err
		}
		if c.named = record.Find(string(c.credential)); c.named == nil {
			return exitcode.Refuse("unknown credential %q: see zarf-registry credentials list", c.credential)
		}
		source = c.named.Secret
	}
	if source != "" {
		return exitcode.Refuse("the credential %s is a copy of %s: change it there, then run zarf-registry certs renew",
			c.credential, c.Object("Secret", source))
	}
	return nil
}

func (c *credentialRotation) write(ctx context.Context) (string, error) {
	name := c.secretName()
	if err := c.refuse(ctx); err != nil {
		return "", err
	}
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
	named := keepNamed
	if c.credential != PushCredential && c.credential != PullCredential {
		named = c.replaceNamed([]state.PushCredential{*c.named})
	}
	htpasswd, err := c.copyRegistryAuth(ctx, authChange{push: true, pull: true, named: named})
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
