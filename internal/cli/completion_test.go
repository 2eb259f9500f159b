package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
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
		{"images prune --match ", ":4\n"},
		{"credentials rotate ", "push\npull\n:4\n"},
		{"status --namespace ", "\n:4\n"},
	} {
		kubeconfig := newKubeconfig(t, api.URL)
		if strings.HasPrefix(tt.want, "\n") { // nor is there a cluster
			kubeconfig += ".absent"
		}
		code, out, errOut := runAt(t, kubeconfig, append([]string{"__complete"}, strings.Split(tt.args, " ")...)...)
		if code != 0 || out != strings.TrimPrefix(tt.want, "\n") || strings.Contains(errOut, "rror") {
			t.Errorf("%q completes to %q, exit code %d, %s", tt.args, out, code, errOut)
		}
	}
}
