package cli

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestImagesOfTheRegistryComplete(t *testing.T) {
	content := contents(map[string][]string{"library/nginx": {"1"}, "team/app": {"1", "2"},
		"zarf-registry/init-hook": {"0.1.0"}})
	content.Manifests[1].Repository = "team/app" // without a tag
	const address = "127.0.0.1:31999"
	for word, want := range map[string]string{
		"":                  "library/nginx:1 team/app:1 team/app:2 team/app@sha256:",
		"team/app:":         "team/app:1 team/app:2",
		"127.":              "127.0.0.1:31999/library/nginx:1 127.0.0.1:31999/team/app:1",
		"127.0.0.1:31999/t": "127.0.0.1:31999/team/app:1 127.0.0.1:31999/team/app:2",
	} {
		var got []string
		for _, reference := range references(content, address, word) {
			if strings.HasPrefix(reference, word) {
				got = append(got, reference)
			}
		}
		if text := strings.Join(got, " "); !strings.HasPrefix(text, want) || strings.Contains(text, "init-hook") {
			t.Errorf("%q completes to %s, want %s", word, text, want)
		}
	}
	if got := strings.Join(repositories(content, address, ""), " "); got != "library/nginx team/app" {
		t.Errorf("repositories complete to %s", got)
	}
}

func TestShellsCompleteTheCluster(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"kind":"NamespaceList","apiVersion":"v1","items":[{"metadata":{"name":"shop"}},{"metadata":{"name":"zarf"}}]}`)
	}))
	t.Cleanup(api.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "`+api.URL+`"}}]
users: [{name: jane, user: {}}]
contexts: [{name: prod, context: {cluster: a}}, {name: test, context: {cluster: a}}]
current-context: prod
`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, tt := range []struct{ args, want string }{
		{"status --context ", "prod\ntest\n:4\n"},
		{"status --context p", "prod\n:4\n"},
		{"images list --cluster ", "a\n:4\n"},
		{"heal --user ", "jane\n:4\n"},
		{"certs ca --namespace ", "shop\nzarf\n:4\n"},
		{"install -n s", "shop\n:4\n"},
		{"status --log-level ", "debug\ninfo\nwarn\nerror\n:4\n"},
		// The registry does not answer.
		{"images delete ", ":4\n"},
		{"images warm ", ":4\n"},
		{"images prune --match ", ":4\n"},
		{"credentials rotate ", ":4\n"},
		{"status --namespace ", "\n:4\n"},
	} {
		t.Setenv("KUBECONFIG", kubeconfig)
		if strings.HasPrefix(tt.want, "\n") { // nor is there a cluster
			t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
		}
		var out, errOut bytes.Buffer
		root := New(&out, &errOut)
		root.SetArgs(append([]string{"__complete"}, strings.Split(tt.args, " ")...))
		if err := root.Execute(); err != nil || out.String() != strings.TrimPrefix(tt.want, "\n") ||
			strings.Contains(errOut.String(), "rror") {
			t.Errorf("%q completes to %q, %v, %s", tt.args, &out, err, &errOut)
		}
	}
}
