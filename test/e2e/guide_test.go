package e2e

import (
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/distributiontest"
	"github.com/zarf-dev/zarf-registry/test/e2e/guide"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// machine is a machine with the tools that the pages require, on which their commands are run.
type machine struct {
	*world
	home, path string
	// dir is the working directory, which cd changes.
	dir string
	// version replaces that of the page, unless it is empty.
	version string
	// env is the environment in addition to PATH, HOME and KUBECONFIG.
	env []string
}

// newMachine makes a machine with these programs, by name, and with some of the system's.
func newMachine(t *testing.T, w *world, programs map[string]string, system ...string) *machine {
	t.Helper()
	g := &machine{world: w, home: t.TempDir(), dir: t.TempDir()}
	bin := filepath.Join(g.home, "bin")
	require.NoError(t, os.Mkdir(bin, 0o755))
	for _, name := range system {
		path := require.Value(exec.LookPath(name))(t)
		programs[name] = path
	}
	for name, path := range programs {
		require.NoError(t, os.Symlink(path, filepath.Join(bin, name)))
	}
	g.path = bin
	return g
}

// follow runs the commands of a page. Each block must succeed and print what the page shows, apart from digits, digests
// and spaces.
func (g *machine) follow(t *testing.T, page string) {
	t.Helper()
	content := require.Value(os.ReadFile(filepath.Join("..", "..", "docs", filepath.FromSlash(page))))(t)
	commands, err := guide.Commands(string(content))
	if err != nil || len(commands) == 0 {
		t.Fatalf("docs/%s has no commands, or output without a command: %v", page, err)
	}
	for _, c := range commands {
		c.Script = guide.OfVersion(c.Script, g.version)
		name, _, _ := strings.Cut(c.Script, "\n")
		must(t, name, func(t *testing.T) {
			out, err := g.run(t, c)
			require.NoError(t, err, out)
			if !guide.Shown(c.Want, out) {
				t.Errorf("output:\n%s\ndocs/%s shows:\n%s", out, page, strings.Join(c.Want, "\n"))
			}
		})
	}
}

func (g *machine) run(t *testing.T, c guide.Command) (string, error) {
	t.Helper()
	if c.Node != "" {
		return g.onNode(t, c.Node, "sh", "-ec", `cd "$1"`+"\n"+c.Script, "sh", g.dir)
	}
	stay := filepath.Join(t.TempDir(), "dir")
	cmd := g.command(t, "bash", "-ec", `trap 'pwd >"$STAY"' EXIT`+"\n"+c.Script)
	cmd.Dir = g.dir
	cmd.Env = append([]string{"PATH=" + g.path, "HOME=" + g.home, "KUBECONFIG=" + g.kubeconfig, "STAY=" + stay}, g.env...)
	out, errOut, err := try(cmd)
	if dir, err := os.ReadFile(stay); err == nil {
		g.dir = strings.TrimSpace(string(dir))
	}
	return out + errOut, err
}

// follows runs the commands of pages with nothing but a bundle, Helm, kubectl, cosign and crane. The nodes must hold only pause
// images. example.com is a registry that this machine reaches, and no node.
func (w *world) follows(t *testing.T, pages ...string) {
	for _, architecture := range []string{"amd64", "arm64"} {
		if _, err := os.Stat(filepath.Join("..", "..", "bin", "images", "init-hook-"+architecture)); err != nil {
			t.Skipf("SKIPPED, NOTHING CHECKED: a release needs images for both architectures: run make images: %v", err)
		}
	}
	tool := func(name string) string { return strings.TrimSpace(run(t, w.testcluster, "tool", name)) }
	g := newMachine(t, w, map[string]string{"helm": w.helm, "kubectl": w.kubectl, "cosign": tool("cosign"),
		"crane": tool("crane")},
		"base64", "bash", "cat", "grep", "gzip", "install", "mkdir", "sed", "sha256sum", "sleep", "tar", "tee")
	version := chartVersion(t, built(t, "E2E_CHART"))
	release := filepath.Join(t.TempDir(), "release")
	build := exec.Command("go", "run", "./tools/release", "-allow-changes", "-darwin=false", "-version", version,
		"-images", built(t, "E2E_IMAGES"), "-output", release)
	build.Dir = filepath.Join("..", "..")
	output(t, build)
	bundle := "zarf-registry-bundle-" + version + ".tar.gz"
	for _, name := range []string{bundle, bundle + ".sha256"} {
		require.NoError(t, os.Rename(filepath.Join(release, name), filepath.Join(g.dir, name)))
	}
	if runtime.GOARCH != "amd64" {
		t.Fatalf("the pages show programs for amd64, this is %s", runtime.GOARCH)
	}
	g.version = version
	g.env = append([]string{"COSIGN_PASSWORD="}, w.exampleCom(t, "team/shop:1")...)
	output(t, g.command(t, "env", "COSIGN_PASSWORD=", "sh", "-c", `cd "$1" && "$2" generate-key-pair`, "sh", g.dir,
		tool("cosign")))
	for _, page := range pages {
		must(t, "docs/"+page, func(t *testing.T) { g.follow(t, page) })
	}
}

// exampleCom runs a registry at https://example.com that has an image of the test program. It returns the environment
// with which programs reach it: a proxy that connects every host but the API server's to it.
func (w *world) exampleCom(t *testing.T, image string) []string {
	t.Helper()
	server := httptest.NewTLSServer(distributiontest.NewApp(t)) // its certificate is valid for example.com and 127.0.0.1
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		0o600))
	output(t, w.command(t, w.hook, "images", "push", w.makeArchive(t, "example.com/"+image, 8),
		"--to", server.Listener.Addr().String(), "--ca-file", ca))

	proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != "example.com:443" {
			http.Error(rw, "only https://example.com is outside", http.StatusBadGateway)
			return
		}
		outside, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadGateway)
			return
		}
		defer outside.Close()
		client, buffered, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			return
		}
		defer client.Close()
		_, _ = io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n")
		go func() {
			_, _ = io.Copy(outside, buffered)
			outside.Close()
		}()
		_, _ = io.Copy(client, outside)
	}))
	t.Cleanup(proxy.Close)
	api := require.Value(url.Parse(w.config.Host))(t)
	return []string{"HTTPS_PROXY=" + proxy.URL, "NO_PROXY=" + api.Hostname(), "SSL_CERT_FILE=" + ca}
}
