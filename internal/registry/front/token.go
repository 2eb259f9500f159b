package front

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/registry/request"
)

// Docker needs tokens (https://distribution.github.io/distribution/spec/auth/token/) where reading is open to
// everyone: after a Basic challenge it fails if it has no credential. Every other client gets that challenge,
// which needs no URL of the registry: behind a proxy, the registry may not know its own.

const (
	// anonymousToken stands for no credential.
	anonymousToken = "anonymous"
	// tokenLifetime is how long docker uses a token. A token without an expiry has one minute.
	tokenLifetime = 5 * time.Minute
	// tokenLeeway is how much longer a token is accepted, because requests take time, and replicas' clocks differ.
	tokenLeeway = time.Minute
)

// challenge returns the WWW-Authenticate header of a response to an unauthorized request. The docker daemon
// and its command line use only the challenge at /v2/. With its containerd image store, the daemon does not
// request /v2/, and handles a Basic challenge like other clients.
func (f *Front) challenge(r *http.Request, to request.Target) string {
	agent := r.UserAgent()
	docker := strings.HasPrefix(agent, "docker/") || strings.HasPrefix(agent, "Docker-Client/")
	if !docker || !to.Base || !f.Policy.open() {
		return `Basic realm="zarf-registry"`
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return fmt.Sprintf("Bearer realm=%q,service=%q", scheme+"://"+r.Host+request.TokenPath, "zarf-registry")
}

// serveToken responds with a token for the accepted credential, or with the anonymous one. A token yields no other one.
func (f *Front) serveToken(w http.ResponseWriter, r *http.Request, peer *peer) {
	token := anonymousToken
	if name, password, ok := r.BasicAuth(); ok && peer.account != nil {
		token = f.Tokens.seal(name, password, f.Now().Add(tokenLifetime+tokenLeeway))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	// The client may have disconnected.
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "expires_in": int(tokenLifetime.Seconds())})
}

// Tokens seals credentials into tokens. A token is verified as the credential in it is, so it ends with it.
type Tokens struct{ aead cipher.AEAD }

// NewTokens derives the key from a secret that all replicas share.
func NewTokens(secret string) *Tokens {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte("zarf-registry: key of tokens"))
	block, err := aes.NewCipher(mac.Sum(nil))
	if err != nil {
		panic(err) // of the key's length
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // of the block's length
	}
	return &Tokens{aead}
}

// expirySize is the length of a token's expiry, in seconds since 1970.
const expirySize = 8

// seal returns a token for a credential. The name of a Basic credential has no colon.
func (t *Tokens) seal(name, password string, expiry time.Time) string {
	plain := binary.BigEndian.AppendUint64(nil, uint64(expiry.Unix()))
	plain = append(plain, name+":"+password...)
	return base64.RawURLEncoding.EncodeToString(t.aead.Seal(nil, nil, plain, nil))
}

// open returns the credential in a token that has not expired.
func (t *Tokens) open(token string, now time.Time) (name, password string, ok bool) {
	sealed, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", "", false
	}
	plain, err := t.aead.Open(nil, nil, sealed, nil)
	if err != nil || len(plain) < expirySize || uint64(now.Unix()) >= binary.BigEndian.Uint64(plain) {
		return "", "", false
	}
	return strings.Cut(string(plain[expirySize:]), ":")
}
