package certs

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/zarf-dev/zarf-registry/internal/cli/clitest"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestCredentialsAreListedWithoutPasswords(t *testing.T) {
	saved, err := state.Encode(state.State{Phase: state.PhasePrepared, PushSecret: "my-push",
		Desired: state.Settings{Mode: state.ModeNodePort, Address: "127.0.0.1:31999", Port: 31999, IPFamily: state.IPv4,
			PKIMode: state.PKIInternal, DecidedBy: state.SourceValue},
		PKI: &state.PKI{Mode: state.PKIInternal, ClusterDomain: "cluster.local", LeafLifetime: state.Duration(time.Hour),
			CALifetime: state.Duration(2 * time.Hour)}}, nil)
	require.NoError(t, err)
	secret := func(name, user string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: name},
			Data: map[string][]byte{"username": []byte(user), "password": []byte("very secret"), state.Key: saved}}
	}
	of := &cmdflags.Cluster{Global: &cmdflags.Global{Namespace: "zarf"}, Name: "full"}
	objects := []runtime.Object{secret("full-state", ""), secret("full-credentials", "zarf-push"),
		secret("full-pull", "zarf-pull")}
	list, err := listCredentials(t.Context(), fake.NewClientset(objects...), of)
	require.NoError(t, err)
	clitest.JSON(t, render.CredentialList, clitest.Data(t, render.CredentialList, list))
	clitest.Same(t, "table", clitest.Text(t, printCredentials, list), `NAME  USER       SECRET            COPY OF
push  zarf-push  full-credentials  my-push
pull  zarf-pull  full-pull         -
`)
	clitest.Same(t, "names", clitest.Text(t, printCredentialNames, list), "push\npull\n")

	list, err = listCredentials(t.Context(), fake.NewClientset(objects[:2]...), of)
	if err != nil || len(list.Items) != 1 {
		t.Errorf("without a pull credential: %+v, %v", list, err)
	}
	if _, err := listCredentials(t.Context(), fake.NewClientset(), of); err == nil ||
		!strings.Contains(err.Error(), "Secret zarf/full-state not found: is zarf-registry installed") {
		t.Errorf("without a release: %v", err)
	}
}
