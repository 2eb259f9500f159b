package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

func TestKubeconfigTrustsTheAPIServer(t *testing.T) {
	now := time.Now()
	for _, family := range families {
		t.Run(string(family), func(t *testing.T) {
			c := testCluster(t, family)
			ca, err := c.writePKI(now)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.writeKubeconfigs(ca, now); err != nil {
				t.Fatal(err)
			}
			pair, err := tls.LoadX509KeyPair(c.path(configDir, apiServerCertFile), c.path(configDir, apiServerKeyFile))
			if err != nil {
				t.Fatal(err)
			}
			config, err := clientcmd.LoadFromFile(c.Kubeconfig())
			if err != nil {
				t.Fatal(err)
			}
			current := config.Contexts[config.CurrentContext]
			server := config.Clusters[current.Cluster]
			if server.Server != "https://127.0.0.1:6443" {
				t.Errorf("server: %s", server.Server)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(server.CertificateAuthorityData)
			names := append([]string{"127.0.0.1", "localhost", "kubernetes.default.svc"},
				texts(append(family.ControlPlane(), family.APIService()...))...)
			for _, name := range names {
				if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now}); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			user := config.AuthInfos[current.AuthInfo]
			client, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now,
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				t.Errorf("the administrator's certificate: %v", err)
			}
			if info, err := os.Stat(c.Kubeconfig()); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the kubeconfig must be readable by root only: %v, %v", info.Mode(), err)
			}
		})
	}
}

func TestLoadCA(t *testing.T) {
	c := testCluster(t, IPv4)
	ca, err := c.writePKI(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.loadCA()
	if err != nil {
		t.Fatal(err)
	}
	if !again.cert.Equal(ca.cert) || !again.key.Equal(ca.key) {
		t.Error("the loaded CA differs")
	}
}
