package cluster

import (
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// client-go's configuration of a pod takes a server, a token and a CA only.
func TestOverridesApplyInPods(t *testing.T) {
	pod := &rest.Config{Host: "https://10.0.0.1", BearerTokenFile: "token"}
	a := Access{Overrides: clientcmd.ConfigOverrides{Timeout: "5s",
		AuthInfo: clientcmdapi.AuthInfo{Impersonate: "jane", ImpersonateGroups: []string{"team"}}}}
	require.NoError(t, a.inPod(pod))
	if as := pod.Impersonate; as.UserName != "jane" || len(as.Groups) != 1 || as.Groups[0] != "team" ||
		pod.Timeout != 5*time.Second {
		t.Errorf("impersonates %+v, with a limit of %s", as, pod.Timeout)
	}
	if err := (Access{}).inPod(pod); err != nil || pod.Impersonate.UserName != "jane" || pod.Timeout != 5*time.Second {
		t.Errorf("without flags, %v, %+v", err, pod)
	}
}
