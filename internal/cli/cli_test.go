package cli

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"

	"github.com/zarf-dev/zarf-registry/internal/cli/clitest"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/version"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// Run runs a command line on a machine without a cluster.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	// Not empty: the developer's own ~/.kube/config would be used.
	return runAt(t, filepath.Join(t.TempDir(), "none"), args...)
}

// runAt runs a command line on a machine with a kubeconfig.
func runAt(t *testing.T, kubeconfig string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	t.Setenv("KUBECONFIG", kubeconfig)
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	var out, errOut bytes.Buffer
	code = Run("zarf-registry", args, &out, &errOut)
	return code, out.String(), errOut.String()
}

// newKubeconfig writes a kubeconfig for an API server.
func newKubeconfig(t *testing.T, server string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, []byte(`apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "`+server+`"}}]
users: [{name: jane, user: {}}]
contexts: [{name: prod, context: {cluster: a}}, {name: test, context: {cluster: a}}]
current-context: prod
`), 0o600))
	return path
}

func TestVersionIsTheReleaseAlone(t *testing.T) {
	if code, out, _ := run(t, "version"); code != 0 || out != version.Version+"\n" {
		t.Errorf("exit code %d, output %q", code, out)
	}
}

func TestTheHelpFitsAScreen(t *testing.T) {
	for program, name := range map[string]string{
		"zarf-registry": "zarf-registry", "/usr/local/bin/zarf-registry-linux-amd64": "zarf-registry",
		"/init-hook": "init-hook", "/root/.krew/bin/kubectl-zarf_registry": "kubectl zarf-registry",
	} {
		var out, examples bytes.Buffer
		if code := Run(program, []string{"--help"}, &out, &out); code != 0 {
			t.Errorf("%s: exit code %d", program, code)
		}
		lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
		for _, line := range lines {
			if len(line) > 80 {
				t.Errorf("%s: longer than 80 columns: %s", program, line)
			}
		}
		if len(lines) > 24 {
			t.Errorf("%s: %d lines", program, len(lines))
		}
		for _, want := range []string{"Usage: " + name + " COMMAND\n", "\n  install ", " options shows the flags of all commands.\n", "images push", "\n  status ",
			"what to do if not", "\n  heal "} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: the help lacks %q:\n%s", program, want, &out)
			}
		}
		for _, job := range []string{"prepare", "finish", "cleanup", "check "} {
			if strings.Contains(out.String(), "\n  "+job) {
				t.Errorf("%s: the help shows the Jobs' command %s:\n%s", program, job, &out)
			}
		}
		Run(program, []string{"images", "push", "--help"}, &examples, &examples)
		for _, want := range []string{"Examples:\n  " + name + " images push app.tar\n", "\n" + name + " options shows "} {
			if !strings.Contains(examples.String(), want) {
				t.Errorf("%s: the help of images push lacks %q:\n%s", program, want, &examples)
			}
		}
		if strings.Contains(examples.String(), "--kubeconfig") {
			t.Errorf("%s: the help of images push shows flags of all commands:\n%s", program, &examples)
		}
	}
}

func TestEveryCommandHelpsWithAnExample(t *testing.T) {
	for _, command := range [][]string{{"install"}, {"uninstall"}, {"status"}, {"heal"},
		{"support-bundle"}, {"prepare"}, {"finish"}, {"cleanup"},
		{"images", "pull"}, {"images", "push"}, {"images", "copy"}, {"images", "list"},
		{"images", "store", "info"}, {"images", "store", "prune"}, {"certs", "show"}, {"certs", "ca"}, {"certs", "renew"},
		{"certs", "rotate"}, {"credentials", "rotate"}} {
		code, out, _ := run(t, append(command, "--help")...)
		if code != 0 || !strings.Contains(out, "Examples:\n  zarf-registry "+strings.Join(command, " ")) {
			t.Errorf("%v: exit code %d, help:\n%s", command, code, out)
		}
	}
}

