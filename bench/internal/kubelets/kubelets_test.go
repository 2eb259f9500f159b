package kubelets

import "testing"

func TestRequestName(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/namespaces/zarf/configmaps":                              "get configmaps",
		"/api/v1/namespaces/zarf/pods/a/status":                           "get pods/status",
		"/api/v1/nodes/n1":                                                "get nodes",
		"/api/v1/namespaces/zarf":                                         "get namespaces",
		"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/": "get leases",
		"/version": "get /version",
	} {
		if got := RequestName("get", path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
