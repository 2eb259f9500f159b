package templates

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	yaml3 "go.yaml.in/yaml/v3"
)

func TestTheSchemaRefusesWhatIsUnknownOrOfAnotherType(t *testing.T) {
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
		{"initHook.image.digest=sha256:abc", "/initHook/image/digest"},
		{"initHook.image.tag=a:b", "/initHook/image/tag"},
		{"initHook.image.pullPolicy=Sometimes", "/initHook/image/pullPolicy"},
		{"registry.architecture=riscv64", "/registry/architecture"},
		{"registry.replicas=0", "/registry/replicas"},
		{"registry.logLevel=loud", "/registry/logLevel"},
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
		{"networkPolicy.metricsFrom=[{}]", "/networkPolicy/metricsFrom"},
		{"networkPolicy.metricsFrom=[{pods: {}}]", "/networkPolicy/metricsFrom"},
		{"imagePullSecrets=[secret]", "/imagePullSecrets"},
	} {
		_, err := rendering{values: proxyMode(t, test.set)}.try(t)
		if err == nil {
			t.Errorf("%s is accepted", test.set)
		} else if !strings.Contains(err.Error(), test.where) {
			t.Errorf("%s: the message does not name %s: %v", test.set, test.where, err)
		}
	}
}

func TestTheSchemaAcceptsWhatACommandLineGives(t *testing.T) {
	for _, set := range []string{
		"global={imageRegistry: example.com}", // Helm gives a chart its parent's globals
		"registry.persistence.storageClass=", "registry.persistence.storageClass=''", "registry.persistence.size=1.5Ti",
		"proxy.resources.requests.cpu=1", "proxy.resources.requests.cpu=0.5", "proxy.updateStrategy.maxUnavailable=25%",
		"pki.mode=null", "pki.rotation.schedule=''", "pki.rotation.schedule='@every 30m'", "pki.rotation.schedule='0,30 */2 1-5 JAN mon-fri'", "pki.rotation.schedule='@hourly'",
		"pki.lifetime={certificate: 6m, authority: 12m}", "pki.rotation.resources={}",
		"initHook.timeout=1h30m", "initHook.image.tag=v1.2.3-rc.1_x", "initHook.tolerations=[]", "fullnameOverride=images",
		"registry.extraEnv=[{name: A, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]",
		"networkPolicy.metricsFrom=[{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {podSelector: {}}]",
	} {
		rendering{values: proxyMode(t, set)}.render(t)
	}
}

// failure is what cannot work, in proxy mode if no other is set, and the message
// that says what to do.
type failure struct {
	sets []string
	want string
}

