package certs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/nodes"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/reloadstatus"
)

const (
	// pushUser is the user name of a generated push credential. Only the push user may write.
	pushUser = "zarf-push"
	// maxPassword is the number of bytes of a password that bcrypt uses.
	maxPassword = 72
)

// WritePush generates the push credential, or copies it from the user's Secret if from names one.
// copied reports whether the current credential is a copy. The returned text describes what it did.
func (k *Keeper) WritePush(ctx context.Context, from string, copied bool) (did string, err error) {
	err = release.RetryOnConflict(ctx, func() error {
		did, err = k.tryWritePush(ctx, from, copied)
		return err
	})
	return did, err
}

func (k *Keeper) tryWritePush(ctx context.Context, from string, copied bool) (string, error) {
	name := k.Settings.Name + names.SuffixCredentials
	secret, err := k.Secret(ctx, name)
	if err != nil {
		return "", err
	}
	data := map[string][]byte{}
	if secret != nil {
		data = maps.Clone(secret.Data)
	}
	cost := bcrypt.MinCost
	reason := ""
	if from != "" {
		// A person chose the password, so it may be guessable.
		cost = bcrypt.DefaultCost
		source, problems, err := k.pushSource(ctx, from)
		if err != nil {
			return "", err
		}
		if err := refuseAll(problems); err != nil {
			return "", err
		}
		if !bytes.Equal(data[names.KeyUsername], source[names.KeyUsername]) ||
			!bytes.Equal(data[names.KeyPassword], source[names.KeyPassword]) {
			reason = k.Object("Secret", from) + " has another credential"
			maps.Copy(data, source)
		}
	} else {
		switch {
		case len(data[names.KeyUsername]) == 0 || len(data[names.KeyPassword]) == 0:
			reason = "there is none yet"
		case copied || string(data[names.KeyUsername]) != pushUser:
			reason = "it was copied from a Secret that is not named any more"
		}
		if reason != "" {
			password, err := newPassword()
			if err != nil {
				return "", err
			}
			data[names.KeyUsername], data[names.KeyPassword] = []byte(pushUser), password
		}
	}
	if len(data[names.KeyUploadSecret]) == 0 {
		reason = cmp.Or(reason, "it had no key for signing uploads")
		if data[names.KeyUploadSecret], err = newPassword(); err != nil {
			return "", err
		}
	}
	if !htpasswdMatches(data[names.KeyHtpasswd], data[names.KeyUsername], data[names.KeyPassword]) ||
		htpasswdCost(data[names.KeyHtpasswd]) < cost {
		reason = cmp.Or(reason, "its htpasswd does not match its password")
		if data[names.KeyHtpasswd], err = hashPassword(data[names.KeyUsername], data[names.KeyPassword], cost); err != nil {
			return "", fmt.Errorf("hashing the password of %s: %w", k.Object("Secret", name), err)
		}
	}
	if reason == "" {
		return "it is valid, nothing made", nil
	}
	if err := k.WriteSecret(ctx, secret, name, names.ComponentCredentials, corev1.SecretTypeOpaque, data); err != nil {
		return "", err
	}
	return fmt.Sprintf("wrote %s: %s", name, reason), nil
}

// pushSource reads the user's push credential and returns its problems. Their texts never contain
// the password.
func (k *Keeper) pushSource(ctx context.Context, name string) (map[string][]byte, []Problem, error) {
	object := k.Object("Secret", name)
	secret, err := k.Secrets.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, []Problem{{object, "does not exist", "create it, or name another: --set auth.existingSecret=…"}}, nil
	case err != nil:
		return nil, nil, fmt.Errorf("reading %s: %w", object, release.RefuseForbidden(err))
	case secret.Labels[names.LabelManagedBy] == names.Manager:
		return nil, []Problem{{object, "was made by init-hook, which overwrites and deletes it", "name your own Secret"}}, nil
	}
	var problems []Problem
	wrong := func(remedy, format string, args ...any) {
		problems = append(problems, Problem{object, fmt.Sprintf(format, args...), remedy})
	}
	for _, key := range []string{names.KeyUsername, names.KeyPassword} {
		value := string(secret.Data[key])
		switch {
		case value == "":
			wrong("add it", "has no key %s", key)
		case !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl):
			wrong("write it without a line break: printf, not echo", "has control characters in %s, which HTTP does not allow",
				key)
		}
	}
	username, password := string(secret.Data[names.KeyUsername]), secret.Data[names.KeyPassword]
	switch {
	case strings.Contains(username, ":"):
		wrong("choose another", "has a username with a colon, which ends the username in HTTP")
	case username != strings.TrimSpace(username) || strings.HasPrefix(username, "#"):
		wrong("choose another", "has a username that begins with # or has blanks around it, which htpasswd files cannot hold")
	case username == pullUser:
		wrong("choose another", "has the username %s, which is reserved for the pull credential", pullUser)
	}
	if len(password) > maxPassword {
		wrong("choose a shorter one", "has a password of %d bytes; bcrypt ignores all after the first %d", len(password),
			maxPassword)
	}
	return map[string][]byte{names.KeyUsername: []byte(username), names.KeyPassword: password}, problems, nil
}

