package nodes

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// An API server that starts denies everything for a moment.
func TestAWaitEndsWhenPermissionsStayMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &Observer{Release: &release.Release{Progress: release.Logged{Log: slog.New(slog.DiscardHandler)}, Now: time.Now}}
		begin := time.Now()
		err := o.Wait(t.Context(), "pods", func() (string, error) {
			return "", apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "",
				errors.New(`User "x" cannot list resource "pods"`))
		}, "registry")
		if took := time.Since(begin); !exitcode.IsRefusal(err) || took < deniedTime || took > deniedTime+longestRest {
			t.Errorf("%v after %s", err, took)
		}
	})
}

func TestAWaitEndsWithErrorsThatStay(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, c := range map[string]struct {
		err   error
		tries int // with it, before it is gone
	}{
		"a refusal":                     {exitcode.Refuse("node n1 refuses"), 1},
		"a permission that is missing":  {apierrors.NewForbidden(pods, "", errors.New(`User "x" cannot list resource "pods"`)), 3},
		"a rejected request":            {apierrors.NewBadRequest("no"), 1},
		"an API server that restarts":   {errors.New("connection refused"), 3},
		"an API server that has failed": {apierrors.NewInternalError(errors.New("etcd: leader changed")), 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				progress := release.Logged{Log: slog.New(slog.DiscardHandler)}
				o := &Observer{Release: &release.Release{Progress: progress, Now: time.Now}}
				tries := 0
				err := o.Wait(t.Context(), "pods", func() (string, error) {
					if tries++; tries > 3 {
						return "", nil
					}
					return "", c.err
				}, "registry")
				if stays := c.tries == 1; stays != (err != nil) || stays && (tries != 1 || !errors.Is(err, c.err)) {
					t.Errorf("%v after %d tries", err, tries)
				}
			})
		})
	}
}
