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

// shorthands are values that many combinations begin with.
var shorthands = map[string][]string{
	"zarf": zarf, "external": {"registryProxy=null", "registryURL=registry.example.com"},
	"NodePort": {"expose.service={enabled: true, type: NodePort}"},
}

// The golden file has invalid combinations of values, in proxy mode unless set otherwise, and the errors, which begin
// with the value to change; a new combination is a new heading.
func TestRejectsInvalidCombinations(t *testing.T) {
	t.Parallel()
	golden := golden.Open(t, "refusals")
	for _, combination := range golden.Names(t) {
		var sets []string
		for _, set := range strings.Split(combination, "; ") {
			if more, found := shorthands[set]; found {
				sets = append(sets, more...)
			} else {
				sets = append(sets, set)
			}
		}
		_, err := rendering{values: proxyMode(t, sets...)}.try(t)
		_, message, found := strings.Cut(fmt.Sprint(err), ": zarf-registry: ")
		if !found {
			t.Errorf("%s: %v", combination, err)
		}
		golden.Check(t, combination, message)
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
