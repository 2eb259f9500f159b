// Package cluster connects to a Kubernetes cluster and to what runs in it: the API server, ports of
// pods, the registry over mutual TLS, and the reload status of pods. It makes no decisions about the
// release: callers say which pod, which port and which credentials.
package cluster

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Access selects a cluster. The zero value means KUBECONFIG, then ~/.kube/config, then the pod's own
// service account.
type Access struct {
	// Kubeconfig is the path of a file.
	Kubeconfig string
	// Context is a context of the kubeconfig; empty means its current context.
	Context string
}

const (
	// queriesPerSecond and burst replace client-go's 5 and 10, which would throttle the writing of a
	// payload. The API server's priority and fairness is the limit that matters.
	queriesPerSecond = 100
	burst            = 200
)

// Connect reads the kubeconfig and returns a client that pages through large lists. It does no
// network I/O.
func Connect(a Access) (*rest.Config, kubernetes.Interface, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: a.Context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, nil, errors.New("no cluster configured: set --kubeconfig or KUBECONFIG")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading the kubeconfig: %w: check --kubeconfig and --context", err)
	}
	config.QPS, config.Burst = queriesPerSecond, burst
	// Protobuf costs the API server and this client a fraction of JSON. Only the typed client uses it:
	// callers may use config for custom resources, which support JSON only.
	binary := rest.CopyConfig(config)
	binary.ContentType = runtime.ContentTypeProtobuf
	binary.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(binary)
	if err != nil {
		return nil, nil, fmt.Errorf("using the kubeconfig: %w", err)
	}
	return config, paged{client}, nil
}

// Advice returns what to do about an error of the API server, or "" if the error says it all.
func Advice(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return "request that permission, or use another identity (--kubeconfig, --context)"
	case apierrors.IsUnauthorized(err):
		return "the cluster rejects this identity: use another one (--kubeconfig, --context)"
	case apierrors.IsConflict(err):
		return "the object was changed concurrently: run the command again"
	}
	return ""
}
