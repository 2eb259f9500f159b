// Package tlsfilestest creates throw-away CAs, certificates and certificate directories for tests.
// It is not for production code: it lacks the options that a real certificate needs.
package tlsfilestest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
)

// CA signs certificates.
type CA struct {
	Certificate *x509.Certificate
	PEM         []byte
	key         *ecdsa.PrivateKey
}

// NewCA creates a CA with the given common name. Two CAs of the same name have different keys.
func NewCA(t testing.TB, name string) *CA {
	t.Helper()
	key := newKey(t)
	template := caTemplate(name)
	certificate, certificatePEM := sign(t, template, template, key, key)
	return &CA{Certificate: certificate, PEM: certificatePEM, key: key}
}

// Intermediate creates a CA with the given common name that is signed by ca.
func (ca *CA) Intermediate(t testing.TB, name string) *CA {
	t.Helper()
	key := newKey(t)
	certificate, certificatePEM := sign(t, caTemplate(name), ca.Certificate, key, ca.key)
	return &CA{Certificate: certificate, PEM: certificatePEM, key: key}
}

func caTemplate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
}

// Issue issues a client and server certificate of the given organization and names, which are DNS
// names or IP addresses. It returns the certificate and its key in PEM form.
func (ca *CA) Issue(t testing.TB, organization string, names ...string) (certificatePEM, keyPEM []byte) {
	t.Helper()
	return ca.IssueWith(t, nil, organization, names...)
}

// IssueWith is Issue with a hook: change, if not nil, modifies the certificate before it is signed.
func (ca *CA) IssueWith(
	t testing.TB, change func(*x509.Certificate), organization string, names ...string,
) (certificatePEM, keyPEM []byte) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: organization, Organization: []string{organization}},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(12 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	if change != nil {
		change(template)
	}
	key := newKey(t)
	_, certificatePEM = sign(t, template, ca.Certificate, key, ca.key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return certificatePEM, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Files are the contents of a certificate directory by file name.
type Files map[string][]byte

// Files issues a certificate like Issue and returns the directory's files, which trust ca and
// others.
func (ca *CA) Files(t testing.TB, organization string, names []string, others ...*CA) Files {
	t.Helper()
	certificate, key := ca.Issue(t, organization, names...)
	bundle := append([]byte(nil), ca.PEM...)
	for _, other := range others {
		bundle = append(bundle, other.PEM...)
	}
	return Files{"tls.crt": certificate, "tls.key": key, "ca.crt": bundle}
}

var generations atomic.Uint64

// WriteSecret writes files to dir the way the kubelet updates a mounted Secret: it creates a new
// directory, renames the ..data link once and removes the old directory.
func WriteSecret(t testing.TB, dir string, files Files) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "..data")
	old, _ := os.Readlink(link)
	name := "..generation_" + strconv.FormatUint(generations.Add(1), 10)
	must(os.Mkdir(filepath.Join(dir, name), 0o755))
	for file, data := range files {
		must(os.WriteFile(filepath.Join(dir, name, file), data, 0o600))
	}
	must(os.Symlink(name, link+"_tmp"))
	must(os.Rename(link+"_tmp", link))
	for file := range files {
		if _, err := os.Lstat(filepath.Join(dir, file)); err != nil {
			must(os.Symlink(filepath.Join("..data", file), filepath.Join(dir, file)))
		}
	}
	if old != "" {
		must(os.RemoveAll(filepath.Join(dir, old)))
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

var serials atomic.Int64

func serial() *big.Int { return big.NewInt(serials.Add(1)) }

func sign(t testing.TB, template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, []byte) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
