package cluster

import (
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	apiPort    = 6443
	adminGroup = "system:masters"
	// adminConfig is the administrator's kubeconfig for use inside the cluster's namespaces.
	adminConfig = "admin.kubeconfig"
)

// innerServer is the API server's address inside the cluster's namespaces.
func (c *Cluster) innerServer() string {
	return "https://" + c.innerAddress()
}

func (c *Cluster) innerAddress() string {
	addresses := c.Options.Family.ControlPlane()
	if c.Options.Kubeadm {
		addresses = c.Options.Family.Node(1)
	}
	return net.JoinHostPort(addresses[0].String(), strconv.Itoa(apiPort))
}

// outerServer is the API server's address on the host.
func (c *Cluster) outerServer() string { return "https://127.0.0.1:" + strconv.Itoa(c.Port) }

// kubeconfig returns a self-contained kubeconfig.
func (c *Cluster) kubeconfig(ca *clusterCA, now time.Time, server string, subject pkix.Name) ([]byte, error) {
	cert, key, err := ca.issue(now, subject, nil)
	if err != nil {
		return nil, err
	}
	name := "testcluster-" + c.Options.Name
	config := clientapi.Config{
		Clusters:       map[string]*clientapi.Cluster{name: {Server: server, CertificateAuthorityData: ca.certPEM}},
		AuthInfos:      map[string]*clientapi.AuthInfo{name: {ClientCertificateData: cert, ClientKeyData: key}},
		Contexts:       map[string]*clientapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}
	content, err := clientcmd.Write(config)
	if err != nil {
		return nil, fmt.Errorf("writing the kubeconfig of %s: %w", subject.CommonName, err)
	}
	return content, nil
}

// writeKubeconfigs writes the kubeconfigs of the administrator and of the control plane's
// processes.
func (c *Cluster) writeKubeconfigs(ca *clusterCA, now time.Time) error {
	admin := pkix.Name{CommonName: "admin", Organization: []string{adminGroup}}
	files := make(map[string][]byte)
	for name, subject := range map[string]pkix.Name{
		adminConfig:             admin,
		kubeconfigOf(scheduler): {CommonName: "system:kube-scheduler"},
		kubeconfigOf(manager):   {CommonName: "system:kube-controller-manager"},
	} {
		content, err := c.kubeconfig(ca, now, c.innerServer(), subject)
		if err != nil {
			return err
		}
		files[name] = content
	}
	if err := c.writeFiles(configDir, files); err != nil {
		return err
	}
	outer, err := c.kubeconfig(ca, now, c.outerServer(), admin)
	if err != nil {
		return err
	}
	return c.writeFiles("", map[string][]byte{kubeconfigFile: outer})
}

func kubeconfigOf(component string) string { return component + ".kubeconfig" }

// writeFiles writes files to a directory of the cluster, readable by root only.
func (c *Cluster) writeFiles(dir string, files map[string][]byte) error {
	for name, content := range files {
		if err := writeFile(c.path(dir, name), content); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	return nil
}

// client returns a client that works from the host.
func (c *Cluster) client() (kubernetes.Interface, error) {
	content, err := os.ReadFile(c.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.Timeout = time.Minute
	// client-go's own rate limit would only slow down start-up, which polls.
	config.QPS, config.Burst = -1, 0
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for the API server: %w", err)
	}
	return client, nil
}
