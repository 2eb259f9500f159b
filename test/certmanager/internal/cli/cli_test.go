package cli

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

func TestRunPreparesTheClusterAndStopsWithStdin(t *testing.T) {
	server := newServer(t)
	stdin, parent := io.Pipe()
	stdout, out := io.Pipe()
	root := newRoot()
	root.SetArgs([]string{"--kubeconfig", server.kubeconfig, "--crds", moduleCRDs(t), "--stop-on-stdin-eof"})
	root.SetIn(stdin)
	root.SetOut(out)
	ended := make(chan error, 1)
	go func() {
		ended <- root.ExecuteContext(t.Context())
		out.Close()
	}()

	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("first line %q, %v; error of the program: %v", line, err, <-ended)
	}
	server.mutex.Lock()
	defer server.mutex.Unlock()
	for _, name := range []string{"issuers", "clusterissuers", "certificates", "certificaterequests"} {
		if _, ok := server.crds[name+".cert-manager.io"]; !ok {
			t.Errorf("CRD %s was not applied; applied: %v", name, slices.Sorted(maps.Keys(server.crds)))
		}
	}
	if want := []string{"cert-manager"}; !slices.Equal(server.namespaces, want) {
		t.Errorf("created namespaces %v, want %v", server.namespaces, want)
	}
	want := []string{"certificaterequests", "certificates", "clusterissuers", "issuers", "secrets"}
	if got := slices.Sorted(maps.Keys(server.listed)); !slices.Equal(got, want) {
		t.Errorf("ready after lists of %v, want %v", got, want)
	}

	parent.Close()
	if err := <-ended; err != nil {
		t.Errorf("the end of stdin is an error: %v", err)
	}
}

func TestFlags(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"a cluster is required":     {nil, "kubeconfig"},
		"the kubeconfig must exist": {[]string{"--kubeconfig", "/does/not/exist"}, "/does/not/exist"},
		"the CRDs must exist": {[]string{"--kubeconfig", newServer(t).kubeconfig, "--crds", t.TempDir()},
			"no *.yaml"},
		"positional arguments are refused": {[]string{"--kubeconfig", "x", "y"}, `"y"`},
	} {
		t.Run(name, func(t *testing.T) {
			root := newRoot()
			root.SetArgs(test.args)
			if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %s", err, test.want)
			}
		})
	}
}

// moduleCRDs returns the default of --crds, which cannot be found from a test's build information.
func moduleCRDs(t *testing.T) string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/cert-manager/cert-manager").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return path.Join(strings.TrimSpace(string(dir)), "deploy", "crds")
}

// server is an API server without objects. It records what was applied, created and listed.
type server struct {
	kubeconfig string

	mutex      sync.Mutex
	crds       map[string]map[string]any
	namespaces []string
	listed     map[string]bool
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{crds: map[string]map[string]any{}, listed: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", s.applyCRD)
	mux.HandleFunc("GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", s.getCRD)
	mux.HandleFunc("POST /api/v1/namespaces", s.createNamespace)
	mux.HandleFunc("GET /apis/cert-manager.io/v1/{resource}", s.list)
	mux.HandleFunc("GET /api/v1/{resource}", s.list)
	listener := httptest.NewServer(mux)
	t.Cleanup(listener.Close)

	config := api.NewConfig()
	config.Clusters["test"] = &api.Cluster{Server: listener.URL}
	config.Contexts["test"] = &api.Context{Cluster: "test"}
	config.CurrentContext = "test"
	s.kubeconfig = path.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, s.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return s
}

// applyCRD leaves the CRD without conditions, as an API server does at first.
func (s *server) applyCRD(w http.ResponseWriter, r *http.Request) {
	crd := map[string]any{}
	if err := json.NewDecoder(r.Body).Decode(&crd); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.crds[r.PathValue("name")] = crd
	answer(w, crd)
}

func (s *server) getCRD(w http.ResponseWriter, r *http.Request) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	crd, ok := s.crds[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	answer(w, crd)
	crd["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}}
}

func (s *server) createNamespace(w http.ResponseWriter, r *http.Request) {
	var namespace struct {
		Metadata struct{ Name string }
	}
	if err := json.NewDecoder(r.Body).Decode(&namespace); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.namespaces = append(s.namespaces, namespace.Metadata.Name)
	answer(w, map[string]any{"apiVersion": "v1", "kind": "Namespace"})
}

// list answers a watch with no events. It refuses to stream lists, whereupon clients request
// ordinary lists.
func (s *server) list(w http.ResponseWriter, r *http.Request) {
	switch query := r.URL.Query(); {
	case query.Get("sendInitialEvents") == "true":
		http.Error(w, "lists are not streamed", http.StatusUnprocessableEntity)
		return
	case query.Get("watch") == "true":
		w.Header().Set("Content-Type", "application/json")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	resource := r.PathValue("resource")
	s.mutex.Lock()
	s.listed[resource] = true
	s.mutex.Unlock()
	list := map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": []any{}}
	switch {
	case strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList"):
		list["apiVersion"], list["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	case resource == "secrets":
		list["apiVersion"], list["kind"] = "v1", "SecretList"
	default:
		list["apiVersion"] = "cert-manager.io/v1"
		list["kind"] = map[string]string{
			"issuers": "IssuerList", "clusterissuers": "ClusterIssuerList",
			"certificates": "CertificateList", "certificaterequests": "CertificateRequestList",
		}[resource]
	}
	answer(w, list)
}

func answer(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(object)
}
