package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://a.example"}}, {name: b, cluster: {server: "https://b.example"}}]
contexts: [{name: a, context: {cluster: a}}, {name: b, context: {cluster: b}}]
current-context: a
`

func TestConnectSelectsTheCluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(kubeconfig), 0o600))
	broken := filepath.Join(t.TempDir(), "broken")
	require.NoError(t, os.WriteFile(broken, []byte("{"), 0o600))
	context := func(name string) clientcmd.ConfigOverrides { return clientcmd.ConfigOverrides{CurrentContext: name} }
	for name, c := range map[string]struct {
		access     cluster.Access
		host, fail string
	}{
		"the current context": {cluster.Access{Kubeconfig: file}, "https://a.example", ""},
		"another context":     {cluster.Access{Kubeconfig: file, Overrides: context("b")}, "https://b.example", ""},
		"an unknown context":  {cluster.Access{Kubeconfig: file, Overrides: context("c")}, "", `context "c" does not exist`},
		"another server": {cluster.Access{Kubeconfig: file, Overrides: clientcmd.ConfigOverrides{
			ClusterInfo: clientcmdapi.Cluster{Server: "https://c.example"}}}, "https://c.example", ""},
		"no time limit": {cluster.Access{Kubeconfig: file, Overrides: clientcmd.ConfigOverrides{Timeout: "soon"}}, "",
			"Invalid timeout value"},
		"a broken file":         {cluster.Access{Kubeconfig: broken}, "", "--kubeconfig"},
		"no kubeconfig, no pod": {cluster.Access{}, "", "no cluster configured"},
	} {
		t.Run(name, func(t *testing.T) {
			config, client, err := cluster.Connect(c.access)
			if c.fail != "" {
				if !exitcode.IsRefusal(err) || !strings.Contains(err.Error(), c.fail) {
					t.Errorf("error is %v, want one with %q", err, c.fail)
				}
				return
			}
			require.NoError(t, err)
			if config.Host != c.host || client == nil {
				t.Errorf("connected to %s, want %s", config.Host, c.host)
			}
		})
	}
}

func TestAdviceNamesTheRemedy(t *testing.T) {
	secrets := schema.GroupResource{Resource: "secrets"}
	for want, err := range map[string]error{
		"request that permission": fmt.Errorf("reading: %w",
			apierrors.NewForbidden(secrets, "x", errors.New(`User "x" cannot get resource "secrets"`))),
		"rejects this identity": apierrors.NewUnauthorized("who are you"),
		"run the command again": apierrors.NewConflict(secrets, "x", errors.New("changed")),
	} {
		if got := cluster.Advice(err); !strings.Contains(got, want) {
			t.Errorf("advice for %v is %q", err, got)
		}
	}
	for _, err := range []error{errors.New("anything else"), apierrors.NewForbidden(secrets, "x", errors.New("exceeded quota"))} {
		if got := cluster.Advice(err); got != "" {
			t.Errorf("advice for %v is %q", err, got)
		}
	}
}
