package certs

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Besides the push credential, which may write everything, there are named ones, which may write to some
// repositories. Each generated one has a Secret of its own, so that it can be given to somebody without
// the others. In the registry's htpasswd file a line of a named credential is
// USER:HASH:NAME[:REPOSITORY,…]; the line of the push credential is USER:HASH.

// namedSecret returns the name of the Secret of a generated credential.
func (m *Manager) namedSecret(credential string) string {
	return m.Settings.Name + names.SuffixCredentials + "-" + credential
}

// NamedSecrets returns the names of the Secrets that were generated for named credentials.
func (m *Manager) NamedSecrets(ctx context.Context) ([]string, error) {
	record, err := m.pushRecord(ctx)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, credential := range record.Generated() {
		found = append(found, m.namedSecret(credential))
	}
	for _, credential := range record.Removed {
		found = append(found, m.namedSecret(credential))
	}
	return found, nil
}

// pushRecord returns the recorded credentials. There are none if there is no state yet.
func (m *Manager) pushRecord(ctx context.Context) (state.PushCredentials, error) {
	_, s, err := m.LoadState(ctx)
	if err != nil || s == nil {
		return state.PushCredentials{}, err
	}
	return s.PushCredentials, nil
}

// RecordNamed records the named credentials, for commands without the chart's values.
func (m *Manager) RecordNamed(ctx context.Context, wanted []state.PushCredential) error {
	return m.changeRecord(ctx, func(p state.PushCredentials) state.PushCredentials { return p.Replace(wanted) })
}

func (m *Manager) changeRecord(
	ctx context.Context, change func(state.PushCredentials) state.PushCredentials,
) error {
	return m.UpdateState(ctx, func(s *state.State) bool {
		before := s.PushCredentials
		s.PushCredentials = change(before)
		return !reflect.DeepEqual(before, s.PushCredentials)
	})
}

// loadTimeout is how long AwaitPush waits. Kubelets of annotated pods need a few seconds.
const loadTimeout = 2 * time.Minute

// FinishNamed accepts Zarf's credential, if the release replaces Zarf's registry, waits until the registry has
// loaded the named credentials, and deletes the Secrets of removed ones.
func (m *Manager) FinishNamed(ctx context.Context) (string, error) {
	record, err := m.pushRecord(ctx)
	if err != nil {
		return "", err
	}
	zarf := m.Settings.PKI.Zarf
	if len(record.Named) == 0 && len(record.Removed) == 0 && !zarf {
		return "nothing: there are none", nil
	}
	if zarf {
		if err := m.acceptZarf(ctx); err != nil {
			return "", err
		}
	}
	did, err := m.AwaitPush(ctx)
	if err != nil {
		return "", err
	}
	if len(record.Removed) == 0 {
		return did, nil
	}
	deleted, err := m.deleteRemoved(ctx, record)
	return did + "; " + deleted, err
}

// AwaitPush waits until the registry has loaded the push credentials that prepare has written. If it does not in
// time, AwaitPush logs a warning, and pushes with a changed credential may be refused.
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
		m.Log.Warn("the registry has not loaded the push credentials yet", "error", err.Error())
		return "not loaded yet: see the warning", nil
	}
	return did, nil
}

