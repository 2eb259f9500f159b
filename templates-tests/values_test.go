package templates

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	yaml3 "go.yaml.in/yaml/v3"
)

// A wrong value gives one line, which names it, what it is, and what is allowed. So the schema has no enum, whose
// message lacks the value, and no oneOf and anyOf, whose messages have a line for each alternative.
func TestSchemaMessages(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ set, message string }{
		{"unknown=1", "'': additional properties 'unknown' not allowed"},
		{"proxy.unknown=1", "'/proxy': additional properties 'unknown' not allowed"},
		{"registry.storage.s3.unknown=1", "'/registry/storage/s3': additional properties 'unknown' not allowed"},
		{"registry.persistence.unknown=1", "'/registry/persistence': additional properties 'unknown' not allowed"},
		{"registry.resources.unknown={}", "'/registry/resources': additional properties 'unknown' not allowed"},
		{"image.unknown=1", "'/image': additional properties 'unknown' not allowed"},
		{"registryProxy=yes please", "'/registryProxy': got string, want null or boolean"},
		{"registryURL=[registry.example.com]", "'/registryURL': got array, want string"},
		{"auth.anonymousPull=yes please", "'/auth/anonymousPull': got string, want boolean"},
		{"auth.unknown=1", "'/auth': additional properties 'unknown' not allowed"},
		{"auth.existingSecret={name: mine}", "'/auth/existingSecret': got object, want string"},
		{"pki.unknown=1", "'/pki': additional properties 'unknown' not allowed"},
		{"pki.mode=vault", "'/pki/mode': 'vault' !~ '^(internal|existingSecret|certManager)$'"},
		{"pki.lifetime.certificate=1 year", "'/pki/lifetime/certificate': '1 year' !~ '^([0-9]+(ms|s|m|h))+$'"},
		{"pki.lifetime.ca=1", "'/pki/lifetime/ca': got number, want string"},
		{"pki.rotation.schedule=5", "'/pki/rotation/schedule': got number, want string"},
		{"pki.rotation.timeout=1d", "'/pki/rotation/timeout': '1d' !~ '^([0-9]+(ms|s|m|h))+$'"},
		{"initHook.resources.unknown={}", "'/initHook/resources': additional properties 'unknown' not allowed"},
		{"pki.existingSecret.server={name: mine}", "'/pki/existingSecret/server': got object, want string"},
		{"pki.certManager.issuerRef.kind=''", "'/pki/certManager/issuerRef/kind': minLength: got 0, want 1"},
		{"pki.certManager.issuerRef.group=''", "'/pki/certManager/issuerRef/group': minLength: got 0, want 1"},
		{"zarf.compatible=v0.84.0", "'/zarf/compatible': got string, want boolean"},
		{"zarf.unknown=1", "'/zarf': additional properties 'unknown' not allowed"},
		{"secrets.htpasswd=[a]", "'/secrets/htpasswd': got array, want string"},
		{"secrets.unknown=1", "'/secrets': additional properties 'unknown' not allowed"},
		{"podSecurity.label=privileged", "'/podSecurity/label': got string, want boolean"},
		{"podSecurity.unknown=1", "'/podSecurity': additional properties 'unknown' not allowed"},
		{
			"initHook.ignorePreflight=[everything]",
			"'/initHook/ignorePreflight/0': 'everything' !~ '^(all|pod-security|admission|always-pull-images|port|port-range|ip-family|cri-o|" +
				"host-port|architecture|payload|pause-image|" +
				"placement|priority-class|storage|zarf|certificates|credentials|nodeConfig|expose)$'",
		},
		{"initHook.ignorePreflight=port", "'/initHook/ignorePreflight': got string, want array"},
		{"port='31999'", "'/port': got string, want integer"},
		{"port=80", "'/port': minimum: got 80, want 1,024"},
		{"port=70000", "'/port': maximum: got 70,000, want 65,535"},
		{"ipFamily=ipv4", "'/ipFamily': 'ipv4' !~ '^(IPv4|IPv6|DualStack)$'"},
		{"clusterDomain=Cluster Local", "'/clusterDomain': 'Cluster Local' !~ '^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$'"},
		{"injector.architectures=[]", "'/injector/architectures': minItems: got 0, want 1"},
		{"injector.architectures=[riscv64]", "'/injector/architectures/0': 'riscv64' !~ '^(amd64|arm64)$'"},
		{"injector.architectures=[amd64, amd64]", "'/injector/architectures': items at 0 and 1 are equal"},
		{"initHook.timeout=5 minutes", "'/initHook/timeout': '5 minutes' !~ '^([0-9]+(ms|s|m|h))+$'"},
		{"initHook.image.digest=sha256:abc", "'/initHook/image/digest': 'sha256:abc' !~ '^(sha256:[0-9a-f]{64})?$'"},
		{"initHook.image.tag=a:b", "'/initHook/image/tag': 'a:b' !~ '^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$'"},
		{"image.pullPolicy=Sometimes", "'/image/pullPolicy': 'Sometimes' !~ '^(IfNotPresent|Always|Never)$'"},
		{"registry.architecture=riscv64", "'/registry/architecture': 'riscv64' !~ '^(amd64|arm64)$'"},
		{"registry.replicas=0", "'/registry/replicas': minimum: got 0, want 1"},
		{"logLevel=loud", "'/logLevel': 'loud' !~ '^(error|warn|info|debug)$'"},
		{
			"registry.garbageCollection.unknown=1",
			"'/registry/garbageCollection': additional properties 'unknown' not allowed",
		},
		{
			"registry.garbageCollection.gracePeriod=a day",
			"'/registry/garbageCollection/gracePeriod': 'a day' !~ '^([0-9]+(ms|s|m|h))+$'",
		},
		{
			"registry.garbageCollection.prune.unknown=1",
			"'/registry/garbageCollection/prune': additional properties 'unknown' not allowed",
		},
		{
			"registry.garbageCollection.prune.olderThan=a month",
			"'/registry/garbageCollection/prune/olderThan': 'a month' !~ '^([1-9][0-9]{0,3}d|[0-9]*[1-9][0-9]*(ms|s|m|h)([0-9]+(ms|s|m|h))*)?$'",
		},
		{
			"registry.garbageCollection.prune.olderThan=0d",
			"'/registry/garbageCollection/prune/olderThan': '0d' !~ '^([1-9][0-9]{0,3}d|[0-9]*[1-9][0-9]*(ms|s|m|h)([0-9]+(ms|s|m|h))*)?$'",
		},
		{
			"registry.garbageCollection.prune.olderThan=0h",
			"'/registry/garbageCollection/prune/olderThan': '0h' !~ '^([1-9][0-9]{0,3}d|[0-9]*[1-9][0-9]*(ms|s|m|h)([0-9]+(ms|s|m|h))*)?$'",
		},
		{
			"registry.garbageCollection.prune.keepLast=-1",
			"'/registry/garbageCollection/prune/keepLast': minimum: got -1, want 0",
		},
		{
			"registry.garbageCollection.prune.match=[127.0.0.1:31999/a]",
			"'/registry/garbageCollection/prune/match/0': '127.0.0.1:31999/a' !~ '^[a-z0-9._/*?-]+(:[A-Za-z0-9_.*?-]+)?$'",
		},
		{"registry.storage.type=floppy", "'/registry/storage/type': 'floppy' !~ '^(filesystem|s3|inmemory)$'"},
		{
			"registry.storage.s3.regionEndpoint=s3.example.internal",
			"'/registry/storage/s3/regionEndpoint': 's3.example.internal' !~ '^(https?://.+)?$'",
		},
		{"registry.persistence.accessModes=[]", "'/registry/persistence/accessModes': minItems: got 0, want 1"},
		{
			"registry.persistence.accessModes=[ReadOnlyMany]",
			"'/registry/persistence/accessModes/0': 'ReadOnlyMany' !~ '^(ReadWriteOnce|ReadWriteOncePod|ReadWriteMany)$'",
		},
		{
			"registry.persistence.size=plenty",
			`'/registry/persistence/size': 'plenty' !~ '^[0-9]+(\\.[0-9]+)?([KMGTPE]i?|k|m)?$'`,
		},
		{"registry.extraEnv=[{value: nameless}]", "'/registry/extraEnv/0': missing property 'name'"},
		{
			"registry.tolerations=[{effect: Never}]",
			"'/registry/tolerations/0/effect': 'Never' !~ '^(NoSchedule|PreferNoSchedule|NoExecute)$'",
		},
		{
			"registry.affinity={nodeAffinities: {}}",
			"'/registry/affinity': additional properties 'nodeAffinities' not allowed",
		},
		{"registry.podLabels={a: 1}", "'/registry/podLabels/a': got number, want string"},
		{"proxy.hostNetwork=sometimes", "'/proxy/hostNetwork': got string, want null or boolean"},
		{"proxy.tls=true", "'/proxy/tls': got boolean, want null or string"},
		{"proxy.retryTimeout=-1s", "'/proxy/retryTimeout': '-1s' !~ '^([0-9]+(ms|s|m|h))+$'"},
		{
			"proxy.updateStrategy.maxUnavailable=half",
			"'/proxy/updateStrategy/maxUnavailable': 'half' !~ '^([0-9]|[1-9][0-9]|100)%$'",
		},
		{"cache.unknown=1", "'/cache': additional properties 'unknown' not allowed"},
		{"cache.replicas=-1", "'/cache/replicas': minimum: got -1, want 0"},
		{"cache.size=10G", "'/cache/size': '10G' !~ '^[1-9][0-9]{0,6}[MGT]i$'"},
		{"cache.size=1.5Gi", "'/cache/size': '1.5Gi' !~ '^[1-9][0-9]{0,6}[MGT]i$'"},
		{"cache.size=0Gi", "'/cache/size': '0Gi' !~ '^[1-9][0-9]{0,6}[MGT]i$'"},
		{"cache.storageClass={name: fast}", "'/cache/storageClass': got object, want string"},
		{"cache.staleFor=a day", "'/cache/staleFor': 'a day' !~ '^([0-9]+(ms|s|m|h))+$'"},
		{
			"cache.tolerations=[{effect: Never}]",
			"'/cache/tolerations/0/effect': 'Never' !~ '^(NoSchedule|PreferNoSchedule|NoExecute)$'",
		},
		{"healer.unknown=1", "'/healer': additional properties 'unknown' not allowed"},
		{"healer.enabled=auto", "'/healer/enabled': got string, want null or boolean"},
		{"nodeConfig.unknown=1", "'/nodeConfig': additional properties 'unknown' not allowed"},
		{"nodeConfig.mirrors=docker.io", "'/nodeConfig/mirrors': got string, want array"},
		{"nodeConfig.mirrors=[docker.io, docker.io]", "'/nodeConfig/mirrors': items at 0 and 1 are equal"},
		{"nodeConfig.mirrors=['']", "'/nodeConfig/mirrors/0': minLength: got 0, want 1"},
		{"nodeConfig.force=yes please", "'/nodeConfig/force': got string, want boolean"},
		{"nodeConfig.runtimes=[docker]", "'/nodeConfig/runtimes/0': 'docker' !~ '^(containerd|k3s|rke2|crio)$'"},
		{"nodeConfig.directories=/etc/containerd", "'/nodeConfig/directories': got string, want null or array"},
		{"nodeConfig.tlsDirectories=/etc/ssl", "'/nodeConfig/tlsDirectories': got string, want array"},
		{"nodeConfig.k3s.unknown=1", "'/nodeConfig/k3s': additional properties 'unknown' not allowed"},
		{"nodeConfig.k3s.registries=[a]", "'/nodeConfig/k3s/registries': got array, want null or string or object"},
		{"nodeConfig.k3s.existingSecret={name: mine}", "'/nodeConfig/k3s/existingSecret': got object, want string"},
		{"nodeConfig.k3s.existingSecretKey=''", "'/nodeConfig/k3s/existingSecretKey': minLength: got 0, want 1"},
		{"nodeConfig.containerd.unknown=1", "'/nodeConfig/containerd': additional properties 'unknown' not allowed"},
		{"nodeConfig.containerd.hosts={a: {server: b}}", "'/nodeConfig/containerd/hosts/a': got object, want string"},
		{"nodeConfig.crio.ca=sometimes", "'/nodeConfig/crio/ca': got string, want null or boolean"},
		{"nodeConfig.crio.insecure=auto", "'/nodeConfig/crio/insecure': got string, want boolean"},
		{
			"nodeConfig.updateStrategy.maxUnavailable=half",
			"'/nodeConfig/updateStrategy/maxUnavailable': 'half' !~ '^([0-9]|[1-9][0-9]|100)%$'",
		},
		{"openshift.enabled=yes please", "'/openshift/enabled': got string, want null or boolean"},
		{"openshift.unknown=1", "'/openshift': additional properties 'unknown' not allowed"},
		{"rewrite.unknown=1", "'/rewrite': additional properties 'unknown' not allowed"},
		{"rewrite.missing=ignore", "'/rewrite/missing': 'ignore' !~ '^(rewrite|keep|deny)$'"},
		{"rewrite.registries=docker.io", "'/rewrite/registries': got string, want array"},
		{"rewrite.registries=[]", "'/rewrite/registries': minItems: got 0, want 1"},
		{
			"rewrite.excludedNamespaces=['kube-*']",
			"'/rewrite/excludedNamespaces/0': 'kube-*' !~ '^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$'",
		},
		{"rewrite.namespaceSelector={team: a}", "'/rewrite/namespaceSelector': additional properties 'team' not allowed"},
		{"rewrite.pullSecret=a'b", `'/rewrite/pullSecret': 'a\'b' !~ '^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$'`},
		{"expose.unknown=1", "'/expose': additional properties 'unknown' not allowed"},
		{"expose.hosts=registry.example.com", "'/expose/hosts': got string, want array"},
		{
			"expose.hosts=['https://registry.example.com']",
			"'/expose/hosts/0': 'https://registry.example.com' !~ '^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$'",
		},
		{
			"expose.service.type=ExternalName",
			"'/expose/service/type': 'ExternalName' !~ '^(LoadBalancer|NodePort|ClusterIP)$'",
		},
		{"expose.service.nodePort=none", "'/expose/service/nodePort': got string, want null or integer"},
		{
			"expose.service.externalTrafficPolicy=local",
			"'/expose/service/externalTrafficPolicy': 'local' !~ '^(Local|Cluster)$'",
		},
		{"expose.gateway.parentRefs=[{namespace: a}]", "'/expose/gateway/parentRefs/0': missing property 'name'"},
		{"expose.ingress.annotations={a: 1}", "'/expose/ingress/annotations/a': got number, want string"},
		{"networkPolicy.exposeFrom=[{}]", "'/networkPolicy/exposeFrom/0': minProperties: got 0, want 1"},
		{"metrics.unknown=1", "'/metrics': additional properties 'unknown' not allowed"},
		{"metrics.podMonitor.labels=[a]", "'/metrics/podMonitor/labels': got array, want object"},
		{"metrics.prometheusRule.disabled=ZarfRegistryDown", "'/metrics/prometheusRule/disabled': got string, want array"},
		{"metrics.dashboard.enabled=yes please", "'/metrics/dashboard/enabled': got string, want boolean"},
		{"networkPolicy.metricsFrom=[{}]", "'/networkPolicy/metricsFrom/0': minProperties: got 0, want 1"},
		{
			"networkPolicy.metricsFrom=[{pods: {}}]",
			"'/networkPolicy/metricsFrom/0': additional properties 'pods' not allowed",
		},
		{"imagePullSecrets=[secret]", "'/imagePullSecrets/0': got string, want object"},
		{"global.imageRegistry=[mirror.internal]", "'/global/imageRegistry': got array, want string"},
		{"global.imagePullSecrets=[{secret: a}]", "'/global/imagePullSecrets/0': missing property 'name'"},
		{"namespaceOverride=Images", "'/namespaceOverride': 'Images' !~ '^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$'"},
		{"extraObjects={a: b}", "'/extraObjects': got object, want array"},
		{"extraObjects=[1]", "'/extraObjects/0': got number, want string or object"},
		{
			"registry.topologySpreadConstraints=[{maxSkew: 1}]",
			"'/registry/topologySpreadConstraints/0': missing properties 'topologyKey', 'whenUnsatisfiable'",
		},
		{"podLabels={a: 1}", "'/podLabels/a': got number, want string"},
		{"extraEnv=[{value: nameless}]", "'/extraEnv/0': missing property 'name'"},
		{"reservePort=maybe", "'/reservePort': got string, want boolean"},
		{"ipFamily=auto", "'/ipFamily': 'auto' !~ '^(IPv4|IPv6|DualStack)$'"},
		{"localRegistryHosting=yes please", "'/localRegistryHosting': got string, want null or boolean"},
		{"auth.existingSecret=1", "'/auth/existingSecret': got number, want string"},
		{"registry.replicas=two", "'/registry/replicas': got string, want integer"},
		{
			"registry.resources.limits.memory=lots",
			`'/registry/resources/limits/memory': 'lots' !~ '^[0-9]+(\\.[0-9]+)?([KMGTPE]i?|k|m)?$'`,
		},
		{"registry.resources.requests.cpu=-1", "'/registry/resources/requests/cpu': minimum: got -1, want 0"},
		{"registry.storage.s3.bucket=1", "'/registry/storage/s3/bucket': got number, want string"},
		{"registry.storage.s3.region=[eu]", "'/registry/storage/s3/region': got array, want string"},
		{
			"registry.storage.s3.forcePathStyle=yes please",
			"'/registry/storage/s3/forcePathStyle': got string, want boolean",
		},
		{"registry.storage.s3.existingSecret={a: b}", "'/registry/storage/s3/existingSecret': got object, want string"},
		{"registry.persistence.enabled=yes please", "'/registry/persistence/enabled': got string, want boolean"},
		{"registry.persistence.existingClaim=1", "'/registry/persistence/existingClaim': got number, want string"},
		{"registry.persistence.storageClass=1", "'/registry/persistence/storageClass': got number, want null or string"},
		{"registry.persistence.accessModes=ReadWriteOnce", "'/registry/persistence/accessModes': got string, want array"},
		{"registry.persistence.retain=maybe", "'/registry/persistence/retain': got string, want boolean"},
		{
			"registry.garbageCollection.enabled=yes please",
			"'/registry/garbageCollection/enabled': got string, want boolean",
		},
		{"registry.garbageCollection.schedule=5", "'/registry/garbageCollection/schedule': got number, want string"},
		{
			"registry.garbageCollection.prune.keepLast=few",
			"'/registry/garbageCollection/prune/keepLast': got string, want integer",
		},
		{"registry.nodeSelector={disk: true}", "'/registry/nodeSelector/disk': got boolean, want string"},
		{"registry.nodeSelector=fast", "'/registry/nodeSelector': got string, want object"},
		{"registry.tolerations={key: a}", "'/registry/tolerations': got object, want null or array"},
		{"registry.serviceAccount.create=maybe", "'/registry/serviceAccount/create': got string, want boolean"},
		{
			"registry.serviceAccount.name=A B",
			"'/registry/serviceAccount/name': 'A B' !~ '^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$'",
		},
		{"registry.serviceAccount.annotations={a: 1}", "'/registry/serviceAccount/annotations/a': got number, want string"},
		{
			"registry.podSecurityContext={privileged: true}",
			"'/registry/podSecurityContext': additional properties 'privileged' not allowed",
		},
		{"registry.podSecurityContext.fsGroup=-1", "'/registry/podSecurityContext/fsGroup': minimum: got -1, want 0"},
		{"registry.extraVolumes={name: a}", "'/registry/extraVolumes': got object, want array"},
		{"registry.extraVolumeMounts=[{name: a}]", "'/registry/extraVolumeMounts/0': missing property 'mountPath'"},
		{
			"registry.extraVolumeMounts=[{name: a, mountPath: b}]",
			"'/registry/extraVolumeMounts/0/mountPath': 'b' !~ '^/.+$'",
		},
		{"registry.priorityClassName=1", "'/registry/priorityClassName': got number, want string"},
		{"proxy.tls=yes please", "'/proxy/tls': 'yes please' !~ '^(always|never)$'"},
		{"proxy.hostNetwork=auto", "'/proxy/hostNetwork': got string, want null or boolean"},
		{"proxy.retryTimeout=60", "'/proxy/retryTimeout': got number, want string"},
		{"proxy.metricsPort=80", "'/proxy/metricsPort': minimum: got 80, want 1,024"},
		{"proxy.updateStrategy.maxSurge=101%", "'/proxy/updateStrategy/maxSurge': '101%' !~ '^([0-9]|[1-9][0-9]|100)%$'"},
		{"proxy.updateStrategy.maxUnavailable=-1", "'/proxy/updateStrategy/maxUnavailable': minimum: got -1, want 0"},
		{
			"proxy.updateStrategy.maxUnavailable=true",
			"'/proxy/updateStrategy/maxUnavailable': got boolean, want integer or string",
		},
		{"proxy.nodeSelector=[a]", "'/proxy/nodeSelector': got array, want object"},
		{"proxy.tolerations=[{operator: Is}]", "'/proxy/tolerations/0/operator': 'Is' !~ '^(Exists|Equal|Lt|Gt)$'"},
		{"cache.replicas=one", "'/cache/replicas': got string, want integer"},
		{"nodeConfig.runtimes=[]", "'/nodeConfig/runtimes': minItems: got 0, want 1"},
		{"nodeConfig.runtimes=k3s", "'/nodeConfig/runtimes': got string, want null or array"},
		{"nodeConfig.k3s.path=''", "'/nodeConfig/k3s/path': minLength: got 0, want 1"},
		{"rewrite.enabled=maybe", "'/rewrite/enabled': got string, want boolean"},
		{"expose.hosts=[A.example.com]", "'/expose/hosts/0': 'A.example.com' !~ '^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$'"},
		{"expose.anonymousPull=maybe", "'/expose/anonymousPull': got string, want boolean"},
		{"expose.tls.existingSecret=1", "'/expose/tls/existingSecret': got number, want string"},
		{"expose.tls.certManager.issuerRef.name=1", "'/expose/tls/certManager/issuerRef/name': got number, want string"},
		{"expose.service.enabled=maybe", "'/expose/service/enabled': got string, want boolean"},
		{"expose.service.port=0", "'/expose/service/port': minimum: got 0, want 1"},
		{"expose.service.nodePort=99999", "'/expose/service/nodePort': maximum: got 99,999, want 65,535"},
		{"expose.ingress.enabled=maybe", "'/expose/ingress/enabled': got string, want boolean"},
		{"expose.ingress.className=1", "'/expose/ingress/className': got number, want null or string"},
		{"networkPolicy.enabled=maybe", "'/networkPolicy/enabled': got string, want boolean"},
		{"pki.certManager.issuerRef.name=1", "'/pki/certManager/issuerRef/name': got number, want string"},
		{"metrics.podMonitor.enabled=maybe", "'/metrics/podMonitor/enabled': got string, want boolean"},
		{"image.registry=1", "'/image/registry': got number, want string"},
		{"initHook.image.repository=''", "'/initHook/image/repository': minLength: got 0, want 1"},
		{"initHook.image.digest=0123", "'/initHook/image/digest': got number, want string"},
		{"proxy.image.tag=-a", "'/proxy/image/tag': '-a' !~ '^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$'"},
		{"registry.image.digests={}", "'/registry/image': additional properties 'digests' not allowed"},
		{"injector.enabled=maybe", "'/injector/enabled': got string, want boolean"},
		{"injector.image=1", "'/injector/image': got number, want null or string"},
		{"healer.enabled=maybe", "'/healer/enabled': got string, want null or boolean"},
		{"initHook.timeout=5", "'/initHook/timeout': got number, want null or string"},
		{"initHook.verifyPulls=maybe", "'/initHook/verifyPulls': got string, want boolean"},
		{"initHook.maxFailedNodes=half", "'/initHook/maxFailedNodes': 'half' !~ '^([0-9]|[1-9][0-9]|100)%$'"},
		{"imagePullSecrets=secret", "'/imagePullSecrets': got string, want array"},
		{"global.imageRegistry=1", "'/global/imageRegistry': got number, want string"},
		{"global.imagePullSecrets=['']", "'/global/imagePullSecrets/0': minLength: got 0, want 1"},
		{"nameOverride=-a", "'/nameOverride': '-a' !~ '^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$'"},
		{"fullnameOverride=1", "'/fullnameOverride': got number, want string"},
		{"commonLabels={a: 1}", "'/commonLabels/a': got number, want string"},
		{"podAnnotations=[a]", "'/podAnnotations': got array, want object"},
		{"extraEnv=[{name: ''}]", "'/extraEnv/0/name': minLength: got 0, want 1"},
		{"priorityClassName=1", "'/priorityClassName': got number, want string"},
		{"openshift.enabled=auto", "'/openshift/enabled': got string, want null or boolean"},
		{"rbac.create=maybe", "'/rbac/create': got string, want boolean"},
	} {
		want := "values don't meet the specifications of the schema(s) in the following chart(s):\nzarf-registry:\n" +
			"- at " + strings.Replace(test.message, " !~ ", " does not match pattern ", 1) + "\n"
		if _, err := (rendering{values: proxyMode(t, test.set)}).try(t); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want\n%s", test.set, err, want)
		}
	}
	b, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if found := regexp.MustCompile(`"(enum|oneOf|anyOf)"`).FindString(string(b)); err != nil || found != "" {
		t.Errorf("values.schema.json has %s: %v", found, err)
	}
}

