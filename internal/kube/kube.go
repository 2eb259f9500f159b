// Package kube connects to a Kubernetes cluster, from a workstation or from a
// pod, and opens tunnels to its pods. It holds no knowledge of what is installed
// there.
package kube

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Access chooses the cluster. The zero value is KUBECONFIG, then
// ~/.kube/config, then the pod's own service account.
type Access struct {
	// Kubeconfig is a file's path; empty means KUBECONFIG, then ~/.kube/config.
	Kubeconfig string
	// Context is one of the kubeconfig's; empty means its current one.
	Context string
}

const (
	// queriesPerSecond and burst replace client-go's 5 and 10, which would
	// make the writing of a payload wait for itself. The API server's own
	// priority and fairness is the limit that matters.
	queriesPerSecond = 100
	burst            = 200
)

// Connect reads the configuration and returns a client, which lists in pages what a
// cluster may have thousands of. It does not talk to the cluster yet.
func Connect(a Access) (*rest.Config, kubernetes.Interface, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.Kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: a.Context}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, nil, errors.New("there is no cluster to talk to: name a kubeconfig with --kubeconfig or KUBECONFIG")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading the kubeconfig (choose one with --kubeconfig and --context): %w", err)
	}
	config.QPS, config.Burst = queriesPerSecond, burst
	// The client alone speaks protobuf, which takes the API server and us a fraction of JSON's
	// time and memory: whoever uses config may have kinds that know JSON only.
	binary := rest.CopyConfig(config)
	binary.ContentType = runtime.ContentTypeProtobuf
	binary.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(binary)
	if err != nil {
		return nil, nil, fmt.Errorf("using the kubeconfig: %w", err)
	}
	return config, paged{client}, nil
}

// Advice says what to do about an error of the API server, "" where there is
// nothing better than the error itself.
func Advice(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return "ask for that permission, or use another identity (--kubeconfig, --context)"
	case apierrors.IsUnauthorized(err):
		return "the cluster does not know this identity: use another one (--kubeconfig, --context)"
	case apierrors.IsConflict(err):
		return "somebody else changed it meanwhile: run this again"
	}
	return ""
}
