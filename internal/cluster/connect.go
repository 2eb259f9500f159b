// Package cluster connects to a Kubernetes cluster and to what runs in it: the API server, ports of
// pods, the registry over mutual TLS, and what pods have loaded. It makes no decisions about the
// release: callers say which pod, which port and which credentials.
package cluster

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// Access selects a cluster and an identity. The zero value means KUBECONFIG, then ~/.kube/config, then
// the pod's own service account.
type Access struct {
	// Kubeconfig is the path of a file.
	Kubeconfig string
	// Overrides replace what the kubeconfig contains.
	Overrides clientcmd.ConfigOverrides
}

// RawConfig returns the kubeconfig as it is.
func (a Access) RawConfig() (clientcmdapi.Config, error) { return a.kubeconfig().RawConfig() }

func (a Access) kubeconfig() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.Kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &a.Overrides)
}

// inPod applies what client-go leaves out of a pod's own configuration: whom to impersonate, and the time limit
// of requests.
func (a Access) inPod(config *rest.Config) (err error) {
	if as := a.Overrides.AuthInfo; as.Impersonate != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: as.Impersonate, UID: as.ImpersonateUID,
			Groups: as.ImpersonateGroups}
	}
	if a.Overrides.Timeout != "" {
		config.Timeout, err = clientcmd.ParseTimeout(a.Overrides.Timeout)
	}
	return err
}

const (
	// queriesPerSecond and burst replace client-go's 5 and 10, which would throttle the writing of a
	// payload. The API server's priority and fairness is the limit that matters.
	queriesPerSecond = 100
	burst            = 200
)

// Connect reads the kubeconfig and returns a client that pages through large lists. It does no
// network I/O, so its error is an [exitcode.Refusal].
func Connect(a Access) (*rest.Config, kubernetes.Interface, error) {
	config, err := a.kubeconfig().ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, nil, exitcode.Refuse("no cluster configured: set --kubeconfig or KUBECONFIG")
	}
	if err == nil {
		err = a.inPod(config)
	}
	if err != nil {
		return nil, nil, exitcode.Refuse("selecting the cluster: %w: check --kubeconfig and --context", err)
	}
	config.QPS, config.Burst = queriesPerSecond, burst
	// Protobuf costs the API server and this client a fraction of JSON. Only the typed client uses it:
	// callers may use config for custom resources, which support JSON only.
	binary := rest.CopyConfig(config)
	binary.ContentType = runtime.ContentTypeProtobuf
	binary.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(binary)
	if err != nil {
		return nil, nil, exitcode.Refuse("using the kubeconfig: %w", err)
	}
	return config, paged{client}, nil
}

// Advice returns what to do about an error of the API server, or "" if the error says it all.
func Advice(err error) string {
	switch {
	case release.MissingPermission(err):
		return "request that permission, or use another identity (--kubeconfig, --context)"
	case apierrors.IsUnauthorized(err):
		return "the cluster rejects this identity: use another one (--kubeconfig, --context)"
	case apierrors.IsConflict(err):
		return "the object was changed concurrently: run the command again"
	}
	return ""
}
