package probe_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/node/probe"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry"
	"github.com/zarf-dev/zarf-registry/test/registrytest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const name = registrytest.Name

func TestMain(m *testing.M) {
	registry.RouteLogs(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// fixture is a registry of ours, and who has access to it.
type fixture struct {
	*registrytest.Registry
	target probe.Target
	ca     *tlsfilestest.CA
}

func start(t *testing.T, change func(*registry.Options)) *fixture {
	t.Helper()
	ca := tlsfilestest.NewCA(t, "test")
	hash := require.Value(bcrypt.GenerateFromPassword([]byte("pull"), bcrypt.MinCost))(t)
	users := filepath.Join(t.TempDir(), "pull")
	require.NoError(t, os.WriteFile(users, []byte("pull:"+string(hash)+"\n"), 0o600))
	r := registrytest.Start(t, ca, func(o *registry.Options) {
		o.LoopbackListen, o.PlainListen, o.HealthListen = "", freeport.Loopback(t), freeport.Loopback(t)
		o.PullHtpasswd = users
		if change != nil {
			change(o)
		}
	})
	return &fixture{r, target(t, ca, r.Address), ca}
}

// target has a way to an address, whose name is that of the registry's Service.
func target(t *testing.T, ca *tlsfilestest.CA, address string) probe.Target {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	return probe.Target{
		Registry: net.JoinHostPort(name, port),
		Push:     material(t, ca, pki.OrganizationPush), Node: material(t, ca, pki.OrganizationNode),
		Username: registrytest.Username, Password: registrytest.Password,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, strings.Replace(address, name, "127.0.0.1", 1))
		},
	}
}

func material(t *testing.T, ca *tlsfilestest.CA, organization string) *tlsfiles.Material {
	t.Helper()
	dir := t.TempDir()
	tlsfilestest.WriteSecret(t, dir, ca.Files(t, organization, nil))
	return require.Value(tlsfiles.Open(dir, tlsfiles.WithLogger(slog.New(slog.DiscardHandler))))(t).Current()
}

