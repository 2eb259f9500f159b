// Package loaded defines which certificates and credentials a running program has loaded from its mounted Secrets, and
// which program it is. The registry, the proxies and the caches serve that at /loaded, next to their metrics. init-hook
// reads it during a rotation, and removes the old CA only when all pods have loaded the new one. It reads it too after
// it has changed the proxies' program.
//
// The package contains the types, their JSON and the HTTP handler; it does not load anything. All of it is public: it
// contains no keys or passwords, and identifies certificates by subject, serial and digest.
package loaded

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
)

// Path is the HTTP path of a State.
const Path = "/loaded"

// State is the response of Path.
type State struct {
	// Program is the SHA-256 of the program of a proxy or a cache, in lower-case hexadecimal. It is empty for
	// others, and for those from an ordinary image.
	Program      string       `json:"program,omitempty"`
	Certificates Certificates `json:"certificates"`
	// Credentials is nil for proxies.
	Credentials *Credentials `json:"credentials,omitempty"`
	// PlainListenerOpen reports whether the registry's plain listener is open. It is nil for proxies, and where the
	// listener follows no file.
	PlainListenerOpen *bool `json:"plainListenerOpen,omitempty"`
	// Storage is the error of the storage, which makes a registry not ready; empty while it responds, and for proxies.
	StorageError string `json:"storageError,omitempty"`
	// Empty means that the storage has none of the project's own images: init-hook has not pushed them yet, or the
	// content of the storage was lost. It is false for proxies, and while the storage fails.
	StorageEmpty bool `json:"storageEmpty,omitempty"`
	// GarbageCollection is nil for proxies.
	GarbageCollection *GarbageCollection `json:"garbageCollection,omitempty"`
	// Scrub is the result of the last complete reading of all content; nil for proxies, and before the first.
	Scrub *Scrub `json:"scrub,omitempty"`
	// Space is how full the volume is. It is nil for proxies, and with S3.
	Space *space.Usage `json:"space,omitempty"`
	// Cache is nil for all but caches.
	Cache *Cache `json:"cache,omitempty"`
}

// Cache is what a cache holds, and how it answered since it was started.
type Cache struct {
	// Size is the limit of the cache's directory, Used what it holds, both in bytes.
	Size int64 `json:"size"`
	Used int64 `json:"used"`
	// Hits counts the requests that the cache answered itself, Misses those that it passed to the registry.
	Hits   uint64 `json:"hits"`
	Misses uint64 `json:"misses"`
	// Stale counts the answers with a tag that could not be revalidated, because the registry did not respond. They
	// count as hits too.
	Stale uint64 `json:"stale"`
}

// GarbageCollection is the status of garbage collection, as last seen by the pod.
type GarbageCollection struct {
	// Running means that garbage is being collected, by any replica.
	Running bool `json:"running"`
	// SucceededAt is the time of the last successful collection; nil if there was none.
	SucceededAt *time.Time `json:"succeededAt,omitempty"`
	// Problem is the error of the last collection; empty if it succeeded.
	Problem string `json:"problem,omitempty"`
}

// MaxScrubImages limits Scrub.Images.
const MaxScrubImages = 20

// Scrub is the result of the last complete reading of all content, by any replica.
type Scrub struct {
	FinishedAt time.Time `json:"finishedAt"`
	// Problems counts what was missing or damaged, and was not pushed again since.
	Problems int `json:"problems"`
	// Images need that content, as REPOSITORY:TAG or REPOSITORY@DIGEST, sorted; at most MaxScrubImages.
	Images []string `json:"images,omitempty"`
}

// Handler responds to every request with the result of state. The caller restricts methods.
func Handler(state func() State) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(state()) // the client may have disconnected
	})
}

// Certificates describes the generation of tls.crt, tls.key and ca.crt in use.
type Certificates struct {
	// Generation counts the loads with changes, starting at 1.
	Generation uint64 `json:"generation"`
	// LoadedAt is when this generation was loaded.
	LoadedAt time.Time `json:"loadedAt"`
	// Leaf is the first certificate of tls.crt.
	Leaf Certificate `json:"leaf"`
	// TrustedCAs are the CAs of ca.crt, in order.
	TrustedCAs []Certificate `json:"trustedCAs"`
	// ReloadErrors counts failed loads. Problem is the error of the last load; empty if it succeeded.
	ReloadErrors uint64 `json:"reloadErrors"`
	Problem      string `json:"problem,omitempty"`
}

// Certificate identifies a certificate.
type Certificate struct {
	Subject string `json:"subject"`
	// Serial is lower-case hexadecimal.
	Serial string `json:"serial"`
	// SHA256 is the digest of the DER encoding, in lower-case hexadecimal: pki.Fingerprint.
	SHA256    string    `json:"sha256"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

// Credentials are the SHA-256 digests of the htpasswd files in use, in lower-case hexadecimal; empty for a
// missing file.
type Credentials struct {
	Push string `json:"push"`
	Pull string `json:"pull"`
}
