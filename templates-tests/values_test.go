package templates

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	yaml3 "go.yaml.in/yaml/v3"

	"github.com/zarf-dev/zarf-registry/test/golden"
)

// A wrong value gives one line, which names it, what it is, and what is allowed. So the schema has no enum, whose
// message lacks the value, and no oneOf and anyOf, whose messages have a line for each alternative. The golden file has
// the values, and their messages; a new value is a new heading.
func TestSchemaMessages(t *testing.T) {
	t.Parallel()
	const heading = "values don't meet the specifications of the schema(s) in the following chart(s):\nzarf-registry:\n- at "
	golden := golden.Open(t, "schema")
	for _, set := range golden.Names(t) {
		_, err := rendering{values: proxyMode(t, set)}.try(t)
		message, found := strings.CutPrefix(fmt.Sprint(err), heading)
		if !found || strings.Count(message, "\n") != 1 {
			t.Errorf("%s: %v", set, err)
		}
		golden.Check(t, set, message)
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