func TestSchemaAcceptsCommandLineValues(t *testing.T) {
	t.Parallel()
	for _, set := range []string{
		"global={imageRegistry: example.com, storageClass: fast}", // Helm passes a parent chart's globals
		"global=null", "global.imagePullSecrets=[a]",
		"registry.persistence.storageClass=", "registry.persistence.storageClass=''", "registry.persistence.size=1.5Ti",
		"proxy.resources.requests.cpu=1", "proxy.resources.requests.cpu=0.5", "proxy.updateStrategy.maxUnavailable=25%",
		"proxy.updateStrategy.maxSurge=100%",
		"pki.mode=null", "pki.rotation.schedule=''", "pki.rotation.schedule='@every 30m'",
		"pki.rotation.schedule='0,30 */2 1-5 JAN mon-fri'", "pki.rotation.schedule='@hourly'",
		"pki.lifetime={certificate: 6m, ca: 12m}",
		"initHook.timeout=1h30m", "initHook.image.tag=v1.2.3-rc.1_x", "initHook.tolerations=[]", "fullnameOverride=images",
		"registry.extraEnv=[{name: A, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]",
		"nodeConfig.directories=null", "nodeConfig.k3s.registries=''", "nodeConfig.k3s.registries={}",
		"nodeConfig.crio.ca=false", "nodeConfig.containerd.hosts={}", "nodeConfig.mirrors=null",
		"cache.tolerations=null", "cache.tolerations=[]", "cache.resources={requests: {ephemeral-storage: 12Gi}}",
		"nodeConfig.updateStrategy.maxUnavailable=100%", "nodeConfig.tolerations=[]",
		"metrics.prometheusRule={enabled: true}", "metrics.dashboard={enabled: true, labels: {}}",
		"networkPolicy.metricsFrom=[{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {podSelector: {}}]",
		"commonLabels=null", "commonAnnotations=null", "podLabels=null", "podAnnotations=null", "registry.podLabels=null",
		"registry.affinity=null", "proxy.hostNetwork=null", "openshift.enabled=null", "proxy.podLabels=null",
		"proxy.nodeSelector=null", "initHook.image.tag=''",
		"initHook={nodeSelector: null}", "nodeConfig={mirrors: [docker.io], containerd: {hosts: null}}",
	} {
		rendering{values: proxyMode(t, set)}.render(t)
	}
}

