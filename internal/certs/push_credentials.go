package certs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/settings"
)

// Besides the push credential, which may write everything, there are named ones, which may write to some
// repositories. Each generated one has a Secret of its own, so that it can be given to somebody without
// the others. In the registry's htpasswd file a line of a named credential is
// USER:HASH:NAME[:REPOSITORY,…]; the line of the push credential is USER:HASH.

// pushRecord is the content of the state Secret's annotation.
type pushRecord struct {
	Credentials []settings.PushCredential `json:"credentials,omitempty"`
	// Removed are the names of generated credentials that the registry no longer accepts, and whose Secrets
	// finish deletes.
	Removed []string `json:"removed,omitempty"`
}

// find returns the credential with the name, or nil.
func (r pushRecord) find(name string) *settings.PushCredential {
	for i := range r.Credentials {
		if r.Credentials[i].Name == name {
			return &r.Credentials[i]
		}
	}
	return nil
}

// namedSecret returns the name of the Secret of a generated credential.
func (k *Keeper) namedSecret(credential string) string {
	return k.Settings.Name + names.SuffixCredentials + "-" + credential
}

// NamedSecrets returns the names of the Secrets that were generated for named credentials.
func (k *Keeper) NamedSecrets(ctx context.Context) ([]string, error) {
	record, err := k.pushRecord(ctx)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, credential := range generated(record.Credentials) {
		found = append(found, k.namedSecret(credential))
	}
	for _, credential := range record.Removed {
		found = append(found, k.namedSecret(credential))
	}
	return found, nil
}

// generated returns the names of the credentials that are not copies.
func generated(list []settings.PushCredential) (found []string) {
	for _, c := range list {
		if c.Secret == "" {
			found = append(found, c.Name)
		}
	}
	return found
}

// pushRecord reads the annotation. It is empty if there is no state yet.
func (k *Keeper) pushRecord(ctx context.Context) (r pushRecord, err error) {
	secret, err := k.Secret(ctx, k.Settings.Name+names.SuffixState)
	if err != nil || secret == nil || secret.Annotations[names.AnnotationPushCredentials] == "" {
		return pushRecord{}, err
	}
	if r, err = parseRecord(secret.Annotations[names.AnnotationPushCredentials]); err != nil {
		return pushRecord{}, exitcode.Refuse("%s, annotation %s: %w: run helm upgrade, zarf-registry install or "+
			"zarf-registry prepare to write it again", k.Object("Secret", secret.Name), names.AnnotationPushCredentials, err)
	}
	return r, nil
}

func parseRecord(text string) (r pushRecord, err error) {
	if text != "" {
		err = json.Unmarshal([]byte(text), &r)
	}
	return r, err
}

// RecordNamed records the named credentials, after WriteNamed and after the state was saved, for commands
// without the chart's values.
func (k *Keeper) RecordNamed(ctx context.Context, wanted []settings.PushCredential) error {
	return k.changeRecord(ctx, func(r *pushRecord) {
		removed := append(generated(r.Credentials), r.Removed...)
		slices.Sort(removed)
		r.Credentials, r.Removed = wanted, slices.DeleteFunc(slices.Compact(removed), func(name string) bool {
			return slices.Contains(generated(wanted), name)
		})
	})
}

func (k *Keeper) changeRecord(ctx context.Context, change func(*pushRecord)) error {
	return k.AnnotateState(ctx, names.AnnotationPushCredentials, func(current string) (string, error) {
		r, err := parseRecord(current)
		if err != nil {
			r = pushRecord{} // what cannot be read is written again
		}
		if change(&r); len(r.Credentials) == 0 && len(r.Removed) == 0 {
			return "", nil
		}
		encoded, err := json.Marshal(r)
		return string(encoded), err
	})
}

// loadTimeout is how long FinishNamed waits. Kubelets of annotated pods need a few seconds.
const loadTimeout = 2 * time.Minute

