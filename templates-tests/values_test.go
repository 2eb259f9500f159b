package templates

import (
	"strings"
	"testing"

	yaml3 "go.yaml.in/yaml/v3"
)

func TestSchemaRejectsUnknownValuesAndWrongTypes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ set, where string }{
		{"unknown=1", "''"},
		{"proxy.unknown=1", "/proxy"},
		{"registry.storage.s3.unknown=1", "/registry/storage/s3"},
		{"registry.persistence.unknown=1", "/registry/persistence"},
		{"registry.resources.unknown={}", "/registry/resources"},
		{"image.unknown=1", "/image"},
		{"registryProxy=yes please", "/registryProxy"},
		{"registryURL=[registry.example.com]", "/registryURL"},
		{"auth.anonymousPull=yes please", "/auth/anonymousPull"},
		{"auth.unknown=1", "/auth"},
		{"auth.existingSecret={name: mine}", "/auth/existingSecret"},
		{"pki.unknown=1", "/pki"},
		{"pki.mode=vault", "/pki/mode"},
		{"pki.lifetime.certificate=1 year", "/pki/lifetime/certificate"},
		{"pki.lifetime.ca=1", "/pki/lifetime/ca"},
		{"pki.rotation.schedule=5", "/pki/rotation/schedule"},
		{"pki.rotation.timeout=1d", "/pki/rotation/timeout"},
		{"initHook.resources.unknown={}", "/initHook/resources"},
		{"pki.existingSecret.server={name: mine}", "/pki/existingSecret/server"},
		{"pki.certManager.issuerRef.kind=''", "/pki/certManager/issuerRef/kind"},
		{"pki.certManager.issuerRef.group=''", "/pki/certManager/issuerRef/group"},
		{"zarf.compatible=v0.84.0", "/zarf/compatible"},
		{"zarf.unknown=1", "/zarf"},
		{"secrets.htpasswd=[a]", "/secrets/htpasswd"},
		{"secrets.unknown=1", "/secrets"},
		{"podSecurity.label=privileged", "/podSecurity/label"},
		{"podSecurity.unknown=1", "/podSecurity"},
		{"initHook.ignorePreflight=[everything]", "/initHook/ignorePreflight"},
		{"initHook.ignorePreflight=port", "/initHook/ignorePreflight"},
		{"port='31999'", "/port"},
		{"port=80", "/port"},
		{"port=70000", "/port"},
		{"ipFamily=ipv4", "/ipFamily"},
		{"clusterDomain=Cluster Local", "/clusterDomain"},
		{"injector.architectures=[]", "/injector/architectures"},
		{"injector.architectures=[riscv64]", "/injector/architectures"},
		{"injector.architectures=[amd64, amd64]", "/injector/architectures"},
		{"initHook.timeout=5 minutes", "/initHook/timeout"},
		{"image.digests.init-hook=sha256:abc", "/image/digests/init-hook"},
		{"image.tag=a:b", "/image/tag"},
		{"image.pullPolicy=Sometimes", "/image/pullPolicy"},
		{"registry.architecture=riscv64", "/registry/architecture"},
		{"registry.replicas=0", "/registry/replicas"},
		{"logLevel=loud", "/logLevel"},
		{"registry.garbageCollection.unknown=1", "/registry/garbageCollection"},
		{"registry.garbageCollection.gracePeriod=a day", "/registry/garbageCollection/gracePeriod"},
		{"registry.garbageCollection.prune.unknown=1", "/registry/garbageCollection/prune"},
		{"registry.garbageCollection.prune.olderThan=a month", "/registry/garbageCollection/prune/olderThan"},
		{"registry.garbageCollection.prune.olderThan=0d", "/registry/garbageCollection/prune/olderThan"},
		{"registry.garbageCollection.prune.olderThan=0h", "/registry/garbageCollection/prune/olderThan"},
		{"registry.garbageCollection.prune.keepLast=-1", "/registry/garbageCollection/prune/keepLast"},
		{"registry.garbageCollection.prune.match=[127.0.0.1:31999/a]", "/registry/garbageCollection/prune/match"},
		{"registry.storage.type=floppy", "/registry/storage/type"},
		{"registry.storage.s3.regionEndpoint=s3.example.internal", "/registry/storage/s3/regionEndpoint"},
		{"registry.persistence.accessModes=[]", "/registry/persistence/accessModes"},
		{"registry.persistence.accessModes=[ReadOnlyMany]", "/registry/persistence/accessModes"},
		{"registry.persistence.size=plenty", "/registry/persistence/size"},
		{"registry.extraEnv=[{value: nameless}]", "/registry/extraEnv"},
		{"registry.tolerations=[{effect: Never}]", "/registry/tolerations"},
		{"registry.affinity={nodeAffinities: {}}", "/registry/affinity"},
		{"registry.podLabels={a: 1}", "/registry/podLabels"},
		{"proxy.hostNetwork=sometimes", "/proxy/hostNetwork"},
		{"proxy.tls=true", "/proxy/tls"},
		{"proxy.retryTimeout=-1s", "/proxy/retryTimeout"},
		{"proxy.updateStrategy.maxUnavailable=half", "/proxy/updateStrategy/maxUnavailable"},
		{"cache.unknown=1", "/cache"},
		{"cache.replicas=-1", "/cache/replicas"},
		{"cache.size=10G", "/cache/size"},
		{"cache.size=1.5Gi", "/cache/size"},
		{"cache.size=0Gi", "/cache/size"},
		{"cache.storageClass={name: fast}", "/cache/storageClass"},
		{"cache.staleFor=a day", "/cache/staleFor"},
		{"cache.tolerations=[{effect: Never}]", "/cache/tolerations"},
		{"healer.unknown=1", "/healer"},
		{"healer.enabled=auto", "/healer/enabled"},
		{"nodeConfig.unknown=1", "/nodeConfig"},
		{"nodeConfig.mirrors=docker.io", "/nodeConfig/mirrors"},
		{"nodeConfig.mirrors=[docker.io, docker.io]", "/nodeConfig/mirrors"},
		{"nodeConfig.mirrors=['']", "/nodeConfig/mirrors"},
		{"nodeConfig.force=yes please", "/nodeConfig/force"},
		{"nodeConfig.runtimes=[docker]", "/nodeConfig/runtimes"},
		{"nodeConfig.directories=/etc/containerd", "/nodeConfig/directories"},
		{"nodeConfig.tlsDirectories=/etc/ssl", "/nodeConfig/tlsDirectories"},
		{"nodeConfig.k3s.unknown=1", "/nodeConfig/k3s"},
		{"nodeConfig.k3s.registries=[a]", "/nodeConfig/k3s/registries"},
		{"nodeConfig.k3s.existingSecret={name: mine}", "/nodeConfig/k3s/existingSecret"},
		{"nodeConfig.k3s.existingSecretKey=''", "/nodeConfig/k3s/existingSecretKey"},
		{"nodeConfig.containerd.unknown=1", "/nodeConfig/containerd"},
		{"nodeConfig.containerd.hosts={a: {server: b}}", "/nodeConfig/containerd/hosts"},
		{"nodeConfig.crio.ca=sometimes", "/nodeConfig/crio/ca"},
		{"nodeConfig.crio.insecure=auto", "/nodeConfig/crio/insecure"},
		{"nodeConfig.updateStrategy.maxUnavailable=half", "/nodeConfig/updateStrategy/maxUnavailable"},
		{"openshift.enabled=yes please", "/openshift/enabled"},
		{"openshift.unknown=1", "/openshift"},
		{"rewrite.unknown=1", "/rewrite"},
		{"rewrite.missing=ignore", "/rewrite/missing"},
		{"rewrite.registries=docker.io", "/rewrite/registries"},
		{"rewrite.registries=[]", "/rewrite/registries"},
		{"rewrite.excludedNamespaces=['kube-*']", "/rewrite/excludedNamespaces"},
		{"rewrite.namespaceSelector={team: a}", "/rewrite/namespaceSelector"},
		{"rewrite.pullSecret=a'b", "/rewrite/pullSecret"},
		{"expose.unknown=1", "/expose"},
		{"expose.hosts=registry.example.com", "/expose/hosts"},
		{"expose.hosts=['https://registry.example.com']", "/expose/hosts"},
		{"expose.service.type=ExternalName", "/expose/service/type"},
		{"expose.service.nodePort=none", "/expose/service/nodePort"},
		{"expose.service.externalTrafficPolicy=local", "/expose/service/externalTrafficPolicy"},
		{"expose.gateway.parentRefs=[{namespace: a}]", "/expose/gateway/parentRefs"},
		{"expose.ingress.annotations={a: 1}", "/expose/ingress/annotations"},
		{"networkPolicy.exposeFrom=[{}]", "/networkPolicy/exposeFrom"},
		{"metrics.unknown=1", "/metrics"},
		{"metrics.podMonitor.labels=[a]", "/metrics/podMonitor/labels"},
		{"metrics.prometheusRule.disabled=ZarfRegistryDown", "/metrics/prometheusRule/disabled"},
		{"metrics.dashboard.enabled=yes please", "/metrics/dashboard/enabled"},
		{"networkPolicy.metricsFrom=[{}]", "/networkPolicy/metricsFrom"},
		{"networkPolicy.metricsFrom=[{pods: {}}]", "/networkPolicy/metricsFrom"},
		{"imagePullSecrets=[secret]", "/imagePullSecrets"},
		{"global.imageRegistry=[mirror.internal]", "/global/imageRegistry"},
		{"global.imagePullSecrets=[{secret: a}]", "/global/imagePullSecrets"},
		{"namespaceOverride=Images", "/namespaceOverride"},
		{"extraObjects={a: b}", "/extraObjects"},
		{"extraObjects=[1]", "/extraObjects"},
		{"registry.topologySpreadConstraints=[{maxSkew: 1}]", "/registry/topologySpreadConstraints"},
		{"podLabels={a: 1}", "/podLabels"},
		{"extraEnv=[{value: nameless}]", "/extraEnv"},
	} {
		_, err := rendering{values: proxyMode(t, test.set)}.try(t)
		if err == nil {
			t.Errorf("%s is accepted", test.set)
		} else if !strings.Contains(err.Error(), test.where) {
			t.Errorf("%s: the error does not contain %s: %v", test.set, test.where, err)
		}
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
		"initHook.timeout=1h30m", "image.tag=v1.2.3-rc.1_x", "initHook.tolerations=[]", "fullnameOverride=images",
		"registry.extraEnv=[{name: A, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]",
		"nodeConfig.directories=null", "nodeConfig.k3s.registries=''", "nodeConfig.k3s.registries={}",
		"nodeConfig.crio.ca=false", "nodeConfig.containerd.hosts={}", "nodeConfig.mirrors=null",
		"cache.tolerations=null", "cache.tolerations=[]", "cache.resources={requests: {ephemeral-storage: 12Gi}}",
		"nodeConfig.updateStrategy.maxUnavailable=100%", "nodeConfig.tolerations=[]",
		"metrics.prometheusRule={enabled: true}", "metrics.dashboard={enabled: true, labels: {}}",
		"networkPolicy.metricsFrom=[{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {podSelector: {}}]",
		"commonLabels=null", "commonAnnotations=null", "podLabels=null", "podAnnotations=null", "registry.podLabels=null",
		"registry.affinity=null", "proxy.podLabels=null", "proxy.nodeSelector=null", "image.digests=null",
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
	{"image.tag", []string{"image.tag=1..2"}},
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
	{"image.tag", []string{
		"registryProxy=null", external, "nodeConfig.k3s.existingSecret=mine", "image.tag=1..2",
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
