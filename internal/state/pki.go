package state

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// PKIMode is where the certificates of proxies, registry and pushers come from.
type PKIMode string

// The PKI modes. All of them end in the same Secrets.
const (
	// PKIInternal: init-hook makes them, with an authority of its own.
	PKIInternal PKIMode = "internal"
	// PKIExistingSecret: they are copied from Secrets of the user.
	PKIExistingSecret PKIMode = "existingSecret"
	// PKICertManager: cert-manager issues them; they are copied from its Secrets.
	PKICertManager PKIMode = "certManager"
)

// PKI says where certificates come from and how long they are to live.
type PKI struct {
	Mode PKIMode `json:"mode"`
	// LeafLifetime and AuthorityLifetime are of certificates that are made: in
	// internal mode, by cert-manager, and of the push certificate where the user
	// gives none.
	LeafLifetime      Duration `json:"leafLifetime"`
	AuthorityLifetime Duration `json:"authorityLifetime"`
	// Existing are the user's Secrets; existingSecret mode only.
	Existing *ExistingSecrets `json:"existing,omitempty"`
	// Issuer is the user's cert-manager issuer; nil in certManager mode means one of
	// our own.
	Issuer *Issuer `json:"issuer,omitempty"`
	// ClusterDomain is part of the registry's names.
	ClusterDomain string `json:"clusterDomain"`
	// ServeTLS says that proxies answer TLS on the loopback address with the node
	// certificate, which then must be for it.
	ServeTLS bool `json:"serveTLS"`
}

// ExistingSecrets are names of Secrets with tls.crt, tls.key and ca.crt in the
// release's namespace.
type ExistingSecrets struct {
	Server string `json:"server"`
	Node   string `json:"node"`
	// Push may be empty: then init-hook makes that certificate, with an authority of its own.
	Push string `json:"push,omitempty"`
	// Authority is a Secret with ca.crt, for Secrets without that key; may be empty.
	Authority string `json:"authority,omitempty"`
}

// Issuer refers to an issuer of cert-manager.
type Issuer struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Group string `json:"group"`
}

// Shortest lifetimes. A certificate is renewed at half of its life; the kubelet may
// take 90 s to bring it to a pod, and the CronJob a minute to run.
const (
	MinLeafLifetime = Duration(6 * time.Minute)
	// MinCertManagerLifetime is cert-manager's own limit.
	MinCertManagerLifetime = Duration(time.Hour)
)

// Validate says what is impossible in p.
func (p PKI) Validate() error {
	if !slices.Contains([]PKIMode{PKIInternal, PKIExistingSecret, PKICertManager}, p.Mode) {
		return fmt.Errorf("unknown mode %q: choose internal, existingSecret or certManager", p.Mode)
	}
	shortest := MinLeafLifetime
	if p.Mode == PKICertManager {
		shortest = MinCertManagerLifetime
	}
	switch {
	case p.LeafLifetime < shortest:
		return fmt.Errorf("a certificate's lifetime of %s is too short: choose %s or more", p.LeafLifetime, shortest)
	case p.AuthorityLifetime < 2*p.LeafLifetime:
		return fmt.Errorf("an authority's lifetime of %s is too short for certificates of %s: choose at least twice as much, since a leaf never outlives its authority", p.AuthorityLifetime, p.LeafLifetime)
	case (p.Existing != nil) != (p.Mode == PKIExistingSecret):
		return errors.New("existing Secrets are for mode existingSecret, which needs them")
	case p.Existing != nil && (p.Existing.Server == "" || p.Existing.Node == ""):
		return errors.New("mode existingSecret needs the names of the Secrets of server and node certificate")
	case p.Issuer != nil && p.Mode != PKICertManager:
		return errors.New("an issuer is for mode certManager only")
	case p.Issuer != nil && (p.Issuer.Name == "" || p.Issuer.Kind == "" || p.Issuer.Group == ""):
		return errors.New("an issuer needs name, kind and group")
	case p.ClusterDomain == "":
		return errors.New("the cluster's domain is empty")
	}
	return nil
}

// RotationPhase is how far a change of the trusted authorities has come.
type RotationPhase string

// The phases, in their order. In each of them the proxies reach the registry.
const (
	// RotationTrust: former and new authorities are in every ca.crt; until all pods
	// have loaded that, nobody shows a certificate of the new.
	RotationTrust RotationPhase = "trust"
	// RotationReissue: the certificates are of the new authority; until all pods have
	// loaded that, nobody forgets the former.
	RotationReissue RotationPhase = "reissue"
	// RotationDrop: only the new authority is in every ca.crt.
	RotationDrop RotationPhase = "drop"
)

// Rotation is a change of the trusted authorities that is under way.
type Rotation struct {
	Phase RotationPhase `json:"phase"`
	// Reason is why it was begun, Since when.
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	// Waiting says what was last seen to hold it up.
	Waiting string `json:"waiting,omitempty"`
}

// Duration is a time.Duration that stands in JSON as in Go: "8760h0m0s".
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}