// serve starts a server in the place of the registry, and returns its address.
func serve(t *testing.T, ca *tlsfilestest.CA, config *tls.Config, handler http.HandlerFunc) string {
	t.Helper()
	certificate, key := ca.Issue(t, pki.OrganizationServer, name)
	pair := require.Value(tls.X509KeyPair(certificate, key))(t)
	config.Certificates = []tls.Certificate{pair}
	server := httptest.NewUnstartedServer(handler)
	server.TLS = config
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// steps keeps what was tried.
func steps(to *[]string) func(probe.Check) {
	return func(s probe.Check) { *to = append(*to, fmt.Sprintf("%s: %v", s.Name, s.Err)) }
}

func TestARegistryOfOursPasses(t *testing.T) {
	for title, anonymous := range map[string]bool{"with a pull credential": false, "with anonymous pull": true} {
		t.Run(title, func(t *testing.T) {
			f := start(t, func(o *registry.Options) { o.AnonymousPull = anonymous })
			f.target.Plain, f.target.AnonymousPull = f.Options.PlainListen, anonymous
			f.target.PortService, f.target.PortReserved = "zarf-registry-nodeport", true
			var done []string
			if err := probe.CheckTLS(t.Context(), f.target, steps(&done)); err != nil {
				t.Error(err)
			}
			if err := probe.CheckPush(t.Context(), f.target, "check-1", steps(&done)); err != nil {
				t.Error(err)
			}
			if len(done) != 12+4 {
				t.Errorf("%d steps: %q", len(done), done)
			}
			links, err := filepath.Glob(filepath.Join(f.Root, "docker/registry/v2/repositories", probe.Repository,
				"_manifests/tags/*/current/link"))
			if err != nil || len(links) > 0 {
				t.Errorf("left are %q, %v", links, err)
			}
			// What the values say and what the registry does are not the same.
			f.target.AnonymousPull = !anonymous
			if err := probe.CheckTLS(t.Context(), f.target, steps(&done)); err == nil ||
				!strings.Contains(err.Error(), "the node port serves") {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// Each fault is found by the step that is about it, and by that alone.
func TestFaultsAreFound(t *testing.T) {
	f := start(t, nil)
	other := tlsfilestest.NewCA(t, "other")
	for title, c := range map[string]struct {
		change func(*probe.Target)
		want   string
		steps  int // that fail
	}{
		"a wrong password": {func(t *probe.Target) { t.Password = "wrong" },
			"an image can be pushed: POST https://" + f.target.Registry + "/v2/zarf-registry/check/blobs/uploads/: got 401", 0},
		"the certificates of an authority that the registry does not know": {func(to *probe.Target) {
			to.Push, to.Node = material(t, other, pki.OrganizationPush), material(t, other, pki.OrganizationNode)
		}, "the registry's certificate is verified, and a node's certificate may read", 7},
		"a node port that is not reserved": {func(to *probe.Target) { to.PortService = "zarf-registry-nodeport" },
			"no other Service can take the node port: Service zarf-registry-nodeport is missing: run helm upgrade", 1},
		"a node's certificate for pushing": {func(to *probe.Target) { to.Push = to.Node },
			"a pusher's certificate may not write without the push credential", 2},
		"a pusher's certificate on nodes": {func(to *probe.Target) { to.Node = to.Push },
			"a node's certificate may not write", 3},
		"a port that nothing listens at": {func(to *probe.Target) { to.Registry = name + ":1" },
			"the registry is reachable: dial tcp 127.0.0.1:1: connect: connection refused", 1},
	} {
		t.Run(title, func(t *testing.T) {
			target := f.target
			c.change(&target)
			var all []string
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if strings.HasSuffix(target.Registry, ":1") {
				time.AfterFunc(2*time.Second, cancel) // nobody will ever listen
			}
			err := probe.CheckTLS(ctx, target, steps(&all))
			if c.steps == 0 && err == nil {
				err = probe.CheckPush(ctx, target, "check-1", steps(&all))
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error is %v", err)
			}
			failed := 0
			for _, s := range all {
				if !strings.HasSuffix(s, ": <nil>") {
					failed++
				}
			}
			if c.steps > 0 && failed != c.steps {
				t.Errorf("%d steps failed: %s", failed, strings.Join(all, "\n"))
			}
		})
	}
}

// A registry that serves everybody, as distribution does with certificates that are
// verified only where there are any.
func TestAnOpenRegistryIsFound(t *testing.T) {
	ca := tlsfilestest.NewCA(t, "test")
	pool := x509.NewCertPool()
	pool.AddCert(ca.Certificate)
	address := serve(t, ca, &tls.Config{ClientAuth: tls.RequestClientCert, ClientCAs: pool},
		func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	err := probe.CheckTLS(t.Context(), target(t, ca, address), func(probe.Check) {})
	for _, want := range []string{
		"connections without a certificate are rejected: GET https://",
		"connections with a certificate of another CA are rejected: GET https://",
		"a node's certificate may not write:", "without the push credential", "with a wrong password",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

// While garbage is collected nothing can be written: the check waits.
func TestAPauseIsWaitedFor(t *testing.T) {
	ca, asked := tlsfilestest.NewCA(t, "test"), 0
	address := serve(t, ca, &tls.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusTeapot)
	})
	to := target(t, ca, address)
	if err := probe.CheckPush(t.Context(), to, "check-1", func(probe.Check) {}); err == nil ||
		!strings.Contains(err.Error(), "418") || asked < 2 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}

// Rules of a NetworkPolicy may let a new pod through some seconds after it has started.
func TestALateWayToTheRegistryIsWaitedFor(t *testing.T) {
	f, refused := start(t, nil), 0
	dial := f.target.DialContext
	f.target.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if refused++; refused < 3 {
			return nil, syscall.ECONNREFUSED
		}
		return dial(ctx, network, address)
	}
	if err := probe.CheckPush(t.Context(), f.target, "check-1", func(probe.Check) {}); err != nil {
		t.Error(err)
	}
}
