package root

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
)

// runArgs runs a command that ends by itself.
func runArgs(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(t.Context(), append([]string{}, args...), &out, &errs) // nil would be those of go test
	return code, out.String(), errs.String()
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	tlsfilestest.WriteSecret(t, dir, tlsfilestest.NewCA(t, "ca").Files(t, "node", nil))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	proxy := func(args ...string) []string {
		return append([]string{"proxy", "--listen=127.0.0.1:0", "--registry=r.zarf.svc:5000", "--tls-dir=" + dir}, args...)
	}
	notPEM := filepath.Join(dir, "empty")
	if err := os.WriteFile(notPEM, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for description, tt := range map[string]struct {
		args []string
		code int
		want string // in stderr
	}{
		"no command":                       {nil, exitcode.Refused, "proxy, cache, ready, probe, configure, heal, pause or version"},
		"an unknown command":               {[]string{"serve"}, exitcode.Refused, `"serve"`},
		"an unknown flag":                  {[]string{"proxy", "--port=1"}, exitcode.Refused, "--port"},
		"an argument":                      {proxy("now"), exitcode.Refused, `"now"`},
		"a proxy without flags":            {[]string{"proxy"}, exitcode.Refused, `"listen", "registry", "tls-dir"`},
		"an invalid address":               {proxy("--listen=x"), exitcode.Refused, `listen address "x"`},
		"an invalid registry":              {proxy("--registry=:5000"), exitcode.Refused, `registry ":5000"`},
		"an invalid --tls":                 {proxy("--tls=auto"), exitcode.Refused, "always or never"},
		"an invalid duration":              {proxy("--retry-timeout=60"), exitcode.Refused, "retry-timeout"},
		"a negative duration":              {proxy("--drain-timeout=-1s"), exitcode.Refused, "negative"},
		"an invalid log format":            {proxy("--log-format=xml"), exitcode.Refused, "json, text or auto"},
		"an invalid log level":             {proxy("--log-level=loud"), exitcode.Refused, "log-level"},
		"a directory without certificates": {proxy("--tls-dir=" + t.TempDir()), exitcode.Refused, "tls.crt"},
		"a port in use": {
			proxy("--listen=" + taken.Addr().String()), exitcode.Failed,
			taken.Addr().String() + ": bind: address already in use",
		},
		"a probe without an address":    {[]string{"probe"}, exitcode.Refused, `"address"`},
		"a probe of an invalid address": {[]string{"probe", "--address=x"}, exitcode.Refused, "127.0.0.1:31999"},
		"an invalid --output": {
			[]string{"probe", "--address=127.0.0.1:1", "--output=yaml"}, exitcode.Refused, "text or json",
		},
		"a CA without TLS": {[]string{"probe", "--address=127.0.0.1:1", "--ca-file=x"}, exitcode.Refused, "--tls"},
		"a missing CA file": {
			[]string{"probe", "--address=127.0.0.1:1", "--tls", "--ca-file=/nowhere"}, exitcode.Refused, "/nowhere",
		},
		"a CA file without a CA": {
			[]string{"probe", "--address=127.0.0.1:1", "--tls", "--ca-file=" + notPEM}, exitcode.Refused, "no certificate",
		},
		"configure without flags": {[]string{"configure"}, exitcode.Refused, `"config-dir", "host-root"`},
		"configure with an argument": {
			[]string{"configure", "--config-dir=a", "--host-root=b", "x"}, exitcode.Refused, `"x"`,
		},
		"a healer without flags": {[]string{"heal"}, exitcode.Refused, `"namespace", "pause-images", "release"`},
		"a healer that cannot list repositories": {
			[]string{"heal", "--namespace=a", "--release=b", "--pause-images=e", "--repositories-configmap=c", "--tls-dir=d"},
			exitcode.Refused, "needs --registry=HOST:PORT and --tls-dir",
		},
		"a pause with an argument":   {[]string{"pause", "10"}, exitcode.Refused, `"10"`},
		"a version with an argument": {[]string{"version", "x"}, exitcode.Refused, `"x"`},
	} {
		t.Run(description, func(t *testing.T) {
			code, stdout, stderr := runArgs(t, tt.args...)
			if code != tt.code || !strings.Contains(stderr, tt.want) || stdout != "" {
				t.Errorf("exit code %d, want %d, and stderr with %q:\n%s%s", code, tt.code, tt.want, stdout, stderr)
			}
			if tt.code == exitcode.Refused && !strings.Contains(stderr, "--help") {
				t.Errorf("stderr does not mention the help:\n%s", stderr)
			}
		})
	}
}

func TestProbe(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
		if strings.Contains(r.URL.Path, "/other/") {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"errors":[{"code":"NAME_UNKNOWN","message":"repository name not known to registry"}]}`))
		}
	}))
	defer server.Close()
	address := server.Listener.Addr().String()

	code, stdout, stderr := runArgs(t, "probe", "--address="+address, "--image=a:1")
	if code != 0 || !strings.Contains(stdout, "HEAD http://"+address+"/v2/a/manifests/1: 200 (") || stderr != "" {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = runArgs(t, "probe", "--address="+address, "--image=other/b:1", "--output=json")
	if code != exitcode.Failed || !strings.Contains(stdout, `"reason":"unknown-image"`) ||
		!strings.HasPrefix(
			stderr, "registry-node: the registry has no other/b:1: NAME_UNKNOWN: repository name not known to registry\n",
		) {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

func TestProxy(t *testing.T) {
	dir := t.TempDir()
	tlsfilestest.WriteSecret(t, dir, tlsfilestest.NewCA(t, "ca").Files(t, "node", nil))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	code := Run(
		ctx, []string{"proxy", "--listen=127.0.0.1:0", "--registry=r.zarf.svc:5000", "--tls-dir=" + dir}, &stdout, &stderr,
	)
	if code != 0 || stdout.Len() != 0 || !strings.HasPrefix(stderr.String(), `{"time":`) {
		t.Errorf("exit code %d, stdout %q, stderr\n%s", code, &stdout, &stderr)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"proxy", "--help"}, {"probe", "--help"}, {"configure", "--help"},
		{"heal", "--help"}, {"pause", "--help"}, {"version", "--help"}} {
		if code, stdout, stderr := runArgs(t, args...); code != 0 || !strings.Contains(stdout, "Usage:") || stderr != "" {
			t.Errorf("%v: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
}

// The program is delivered to every node in ConfigMaps and must stay small, and code that it does
// not contain cannot be exploited there.
func TestImports(t *testing.T) {
	output, err := exec.CommandContext(
		t.Context(), "go", "list", "-deps", "github.com/zarf-dev/zarf-registry/cmd/registry-node",
	).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	allowed := []string{
		"github.com/zarf-dev/zarf-registry/cmd/registry-node", "github.com/zarf-dev/zarf-registry/internal/",
		"github.com/spf13/", "github.com/VictoriaMetrics/metrics", "github.com/valyala/", "golang.org/x/sys/",
		"golang.org/x/term",
		"github.com/aymanbagabas/go-udiff", "github.com/pelletier/go-toml/v2", "gopkg.in/yaml.v2",
		// K3s' parser of registries.yaml, and the pull code in its package, of which the linker keeps
		// hardly anything: TestProcess checks the size.
		"github.com/rancher/wharfie/pkg/registries", "github.com/sirupsen/logrus", "github.com/google/go-containerregistry/",
		"github.com/docker/cli/cli/config", "github.com/docker/docker-credential-helpers/", "github.com/mitchellh/go-homedir",
		"github.com/opencontainers/", "github.com/containerd/stargz-snapshotter/estargz", "github.com/vbatts/tar-split/",
		"github.com/klauspost/compress", "github.com/docker/distribution/registry/client/auth/challenge",
		"golang.org/x/sync/errgroup", "golang.org/x/sync/singleflight", "github.com/hashicorp/golang-lru/v2",
	}
	var checked int
	for pkg := range strings.Lines(string(output)) {
		pkg = strings.TrimSpace(pkg)
		if host, _, _ := strings.Cut(pkg, "/"); !strings.Contains(host, ".") {
			continue // the standard library
		}
		checked++
		ok := false
		for _, prefix := range allowed {
			ok = ok || strings.HasPrefix(pkg, prefix)
		}
		if !ok {
			t.Errorf("registry-node links %s", pkg)
		}
	}
	if checked < 5 {
		t.Errorf("only %d packages were checked: the test checked nothing", checked)
	}
}