// deleteRemoved deletes the Secrets of removed credentials. If it may not, it names them.
func (m *Manager) deleteRemoved(ctx context.Context, record state.PushCredentials) (string, error) {
	var deleted []string
	for _, credential := range record.Removed {
		name := m.namedSecret(credential)
		secret, err := m.Secret(ctx, name)
		if err == nil && secret != nil {
			err = m.Secrets.Delete(ctx, name, *metav1.NewPreconditionDeleteOptions(string(secret.UID)))
		}
		switch {
		case err == nil, apierrors.IsNotFound(err):
			deleted = append(deleted, name)
		case release.MissingPermission(err): // a chart that was rendered without the cluster does not know the name
			m.Log.Warn("the registry no longer accepts a removed push credential, but its Secret remains: delete it",
				"secret", name, "error", err.Error())
		case err != nil:
			return "", fmt.Errorf("deleting %s: %w", m.Object("Secret", name), err)
		}
	}
	err := m.changeRecord(ctx, func(p state.PushCredentials) state.PushCredentials {
		p.Removed = slices.DeleteFunc(slices.Clone(p.Removed), func(name string) bool {
			return slices.Contains(record.Removed, name)
		})
		return p
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("deleted %d Secrets: %s", len(deleted), release.List(deleted)), nil
}

// WriteNamed generates the named push credentials, or copies them from the user's Secrets, and writes the
// registry's Secret. The registry then accepts no others.
func (m *Manager) WriteNamed(ctx context.Context, wanted []state.PushCredential) error {
	for _, credential := range (state.PushCredentials{Named: wanted}).Generated() {
		if err := m.generate(ctx, credential); err != nil {
			return err
		}
	}
	_, err := m.copyRegistryAuth(ctx, authChange{push: true, pull: true,
		named: func(ctx context.Context, current []byte) ([]byte, error) {
			lines, err := m.namedLines(ctx, wanted, current)
			if err != nil || !m.Settings.PKI.Zarf {
				return lines, err
			}
			zarf, err := m.zarfLine(ctx, current)
			return append(lines, zarf...), err
		}})
	return err
}

// generate creates or repairs the Secret of a named credential.
func (m *Manager) generate(ctx context.Context, credential string) error {
	name := m.namedSecret(credential)
	return release.RetryOnConflict(ctx, func() error {
		secret, err := m.Secret(ctx, name)
		if err != nil {
			return err
		}
		data := dataOf(secret)
		valid := string(data[names.KeyUsername]) == credential && len(data[names.KeyPassword]) > 0
		if valid && htpasswdMatches(data[names.KeyHtpasswd], data[names.KeyUsername], data[names.KeyPassword]) {
			return nil
		}
		if !valid {
			data[names.KeyUsername], data[names.KeyPassword] = []byte(credential), newPassword()
		}
		if data[names.KeyHtpasswd], err = newHtpasswd(data[names.KeyUsername], data[names.KeyPassword]); err != nil {
			return fmt.Errorf("hashing the password of %s: %w", m.Object("Secret", name), err)
		}
		return m.WriteSecret(ctx, secret, name, names.ComponentCredentials, corev1.SecretTypeOpaque, data)
	})
}

// namedLines returns the lines of the credentials. Copies keep the hash that current has for them, if it is
// right.
func (m *Manager) namedLines(ctx context.Context, list []state.PushCredential, current []byte) ([]byte, error) {
	var lines bytes.Buffer
	for _, credential := range list {
		line, err := m.namedLine(ctx, credential, current)
		if err != nil {
			return nil, err
		}
		lines.Write(line)
	}
	return lines.Bytes(), nil
}

func (m *Manager) namedLine(ctx context.Context, credential state.PushCredential, current []byte) ([]byte, error) {
	var line []byte
	if credential.Secret == "" {
		secret, err := m.requiredSecret(ctx, m.namedSecret(credential.Name))
		if err != nil {
			return nil, err
		}
		line = bytes.TrimSpace(secret.Data[names.KeyHtpasswd])
	} else {
		source, problems, err := m.pushSource(ctx, credential.Secret, credential.Name)
		if err != nil {
			return nil, err
		}
		if err := refuseAll(problems); err != nil {
			return nil, err
		}
		for existing := range bytes.Lines(current) {
			if fields := bytes.Split(bytes.TrimSpace(existing), []byte(":")); len(fields) > 2 &&
				string(fields[2]) == credential.Name {
				line = bytes.Join(fields[:2], []byte(":"))
			}
		}
		if !htpasswdMatches(line, source[names.KeyUsername], source[names.KeyPassword]) ||
			htpasswdCost(line) < bcrypt.DefaultCost { // a person chose the password
			line, err = hashPassword(source[names.KeyUsername], source[names.KeyPassword], bcrypt.DefaultCost)
			if err != nil {
				return nil, fmt.Errorf("hashing the password of %s: %w", m.Object("Secret", credential.Secret), err)
			}
			line = bytes.TrimSpace(line)
		}
	}
	line = append(bytes.Clone(line), ":"+credential.Name...)
	if len(credential.Repositories) > 0 {
		line = append(line, ":"+strings.Join(credential.Repositories, ",")...)
	}
	return append(line, '\n'), nil
}

// keepNamed returns the lines of named credentials as they are.
func keepNamed(_ context.Context, current []byte) ([]byte, error) {
	var lines bytes.Buffer
	for line := range bytes.Lines(current) {
		if bytes.Count(line, []byte(":")) > 1 {
			lines.Write(line)
		}
	}
	return lines.Bytes(), nil
}

// replaceNamed replaces the lines of those credentials that current has. It adds and removes none.
func (m *Manager) replaceNamed(list []state.PushCredential) func(context.Context, []byte) ([]byte, error) {
	return func(ctx context.Context, current []byte) ([]byte, error) {
		var lines bytes.Buffer
		kept, err := keepNamed(ctx, current)
		if err != nil {
			return nil, err
		}
		for line := range bytes.Lines(kept) {
			name := bytes.Split(bytes.TrimSpace(line), []byte(":"))[2]
			if replaced := (state.PushCredentials{Named: list}).Find(string(name)); replaced != nil {
				if line, err = m.namedLine(ctx, *replaced, current); err != nil {
					return nil, err
				}
			}
			lines.Write(line)
		}
		return lines.Bytes(), nil
	}
}

// uniqueUsers refuses a file with two lines of one user, which the registry would refuse.
func uniqueUsers(htpasswd []byte) error {
	seen := map[string]string{pullUser: string(PullCredential)}
	for line := range bytes.Lines(htpasswd) {
		fields := strings.Split(strings.TrimSpace(string(line)), ":")
		name := string(PushCredential)
		if len(fields) > 2 {
			name = fields[2]
		}
		if other, twice := seen[fields[0]]; twice {
			return exitcode.Refuse("the credentials %s and %s have the same user name %q: change one", other, name, fields[0])
		}
		seen[fields[0]] = name
	}
	return nil
}

// NamedProblems returns what is wrong with the user's Secrets for named credentials.
func (m *Manager) NamedProblems(ctx context.Context, list []state.PushCredential) ([]Problem, error) {
	var all []Problem
	for _, credential := range list {
		if credential.Secret == "" {
			continue
		}
		_, problems, err := m.pushSource(ctx, credential.Secret, credential.Name)
		if err != nil {
			return nil, err
		}
		all = append(all, problems...)
	}
	return sentences(all), nil
}

// CredentialInfo describes a credential, without its password.
type CredentialInfo struct {
	// Name is "push", "pull", or that of a named push credential.
	Name string `json:"name"`
	User string `json:"user"`
	// Secret is the name of the Secret with the password.
	Secret string `json:"secret"`
	// Copied means that the Secret is the user's, and that init-hook does not rotate it.
	Copied bool `json:"copied"`
	// Writes means that the credential may push and delete: in Repositories and below, or everywhere if there are none.
	Writes       bool     `json:"writes"`
	Repositories []string `json:"repositories"`
}

// ListCredentials returns the credentials of the release whose Secrets exist.
func (m *Manager) ListCredentials(ctx context.Context) ([]CredentialInfo, error) {
	c := &command{Manager: m}
	if _, err := c.readState(ctx); err != nil {
		return nil, err
	}
	list := []CredentialInfo{}
	if c.external() {
		return list, nil
	}
	record, err := m.pushRecord(ctx)
	if err != nil {
		return nil, err
	}
	push := CredentialInfo{Name: string(PushCredential), Secret: m.Settings.Name + names.SuffixCredentials, Writes: true}
	if c.saved.PushSecret != "" {
		push.Secret, push.Copied = c.saved.PushSecret, true
	}
	list = append(list, push)
	for _, n := range record.Named {
		info := CredentialInfo{Name: n.Name, Secret: n.Secret, Copied: n.Secret != "", Writes: true,
			Repositories: n.Repositories}
		if !info.Copied {
			info.Secret = m.namedSecret(n.Name)
		}
		list = append(list, info)
	}
	list = append(list, CredentialInfo{Name: string(PullCredential), Secret: m.Settings.Name + names.SuffixPull})
	for i := range list {
		secret, err := m.ReadSecret(ctx, list[i].Secret)
		if err != nil {
			return nil, err
		}
		if secret != nil {
			list[i].User = string(secret.Data[names.KeyUsername])
		}
		if list[i].Repositories == nil {
			list[i].Repositories = []string{} // not null in JSON
		}
	}
	return slices.DeleteFunc(list, func(i CredentialInfo) bool { return i.User == "" }), nil
}
