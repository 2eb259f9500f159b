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
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// guide is a machine with the tools that the pages require, on which their commands are run.
type guide struct {
	*world
	home, path string
	// dir is the working directory, which cd changes.
	dir string
	// version replaces that of the page, unless it is empty.
	version string
	// env is the environment in addition to PATH, HOME and KUBECONFIG.
	env []string
}

// guideCommand is a block of commands, with the output that the page shows.
type guideCommand struct {
	node   string // where it runs; empty for the workstation
	script string
	want   []string
}

// newGuide makes a machine with these programs, by name, and with some of the system's.
func newGuide(t *testing.T, w *world, programs map[string]string, system ...string) *guide {
	t.Helper()
	g := &guide{world: w, home: t.TempDir(), dir: t.TempDir()}
	bin := filepath.Join(g.home, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range system {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		programs[name] = path
	}
	for name, path := range programs {
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	g.path = bin
	return g
}

// guideCommands returns the commands of a page: what its blocks of the language sh contain. After sh, a block names
// the node where it runs. A block of the language text shows the output of the block before it, with … in place of lines
// that it leaves out. Blocks of other languages are examples, which nobody runs.
func guideCommands(t *testing.T, page string) []guideCommand {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	var commands []guideCommand
	code, language := false, ""
	for line := range strings.Lines(string(content)) {
		line = strings.TrimRight(line, "\n")
		last := len(commands) - 1
		switch opening, isFence := strings.CutPrefix(line, "```"); {
		case isFence && code:
			code = false
		case isFence:
			var node string
			code = true
			language, node, _ = strings.Cut(opening, " ")
			if language == "sh" {
				commands = append(commands, guideCommand{node: node})
			} else if language == "text" && (last < 0 || len(commands[last].want) > 0) {
				t.Fatalf("docs/%s: no command prints %s", page, line)
			}
		case code && language == "sh":
			commands[last].script += line + "\n"
		case code && language == "text":
			commands[last].want = append(commands[last].want, line)
		}
	}
	return commands
}

// follow runs the commands of a page. Each block must succeed and print what the page shows, apart from digits, digests
// and spaces.
func (g *guide) follow(t *testing.T, page string) {
	t.Helper()
	commands := guideCommands(t, page)
	if len(commands) == 0 {
		t.Fatalf("docs/%s has no commands", page)
	}
	for _, c := range commands {
		c.script = ofVersion(c.script, g.version)
		name, _, _ := strings.Cut(c.script, "\n")
		must(t, name, func(t *testing.T) {
			out, err := g.run(t, c)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if !shown(c.want, out) {
				t.Errorf("output:\n%s\ndocs/%s shows:\n%s", out, page, strings.Join(c.want, "\n"))
			}
		})
	}
}

// pageVersion matches the version of a release's file.
var pageVersion = regexp.MustCompile(`(zarf-registry-(?:bundle-)?)[0-9]+\.[0-9]+\.[0-9]+(?:-[a-z]+(?:\.[0-9]+)*)?(\b)`)

// ofVersion replaces the version in names of a release's files, unless the version is empty.
func ofVersion(command, version string) string {
	if version == "" {
		return command
	}
	return pageVersion.ReplaceAllString(command, "${1}"+version+"${2}")
}

func TestGuideOfAnotherVersion(t *testing.T) {
	const page = "tar -xzf zarf-registry-bundle-0.1.0.tar.gz && helm upgrade zarf-registry zarf-registry-0.1.0.tgz -n zarf"
	for version, want := range map[string]string{
		"0.9.9":      "tar -xzf zarf-registry-bundle-0.9.9.tar.gz && helm upgrade zarf-registry zarf-registry-0.9.9.tgz -n zarf",
		"1.0.0-rc.1": "tar -xzf zarf-registry-bundle-1.0.0-rc.1.tar.gz && helm upgrade zarf-registry zarf-registry-1.0.0-rc.1.tgz -n zarf",
		"":           page,
	} {
		if got := ofVersion(page, version); got != want {
			t.Errorf("version %q: %s", version, got)
		}
	}
	if got := ofVersion("tar -xzf zarf-registry-bundle-1.0.0-rc.1.tar.gz", "1.0.0"); got != "tar -xzf zarf-registry-bundle-1.0.0.tar.gz" {
		t.Error(got)
	}
}

func (g *guide) run(t *testing.T, c guideCommand) (string, error) {
	t.Helper()
	if c.node != "" {
		return g.onNode(t, c.node, "sh", "-ec", `cd "$1"`+"\n"+c.script, "sh", g.dir)
	}
	stay := filepath.Join(t.TempDir(), "dir")
	cmd := g.command(t, "bash", "-ec", `trap 'pwd >"$STAY"' EXIT`+"\n"+c.script)
	cmd.Dir = g.dir
	cmd.Env = append([]string{"PATH=" + g.path, "HOME=" + g.home, "KUBECONFIG=" + g.kubeconfig, "STAY=" + stay}, g.env...)
	out, errOut, err := try(cmd)
	if dir, err := os.ReadFile(stay); err == nil {
		g.dir = strings.TrimSpace(string(dir))
	}
	return out + errOut, err
}

var (
	digits = regexp.MustCompile(`sha256:[0-9a-f]{64}|[0-9]+(\.[0-9]+)?(ms|s| [kM]B)?\b`)
	spaces = regexp.MustCompile(`\s+`)
)

// shown reports whether lines of the output are those that a page shows, in order. A page that shows
// nothing leaves the output open.
func shown(want []string, out string) bool {
	plain := func(line string) string {
		return strings.TrimSpace(spaces.ReplaceAllString(digits.ReplaceAllString(line, "0"), " "))
	}
	var got []string
	for line := range strings.Lines(out) {
		if line = plain(line); line != "" {
			got = append(got, line)
		}
	}
	gap := false
	for _, line := range want {
		if line = plain(line); line == "" || line == "…" {
			gap = gap || line == "…"
			continue
		}
		i := slices.Index(got, line)
		if i < 0 || i > 0 && !gap {
			return false
		}
		got, gap = got[i+1:], false
	}
	return true
}

// guidePages are the pages of docs/guide, in the order in which a user reads them.
var guidePages = []string{
	"guide/install.md", "guide/push.md", "guide/run.md", "guide/upgrade.md", "guide/fix.md", "guide/uninstall.md",
}

// follows runs the commands of pages with nothing but a bundle, Helm, kubectl and cosign. The nodes must hold only pause
// images. example.com is a registry that this machine reaches, and no node.
func (w *world) follows(t *testing.T, pages ...string) {
	tool := func(name string) string { return strings.TrimSpace(run(t, w.testcluster, "tool", name)) }
	g := newGuide(t, w, map[string]string{"helm": w.helm, "kubectl": w.kubectl, "cosign": tool("cosign")},
		"bash", "cat", "grep", "gzip", "install", "sed", "sha256sum", "sleep", "tar", "tee")
	version := chartVersion(t, built(t, "E2E_CHART"))
	release := filepath.Join(t.TempDir(), "release")
	build := exec.Command("go", "run", "./tools/release", "-allow-changes", "-darwin=false", "-version", version,
		"-images", built(t, "E2E_IMAGES"), "-output", release)
	build.Dir = filepath.Join("..", "..")
	output(t, build)
	bundle := "zarf-registry-bundle-" + version + ".tar.gz"
	for _, name := range []string{bundle, bundle + ".sha256"} {
		if err := os.Rename(filepath.Join(release, name), filepath.Join(g.dir, name)); err != nil {
			t.Fatal(err)
		}
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
	server := httptest.NewTLSServer(connectedHandler(t)) // its certificate is valid for example.com and 127.0.0.1
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
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
	api, err := url.Parse(w.config.Host)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"HTTPS_PROXY=" + proxy.URL, "NO_PROXY=" + api.Hostname(), "SSL_CERT_FILE=" + ca}
}

func TestGuideCommands(t *testing.T) {
	for _, page := range append([]string{"reference/helm.md", "dev/release.md"}, guidePages...) {
		for _, c := range guideCommands(t, page) {
			if strings.TrimSpace(c.script) == "" || strings.Contains(c.script, "\n$ ") || strings.HasPrefix(c.script, "$ ") {
				t.Errorf("docs/%s has a block of commands that is empty or has prompts:\n%s", page, c.script)
			}
		}
	}
	pages, err := filepath.Glob("../../docs/guide/*.md")
	if err != nil || len(pages) != len(guidePages) {
		t.Errorf("docs/guide has %d pages, and the scenario follows %d: %v", len(pages), len(guidePages), err)
	}
}
