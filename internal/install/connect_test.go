package install

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
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
	helm, err := Connect(&rest.Config{Host: server.URL}, "zarf", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		mapper, err := helm.RESTClientGetter.ToRESTMapper()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := mapper.RESTMapping(schema.GroupKind{Kind: "Pod"}, "v1"); err != nil {
			t.Fatal(err)
		}
	}
	if n := groups.Load(); n != 1 {
		t.Errorf("the API server was asked %d times", n)
	}
}
