package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

const (
	coreDNS      = "coredns"
	dnsService   = "kube-dns"
	dnsReadyPort = "8181" // CoreDNS' own default
)

// startDNS starts CoreDNS next to the control plane, so that no node needs its image, and waits until it is
// ready. Pods find it through the Service kube-dns, which selects no pods.
func (c *Cluster) startDNS(ctx context.Context, client kubernetes.Interface) error {
	corefile := c.path(configDir, "Corefile")
	if err := c.writeFiles(configDir, map[string][]byte{"Corefile": []byte(c.corefile())}); err != nil {
		return err
	}
	if err := c.start(Process{ID: coreDNS, Args: []string{coreDNS, "-conf=" + corefile}}); err != nil {
		return err
	}
	service, slices := c.dnsObjects()
	if _, err := client.CoreV1().Services(service.Namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the Service of the DNS: %w", err)
	}
	for _, slice := range slices {
		if _, err := client.DiscoveryV1().EndpointSlices(slice.Namespace).Create(ctx, slice,
			metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating the endpoints of the DNS: %w", err)
		}
	}
	return c.waitForDNS(ctx)
}

// waitForDNS waits until CoreDNS has synced with the API server.
func (c *Cluster) waitForDNS(ctx context.Context) error {
	return c.waitFor(ctx, coreDNS, "its readiness", startTimeout, func(context.Context) error {
		return InNetns(netnsPath(c.Options.Name, controlPlaneName), func() error {
			return httpOK(net.JoinHostPort("127.0.0.1", dnsReadyPort), "/ready")
		})
	})
}

// httpOK requests a path and returns an error unless the status is 200. It stays on the calling
// thread, which may be in another network namespace; net/http does not.
func httpOK(address, path string) error {
	connection, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(connection, "GET %s HTTP/1.0\r\n\r\n", path); err != nil {
		return err
	}
	answer := make([]byte, len("HTTP/1.0 200"))
	if _, err := connection.Read(answer); err != nil {
		return err
	}
	if !strings.HasSuffix(string(answer), " 200") {
		return errors.New(string(answer))
	}
	return nil
}

func (c *Cluster) corefile() string {
	// There are no other names: refuse all others at once.
	return fmt.Sprintf(`.:53 {
    bind %s
    errors
    ready 127.0.0.1:%s
    kubernetes %s in-addr.arpa ip6.arpa {
        kubeconfig %s
        pods insecure
        ttl 5
    }
}
`, strings.Join(texts(c.Options.Family.ControlPlane()), " "), dnsReadyPort, clusterDomain,
		c.path(configDir, adminConfig))
}

func (c *Cluster) dnsObjects() (*corev1.Service, []*discoveryv1.EndpointSlice) {
	addresses := c.Options.Family.DNSService()
	policy := corev1.IPFamilyPolicySingleStack
	if c.Options.Family == DualStack {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	ports := map[string]corev1.Protocol{"dns": corev1.ProtocolUDP, "dns-tcp": corev1.ProtocolTCP}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: dnsService, Namespace: metav1.NamespaceSystem,
			Labels: map[string]string{"k8s-app": dnsService}},
		Spec: corev1.ServiceSpec{ClusterIP: addresses[0].String(), ClusterIPs: texts(addresses), IPFamilyPolicy: &policy},
	}
	var endpointPorts []discoveryv1.EndpointPort
	for name, protocol := range ports {
		const port = int32(53)
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name, Protocol: protocol, Port: port,
			TargetPort: intstr.FromInt32(port)})
		number := port
		endpointPorts = append(endpointPorts, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number})
	}
	var slices []*discoveryv1.EndpointSlice
	for _, address := range c.Options.Family.ControlPlane() {
		kind := discoveryv1.AddressTypeIPv4
		if address.Is6() {
			kind = discoveryv1.AddressTypeIPv6
		}
		slices = append(slices, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: dnsService + "-" + strings.ToLower(string(kind)), Namespace: metav1.NamespaceSystem,
				Labels: map[string]string{discoveryv1.LabelServiceName: dnsService, discoveryv1.LabelManagedBy: "testcluster"},
			},
			AddressType: kind,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address.String()}}},
			Ports:       endpointPorts,
		})
	}
	return service, slices
}
