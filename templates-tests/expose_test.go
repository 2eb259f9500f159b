package templates

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	jobsettings "github.com/zarf-dev/zarf-registry/internal/release/settings"
)

// exposure returns the objects that expose the registry outside the cluster.
func exposure(out *output) []string {
	var found []string
	for _, o := range out.objects {
		if strings.HasPrefix(o.file, "expose/") {
			found = append(found, o.String())
		}
	}
	return found
}

func TestExposeCreatesTheExpectedObjects(t *testing.T) {
	t.Parallel()
	const hosts, tls = "expose.hosts=[registry.example.com]", "expose.tls.existingSecret=mine"
	gateway := "expose.gateway={enabled: true, parentRefs: [{name: edge}]}"
	for name, test := range map[string]struct {
		sets []string
		want []string
	}{
		"a load balancer": {
			[]string{"expose.service.enabled=true", tls}, []string{"Service zarf-registry-expose"},
		},
		"cert-manager": {
			[]string{"expose.service.enabled=true", hosts, "expose.tls.certManager.issuerRef.name=company"},
			[]string{"Certificate zarf-registry-expose", "Service zarf-registry-expose"},
		},
		"an Ingress": {
			[]string{"expose.ingress.enabled=true", hosts},
			[]string{"Ingress zarf-registry-expose", "Service zarf-registry-expose"},
		},
		"a Gateway": {
			[]string{gateway, hosts, tls},
			[]string{"BackendTLSPolicy zarf-registry-expose", "HTTPRoute zarf-registry-expose", "Service zarf-registry-expose"},
		},
		"by default":        {nil, nil},
		"no way is enabled": {[]string{hosts, tls, "expose.anonymousPull=true"}, nil},
	} {
		for _, mode := range []string{"registryProxy=true", "registryProxy=false"} {
			out := rendering{values: with(t, nil, append(test.sets, mode)...)}.render(t)
			if diff := cmp.Diff(test.want, exposure(out)); diff != "" {
				t.Errorf("%s, %s: %s", name, mode, diff)
			}
			args := registryOf(t, out).Spec.Template.Spec.Containers[0].Args
			if slices.Contains(args, "--expose-listen=:5443") != (test.want != nil) {
				t.Errorf("%s, %s: arguments of the registry: %s", name, mode, args)
			}
		}
	}
}

func TestExposeServiceFollowsItsValues(t *testing.T) {
	t.Parallel()
	out := renderedFile(t, "expose")
	s := find[*corev1.Service](t, out, "zarf-registry-expose")
	port := s.Spec.Ports[0]
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || port.Port != 8443 || port.TargetPort.StrVal != "exposed" ||
		!is(port.AppProtocol, "https") || port.Name != "https" ||
		!is(s.Spec.LoadBalancerClass, "example.com/lb") ||
		!slices.Equal(s.Spec.LoadBalancerSourceRanges, []string{"192.0.2.0/24"}) ||
		s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal ||
		s.Annotations["example.com/internal"] != "true" {
		t.Errorf("%v %v", s.Annotations, s.Spec)
	}
	s = find[*corev1.Service](t, renderedFile(t, "expose-nodeport"), "zarf-registry-expose")
	if s.Spec.Type != corev1.ServiceTypeNodePort || s.Spec.Ports[0].NodePort != 30443 {
		t.Errorf("%v", s.Spec)
	}
	// With only an Ingress or a Gateway, the Service is internal.
	s = find[*corev1.Service](t, renderedFile(t, "expose-ingress"), "zarf-registry-expose")
	if s.Spec.Type != corev1.ServiceTypeClusterIP || s.Spec.Ports[0].Port != 443 {
		t.Errorf("%v", s.Spec)
	}
}