func TestBadInputIsRefusedWithOneClearLine(t *testing.T) {
	rubbish := filepath.Join(t.TempDir(), "rubbish.tar")
	require.NoError(t, os.WriteFile(rubbish, []byte("rubbish"), 0o600))
	type refusal struct {
		args []string
		code int
		want string
	}
	cases := map[string]refusal{
		"unknown command":    {[]string{"instal"}, 3, `unknown command "instal" for "zarf-registry": did you mean install?`},
		"unknown flag":       {[]string{"prepare", "--colour"}, 3, "unknown flag: --colour\nsee zarf-registry prepare --help\n"},
		"both":               {[]string{"instal", "--dry-run"}, 3, `unknown command "instal" for "zarf-registry": did you mean install?`},
		"a mistyped flag":    {[]string{"images", "list", "--untaged"}, 3, "unknown flag: --untaged: did you mean --untagged?"},
		"an inherited flag":  {[]string{"status", "--namspace=a"}, 3, "--namspace: did you mean --namespace?"},
		"a usage error":      {[]string{"images", "pull", "nginx"}, 3, "\nsee zarf-registry images pull --help\n"},
		"impossible name":    {[]string{"cleanup", "--name", "1x"}, 3, `invalid name "1x"`},
		"impossible release": {[]string{"cleanup", "--release", "Not One"}, 3, `invalid release name "Not One"`},
		"settings that are no JSON": {[]string{"prepare", "--settings", "rubbish"}, 3,
			"invalid --settings: decoding settings: "},
		"settings with an unknown field": {[]string{"finish", "--settings", `{"colour":"red"}`}, 3, `unknown field "colour"`},
		"no settings":                    {[]string{"prepare"}, 3, `required flag(s) "settings" not set`},
		"unknown log format":             {[]string{"cleanup", "--log-format", "xml"}, 3, `invalid --log-format "xml"`},
		"check: no time":                 {[]string{"check", "tls", "--registry", "a:1", "--timeout", "0s"}, 3, "want a duration such as"},
		"check: no files":                {[]string{"check", "tls", "--registry", "a:1", "--push-dir", "/nonexistent"}, 3, "/nonexistent"},
		"no such kubeconfig":             {[]string{"cleanup", "--kubeconfig", "/nonexistent"}, 3, "/nonexistent"},
		"no such archive":                {[]string{"images", "push", "/nonexistent.tar"}, 1, "/nonexistent.tar"},
		"an archive of rubbish":          {[]string{"images", "push", rubbish}, 1, rubbish},
		"install: impossible release":    {[]string{"install", "--release", "Not One"}, 3, `invalid release name "Not One"`},
		"install: a release too long": {[]string{"install", "--release", strings.Repeat("a", 54)}, 3,
			"invalid release name"},
		"install: no such values":         {[]string{"install", "-f", "/nonexistent.yaml"}, 3, "/nonexistent.yaml"},
		"install: values of rubbish":      {[]string{"install", "--set", "a[b=c"}, 3, "--set"},
		"install: no such chart":          {[]string{"install", "--chart", "/nonexistent"}, 3, "/nonexistent"},
		"install: not true, not false":    {[]string{"install", "--registry-proxy=maybe"}, 3, "--registry-proxy"},
		"install: an argument":            {[]string{"install", "zarf-registry"}, 3, `unknown command "zarf-registry"`},
		"uninstall: impossible release":   {[]string{"uninstall", "--release", "Not One"}, 3, `invalid release name "Not One"`},
		"images: unknown command":         {[]string{"images", "pul"}, 3, `"pul" for "zarf-registry images": did you mean push or pull?`},
		"support-bundle: impossible name": {[]string{"support-bundle", "--name", "a.b"}, 3, `invalid name "a.b"`},
		"support-bundle: no lines":        {[]string{"support-bundle", "--tail", "0"}, 3, "invalid --tail 0"},
		"support-bundle: less than a second": {[]string{"support-bundle", "--since", "10ms"}, 3,
			`"--since" flag: want a duration`},
		"support-bundle: two results on stdout": {[]string{"support-bundle", "--out", "-", "--output", "json"}, 3,
			"both write to stdout"},
		"certs: unknown command": {[]string{"certs", "renw"}, 3, `"renw" for "zarf-registry certs": did you mean renew?
see zarf-registry certs --help
`},
		"certs ca: no JSON":            {[]string{"certs", "ca", "--output", "json"}, 3, "unknown flag: --output"},
		"certs ca: impossible name":    {[]string{"certs", "ca", "--name", "a.b"}, 3, `invalid name "a.b"`},
		"certs rotate: an argument":    {[]string{"certs", "rotate", "ca"}, 3, `unknown command "ca"`},
		"credentials: unknown flag":    {[]string{"credentials", "rotate", "--push"}, 3, "unknown flag: --push"},
		"credentials: an unknown one":  {[]string{"credentials", "rotate", "nobody"}, 3, `invalid argument "nobody"`},
		"credentials: two names":       {[]string{"credentials", "rotate", "ci", "pull"}, 3, "accepts at most 1 arg"},
		"garbage-collect: no grace":    {[]string{"images", "garbage-collect", "--grace-period=-1h"}, 3, "want a duration"},
		"garbage-collect: no time":     {[]string{"images", "garbage-collect", "--timeout=25h"}, 3, "invalid timeout 25h"},
		"garbage-collect: an argument": {[]string{"images", "garbage-collect", "now"}, 3, `unknown command "now"`},
		"scrub: no rate":               {[]string{"images", "scrub", "--rate=0"}, 3, "invalid rate 0"},
		"scrub: a rate in words":       {[]string{"images", "scrub", "--rate=fast"}, 3, "want a size"},
	}
	for _, c := range []struct{ flag, want, commands string }{
		{"", "--kubeconfig or KUBECONFIG", "cleanup, install, install --dry-run, uninstall, status, heal, " +
			"support-bundle, certs show, certs ca, certs renew, certs rotate --ca, credentials rotate pull"},
		{"--output=wide", "want table, json", "install, status, heal, support-bundle, certs show, " +
			"images garbage-collect, images scrub"},
		{"--namespace=Not_One", `invalid namespace "Not_One"`, "cleanup, install, status, heal, certs renew, " +
			"images garbage-collect, images browse, images scrub"},
		{"--timeout=0s", `invalid argument "0s" for "--timeout" flag: want a duration`, "cleanup, install, uninstall, support-bundle, " +
			"certs show, certs renew, status, images garbage-collect, images prune --untagged"},
	} {
		for command := range strings.SplitSeq(c.commands, ", ") {
			cases[command+" "+c.flag] = refusal{strings.Fields(command + " " + c.flag), exitcode.Refused, c.want}
		}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := run(t, c.args...)
			if code != c.code || !strings.Contains(errOut, c.want) {
				t.Errorf("exit code %d, want %d; error:\n%swant %q", code, c.code, errOut, c.want)
			}
			if out != "" {
				t.Errorf("it printed results: %s", out)
			}
		})
	}
}

