package root

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/golden"
)

const (
	k3sFile = "/etc/rancher/k3s/registries.yaml"
	k3sLive = "/var/lib/rancher/k3s/agent/etc/containerd/certs.d"
	certsD  = "/etc/containerd/certs.d"
	crioCA  = "/etc/containers/certs.d/127.0.0.1:31999/ca.crt"
	crioCon = "/etc/containers/registries.conf.d/50-zarf-registry.conf"
	ours    = "# Written by zarf-registry, release zarf/zarf-registry. Changes are overwritten.\n"
	keep    = ".before-zarf-registry"
)

// machine is a node as mounted into a pod, and the mounted configuration.
type machine struct {
	t            *testing.T
	host, config string
	report       string
}

// newMachine creates the directories of a configuration and the node's files.
func newMachine(t *testing.T, config noderuntime.Config, secrets, files map[string]string) *machine {
	t.Helper()
	m := &machine{t: t, host: t.TempDir(), config: t.TempDir(), report: filepath.Join(t.TempDir(), "termination-log")}
	for _, dir := range slices.Concat(config.Directories, config.TLSDirectories) {
		if err := os.MkdirAll(filepath.Join(m.host, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		m.write(name, content)
	}
	m.configure(config, secrets)
	return m
}

// write creates an old file of somebody else.
func (m *machine) write(name, content string) {
	m.t.Helper()
	at := filepath.Join(m.host, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(content), 0o640); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Chtimes(at, time.Time{}, time.Unix(981173106, 0)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) configure(config noderuntime.Config, secrets map[string]string) {
	m.t.Helper()
	data, err := json.Marshal(config)
	if err != nil {
		m.t.Fatal(err)
	}
	all := maps.Clone(secrets)
	if all == nil {
		all = map[string]string{}
	}
	all[noderuntime.KeyConfig] = string(data)
	for _, name := range []string{noderuntime.KeyConfig, noderuntime.KeyRegistries, noderuntime.KeyCA} {
		file := filepath.Join(m.config, name)
		if content, ok := all[name]; ok {
			err = os.WriteFile(file, []byte(content), 0o600)
		} else if err = os.Remove(file); os.IsNotExist(err) {
			err = nil
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
}

// run runs the command and returns its report too.
func (m *machine) run(args ...string) (code int, stdout, stderr string, report noderuntime.Report) {
	m.t.Helper()
	if err := os.WriteFile(m.report, []byte("previous"), 0o600); err != nil {
		m.t.Fatal(err)
	}
	args = append(
		[]string{"configure", "--config-dir=" + m.config, "--host-root=" + m.host, "--report=" + m.report}, args...,
	)
	code, stdout, stderr = runArgs(m.t, args...)
	data, err := os.ReadFile(m.report)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := json.Unmarshal(data, &report); err != nil {
		m.t.Fatalf("%v\n%s", err, data)
	}
	return code, stdout, stderr, report
}

func (m *machine) mustRun(args ...string) (string, noderuntime.Report) {
	m.t.Helper()
	code, stdout, stderr, report := m.run(args...)
	if code != 0 || stderr != "" || report.Error != "" {
		m.t.Fatalf("exit code %d\n%s%s%+v", code, stdout, stderr, report)
	}
	return stdout, report
}

type onNode struct {
	content string
	mode    fs.FileMode
	mtime   time.Time
	inode   uint64
}

func (m *machine) files() map[string]onNode {
	m.t.Helper()
	out := map[string]onNode{}
	if err := filepath.WalkDir(m.host, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(name)
		out[strings.TrimPrefix(name, m.host)] = onNode{
			string(data), info.Mode(), info.ModTime(), info.Sys().(*syscall.Stat_t).Ino,
		}
		return err
	}); err != nil {
		m.t.Fatal(err)
	}
	return out
}

// has checks that the node has exactly these files.
func (m *machine) has(want map[string]string) {
	m.t.Helper()
	got := m.files()
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if content, ok := want[name]; !ok {
			m.t.Errorf("the node has %s:\n%s", name, got[name].content)
		} else if content != got[name].content {
			m.t.Errorf("%s is\n%s\nwant\n%s", name, got[name].content, content)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if _, ok := got[name]; !ok {
			m.t.Errorf("the node does not have %s", name)
		}
	}
}

func (m *machine) same(what string, want map[string]onNode) {
	m.t.Helper()
	if got := m.files(); !maps.Equal(got, want) {
		m.t.Errorf("%s the node has\n%+v\nwant\n%+v", what, got, want)
	}
}

func k3sConfig() noderuntime.Config {
	return noderuntime.Config{
		Release: "zarf/zarf-registry", Address: "127.0.0.1:31999", Directories: []string{"/etc/rancher/k3s", k3sLive},
		K3s: noderuntime.K3s{File: k3sFile},
	}
}

const (
	registries = `mirrors:
  docker.io:
    endpoint: ["https://registry.example.com:5000"]
configs:
  "registry.example.com:5000":
    auth: {username: puller, password: first-secret}
`
)

// The life of a K3s node: installed over existing files, run again, a new password, mirrors only,
// uninstalled.
func TestConfigureK3s(t *testing.T) {
	config := k3sConfig()
	config.Force = true
	secrets := map[string]string{noderuntime.KeyRegistries: registries}
	m := newMachine(t, config, secrets, map[string]string{
		k3sFile: "mirrors: {quay.io: {endpoint: [\"https://mirror.example.com\"]}}\nconfigs: " +
			"{mirror.example.com: {auth: {username: old, password: old-secret}}}\n",
		"/etc/rancher/k3s/k3s.yaml":    "the key of the cluster\n",
		k3sLive + "/gcr.io/hosts.toml": "server = \"https://gcr.io\"\n",
	})
	before := m.files()
	var all strings.Builder

	first, report := m.mustRun()
	golden.File(t, "testdata/configure/k3s-first.golden", first)
	all.WriteString(first)
	files := m.files()
	if got := files[k3sFile]; got.content != ours+registries || got.mode != 0o600 {
		t.Errorf("%s is %+v", k3sFile, got)
	}
	for was, is := range map[string]string{
		k3sFile:                        k3sFile + keep,
		"/etc/rancher/k3s/k3s.yaml":    "/etc/rancher/k3s/k3s.yaml",
		k3sLive + "/gcr.io/hosts.toml": k3sLive + "/gcr.io/hosts.toml",
	} {
		if files[is] != before[was] {
			t.Errorf("%s is %+v, was %+v", is, files[is], before[was])
		}
	}
	if report.Written != 1 || report.Removed != 0 || report.Unchanged != 0 || report.Changed.Before(
		time.Now().Add(-time.Minute),
	) || report.Release != config.Release ||
		report.Registries == nil || report.Registries.Path != k3sFile ||
		!report.Registries.Changed.Equal(files[k3sFile].mtime) {
		t.Errorf("report %+v %+v", report, report.Registries)
	}

	again, second := m.mustRun()
	golden.File(t, "testdata/configure/k3s-again.golden", again)
	m.same("after a second run", files)
	if second.Written != 0 || second.Unchanged != report.Written || !second.Changed.Equal(report.Changed) ||
		second.Registries == nil || !second.Registries.Changed.Equal(report.Registries.Changed) {
		t.Errorf("report %+v", second)
	}

	secrets[noderuntime.KeyRegistries] = strings.Replace(registries, "first-secret", "second-secret", 1)
	m.configure(config, secrets)
	changed, _ := m.mustRun()
	golden.File(t, "testdata/configure/k3s-password.golden", changed)
	all.WriteString(changed)

	config.K3s = noderuntime.K3s{}
	config.Containerd.Directories, config.Mirrors = []string{k3sLive}, []string{"docker.io"}
	m.configure(config, nil)
	mirrors, third := m.mustRun()
	golden.File(t, "testdata/configure/k3s-mirrors.golden", mirrors)
	all.WriteString(mirrors)
	if third.Registries == nil || !third.Registries.Gone || third.Restored != 1 {
		t.Errorf("report %+v %+v", third, third.Registries)
	}
	restored, last := m.mustRun("--restore")
	golden.File(t, "testdata/configure/k3s-restore.golden", restored)
	all.WriteString(restored)
	m.same("after a restore", before)
	if last.Registries != nil || last.Removed != 1 || !last.Changed.IsZero() {
		t.Errorf("report %+v", last)
	}
	for _, secret := range []string{"first-secret", "second-secret", "old-secret", "puller", "the key of the cluster"} {
		if strings.Contains(all.String(), secret) {
			t.Errorf("the log contains %q", secret)
		}
	}
}

// The life of a node with CRI-O and containerd.
func TestConfigureCRIO(t *testing.T) {
	authority, err := pki.NewCA("zarf-registry", time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	ca := string(authority.KeyPair().Certificate)
	config := noderuntime.Config{
		Release: "zarf/zarf-registry", Address: "127.0.0.1:31999", Mirrors: []string{"docker.io"},
		Directories: []string{certsD, "/etc/containers/certs.d", "/etc/containers/registries.conf.d"},
		Containerd:  noderuntime.Containerd{Directories: []string{certsD}},
		CRIO: noderuntime.CRIO{
			CertsDirectory: "/etc/containers/certs.d", ConfDirectory: "/etc/containers/registries.conf.d",
		},
	}
	m := newMachine(t, config, map[string]string{noderuntime.KeyCA: ca}, nil)
	stdout, report := m.mustRun()
	fingerprint := pki.Fingerprint(authority.Certificate())
	if len(report.CA) != 1 || report.CA[0] != fingerprint || report.Written != 3 || report.Registries != nil {
		t.Errorf("report %+v", report)
	}
	for _, want := range []string{crioCA + ": new\n", crioCon + ": new\n", certsD + "/docker.io/hosts.toml: new\n",
		"done: 3 written, 0 unchanged, 0 restored, 0 removed\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the log lacks %q:\n%s", want, stdout)
		}
	}
	files := m.files()
	if got := files[crioCA]; got.content != ours+ca || got.mode != 0o644 {
		t.Errorf("%s is %+v", crioCA, got)
	}
	if got, want := files[certsD+"/docker.io/hosts.toml"].content,
		ours+"\n[host.\"http://127.0.0.1:31999\"]\n  capabilities = [\"pull\", \"resolve\"]\n"; got != want {
		t.Errorf("hosts.toml is\n%s\nwant\n%s", got, want)
	}
	stdout, report = m.mustRun()
	if want := certsD + "/docker.io/hosts.toml: unchanged\n\n" + crioCA + ": unchanged\n\n" + crioCon +
		": unchanged\n\ndone: nothing changed, 3 files are up to date\n"; stdout != want {
		t.Errorf("the log is\n%s\nwant\n%s", stdout, want)
	}
	if len(report.CA) != 1 || report.Unchanged != 3 {
		t.Errorf("report %+v", report)
	}
	m.same("after a second run", files)
	if err := os.Chmod(filepath.Join(m.host, crioCA), 0o600); err != nil {
		t.Fatal(err)
	}
	if stdout, _ = m.mustRun(); !strings.Contains(stdout, crioCA+": changed; permissions only\n\n") ||
		m.files()[crioCA].mode != 0o644 {
		t.Errorf("the log is\n%s", stdout)
	}
	m.mustRun("--restore")
	m.has(nil)
}

// Each case is refused with exit code 3, leaves a report, and changes nothing.
func TestConfigureRefusals(t *testing.T) {
	mirrors := noderuntime.Config{
		Release: "zarf/zarf-registry", Address: "127.0.0.1:31999", Mirrors: []string{"docker.io", "*"},
		Directories: []string{certsD}, Containerd: noderuntime.Containerd{Directories: []string{certsD}},
	}
	for description, tt := range map[string]struct {
		config  noderuntime.Config
		secrets map[string]string
		files   map[string]string
		change  func(t *testing.T, m *machine)
		want    string
	}{
		"a missing configuration": {
			config: mirrors, change: func(t *testing.T, m *machine) { m.config += "/none" }, want: "config.json: no such file",
		},
		"a configuration of another version": {config: mirrors, change: func(t *testing.T, m *machine) {
			if err := os.WriteFile(
				filepath.Join(m.config, noderuntime.KeyConfig), []byte(`{"release":"a/b","later":1}`), 0o600,
			); err != nil {
				t.Fatal(err)
			}
		}, want: `unknown field "later"`},
		"a missing host root": {
			config: mirrors, change: func(t *testing.T, m *machine) { m.host += "/none" }, want: "none: no such file",
		},
		"a missing directory": {config: mirrors, change: func(t *testing.T, m *machine) {
			if err := os.RemoveAll(m.host + "/etc"); err != nil {
				t.Fatal(err)
			}
		}, want: "directory " + certsD + " is missing: mount it at"},
		"an invalid registries.yaml": {
			config:  k3sConfig(),
			secrets: map[string]string{noderuntime.KeyRegistries: "mirrors: [first-secret\n"},
			want:    "K3s cannot read it",
		},
		"a missing registries.yaml": {config: k3sConfig(), want: "is missing"},
		"a file of somebody else": {
			config: mirrors,
			files:  map[string]string{certsD + "/docker.io/hosts.toml": "x"},
			want:   certsD + "/docker.io/hosts.toml was not written by zarf-registry",
		},
		"an alternative name of the host's directory": {
			config: mirrors,
			files:  map[string]string{certsD + "/127.0.0.1_31999_/hosts.toml": "x"},
			want:   certsD + "/127.0.0.1_31999_ exists and takes precedence over " + certsD + "/127.0.0.1:31999",
		},
		"a missing certificate": {
			config:  k3sTLS(),
			secrets: map[string]string{noderuntime.KeyRegistries: withCA},
			want:    "cannot use /etc/ssl/certs/corp.pem: no such file",
		},
		"a link in place of a file": {
			config: mirrors,
			change: func(t *testing.T, m *machine) { m.link("/etc/passwd", certsD+"/docker.io/hosts.toml") },
			want:   "is a symbolic link",
		},
	} {
		t.Run(description, func(t *testing.T) {
			m := newMachine(t, tt.config, tt.secrets, tt.files)
			host := m.host
			if tt.change != nil {
				tt.change(t, m)
			}
			before := listing(t, host)
			code, stdout, stderr, report := m.run()
			if code != exitcode.Refused || !strings.Contains(stderr, tt.want) || !strings.Contains(stderr, "--help") ||
				stdout != "" {
				t.Errorf("exit code %d, want %q\n%s%s", code, tt.want, stdout, stderr)
			}
			if !strings.Contains(report.Error, tt.want) || report.Written != 0 {
				t.Errorf("report %+v", report)
			}
			if strings.Contains(stderr+report.Error, "first-secret") {
				t.Error("a secret is displayed")
			}
			if after := listing(t, host); after != before {
				t.Errorf("the node has\n%s\nhad\n%s", after, before)
			}
		})
	}
}

const withCA = "mirrors: {docker.io: {endpoint: [\"https://r.example.com\"]}}\nconfigs: {r.example.com: {tls: " +
	"{ca_file: /etc/ssl/certs/corp.pem}}}\n"

func k3sTLS() noderuntime.Config {
	config := k3sConfig()
	config.TLSDirectories = []string{"/etc/ssl/certs"}
	return config
}

func TestConfigureChecksCertificates(t *testing.T) {
	secrets := map[string]string{noderuntime.KeyRegistries: withCA}
	m := newMachine(t, k3sTLS(), secrets, map[string]string{"/usr/share/corp.pem": "x"})
	m.write("/etc/ssl/certs/corp.pem", "x")
	if _, report := m.mustRun(); len(report.Warnings) != 0 {
		t.Errorf("warnings %v", report.Warnings)
	}
	m = newMachine(t, k3sConfig(), secrets, nil)
	if _, report := m.mustRun(); len(report.Warnings) != 1 ||
		!strings.Contains(report.Warnings[0], "nodeConfig.tlsDirectories") {
		t.Errorf("warnings %v", report.Warnings)
	}
}

func (m *machine) link(target, name string) {
	m.t.Helper()
	at := filepath.Join(m.host, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Symlink(target, at); err != nil {
		m.t.Fatal(err)
	}
}

// listing lists a tree without following links.
func listing(t *testing.T, root string) string {
	t.Helper()
	var out strings.Builder
	if err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		out.WriteString(strings.TrimPrefix(name, root) + " " + info.Mode().String())
		if !entry.IsDir() {
			out.WriteString(" " + info.ModTime().String())
		}
		out.WriteString("\n")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// A file system fails halfway: exit code 1, and the report says how far it got. A folder that is a
// mount point cannot be removed.
func TestConfigureFails(t *testing.T) {
	config := noderuntime.Config{
		Release: "zarf/zarf-registry", Address: "127.0.0.1:31999", Directories: []string{certsD},
		Containerd: noderuntime.Containerd{Directories: []string{certsD}}, Mirrors: []string{"ghcr.io", "quay.io"},
	}
	m := newMachine(t, config, nil, nil)
	m.mustRun()
	folder := filepath.Join(m.host, certsD, "quay.io")
	if err := syscall.Mount(folder, folder, "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("needs to mount (%v): run it as root", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(folder, syscall.MNT_DETACH) })
	code, stdout, stderr, report := m.run("--restore")
	if code != exitcode.Failed || !strings.Contains(stderr, certsD+"/quay.io") || !strings.Contains(stderr, "busy") ||
		!strings.Contains(stdout, "failed after 0 written, 0 unchanged, 0 restored, 1 removed\n") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	if report.Removed != 1 || !strings.Contains(report.Error, "busy") {
		t.Errorf("report %+v", report)
	}
	if err := syscall.Unmount(folder, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	m.mustRun("--restore")
	m.has(nil)
}

func TestConfigureRestoreWithoutSecrets(t *testing.T) {
	config := k3sConfig()
	config.K3s.ExistingSecret, config.K3s.ExistingSecretKey = "gone", "registries.yaml"
	config.Directories = append(config.Directories, "/etc/crio")
	m := newMachine(t, config, nil, map[string]string{k3sFile: ours + registries, k3sFile + keep: "old: {}\n"})
	if err := os.Remove(filepath.Join(m.host, "/etc/crio")); err != nil {
		t.Fatal(err)
	}
	stdout, report := m.mustRun("--restore")
	m.has(map[string]string{k3sFile: "old: {}\n"})
	if report.Restored != 1 || report.Registries == nil || !report.Registries.Gone ||
		report.Registries.Changed.Before(time.Now().Add(-time.Minute)) || !strings.Contains(stdout, "systemctl restart k3s") {
		t.Errorf("report %+v %+v\n%s", report, report.Registries, stdout)
	}
}

func TestConfigureWithoutReport(t *testing.T) {
	m := newMachine(t, k3sConfig(), map[string]string{noderuntime.KeyRegistries: registries}, nil)
	args := []string{"configure", "--config-dir=" + m.config, "--host-root=" + m.host}
	if code, _, stderr := runArgs(t, append(args, "--report=")...); code != 0 {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	if code, _, stderr := runArgs(t, append(args, "--report="+m.host+"/none/report")...); code != exitcode.Failed ||
		!strings.Contains(stderr, "writing the report") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	m.configure(k3sConfig(), nil)
	if code, _, stderr := runArgs(t, append(args, "--report="+m.host+"/none/report")...); code != exitcode.Refused ||
		!strings.Contains(stderr, "writing the report") || !strings.Contains(stderr, "is missing") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

func TestPause(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	var stdout, stderr bytes.Buffer
	go func() { ended <- Run(ctx, []string{"pause"}, &stdout, &stderr) }()
	select {
	case code := <-ended:
		t.Fatalf("it exited by itself with code %d", code)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	if code := <-ended; code != 0 || stdout.Len()+stderr.Len() != 0 {
		t.Errorf("exit code %d\n%s%s", code, &stdout, &stderr)
	}
}
