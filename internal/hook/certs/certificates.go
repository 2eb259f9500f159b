package certs

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook/userobject"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Keys of the certificate Secrets, as in every kubernetes.io/tls Secret.
const (
	keyCertificate = corev1.TLSCertKey
	keyPrivateKey  = corev1.TLSPrivateKeyKey
)

// secretLeaf is a certificate of the release, with the suffix of the name of its Secret. That of the client
// has none: its Secret is Zarf's.
type secretLeaf struct {
	suffix string
	leaf   pki.Leaf
}

// role returns what the certificate authorizes its holder for.
func (l secretLeaf) role() string { return l.leaf.Organization }

// leaves returns the certificates of a release, as its own CA issues them.
func (m *Manager) leaves(p state.PKI) []secretLeaf {
	serverName, lifetime := m.ServerName(), time.Duration(p.LeafLifetime)
	all := []secretLeaf{
		{names.SuffixServerTLS, pki.Leaf{
			CommonName:   m.Settings.Name,
			Organization: pki.OrganizationServer,
			DNSNames: []string{
				m.Settings.Name,
				m.Settings.Name + "." + m.Settings.Namespace,
				serverName,
				serverName + "." + p.ClusterDomain,
			},
			Usages:   []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			Lifetime: lifetime,
		}},
		{names.SuffixNodeTLS, pki.Leaf{
			CommonName:   m.Settings.Name + "-proxy",
			Organization: pki.OrganizationNode,
			// The proxy serves TLS on the loopback address of its node with the certificate that it presents
			// to the registry.
			DNSNames:    []string{loopbackName},
			IPAddresses: loopback(),
			Usages:      []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
			Lifetime:    lifetime,
		}},
		{names.SuffixPushTLS, pki.Leaf{
			CommonName:   m.Settings.Name + "-push",
			Organization: pki.OrganizationPush,
			Usages:       []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			Lifetime:     lifetime,
		}},
	}
	if p.Cache {
		cacheName := release.CacheName(m.Settings.Name, m.Settings.Namespace)
		all = append(all, secretLeaf{names.SuffixCacheTLS, pki.Leaf{
			CommonName:   m.Settings.Name + names.SuffixCache,
			Organization: pki.OrganizationCache,
			DNSNames: []string{
				m.Settings.Name + names.SuffixCache,
				m.Settings.Name + names.SuffixCache + "." + m.Settings.Namespace,
				cacheName,
				cacheName + "." + p.ClusterDomain,
			},
			// The proxies are its clients, and it is a client of the registry.
			Usages:   []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			Lifetime: lifetime,
		}})
	}
	if p.Zarf {
		// Zarf verifies the address to which it forwards a port of the registry.
		server := &all[0].leaf
		server.DNSNames, server.IPAddresses = append(server.DNSNames, loopbackName), loopback()
		all = append(all, secretLeaf{leaf: pki.Leaf{
			CommonName:   m.Settings.Name + "-client",
			Organization: pki.OrganizationClient,
			Usages:       []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			Lifetime:     lifetime,
		}})
	}
	return all
}

// secretName returns the name of the Secret that holds the certificate.
func (m *Manager) secretName(l secretLeaf) string {
	if l.role() == pki.OrganizationClient {
		return names.ZarfClientTLS
	}
	return m.Settings.Name + l.suffix
}

// leafSecret reads the Secret that holds the certificate, nil if there is none. Zarf creates that of the
// client; all others must be ours.
func (m *Manager) leafSecret(ctx context.Context, l secretLeaf) (*corev1.Secret, error) {
	if l.role() == pki.OrganizationClient {
		return m.ReadSecret(ctx, m.secretName(l))
	}
	return m.Secret(ctx, m.secretName(l))
}

const loopbackName = "localhost"

func loopback() []net.IP { return []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback} }

