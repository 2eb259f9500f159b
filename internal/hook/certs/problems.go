package certs

import (
	"context"

	"github.com/zarf-dev/zarf-registry/internal/hook/userobject"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Problems returns what prevents certificates from being issued or copied.
func (m *Manager) Problems(ctx context.Context, p state.PKI) ([]userobject.Problem, error) {
	switch p.Mode {
	case state.PKICertManager:
		return m.CertManager.Problems(ctx, *p.Issuer, m.certManagerLeaves(p))
	case state.PKIExistingSecret:
		_, problems, err := m.sources(ctx, p, *p.Existing)
		return userobject.Sentences(problems), err
	}
	return nil, nil
}
