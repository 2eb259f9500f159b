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

// Connect makes Helm's configuration for the releases of a namespace, which it
// keeps in Secrets, as helm does by default. It does not talk to the cluster yet.
// What Helm has to say of itself is logged as debugging.
//
// It sets for the whole process under which name Helm writes: helm's, whose fields
// these are to be. Helm 4 could not change those of another one.
func Connect(config *rest.Config, namespace string, log *slog.Logger) (*action.Configuration, error) {
	kube.ManagedFieldsManager = "helm"
	connected := &action.Configuration{}
	err := connected.Init(&getter{config, namespace}, namespace, "secret", func(format string, args ...any) {
		log.Debug("helm", "says", fmt.Sprintf(format, args...))
	})
	if err != nil {
		return nil, fmt.Errorf("preparing Helm: %w", err)
	}
	return connected, nil
}

// getter gives Helm a cluster that is known already. It is Helm's RESTClientGetter.
type getter struct {
	config    *rest.Config
	namespace string
}

func (g *getter) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(g.config), nil }

func (g *getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	client, err := discovery.NewDiscoveryClientForConfig(g.config)
	if err != nil {
		return nil, err
	}
	return memory.NewMemCacheClient(client), nil
}

func (g *getter) ToRESTMapper() (meta.RESTMapper, error) {
	client, err := g.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	return restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(client), client, nil), nil
}

// ToRawKubeConfigLoader is asked for the namespace of objects that name none.
func (g *getter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(),
		&clientcmd.ConfigOverrides{Context: clientcmdapi.Context{Namespace: g.namespace}})
}