// Requirement returns what a certificate of a role must satisfy, in the release whose objects have this
// name and namespace.
func Requirement(role, name, namespace string, p state.PKI) pki.Requirement {
	serverName, cacheName := release.ServerName(name, namespace), release.CacheName(name, namespace)
	writers := []string{pki.OrganizationPush, pki.OrganizationClient}
	switch role {
	case pki.OrganizationServer:
		return pki.Requirement{DNSNames: []string{serverName}, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	case pki.OrganizationNode:
		// The private key is on every node, so it must allow no more.
		want := pki.Requirement{Role: role, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			NotRoles: append(writers, pki.OrganizationCache), NotServers: []string{serverName, cacheName}}
		if p.ServeTLS {
			want.Usages = append(want.Usages, x509.ExtKeyUsageServerAuth)
			want.DNSNames, want.IPAddresses = []string{loopbackName}, loopback()
		}
		return want
	case pki.OrganizationCache:
		return pki.Requirement{Role: role, DNSNames: []string{cacheName},
			Usages:   []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			NotRoles: writers, NotServers: []string{serverName}}
	default:
		return pki.Requirement{Role: role, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	}
}

// sourceLeaf is a certificate to copy, and the object that it was read from.
type sourceLeaf struct {
	from  string
	pair  pki.KeyPair
	trust pki.Bundle
}

// SourceSecret returns the name of the Secret of a role, "" if the role has none.
func SourceSecret(from state.ExistingSecrets, role string) string {
	switch role {
	case pki.OrganizationServer:
		return from.Server
	case pki.OrganizationNode:
		return from.Node
	case pki.OrganizationCache:
		return from.Cache
	default:
		return from.Push
	}
}

// sources reads the Secrets that certificates are copied from, and returns all their problems. It
// omits roles without a Secret.
func (m *Manager) sources(
	ctx context.Context, p state.PKI, from state.ExistingSecrets,
) (map[string]sourceLeaf, []userobject.Problem, error) {
	var problems []userobject.Problem
	var fallback []byte // from the Secret that has only ca.crt
	if from.CA != "" {
		secret, found, err := m.sourceSecret(ctx, p, from.CA, names.KeyCA)
		if err != nil {
			return nil, nil, err
		}
		problems = append(problems, found...)
		if secret != nil {
			fallback = secret.Data[names.KeyCA]
			if _, err := pki.ParseBundle(fallback); len(fallback) > 0 && err != nil {
				problems = append(problems, badCA(m.Object("Secret", from.CA), err))
				fallback = nil
			}
		}
	}
	leaves := map[string]sourceLeaf{}
	for _, l := range m.leaves(p) {
		name := SourceSecret(from, l.role())
		if name == "" {
			continue
		}
		leaf, found, err := m.source(ctx, p, l.role(), name, from.CA, fallback)
		if err != nil {
			return nil, nil, err
		}
		problems = append(problems, found...)
		leaves[l.role()] = leaf
	}
	return leaves, problems, nil
}

func (m *Manager) source(
	ctx context.Context, p state.PKI, role, name, caSecret string, fallback []byte,
) (sourceLeaf, []userobject.Problem, error) {
	secret, problems, err := m.sourceSecret(ctx, p, name, keyCertificate, keyPrivateKey)
	if err != nil || secret == nil {
		return sourceLeaf{}, problems, err
	}
	object := m.Object("Secret", name)
	trust := secret.Data[names.KeyCA]
	switch {
	case len(trust) > 0:
	case len(fallback) > 0:
		trust = fallback
	case p.Mode == state.PKICertManager:
		problems = append(problems, userobject.New(object, "has no key "+names.KeyCA+": its issuer does not provide its CA",
			"use an issuer that does, such as a CA issuer, or pki.mode=existingSecret"))
	case caSecret != "":
		// The problems of that Secret are reported separately.
	default:
		problems = append(problems,
			userobject.New(object, "has no key "+names.KeyCA+", and pki.existingSecret.ca names no other",
				"add the PEM of the CA that signed the certificate, or name a Secret that has it"))
	}
	if len(problems) > 0 || len(trust) == 0 {
		return sourceLeaf{}, problems, nil
	}
	bundle, err := pki.ParseBundle(trust)
	if err != nil {
		return sourceLeaf{}, []userobject.Problem{badCA(object, err)}, nil
	}
	want := Requirement(role, m.Settings.Name, m.Settings.Namespace, p)
	if err := pki.Check(keyPair(secret), bundle, want, m.Now()); err != nil {
		for line := range strings.Lines(err.Error()) {
			problems = append(problems,
				userobject.New(object, "holds no certificate for "+purpose(role)+": "+strings.TrimSpace(line), "replace it"))
		}
	}
	return sourceLeaf{object, keyPair(secret), bundle}, problems, nil
}

func badCA(object string, err error) userobject.Problem {
	return userobject.New(object, fmt.Sprintf("has a key %s that cannot be used: %v", names.KeyCA, err),
		"it must contain the PEM of the CA certificates and nothing else")
}

// purpose returns what certificates of a role are for, for messages.
func purpose(role string) string {
	switch role {
	case pki.OrganizationServer:
		return "the registry"
	case pki.OrganizationNode:
		return "the proxies"
	case pki.OrganizationCache:
		return "the caches"
	default:
		return "pushing"
	}
}

// sourceSecret reads a Secret to copy a certificate from, and returns its problems. The Secret is nil
// if it cannot be used at all.
func (m *Manager) sourceSecret(
	ctx context.Context, p state.PKI, name string, keys ...string,
) (*corev1.Secret, []userobject.Problem, error) {
	secret, problems, err := userobject.Secret(ctx, m.Release, name, "create it, or name another",
		p.Mode == state.PKIExistingSecret)
	if err != nil || secret == nil {
		return nil, problems, err
	}
	object := m.Object("Secret", name)
	if secret.Type != corev1.SecretTypeTLS && secret.Type != corev1.SecretTypeOpaque && secret.Type != "" {
		return nil, []userobject.Problem{userobject.New(object,
			fmt.Sprintf("is of type %s, not %s or %s", secret.Type, corev1.SecretTypeTLS, corev1.SecretTypeOpaque),
			"name one that contains a certificate")}, nil
	}
	for _, key := range keys {
		if len(secret.Data[key]) == 0 {
			problems = append(problems, userobject.New(object, "has no key "+key, "add it, in PEM"))
		}
	}
	return secret, problems, nil
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
		data[names.KeyCA] = trust
	}
	return data
}
