package release

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// PushAccess holds what a client inside the cluster needs to push to the registry.
type PushAccess struct {
	// ServerName is the DNS name of the registry's Service, verified against the registry's certificate.
	ServerName string
	// Authority is the CA bundle. All three are PEM-encoded.
	Authority, Certificate, Key []byte
	Username, Password          string
}

// NewPushAccess returns the access in the Secrets of the push certificate and the push credential.
func NewPushAccess(name, namespace string, certificate, credentials *corev1.Secret) PushAccess {
	return PushAccess{
		ServerName:  ServerName(name, namespace),
		Authority:   certificate.Data[names.KeyCA],
		Certificate: certificate.Data[corev1.TLSCertKey],
		Key:         certificate.Data[corev1.TLSPrivateKeyKey],
		Username:    string(credentials.Data[names.KeyUsername]),
		Password:    string(credentials.Data[names.KeyPassword]),
	}
}
