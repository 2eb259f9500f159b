// Package reloadstatus is what a running program has loaded of its mounted Secrets, as it
// tells at /loaded beside its metrics: the registry and the proxies write it,
// init-hook reads it to see that all of them follow before it drops what one of
// them still needs.
//
// It holds types, their JSON and how it is answered. Everything in it is public:
// certificates are named by subject, serial and digest, and no key or password is in it.
package reloadstatus

import (
	"encoding/json"
	"net/http"
	"time"
)

// Path is where the report is served.
const Path = "/loaded"

// Report is the content of Path.
type Report struct {
	Certificates Certificates `json:"certificates"`
	// Credentials are of the registry only.
	Credentials *Credentials `json:"credentials,omitempty"`
	// Collection is of the registry only.
	Collection *Collection `json:"collection,omitempty"`
}

// Collection is how garbage collection stands, as far as the pod has seen.
type Collection struct {
	// ReadOnly says that no image can be pushed: garbage is being collected.
	ReadOnly bool `json:"readOnly"`
	// SucceededAt is when a collection last did; nil where none ever did.
	SucceededAt *time.Time `json:"succeededAt,omitempty"`
	// Problem is why the last one failed, empty where it did not.
	Problem string `json:"problem,omitempty"`
}

// Handler answers with what report returns at each request. Which methods reach it is
// the caller's decision.
func Handler(report func() Report) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(report()) // who asked may have gone
	})
}

// Certificates is the generation of tls.crt, tls.key and ca.crt that is in use.
type Certificates struct {
	// Generation counts the loads that changed something, from 1.
	Generation uint64 `json:"generation"`
	// LoadedAt is when this generation came into use.
	LoadedAt time.Time `json:"loadedAt"`
	// Leaf is the first certificate of tls.crt.
	Leaf Certificate `json:"leaf"`
	// Authorities are those of ca.crt, in its order.
	Authorities []Certificate `json:"authorities"`
	// ReloadErrors counts the loads that failed; Problem is why the last one did,
	// empty after one that did not.
	ReloadErrors uint64 `json:"reloadErrors"`
	Problem      string `json:"problem,omitempty"`
}

// Certificate names one certificate.
type Certificate struct {
	Subject string `json:"subject"`
	// Serial is in lower-case hexadecimal, as openssl has it but for the case.
	Serial string `json:"serial"`
	// SHA256 is of the DER form, in lower-case hexadecimal: pki.Fingerprint.
	SHA256    string    `json:"sha256"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

// Credentials are the SHA-256 of the htpasswd files in use, in lower-case
// hexadecimal, empty where there is none.
type Credentials struct {
	Push string `json:"push"`
	Pull string `json:"pull"`
}
