package registry

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	crrandom "github.com/google/go-containerregistry/pkg/v1/random"
	crremote "github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	orasremote "oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/zarf-dev/zarf-registry/internal/images/remote"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// Clients that push to a full registry show what to do, when they begin an upload and in the middle of one.
func TestClientsShowThatTheRegistryIsFull(t *testing.T) {
	t.Parallel()
	i, others := startOnVolume(t, newTestCA(t), t.TempDir(), 1_000_000)
	i.pusher().pushImage("a", "v1", random(800_000))
	address := i.addresses["tls"]
	hostTransport := i.pusher().Transport.(*http.Transport)
	large := []byte(random(5 << 20))
	blob := content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, large)
	clients := map[string]func() error{
		"oras-go": func() error {
			r, err := orasremote.NewRepository(address + "/b")
			if err != nil {
				return err
			}
			r.Client = &auth.Client{Client: i.pusher().Client, Cache: auth.NewCache(),
				Credential: auth.StaticCredential(address, auth.Credential{Username: pushUser, Password: pushPassword})}
			err = r.Push(t.Context(), blob, bytes.NewReader(large))
			var response *errcode.ErrorResponse
			if !errors.As(err, &response) || response.StatusCode != http.StatusInsufficientStorage {
				t.Errorf("%#v", err)
			}
			return err
		},
		"go-containerregistry": func() error {
			reference, err := name.ParseReference(address + "/team/b:v1")
			if err != nil {
				return err
			}
			image, err := crrandom.Image(5<<20, 1)
			if err != nil {
				return err
			}
			err = crremote.Write(reference, image, crremote.WithTransport(hostTransport), crremote.WithContext(t.Context()),
				crremote.WithAuth(&authn.Basic{Username: pushUser, Password: pushPassword}))
			var response *transport.Error
			if !errors.As(err, &response) || response.StatusCode != http.StatusInsufficientStorage || response.Temporary() {
				t.Errorf("%#v", err)
			}
			return err
		},
		"init-hook": func() error {
			r := i.remote(t)
			repository, err := r.Repository("b")
			if err != nil {
				return err
			}
			_, err = repository.PushBlob(t.Context(), blob, "", func() (io.ReadCloser, error) {
				return io.NopCloser(bytes.NewReader(large)), nil
			}, nil)
			return err
		},
	}
	check := func(state string, words ...string) {
		for client, push := range clients {
			t.Run(client+", "+state, func(t *testing.T) {
				err := push()
				if err == nil {
					t.Fatal("pushed")
				}
				mentions(t, strings.ToLower(err.Error()), append(words, "of the volume is used", "registry.persistence.size")...)
			})
		}
	}
	check("an image that does not fit", "do not fit into the storage: 8")
	others.Store(150_000)
	i.used()
	check("a full registry", "the storage is full: 9")
}

// remote returns init-hook's client.
func (i *instance) remote(t *testing.T) *remote.Registry {
	t.Helper()
	address := i.addresses["tls"]
	r, err := remote.New(remote.Options{
		Host: address, TLS: i.pusher().Transport.(*http.Transport).TLSClientConfig,
		Credential: auth.StaticCredential(address, auth.Credential{Username: pushUser, Password: pushPassword}),
	})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

func TestClientAsksForSpace(t *testing.T) {
	t.Parallel()
	i, _ := startOnVolume(t, newTestCA(t), t.TempDir(), 1_000_000)
	i.pusher().pushBlob("a", "stored")
	r := i.remote(t)
	usage, err := r.Space(t.Context())
	if err != nil || usage.Limit != 1_000_000 {
		t.Fatalf("%+v, %v", usage, err)
	}
	stored, missing := digest.FromString("stored"), digest.FromString("missing")
	got, err := r.Missing(t.Context(), []digest.Digest{missing, stored})
	if err != nil || len(got) != 1 || got[0] != missing {
		t.Errorf("%v, %v", got, err)
	}
}
