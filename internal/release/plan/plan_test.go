package plan_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/plan"
)

func TestVirtualNodesRunNoPods(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]bool{"type=virtual-kubelet": false, "eks.amazonaws.com/compute-type=fargate": false,
		"eks.amazonaws.com/compute-type=ec2": true, "type=agent": true} {
		name, value, _ := strings.Cut(key, "=")
		if got := plan.RunsPods(corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{name: value}}}); got != want {
			t.Errorf("%s: %t", key, got)
		}
	}
}

func TestPorts(t *testing.T) {
	const port = 31999
	nodePort := func(protocol corev1.Protocol) corev1.ServiceSpec {
		return corev1.ServiceSpec{Ports: []corev1.ServicePort{{NodePort: 30000}, {NodePort: port, Protocol: protocol}}}
	}
	for name, c := range map[string]struct {
		labels       map[string]string
		spec         corev1.ServiceSpec
		takes, holds bool
	}{
		"no node port":        {nil, corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: port}}}, false, false},
		"without a protocol":  {nil, nodePort(""), true, true},
		"TCP":                 {nil, nodePort(corev1.ProtocolTCP), true, true},
		"UDP":                 {nil, nodePort(corev1.ProtocolUDP), false, true},
		"health checks":       {nil, corev1.ServiceSpec{HealthCheckNodePort: port}, true, true},
		"of another proxy":    {map[string]string{"service.kubernetes.io/service-proxy-name": "x"}, nodePort(""), false, true},
		"of a proxy, unnamed": {map[string]string{"service.kubernetes.io/service-proxy-name": ""}, nodePort(""), false, true},
	} {
		s := corev1.Service{ObjectMeta: metav1.ObjectMeta{Labels: c.labels}, Spec: c.spec}
		if takes, holds := plan.TakesPort(s, port), plan.HoldsPort(s, port); takes != c.takes || holds != c.holds {
			t.Errorf("%s: takes the port: %t, want %t; holds it: %t, want %t", name, takes, c.takes, holds, c.holds)
		}
	}
}

func TestControlPlane(t *testing.T) {
	for label, want := range map[string]bool{
		"node-role.kubernetes.io/control-plane": true, "node-role.kubernetes.io/etcd": true,
		"node-role.kubernetes.io/worker": false,
	} {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{label: "true"}}}
		if got := plan.ControlPlane(n); got != want {
			t.Errorf("%s: %t", label, got)
		}
	}
}

func TestNodeReady(t *testing.T) {
	for status, want := range map[corev1.ConditionStatus]bool{
		corev1.ConditionTrue: true, corev1.ConditionFalse: false, corev1.ConditionUnknown: false, "": false,
	} {
		n := corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}, {Type: corev1.NodeReady, Status: status}}}}
		if got := plan.NodeReady(n); got != want {
			t.Errorf("status %q: ready is %t", status, got)
		}
	}
}
