package cli

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// pkiFlags say where certificates come from.
type pkiFlags struct {
	mode, source    string
	leaf, authority time.Duration
	existing        state.ExistingSecrets
	issuer          state.Issuer
}

func (f *pkiFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.mode, "pki-mode", string(state.PKIInternal), "where certificates come from: internal, existingSecret or certManager")
	flags.StringVar(&f.source, "pki-source", string(state.SourceValue), "what decided that: value, state or default")
	flags.DurationVar(&f.leaf, "pki-leaf-lifetime", pki.DefaultLeafLifetime, "how long certificates live; they are renewed at half of it")
	flags.DurationVar(&f.authority, "pki-authority-lifetime", pki.DefaultCALifetime, "how long authorities live; they are replaced at half of it")
	flags.StringVar(&f.existing.Server, "pki-server-secret", "", "mode existingSecret: Secret with the registry's certificate")
	flags.StringVar(&f.existing.Node, "pki-node-secret", "", "mode existingSecret: Secret with the proxies' certificate")
	flags.StringVar(&f.existing.Push, "pki-push-secret", "", "mode existingSecret: Secret with the certificate for pushing; empty: it is made")
	flags.StringVar(&f.existing.Authority, "pki-authority-secret", "", "mode existingSecret: Secret with ca.crt, for Secrets that have no such key")
	flags.StringVar(&f.issuer.Name, "pki-issuer", "", "mode certManager: the issuer's name; empty: one of our own")
	flags.StringVar(&f.issuer.Kind, "pki-issuer-kind", "Issuer", "mode certManager: Issuer, ClusterIssuer or the kind of an external issuer")
	flags.StringVar(&f.issuer.Group, "pki-issuer-group", "cert-manager.io", "mode certManager: the API group of that kind")
}

// settings are the flags as they are recorded.
func (f *pkiFlags) settings(clusterDomain string, serveTLS bool) state.PKI {
	p := state.PKI{
		Mode:              state.PKIMode(f.mode),
		LeafLifetime:      state.Duration(f.leaf),
		AuthorityLifetime: state.Duration(f.authority),
		ClusterDomain:     clusterDomain,
		ServeTLS:          serveTLS,
	}
	if f.existing != (state.ExistingSecrets{}) {
		p.Existing = &f.existing
	}
	if f.issuer.Name != "" {
		p.Issuer = &f.issuer
	}
	return p
}
