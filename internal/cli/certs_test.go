package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// apiServer answers for Secrets of the namespace zarf, and notes what it is asked.
type apiServer struct {
	kubeconfig string
	secrets    map[string]map[string][]byte // data, by name

	mutex sync.Mutex
	asked []string
}

func newAPIServer(t *testing.T, secrets map[string]map[string][]byte) *apiServer {
	t.Helper()
	a := &apiServer{secrets: secrets}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	a.kubeconfig = newKubeconfig(t, server.URL)
	return a
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mutex.Lock()
	a.asked = append(a.asked, r.Method+" "+r.URL.Path)
	a.mutex.Unlock()
	const below = "/api/v1/namespaces/zarf/secrets/"
	name, _ := strings.CutPrefix(r.URL.Path, below)
	w.Header().Set("Content-Type", "application/json")
	if data, ok := a.secrets[name]; ok && r.Method == http.MethodGet {
		secret := corev1.Secret{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: name, ResourceVersion: "1",
				Labels: map[string]string{"app.kubernetes.io/managed-by": "init-hook"}},
			Data: data,
		}
		_ = json.NewEncoder(w).Encode(secret)
		return
	}
	w.WriteHeader(http.StatusNotFound)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: "not found"})
}

// saved is a state's Secret.
func saved(t *testing.T, change func(*state.State)) map[string]map[string][]byte {
	t.Helper()
	s := state.State{
		Phase: state.PhasePrepared,
		Desired: state.Settings{Mode: state.ModeProxy, Address: "127.0.0.1:31999", Port: 31999, IPFamily: state.IPv4,
			PKIMode: state.PKIInternal, DecidedBy: state.SourceValue},
		PKI: &state.PKI{Mode: state.PKIInternal, ClusterDomain: "cluster.local", LeafLifetime: state.Duration(time.Hour),
			CALifetime: state.Duration(2 * time.Hour)},
	}
	change(&s)
	return map[string]map[string][]byte{"zarf-registry-state": {state.Key: require.Value(state.Encode(s, nil))(t)}}
}

// What a command line asks of the hook shows in what the hook refuses, and in what
// it looks at before that.
func TestCommandsAboutCertificatesAskTheHook(t *testing.T) {
	existing := func(s *state.State) {
		s.PKI.Mode, s.PKI.Existing = state.PKIExistingSecret, &state.ExistingSecrets{Server: "my-server", Node: "my-node"}
		s.PushSecret = "my-password"
	}
	issuer := func(s *state.State) {
		s.PKI.Mode, s.PKI.Issuer = state.PKICertManager, &state.Issuer{Name: "corp", Kind: "ClusterIssuer",
			Group: "cert-manager.io"}
	}
	external := func(s *state.State) {
		s.Desired, s.PKI = state.Settings{Mode: state.ModeExternal, Address: "registry.example.com", IPFamily: state.IPv4},
			nil
	}
	for name, c := range map[string]struct {
		args  []string
		saved func(*state.State) // nil: there is none
		code  int
		want  string
	}{
		"renew without a state": {[]string{"certs", "renew"}, nil, 3, "Secret zarf/zarf-registry-state"},
		"renew, external": {[]string{"certs", "renew", "--log-format=json"}, external, 0,
			`"msg":"phase done","phase":"renew"`},
		"rotate without a state":          {[]string{"certs", "rotate"}, nil, 3, "Secret zarf/zarf-registry-state"},
		"rotate what is the user's":       {[]string{"certs", "rotate"}, existing, 3, "Secret zarf/my-server"},
		"rotate the authority of another": {[]string{"certs", "rotate", "--ca"}, issuer, 3, "ClusterIssuer corp"},
		"credentials without a state":     {[]string{"credentials", "rotate"}, nil, 3, "Secret zarf/zarf-registry-state"},
		"credentials that are the user's": {[]string{"credentials", "rotate"}, existing, 3, "my-password"},
		"credentials that are not there":  {[]string{"credentials", "rotate", "pull"}, existing, 3, "zarf-registry-pull"},
		"the CronJob's own command line": {[]string{"certs", "renew", "--namespace=zarf", "--release=zarf-registry",
			"--name=zarf-registry", "--timeout=10m", "--log-format=json"}, external, 0, `"msg":"phase done"`},
		"a release in another namespace": {[]string{"certs", "renew", "--namespace=other"}, external, 3,
			"Secret other/zarf-registry-state"},
		"images of an external registry": {[]string{"images", "list"}, external, 3,
			"the cluster uses the external registry registry.example.com"},
		"another name of the same release": {[]string{"certs", "renew", "--name=full"}, external, 3,
			"Secret zarf/full-state"},
	} {
		t.Run(name, func(t *testing.T) {
			var secrets map[string]map[string][]byte
			if c.saved != nil {
				secrets = saved(t, c.saved)
			}
			server := newAPIServer(t, secrets)
			code, out, errOut := runAt(t, server.kubeconfig, c.args...)
			if code != c.code || !strings.Contains(errOut, c.want) || out != "" {
				t.Errorf("exit code %d, want %d; output %q, error:\n%swant %q", code, c.code, out, errOut, c.want)
			}
			if len(server.asked) == 0 {
				t.Error("it asked for nothing")
			}
			// The CronJob's identity has few rights, and nothing was to be done.
			if i := slices.IndexFunc(server.asked, func(s string) bool {
				return !strings.HasPrefix(s, "GET /api/v1/namespaces/") || !strings.Contains(s, "/secrets/")
			}); i >= 0 {
				t.Errorf("it asked for %q", server.asked)
			}
		})
	}
}

func TestCertificatesOfAnExternalRegistryAreNone(t *testing.T) {
	server := newAPIServer(t, saved(t, func(s *state.State) {
		s.Phase, s.Desired = state.PhaseReady, state.Settings{Mode: state.ModeExternal, Address: "registry.example.com",
			IPFamily: state.IPv4}
		s.Current, s.PKI = &s.Desired, nil
	}))
	for output, want := range map[string]string{"table": "uses the external registry registry.example.com",
		"json": `"external": "registry.example.com"`} {
		code, out, errOut := runAt(t, server.kubeconfig, "certs", "show", "--output", output)
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d, output:\n%s\nerror:\n%s", output, code, out, errOut)
		}
	}
	if code, out, errOut := runAt(t, server.kubeconfig, "certs", "ca"); code != 1 || out != "" ||
		!strings.Contains(errOut, "external registry, which needs no certificates") {
		t.Errorf("certs ca: exit code %d, output %q, error:\n%s", code, out, errOut)
	}
}
