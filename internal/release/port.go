package release

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
)

// PlainPort is the port of the registry without TLS. The node port forwards to it.
const PlainPort = 5001

const (
	// PlainPortName is the name of the container port of the registry's plain listener.
	PlainPortName = "plain"
	// reservedPortName is the targetPort of a Service that only reserves its node port. No container
	// declares it, so a data plane that ignores the label has no endpoints to serve.
	reservedPortName = "reserved"
)

// PortService returns the NodePort Service, which owns the node port in both modes. Either kube-proxy
// serves it, or it only reserves the port for the proxies.
func (r *Release) PortService(reserved bool) *corev1.Service {
	s := &r.Settings
	labels := r.Labels(names.ComponentRegistry)
	target := PlainPortName
	if reserved {
		labels[plan.LabelProxyName] = names.Chart
		target = reservedPortName
	}
	policy, http := corev1.IPFamilyPolicyPreferDualStack, "http"
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.Name + names.SuffixNodePort, Namespace: s.Namespace, Labels: labels, Annotations: Annotations(),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, IPFamilyPolicy: &policy,
			Selector: map[string]string{
				names.LabelName: names.Chart, names.LabelInstance: s.Release, names.LabelComponent: names.ComponentRegistry,
			},
			Ports: []corev1.ServicePort{{
				Name: "registry", Port: PlainPort, TargetPort: intstr.FromString(target), NodePort: int32(s.Port),
				Protocol: corev1.ProtocolTCP, AppProtocol: &http,
			}},
		},
	}
}
