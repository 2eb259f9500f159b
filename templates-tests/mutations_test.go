package templates

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// mistakes are edits of a template that an invariant must notice: an invariant
// that finds nothing wrong here could not find anything.
var mistakes = map[string]struct{ file, old, new string }{
	"pods run restricted, and only the proxy uses the node's network":                    {"_pod.tpl", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"},
	"the proxy listens on loopback only":                                                 {"proxy/_daemonset.tpl", "hostIP: 127.0.0.1", "hostIP: 0.0.0.0"},
	"hostNetwork is surged, declares no port and probes loopback; hostPort never surges": {"proxy/_daemonset.tpl", "      maxUnavailable: {{", "      maxSurge: 1\n      maxUnavailable: {{"},
	"servers have all three probes, on ports that exist":                                 {"registry/deployment.yaml", "- name: health", "- name: well"},
	"containers ask for CPU and memory and leave their last words":                       {"init-hook/_hook.tpl", "terminationMessagePolicy: FallbackToLogsOnError", "terminationMessagePolicy: File"},
	"only the Jobs get a token":                                                          {"proxy/_daemonset.tpl", "automountServiceAccountToken: false", "automountServiceAccountToken: true"},
	"hooks have the weight of their kind and are deleted when they succeed":              {"init-hook/_hook.tpl", `"weight" "-20"`, `"weight" "0"`},
	"what a Job needs is there at each of its events":                                    {"init-hook/_hook.tpl", ",pre-delete\n", "\n"},
	"what the Jobs make is not rendered":                                                 {"registry/configmap.yaml", `"%s-config"`, `"%s-payload-1"`},
	"in nodeport mode, and only there, a node port leads to the plain listener":          {"registry/service.yaml", "type: ClusterIP", "type: NodePort"},
	"in proxy mode, and only there, are proxies, which Helm keeps and finish knows":      {"_helpers.tpl", "helm.sh/resource-policy: keep", "helm.sh/resource-policy: delete"},
	"with an external registry there is nothing but hooks and what nodes are to have":    {"registry/configmap.yaml", `include "zarf-registry.internal" .`, `include "zarf-registry.fullname" .`},
	"the injected programs' images are those that the Jobs know":                         {"_decisions.tpl", `append $images .pause`, `append $images "example.com/pause:1"`},
	"volumes and mounts belong together, whole":                                          {"registry/deployment.yaml", "mountPath: /etc/zarf-registry/config\n", "mountPath: /etc/zarf-registry/config.yml\n              subPath: config.yml\n"},
	"what pods refer to is rendered or made by the Jobs":                                 {"registry/deployment.yaml", "{{ $fullname }}-credentials", "{{ $fullname }}-password"},
	"the first chunk of a payload is required and the others optional":                   {"_pod.tpl", "{{- if . }}\n          optional", "{{- if true }}\n          optional"},
	"an injected program never pulls":                                                    {"_pod.tpl", "imagePullPolicy: IfNotPresent", "imagePullPolicy: Always"},
	"selectors find their own pods and no others":                                        {"registry/service.yaml", `include "zarf-registry.selectorLabels" (dict "root" . "component" "registry")`, `include "zarf-registry.selectorLabels" (dict "root" . "component" "proxy")`},
	"no node gets two proxies":                                                           {"_decisions.tpl", `"excluded" $excluded)`, `"excluded" list)`},
	"names are valid, and objects of one name are one":                                   {"_helpers.tpl", "trunc 42", "trunc 63"},
	"rights are no more than the Jobs need":                                              {"init-hook/role.yaml", "verbs: [get, update, delete]\n    resourceNames:\n      {{- range include", "verbs: [get, update, delete, list]\n    resourceNames: []\n  - verbs: [get]\n    resources: [secrets]\n    apiGroups: ['']\n    resourceNames:\n      {{- range include"},
	"a CronJob runs one at a time and leaves one of each end":                            {"_helpers.tpl", "trunc 39", "trunc 42"},
	"what has loaded certificates can be asked, and nothing else":                        {"registry/deployment.yaml", `"zarf-registry/metrics-port" "5090"`, `"zarf-registry/metrics-port" "5080"`},
	"pods that look after nodes are root without rights, and see what they were told to": {"node-config/_daemonset.tpl", `{{ printf "/host%s" $directory | quote }}`, "/host"},
	"the nodes that are configured are those that get everything back, and finish knows": {"node-config/secret.yaml", "nodeConfig.data\" . | nindent 2 }}", "nodeConfig.data\" . | nindent 2 }}\n  more: bW9yZQ=="},
	"every component has exactly its network policy":                                     {"registry/networkpolicy.yaml", "        - podSelector:\n", "        - namespaceSelector: {}\n          podSelector:\n"},
	"every role has exactly its rules":                                                   {"init-hook/role.yaml", "    verbs: [get, patch, delete]\n    resourceNames:\n      - {{ $fullname }}-nodeport\n", "    verbs: [get, patch, delete]\n"},
	"pods of their own are for helm test, and end":                                       {"tests/_pod.tpl", "restartPolicy: Never", "restartPolicy: OnFailure"},
	"what is for the outside leads to a listener with TLS, and to no other":              {"expose/service.yaml", "targetPort: exposed", "targetPort: plain"},
	"every Job ends, and its log outlives its failure":                                   {"init-hook/_hook.tpl", "restartPolicy: Never", "restartPolicy: OnFailure"},
}

func TestEveryInvariantNoticesAMistake(t *testing.T) {
	for name, check := range invariants {
		mistake, ok := mistakes[name]
		if !ok {
			t.Errorf("no mistake for %q", name)
			continue
		}
		c := loadChart(t)
		edited := false
		for _, file := range c.Templates {
			if file.Name == "templates/"+mistake.file {
				text := strings.ReplaceAll(string(file.Data), mistake.old, mistake.new)
				edited = text != string(file.Data)
				file.Data = []byte(text)
			}
		}
		if !edited {
			t.Errorf("%q: %s has no %q to replace", name, mistake.file, mistake.old)
			continue
		}
		values := proxyMode(t)
		if strings.Contains(name, "nodes") {
			values = ciValues(t)["node-config"]
		}
		if strings.Contains(name, "outside") {
			values = ciValues(t)["expose-ingress"]
		}
		if strings.Contains(name, "external") {
			values = ciValues(t)["external"]
		}
		out := rendering{
			chart: c, values: values, release: strings.Repeat("long-", 10) + "abc",
			cluster: newCluster(kubernetes(corev1.IPv4Protocol), node("a", "amd64", "registry.k8s.io/pause:3.9"), node("b", "amd64", "registry.k8s.io/pause:3.10")),
		}.render(t)
		if len(check(out)) == 0 {
			t.Errorf("%q does not notice that %q became %q", name, mistake.old, mistake.new)
		}
	}
	if len(mistakes) != len(invariants) {
		t.Errorf("%d mistakes for %d invariants", len(mistakes), len(invariants))
	}
}
