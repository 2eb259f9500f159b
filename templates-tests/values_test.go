package templates

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	yaml3 "go.yaml.in/yaml/v3"
)

func TestSchemaRejectsUnknownValuesAndWrongTypes(t *testing.T) {
	for _, test := range []struct{ set, where string }{
		{"unknown=1", "''"},
		{"proxy.unknown=1", "/proxy"},
		{"registry.storage.s3.unknown=1", "/registry/storage/s3"},
		{"registry.persistence.unknown=1", "/registry/persistence"},
		{"registry.resources.unknown={}", "/registry/resources"},
		{"initHook.image.unknown=1", "/initHook/image"},
		{"registryProxy=yes please", "/registryProxy"},
		{"registryURL=[registry.example.com]", "/registryURL"},
		{"auth.anonymousPull=yes please", "/auth/anonymousPull"},
		{"auth.unknown=1", "/auth"},
		{"auth.existingSecret={name: mine}", "/auth/existingSecret"},
		{"pki.unknown=1", "/pki"},
		{"pki.mode=vault", "/pki/mode"},
		{"pki.lifetime.certificate=1 year", "/pki/lifetime/certificate"},
		{"pki.lifetime.authority=1", "/pki/lifetime/authority"},
		{"pki.rotation.schedule=5", "/pki/rotation/schedule"},
		{"pki.rotation.timeout=1d", "/pki/rotation/timeout"},
		{"pki.rotation.resources.unknown={}", "/pki/rotation/resources"},
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
		{"startupTaint={key: a}", "/startupTaint"},
		{"injector.architectures=[]", "/injector/architectures"},
		{"injector.architectures=[riscv64]", "/injector/architectures"},
		{"injector.architectures=[amd64, amd64]", "/injector/architectures"},
		{"initHook.timeout=5 minutes", "/initHook/timeout"},
		{"initHook.image.digest=sha256:abc", "/initHook/image/digest"},
		{"initHook.image.tag=a:b", "/initHook/image/tag"},
		{"initHook.image.pullPolicy=Sometimes", "/initHook/image/pullPolicy"},
		{"registry.architecture=riscv64", "/registry/architecture"},
		{"registry.replicas=0", "/registry/replicas"},
		{"registry.autoscaling.unknown=1", "/registry/autoscaling"},
		{"registry.autoscaling.minReplicas=0", "/registry/autoscaling/minReplicas"},
		{"registry.autoscaling.behavior={scale: {}}", "/registry/autoscaling/behavior"},
		{"registry.podDisruptionBudget.unknown=1", "/registry/podDisruptionBudget"},
		{"registry.podDisruptionBudget.maxUnavailable=half", "/registry/podDisruptionBudget/maxUnavailable"},
		{"registry.logLevel=loud", "/registry/logLevel"},
		{"registry.garbageCollection.unknown=1", "/registry/garbageCollection"},
		{"registry.garbageCollection.gracePeriod=a day", "/registry/garbageCollection/gracePeriod"},
		{"registry.prune.unknown=1", "/registry/prune"},
		{"registry.prune.olderThan=a month", "/registry/prune/olderThan"},
		{"registry.prune.keepLast=-1", "/registry/prune/keepLast"},
		{"registry.prune.match=[127.0.0.1:31999/a]", "/registry/prune/match"},
		{"registry.storage.type=floppy", "/registry/storage/type"},
		{"registry.storage.s3.regionEndpoint=s3.example.internal", "/registry/storage/s3/regionEndpoint"},
		{"registry.persistence.accessModes=[]", "/registry/persistence/accessModes"},
		{"registry.persistence.accessModes=[ReadOnlyMany]", "/registry/persistence/accessModes"},
		{"registry.persistence.size=plenty", "/registry/persistence/size"},
		{"registry.extraEnv=[{value: nameless}]", "/registry/extraEnv"},
		{"registry.tolerations=[{effect: Never}]", "/registry/tolerations"},
		{"registry.affinity={nodeAffinities: {}}", "/registry/affinity"},
		{"registry.podLabels={a: 1}", "/registry/podLabels"},
		{"registry.terminationGracePeriodSeconds=5", "/registry/terminationGracePeriodSeconds"},
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
		{"cache.metricsPort=80", "/cache/metricsPort"},
		{"cache.tolerations=[{effect: Never}]", "/cache/tolerations"},
		{"pki.existingSecret.cache={name: mine}", "/pki/existingSecret/cache"},
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
		{"nodeConfig.k3s.live=sometimes", "/nodeConfig/k3s/live"},
		{"nodeConfig.containerd.unknown=1", "/nodeConfig/containerd"},
		{"nodeConfig.containerd.hosts={a: {server: b}}", "/nodeConfig/containerd/hosts"},
		{"nodeConfig.crio.ca=sometimes", "/nodeConfig/crio/ca"},
		{"nodeConfig.crio.insecure=auto", "/nodeConfig/crio/insecure"},
		{"nodeConfig.crio.certsPath=''", "/nodeConfig/crio/certsPath"},
		{"nodeConfig.updateStrategy.maxUnavailable=half", "/nodeConfig/updateStrategy/maxUnavailable"},
		{"nodeConfig.podLabels={a: 1}", "/nodeConfig/podLabels"},
		{"tests.enabled=yes please", "/tests/enabled"},
		{"tests.timeout=1 minute", "/tests/timeout"},
		{"tests.unknown=1", "/tests"},
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
		{"registry.storage.quota=50GB", "/registry/storage/quota"},
		{"registry.storage.quota='0'", "/registry/storage/quota"},
		{"metrics.unknown=1", "/metrics"},
		{"metrics.service.annotations={a: 1}", "/metrics/service/annotations"},
		{"metrics.serviceMonitor.interval=30", "/metrics/serviceMonitor/interval"},
		{"metrics.serviceMonitor.relabelings=[{action: invent}]", "/metrics/serviceMonitor/relabelings"},
		{"metrics.podMonitor.scrapeTimeout=soon", "/metrics/podMonitor/scrapeTimeout"},
		{"metrics.podMonitor.labels=[a]", "/metrics/podMonitor/labels"},
		{"metrics.prometheusRule.thresholds.volumeFreePercent=0", "/metrics/prometheusRule/thresholds/volumeFreePercent"},
		{
			"metrics.prometheusRule.thresholds.certificateLifePercent=50",
			"/metrics/prometheusRule/thresholds/certificateLifePercent",
		},
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
		{"initHook.podLabels={a: 1}", "/initHook/podLabels"},
		{"proxy.extraEnv=[{value: nameless}]", "/proxy/extraEnv"},
		{"pki.rotation.extraEnv=[{value: nameless}]", "/pki/rotation/extraEnv"},
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
	for _, set := range []string{
		"global={imageRegistry: example.com, storageClass: fast}", // Helm passes a parent chart's globals
		"global=null", "global.imagePullSecrets=[a]",
		"registry.persistence.storageClass=", "registry.persistence.storageClass=''", "registry.persistence.size=1.5Ti",
		"proxy.resources.requests.cpu=1", "proxy.resources.requests.cpu=0.5", "proxy.updateStrategy.maxUnavailable=25%",
		"pki.mode=null", "pki.rotation.schedule=''", "pki.rotation.schedule='@every 30m'",
		"pki.rotation.schedule='0,30 */2 1-5 JAN mon-fri'", "pki.rotation.schedule='@hourly'",
		"pki.lifetime={certificate: 6m, authority: 12m}", "pki.rotation.resources={}",
		"initHook.timeout=1h30m", "initHook.image.tag=v1.2.3-rc.1_x", "initHook.tolerations=[]", "fullnameOverride=images",
		"registry.extraEnv=[{name: A, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]",
		"nodeConfig.directories=null", "nodeConfig.k3s.registries=''", "nodeConfig.k3s.registries={}",
		"nodeConfig.crio.ca=false", "nodeConfig.containerd.hosts={}", "nodeConfig=null", "nodeConfig.mirrors=null",
		"cache.tolerations=null", "cache.tolerations=[]", "cache.resources={requests: {ephemeral-storage: 12Gi}}", "cache=null",
		"nodeConfig.updateStrategy.maxUnavailable=100%", "nodeConfig.resources={}", "nodeConfig.tolerations=[]",
		"metrics=null", "metrics.prometheusRule={enabled: true}", "metrics.dashboard={enabled: true, labels: {}}",
		"networkPolicy.metricsFrom=[{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {podSelector: {}}]",
	} {
		rendering{values: proxyMode(t, set)}.render(t)
	}
}

// failure is an invalid combination of values, in proxy mode unless set otherwise, and the error that
// says what to do.
type failure struct {
	sets []string
	want string
}

// zarf are the values with which the release replaces Zarf's registry. Its capacity is its length.
var zarf = []string{
	"zarf.compatible=true", "fullnameOverride=zarf-docker-registry",
	"secrets.htpasswd='zarf-push:$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy'",
}

var failures = []failure{
	{
		[]string{"startupTaint=example.com/starting=true:NoSchedule"},
		`zarf-registry: startupTaint: "example.com/starting=true:NoSchedule" is not a taint's key; set only the key, without value and effect, such as zarf.dev/registry-not-ready`,
	},
	{
		[]string{"startupTaint=node.kubernetes.io/not-ready"},
		"zarf-registry: startupTaint: node.kubernetes.io/not-ready is Kubernetes' own; set a key of yours, such as " +
			"zarf.dev/registry-not-ready",
	},
	{
		[]string{"startupTaint=starting", "healer.enabled=false"},
		"zarf-registry: startupTaint: no healer removes starting from the nodes: it needs injector.enabled=true, " +
			"something to run on the nodes, and healer.enabled=true or null (null: Kubernetes 1.30 and later); change those, " +
			"or remove startupTaint and the taint",
	},
	{
		[]string{"registryURL=registry.example.com"},
		"zarf-registry: registryURL: proxies need a registry that the chart deploys; remove registryURL, or " +
			"registryProxy=true",
	},
	{
		[]string{"registryProxy=null", "registryURL=http://registry.example.com"},
		`zarf-registry: registryURL: "http://registry.example.com" is plain HTTP, which container runtimes accept only from loopback addresses; serve it with TLS, and set HOST[:PORT][/PATH]`,
	},
	{
		[]string{"registryProxy=null", "registryURL=registry/team"},
		`zarf-registry: registryURL: "registry/team" is not the beginning of an image reference; set HOST[:PORT][/PATH], where HOST has a dot or a port, as registry.example.com/team`,
	},
	{
		[]string{"fullnameOverride=1st"},
		`zarf-registry: fullnameOverride: "1st" is not a valid Service name; set it to lower-case letters, digits and dashes that begin with a letter`,
	},
	{
		[]string{"nameOverride=a.b"},
		`zarf-registry: fullnameOverride: "zarf-registry-a.b" is not a valid Service name; set it to lower-case letters, digits and dashes that begin with a letter`,
	},
	{
		[]string{"commonLabels={app.kubernetes.io/name: mine}"},
		"zarf-registry: commonLabels: app.kubernetes.io/name is reserved for selectors; remove it",
	},
	{
		[]string{"registry.podLabels={app.kubernetes.io/component: mine}"},
		"zarf-registry: registry.podLabels: app.kubernetes.io/component is reserved for selectors; remove it",
	},
	{
		[]string{"proxy.podLabels={zarf-registry/proxies: mine}"},
		"zarf-registry: proxy.podLabels: zarf-registry/proxies is reserved for selectors; remove it",
	},
	{
		[]string{"registry.nodeSelector={kubernetes.io/os: windows}"},
		"zarf-registry: registry.nodeSelector: the chart sets kubernetes.io/os to linux; remove it",
	},
	{
		[]string{"initHook.nodeSelector={kubernetes.io/os: linux}"},
		"zarf-registry: initHook.nodeSelector: the chart sets kubernetes.io/os to linux; remove it",
	},
	{
		[]string{"proxy.nodeSelector={kubernetes.io/arch: amd64}"},
		"zarf-registry: proxy.nodeSelector: the chart sets kubernetes.io/arch; remove it and set registry.architecture or " +
			"injector.architectures",
	},
	{
		[]string{"ipFamily=IPv6", "proxy.hostNetwork=false"},
		"zarf-registry: proxy.hostNetwork: a hostPort cannot answer on [::1]; set it to auto or true",
	},
	{
		[]string{"proxy.hostNetwork=true", "proxy.metricsPort=31999"},
		"zarf-registry: proxy.metricsPort: 31999 is also the port of images; set another",
	},
	{
		[]string{"proxy.metricsPort=5000"}, "zarf-registry: proxy.metricsPort: the proxy listens on 5000 itself; set another",
	},
	{
		[]string{"cache={replicas: 3, nodeSelector: {a: b}}"},
		"zarf-registry: cache.nodeSelector: it runs one cache on each selected node, and cache.replicas asks for 3 " +
			"anywhere; remove one of them",
	},
	{
		[]string{"cache.metricsPort=5000"}, "zarf-registry: cache.metricsPort: the cache listens on 5000 itself; set another",
	},
	{
		[]string{"cache.podLabels={zarf-registry/caches: mine}"},
		"zarf-registry: cache.podLabels: zarf-registry/caches is reserved for selectors; remove it",
	},
	{
		[]string{"cache.podAnnotations={zarf-registry/metrics-port: '1'}"},
		"zarf-registry: cache.podAnnotations: zarf-registry/metrics-port is reserved for the chart and its Jobs; remove it",
	},
	{
		[]string{"cache.nodeSelector={kubernetes.io/arch: amd64}"},
		"zarf-registry: cache.nodeSelector: the chart sets kubernetes.io/arch; remove it and set registry.architecture or " +
			"injector.architectures",
	},
	{
		[]string{"pki.existingSecret.cache=mine"},
		"zarf-registry: pki.existingSecret.cache: pki.mode internal (source: default) does not use it; set " +
			"pki.mode=existingSecret, or remove it",
	},
	{
		[]string{"proxy.updateStrategy.maxUnavailable=0"},
		"zarf-registry: proxy.updateStrategy.maxUnavailable: two proxies cannot share a hostPort, so one must stop " +
			"before the next starts; set it to at least 1",
	},
	{
		[]string{"proxy.updateStrategy.maxUnavailable=0%"},
		"zarf-registry: proxy.updateStrategy.maxUnavailable: two proxies cannot share a hostPort, so one must stop " +
			"before the next starts; set it to at least 1",
	},
	{
		[]string{"registry.podAnnotations={zarf-registry/metrics-port: '1'}"},
		"zarf-registry: registry.podAnnotations: zarf-registry/metrics-port is reserved for the chart and its Jobs; remove it",
	},
	{
		[]string{"proxy.podAnnotations={zarf-registry/refreshed-at: now}"},
		"zarf-registry: proxy.podAnnotations: zarf-registry/refreshed-at is reserved for the chart and its Jobs; remove it",
	},
	{
		[]string{"pki.mode=existingSecret", "pki.existingSecret.node=m"},
		"zarf-registry: pki.existingSecret.server: pki.mode=existingSecret needs it; set it to a Secret with tls.crt, " +
			"tls.key and ca.crt",
	},
	{
		[]string{"pki.mode=existingSecret", "pki.existingSecret.server=s"},
		"zarf-registry: pki.existingSecret.node: pki.mode=existingSecret needs it; set it to a Secret with tls.crt, " +
			"tls.key and ca.crt",
	},
	{
		[]string{"pki.mode=internal", "pki.existingSecret.push=p"},
		"zarf-registry: pki.existingSecret.push: pki.mode internal (source: value) does not use it; set " +
			"pki.mode=existingSecret, or remove it",
	},
	{
		[]string{"pki.mode=internal", "pki.certManager.issuerRef.name=i"},
		"zarf-registry: pki.certManager.issuerRef.name: pki.mode internal (source: value) does not use it; " +
			"set pki.mode=certManager, or remove it",
	},
	{
		[]string{"auth.existingSecret=zarf-registry-credentials"},
		"zarf-registry: auth.existingSecret: Secret zarf-registry-credentials is created by the Jobs; name one of your own",
	},
	{
		[]string{"rewrite.enabled=true", "rewrite.registries=['*', '!quay']"},
		"zarf-registry: rewrite.registries: \"!quay\" is not the host of a registry; set HOST[:PORT] as in image references, " +
			"such as docker.io, * for all, or !HOST to exclude one",
	},
	{
		[]string{"rewrite.enabled=true", "rewrite.missing=keep", "registryProxy=null", "registryURL=registry.example.com"},
		"zarf-registry: rewrite.missing: nobody lists the repositories of an external registry, which keep needs; set " +
			"rewrite.missing=rewrite",
	},
	{
		[]string{"rewrite.enabled=true", "rewrite.missing=deny", "healer.enabled=false"},
		"zarf-registry: rewrite.missing: deny needs the healer, which lists the registry's repositories; set " +
			"healer.enabled=true and injector.enabled=true, or rewrite.missing=rewrite",
	},
	{
		[]string{"auth.push=[{name: a}, {name: a}]"},
		"zarf-registry: auth.push: the name a is already used, and push and pull always are; choose another",
	},
	{
		[]string{"auth.push=[{name: pull}]"},
		"zarf-registry: auth.push: the name pull is already used, and push and pull always are; choose another",
	},
	{
		[]string{"auth.push=[{name: a}, {name: b, existingSecret: zarf-registry-credentials-a}]"},
		"zarf-registry: existingSecret of b in auth.push: Secret zarf-registry-credentials-a is created by the Jobs; name " +
			"one of your own",
	},
	{
		[]string{"pki.mode=existingSecret", "pki.existingSecret={server: zarf-registry-server-tls, node: m}"},
		"zarf-registry: pki.existingSecret.server: Secret zarf-registry-server-tls is created by the Jobs; name one of " +
			"your own",
	},
	{
		append(zarf, "registryProxy=false"),
		"zarf-registry: zarf.compatible: Zarf is supported in proxy mode only, and the mode is nodeport; set " +
			"registryProxy=true",
	},
	{
		append(zarf, "namespaceOverride=images"),
		"zarf-registry: zarf.compatible: Zarf looks for its registry in namespace zarf, and this is namespace images; use " +
			"that name, on a new installation",
	},
	{
		append(zarf, "fullnameOverride=images"),
		"zarf-registry: zarf.compatible: Zarf looks for its registry in fullnameOverride zarf-docker-registry, and this " +
			"is fullnameOverride images; use that name, on a new installation",
	},
	{
		append(zarf, "pki.mode=certManager"),
		"zarf-registry: zarf.compatible: Zarf's client certificate must be of the registry's own CA, and pki.mode is " +
			"certManager (source: value); set pki.mode=internal",
	},
	{
		append(zarf, "auth.push=[{name: ci}, {name: zarf}]"),
		"zarf-registry: auth.push: with zarf.compatible, the credential zarf is that of Zarf; choose another name",
	},
	{
		append(zarf, "secrets.htpasswd=''"),
		"zarf-registry: secrets.htpasswd: zarf.compatible needs Zarf's users as lines USER:HASH, hashed with bcrypt; set " +
			"it to ###ZARF_HTPASSWD### in a values file that Zarf evaluates",
	},
	{
		append(zarf, "secrets.htpasswd='zarf-push:secret'"),
		"zarf-registry: secrets.htpasswd: zarf.compatible needs Zarf's users as lines USER:HASH, hashed with bcrypt; set " +
			"it to ###ZARF_HTPASSWD### in a values file that Zarf evaluates",
	},
	{
		[]string{"pki.lifetime.certificate=5m59s"},
		"zarf-registry: pki.lifetime.certificate: with pki.mode internal, 5m59s is too short for a renewal to reach every " +
			"pod in time; set it to at least 6m",
	},
	{
		[]string{"pki.mode=certManager", "pki.lifetime.certificate=59m"},
		"zarf-registry: pki.lifetime.certificate: with pki.mode certManager, 59m is too short for a renewal to reach every " +
			"pod in time; set it to at least 1h",
	},
	{
		[]string{"pki.lifetime.authority=17519h"},
		"zarf-registry: pki.lifetime.authority: 17519h is less than twice pki.lifetime.certificate, which is 8760h and " +
			"never outlives it; set it to at least twice as much",
	},
	{
		[]string{"pki.rotation.schedule=17 * * *"},
		`zarf-registry: pki.rotation.schedule: "17 * * *" is not a cron schedule; set five fields such as 17 * * * *, or @hourly, or nothing to renew at upgrades only`,
	},
	{
		[]string{"pki.rotation.schedule=0 17 * * * *"},
		`zarf-registry: pki.rotation.schedule: "0 17 * * * *" is not a cron schedule; set five fields such as 17 * * * *, or @hourly, or nothing to renew at upgrades only`,
	},
	{
		[]string{"pki.rotation.schedule=once in a blue moon"},
		`zarf-registry: pki.rotation.schedule: "once in a blue moon" is not a cron schedule; set five fields such as 17 * * * *, or @hourly, or nothing to renew at upgrades only`,
	},
	{
		[]string{"pki.rotation.schedule='@often'"},
		`zarf-registry: pki.rotation.schedule: "@often" is not a cron schedule; set five fields such as 17 * * * *, or @hourly, or nothing to renew at upgrades only`,
	},
	{
		[]string{"pki.rotation.timeout=1m59s"},
		"zarf-registry: pki.rotation.timeout: 1m59s is too short: a kubelet may take 90s to update a certificate in a " +
			"pod; set it to at least 2m",
	},
	{
		[]string{"injector.enabled=false", "healer.enabled=true"},
		"zarf-registry: healer.enabled: no pod uses an image of its node with injector.enabled=false; remove it",
	},
	{
		[]string{"injector.enabled=false", "injector.image=example.com/pause:1"},
		"zarf-registry: injector.image: nothing is injected with injector.enabled=false; remove it, or set registry.image " +
			"and proxy.image",
	},
	{
		[]string{"registry.architecture=arm64", "injector.architectures=[amd64]"},
		"zarf-registry: registry.architecture: arm64 is not among injector.architectures; add it there",
	},
	{
		[]string{"initHook.image.tag=1..2"},
		`zarf-registry: initHook.image.tag: "1..2" cannot be part of a ConfigMap's name; set another tag, with letters or digits on both sides of each dot`,
	},
	{
		[]string{"initHook.timeout=10s"},
		"zarf-registry: initHook.timeout: 10s is too short for a rollout; set it to at least 30s",
	},
	{
		[]string{"registry.replicas=2"},
		"zarf-registry: registry.replicas: several pods need a volume with the access mode ReadWriteMany, and " +
			"persistence.accessModes has ReadWriteOnce; set it to 1, storage.type=s3, or " +
			"persistence.accessModes={ReadWriteMany} if the class (or the existing claim) has it",
	},
	{
		[]string{"registry.replicas=2", "registry.persistence.existingClaim=mine"},
		"zarf-registry: registry.replicas: several pods need a volume with the access mode ReadWriteMany, and " +
			"persistence.accessModes has ReadWriteOnce; set it to 1, storage.type=s3, or " +
			"persistence.accessModes={ReadWriteMany} if the class (or the existing claim) has it",
	},
	{
		[]string{"registry.replicas=2", "registry.persistence.enabled=false"},
		"zarf-registry: registry.replicas: with persistence.enabled=false each pod would have its own images; set it to " +
			"1, storage.type=s3, or a volume with persistence.accessModes={ReadWriteMany}",
	},
	{
		[]string{"registry.replicas=2", "registry.storage.type=inmemory"},
		"zarf-registry: registry.replicas: with storage.type=inmemory each pod would have its own images; set it to 1, " +
			"or storage.type=s3",
	},
	{
		[]string{"registry.autoscaling.enabled=true"},
		"zarf-registry: registry.autoscaling.maxReplicas: several pods need a volume with the access mode " +
			"ReadWriteMany, and persistence.accessModes has ReadWriteOnce; set it to 1, storage.type=s3, or " +
			"persistence.accessModes={ReadWriteMany} if the class (or the existing claim) has it",
	},
	{
		[]string{"registry.autoscaling.enabled=true", "registry.replicas=2"},
		"zarf-registry: registry.replicas: with autoscaling.enabled=true, the autoscaler sets the number of pods; set " +
			"autoscaling.minReplicas instead",
	},
	{
		[]string{"registry.autoscaling={enabled: true, minReplicas: 6}"},
		"zarf-registry: registry.autoscaling.minReplicas: 6 is more than autoscaling.maxReplicas, which is 5; set it to at " +
			"most that",
	},
	{
		[]string{"registry.autoscaling.enabled=true", "registry.resources.requests={cpu: null}"},
		"zarf-registry: registry.autoscaling.targetCPUUtilizationPercentage: it is relative to the CPU request, and " +
			"there is none; set registry.resources.requests.cpu",
	},
	{
		[]string{"registry.podDisruptionBudget.maxUnavailable=0"},
		"zarf-registry: registry.podDisruptionBudget.maxUnavailable: nodes with a registry pod could not be drained; set it " +
			"to at least 1, or podDisruptionBudget.enabled=false",
	},
	{
		[]string{"registry.podDisruptionBudget.maxUnavailable=0%"},
		"zarf-registry: registry.podDisruptionBudget.maxUnavailable: nodes with a registry pod could not be drained; set it " +
			"to at least 1, or podDisruptionBudget.enabled=false",
	},
	{
		[]string{"registry.garbageCollection.schedule=30 3 * *"},
		`zarf-registry: registry.garbageCollection.schedule: "30 3 * *" is not a cron schedule; set five fields such as 30 3 * * 0, or @weekly`,
	},
	{
		[]string{"registry.garbageCollection.schedule=''"},
		`zarf-registry: registry.garbageCollection.schedule: "" is not a cron schedule; set five fields such as 30 3 * * 0, or @weekly`,
	},
	{
		[]string{"registry.garbageCollection.timeout=1m59s"},
		"zarf-registry: registry.garbageCollection.timeout: 1m59s is not between 2m and 24h; set it to about twice the " +
			"duration of the longest run",
	},
	{
		[]string{"registry.garbageCollection.timeout=24h1s"},
		"zarf-registry: registry.garbageCollection.timeout: 24h1s is not between 2m and 24h; set it to about twice the " +
			"duration of the longest run",
	},
	{
		[]string{"registry.prune.schedule=weekly"},
		`zarf-registry: registry.prune.schedule: "weekly" is not a cron schedule; set five fields such as 30 2 * * 0, or @weekly`,
	},
	{
		[]string{"registry.prune.timeout=1m"},
		"zarf-registry: registry.prune.timeout: 1m is not between 2m and 24h; set it to about twice the duration of the " +
			"longest run",
	},
	{
		[]string{"registry.prune.enabled=true"},
		"zarf-registry: registry.prune: no rule selects images; set olderThan, keepLast, match or untagged",
	},
	{
		[]string{"registry.storage.type=s3", "registry.storage.s3.region=r"},
		"zarf-registry: registry.storage.s3.bucket: storage.type=s3 needs it; set it",
	},
	{
		[]string{"registry.storage.type=s3", "registry.storage.s3.bucket=b"},
		"zarf-registry: registry.storage.s3.region: storage.type=s3 needs it; set it",
	},
	{
		[]string{"registry.storage.type=s3", "registry.storage.s3={bucket: b, region: r, copyFromVolume: true}",
			"registry.replicas=2"},
		"zarf-registry: registry.replicas: with storage.s3.copyFromVolume=true another pod could change what is being " +
			"copied; set it to 1 until the images are copied",
	},
	{
		[]string{"registry.storage.type=s3", "registry.storage.s3={bucket: b, region: r, copyFromVolume: true}",
			"registry.persistence.enabled=false"},
		"zarf-registry: registry.storage.s3.copyFromVolume: with persistence.enabled=false there is no volume; remove it, " +
			"or describe the volume in registry.persistence",
	},
	{
		[]string{"nodeConfig.podLabels={zarf-registry/nodes: mine}"},
		"zarf-registry: nodeConfig.podLabels: zarf-registry/nodes is reserved for selectors; remove it",
	},
	{
		[]string{"nodeConfig.podAnnotations={zarf-registry/node-config-checksum: '1'}"},
		"zarf-registry: nodeConfig.podAnnotations: zarf-registry/node-config-checksum is reserved for the chart and " +
			"its Jobs; remove it",
	},
	{
		[]string{"nodeConfig.nodeSelector={kubernetes.io/os: linux}"},
		"zarf-registry: nodeConfig.nodeSelector: the chart sets kubernetes.io/os to linux; remove it",
	},
	{
		[]string{"nodeConfig.nodeSelector={kubernetes.io/arch: amd64}"},
		"zarf-registry: nodeConfig.nodeSelector: the chart sets kubernetes.io/arch; remove it and set " +
			"registry.architecture or injector.architectures",
	},
	{[]string{"nodeConfig.k3s.path=/etc/registries.yaml"}, notThere("k3s.path", "/etc/registries.yaml")},
	{[]string{"nodeConfig.k3s.path=/etc/rancher"}, notThere("k3s.path", "/etc/rancher")},
	{[]string{"nodeConfig.k3s.path=/etc/rancher/../shadow"}, notThere("k3s.path", "/etc/rancher/../shadow")},
	{[]string{"nodeConfig.k3s.livePath=/var/lib/kubelet"}, notThere("k3s.livePath", "/var/lib/kubelet")},
	{[]string{"nodeConfig.k3s.livePath=/var/lib/rancher/./x"}, notThere("k3s.livePath", "/var/lib/rancher/./x")},
	{[]string{"nodeConfig.containerd.path=etc/containerd"}, notThere("containerd.path", "etc/containerd")},
	{[]string{"nodeConfig.containerd.path=/etc/containerd/.."}, notThere("containerd.path", "/etc/containerd/..")},
	{
		[]string{"nodeConfig.containerd.path=/etc/containerd-of-mine"},
		notThere("containerd.path", "/etc/containerd-of-mine"),
	},
	{
		[]string{"nodeConfig.containerd.path='/etc/containerd/a,/etc'"},
		notThere("containerd.path", "/etc/containerd/a,/etc"),
	},
	{[]string{"nodeConfig.crio.certsPath=/"}, notThere("crio.certsPath", "/")},
	{[]string{"nodeConfig.crio.confPath=/etc"}, notThere("crio.confPath", "/etc")},
	{[]string{"nodeConfig.directories=[/etc/containerd, /etc/kubernetes]"}, notThere("directories", "/etc/kubernetes")},
	{
		[]string{"nodeConfig.tlsDirectories=[/]"},
		`zarf-registry: nodeConfig.tlsDirectories: "/" cannot be mounted; set absolute paths below / without .., commas and colons`,
	},
	{
		[]string{"nodeConfig.tlsDirectories=[/etc/ssl/../kubernetes]"},
		`zarf-registry: nodeConfig.tlsDirectories: "/etc/ssl/../kubernetes" cannot be mounted; set absolute paths below / without .., commas and colons`,
	},
	{
		[]string{"nodeConfig.runtimes=[rke2, k3s]"},
		"zarf-registry: nodeConfig.runtimes: K3s and RKE2 use different paths, so nodes cannot run both; remove k3s or " +
			"rke2",
	},
	{
		[]string{"nodeConfig.k3s.registries={configs: {a: {auth: {password: 0123}}}}"},
		`zarf-registry: nodeConfig.k3s.registries.configs."a".auth.password: must be a string, but Helm parsed a number or boolean; put it in quotes, or use --set-string`,
	},
	{
		[]string{"nodeConfig.k3s={registries: {mirrors: {}}, existingSecret: mine}"},
		"zarf-registry: nodeConfig.k3s.existingSecret: it conflicts with nodeConfig.k3s.registries; remove one of them",
	},
	{
		[]string{"nodeConfig.k3s.existingSecret=zarf-registry-credentials"},
		"zarf-registry: nodeConfig.k3s.existingSecret: Secret zarf-registry-credentials is created by the Jobs; name " +
			"one of your own",
	},
	{
		[]string{
			"registryProxy=null", "registryURL=registry.example.com", "nodeConfig.k3s.existingSecret=zarf-registry-state",
		},
		"zarf-registry: nodeConfig.k3s.existingSecret: Secret zarf-registry-state is created by the Jobs; name one of " +
			"your own",
	},
	{
		[]string{"nodeConfig.updateStrategy.maxUnavailable=0"},
		"zarf-registry: nodeConfig.updateStrategy.maxUnavailable: a pod must stop before the next starts; set it to at " +
			"least 1",
	},
	{
		[]string{"nodeConfig.updateStrategy.maxUnavailable=0%"},
		"zarf-registry: nodeConfig.updateStrategy.maxUnavailable: a pod must stop before the next starts; set it to at " +
			"least 1",
	},
	{
		[]string{"auth.push=[{name: ci, repositories: [team-a, base/go]}]", "nodeConfig.mirrors=[docker.io]"},
		"zarf-registry: auth.push: credential ci may write team-a, base/go, where nodes also pull images of other " +
			"registries, because of nodeConfig.mirrors; set mayReplaceMirrored of the credential to true if it may replace " +
			"these, or remove one of both",
	},
	{
		[]string{"registryProxy=false", "nodeConfig.mirrors=[docker.io]"},
		"zarf-registry: nodeConfig.mirrors: the node port requires a credential, and runtimes send none to mirrors; set " +
			"registryProxy=true or auth.anonymousPull=true",
	},
	{
		[]string{"registryProxy=null", "registryURL=registry.example.com", "nodeConfig.mirrors=[docker.io]"},
		"zarf-registry: nodeConfig.mirrors: an external registry cannot be a mirror on the nodes; remove them, " +
			"and name that registry in nodeConfig.containerd.hosts or nodeConfig.k3s.registries",
	},
	{
		[]string{"nodeConfig.containerd.hosts={a.example: b}", "nodeConfig.runtimes=[crio]"},
		"zarf-registry: nodeConfig.containerd.hosts: only containerd reads them, and no node runs it; remove them, or set " +
			"nodeConfig.containerd.path",
	},
	{
		[]string{"registryProxy=null", "registryURL=registry.example.com", "nodeConfig.crio.insecure=true"},
		"zarf-registry: nodeConfig.crio.insecure: an external registry has no loopback address; remove it",
	},
	{
		[]string{"registryProxy=false", "nodeConfig.crio.ca=true"},
		"zarf-registry: nodeConfig.crio.ca: only proxies have the certificate, and only proxy mode has proxies; set " +
			"registryProxy=true, or nodeConfig.crio.ca=auto",
	},
	{
		[]string{"registryProxy=null", "registryURL=registry.example.com", "nodeConfig.crio.ca=true"},
		"zarf-registry: nodeConfig.crio.ca: only proxies have the certificate, and only proxy mode has proxies; set " +
			"registryProxy=true, or nodeConfig.crio.ca=auto",
	},
	{
		[]string{"proxy.tls=never", "nodeConfig.crio.ca=true"},
		"zarf-registry: nodeConfig.crio.ca: proxies have no certificate, since proxy.tls is never (source: value); set " +
			"proxy.tls=always, or nodeConfig.crio.ca=auto",
	},
	{
		[]string{"nodeConfig.crio.ca=true"},
		"zarf-registry: nodeConfig.crio.ca: proxies have no certificate, since proxy.tls is never (source: default); " +
			"set proxy.tls=always, or nodeConfig.crio.ca=auto",
	},
	{
		[]string{
			"registryProxy=null", "registryURL=registry.example.com", "nodeConfig.k3s.existingSecret=mine",
			"initHook.image.tag=1..2",
		},
		`zarf-registry: initHook.image.tag: "1..2" cannot be part of a ConfigMap's name; set another tag, with letters or digits on both sides of each dot`,
	},
	{
		[]string{"tests.timeout=9s"},
		"zarf-registry: tests.timeout: 9s is too short for a pod to reach the registry; set it to at least 10s",
	},
	{
		[]string{"networkPolicy.enabled=false", "metrics={serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}"},
		"zarf-registry: metrics.podMonitor.enabled: metrics.serviceMonitor.enabled scrapes the same pods; set one of " +
			"them to false",
	},
	{
		[]string{"metrics.podMonitor.enabled=true"},
		"zarf-registry: networkPolicy.metricsFrom: metrics.podMonitor.enabled needs access to the metrics; name " +
			"the pods of your Prometheus, or set networkPolicy.enabled=false",
	},
	{
		[]string{"metrics.serviceMonitor.enabled=true"},
		"zarf-registry: networkPolicy.metricsFrom: metrics.serviceMonitor.enabled needs access to the metrics; name " +
			"the pods of your Prometheus, or set networkPolicy.enabled=false",
	},
	{
		[]string{"metrics.prometheusRule.disabled=[TooLoud]"},
		`zarf-registry: metrics.prometheusRule.disabled: unknown alert "TooLoud"; set names of ` +
			strings.Join(alertNames, ", "),
	},
	{
		[]string{"metrics.podMonitor.labels={app.kubernetes.io/name: mine}"},
		"zarf-registry: metrics.podMonitor.labels: app.kubernetes.io/name is reserved for the chart; remove it",
	},
	{
		[]string{"registry.persistence.existingClaim=mine", "registry.storage.type=inmemory"},
		"zarf-registry: registry.persistence.existingClaim: a claim needs storage.type=filesystem and " +
			"persistence.enabled=true; set those, or remove it",
	},
	{
		[]string{"registry.persistence.existingClaim=mine", "registry.persistence.enabled=false"},
		"zarf-registry: registry.persistence.existingClaim: a claim needs storage.type=filesystem and " +
			"persistence.enabled=true; set those, or remove it",
	},
}

func init() {
	const service = "expose.service={enabled: true, type: NodePort}"
	failures = append(failures,
		failure{
			[]string{"registryProxy=null", "registryURL=registry.example.com", service, "expose.tls.existingSecret=mine"},
			"zarf-registry: expose: an external registry cannot be exposed; remove it",
		},
		failure{
			[]string{service, "expose.tls={existingSecret: mine, certManager: {issuerRef: {name: company}}}"},
			"zarf-registry: expose.tls.existingSecret: cert-manager issues the certificate " +
				"(expose.tls.certManager.issuerRef.name); remove one of them",
		},
		failure{
			[]string{service},
			"zarf-registry: expose.tls.existingSecret: clients outside verify the host name, which the registry's own " +
				"certificate lacks; set it, or expose.tls.certManager.issuerRef.name",
		},
		failure{
			[]string{service, "expose.tls.certManager.issuerRef.name=company"},
			"zarf-registry: expose.hosts: cert-manager needs names for the certificate; set them",
		},
		failure{
			[]string{"expose.ingress.enabled=true"},
			"zarf-registry: expose.hosts: Ingress and HTTPRoute need host names; set them",
		},
		failure{
			[]string{"expose.gateway.enabled=true", "expose.hosts=[a.example.com]"},
			"zarf-registry: expose.gateway.parentRefs: an HTTPRoute needs a Gateway; name it",
		},
		failure{
			[]string{"expose.gateway={enabled: true, parentRefs: [{name: edge}]}", "expose.hosts=[a.example.com]"},
			"zarf-registry: expose.gateway.backendTLSPolicy.caConfigMap: gateways do not trust the CA of the registry's " +
				"own certificate; set expose.tls, or name a ConfigMap with that CA, which init-hook certs ca prints",
		},
		failure{
			[]string{"expose.service={enabled: true, type: ClusterIP, nodePort: 30443}", "expose.tls.existingSecret=mine"},
			"zarf-registry: expose.service.nodePort: a Service of type ClusterIP has no node port; set " +
				"expose.service.type=NodePort, or remove it",
		},
		failure{
			[]string{"expose.service={enabled: true, type: NodePort, nodePort: 31999}", "expose.tls.existingSecret=mine"},
			"zarf-registry: expose.service.nodePort: 31999 is the port on the nodes' loopback addresses; set another",
		},
		failure{
			[]string{"expose.service={enabled: true, type: NodePort, loadBalancerClass: a}", "expose.tls.existingSecret=mine"},
			"zarf-registry: expose.service.loadBalancerClass: it needs a Service of type LoadBalancer; set " +
				"expose.service.type=LoadBalancer, or remove it",
		},
		failure{
			[]string{
				"expose.service={enabled: true, type: ClusterIP, externalTrafficPolicy: Local}", "expose.tls.existingSecret=mine",
			},
			"zarf-registry: expose.service.externalTrafficPolicy: a Service of type ClusterIP has no external traffic; " +
				"remove it",
		},
		failure{
			[]string{service, "expose.tls.existingSecret=zarf-registry-server-tls"},
			"zarf-registry: expose.tls.existingSecret: Secret zarf-registry-server-tls is created by the Jobs; name one " +
				"of your own",
		},
		failure{
			[]string{service, "expose.tls.existingSecret=mine", "expose.pullUsersSecret=zarf-registry-pull"},
			"zarf-registry: expose.pullUsersSecret: Secret zarf-registry-pull is created by the Jobs; name one of your own",
		},
	)
}

// notThere returns the error for an invalid path.
func notThere(value, path string) string {
	return fmt.Sprintf(
		"zarf-registry: nodeConfig.%s: %q is not a configuration directory of a container runtime; set an absolute path "+
			"without .. below /etc/containerd, /etc/containers, /etc/rancher, /etc/k0s, /etc/crio, /var/lib/rancher, "+
			"/var/snap/microk8s or /var/snap/k8s",
		value, path,
	)
}

func TestRejectsInvalidCombinations(t *testing.T) {
	for _, test := range failures {
		_, err := rendering{values: proxyMode(t, test.sets...)}.try(t)
		if err == nil {
			t.Errorf("%s is accepted", test.sets)
		} else if !strings.HasSuffix(err.Error(), ": "+test.want) {
			t.Errorf("%s:\n got %v\nwant … %s", test.sets, err, test.want)
		}
	}
}

// validations splits the text of validate.yaml and its definitions by area, and returns the rest of a
// template.
func validations(text string) (names []string, rest string) {
	parts := strings.Split(text, "{{- define \"")
	rest = parts[0]
	for _, part := range parts[1:] {
		if name, _, _ := strings.Cut(part, `"`); strings.HasSuffix(name, ".validate") {
			names = append(names, name)
		} else {
			rest += part
		}
	}
	return names, rest
}

func TestEveryFailMessageIsTested(t *testing.T) {
	calls := regexp.MustCompile(`\bfail (?:\(printf )?"((?:[^"\\]|\\.)*)"`)
	messages := append(slices.Clone(failures), failure{want: movedRefusal}, failure{want: notServed})
	for _, want := range unreadable(t) {
		messages = append(messages, failure{want: "zarf-registry: Secret zarf/zarf-registry-state: " + want})
	}
	found := 0
	for file, text := range templates(t) {
		all := calls.FindAllStringSubmatch(text, -1)
		if n := len(
			regexp.MustCompile(`\b(fail|required) `).FindAllString(comments.ReplaceAllString(text, ""), -1),
		); n != len(all) {
			t.Errorf("%s: %d calls of fail, but %d with a literal message", file, n, len(all))
		}
		names, rest := validations(text)
		if file != "validate.yaml" && calls.MatchString(rest) {
			t.Errorf("%s: fail is only allowed in validate.yaml, or in a zarf-registry.<area>.validate that it includes", file)
		}
		for _, name := range names {
			if !strings.Contains(templates(t)["validate.yaml"], fmt.Sprintf("include %q", name)) {
				t.Errorf("%s: validate.yaml does not include %s", file, name)
			}
		}
		for _, call := range all {
			found++
			if !regexp.MustCompile(`^zarf-registry: (%s|[a-zA-Z0-9.]+(\.%s)?|Secret %s/%s-state): .+; `).MatchString(call[1]) {
				t.Errorf("%s: %q is not of the form zarf-registry: <value path>: <why>; <what to do>", file, call[1])
			}
			form := regexp.MustCompile(
				"^" + regexp.MustCompile(`%[qsd]`).ReplaceAllString(regexp.QuoteMeta(call[1]), ".*") + "$",
			)
			if !slices.ContainsFunc(messages, func(f failure) bool { return form.MatchString(f.want) }) {
				t.Errorf("%s: no test for %q", file, call[1])
			}
		}
	}
	if found == 0 {
		t.Fatal("no call of fail found")
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
	found, err := documented()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestEveryValueIsDocumented(t *testing.T) {
	for _, leaf := range chartLeaves(t) {
		if !strings.HasPrefix(leaf.comment, "# -- ") {
			t.Errorf("values.yaml: %s has no comment that begins with `# --`", leaf.path)
		}
	}
}

func TestSchemaAndValuesHaveTheSameKeys(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		Ref         string             `json:"$ref"`
		Type        any                `json:"type"`
		Additional  any                `json:"additionalProperties"`
		Properties  map[string]*schema `json:"properties"`
		Definitions map[string]*schema `json:"definitions"`
	}
	var root schema
	if err := json.Unmarshal(b, &root); err != nil {
		t.Fatal(err)
	}
	var inSchema []string
	var walk func(s *schema, path string)
	walk = func(s *schema, path string) {
		if s.Ref != "" {
			s = root.Definitions[strings.TrimPrefix(s.Ref, "#/definitions/")]
		}
		// An object that Kubernetes defines is a single value of the chart.
		name := path[strings.LastIndex(path, ".")+1:]
		if len(s.Properties) == 0 || slices.Contains([]string{"resources", "affinity", "behavior", "namespaceSelector"}, name) {
			inSchema = append(inSchema, path)
			return
		}
		// Parent charts have their own globals.
		if s.Additional != false && path != "global" {
			t.Errorf("values.schema.json: %q allows additional properties", path)
		}
		for _, key := range slices.Sorted(maps.Keys(s.Properties)) {
			walk(s.Properties[key], strings.TrimPrefix(path+"."+key, "."))
		}
	}
	walk(&root, "")
	var inValues []string
	for _, leaf := range chartLeaves(t) {
		inValues = append(inValues, leaf.path)
	}
	for _, path := range inSchema {
		if !slices.Contains(inValues, path) {
			t.Errorf("%s is in values.schema.json and not in values.yaml", path)
		}
	}
	for _, path := range inValues {
		if !slices.Contains(inSchema, path) {
			t.Errorf("%s is in values.yaml and not in values.schema.json", path)
		}
	}
}
