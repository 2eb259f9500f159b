package state

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// PKIMode is the source of the certificates of proxies, registry and pushers.
type PKIMode string

// The PKI modes. All of them fill the same Secrets.
const (
	// PKIInternal: init-hook issues them, with its own CA.
	PKIInternal PKIMode = "internal"
	// PKIExistingSecret: they are copied from the user's Secrets.
	PKIExistingSecret PKIMode = "existingSecret"
	// PKICertManager: cert-manager issues them, and they are copied from its Secrets.
	PKICertManager PKIMode = "certManager"
)

// PKI configures the source and the lifetimes of certificates.
type PKI struct {
	Mode PKIMode `json:"mode"`
	// LeafLifetime applies to certificates that init-hook or cert-manager issues, including the push
	// certificate if the user provides none; CALifetime to the CA of init-hook.
	LeafLifetime Duration `json:"leafLifetime"`
	CALifetime   Duration `json:"caLifetime"`
	// Existing are the user's Secrets; only in existingSecret mode.
	Existing *ExistingSecrets `json:"existing,omitempty"`
	// Issuer is the user's cert-manager issuer; in certManager mode, and only there.
	Issuer *Issuer `json:"issuer,omitempty"`
	// ClusterDomain is part of the registry's DNS names.
	ClusterDomain string `json:"clusterDomain"`
	// ServeTLS means that proxies serve TLS on the loopback address, with the node certificate, which then
	// needs that address as a SAN.
	ServeTLS bool `json:"serveTLS"`
	// Zarf means that the registry replaces the one of Zarf's init package: Zarf's Secret then holds a client
	// certificate, and the registry's is valid for port-forwards. Only in internal mode.
	Zarf bool `json:"zarf,omitempty"`
	// Cache means that there are caches, which have a certificate too.
	Cache bool `json:"cache,omitempty"`
}

// OwnCA reports whether the release has its own CA, which init-hook creates and stores.
func (p PKI) OwnCA() bool {
	return p.Mode == PKIInternal || p.Mode == PKIExistingSecret && p.Existing != nil &&
		(p.Existing.Push == "" || p.Cache)
}

// ExistingSecrets are names of Secrets in the release's namespace, with tls.crt, tls.key and ca.crt.
type ExistingSecrets struct {
	Server string `json:"server"`
	Node   string `json:"node"`
	// Push may be empty: then init-hook issues that certificate, with its own CA.
	Push string `json:"push,omitempty"`
	// Cache is set among the Secrets that cert-manager issues only: users provide none.
	Cache string `json:"-"`
	// Authority is an optional Secret with ca.crt, for Secrets without that key.
	CA string `json:"ca,omitempty"`
}

// Issuer refers to a cert-manager issuer.
type Issuer struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Group string `json:"group"`
}

// Validate returns the first problem of p.
func (p PKI) Validate() error {
	if !slices.Contains([]PKIMode{PKIInternal, PKIExistingSecret, PKICertManager}, p.Mode) {
		return fmt.Errorf("unknown mode %q: want internal, existingSecret or certManager", p.Mode)
	}
	switch {
	case p.LeafLifetime <= 0: // the chart has a minimum that leaves time for renewals
		return fmt.Errorf("certificate lifetime %s must be positive", p.LeafLifetime)
	case p.CALifetime < 2*p.LeafLifetime:
		return fmt.Errorf("CA lifetime %s is too short for a certificate lifetime of %s: want at least twice as much, "+
			"because a certificate never outlives its CA", p.CALifetime, p.LeafLifetime)
	case (p.Existing != nil) != (p.Mode == PKIExistingSecret):
		return errors.New("existing Secrets must be set in mode existingSecret, and only there")
	case p.Existing != nil && (p.Existing.Server == "" || p.Existing.Node == ""):
		return errors.New("mode existingSecret needs the names of the server and node Secrets")
	case (p.Issuer != nil) != (p.Mode == PKICertManager):
		return errors.New("an issuer must be set in mode certManager, and only there")
	case p.Issuer != nil && (p.Issuer.Name == "" || p.Issuer.Kind == "" || p.Issuer.Group == ""):
		return errors.New("an issuer needs a name, a kind and a group")
	case p.Zarf && p.Mode != PKIInternal:
		return errors.New("the client certificate of Zarf is issued in mode internal only")
	case p.ClusterDomain == "":
		return errors.New("cluster domain is empty")
	}
	return nil
}

// RotationPhase is the phase of a CA rotation.
type RotationPhase string

// The phases of a rotation, in order. Proxies can reach the registry in each of them.
const (
	// RotationTrust: every ca.crt contains the previous and the new CA. No certificate of the new CA is used
	// until all pods have loaded it.
	RotationTrust RotationPhase = "trust"
	// RotationReissue: the new CA has issued the certificates. The previous CA stays trusted until all pods
	// have loaded them.
	RotationReissue RotationPhase = "reissue"
	// RotationDrop: every ca.crt contains only the new CA.
	RotationDrop RotationPhase = "drop"
)

// Rotation is a CA rotation in progress.
type Rotation struct {
	Phase RotationPhase `json:"phase"`
	// Reason is why the rotation began, Since when.
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	// Waiting is what the rotation was last seen to wait for.
	Waiting string `json:"waiting,omitempty"`
}

// Duration is a time.Duration whose JSON is a string such as "8760h0m0s".
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
