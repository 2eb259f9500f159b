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
