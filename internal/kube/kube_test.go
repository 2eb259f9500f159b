package kube_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/zarf-dev/zarf-registry/internal/kube"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://a.example"}}, {name: b, cluster: {server: "https://b.example"}}]
contexts: [{name: a, context: {cluster: a}}, {name: b, context: {cluster: b}}]
current-context: a
`

func TestConnectChoosesTheClusterThatWasNamed(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		access     kube.Access
		host, fail string
	}{
		"the current context": {kube.Access{Kubeconfig: file}, "https://a.example", ""},
		"another context":     {kube.Access{Kubeconfig: file, Context: "b"}, "https://b.example", ""},
		"a context that is not there": {kube.Access{Kubeconfig: file, Context: "c"}, "",
			`context "c" does not exist`},
		"a broken file":         {kube.Access{Kubeconfig: broken}, "", "--kubeconfig"},
		"no kubeconfig, no pod": {kube.Access{}, "", "there is no cluster to talk to"},
	} {
		t.Run(name, func(t *testing.T) {
			config, client, err := kube.Connect(c.access)
			if c.fail != "" {
				if err == nil || !strings.Contains(err.Error(), c.fail) {
					t.Errorf("error is %v, want one with %q", err, c.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if config.Host != c.host || client == nil {
				t.Errorf("connected to %s, want %s", config.Host, c.host)
			}
		})
	}
}

func TestAdviceIsGivenForWhatPeopleCanMend(t *testing.T) {
	secrets := schema.GroupResource{Resource: "secrets"}
	for want, err := range map[string]error{
		"ask for that permission": fmt.Errorf("reading: %w", apierrors.NewForbidden(secrets, "x", errors.New("no"))),
		"does not know":           apierrors.NewUnauthorized("who are you"),
		"run this again":          apierrors.NewConflict(secrets, "x", errors.New("changed")),
	} {
		if got := kube.Advice(err); !strings.Contains(got, want) {
			t.Errorf("advice for %v is %q", err, got)
		}
	}
	if got := kube.Advice(errors.New("anything else")); got != "" {
		t.Errorf("advice for an unknown error is %q", got)
	}
}
