// Package certs issues, copies, renews and rotates the certificates of a release, and stores them in
// its Secrets. Certificates come from the release's own CA, from cert-manager, or from Secrets of the
// user. During a CA rotation the proxies and the registry trust each other at every step.
//
// It does not decide the order of a rotation; package pki does.
package certs

import (
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/hook/certs/certmanager"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/hook/reload"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Manager manages the certificates of one release. All fields must be set.
type Manager struct {
	*nodes.Observer
	CertManager *certmanager.Client
	Pods        *reload.Pods
}

// certManagerLeaves returns the certificates that cert-manager is to issue.
func (m *Manager) certManagerLeaves(p state.PKI) []certmanager.Leaf {
	var out []certmanager.Leaf
	for _, l := range m.leaves(p) {
		out = append(out, certmanager.Leaf{Suffix: strings.TrimSuffix(l.suffix, "-tls"), Leaf: l.leaf})
	}
	return out
}
