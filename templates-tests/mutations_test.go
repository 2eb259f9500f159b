package templates

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// mutations are edits of a template that an invariant must detect. Without one an invariant might
// never report anything.
var mutations = map[string]struct {
	values    string // a values file; "" means proxy
	file      string
	old, edit string
}{
	"pods comply with the restricted level, and only proxies use the node's network": {
		file: "_pod.tpl",
		old:  "readOnlyRootFilesystem: true",
		edit: "readOnlyRootFilesystem: false",
	},
	"every pod has the label zarf.dev/agent=ignore, and no selector uses it": {
		file: "_helpers.tpl",
		old:  "zarf.dev/agent: ignore",
		edit: "zarf.dev/agent: mutate",
	},
	"test hooks are pods only, as helm test --logs requires": {
		file: "init-hook/_hook.tpl",
		old:  ",pre-delete\n",
		edit: ",pre-delete,test\n",
	},
	"all Jobs have the same valid settings, and no other pod has them": {
		file: "init-hook/_hook.tpl",
		old:  `"anonymousPull"`,
		edit: `"anonymousPulls"`,
	},
	"proxies listen on loopback only": {
		file: "proxy/_daemonset.tpl",
		old:  "hostIP: 127.0.0.1",
		edit: "hostIP: 0.0.0.0",
	},
	"proxies with hostNetwork surge, declare no port and are probed on loopback; others never surge": {
		file: "proxy/_daemonset.tpl",
		old:  "      maxUnavailable: {{",
		edit: "      maxSurge: 1\n      maxUnavailable: {{",
	},
	"servers have all three probes, on existing ports": {
		file: "registry/deployment.yaml",
		old:  "- name: health",
		edit: "- name: well",
	},
	"containers request CPU and memory and leave a termination message": {
		file: "init-hook/_hook.tpl",
		old:  "terminationMessagePolicy: FallbackToLogsOnError",
		edit: "terminationMessagePolicy: File",
	},
	"only Jobs and the healer mount a token": {
		file: "proxy/_daemonset.tpl",
		old:  "automountServiceAccountToken: false",
		edit: "automountServiceAccountToken: true",
	},
	"hooks have the weight and the delete policy of their kind": {
		file: "init-hook/_hook.tpl",
		old:  `"weight" "-20"`,
		edit: `"weight" "0"`,
	},
	"the ServiceAccount and the roles of a hook Job exist at each of its events": {
		file: "init-hook/_hook.tpl",
		old:  ",pre-delete\n",
		edit: "\n",
	},
	"objects that the Jobs create are not rendered": {
		file: "registry/configmap.yaml",
		old:  `"%s-config"`,
		edit: `"%s-payload-1"`,
	},
	"the node port belongs to the Service of the Jobs": {
		file: "registry/service.yaml",
		old:  "type: ClusterIP",
		edit: "type: NodePort",
	},
	"only proxy mode has proxies, which Helm keeps and finish knows": {
		file: "_helpers.tpl",
		old:  "helm.sh/resource-policy: keep",
		edit: "helm.sh/resource-policy: delete",
	},
	"an external registry needs only hooks and node configuration": {
		values: "external",
		file:   "registry/configmap.yaml",
		old:    `include "zarf-registry.internal" .`,
		edit:   `include "zarf-registry.fullname" .`,
	},
	"the Jobs know the images of injected programs": {
		file: "init-hook/_hook.tpl",
		old:  `"reference" $pause.value`,
		edit: `"reference" "example.com/pause:1"`,
	},
	"every volume is mounted, and every mount has a volume and no subPath": {
		file: "registry/deployment.yaml",
		old:  "mountPath: /etc/zarf-registry/config\n",
		edit: "mountPath: /etc/zarf-registry/config.yml\n              subPath: config.yml\n",
	},
	"objects that pods refer to are rendered or created by the Jobs": {
		file: "registry/deployment.yaml",
		old:  "{{ $fullname }}-auth",
		edit: "{{ $fullname }}-password",
	},
	"only the first chunk of a payload is required": {
		file: "_pod.tpl",
		old:  "{{- if . }}\n          optional",
		edit: "{{- if true }}\n          optional",
	},
	"injected programs never pull an image": {
		file: "_pod.tpl",
		old:  "imagePullPolicy: {{ .pause.pullPolicy }}",
		edit: "imagePullPolicy: Always",
	},
	"selectors match their own pods only": {
		file: "registry/service.yaml",
		old:  `include "zarf-registry.selectorLabels" (dict "root" . "component" "registry")`,
		edit: `include "zarf-registry.selectorLabels" (dict "root" . "component" "proxy")`,
	},
	"no node gets two pods of a component": {
		values: "node-config",
		file:   "node-config/_daemonset.tpl",
		old:    "kubernetes.io/arch: {{ .architecture }}",
		edit:   "kubernetes.io/arch: amd64",
	},
	"names are valid and unique": {
		file: "_helpers.tpl",
		old:  "trunc 42",
		edit: "trunc 63",
	},
	"roles have no broad permissions": {
		file: "init-hook/role.yaml",
		old:  "verbs: [get, update, delete]\n    resourceNames:\n      {{- range include",
		edit: "verbs: [get, update, delete, list]\n    resourceNames: []\n  - verbs: [get]\n    resources: [secrets]\n    " +
			"apiGroups: ['']\n    resourceNames:\n      {{- range include",
	},
	"pods refer only to the Secrets that they need: a kubelet may read all keys": {
		file: "registry/deployment.yaml",
		old:  "secretName: {{ $fullname }}-auth\n",
		edit: "secretName: {{ $fullname }}-credentials\n",
	},
	"CronJobs never overlap, keep no successful Job, and a failed one for an hour": {
		file: "_helpers.tpl",
		old:  "trunc 39",
		edit: "trunc 42",
	},
	"exactly the pods with a metrics listener announce its port": {
		file: "registry/deployment.yaml",
		old:  `"zarf-registry/metrics-port" "5090"`,
		edit: `"zarf-registry/metrics-port" "5080"`,
	},
	"pods that write node files run as root without capabilities, and mount configured directories only": {
		values: "node-config",
		file:   "node-config/_daemonset.tpl",
		old:    `{{ printf "/host%s" $directory | quote }}`,
		edit:   "/host",
	},
	"the same nodes are configured and restored, and finish knows their DaemonSets": {
		values: "node-config",
		file:   "node-config/secret.yaml",
		old:    "nodeConfig.data\" . | nindent 2 }}",
		edit:   "nodeConfig.data\" . | nindent 2 }}\n  more: bW9yZQ==",
	},
	"every component has exactly its network policy": {
		file: "registry/networkpolicy.yaml",
		old:  "        - podSelector:\n",
		edit: "        - namespaceSelector: {}\n          podSelector:\n",
	},
	"every role has exactly its rules": {
		file: "init-hook/role.yaml",
		old:  "    verbs: [get, patch, delete]\n    resourceNames:\n      - {{ $fullname }}-nodeport\n",
		edit: "    verbs: [get, patch, delete]\n",
	},
	"bare pods belong to helm test and have a deadline": {
		file: "tests/_pod.tpl",
		old:  "restartPolicy: Never",
		edit: "restartPolicy: OnFailure",
	},
	"exposed Services and Ingresses lead to the TLS listener only": {
		values: "expose-ingress",
		file:   "expose/service.yaml",
		old:    "targetPort: exposed",
		edit:   "targetPort: plain",
	},
	"every Job has a deadline, and keeps its pod after a failure": {
		file: "init-hook/_hook.tpl",
		old:  "restartPolicy: Never",
		edit: "restartPolicy: OnFailure",
	},
}