func newPassword() ([]byte, error) {
	random := make([]byte, 32) // 256 bits
	if _, err := rand.Read(random); err != nil {
		return nil, fmt.Errorf("generating a password: %w", err)
	}
	return []byte(base64.RawURLEncoding.EncodeToString(random)), nil
}

// newHtpasswd hashes a password that newPassword generated, at the lowest cost. A slow hash
// protects guessable passwords; generated ones have 256 random bits. On a registry that is short of
// CPU, each login would take seconds.
func newHtpasswd(username, password []byte) ([]byte, error) {
	return hashPassword(username, password, bcrypt.MinCost)
}

func hashPassword(username, password []byte, cost int) ([]byte, error) {
	hash, err := bcrypt.GenerateFromPassword(password, cost)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%s:%s\n", username, hash), nil
}

func htpasswdMatches(htpasswd, username, password []byte) bool {
	user, hash, ok := bytes.Cut(bytes.TrimSpace(htpasswd), []byte(":"))
	return ok && bytes.Equal(user, username) && bcrypt.CompareHashAndPassword(hash, password) == nil
}

func htpasswdCost(htpasswd []byte) int {
	_, hash, _ := bytes.Cut(bytes.TrimSpace(htpasswd), []byte(":"))
	cost, err := bcrypt.Cost(hash)
	if err != nil {
		return 0
	}
	return cost
}

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
	name := c.secretName()
	if c.credential == PushCredential && c.saved.PushSecret != "" {
		return "", exitcode.Refuse("the push credential is a copy of %s: change it there, then run init-hook certs renew",
			c.Object("Secret", c.saved.PushSecret))
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
			return exitcode.Refuse("%s is missing: run helm upgrade, init-hook install or init-hook prepare to create it",
				c.Object("Secret", name))
		}
		return c.replace(ctx, secret)
	})
	if err != nil {
		return "", err
	}
	if c.credential == PullCredential {
		c.Log.Warn("update all copies of the pull Secret in other namespaces, and all other uses of its password, now",
			"secret", name)
	}
	return "wrote " + c.Object("Secret", name), nil
}

func (c *credentialRotation) replace(ctx context.Context, secret *corev1.Secret) error {
	data := maps.Clone(secret.Data)
	password, err := newPassword()
	if err != nil {
		return err
	}
	data[names.KeyPassword] = password
	// A pull Secret without htpasswd means that the plain listener is closed. It stays closed.
	_, has := data[names.KeyHtpasswd]
	c.htpasswd = nil
	if has || c.credential == PushCredential {
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
			var lines []string
			for _, pod := range slices.Sorted(maps.Keys(late)) {
				lines = append(lines, fmt.Sprintf("%s: %s", c.Object("pod", pod), late[pod]))
			}
			return "", fmt.Errorf("%s is written, but not every registry pod has loaded it: %s; see the logs of these pods; "+
				"restarting a pod loads it",
				c.Object("Secret", c.secretName()), strings.Join(lines, "; "))
		}
		if len(late) > 0 && time.Since(refreshed) >= refreshInterval {
			refreshed = time.Now()
			if err := c.refresh(ctx, slices.Collect(maps.Keys(late))); err != nil {
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
		report, err := c.queryPod(ctx, &pod)
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
