package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/cli"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// run runs a command line on a machine without a cluster.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	// Not empty: the developer's own ~/.kube/config would be used.
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	var out, errOut bytes.Buffer
	code = cli.Run(args, &out, &errOut)
	return code, out.String(), errOut.String()
}

func TestVersionIsTheReleaseAlone(t *testing.T) {
	if code, out, _ := run(t, "version"); code != 0 || out != version.Version+"\n" {
		t.Errorf("exit code %d, output %q", code, out)
	}
}

func TestEveryCommandHelpsWithAnExample(t *testing.T) {
	for _, command := range [][]string{{"prepare"}, {"finish"}, {"cleanup"}, {"images", "push"}} {
		code, out, _ := run(t, append(command, "--help")...)
		if code != 0 || !strings.Contains(out, "Examples:\n  init-hook "+strings.Join(command, " ")) {
			t.Errorf("%v: exit code %d, help:\n%s", command, code, out)
		}
	}
}

func TestBadInputIsRefusedWithOneClearLine(t *testing.T) {
	rubbish := filepath.Join(t.TempDir(), "rubbish.tar")
	if err := os.WriteFile(rubbish, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"unknown command":       {[]string{"prepaer"}, 1, `unknown command "prepaer"`},
		"unknown flag":          {[]string{"prepare", "--colour"}, 1, "unknown flag: --colour"},
		"impossible namespace":  {[]string{"cleanup", "--namespace", "Not_One"}, 2, `--namespace is "Not_One"`},
		"impossible release":    {[]string{"cleanup", "--release", "Not One"}, 2, `--release is "Not One"`},
		"impossible port":       {[]string{"prepare", "--payload-id", "1", "--port", "70000"}, 2, "--port is 70000"},
		"unknown IP family":     {[]string{"prepare", "--payload-id", "1", "--ip-family", "IPX"}, 2, `--ip-family is "IPX": choose IPv4, IPv6 or DualStack`},
		"unknown source":        {[]string{"prepare", "--payload-id", "1", "--pause-image-source", "dream"}, 2, `--pause-image-source is "dream"`},
		"no payload's name":     {[]string{"prepare"}, 2, "--payload-id is empty"},
		"no time":               {[]string{"cleanup", "--timeout", "0s"}, 2, "leaves no time"},
		"unknown log format":    {[]string{"cleanup", "--log-format", "xml"}, 2, `--log-format is "xml"`},
		"no cluster":            {[]string{"cleanup"}, 1, "--kubeconfig or KUBECONFIG"},
		"no such kubeconfig":    {[]string{"cleanup", "--kubeconfig", "/nonexistent"}, 1, "/nonexistent"},
		"nothing to push":       {[]string{"images", "push"}, 1, "requires at least 1 arg"},
		"no such archive":       {[]string{"images", "push", "/nonexistent.tar"}, 1, "/nonexistent.tar"},
		"an archive of rubbish": {[]string{"images", "push", rubbish}, 1, rubbish},
		"unknown output":        {[]string{"images", "push", "-o", "xml", rubbish}, 1, `--output is "xml"`},
		"one name for two":      {[]string{"images", "push", "--reference", "a:1", rubbish, rubbish}, 1, "--reference names one image"},
	} {
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