// Flags of the cluster select it, and the identity there, in any command that connects to one.
func TestTheClusterIsSelectedAsInKubectl(t *testing.T) {
	var asked *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	for _, command := range [][]string{{"certs", "ca"}, {"images", "list"}, {"heal"}} {
		asked = nil
		code, _, errOut := run(t, append([]string{"--as", "jane", "--as-group=team", "-s", server.URL, "-n", "there"},
			command...)...)
		if code != exitcode.Failed || asked == nil {
			t.Errorf("%v: exit code %d, %s", command, code, errOut)
			continue
		}
		if as := asked.Header; as.Get("Impersonate-User") != "jane" || as.Get("Impersonate-Group") != "team" ||
			!strings.Contains(asked.URL.Path, "/namespaces/there/") {
			t.Errorf("%v asks for %s as %v", command, asked.URL, as)
		}
	}
	for want, args := range map[string][]string{
		"Invalid timeout value":           {"--request-timeout=soon"},
		"without impersonating a user":    {"--as-group=team"},
		`context "absent" does not exist`: {"--context=absent"},
	} {
		if code, _, errOut := run(t, append([]string{"status", "-s", server.URL}, args...)...); code != exitcode.Refused ||
			!strings.Contains(errOut, want) {
			t.Errorf("%v: exit code %d, %s", args, code, errOut)
		}
	}
}

// Commands that connect to no cluster ignore its flags.
func TestFlagsOfAllCommands(t *testing.T) {
	for _, command := range []string{"version", "options"} {
		if code, _, errOut := run(t, command, "--kubeconfig=/nonexistent", "--context=absent"); code != 0 {
			t.Errorf("%s: exit code %d, %s", command, code, errOut)
		}
		if code, _, errOut := run(t, command, "--log-format=xml"); code != exitcode.Refused {
			t.Errorf("%s --log-format=xml: exit code %d, %s", command, code, errOut)
		}
	}
	_, out, _ := run(t, "options")
	for _, flag := range []string{"kubeconfig", "context", "cluster", "user", "as", "as-group", "as-uid", "server", "token",
		"tls-server-name", "certificate-authority", "client-certificate", "client-key", "insecure-skip-tls-verify",
		"request-timeout", "namespace", "release", "log-level", "log-format"} {
		if !strings.Contains(out, "--"+flag+" ") {
			t.Errorf("options lacks --%s:\n%s", flag, out)
		}
	}
	if strings.Contains(out, "--username") || strings.Contains(out, "--store-dir") {
		t.Errorf("options has flags that commands have:\n%s", out)
	}
}

