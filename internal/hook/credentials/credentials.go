// Package credentials generates, copies, rotates and revokes the credentials of a release, stores them
// in its Secrets, and waits until the registry has loaded them. It issues no certificates.
package credentials

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/hook/reload"
	"github.com/zarf-dev/zarf-registry/internal/hook/userobject"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

const (
	// pushUser is the user name of a generated push credential. Only the push user may write.
	pushUser = "zarf-push"
	// pushUserBesideZarf is the same in a release in which Zarf's push user has that name.
	pushUserBesideZarf = "zarf-registry-push"
	// pullUser is the user name for pulls through the node port.
	pullUser = "zarf-pull"
	// maxPassword is the number of bytes of a password that bcrypt uses.
	maxPassword = 72
)

// Manager manages the credentials of one release. All fields must be set.
type Manager struct {
	*nodes.Observer
	Pods     *reload.Pods
	Listener Listener
}

// Listener asks registry pods for the state of their plain listener.
type Listener interface {
	// PlainOpen reports whether the plain listener of a registry pod accepts connections. An error
	// means that the state of the listener is unknown.
	PlainOpen(ctx context.Context, pod *corev1.Pod) (bool, error)
}

// Problems returns what is wrong with the user's Secret for the push credential. name is the name of
// that Secret.
func (m *Manager) Problems(ctx context.Context, name string) ([]userobject.Problem, error) {
	_, problems, err := m.pushSource(ctx, name)
	return userobject.Sentences(problems), err
}

// WritePush generates the push credential, or copies it from the user's Secret if from names one.
// copied reports whether the current credential is a copy. The returned text describes what it did.
func (m *Manager) WritePush(ctx context.Context, from string, copied bool) (did string, err error) {
	err = release.RetryOnConflict(ctx, func() error {
		did, err = m.tryWritePush(ctx, from, copied)
		return err
	})
	return did, err
}

func (m *Manager) tryWritePush(ctx context.Context, from string, copied bool) (string, error) {
	name := m.Settings.Name + names.SuffixCredentials
	secret, err := m.Secret(ctx, name)
	if err != nil {
		return "", err
	}
	data := dataOf(secret)
	cost := bcrypt.MinCost
	reason := ""
	if from != "" {
		// A person chose the password, so it may be guessable.
		cost = bcrypt.DefaultCost
		source, problems, err := m.pushSource(ctx, from)
		if err != nil {
			return "", err
		}
		if err := userobject.Refuse(problems); err != nil {
			return "", err
		}
		if !bytes.Equal(data[names.KeyUsername], source[names.KeyUsername]) ||
			!bytes.Equal(data[names.KeyPassword], source[names.KeyPassword]) {
			reason = m.Object("Secret", from) + " has another credential"
			maps.Copy(data, source)
		}
	} else {
		user := pushUser
		if m.Settings.PKI.Zarf {
			user = pushUserBesideZarf
		}
		switch {
		case len(data[names.KeyUsername]) == 0 || len(data[names.KeyPassword]) == 0:
			reason = "it does not exist yet"
		case copied || !slices.Contains([]string{pushUser, pushUserBesideZarf}, string(data[names.KeyUsername])):
			reason = "it was copied from a Secret that the settings no longer name"
		case string(data[names.KeyUsername]) != user:
			reason = "its user name depends on zarf.compatible"
		}
		if reason != "" {
			data[names.KeyUsername], data[names.KeyPassword] = []byte(user), newPassword()
		}
	}
	if len(data[names.KeyUploadSecret]) == 0 {
		reason = cmp.Or(reason, "it had no key for signing uploads")
		data[names.KeyUploadSecret] = newPassword()
	}
	if !htpasswdMatches(data[names.KeyHtpasswd], data[names.KeyUsername], data[names.KeyPassword]) ||
		htpasswdCost(data[names.KeyHtpasswd]) < cost {
		reason = cmp.Or(reason, "its htpasswd does not match its password")
		if data[names.KeyHtpasswd], err = hashPassword(data[names.KeyUsername], data[names.KeyPassword], cost); err != nil {
			return "", fmt.Errorf("hashing the password of %s: %w", m.Object("Secret", name), err)
		}
	}
	if reason == "" {
		return "it is valid, nothing written", nil
	}
	if err := m.WriteSecret(ctx, secret, name, names.ComponentCredentials, corev1.SecretTypeOpaque, data); err != nil {
		return "", err
	}
	return fmt.Sprintf("wrote %s: %s", name, reason), nil
}

