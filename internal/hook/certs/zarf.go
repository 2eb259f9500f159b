package certs

import (
	"bytes"
	"context"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// Zarf gives the registry of its init package two users, and hands it their hashes only: one that pushes and
// one that pulls. Here, a client certificate suffices for reading, so the second one is not needed.

// zarfCredential is the name of the credential of Zarf's push user in the registry's htpasswd file.
const zarfCredential = "zarf"

// zarfLine returns the line of Zarf's push user, from the chart's Secret. Before Helm has created that Secret,
// it is the line that current has, if any.
func (m *Manager) zarfLine(ctx context.Context, current []byte) ([]byte, error) {
	name := m.Settings.Name + names.SuffixZarfUsers
	secret, err := m.ReadSecret(ctx, name)
	if err != nil {
		return nil, err
	}
	if secret == nil {
		return namedZarf(current, true), nil
	}
	push, _, _ := bytes.Cut(bytes.TrimSpace(secret.Data[names.KeyHtpasswd]), []byte("\n"))
	push = bytes.TrimSpace(push)
	if user, hash, found := bytes.Cut(push, []byte(":")); !found || len(user) == 0 || bytes.Contains(hash, []byte(":")) {
		return nil, exitcode.Refuse("%s, key %s: the first line is not USER:HASH: correct the value secrets.htpasswd",
			m.Object("Secret", name), names.KeyHtpasswd)
	}
	return append(bytes.Clone(push), ":"+zarfCredential+"\n"...), nil
}

// acceptZarf writes what the chart's Secret has into the registry's.
func (m *Manager) acceptZarf(ctx context.Context) error {
	_, err := m.copyRegistryAuth(ctx, authChange{named: func(ctx context.Context, current []byte) ([]byte, error) {
		line, err := m.zarfLine(ctx, current)
		return append(namedZarf(current, false), line...), err
	}})
	return err
}

// namedZarf returns the lines of named credentials: Zarf's only, or all others.
func namedZarf(htpasswd []byte, only bool) []byte {
	var lines bytes.Buffer
	for line := range bytes.Lines(htpasswd) {
		fields := bytes.Split(bytes.TrimSpace(line), []byte(":"))
		if len(fields) > 2 && (string(fields[2]) == zarfCredential) == only {
			lines.Write(line)
		}
	}
	return lines.Bytes()
}
