package credentials

import (
	"bytes"
	"context"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// Zarf gives the registry of its init package two users, and hands it their hashes only: one that pushes and
// one that pulls. Here, a client certificate suffices for reading, so the second one is not needed.

// zarfLine returns the line of Zarf's push user, from the chart's Secret; none if the release does not replace Zarf's
// registry. Before Helm has created that Secret, it is current.
func (m *Manager) zarfLine(ctx context.Context, current []byte) ([]byte, error) {
	if !m.Settings.PKI.Zarf {
		return nil, nil
	}
	name := m.Settings.Name + names.SuffixZarfUsers
	secret, err := m.ReadSecret(ctx, name)
	if err != nil {
		return nil, err
	}
	if secret == nil {
		return current, nil
	}
	push, _, _ := bytes.Cut(bytes.TrimSpace(secret.Data[names.KeyHtpasswd]), []byte("\n"))
	push = bytes.TrimSpace(push)
	if user, hash, found := bytes.Cut(push, []byte(":")); !found || len(user) == 0 || bytes.Contains(hash, []byte(":")) {
		return nil, exitcode.Refuse("%s, key %s: the first line is not USER:HASH: correct the value secrets.htpasswd",
			m.Object("Secret", name), names.KeyHtpasswd)
	}
	return append(bytes.Clone(push), '\n'), nil
}

// AcceptZarf writes Zarf's push user, as the chart's Secret has it, and waits until the registry has loaded it.
func (m *Manager) AcceptZarf(ctx context.Context) (string, error) {
	if _, err := m.copyRegistryAuth(ctx, authChange{zarf: true}); err != nil {
		return "", err
	}
	return m.AwaitPush(ctx)
}