// zarf are the values with which the release replaces Zarf's registry. Its capacity is its length.
var zarf = []string{
	"zarf.compatible=true", "fullnameOverride=zarf-docker-registry",
	"secrets.htpasswd='zarf-push:$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy'",
}

const (
	external = "registryURL=registry.example.com"
	exposed  = "expose.service={enabled: true, type: NodePort}"
)

// refusals are invalid combinations of values, in proxy mode unless set otherwise, and the value that the error names.
var refusals = []struct {
	path string
	sets []string
}{
	{"registryURL", []string{"registryURL=registry.example.com"}},
	{"registryURL", []string{"registryProxy=null", "registryURL=http://registry.example.com"}},
	{"registryURL", []string{"registryProxy=null", "registryURL=registry/team"}},
	{"fullnameOverride", []string{"fullnameOverride=1st"}},
	{"fullnameOverride", []string{"nameOverride=a.b"}},
	{"commonLabels", []string{"commonLabels={app.kubernetes.io/name: mine}"}},
	{"registry.podLabels", []string{"registry.podLabels={app.kubernetes.io/component: mine}"}},
	{"proxy.podLabels", []string{"proxy.podLabels={zarf-registry/proxies: mine}"}},
	{"registry.nodeSelector", []string{"registry.nodeSelector={kubernetes.io/os: windows}"}},
	{"initHook.nodeSelector", []string{"initHook.nodeSelector={kubernetes.io/os: linux}"}},
	{"proxy.nodeSelector", []string{"proxy.nodeSelector={kubernetes.io/arch: amd64}"}},
	{"proxy.hostNetwork", []string{"ipFamily=IPv6", "proxy.hostNetwork=false"}},
	{"proxy.metricsPort", []string{"proxy.hostNetwork=true", "proxy.metricsPort=31999"}},
	{"proxy.metricsPort", []string{"proxy.metricsPort=5000"}},
	{"cache.nodeSelector", []string{"cache={replicas: 3, nodeSelector: {a: b}}"}},
	{"podLabels", []string{"podLabels={zarf-registry/caches: mine}"}},
	{"podAnnotations", []string{"podAnnotations={zarf-registry/metrics-port: '1'}"}},
	{"cache.nodeSelector", []string{"cache.nodeSelector={kubernetes.io/arch: amd64}"}},
	{"proxy.updateStrategy.maxUnavailable", []string{"proxy.updateStrategy.maxUnavailable=0"}},
	{"proxy.updateStrategy.maxUnavailable", []string{"proxy.updateStrategy.maxUnavailable=0%"}},
	{"proxy.updateStrategy.maxSurge", []string{"proxy.hostNetwork=true", "proxy.updateStrategy.maxSurge=0"}},
	{"proxy.updateStrategy.maxSurge", []string{"proxy.hostNetwork=true", "proxy.updateStrategy.maxSurge=0%"}},
	{"registry.podAnnotations", []string{"registry.podAnnotations={zarf-registry/metrics-port: '1'}"}},
	{"proxy.podAnnotations", []string{"proxy.podAnnotations={zarf-registry/refreshed-at: now}"}},
	{"pki.existingSecret.server", []string{"pki.mode=existingSecret", "pki.existingSecret.node=m"}},
	{"pki.existingSecret.node", []string{"pki.mode=existingSecret", "pki.existingSecret.server=s"}},
	{"pki.existingSecret.push", []string{"pki.mode=internal", "pki.existingSecret.push=p"}},
	{"pki.certManager.issuerRef.name", []string{"pki.mode=internal", "pki.certManager.issuerRef.name=i"}},
	{"auth.existingSecret", []string{"auth.existingSecret=zarf-registry-credentials"}},
	{"rewrite.registries", []string{"rewrite.enabled=true", "rewrite.registries=['*', '!quay']"}},
	{"rewrite.registries", []string{"rewrite.enabled=true", "rewrite.registries=['!quay.io']"}},
	{"rewrite.missing", []string{
		"rewrite.enabled=true", "rewrite.missing=keep", "registryProxy=null", "registryURL=registry.example.com",
	}},
	{"rewrite.missing", []string{"rewrite.enabled=true", "rewrite.missing=deny", "healer.enabled=false"}},
	{"pki.existingSecret.server", []string{
		"pki.mode=existingSecret", "pki.existingSecret={server: zarf-registry-server-tls, node: m}",
	}},
	{"zarf.compatible", append(zarf, "registryProxy=false")},
	{"zarf.compatible", append(zarf, "namespaceOverride=images")},
	{"zarf.compatible", append(zarf, "fullnameOverride=images")},
	{"zarf.compatible", append(zarf, "pki.mode=certManager")},
	{"secrets.htpasswd", append(zarf, "secrets.htpasswd=''")},
	{"secrets.htpasswd", append(zarf, "secrets.htpasswd='zarf-push:secret'")},
	{"pki.lifetime.certificate", []string{"pki.lifetime.certificate=5m59s"}},
	{"pki.lifetime.certificate", []string{"pki.mode=certManager", "pki.lifetime.certificate=59m"}},
	{"pki.lifetime.ca", []string{"pki.lifetime.ca=17519h"}},
	{"pki.rotation.schedule", []string{"pki.rotation.schedule=17 * * *"}},
	{"pki.rotation.schedule", []string{"pki.rotation.schedule=0 17 * * * *"}},
	{"pki.rotation.schedule", []string{"pki.rotation.schedule=once in a blue moon"}},
	{"pki.rotation.schedule", []string{"pki.rotation.schedule='@often'"}},
	{"pki.rotation.timeout", []string{"pki.rotation.timeout=1m59s"}},
	{"healer.enabled", []string{"injector.enabled=false", "healer.enabled=true"}},
	{"injector.image", []string{"injector.enabled=false", "injector.image=example.com/pause:1"}},
	{"registry.architecture", []string{"registry.architecture=arm64", "injector.architectures=[amd64]"}},
	{"initHook.image.tag", []string{"initHook.image.tag=1..2"}},
	{"initHook.timeout", []string{"initHook.timeout=10s"}},
	{"registry.replicas", []string{"registry.replicas=2"}},
	{"registry.replicas", []string{"registry.replicas=2", "registry.persistence.existingClaim=mine"}},
	{"registry.replicas", []string{"registry.replicas=2", "registry.persistence.enabled=false"}},
	{"registry.replicas", []string{"registry.replicas=2", "registry.storage.type=inmemory"}},
	{"registry.garbageCollection.schedule", []string{"registry.garbageCollection.schedule=30 3 * *"}},
	{"registry.garbageCollection.schedule", []string{"registry.garbageCollection.schedule=''"}},
	{"registry.garbageCollection.timeout", []string{"registry.garbageCollection.timeout=1m59s"}},
	{"registry.garbageCollection.timeout", []string{"registry.garbageCollection.timeout=24h1s"}},
	{"registry.garbageCollection.prune", []string{"registry.garbageCollection.prune.olderThan=720h0m0s"}},
	{"registry.garbageCollection.prune.keep", []string{
		"registry.garbageCollection={enabled: true, prune: {keep: [ci/base]}}",
	}},
	{"registry.storage.s3.bucket", []string{"registry.storage.type=s3", "registry.storage.s3.region=r"}},
	{"registry.storage.s3.region", []string{"registry.storage.type=s3", "registry.storage.s3.bucket=b"}},
	{"nodeConfig.nodeSelector", []string{"nodeConfig.nodeSelector={kubernetes.io/os: linux}"}},
	{"nodeConfig.nodeSelector", []string{"nodeConfig.nodeSelector={kubernetes.io/arch: amd64}"}},
	{"nodeConfig.k3s.path", []string{"nodeConfig.k3s.path=/etc/registries.yaml"}},
	{"nodeConfig.k3s.path", []string{"nodeConfig.k3s.path=/etc/rancher"}},
	{"nodeConfig.k3s.path", []string{"nodeConfig.k3s.path=/etc/rancher/../shadow"}},
	{"nodeConfig.containerd.path", []string{"nodeConfig.containerd.path=etc/containerd"}},
	{"nodeConfig.containerd.path", []string{"nodeConfig.containerd.path=/etc/containerd/.."}},
	{"nodeConfig.containerd.path", []string{"nodeConfig.containerd.path=/etc/containerd-of-mine"}},
	{"nodeConfig.containerd.path", []string{"nodeConfig.containerd.path='/etc/containerd/a,/etc'"}},
	{"nodeConfig.directories", []string{"nodeConfig.directories=[/etc/containerd, /etc/kubernetes]"}},
	{"nodeConfig.tlsDirectories", []string{"nodeConfig.tlsDirectories=[/]"}},
	{"nodeConfig.tlsDirectories", []string{"nodeConfig.tlsDirectories=[/etc/ssl/../kubernetes]"}},
	{"nodeConfig.runtimes", []string{"nodeConfig.runtimes=[rke2, k3s]"}},
	{`nodeConfig.k3s.registries.configs."a".auth.password`, []string{
		"nodeConfig.k3s.registries={configs: {a: {auth: {password: 0123}}}}",
	}},
	{"nodeConfig.k3s.existingSecret", []string{"nodeConfig.k3s={registries: {mirrors: {}}, existingSecret: mine}"}},
	{"nodeConfig.k3s.existingSecret", []string{"nodeConfig.k3s.existingSecret=zarf-registry-credentials"}},
	{"nodeConfig.k3s.existingSecret", []string{
		"registryProxy=null", external, "nodeConfig.k3s.existingSecret=zarf-registry-state",
	}},
	{"nodeConfig.updateStrategy.maxUnavailable", []string{"nodeConfig.updateStrategy.maxUnavailable=0"}},
	{"nodeConfig.updateStrategy.maxUnavailable", []string{"nodeConfig.updateStrategy.maxUnavailable=0%"}},
	{"nodeConfig.mirrors", []string{"registryProxy=false", "nodeConfig.mirrors=[docker.io]"}},
	{"nodeConfig.mirrors", []string{"registryProxy=null", external, "nodeConfig.mirrors=[docker.io]"}},
	{"nodeConfig.containerd.hosts", []string{
		"nodeConfig.containerd.hosts={a.example: b}", "nodeConfig.runtimes=[crio]",
	}},
	{"nodeConfig.containerd.hosts", []string{
		"registryProxy=false", `nodeConfig.containerd.hosts={quay.io: '[host."http://127.0.0.1:31999"]'}`,
	}},
	{"nodeConfig.k3s.registries", []string{
		"registryProxy=false", "nodeConfig.k3s.registries='mirrors: {quay.io: {endpoint: [\"http://localhost:31999\"]}}'",
	}},
	{"nodeConfig.crio.insecure", []string{"registryProxy=null", external, "nodeConfig.crio.insecure=true"}},
	{"nodeConfig.crio.ca", []string{"registryProxy=false", "nodeConfig.crio.ca=true"}},
	{"nodeConfig.crio.ca", []string{"registryProxy=null", external, "nodeConfig.crio.ca=true"}},
	{"nodeConfig.crio.ca", []string{"proxy.tls=never", "nodeConfig.crio.ca=true"}},
	{"nodeConfig.crio.ca", []string{"nodeConfig.crio.ca=true"}},
	{"initHook.image.tag", []string{
		"registryProxy=null", external, "nodeConfig.k3s.existingSecret=mine", "initHook.image.tag=1..2",
	}},
	{"networkPolicy.metricsFrom", []string{"metrics.podMonitor.enabled=true"}},
	{"metrics.prometheusRule.disabled", []string{"metrics.prometheusRule.disabled=[TooLoud]"}},
	{"metrics.podMonitor.labels", []string{"metrics.podMonitor.labels={app.kubernetes.io/name: mine}"}},
	{"registry.persistence.existingClaim", []string{
		"registry.persistence.existingClaim=mine", "registry.storage.type=inmemory",
	}},
	{"registry.persistence.existingClaim", []string{
		"registry.persistence.existingClaim=mine", "registry.persistence.enabled=false",
	}},
	{"expose", []string{"registryProxy=null", external, exposed, "expose.tls.existingSecret=mine"}},
	{"expose.tls.existingSecret", []string{
		exposed, "expose.tls={existingSecret: mine, certManager: {issuerRef: {name: company}}}",
	}},
	{"expose.tls.existingSecret", []string{exposed}},
	{"expose.hosts", []string{exposed, "expose.tls.certManager.issuerRef.name=company"}},
	{"expose.hosts", []string{"expose.ingress.enabled=true"}},
	{"expose.hosts", []string{"expose.ingress.enabled=true", "expose.hosts=[a.example.com, 10.0.0.5]"}},
	{"expose.gateway.parentRefs", []string{"expose.gateway.enabled=true", "expose.hosts=[a.example.com]"}},
	{"expose.tls", []string{
		"expose.gateway={enabled: true, parentRefs: [{name: edge}]}", "expose.hosts=[a.example.com]",
	}},
	{"expose.service.nodePort", []string{
		"expose.service={enabled: true, type: ClusterIP, nodePort: 30443}", "expose.tls.existingSecret=mine",
	}},
	{"expose.service.nodePort", []string{
		"expose.service={enabled: true, type: NodePort, nodePort: 31999}", "expose.tls.existingSecret=mine",
	}},
	{"expose.service.loadBalancerClass", []string{
		"expose.service={enabled: true, type: NodePort, loadBalancerClass: a}", "expose.tls.existingSecret=mine",
	}},
	{"expose.service.externalTrafficPolicy", []string{
		"expose.service={enabled: true, type: ClusterIP, externalTrafficPolicy: Local}", "expose.tls.existingSecret=mine",
	}},
	{"expose.tls.existingSecret", []string{exposed, "expose.tls.existingSecret=zarf-registry-server-tls"}},
	{"expose.pullUsersSecret", []string{
		exposed, "expose.tls.existingSecret=mine", "expose.pullUsersSecret=zarf-registry-pull",
	}},
}

