package preflight

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// lookAtServices runs the checks that need the cluster's Services.
func (i *Inspection) lookAtServices(ctx context.Context) ([]Finding, error) {
	list, err := i.Cluster.AllServices.List(ctx, metav1.ListOptions{})
	var findings []Finding
	switch {
	case release.MissingPermission(err):
		list = &corev1.ServiceList{}
	case err != nil:
		return nil, fmt.Errorf("listing the Services of all namespaces: %w", err)
	}
	findings = append(findings, i.ipFamily(list.Items)...)
	used := false
	takesPort := plan.HoldsPort
	if i.Settings.Mode == state.ModeProxy && i.Settings.UnreservedPort {
		takesPort = plan.TakesPort
	}
	for _, s := range list.Items {
		named := s.Namespace == i.Settings.Namespace && s.Name == i.Settings.Name+names.SuffixNodePort
		ours := named && s.Labels[names.LabelInstance] == i.Settings.Release
		// Only Zarf's agent has this Service, in the namespace of its state, whose Secret this identity may not read.
		if s.Name == "agent-hook" && s.Namespace == i.Settings.Namespace && !i.Settings.PKI.Zarf {
			findings = append(findings, Finding{Check: checkZarf, Severity: Warning, Object: "namespace " + s.Namespace,
				Cause: "it belongs to Zarf: zarf destroy deletes it with the registry's images, and with --remove-components " +
					"uninstalls releases named zarf-…",
				Remedy: "install into another: --namespace registry --release registry"})
		}
		switch {
		case takesPort(s, i.Settings.Port):
			used = true
			if ours {
				continue
			}
			findings = append(findings, Finding{Check: checkPort, Severity: Blocker,
				Object: fmt.Sprintf("Service %s/%s", s.Namespace, s.Name),
				Cause:  fmt.Sprintf("it uses node port %d, the port of the registry", i.Settings.Port),
				Remedy: otherPort(s)})
		case named && !ours && i.ownsPort():
			findings = append(findings, Finding{Check: checkPort, Severity: Blocker,
				Object: fmt.Sprintf("Service %s/%s", s.Namespace, s.Name),
				Cause:  "it has the name of the Service for the registry's node port, but belongs to someone else",
				Remedy: "rename or delete it, or --set fullnameOverride=NAME"})
		}
	}
	findings = append(findings, i.otherProxies(list.Items, used)...)
	if used || !i.ownsPort() {
		return findings, nil
	}
	found, err := i.tryService(ctx, err == nil)
	return append(findings, found...), err
}

// otherProxies finds other releases whose proxies listen on the same ports of the nodes: the kernel would share them
// out among both (SO_REUSEPORT), because both run as the same user. known is true if a Service with the registry's port
// is a finding already.
func (i *Inspection) otherProxies(services []corev1.Service, known bool) (findings []Finding) {
	for _, s := range services {
		ports := strings.Split(s.Annotations[names.AnnotationNodePorts], ",")
		if s.Labels[names.LabelName] != names.Chart || s.Namespace == i.Settings.Namespace &&
			s.Labels[names.LabelInstance] == i.Settings.Release {
			continue
		}
		for n, port := range i.Settings.Proxy.NodePorts {
			if !slices.Contains(ports, strconv.Itoa(port)) || n == 0 && known {
				continue
			}
			findings = append(findings, Finding{Check: checkPort, Severity: Blocker,
				Object: fmt.Sprintf("release %s in namespace %s", s.Labels[names.LabelInstance], s.Namespace),
				Cause:  fmt.Sprintf("its proxies listen on port %d of the nodes, too", port),
				Remedy: fmt.Sprintf("--set %s=PORT", []string{"port", "proxy.metricsPort"}[min(n, 1)])})
		}
	}
	return findings
}

// otherPort returns the remedy for a Service with the registry's port.
func otherPort(s corev1.Service) string {
	if s.Namespace == "zarf" && s.Name == "zarf-docker-registry" {
		return "it is Zarf's registry: docs/reference/zarf.md says how to replace it while nodes pull"
	}
	return fmt.Sprintf("give it another (kubectl --namespace %s edit service %s), or the registry: --set port=PORT",
		s.Namespace, s.Name)
}

// ownsPort reports whether a Service of the release is to own the node port.
func (i *Inspection) ownsPort() bool {
	return i.Settings.Mode == state.ModeNodePort || !i.Settings.UnreservedPort
}