func TestReleasesElsewhereThanInSecretsAreRefused(t *testing.T) {
	t.Setenv("HELM_DRIVER", "configmap")
	if code, _, errOut := run(t, "install"); code != exitcode.Refused || !strings.Contains(errOut, "HELM_DRIVER") {
		t.Errorf("exit code %d, error:\n%s", code, errOut)
	}
}

func TestAGroupOfCommandsSaysWhatIsInIt(t *testing.T) {
	for group, want := range map[string]string{"images": "push", "certs": "rotate", "credentials": "rotate"} {
		if code, out, _ := run(t, group); code != 0 || !strings.Contains(out, "\n  "+want+" ") {
			t.Errorf("%s: exit code %d, output:\n%s", group, code, out)
		}
	}
}

func TestShellsCanComplete(t *testing.T) {
	for _, command := range [][]string{{"install"}, {"status"}, {"images", "pull"}, {"images", "push"},
		{"images", "copy"}, {"images", "list"}, {"images", "store", "info"}, {"certs", "show"},
		{"support-bundle"}} {
		_, out, _ := run(t, append(append([]string{"__complete"}, command...), "--output", "")...)
		if !strings.HasPrefix(out, "table\njson\nyaml\n") {
			t.Errorf("%v --output completes to %q", command, out)
		}
	}
}

func TestTheEnvironmentNamesTheRelease(t *testing.T) {
	server := newAPIServer(t, nil)
	t.Setenv("ZARF_REGISTRY_NAMESPACE", "there")
	t.Setenv("ZARF_REGISTRY_RELEASE", "mine")
	for args, want := range map[string]string{
		"certs ca":            "Secret there/zarf-registry-node-tls not found",
		"certs ca -n here":    "Secret here/zarf-registry-node-tls not found",
		"uninstall --dry-run": "elease mine",
	} {
		if _, out, errOut := runAt(t, server.kubeconfig, strings.Fields(args)...); !strings.Contains(out+errOut, want) {
			t.Errorf("%s prints %s%s, want %q", args, out, errOut, want)
		}
	}
	for want, release := range map[string][3]string{"": {"there", "mine", "zarf-registry"},
		" --namespace zarf --release zarf-registry": {"zarf", "zarf-registry", "zarf-registry"}} {
		if got := cmdflags.ReleaseArguments(release[0], release[1], release[2]); got != want {
			t.Errorf("%q are named by %q, want %q", release, got, want)
		}
	}
}

func TestTheVersionAsDataSaysFromWhatItWasBuilt(t *testing.T) {
	_, out, _ := run(t, "version", "--output", "yaml")
	for _, want := range []string{"kind: Version\n", "go: " + runtime.Version() + "\n", "problem: 'no cluster configured",
		"release: null\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("it lacks %q:\n%s", want, out)
		}
	}
	helm := &action.Configuration{Releases: storage.Init(driver.NewMemory())}
	if r, err := readRelease(helm, "zarf-registry"); r != nil || err != nil {
		t.Errorf("without a release: %v, %v", r, err)
	}
	require.NoError(t, helm.Releases.Create(&release.Release{Name: "zarf-registry", Namespace: "zarf", Version: 3,
		Info:  &release.Info{Status: release.StatusDeployed},
		Chart: &chart.Chart{Metadata: &chart.Metadata{Name: "zarf-registry", Version: "0.2.0", AppVersion: "0.2.1"}}},
	))
	r := require.Value(readRelease(helm, "zarf-registry"))(t)
	clitest.JSON(t, render.Version, clitest.Data(t, render.Version, programVersion{Version: "0.1.0",
		Commit: "44fea3ed0ee4ae7a0ea6d6d3b7ddff6bfb6d39a4", Go: "go1.26.8", Chart: "0.1.0", Release: r}))
}