var failures = []failure{
	{[]string{"registryURL=registry.example.com"}, "zarf-registry: registryURL: with an external registry nothing of ours is deployed that a proxy could lead to, and the nodes' references name that registry, not a proxy; remove registryURL, or registryProxy=true"},
	{[]string{"registryProxy=null", "registryURL=http://registry.example.com"}, `zarf-registry: registryURL: "http://registry.example.com" asks for plain HTTP, which container runtimes refuse of any registry but one on loopback; serve it with TLS, and set HOST[:PORT][/PATH]`},
	{[]string{"registryProxy=null", "registryURL=registry/team"}, `zarf-registry: registryURL: "registry/team" is not what image references begin with; set HOST[:PORT][/PATH], where HOST has a dot or a port, as registry.example.com/team`},
	{[]string{"fullnameOverride=1st"}, `zarf-registry: fullnameOverride: "1st" cannot be a Service's name; set it to lower-case letters, digits and dashes that begin with a letter`},
	{[]string{"nameOverride=a.b"}, `zarf-registry: fullnameOverride: "zarf-registry-a.b" cannot be a Service's name; set it to lower-case letters, digits and dashes that begin with a letter`},
	{[]string{"commonLabels={app.kubernetes.io/name: mine}"}, "zarf-registry: commonLabels: selectors need app.kubernetes.io/name as the chart sets it; remove it"},
	{[]string{"registry.podLabels={app.kubernetes.io/component: mine}"}, "zarf-registry: registry.podLabels: selectors need app.kubernetes.io/component as the chart sets it; remove it"},
	{[]string{"proxy.podLabels={zarf-registry/proxies: mine}"}, "zarf-registry: proxy.podLabels: selectors need zarf-registry/proxies as the chart sets it; remove it"},
	{[]string{"registry.nodeSelector={kubernetes.io/os: windows}"}, "zarf-registry: registry.nodeSelector: the chart sets kubernetes.io/os to linux; remove it"},
	{[]string{"initHook.nodeSelector={kubernetes.io/os: linux}"}, "zarf-registry: initHook.nodeSelector: the chart sets kubernetes.io/os to linux; remove it"},
	{[]string{"proxy.nodeSelector={kubernetes.io/arch: amd64}"}, "zarf-registry: proxy.nodeSelector: the chart sets kubernetes.io/arch; remove it and set registry.architecture or injector.architectures"},
	{[]string{"ipFamily=IPv6", "proxy.hostNetwork=false"}, "zarf-registry: proxy.hostNetwork: a hostPort cannot answer on [::1]; set it to auto or true"},
	{[]string{"proxy.hostNetwork=true", "proxy.metricsPort=31999"}, "zarf-registry: proxy.metricsPort: 31999 is the port of the images too; set another"},
	{[]string{"proxy.metricsPort=5000"}, "zarf-registry: proxy.metricsPort: the proxy listens on 5000 itself; set another"},
	{[]string{"proxy.updateStrategy.maxUnavailable=0"}, "zarf-registry: proxy.updateStrategy.maxUnavailable: two proxies cannot share a hostPort, so one must go before the next comes; set it to at least 1"},
	{[]string{"proxy.updateStrategy.maxUnavailable=0%"}, "zarf-registry: proxy.updateStrategy.maxUnavailable: two proxies cannot share a hostPort, so one must go before the next comes; set it to at least 1"},
	{[]string{"registry.podAnnotations={zarf-registry/metrics-port: '1'}"}, "zarf-registry: registry.podAnnotations: zarf-registry/metrics-port is the chart's and the Jobs' to set; remove it"},
	{[]string{"proxy.podAnnotations={zarf-registry/refreshed-at: now}"}, "zarf-registry: proxy.podAnnotations: zarf-registry/refreshed-at is the chart's and the Jobs' to set; remove it"},
	{[]string{"pki.mode=existingSecret", "pki.existingSecret.node=m"}, "zarf-registry: pki.existingSecret.server: pki.mode=existingSecret needs it; set it to a Secret with tls.crt, tls.key and ca.crt"},
	{[]string{"pki.mode=existingSecret", "pki.existingSecret.server=s"}, "zarf-registry: pki.existingSecret.node: pki.mode=existingSecret needs it; set it to a Secret with tls.crt, tls.key and ca.crt"},
	{[]string{"pki.mode=internal", "pki.existingSecret.push=p"}, "zarf-registry: pki.existingSecret.push: with pki.mode internal, which is decided by value, nobody reads it; set pki.mode=existingSecret, or remove it"},
	{[]string{"pki.mode=internal", "pki.certManager.issuerRef.name=i"}, "zarf-registry: pki.certManager.issuerRef.name: with pki.mode internal, which is decided by value, nobody asks it; set pki.mode=certManager, or remove it"},
	{[]string{"auth.existingSecret=zarf-registry-credentials"}, "zarf-registry: auth.existingSecret: Secret zarf-registry-credentials is one that the Jobs make; name one of your own"},
	{[]string{"pki.mode=existingSecret", "pki.existingSecret={server: zarf-registry-server-tls, node: m}"}, "zarf-registry: pki.existingSecret.server: Secret zarf-registry-server-tls is one that the Jobs make; name one of your own"},
	{[]string{"pki.lifetime.certificate=5m59s"}, "zarf-registry: pki.lifetime.certificate: with pki.mode internal, 5m59s is too short for a renewal to reach every pod in time; set it to at least 6m"},
	{[]string{"pki.mode=certManager", "pki.lifetime.certificate=59m"}, "zarf-registry: pki.lifetime.certificate: with pki.mode certManager, 59m is too short for a renewal to reach every pod in time; set it to at least 1h"},
	{[]string{"pki.lifetime.authority=17519h"}, "zarf-registry: pki.lifetime.authority: 17519h is less than twice pki.lifetime.certificate, which is 8760h and never outlives it; set it to at least twice as much"},
	{[]string{"pki.rotation.schedule=17 * * *"}, `zarf-registry: pki.rotation.schedule: "17 * * *" is no schedule of cron; set five fields, as 17 * * * *, or @hourly, or nothing to renew at upgrades only`},
	{[]string{"pki.rotation.schedule=0 17 * * * *"}, `zarf-registry: pki.rotation.schedule: "0 17 * * * *" is no schedule of cron; set five fields, as 17 * * * *, or @hourly, or nothing to renew at upgrades only`},
	{[]string{"pki.rotation.schedule=once in a blue moon"}, `zarf-registry: pki.rotation.schedule: "once in a blue moon" is no schedule of cron; set five fields, as 17 * * * *, or @hourly, or nothing to renew at upgrades only`},
	{[]string{"pki.rotation.schedule='@often'"}, `zarf-registry: pki.rotation.schedule: "@often" is no schedule of cron; set five fields, as 17 * * * *, or @hourly, or nothing to renew at upgrades only`},
	{[]string{"pki.rotation.timeout=1m59s"}, "zarf-registry: pki.rotation.timeout: 1m59s is too short, for a kubelet may take 90s to bring a certificate to a pod; set it to at least 2m"},
	{[]string{"injector.enabled=false", "injector.image=example.com/pause:1"}, "zarf-registry: injector.image: nothing is injected with injector.enabled=false; remove it, or set registry.image and proxy.image"},
	{[]string{"registry.architecture=arm64", "injector.architectures=[amd64]"}, "zarf-registry: registry.architecture: arm64 is not among injector.architectures; add it there"},
	{[]string{"initHook.image.tag=1..2"}, `zarf-registry: initHook.image.tag: "1..2" cannot stand in the name of a ConfigMap; set another tag, with letters or digits on both sides of each dot`},
	{[]string{"initHook.timeout=10s"}, "zarf-registry: initHook.timeout: 10s is too short for a rollout; set it to at least 30s"},
	{[]string{"registry.replicas=2"}, "zarf-registry: registry.replicas: this version runs one registry; remove it"},
	{[]string{"registry.storage.type=s3", "registry.storage.s3.region=r"}, "zarf-registry: registry.storage.s3.bucket: storage.type=s3 needs it; set it"},
	{[]string{"registry.storage.type=s3", "registry.storage.s3.bucket=b"}, "zarf-registry: registry.storage.s3.region: storage.type=s3 needs it; set it"},
	{[]string{"registry.persistence.existingClaim=mine", "registry.storage.type=inmemory"}, "zarf-registry: registry.persistence.existingClaim: a claim is used with storage.type=filesystem and persistence.enabled=true only; set those, or remove it"},
	{[]string{"registry.persistence.existingClaim=mine", "registry.persistence.enabled=false"}, "zarf-registry: registry.persistence.existingClaim: a claim is used with storage.type=filesystem and persistence.enabled=true only; set those, or remove it"},
}

