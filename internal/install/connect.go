package install

import (
	"fmt"
	"log/slog"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/kube"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Connect returns Helm's configuration for the releases of a namespace, stored in Secrets as helm does by
// default. It does not contact the cluster. Helm's own log is written at debug level.
//
// It sets the field manager of the whole process to helm's name, so that helm owns the fields: Helm 4
// could not change those of another manager.
func Connect(config *rest.Config, namespace string, log *slog.Logger) (*action.Configuration, error) {
	kube.ManagedFieldsManager = "helm"
	connected := &action.Configuration{}
	discovered, err := discovery.NewDiscoveryClientForConfig(config)
	if err == nil {
		err = connected.Init(&getter{config, namespace, memory.NewMemCacheClient(discovered)}, namespace, "secret",
			func(format string, args ...any) { log.Debug("helm", "message", fmt.Sprintf(format, args...)) })
	}
	if err != nil {
		return nil, fmt.Errorf("preparing Helm: %w", err)
	}
	return connected, nil
}

// getter implements Helm's RESTClientGetter for a given cluster.
type getter struct {
	config    *rest.Config
	namespace string
	// discovered caches what the API server serves. Helm asks for a mapper a hundred times in an installation.
	discovered discovery.CachedDiscoveryInterface
}

func (g *getter) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(g.config), nil }

func (g *getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return g.discovered, nil
}

func (g *getter) ToRESTMapper() (meta.RESTMapper, error) {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(g.discovered)
	return restmapper.NewShortcutExpander(mapper, g.discovered, nil), nil
}

// ToRawKubeConfigLoader provides the namespace of objects without one.
func (g *getter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(),
		&clientcmd.ConfigOverrides{Context: clientcmdapi.Context{Namespace: g.namespace}})
}
