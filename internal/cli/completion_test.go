package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

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
