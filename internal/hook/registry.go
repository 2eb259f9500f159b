package hook

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/reloadstatus"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// Registry is the registry as the steps use it.
type Registry interface {
	// PushProgramImages pushes the project's own images below zarf-registry/ and
	// returns them as "<repository>:<tag>". What the registry has is not sent.
	PushProgramImages(ctx context.Context, access Access) ([]string, error)
	// HookImage is init-hook's own image as PushProgramImages pushes it; nil where
	// it does not, because this process does not run on Linux.
	HookImage() *state.HookImage
	// ProbeImage is the "<repository>:<tag>" of the tiny image that proves a pull
	// in a mode: the registry serves zarf-registry/probe-proxy to proxies only, and
	// zarf-registry/probe-nodeport at the plain listener only, so that a pull cannot
	// succeed by the other way.
	ProbeImage(mode state.Mode) string
	// PlainOpen says whether the plain listener of a registry pod accepts
	// connections. An error means that nothing could be found out.
	PlainOpen(ctx context.Context, pod *corev1.Pod) (bool, error)
	// Loaded asks a pod of the registry or of a proxy what it has loaded. An error
	// means that it could not be asked.
	Loaded(ctx context.Context, pod *corev1.Pod) (*reloadstatus.Report, error)
}

// PlainPort is the registry's port without TLS, which the node port leads to.
const PlainPort = 5001

// Access is what it takes to write to the registry from inside the cluster.
type Access struct {
	// ServerName is the DNS name of the registry's Service, verified against the registry's certificate.
	ServerName string
	// Authority, Certificate and Key are PEM-encoded.
	Authority, Certificate, Key []byte
	Username, Password          string
}

// NewAccess puts together what stands in the Secrets of push certificate and
// push credential.
func NewAccess(name, namespace string, certificate, credentials *corev1.Secret) Access {
	return Access{
		ServerName:  serverName(name, namespace),
		Authority:   certificate.Data[names.KeyCA],
		Certificate: certificate.Data[keyCertificate],
		Key:         certificate.Data[keyPrivateKey],
		Username:    string(credentials.Data[keyUsername]),
		Password:    string(credentials.Data[keyPassword]),
	}
}

func (f *finishing) push(ctx context.Context) (string, error) {
	access, err := f.access(ctx)
	if err != nil {
		return "", err
	}
	images, err := f.Registry.PushProgramImages(ctx, access)
	if err != nil {
		return "", err
	}
	if own := f.Registry.HookImage(); own != nil {
		err := f.updateState(ctx, func(s *state.State) bool {
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
		s, err := f.secret(ctx, f.Settings.Name+suffix)
		if err == nil && s == nil {
			err = fmt.Errorf("%s is missing: run %s again, by helm upgrade or init-hook prepare", f.object("Secret", f.Settings.Name+suffix), made)
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
