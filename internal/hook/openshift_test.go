package hook_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// constraints simulates OpenShift's pod admission for users limited to restricted-v2.
func constraints(object runtime.Object) error {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return nil
	}
	fixed := pod.Spec.SecurityContext.RunAsUser != nil || pod.Spec.SecurityContext.RunAsGroup != nil
	host := pod.Spec.HostNetwork
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			host = host || p.HostPort != 0
		}
	}
	if fixed || host {
		return apierrors.NewForbidden(corev1.Resource("pods"), pod.GenerateName,
			errors.New("unable to validate against any security context constraint: [provider restricted-v2: "+
				".spec.securityContext.runAsUser: Invalid value]"))
	}
	return nil
}

func TestOpenShiftConstraints(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.add(kubernetesService("10.96.0.1"))
	b.admit = constraints
	findings := require.Value(b.hook.Preflight(t.Context()))(t)
	if len(findings) != 2 { // one for the registry's pods, one for the proxies'
		t.Error(findings)
	}
	for _, f := range findings {
		if f.Check != "admission" || !strings.Contains(f.Remedy, "--set openshift.enabled=true") {
			t.Errorf("%s", f)
		}
	}

	b.hook.Settings.OpenShift = true
	b.mustFindNothing()
	b.hook.Settings.Preflight.LabelNamespace = true
	b.upgrade(state.ModeProxy)
	if len(b.probePods) == 0 {
		t.Fatal("no pull was verified")
	}
	for _, pod := range b.probePods {
		if c := pod.Spec.SecurityContext; c.RunAsUser != nil || c.RunAsGroup != nil || !*c.RunAsNonRoot {
			t.Errorf("a probe pod has the security context %v", c)
		}
	}
}