func TestEveryInvariantDetectsAMutation(t *testing.T) {
	for name, check := range invariants {
		mutation, ok := mutations[name]
		if !ok {
			t.Errorf("no mutation for invariant %q", name)
			continue
		}
		c := loadChart(t)
		edited := false
		for _, file := range c.Templates {
			if file.Name == "templates/"+mutation.file {
				text := strings.ReplaceAll(string(file.Data), mutation.old, mutation.edit)
				edited = text != string(file.Data)
				file.Data = []byte(text)
			}
		}
		if !edited {
			t.Errorf("%q: %s has no %q to replace", name, mutation.file, mutation.old)
			continue
		}
		values := ciValues(t)["proxy"]
		if mutation.values != "" {
			values = ciValues(t)[mutation.values]
		}
		out := rendering{
			chart: c, values: values, release: strings.Repeat("long-", 10) + "abc",
			cluster: newCluster(
				kubernetes(corev1.IPv4Protocol),
				node("a", "amd64", "registry.k8s.io/pause:3.9"), node("b", "amd64", "registry.k8s.io/pause:3.10"),
			),
		}.render(t)
		if len(check(out)) == 0 {
			t.Errorf("%q does not detect that %q became %q", name, mutation.old, mutation.edit)
		}
	}
	if len(mutations) != len(invariants) {
		t.Errorf("%d mutations for %d invariants", len(mutations), len(invariants))
	}
}
