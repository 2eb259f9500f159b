package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/credentials"
	"github.com/zarf-dev/zarf-registry/internal/hook/payload"
	"github.com/zarf-dev/zarf-registry/internal/hook/pulltest"
	"github.com/zarf-dev/zarf-registry/internal/hook/reload"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// Registry is the part of a registry that the steps use.
type Registry interface {
	reload.Registry
	credentials.Listener
	pulltest.Images
	// PushProgramImages pushes the project's own images below zarf-registry/ and returns them as
	// "<repository>:<tag>". It skips blobs that the registry already has.
	PushProgramImages(ctx context.Context, access release.PushAccess) ([]string, error)
	// HookImage returns init-hook's own image as PushProgramImages pushes it, with its digest. It is nil if
	// the nodes cannot run this process's file, as on macOS: then missing says why.
	HookImage() (own *state.HookImage, missing string)
}

func (f *finishRun) push(ctx context.Context) (string, error) {
	access, err := f.access(ctx)
	if err != nil {
		return "", err
	}
	own, err := f.hookImage()
	if err != nil {
		return "", err
	}
	if _, err := f.credentials.AwaitPush(ctx); err != nil {
		return "", err
	}
	images, err := f.registry.PushProgramImages(ctx, access)
	if err != nil {
		return "", err
	}
	err = f.UpdateState(ctx, func(s *state.State) bool {
		if own == nil {
			f.unpushed = s.HookImage == nil || !strings.Contains(s.HookImage.Reference, ":"+version.Version+"@")
			return false
		}
		same := s.HookImage != nil && *s.HookImage == *own
		s.HookImage = own
		return !same
	})
	if err != nil {
		return "", err
	}
	return "the registry has " + strings.Join(images, ", "), nil
}

// warnOfCronJobs warns if neither this process nor a previous one has pushed the image of the CronJobs.
func (f *finishRun) warnOfCronJobs(ctx context.Context, again string) {
	if !f.unpushed {
		return
	}
	architecture := "amd64"
	if list, err := f.Cluster.Nodes.List(ctx, metav1.ListOptions{}); err == nil && len(list.Items) > 0 {
		architecture = list.Items[0].Status.NodeInfo.Architecture
	}
	_, missing := f.registry.HookImage()
	f.Log.Warn("CERTIFICATES ARE NOT RENEWED, unless nodes can pull init-hook elsewhere: the registry lacks it",
		"reason", missing, "remedy", fmt.Sprintf("run once on Linux on %[1]s: ./zarf-registry-linux-%[1]s %[2]s",
			architecture, cmp.Or(again, "install")))
}

// hookImage returns init-hook's own image, nil if it is not pushed. It refuses an init-hook whose image
// is not the one that the chart refers to.
func (r *run) hookImage() (*state.HookImage, error) {
	own, _ := r.registry.HookImage()
	if own == nil || r.Settings.Mode == state.ModeExternal {
		return nil, nil
	}
	want := r.Settings.Push.HookDigests[own.Architecture]
	if _, have, _ := strings.Cut(own.Reference, "@"); want != "" && have != want {
		return nil, exitcode.Refuse("chart and program are of different builds: the chart refers to init-hook's image %s, "+
			"and this program's is %s: %s", want, have, payload.RemedyMismatch)
	}
	return own, nil
}

func (f *finishRun) access(ctx context.Context) (release.PushAccess, error) {
	read := func(suffix string) (*corev1.Secret, error) {
		s, err := f.Secret(ctx, f.Settings.Name+suffix)
		if err == nil && s == nil {
			err = fmt.Errorf("%s is missing: run prepare again, by helm upgrade or zarf-registry prepare",
				f.Object("Secret", f.Settings.Name+suffix))
		}
		return s, err
	}
	certificate, certificateErr := read(names.SuffixPushTLS)
	credentials, credentialsErr := read(names.SuffixCredentials)
	if err := errors.Join(certificateErr, credentialsErr); err != nil {
		return release.PushAccess{}, err
	}
	return release.NewPushAccess(f.Settings.Name, f.Settings.Namespace, certificate, credentials), nil
}