// FinishNamed accepts Zarf's credential, if the release replaces Zarf's registry, waits until the registry has
// loaded the named credentials, and deletes the Secrets of removed ones.
func (k *Keeper) FinishNamed(ctx context.Context) (string, error) {
	record, err := k.pushRecord(ctx)
	if err != nil {
		return "", err
	}
	zarf := k.Settings.PKI.Zarf
	if len(record.Credentials) == 0 && len(record.Removed) == 0 && !zarf {
		return "nothing: there are none", nil
	}
	if zarf {
		if err := k.acceptZarf(ctx); err != nil {
			return "", err
		}
	}
	auth, err := k.Secret(ctx, k.Settings.Name+names.SuffixRegistryAuth)
	if err != nil {
		return "", err
	}
	if auth == nil {
		return "", k.missingSecret(names.SuffixRegistryAuth)
	}
	wait := &credentialRotation{command: &command{Keeper: k}, credential: PushCredential,
		htpasswd: auth.Data[names.KeyHtpasswd]}
	limited, stop := context.WithTimeout(ctx, loadTimeout)
	did, err := wait.await(limited)
	stop()
	if ctx.Err() != nil {
		return "", err
	}
	if err != nil {
		k.Log.Warn("the registry has not loaded the push credentials yet", "error", err.Error())
		did = "not loaded yet: see the warning"
	}
	if len(record.Removed) == 0 {
		return did, nil
	}
	deleted, err := k.deleteRemoved(ctx, record)
	return did + "; " + deleted, err
}

