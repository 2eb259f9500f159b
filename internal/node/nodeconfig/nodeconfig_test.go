package nodeconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func writeFile(t *testing.T, name, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
}

func link(t *testing.T, target, name string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.Symlink(target, name))
}

func TestLookBelow(t *testing.T) {
	host := t.TempDir()
	writeFile(t, host+"/etc/ssl/certs/ca.pem", "x")
	writeFile(t, host+"/usr/share/ca/real.pem", "x")
	writeFile(t, host+"/elsewhere/ca.pem", "x")
	link(t, "ca.pem", host+"/etc/ssl/certs/relative.pem")
	link(t, "/usr/share/ca/real.pem", host+"/etc/ssl/certs/absolute.pem")
	link(t, "../../../usr/share/ca/real.pem", host+"/etc/ssl/certs/up.pem")
	link(t, "../../../../../../../../usr/share/ca/real.pem", host+"/etc/ssl/certs/above.pem")
	link(t, "/elsewhere/ca.pem", host+"/etc/ssl/certs/hidden.pem")
	link(t, "loop.pem", host+"/etc/ssl/certs/loop.pem")
	link(t, "/etc/ssl/certs/none", host+"/etc/ssl/certs/dangling.pem")
	link(t, "certs", host+"/etc/ssl/other")
	look := lookBelow(host, []string{"/etc/ssl", "/usr/share/ca"})
	for name, want := range map[string]string{
		"/etc/ssl/certs/ca.pem":        "",
		"/etc/ssl/certs/relative.pem":  "",
		"/etc/ssl/certs/absolute.pem":  "",
		"/etc/ssl/certs/up.pem":        "",
		"/etc/ssl/certs/above.pem":     "",
		"/etc/ssl/other/ca.pem":        "",
		"/etc/ssl/certs/../certs/x":    "no such file",
		"/etc/ssl/certs/hidden.pem":    "not mounted",
		"/elsewhere/ca.pem":            "not mounted",
		"/etc/sslx/ca.pem":             "not mounted",
		"/etc/passwd":                  "not mounted",
		"/etc":                         "not a file",
		"/":                            "not a file",
		"/etc/ssl":                     "not a file",
		"/etc/ssl/certs":               "not a file",
		"/etc/ssl/certs/":              "not a file",
		"/etc/ssl/certs/loop.pem":      "dangling",
		"/etc/ssl/certs/dangling.pem":  "no such file",
		"/etc/ssl/certs/none.pem":      "no such file",
		"/etc/ssl/certs/ca.pem/inside": "not a directory",
		"relative":                     "absolute",
	} {
		err := look(name)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", name, err, want)
		case want == "not mounted" && !errors.Is(err, noderuntime.ErrNotMounted):
			t.Errorf("%s: unexpected error %v", name, err)
		case err != nil && strings.Contains(err.Error(), host):
			t.Errorf("%s: the error names the pod's path: %v", name, err)
		}
	}
}

func TestReadOneGeneration(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/..2026_01/config.json", `{"release":"a/b"}`)
	writeFile(t, dir+"/..2026_01/registries.yaml", "")
	writeFile(t, dir+"/config.json", `{"release":"of another generation"}`)
	link(t, "..2026_01", dir+"/..data")
	in, err := read(dir, false)
	if err != nil || in.Config.Release != "a/b" {
		t.Fatalf("%+v, %v", in, err)
	}
	if in.Registries == nil || len(in.Registries) != 0 {
		t.Errorf("an empty registries.yaml is read as %v", in.Registries)
	}
	if in.CA != nil {
		t.Errorf("a missing ca.crt is read as %v", in.CA)
	}
}

func TestAwaitSum(t *testing.T) {
	for name, c := range map[string]struct {
		sum    string
		during func(dir string)
		fails  bool
		waits  bool
	}{
		"the mounted one":       {sum: "previous"},
		"none":                  {},
		"another configuration": {sum: "present", fails: true, waits: true},
		"one that comes": {sum: "present", waits: true, during: func(dir string) {
			writeFile(t, dir+"/new", "present")
			if err := os.Rename(dir+"/new", dir+"/sum"); err != nil {
				t.Error(err)
			}
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			writeFile(t, dir+"/sum", "previous")
			var log strings.Builder
			r := run{Options: Options{ConfigDir: dir, Sum: c.sum, Log: &log}}
			if c.during != nil {
				time.AfterFunc(sumTime-time.Second, func() { c.during(dir) })
			}
			err := r.awaitSum(t.Context())
			if c.fails != (err != nil) || err != nil && (!strings.Contains(err.Error(), "retries") ||
				errors.As(err, new(*exitcode.Refusal))) {
				t.Errorf("%s: %v", name, err)
			}
			if strings.Contains(log.String(), "waiting") != c.waits || !c.waits && log.Len() > 0 {
				t.Errorf("%s: log %q", name, &log)
			}
		})
	}
}

// A truncated termination message is invalid JSON, so Encode truncates the report.
func TestEncode(t *testing.T) {
	report := noderuntime.Report{
		Release: "zarf/zarf-registry", Written: 3, Changed: time.Date(2026, 11, 21, 20, 0, 0, 123, time.UTC),
		CA:         []string{strings.Repeat("a", 64), strings.Repeat("b", 64)},
		Registries: &noderuntime.RegistriesReport{Path: "/etc/rancher/k3s/registries.yaml"},
	}
	for description, tt := range map[string]struct {
		warnings int
		err      string
		cut      bool
	}{
		"a short report":               {1, "", false},
		"many warnings":                {1000, "", true},
		"a long error":                 {0, strings.Repeat("é", 5000), true},
		"an error with escapes":        {0, strings.Repeat("\n\"", 5000), true},
		"many warnings and one line":   {1000, "no", true},
		"everything":                   {1000, strings.Repeat("x\n", 5000), true},
		"characters that HTML escapes": {0, strings.Repeat("<REDACTED>", 300), false},
	} {
		t.Run(description, func(t *testing.T) {
			r := report
			r.Error = tt.err
			for i := range tt.warnings {
				r.Warnings = append(r.Warnings, fmt.Sprintf("warning %d: %s", i, strings.Repeat("<w>", 20)))
			}
			data := Encode(r)
			if len(data) >= maxReport || tt.cut && len(data) < maxReport/2 {
				t.Errorf("%d bytes", len(data))
			}
			var got noderuntime.Report
			require.NoError(t, json.Unmarshal(data, &got), data)
			if got.Written != 3 || len(got.CA) != 2 || (got.Error == "") != (tt.err == "") || got.Registries == nil {
				t.Errorf("got %+v", got)
			}
			if cut := got.Error != tt.err || len(got.Warnings) != tt.warnings; cut != tt.cut {
				t.Errorf("cut: %v", cut)
			}
			if tt.warnings == 1000 && !strings.HasSuffix(got.Warnings[len(got.Warnings)-1], "more, see the log") {
				t.Errorf("the last warning is %q", got.Warnings[len(got.Warnings)-1])
			}
			if len(r.Warnings) != tt.warnings {
				t.Error("the caller's warnings were changed")
			}
		})
	}
}
