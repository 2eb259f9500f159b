package hook

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/certs"
	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/state"
	"github.com/zarf-dev/zarf-registry/internal/verify"
)

// Registry is the part of a registry that the steps use.
type Registry interface {
	certs.Registry
	verify.Images
	// PushProgramImages pushes the project's own images below zarf-registry/ and returns them as
	// "<repository>:<tag>". It skips blobs that the registry already has.
	PushProgramImages(ctx context.Context, access Access) ([]string, error)
	// HookImage returns init-hook's own image as PushProgramImages pushes it. It is nil if this
	// process does not run on Linux, because then the image is not pushed.
	HookImage() *state.HookImage
}

// Access holds what a client inside the cluster needs to push to the registry.
type Access struct {
	// ServerName is the DNS name of the registry's Service, verified against the registry's certificate.
	ServerName string
	// Authority is the CA bundle. All three are PEM-encoded.
	Authority, Certificate, Key []byte
	Username, Password          string
}

// NewAccess returns the Access in the Secrets of the push certificate and the push credential.
func NewAccess(name, namespace string, certificate, credentials *corev1.Secret) Access {
	return Access{
		ServerName:  release.ServerName(name, namespace),
		Authority:   certificate.Data[names.KeyCA],
		Certificate: certificate.Data[corev1.TLSCertKey],
		Key:         certificate.Data[corev1.TLSPrivateKeyKey],
		Username:    string(credentials.Data[certs.KeyUsername]),
		Password:    string(credentials.Data[certs.KeyPassword]),
	}
}

func (f *finishing) push(ctx context.Context) (string, error) {
	access, err := f.access(ctx)
	if err != nil {
		return "", err
	}
	images, err := f.registry.PushProgramImages(ctx, access)
	if err != nil {
		return "", err
	}
	if own := f.registry.HookImage(); own != nil {
		err := f.UpdateState(ctx, func(s *state.State) bool {
			same := s.HookImage != nil && *s.HookImage == *own
			s.HookImage = own
			return !same
		})
		if err != nil {
			return "", err
		}
	}
	return "the registry has " + strings.Join(images, ", "), nil
}

func (f *finishing) access(ctx context.Context) (Access, error) {
	read := func(suffix, made string) (*corev1.Secret, error) {
		s, err := f.Secret(ctx, f.Settings.Name+suffix)
		if err == nil && s == nil {
			err = fmt.Errorf("%s is missing: run %s again, by helm upgrade or init-hook prepare",
				f.Object("Secret", f.Settings.Name+suffix), made)
		}
		return s, err
	}
	certificate, certificateErr := read(names.SuffixPushTLS, "prepare")
	credentials, credentialsErr := read(names.SuffixCredentials, "prepare")
	if err := errors.Join(certificateErr, credentialsErr); err != nil {
		return Access{}, err
	}
	return NewAccess(f.Settings.Name, f.Settings.Namespace, certificate, credentials), nil
}
