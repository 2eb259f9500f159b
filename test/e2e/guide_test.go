package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// guide is a machine with the tools that a page requires, on which its sessions are run.
type guide struct {
	*world
	home, path string
	// dir is the working directory, which cd changes.
	dir string
	// version replaces that of the page, unless it is empty.
	version string
}

// guideCommand is a command of a session, with the output that the page shows.
type guideCommand struct {
	node    string // where it runs; empty for the workstation
	command string
	want    []string
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

// nodePrompt matches a root prompt on a node: n1# COMMAND.
var nodePrompt = regexp.MustCompile(`^(n\d+)# (.*)$`)

// guideCommands returns the commands in the code blocks below a heading of a page. A page shows output with
// … in place of lines that it leaves out.
func guideCommands(t *testing.T, page, heading string) []guideCommand {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(content), "\n"+heading+"\n")
	if !found {
		t.Fatalf("docs/%s has no heading %q", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var commands []guideCommand
	code, continued := false, false
	for line := range strings.Lines(section) {
		line = strings.TrimRight(line, "\n")
		last := len(commands) - 1
		switch command, isCommand := strings.CutPrefix(line, "$ "); {
		case strings.HasPrefix(line, "```"):
			code = !code
			continue
		case !code:
			continue
		case continued:
			commands[last].command += "\n" + line
		case isCommand:
			commands = append(commands, guideCommand{command: command})
		case nodePrompt.MatchString(line):
			m := nodePrompt.FindStringSubmatch(line)
			commands = append(commands, guideCommand{node: m[1], command: m[2]})
		case last >= 0:
			commands[last].want = append(commands[last].want, line)
			continue
		}
		continued = strings.HasSuffix(line, `\`)
	}
	return commands
}

// follow runs the sessions below a heading of a page. Each command must succeed and print what the page
// shows, apart from digits, digests and spaces.
func (g *guide) follow(t *testing.T, page, heading string, atLeast int) {
	t.Helper()
	commands := guideCommands(t, page, heading)
	if len(commands) < atLeast {
		t.Fatalf("docs/%s, %s: %d commands", page, heading, len(commands))
	}
	for _, c := range commands {
		c.command = ofVersion(c.command, g.version)
		must(t, c.command, func(t *testing.T) {
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
		return g.onNode(t, c.node, "sh", "-c", `cd "$1" && `+c.command, "sh", g.dir)
	}
	stay := filepath.Join(t.TempDir(), "dir")
	cmd := g.command(t, "bash", "-c", c.command+"\nstatus=$?; pwd >\"$STAY\"; exit $status")
	cmd.Dir = g.dir
	cmd.Env = []string{"PATH=" + g.path, "HOME=" + g.home, "KUBECONFIG=" + g.kubeconfig, "COSIGN_PASSWORD=", "STAY=" + stay}
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

// followsInstallGuide runs the session of docs/guide/install.md with nothing but a bundle, Helm, kubectl and
// cosign. The nodes must hold only pause images.
func (w *world) followsInstallGuide(t *testing.T) {
	tool := func(name string) string { return strings.TrimSpace(run(t, w.testcluster, "tool", name)) }
	g := newGuide(t, w, map[string]string{"helm": w.helm, "kubectl": w.kubectl, "cosign": tool("cosign")},
		"bash", "grep", "gzip", "install", "sha256sum", "sleep", "tar")
	version := chartVersion(t, built(t, "E2E_CHART"))
	release := filepath.Join(t.TempDir(), "release")
	build := exec.Command("go", "run", "./tools/release", "-allow-changes", "-darwin=false", "-version", version,
		"-images", built(t, "E2E_IMAGES"), "-output", release)
	build.Dir = filepath.Join("..", "..")
	output(t, build)
	bundle := "zarf-registry-bundle-" + version + ".tar.gz"
	for from, to := range map[string]string{
		filepath.Join(release, bundle):                 bundle,
		filepath.Join(release, bundle+".sha256"):       bundle + ".sha256",
		w.makeArchive(t, "example.com/team/shop:1", 8): "app.tar",
	} {
		if err := os.Rename(from, filepath.Join(g.dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	if runtime.GOARCH != "amd64" {
		t.Fatalf("the page shows programs for amd64, this is %s", runtime.GOARCH)
	}
	g.version = version
	output(t, g.command(t, "env", "COSIGN_PASSWORD=", "sh", "-c", `cd "$1" && "$2" generate-key-pair`, "sh", g.dir,
		tool("cosign")))
	g.follow(t, "guide/install.md", "## From a release", 15)
}
