package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	_ "crypto/sha512" // for ECDSA with curves larger than P-256, and for Ed25519ph
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	// maxKeys bounds the work for a signature: each key is tried.
	maxKeys = 32
	// minRSA is the shortest RSA key, in bits, that NIST SP 800-131A accepts.
	minRSA = 2048
)

// Key is a public key.
type Key struct {
	// Name is that of the file. A second key of the same file has the suffix "#2".
	Name string
	// Fingerprint is the SHA-256 of the key's DER encoding (SubjectPublicKeyInfo), in lower-case hexadecimal.
	Fingerprint string

	public crypto.PublicKey
}

// shownFingerprint is how many digits of a fingerprint messages contain.
const shownFingerprint = 16

// String returns the name and the beginning of the fingerprint.
func (k Key) String() string {
	return k.Name + " (SHA-256 " + k.Fingerprint[:shownFingerprint] + "…)"
}

// ParseKeys parses files of PEM-encoded public keys (ECDSA, RSA or Ed25519), by name. Each file must contain
// keys and nothing else: a private key is an error, so that nobody mounts one by mistake. The result is
// ordered by name.
func ParseKeys(files map[string][]byte) ([]Key, error) {
	var keys []Key
	for _, name := range slices.Sorted(maps.Keys(files)) {
		found, err := parseFile(name, files[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		keys = append(keys, found...)
	}
	switch {
	case len(keys) == 0:
		return nil, errors.New("no public key: add the public key of cosign generate-key-pair")
	case len(keys) > maxKeys:
		return nil, fmt.Errorf("%d public keys: want at most %d", len(keys), maxKeys)
	}
	return keys, nil
}

func parseFile(name string, data []byte) (keys []Key, err error) {
	for len(strings.TrimSpace(string(data))) > 0 {
		block, rest := pem.Decode(data)
		if block == nil {
			return nil, errors.New("not PEM: want -----BEGIN PUBLIC KEY-----")
		}
		public, err := parsePublic(block)
		if err != nil {
			return nil, err
		}
		key := Key{Name: name, public: public}
		if key.Fingerprint, err = fingerprint(public); err != nil {
			return nil, err
		}
		if len(keys) > 0 {
			key.Name = fmt.Sprintf("%s#%d", name, len(keys)+1)
		}
		keys, data = append(keys, key), rest
	}
	if len(keys) == 0 {
		return nil, errors.New("empty: want -----BEGIN PUBLIC KEY-----")
	}
	return keys, nil
}

func parsePublic(block *pem.Block) (public crypto.PublicKey, err error) {
	switch {
	case block.Type == "PUBLIC KEY":
		public, err = x509.ParsePKIXPublicKey(block.Bytes)
	case block.Type == "RSA PUBLIC KEY":
		public, err = x509.ParsePKCS1PublicKey(block.Bytes)
	case strings.HasSuffix(block.Type, "PRIVATE KEY"):
		return nil, fmt.Errorf("a private key (%s): remove it, only public keys belong here", block.Type)
	default:
		return nil, fmt.Errorf("PEM of type %q: want PUBLIC KEY", block.Type)
	}
	if err != nil {
		return nil, err
	}
	switch key := public.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return public, nil
	case *rsa.PublicKey:
		if key.N.BitLen() < minRSA {
			return nil, fmt.Errorf("an RSA key of %d bits: want at least %d", key.N.BitLen(), minRSA)
		}
		return public, nil
	}
	return nil, fmt.Errorf("unsupported key type %T: want ECDSA, RSA or Ed25519", public)
}

func fingerprint(public crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

// verify reports whether sig is the key's signature of a message, in one of the schemes that cosign uses: RSA with
// PKCS #1 v1.5 and SHA-256; ECDSA with SHA-256, or with the hash that fits the curve (since cosign 3); Ed25519
// and Ed25519ph (since cosign 2.5).
func (k Key) verify(message, sig []byte) bool {
	switch public := k.public.(type) {
	case *ecdsa.PublicKey:
		hashes := []crypto.Hash{crypto.SHA256}
		switch size := public.Curve.Params().BitSize; {
		case size > 384:
			hashes = append(hashes, crypto.SHA512)
		case size > 256:
			hashes = append(hashes, crypto.SHA384)
		}
		return slices.ContainsFunc(hashes, func(hash crypto.Hash) bool {
			return ecdsa.VerifyASN1(public, sum(hash, message), sig)
		})
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(public, crypto.SHA256, sum(crypto.SHA256, message), sig) == nil
	case ed25519.PublicKey:
		return ed25519.Verify(public, message, sig) ||
			ed25519.VerifyWithOptions(public, sum(crypto.SHA512, message), sig, &ed25519.Options{Hash: crypto.SHA512}) == nil
	}
	return false
}

func sum(hash crypto.Hash, message []byte) []byte {
	h := hash.New()
	h.Write(message)
	return h.Sum(nil)
}
