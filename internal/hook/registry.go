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
	PushProgramImages(ctx context.Context, access release.PushAccess) ([]string, error)
	// HookImage returns init-hook's own image as PushProgramImages pushes it. It is nil if this
	// process does not run on Linux, because then the image is not pushed.
	HookImage() *state.HookImage
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

func (f *finishing) access(ctx context.Context) (release.PushAccess, error) {
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
		return release.PushAccess{}, err
	}
	return release.NewPushAccess(f.Settings.Name, f.Settings.Namespace, certificate, credentials), nil
}