func TestExposedListenerUsesItsCertificateAndUsers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args    []string
		secrets map[string]string // by volume
	}{
		"expose": {
			[]string{
				"--expose-listen=:5443", "--expose-tls-dir=/etc/zarf-registry/expose-tls",
				"--expose-htpasswd=/etc/zarf-registry/expose-users/htpasswd", "--expose-anonymous-pull",
			},
			map[string]string{"expose-tls": "zarf-registry-expose-tls", "expose-users": "pullers"},
		},
		"expose-nodeport": {
			[]string{"--expose-listen=:5443", "--expose-tls-dir=/etc/zarf-registry/expose-tls"},
			map[string]string{"expose-tls": "registry-example-com"},
		},
		"expose-ingress": {[]string{"--expose-listen=:5443"}, map[string]string{}},
	} {
		pod := find[*appsv1.Deployment](t, renderedFile(t, name), "zarf-registry").Spec.Template.Spec
		args := slices.DeleteFunc(pod.Containers[0].Args, func(a string) bool { return !strings.HasPrefix(a, "--expose") })
		secrets := map[string]string{}
		for _, v := range pod.Volumes {
			if strings.HasPrefix(v.Name, "expose-") {
				secrets[v.Name] = v.Secret.SecretName
				later := v.Name == "expose-users" || v.Secret.SecretName == "zarf-registry-expose-tls" // cert-manager's
				if !is(v.Secret.DefaultMode, 0o440) || len(v.Secret.Items) == 0 || is(v.Secret.Optional, true) != later {
					t.Errorf("%s: %s is %v", name, v.Name, v.Secret)
				}
			}
		}
		if diff := cmp.Diff(test.args, args) + cmp.Diff(test.secrets, secrets); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestIngressAndHTTPRouteUseTLS(t *testing.T) {
	t.Parallel()
	out := renderedFile(t, "expose-ingress")
	i := find[*networkingv1.Ingress](t, out, "zarf-registry-expose")
	backend := i.Spec.Rules[0].HTTP.Paths[0].Backend.Service
	if len(i.Spec.TLS) != 1 || i.Spec.TLS[0].SecretName != "registry-example-com" ||
		!slices.Equal(i.Spec.TLS[0].Hosts, []string{"registry.example.com"}) || !is(i.Spec.IngressClassName, "nginx") ||
		i.Spec.Rules[0].Host != "registry.example.com" || backend.Name != "zarf-registry-expose" ||
		backend.Port.Name != "https" || i.Annotations["nginx.ingress.kubernetes.io/backend-protocol"] != "HTTPS" {
		t.Errorf("%v", i)
	}
	// An Ingress always uses TLS.
	i = find[*networkingv1.Ingress](
		t,
		rendering{
			values: proxyMode(t, "expose.ingress.enabled=true", "expose.hosts=[a.example.com, b.example.com]"),
		}.render(t),
		"zarf-registry-expose",
	)
	if len(i.Spec.TLS) != 1 || len(i.Spec.TLS[0].Hosts) != 2 || len(i.Spec.Rules) != 2 || i.Spec.IngressClassName != nil {
		t.Errorf("%v", i)
	}

	foreign := func(values map[string]any, kind string) map[string]any {
		for _, u := range all[*unstructured.Unstructured](rendering{values: values}.render(t)) {
			if u.GetKind() == kind && u.GetName() == "zarf-registry-expose" {
				return u.Object["spec"].(map[string]any)
			}
		}
		t.Fatalf("no %s was rendered", kind)
		return nil
	}
	want := `hostnames:
- registry.example.com
- images.example.com
parentRefs:
- name: edge
  namespace: gateways
  sectionName: https
rules:
- backendRefs:
  - name: zarf-registry-expose
    port: 8443
  matches:
  - path:
      type: PathPrefix
      value: /v2
  timeouts:
    request: 0s
`
	if diff := cmp.Diff(want, mustYAML(t, foreign(ciValues(t)["expose"], "HTTPRoute"))); diff != "" {
		t.Error(diff)
	}
	spec := foreign(
		proxyMode(t, "expose.gateway={enabled: true, parentRefs: [{name: edge}]}", "expose.hosts=[a.example.com]",
			"expose.tls.existingSecret=mine"), "BackendTLSPolicy",
	)
	if diff := cmp.Diff(
		"hostname: a.example.com\nwellKnownCACertificates: System\n", mustYAML(t, spec["validation"]),
	); diff != "" {
		t.Error(diff)
	}
	certificate := foreign(ciValues(t)["expose"], "Certificate")
	if diff := cmp.Diff(
		"group: awspca.cert-manager.io\nkind: AWSPCAClusterIssuer\nname: company\n", mustYAML(t, certificate["issuerRef"]),
	); diff != "" ||
		certificate["secretName"] != "zarf-registry-expose-tls" {
		t.Errorf("%v %s", certificate, diff)
	}
	certificate = foreign(proxyMode(t, "expose.service.enabled=true", "expose.hosts=[a.example.com, 192.0.2.5]",
		"expose.tls.certManager.issuerRef.name=company"), "Certificate")
	if diff := cmp.Diff("- a.example.com\n", mustYAML(t, certificate["dnsNames"])); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff("- 192.0.2.5\n", mustYAML(t, certificate["ipAddresses"])); diff != "" {
		t.Error(diff)
	}
}

// prepare checks the Secrets without which the registry would not start. It may read them (TestPermissions).
func TestPrepareChecksExposeSecrets(t *testing.T) {
	t.Parallel()
	out := rendering{
		values: proxyMode(
			t, "expose.service.enabled=true", "expose.hosts=[a.example.com, b.example.com]", "expose.tls.existingSecret=mine",
		),
	}.render(t)
	want := jobsettings.Expose{TLSSecret: "mine", Address: "a.example.com"}
	if diff := cmp.Diff(want, decided(out).Expose); diff != "" {
		t.Errorf("the Jobs are told (-want +got):\n%s", diff)
	}
	// cert-manager has not created its Secret yet.
	if secret := decided(rendering{values: ciValues(t)["expose"]}.render(t)).Expose.TLSSecret; secret != "" {
		t.Errorf("prepare is told of %s", secret)
	}
}

func TestLocalRegistryHosting(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sets []string
		told bool
	}{
		"by default":           {[]string{"registryProxy=true"}, false},
		"enabled":              {[]string{"registryProxy=true", "localRegistryHosting=true"}, true},
		"an external registry": {[]string{"registryURL=registry.example.com"}, false},
	} {
		out := rendering{values: with(t, nil, test.sets...)}.render(t)
		if told := decided(out).Finish.LocalRegistryHosting; told != test.told {
			t.Errorf("%s: finish is told %t", name, told)
		}
	}
	for sets, want := range map[string]string{
		"expose.service={enabled: true}":                                  "registry.example.com",
		"expose.service={enabled: true, port: 8443}":                      "registry.example.com:8443",
		"expose.service={enabled: true, type: NodePort, nodePort: 30443}": "registry.example.com:30443",
		"expose.service={enabled: true, type: NodePort}":                  "",
		"expose.ingress={enabled: true}":                                  "registry.example.com",
		"expose.gateway={enabled: true, parentRefs: [{name: edge}]}":      "registry.example.com",
	} {
		out := rendering{
			values: proxyMode(t, sets, "expose.hosts=[registry.example.com]", "expose.tls.existingSecret=mine"),
		}.render(t)
		if got := decided(out).Expose.Address; got != want {
			t.Errorf("%s: finish is told %q", sets, got)
		}
	}
}