func TestRejectsInvalidCombinations(t *testing.T) {
	t.Parallel()
	for _, test := range refusals {
		_, err := rendering{values: proxyMode(t, test.sets...)}.try(t)
		if err == nil || !strings.Contains(err.Error(), ": zarf-registry: "+test.path+": ") {
			t.Errorf("%s: %v, want an error about %s", test.sets, err, test.path)
		}
	}
}

// leaf is a value without nested values, and the comment above it.
type leaf struct{ path, comment string }

func leaves(node *yaml3.Node, path string) (found []leaf) {
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		if isLeaf(key, value) {
			found = append(found, leaf{at, key.HeadComment})
		} else {
			found = append(found, leaves(value, at)...)
		}
	}
	return found
}

// isLeaf reports whether a value is a leaf. A map is a leaf if its keys are the user's, so that it is
// empty by default, or if Kubernetes defines them.
func isLeaf(key, value *yaml3.Node) bool {
	return value.Kind != yaml3.MappingNode || len(value.Content) == 0 || key.Value == "resources"
}

func chartLeaves(t testing.TB) []leaf {
	t.Helper()
	found := leaves(readYAML(t, "values.yaml"), "")
	if len(found) < 50 {
		t.Fatalf("values.yaml: %d values", len(found))
	}
	return found
}

func TestEveryValueIsDocumented(t *testing.T) {
	t.Parallel()
	for _, leaf := range chartLeaves(t) {
		if !strings.HasPrefix(leaf.comment, "# -- ") {
			t.Errorf("values.yaml: %s has no comment that begins with `# --`", leaf.path)
		}
	}
}
