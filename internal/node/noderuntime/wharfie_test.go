package noderuntime

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/rancher/wharfie/pkg/registries"
)

// K3s' parser interprets an accepted configuration as intended: it uses the endpoint, its path,
// rewrite, credentials and CA, in every notation.
func TestK3sReadsAcceptedConfigurations(t *testing.T) {
	const manifest = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":2,"digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},"layers":[]}`
	for title, c := range map[string]struct {
		// settings of the endpoint's host, with CA standing for the CA file
		settings, rewrite, want string
	}{
		"a user and a password": {
			"{auth: {username: user, password: '0123'}, tls: {ca_file: CA}}", "", "library/hello user:0123",
		},
		"a password of digits": {
			"{auth: {username: user, password: 0123}, tls: {ca_file: CA}}", "", "library/hello user:0123",
		},
		"both in one string": {"{auth: {auth: dXNlcjowMTIz}, tls: {ca_file: CA}}", "", "library/hello user:0123"},
		"no verification": {
			"{auth: {username: user, password: a b}, tls: {insecure_skip_verify: yes}}", "", "library/hello user:a b",
		},
		"a rewrite":              {"{tls: {ca_file: CA}}", "rewrite: {'^library/(.*)': 'mirrored/$1'}", "mirrored/hello "},
		"settings from an alias": {"&a {tls: {ca_file: CA}}\n  'x.io': *a", "", "library/hello "},
		"settings from a merge": {
			"{<<: {tls: {ca_file: CA}}, auth: {<<: {username: user}, password: p}}", "", "library/hello user:p",
		},
		"a merge that adds settings": {
			"{<<: {auth: {username: user}}, auth: {password: p}, tls: {ca_file: CA}}", "", "library/hello user:p",
		},
	} {
		t.Run(title, func(t *testing.T) {
			var mu sync.Mutex
			var asked []string
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				user, password, given := r.BasicAuth()
				if !given && strings.Contains(c.want, ":") {
					w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				repository, found := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/prefix/v2/"), "/manifests/1")
				if !found {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if given {
					asked = append(asked, repository+" "+user+":"+password)
				} else {
					asked = append(asked, repository+" ")
				}
				w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
				fmt.Fprint(w, manifest)
			}))
			defer server.Close()
			ca := filepath.Join(t.TempDir(), "ca.pem")
			if err := os.WriteFile(
				ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600,
			); err != nil {
				t.Fatal(err)
			}
			document := fmt.Sprintf("mirrors:\n  docker.io:\n    endpoint: ['%s/prefix/v2']\n    %s\nconfigs:\n  '%s': %s",
				server.URL, c.rewrite, server.Listener.Addr(), strings.ReplaceAll(c.settings, "CA", ca))
			desired, err := Build(Inputs{Config: k3sConfig(), Registries: []byte(document), CheckTLS: func(name string) error {
				_, err := os.Stat(name)
				return err
			}})
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "registries.yaml")
			at := slices.IndexFunc(desired.Files, func(f File) bool { return f.Path == k3sFile })
			if err := os.WriteFile(
				file, append([]byte("# Written by zarf-registry\n"), desired.Files[at].Content...), 0o600,
			); err != nil {
				t.Fatal(err)
			}
			read, err := registries.GetPrivateRegistries(file)
			if err != nil {
				t.Fatal(err)
			}
			ref, err := name.ParseReference("docker.io/library/hello:1")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := read.Image(ref); err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(asked, c.want) {
				t.Errorf("requested: %q", asked)
			}
			if strings.Contains(c.want, ":") &&
				!strings.Contains(Diff("f", KindRegistries, nil, desired.Files[at].Content), redacted) {
				t.Error("credentials are displayed")
			}
		})
	}
}

// Below the owner's mark K3s' parser reads the same as Build without it, whatever the document
// starts and ends with.
func TestK3sIgnoresTheMark(t *testing.T) {
	const auth = "configs: \n  a:\n    auth:\n      username: u\n      password: "
	for _, document := range []string{
		auth + "p", auth + "p\n", auth + "|\n        p", auth + "|\n        p\n", auth + "|\n        p\n\n",
		auth + "|-\n        p", auth + "|+\n        p\n\n", auth + ">\n        p", auth + "!!binary aHVudGVyMg==",
		strings.ReplaceAll(auth, "\n", "\r\n") + "p\r\n", strings.ReplaceAll(auth, "\n", "\r") + "p",
		"%YAML 1.1\n---\n" + auth + "p\n...\n", "---\n" + auth + "p\n---\n", "# ours\n" + auth + "p # theirs",
	} {
		desired, err := Build(Inputs{Config: k3sConfig(), Registries: []byte(document)})
		if err != nil {
			t.Errorf("%q: %v", document, err)
			continue
		}
		at := slices.IndexFunc(desired.Files, func(f File) bool { return f.Path == k3sFile })
		alone, err := readAsK3s([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		below, err := readAsK3s(append([]byte("# Written by zarf-registry\n"), desired.Files[at].Content...))
		if err != nil {
			t.Errorf("%q: below the mark: %v", document, err)
		} else if diff := cmp.Diff(alone, below); diff != "" || below.Configs["a"].Auth == nil {
			t.Errorf("%q: below the mark:\n%s", document, diff)
		}
	}
}
