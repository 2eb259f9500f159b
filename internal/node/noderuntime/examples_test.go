package noderuntime

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	k3sFile  = "/etc/rancher/k3s/registries.yaml"
	k3sCerts = "/var/lib/rancher/k3s/agent/etc/containerd/certs.d"
	certsDir = "/etc/containerd/certs.d"
	address  = "127.0.0.1:31999"
)

// k3sConfig returns a configuration for K3s.
func k3sConfig() Config {
	return Config{Release: "zarf/zarf-registry", Directories: []string{"/etc/rancher/k3s"}, K3s: K3s{File: k3sFile}}
}

// sections parses a file of sections, each below a line "-- name --".
func sections(t *testing.T, data string) (names []string, parts map[string]string) {
	t.Helper()
	parts = map[string]string{}
	header := regexp.MustCompile(`(?m)^-- (.+) --\n`)
	found := header.FindAllStringSubmatchIndex(data, -1)
	for i, at := range found {
		end := len(data)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		name := data[at[2]:at[3]]
		names, parts[name] = append(names, name), data[at[1]:end]
	}
	return names, parts
}

// An example file contains what the user writes and the previous files, then the node's files byte
// for byte and the log output.
func TestExamples(t *testing.T) {
	files, _ := filepath.Glob("testdata/examples/*.txt")
	if len(files) < 8 {
		t.Fatalf("only %d examples", len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data := require.Value(os.ReadFile(file))(t)
			names, parts := sections(t, string(data))
			var got strings.Builder
			for _, name := range names {
				if name == "secrets" || name == "old" || name == "registries.yaml" {
					fmt.Fprintf(&got, "-- %s --\n%s", name, parts[name])
				}
			}
			looked := map[string]bool{}
			desired, err := Build(Inputs{Config: k3sConfig(), Registries: []byte(
				parts["registries.yaml"],
			), CheckTLS: func(name string) error {
				looked[name] = true
				return nil
			}})
			require.NoError(t, err)
			var log strings.Builder
			for _, f := range desired.Files {
				var old []byte
				if before, there := parts["old"]; there && f.Path == k3sFile {
					old = []byte(before)
				}
				fmt.Fprintf(&got, "-- %s %#o --\n%s", f.Path, f.Mode, f.Content)
				fmt.Fprintf(&got, "-- log of %s --\n%s", f.Path, Diff(f.Path, f.Kind, old, f.Content))
				log.WriteString(Diff(f.Path, f.Kind, old, f.Content))
			}
			fmt.Fprintf(&got, "-- warnings --\n%s\n", strings.Join(desired.Warnings, "\n"))
			for _, w := range append(desired.Warnings, log.String()) {
				holdsNone(t, w, strings.Fields(parts["secrets"]))
			}
			for name := range parts {
				if content, found := strings.CutPrefix(name, k3sFile); found && content != "" &&
					parts[name] != parts["registries.yaml"] {
					t.Error("the file differs from what the user wrote")
				}
			}
			if parts["registries.yaml"] != "" && strings.Contains(parts["registries.yaml"], "_file") && len(looked) == 0 {
				t.Error("no certificate was checked")
			}
			golden.File(t, file, got.String())
		})
	}
}

// holdsNone fails if text contains one of the secrets or a part of it in base64.
func holdsNone(t *testing.T, text string, secrets []string) {
	t.Helper()
	for _, s := range secrets {
		if strings.Contains(text, s) || strings.Contains(text, base64.RawStdEncoding.EncodeToString([]byte(s))) {
			t.Errorf("secret %s is contained in:\n%s", s, text)
		}
	}
}