// deleteRemoved deletes the Secrets of removed credentials. If it may not, it names them.
func (k *Keeper) deleteRemoved(ctx context.Context, record pushRecord) (string, error) {
	var deleted []string
	for _, credential := range record.Removed {
		name := k.namedSecret(credential)
		secret, err := k.Secret(ctx, name)
		if err == nil && secret != nil {
			err = k.Secrets.Delete(ctx, name, *metav1.NewPreconditionDeleteOptions(string(secret.UID)))
		}
		switch {
		case err == nil, apierrors.IsNotFound(err):
			deleted = append(deleted, name)
		case release.MissingPermission(err): // a chart that was rendered without the cluster does not know the name
			k.Log.Warn("the registry no longer accepts a removed push credential, but its Secret remains: delete it",
				"secret", name, "error", err.Error())
		case err != nil:
			return "", fmt.Errorf("deleting %s: %w", k.Object("Secret", name), err)
		}
	}
	err := k.changeRecord(ctx, func(r *pushRecord) {
		r.Removed = slices.DeleteFunc(r.Removed, func(name string) bool { return slices.Contains(record.Removed, name) })
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("deleted %d Secrets: %s", len(deleted), release.List(deleted)), nil
}

// WriteNamed generates the named push credentials, or copies them from the user's Secrets, and writes the
// registry's Secret. The registry then accepts no others.
func (k *Keeper) WriteNamed(ctx context.Context, wanted []settings.PushCredential) error {
	for _, credential := range generated(wanted) {
		if err := k.generate(ctx, credential); err != nil {
			return err
		}
	}
	_, err := k.copyRegistryAuth(ctx, authChange{push: true, pull: true,
		named: func(ctx context.Context, current []byte) ([]byte, error) {
			lines, err := k.namedLines(ctx, wanted, current)
			if err != nil || !k.Settings.PKI.Zarf {
				return lines, err
			}
			zarf, err := k.zarfLine(ctx, current)
			return append(lines, zarf...), err
		}})
	return err
}

// generate creates or repairs the Secret of a named credential.
func (k *Keeper) generate(ctx context.Context, credential string) error {
	name := k.namedSecret(credential)
	return release.RetryOnConflict(ctx, func() error {
		secret, err := k.Secret(ctx, name)
		if err != nil {
			return err
		}
		data := map[string][]byte{}
		if secret != nil {
			data = maps.Clone(secret.Data)
		}
		valid := string(data[names.KeyUsername]) == credential && len(data[names.KeyPassword]) > 0
		if valid && htpasswdMatches(data[names.KeyHtpasswd], data[names.KeyUsername], data[names.KeyPassword]) {
			return nil
		}
		if !valid {
			data[names.KeyUsername] = []byte(credential)
			if data[names.KeyPassword], err = newPassword(); err != nil {
				return err
			}
		}
		if data[names.KeyHtpasswd], err = newHtpasswd(data[names.KeyUsername], data[names.KeyPassword]); err != nil {
			return fmt.Errorf("hashing the password of %s: %w", k.Object("Secret", name), err)
		}
		return k.WriteSecret(ctx, secret, name, names.ComponentCredentials, corev1.SecretTypeOpaque, data)
	})
}

// namedLines returns the lines of the credentials. Copies keep the hash that current has for them, if it is
// right.
func (k *Keeper) namedLines(ctx context.Context, list []settings.PushCredential, current []byte) ([]byte, error) {
	var lines bytes.Buffer
	for _, credential := range list {
		line, err := k.namedLine(ctx, credential, current)
		if err != nil {
			return nil, err
		}
		lines.Write(line)
	}
	return lines.Bytes(), nil
}

func (k *Keeper) namedLine(ctx context.Context, credential settings.PushCredential, current []byte) ([]byte, error) {
	var line []byte
	if credential.Secret == "" {
		name := k.namedSecret(credential.Name)
		secret, err := k.Secret(ctx, name)
		if err != nil {
			return nil, err
		}
		if secret == nil {
			return nil, k.missingSecret(names.SuffixCredentials + "-" + credential.Name)
		}
		line = bytes.TrimSpace(secret.Data[names.KeyHtpasswd])
	} else {
		source, problems, err := k.pushSource(ctx, credential.Secret, credential.Name)
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
				return nil, fmt.Errorf("hashing the password of %s: %w", k.Object("Secret", credential.Secret), err)
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
func (k *Keeper) replaceNamed(list []settings.PushCredential) func(context.Context, []byte) ([]byte, error) {
	return func(ctx context.Context, current []byte) ([]byte, error) {
		var lines bytes.Buffer
		kept, err := keepNamed(ctx, current)
		if err != nil {
			return nil, err
		}
		for line := range bytes.Lines(kept) {
			name := bytes.Split(bytes.TrimSpace(line), []byte(":"))[2]
			if replaced := (pushRecord{Credentials: list}).find(string(name)); replaced != nil {
				if line, err = k.namedLine(ctx, *replaced, current); err != nil {
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
func (k *Keeper) NamedProblems(ctx context.Context, list []settings.PushCredential) ([]Problem, error) {
	var all []Problem
	for _, credential := range list {
		if credential.Secret == "" {
			continue
		}
		_, problems, err := k.pushSource(ctx, credential.Secret, credential.Name)
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
func (k *Keeper) ListCredentials(ctx context.Context) ([]CredentialInfo, error) {
	c := &command{Keeper: k}
	if _, err := c.readState(ctx); err != nil {
		return nil, err
	}
	list := []CredentialInfo{}
	if c.external() {
		return list, nil
	}
	record, err := k.pushRecord(ctx)
	if err != nil {
		return nil, err
	}
	push := CredentialInfo{Name: string(PushCredential), Secret: k.Settings.Name + names.SuffixCredentials, Writes: true}
	if c.saved.PushSecret != "" {
		push.Secret, push.Copied = c.saved.PushSecret, true
	}
	list = append(list, push)
	for _, n := range record.Credentials {
		info := CredentialInfo{Name: n.Name, Secret: n.Secret, Copied: n.Secret != "", Writes: true,
			Repositories: n.Repositories}
		if !info.Copied {
			info.Secret = k.namedSecret(n.Name)
		}
		list = append(list, info)
	}
	list = append(list, CredentialInfo{Name: string(PullCredential), Secret: k.Settings.Name + names.SuffixPull})
	for i := range list {
		secret, err := k.ReadSecret(ctx, list[i].Secret)
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
