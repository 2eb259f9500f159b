package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// lifetime of certificates, apart from the CA's: longer than a test cluster is used.
const lifetime = 30 * 24 * time.Hour

// Files of the control plane's certificates and keys, in configDir.
const (
	caCertFile        = "ca.crt"
	caKeyFile         = "ca.key"
	apiServerCertFile = "kube-apiserver.crt"
	apiServerKeyFile  = "kube-apiserver.key"
	kubeletClientCert = "kube-apiserver-kubelet-client.crt"
	kubeletClientKey  = "kube-apiserver-kubelet-client.key"
	serviceAccountKey = "service-account.key"
)

// clusterCA is the CA of a cluster. It signs the API server's certificate and those of all clients.
type clusterCA struct {
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
	certPEM []byte
}

func newCA(now time.Time) (*clusterCA, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	certificate, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "testcluster-ca",
		NotBefore: now.Add(-time.Hour)}, key)
	if err != nil {
		return nil, fmt.Errorf("making the cluster's CA: %w", err)
	}
	return &clusterCA{certificate, key, encodeCertificate(certificate.Raw)}, nil
}

// loadCA reads the CA back, for nodes that are added later.
func (c *Cluster) loadCA() (*clusterCA, error) {
	certificates, err := cert.CertsFromFile(c.path(configDir, caCertFile))
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's CA: %w", err)
	}
	key, err := keyutil.PrivateKeyFromFile(c.path(configDir, caKeyFile))
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's CA: %w", err)
	}
	return &clusterCA{certificates[0], key.(*ecdsa.PrivateKey), encodeCertificate(certificates[0].Raw)}, nil
}

// issue issues a server certificate if there are names, otherwise a client certificate.
func (a *clusterCA) issue(now time.Time, subject pkix.Name, addresses []net.IP, names ...string) (certPEM,
	keyPEM []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	usage := x509.ExtKeyUsageClientAuth
	if len(names) > 0 {
		usage = x509.ExtKeyUsageServerAuth
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     a.cert.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{usage},
		IPAddresses:  addresses,
		DNSNames:     names,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("issuing the certificate of %s: %w", subject, err)
	}
	keyPEM, err = encodeKey(key)
	return encodeCertificate(der), keyPEM, err
}

// writePKI creates the CA and the certificates of the control plane's processes.
func (c *Cluster) writePKI(now time.Time) (*clusterCA, error) {
	ca, err := newCA(now)
	if err != nil {
		return nil, err
	}
	caKey, err := encodeKey(ca.key)
	if err != nil {
		return nil, err
	}
	addresses := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	for _, a := range append(c.Options.Family.ControlPlane(), c.Options.Family.APIService()...) {
		addresses = append(addresses, a.AsSlice())
	}
	serverCert, serverKey, err := ca.issue(now, pkix.Name{CommonName: apiServer}, addresses,
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc."+clusterDomain)
	if err != nil {
		return nil, err
	}
	clientCert, clientKey, err := ca.issue(now, pkix.Name{CommonName: "kube-apiserver-kubelet-client",
		Organization: []string{adminGroup}}, nil)
	if err != nil {
		return nil, err
	}
	accountKey, err := newKey()
	if err != nil {
		return nil, err
	}
	accountPEM, err := encodeKey(accountKey)
	if err != nil {
		return nil, err
	}
	return ca, c.writeFiles(configDir, map[string][]byte{
		caCertFile: ca.certPEM, caKeyFile: caKey,
		apiServerCertFile: serverCert, apiServerKeyFile: serverKey,
		kubeletClientCert: clientCert, kubeletClientKey: clientKey,
		serviceAccountKey: accountPEM,
	})
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return key, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	content, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return content, nil
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
