package install

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// A round of discovery takes megabytes in a cluster with many CRDs.
func TestHelmAsksOnceWhatTheAPIServerServes(t *testing.T) {
	var groups atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		body := `{"kind":"APIGroupList","groups":[]}`
		switch r.URL.Path {
		case "/api":
			body = `{"kind":"APIVersions","versions":["v1"]}`
		case "/apis":
			groups.Add(1)
		case "/api/v1":
			body = `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","kind":"Pod","namespaced":true}]}`
		}
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	helm := require.Value(Connect(&rest.Config{Host: server.URL}, "zarf", slog.New(slog.DiscardHandler)))(t)
	for range 3 {
		mapper := require.Value(helm.RESTClientGetter.ToRESTMapper())(t)
		require.Value(mapper.RESTMapping(schema.GroupKind{Kind: "Pod"}, "v1"))(t)
	}
	if n := groups.Load(); n != 1 {
		t.Errorf("the API server was asked %d times", n)
	}
}
