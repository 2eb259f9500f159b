package cmdflags

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestTheCredentialIsThePresentOne(t *testing.T) {
	secret := func(password string) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry" + names.SuffixCredentials, Namespace: "zarf"},
			Data:       map[string][]byte{"username": []byte("zarf-push"), "password": []byte(password)},
		}
	}
	client := fake.NewClientset(secret("first"))
	flags := &Cluster{&Global{Namespace: "zarf", Release: "zarf-registry"}, "zarf-registry"}
	access := release.NewPushAccess(flags.Name, flags.Namespace, &corev1.Secret{}, secret("first"))
	credential := flags.presentCredential(client, access)
	is := func(when, host string, want auth.Credential) {
		t.Helper()
		if got, err := credential(context.Background(), host); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", when, got, err, want)
		}
	}
	host := cluster.Host(access)
	is("in the beginning", host, auth.Credential{Username: "zarf-push", Password: "first"})
	require.Value(client.CoreV1().Secrets("zarf").Update(context.Background(), secret("second"),
		metav1.UpdateOptions{}))(t)
	is("after it was rotated", host, auth.Credential{Username: "zarf-push", Password: "second"})
	is("for another host", "registry.example.com", auth.EmptyCredential)
	client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("it cannot be read any more")
	})
	is("where it cannot be read", host, auth.Credential{Username: "zarf-push", Password: "first"})
}
