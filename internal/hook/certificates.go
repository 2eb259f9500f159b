package hook

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"strings"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// Keys of the certificate Secrets, as in every kubernetes.io/tls Secret.
const (
	keyCertificate = corev1.TLSCertKey
	keyPrivateKey  = corev1.TLSPrivateKeyKey
	keyAuthority   = "ca.crt"
)

// Keys of the credentials Secret and of the pull Secret.
const (
	keyUsername = "username"
	keyPassword = "password"
	keyHtpasswd = "htpasswd"
)

// pushUser is the name of the only user that may write.
const pushUser = "zarf-push"

func (p *preparation) certificates(ctx context.Context) (string, error) {
	now := p.Now()
	var did []string
	note := func(secret, reason string) {
		if reason != "" {
			p.Log.Info("certificate issued", "secret", secret, "reason", reason)
			did = append(did, secret)
		}
	}

	name := p.Options.Name + SuffixAuthority
	secret, err := p.secret(ctx, name)
	if err != nil {
		return "", err
	}
	pair := keyPair(secret)
	authority, err := pki.ParseAuthority(pair)
	reason := ""
	switch {
	case len(pair.Certificate) == 0 && len(pair.Key) == 0:
		reason = "there is none yet"
	case err != nil:
		reason = err.Error()
	case !now.Before(authority.Certificate().NotAfter):
		reason = "it expired at " + authority.Certificate().NotAfter.String()
	}
	if reason != "" {
		if authority, err = pki.NewAuthority(p.Options.Name+" certificate authority", now, 0); err != nil {
			return "", err
		}
		if err := p.writeSecret(ctx, secret, name, componentCertificates, corev1.SecretTypeTLS, secretData(authority.KeyPair(), nil)); err != nil {
			return "", err
		}
	}
	note(name, reason)

	for _, l := range p.leaves(state.PKI{ClusterDomain: p.Options.ClusterDomain}) {
		name := p.Options.Name + l.suffix
		secret, err := p.secret(ctx, name)
		if err != nil {
			return "", err
		}
		trust := authority.KeyPair().Certificate
		reason := pki.LeafRenewal(keyPair(secret), l.leaf, authority, now)
		if reason == "" && !bytes.Equal(secret.Data[keyAuthority], trust) {
			reason = "its ca.crt is not the present authority's"
		}
		if reason == "" {
			continue
		}
		pair, err := authority.Issue(l.leaf, now)
		if err != nil {
			return "", err
		}
		if err := p.writeSecret(ctx, secret, name, componentCertificates, corev1.SecretTypeTLS, secretData(pair, trust)); err != nil {
			return "", err
		}
		note(name, reason)
	}
	if len(did) == 0 {
		return "all are valid, nothing issued", nil
	}
	return "issued " + strings.Join(did, ", "), nil
}

// secretLeaf is a certificate to hold, with the suffix of its Secret's name.
type secretLeaf struct {
	suffix string
	leaf   pki.Leaf
}

func (h *Hook) leaves(p state.PKI) []secretLeaf {
	serverName := serverName(h.Options.Name, h.Options.Namespace)
	return []secretLeaf{
		{SuffixServerTLS, pki.Leaf{
			CommonName:   h.Options.Name,
			Organization: pki.OrganizationServer,
			DNSNames: []string{
				h.Options.Name,
				h.Options.Name + "." + h.Options.Namespace,
				serverName,
				serverName + "." + p.ClusterDomain,
			},
			Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}},
		{SuffixNodeTLS, pki.Leaf{
			CommonName:   h.Options.Name + "-proxy",
			Organization: pki.OrganizationNode,
			// The proxy serves TLS on its node's loopback address with the
			// certificate that it shows the registry.
			DNSNames:    []string{"localhost"},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
			Usages:      []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		}},
		{SuffixPushTLS, pki.Leaf{
			CommonName:   h.Options.Name + "-push",
			Organization: pki.OrganizationPush,
			Usages:       []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}},
	}
}

func (p *preparation) credentials(ctx context.Context) (string, error) {
	name := p.Options.Name + SuffixCredentials
	secret, err := p.secret(ctx, name)
	if err != nil {
		return "", err
	}
	reason, data := "", map[string][]byte{}
	if secret != nil {
		data = secret.DeepCopy().Data
	}
	switch {
	case len(data[keyUsername]) == 0 || len(data[keyPassword]) == 0:
		reason = "there is none yet"
		password, err := newPassword()
		if err != nil {
			return "", err
		}
		data = map[string][]byte{keyUsername: []byte(pushUser), keyPassword: password}
	case !htpasswdMatches(data[keyHtpasswd], data[keyUsername], data[keyPassword]):
		reason = "its htpasswd does not match its password"
	default:
		return "it is valid, nothing made", nil
	}
	if data[keyHtpasswd], err = newHtpasswd(data[keyUsername], data[keyPassword]); err != nil {
		return "", fmt.Errorf("hashing the password of %s: %w", p.object("Secret", name), err)
	}
	if err := p.writeSecret(ctx, secret, name, componentCredentials, corev1.SecretTypeOpaque, data); err != nil {
		return "", err
	}
	return fmt.Sprintf("wrote %s: %s", name, reason), nil
}

func newPassword() ([]byte, error) {
	random := make([]byte, 32) // 256 bits: beyond guessing
	if _, err := rand.Read(random); err != nil {
		return nil, fmt.Errorf("drawing a password: %w", err)
	}
	return []byte(base64.RawURLEncoding.EncodeToString(random)), nil
}

// newHtpasswd hashes a password that newPassword drew. A slow hash protects
// passwords that can be guessed; those have 256 random bits. And a registry that is
// short of CPU would take seconds for one.
func newHtpasswd(username, password []byte) ([]byte, error) {
	hash, err := bcrypt.GenerateFromPassword(password, bcrypt.MinCost)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%s:%s\n", username, hash), nil
}

func htpasswdMatches(htpasswd, username, password []byte) bool {
	user, hash, ok := bytes.Cut(bytes.TrimSpace(htpasswd), []byte(":"))
	return ok && bytes.Equal(user, username) && bcrypt.CompareHashAndPassword(hash, password) == nil
}

func keyPair(secret *corev1.Secret) pki.KeyPair {
	if secret == nil {
		return pki.KeyPair{}
	}
	return pki.KeyPair{Certificate: secret.Data[keyCertificate], Key: secret.Data[keyPrivateKey]}
}

func secretData(pair pki.KeyPair, trust []byte) map[string][]byte {
	data := map[string][]byte{keyCertificate: pair.Certificate, keyPrivateKey: pair.Key}
	if trust != nil {
		data[keyAuthority] = trust
	}
	return data
}
