package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

const (
	// maxPEM limits a chain and a key: ten certificates with RSA keys have 25 KiB.
	maxPEM = 64 << 10
	// maxBundle limits a ca.crt. It is larger, so that a union of accepted bundles can be parsed
	// again.
	maxBundle = 256 << 10
	// maxChain limits the length of a chain: verification tries every order, and real chains have at
	// most four certificates.
	maxChain = 10
	// minRSA and maxRSA limit RSA keys, in bits: shorter ones are insecure, and crypto/tls rejects
	// longer ones.
	minRSA, maxRSA = 2048, 8192
)

// ParseChain parses a tls.crt: the leaf, then the intermediates that lead to a CA. It rejects
// anything else in the file, more than 10 certificates, and files over 64 KiB.
func ParseChain(data []byte) ([]*x509.Certificate, error) {
	blocks, err := parsePEM(data, maxPEM)
	if err != nil {
		return nil, fmt.Errorf("parsing the certificate: %w", err)
	}
	switch {
	case len(blocks) == 0:
		return nil, errors.New("the certificate is missing")
	case len(blocks) > maxChain:
		return nil, fmt.Errorf("parsing the certificate: the chain is too long, it has %d certificates and the limit is %d",
			len(blocks), maxChain)
	}
	certs, err := parseCertificates(blocks)
	if err != nil {
		return nil, fmt.Errorf("parsing the certificate: %w", err)
	}
	return certs, nil
}

// parse parses a pair of one certificate and its key.
func (p KeyPair) parse() (*x509.Certificate, crypto.Signer, error) {
	cert, err := ParseCertificate(p.Certificate)
	if err != nil {
		return nil, nil, err
	}
	key, err := parseKey(p.Key)
	if err != nil {
		return nil, nil, err
	}
	if !belongs(key, cert) {
		return nil, nil, errors.New("the private key does not belong to the certificate")
	}
	return cert, key, nil
}

func (p KeyPair) empty() bool { return len(p.Certificate) == 0 && len(p.Key) == 0 }

func belongs(key crypto.Signer, cert *x509.Certificate) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(cert.PublicKey)
}

// parseKey parses a private key of PKCS #8, PKCS #1 or SEC 1. It does not pass on the parsers'
// errors, so that nothing from a key leaves this function.
func parseKey(data PrivateKey) (crypto.Signer, error) {
	blocks, err := parsePEM(data, maxPEM)
	if err != nil {
		return nil, fmt.Errorf("parsing the private key: %w", err)
	}
	if len(blocks) > 1 && blocks[0].Type == "EC PARAMETERS" {
		blocks = blocks[1:] // openssl ecparam writes them first; the key repeats them
	}
	switch {
	case len(blocks) == 0:
		return nil, errors.New("the private key is missing")
	case len(blocks) > 1:
		return nil, fmt.Errorf("parsing the private key: there are %d PEM blocks where one is expected", len(blocks))
	case blocks[0].Type == "ENCRYPTED PRIVATE KEY" || blocks[0].Headers["DEK-Info"] != "":
		return nil, errors.New("parsing the private key: it is encrypted: store it without a password")
	}
	var key any
	switch blocks[0].Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(blocks[0].Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(blocks[0].Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(blocks[0].Bytes)
	default:
		return nil, fmt.Errorf("parsing the private key: found %s where a private key is expected", blockName(blocks[0]))
	}
	if err != nil {
		return nil, fmt.Errorf("parsing the private key: the content of %s is damaged or of an unknown kind",
			blockName(blocks[0]))
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("parsing the private key: it is of a kind that cannot sign")
	}
	if problem := weakness(signer.Public()); problem != "" {
		return nil, fmt.Errorf("parsing the private key: %s", problem)
	}
	return signer, nil
}

// weakness returns the reason why TLS or this package rejects a key, "" if it does not.
func weakness(public crypto.PublicKey) string {
	switch key := public.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSA || bits > maxRSA {
			return fmt.Sprintf("it is an RSA key of %d bits, use %d to %d", bits, minRSA, maxRSA)
		}
		return ""
	case *ecdsa.PublicKey:
		if !slices.Contains([]elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()}, key.Curve) {
			return fmt.Sprintf("it is an ECDSA key on curve %s, use P-256, P-384 or P-521", key.Curve.Params().Name)
		}
		return ""
	case ed25519.PublicKey:
		return ""
	}
	return "it is of an unknown kind, use ECDSA, Ed25519 or RSA"
}

func parseCertificates(blocks []*pem.Block) ([]*x509.Certificate, error) {
	certs := make([]*x509.Certificate, len(blocks))
	for i, block := range blocks {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("found %s where a certificate is expected", blockName(block))
		}
		if len(block.Headers) != 0 {
			// crypto/x509 silently skips such blocks
			return nil, fmt.Errorf("PEM block %d has headers, which certificates must not have", i+1)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("PEM block %d: %w", i+1, err)
		}
		certs[i] = cert
	}
	return certs, nil
}

// parsePEM parses a file that contains only PEM blocks. pem.Decode would skip invalid parts, which
// would change the file's meaning. Errors never quote the file, which may be a key.
func parsePEM(data []byte, limit int) ([]*pem.Block, error) {
	if len(data) > limit {
		return nil, fmt.Errorf("%d bytes are too many, the limit is %d", len(data), limit)
	}
	begin := []byte("-----BEGIN ")
	var blocks []*pem.Block
	for rest := bytes.TrimSpace(data); len(rest) != 0; {
		switch {
		case bytes.HasPrefix(rest, begin):
		case len(blocks) == 0 && !bytes.Contains(rest, begin):
			return nil, errors.New("no PEM block found")
		case len(blocks) == 0:
			return nil, errors.New("there is something before the first PEM block: only PEM blocks may be in the file")
		default:
			return nil, fmt.Errorf("there is something after PEM block %d: only PEM blocks may be in the file", len(blocks))
		}
		block, after := pem.Decode(rest)
		if block == nil || bytes.Count(rest[:len(rest)-len(after)], begin) != 1 {
			return nil, fmt.Errorf("PEM block %d is damaged", len(blocks)+1)
		}
		blocks = append(blocks, block)
		rest = bytes.TrimSpace(after)
	}
	return blocks, nil
}

// blockName is the name of a block in errors. A type can contain anything, so only known ones are
// repeated.
func blockName(block *pem.Block) string {
	known := []string{
		"CERTIFICATE", "CERTIFICATE REQUEST", "TRUSTED CERTIFICATE", "X509 CRL", "PKCS7", "PUBLIC KEY", "EC PARAMETERS",
		"DH PARAMETERS",
		"PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "DSA PRIVATE KEY", "OPENSSH PRIVATE KEY",
	}
	if slices.Contains(known, block.Type) {
		return fmt.Sprintf("a PEM block %q", block.Type)
	}
	return "a PEM block of an unknown type"
}

// ParseCertificate parses a PEM file with exactly one certificate of at most 64 KiB.
func ParseCertificate(data []byte) (*x509.Certificate, error) {
	chain, err := ParseChain(data)
	if err != nil {
		return nil, err
	}
	if len(chain) != 1 {
		return nil, fmt.Errorf("there are %d certificates where one is expected", len(chain))
	}
	return chain[0], nil
}

// Fingerprint returns the certificate's SHA-256 in hexadecimal.
func Fingerprint(cert *x509.Certificate) string {
	return fmt.Sprintf("%x", sha256.Sum256(cert.Raw))
}