// tryService creates the NodePort Service with a dry run, to see whether the API server accepts it.
// Proxies work without it. listed reports whether no Service of the release has the port.
func (i *Inspection) tryService(ctx context.Context, listed bool) ([]Finding, error) {
	err := release.RetryOverload(ctx, func() error {
		service := i.PortService(i.Settings.Mode == state.ModeProxy)
		service.Name, service.GenerateName = "", service.Name+"-"
		_, err := i.Cluster.Services.Create(ctx, service, dryRun)
		return err
	})
	proxies := i.Settings.Mode == state.ModeProxy
	object := fmt.Sprintf("port %d", i.Settings.Port)
	service := i.Object("Service", i.Settings.Name+names.SuffixNodePort)
	switch {
	case err == nil, namespaceMissing(err), release.MissingPermission(err), noDryRun(err):
		return nil, nil
	case release.PortOutOfRange(err):
		if proxies { // no Service can take it
			return nil, nil
		}
		return []Finding{{Check: checkPortRange, Severity: Blocker, Object: object,
			Cause:  "it is outside the cluster's node port range: " + err.Error(),
			Remedy: "use a port in that range: --set port=PORT, or --set registryProxy=true, which allows any port"}}, nil
	case release.PortAllocated(err) && !listed: // perhaps to the release; prepare finds out
		return nil, nil
	case release.PortAllocated(err):
		return []Finding{{Check: checkPort, Severity: Blocker, Object: object,
			Cause:  "another Service uses it as its node port: " + err.Error(),
			Remedy: "find it (kubectl get services --all-namespaces), or --set port=PORT"}}, nil
	case refusal(err) && proxies: // they work without it
		return nil, nil
	case refusal(err):
		return []Finding{{Check: checkAdmission, Severity: Blocker, Object: service,
			Cause:  "the cluster rejects it: " + err.Error(),
			Remedy: "change the named policy or quota, or --set registryProxy=true"}}, nil
	}
	return nil, fmt.Errorf("trying the NodePort Service with a dry run: %w", err)
}

// ipFamily finds a rendered IP family that the cluster does not support.
func (i *Inspection) ipFamily(services []corev1.Service) []Finding {
	if i.Settings.Mode == state.ModeNodePort && i.Settings.IPFamily == state.IPv6 {
		return []Finding{{Check: checkIPFamily, Severity: Blocker, Object: "ipFamily IPv6",
			Cause:  "nodeport mode cannot work on an IPv6-only cluster: kube-proxy serves no node port on [::1]",
			Remedy: "use proxies: --set registryProxy=true"}}
	}
	v4, v6, known := i.families(services)
	if !known {
		return nil
	}
	has := "IPv4"
	if v6 {
		has = "IPv6"
	}
	rendered := i.Settings.IPFamily
	if rendered == state.IPv6 && v6 || rendered != state.IPv6 && v4 {
		return nil
	}
	lacks := "IPv4"
	if rendered == state.IPv6 {
		lacks = "IPv6"
	}
	return []Finding{{Check: checkIPFamily, Severity: Blocker, Object: "ipFamily " + string(rendered),
		Cause: fmt.Sprintf("this cluster has no %s for Services and pods, so nothing would answer at %s", lacks,
			i.Settings.Address),
		Remedy: "--set ipFamily=" + has}}
}

// families returns the IP families of the cluster's Services and pods. Nodes may have addresses of
// another family too; these count only if the pods' families are unknown.
func (i *Inspection) families(services []corev1.Service) (v4, v6, known bool) {
	add := func(address string) {
		switch {
		case address == "" || address == corev1.ClusterIPNone:
		case strings.Contains(address, ":"):
			v6, known = true, true
		default:
			v4, known = true, true
		}
	}
	for _, s := range services {
		for _, ip := range append(slices.Clone(s.Spec.ClusterIPs), s.Spec.ClusterIP) {
			add(ip)
		}
	}
	podsKnown := false
	for _, n := range i.nodes {
		for _, cidr := range append(slices.Clone(n.Spec.PodCIDRs), n.Spec.PodCIDR) {
			add(cidr)
			podsKnown = podsKnown || cidr != ""
		}
	}
	if podsKnown {
		return v4, v6, known
	}
	for _, n := range i.nodes {
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				add(a.Address)
			}
		}
	}
	return v4, v6, known
}

// dryRun has the API server process a request without storing the object.
var dryRun = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

// namespaceMissing reports whether the namespace does not exist. Helm creates it at installation.
func namespaceMissing(err error) bool {
	return apierrors.IsNotFound(err) && strings.Contains(err.Error(), "namespaces ")
}

// noDryRun reports whether a webhook rejected the dry run because it has side effects.
func noDryRun(err error) bool {
	return err != nil && strings.Contains(err.Error(), "does not support dry run")
}

// refusal reports whether the API server, a policy or a webhook would reject the object.
func refusal(err error) bool {
	return !noDryRun(err) && release.Rejected(err)
}