func TestWhatCannotWorkIsRefusedWithWhatToDo(t *testing.T) {
	for _, test := range failures {
		_, err := rendering{values: proxyMode(t, test.sets...)}.try(t)
		if err == nil {
			t.Errorf("%s is accepted", test.sets)
		} else if !strings.HasSuffix(err.Error(), ": "+test.want) {
			t.Errorf("%s:\n got %v\nwant … %s", test.sets, err, test.want)
		}
	}
}

func TestEveryRefusalHasItsFormAndItsTest(t *testing.T) {
	calls := regexp.MustCompile(`\bfail (?:\(printf )?"((?:[^"\\]|\\.)*)"`)
	messages := slices.Clone(failures)
	for _, want := range unreadable(t) {
		messages = append(messages, failure{want: "zarf-registry: Secret zarf/zarf-registry-state: " + want})
	}
	found := 0
	for file, text := range templates(t) {
		all := calls.FindAllStringSubmatch(text, -1)
		if n := len(regexp.MustCompile(`\b(fail|required) `).FindAllString(comments.ReplaceAllString(text, ""), -1)); n != len(all) {
			t.Errorf("%s: %d refusals, of which %d have a message of their own", file, n, len(all))
		}
		if len(all) > 0 && file != "validate.yaml" {
			t.Errorf("%s: refusals belong into validate.yaml", file)
		}
		for _, call := range all {
			found++
			if !regexp.MustCompile(`^zarf-registry: (%s|[a-zA-Z0-9.]+(\.%s)?|Secret %s/%s-state): .+; `).MatchString(call[1]) {
				t.Errorf("%s: %q is not of the form zarf-registry: <value path>: <why>; <what to do>", file, call[1])
			}
			form := regexp.MustCompile("^" + regexp.MustCompile(`%[qsd]`).ReplaceAllString(regexp.QuoteMeta(call[1]), ".*") + "$")
			if !slices.ContainsFunc(messages, func(f failure) bool { return form.MatchString(f.want) }) {
				t.Errorf("%s: no test for %q", file, call[1])
			}
		}
	}
	if found == 0 {
		t.Fatal("no refusal found")
	}
}

// leaf is a value that has no values below it, with the comment above it.
type leaf struct{ path, comment string }

func leaves(t testing.TB, node *yaml3.Node, path string) (found []leaf) {
	t.Helper()
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		// An object is a leaf where its keys are the user's: where it is empty, or resources.
		if value.Kind == yaml3.MappingNode && len(value.Content) > 0 && key.Value != "resources" {
			found = append(found, leaves(t, value, at)...)
		} else {
			found = append(found, leaf{at, key.HeadComment})
		}
	}
	return found
}

func chartLeaves(t testing.TB) []leaf {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var document yaml3.Node
	if err := yaml3.Unmarshal(b, &document); err != nil {
		t.Fatal(err)
	}
	found := leaves(t, document.Content[0], "")
	if len(found) < 50 {
		t.Fatalf("values.yaml: %d values", len(found))
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

func TestSchemaAndValuesNameTheSameValues(t *testing.T) {
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
		// What Kubernetes defines is one value of the chart.
		name := path[strings.LastIndex(path, ".")+1:]
		if len(s.Properties) == 0 || slices.Contains([]string{"resources", "affinity"}, name) {
			inSchema = append(inSchema, path)
			return
		}
		if s.Additional != false {
			t.Errorf("values.schema.json: %q is open", path)
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
		if !slices.Contains(inValues, path) && path != "global" {
			t.Errorf("%s is in values.schema.json and not in values.yaml", path)
		}
	}
	for _, path := range inValues {
		if !slices.Contains(inSchema, path) {
			t.Errorf("%s is in values.yaml and not in values.schema.json", path)
		}
	}
}
