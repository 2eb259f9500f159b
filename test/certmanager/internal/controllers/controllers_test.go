package controllers

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

func TestBuildCreatesAllNamedControllers(t *testing.T) {
	factory, err := newFactory(t.Context(), Options{Kubeconfig: emptyServer(t), Namespace: "cert-manager"})
	if err != nil {
		t.Fatal(err)
	}
	loops, err := build(factory)
	if err != nil {
		t.Fatal(err)
	}
	if len(loops) != len(names) || len(names) == 0 {
		t.Errorf("built %d controllers of %d", len(loops), len(names))
	}
}

func TestRunNamesResourcesItCannotList(t *testing.T) {
	o := Options{Kubeconfig: emptyServer(t), Namespace: "cert-manager", SyncTimeout: 100 * time.Millisecond}
	err := Run(t.Context(), o, func() { t.Error("ready, but nothing was listed") })
	if err == nil {
		t.Fatal("Run() = nil, want an error")
	}
	for _, kind := range []string{"v1.Issuer", "v1.ClusterIssuer", "v1.Certificate", "v1.CertificateRequest",
		"v1.Secret"} {
		if !strings.Contains(err.Error(), kind+" within 100ms") {
			t.Errorf("the error does not name %s: %v", kind, err)
		}
	}
}

func TestRunRejectsMissingKubeconfig(t *testing.T) {
	if err := Run(t.Context(), Options{Kubeconfig: "/does/not/exist"}, func() {}); err == nil ||
		!strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("Run() = %v, want an error with the path", err)
	}
}

// emptyServer runs an API server without objects and returns the path of a kubeconfig.
func emptyServer(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	config := api.NewConfig()
	config.Clusters["test"] = &api.Cluster{Server: server.URL}
	config.Contexts["test"] = &api.Context{Cluster: "test"}
	config.CurrentContext = "test"
	path := t.TempDir() + "/kubeconfig"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}