// dataOf returns a copy of a Secret's data, to be changed. It is empty if there is no Secret, or no data.
func dataOf(secret *corev1.Secret) map[string][]byte {
	data := map[string][]byte{}
	if secret != nil {
		maps.Copy(data, secret.Data)
	}
	return data
}

// WritePull creates or repairs the Secret for pulls through the node port. The returned text
// describes what it did.
func (m *Manager) WritePull(ctx context.Context) (string, error) {
	name := m.Settings.Name + names.SuffixPull
	secret, err := m.Secret(ctx, name)
	if err != nil {
		return "", err
	}
	data := dataOf(secret)
	var reasons []string
	if len(data[names.KeyUsername]) == 0 || len(data[names.KeyPassword]) == 0 {
		reasons = append(reasons, "it had no credential")
		data = map[string][]byte{names.KeyUsername: []byte(pullUser), names.KeyPassword: newPassword()}
	}
	config, err := dockerConfig(m.Settings.Address, string(data[names.KeyUsername]), string(data[names.KeyPassword]))
	if err != nil {
		return "", err
	}
	if !bytes.Equal(data[corev1.DockerConfigJsonKey], config) {
		reasons = append(reasons, "it was not for "+m.Settings.Address)
		data[corev1.DockerConfigJsonKey] = config
	}
	if !htpasswdMatches(data[names.KeyHtpasswd], data[names.KeyUsername], data[names.KeyPassword]) {
		reasons = append(reasons, "it had no valid htpasswd")
		if data[names.KeyHtpasswd], err = newHtpasswd(data[names.KeyUsername], data[names.KeyPassword]); err != nil {
			return "", fmt.Errorf("hashing the password of %s: %w", m.Object("Secret", name), err)
		}
	}
	if len(reasons) == 0 {
		return name + " is up to date", nil
	}
	if err := m.WriteSecret(ctx, secret, name, names.ComponentCredentials, corev1.SecretTypeDockerConfigJson,
		data); err != nil {
		return "", err
	}
	return fmt.Sprintf("wrote %s: %s", name, strings.Join(reasons, ", ")), nil
}

// dockerConfig returns the content of an image pull Secret.
func dockerConfig(address, username, password string) ([]byte, error) {
	type entry struct {
		Username string `json:"username"`
		Password string `json:"password"`
		Auth     []byte `json:"auth"` // username:password; encoding/json writes bytes as base64
	}
	auth := []byte(username + ":" + password)
	return json.Marshal(map[string]map[string]entry{"auths": {address: {username, password, auth}}})
}

// pushSource reads the user's push credential, and returns its problems. Their texts never contain the password.
func (m *Manager) pushSource(ctx context.Context, name string) (map[string][]byte, []userobject.Problem, error) {
	object := m.Object("Secret", name)
	secret, problems, err := userobject.Secret(ctx, m.Release, name,
		"create it, or name another: --set auth.existingSecret=…", true)
	if err != nil || secret == nil {
		return nil, problems, err
	}
	wrong := func(remedy, format string, args ...any) {
		problems = append(problems, userobject.New(object, fmt.Sprintf(format, args...), remedy))
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

func newPassword() []byte {
	random := make([]byte, 32) // 256 bits
	_, _ = rand.Read(random)   // never fails
	return []byte(base64.RawURLEncoding.EncodeToString(random))
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
