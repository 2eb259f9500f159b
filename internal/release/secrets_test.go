package release

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestTheStateKeepsWhatOthersWriteMeanwhile(t *testing.T) {
	data, err := state.Encode(state.State{Version: state.Version, Phase: state.PhasePrepared, Desired: state.Settings{
		Mode: state.ModeExternal, Address: "registry.example.com", IPFamily: state.IPv4, DecidedBy: state.SourceValue}}, []byte(`{"later":1}`))
	require.NoError(t, err)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "r" + names.SuffixState, Namespace: "zarf",
		Labels: names.Labels("r", names.ComponentState)}, Data: map[string][]byte{state.Key: data}}
	client := fake.NewClientset(secret)
	raced := false
	client.PrependReactor("update", "secrets", func(kubetesting.Action) (bool, runtime.Object, error) {
		if raced {
			return false, nil, nil
		}
		raced = true
		other := secret.DeepCopy()
		other.Data[state.Key] = bytes.Replace(data, []byte(`"later": 1`), []byte(`"later": 2, "verifiedNodes": ["n1"]`), 1)
		if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("secrets"), other, "zarf"); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, other.Name, nil)
	})
	r := &Release{Settings: settings.Settings{Namespace: "zarf", Name: "r", Release: "r"}, Secrets: client.CoreV1().Secrets("zarf"),
		Log: slog.New(slog.DiscardHandler), Now: time.Now}
	err = r.UpdateState(t.Context(), func(s *state.State) bool {
		s.RenewalFailed = "no"
		return true
	})
	require.NoError(t, err)
	got, err := r.Secrets.Get(context.Background(), secret.Name, metav1.GetOptions{})
	if err != nil || len(got.Data) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	for _, want := range []string{`"later": 2`, `"n1"`, `"renewalFailed": "no"`} {
		if !strings.Contains(string(got.Data[state.Key]), want) {
			t.Errorf("%s is missing in %s", want, got.Data[state.Key])
		}
	}
}
