package templates

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestModeDefaultsToTheStateThenNodePort(t *testing.T) {
	t.Parallel()
	inMode := func(mode state.Mode) *cluster {
		return newCluster(kubernetes(corev1.IPv4Protocol), remembers(ready(settings(mode, state.IPv4))))
	}
	prepared := state.State{Phase: state.PhasePrepared, Desired: settings(state.ModeProxy, state.IPv4)}
	others := remembers(ready(settings(state.ModeProxy, state.IPv4)))
	others.Namespace = "other"
	var proxies, othersProxies []runtime.Object
	for _, d := range daemonSets(rendering{values: proxyMode(t)}.render(t), "proxy") {
		proxies = append(proxies, d)
		d = d.DeepCopy()
		d.Labels["app.kubernetes.io/instance"] = "other"
		othersProxies = append(othersProxies, d)
	}
	proxies, othersProxies = slices.Clip(proxies), slices.Clip(othersProxies)
	for name, test := range map[string]struct {
		cluster *cluster
		values  []string
		want    string // mode, source, and the external registry
	}{
		"no cluster":               {nil, nil, "nodeport default"},
		"a new cluster":            {newCluster(kubernetes(corev1.IPv4Protocol)), nil, "nodeport cluster"},
		"a new IPv6-only cluster":  {newCluster(kubernetes(corev1.IPv6Protocol)), nil, "proxy cluster"},
		"no cluster, IPv6":         {nil, []string{"ipFamily=IPv6"}, "proxy default"},
		"kube-proxy uses iptables": {kubeProxy("mode: iptables"), nil, "nodeport cluster"},
		"kube-proxy uses nftables": {kubeProxy("mode: nftables"), nil, "proxy cluster"},
		"kube-proxy uses IPVS":     {kubeProxy("mode: ipvs"), nil, "proxy cluster"},
		"kube-proxy leaves loopback out": {
			kubeProxy("mode: iptables\niptables: {localhostNodePorts: false}"), nil, "proxy cluster",
		},
		"kube-proxy's defaults":       {kubeProxy("mode: \"\"\niptables: {localhostNodePorts: null}"), nil, "nodeport cluster"},
		"an unreadable configuration": {kubeProxy("]"), nil, "nodeport cluster"},
		"kube-proxy uses nftables, and the state says nodeport": {
			kubeProxy("mode: nftables", remembers(ready(settings(state.ModeNodePort, state.IPv4)))), nil, "nodeport state",
		},
		"kube-proxy uses nftables, and false": {
			kubeProxy("mode: nftables"), []string{"registryProxy=false"}, "nodeport value",
		},
		"the state is lost in proxy mode": {
			newCluster(append(proxies, kubernetes(corev1.IPv4Protocol))...), nil, "proxy cluster",
		},
		"the state is lost in proxy mode, and false": {
			newCluster(append(proxies, kubernetes(corev1.IPv4Protocol))...), []string{"registryProxy=false"}, "nodeport value",
		},
		"proxies remain of an interrupted switch": {
			newCluster(append(proxies, remembers(ready(settings(state.ModeNodePort, state.IPv4))))...), nil, "nodeport state",
		},
		"proxies of another release": {
			newCluster(append(othersProxies, kubernetes(corev1.IPv4Protocol))...), nil, "nodeport cluster",
		},
		"the state of another namespace":     {newCluster(kubernetes(corev1.IPv4Protocol), others), nil, "nodeport cluster"},
		"the state says proxy":               {inMode(state.ModeProxy), nil, "proxy state"},
		"the state says nodeport":            {inMode(state.ModeNodePort), nil, "nodeport state"},
		"the state has an external registry": {inMode(state.ModeExternal), nil, "external state registry.example.com/team"},
		"a desired mode that was never verified": {
			newCluster(kubernetes(corev1.IPv4Protocol), remembers(prepared)), nil, "proxy state",
		},
		"a switch that failed": {newCluster(kubernetes(corev1.IPv4Protocol), remembers(ready(settings(state.ModeNodePort,
			state.IPv4), func(s *state.State) {
			s.Phase, s.Desired = state.PhasePrepared, settings(state.ModeProxy, state.IPv4)
		}))), nil, "nodeport state"},
		"a switch that failed, named again": {newCluster(kubernetes(corev1.IPv4Protocol), remembers(ready(
			settings(state.ModeNodePort, state.IPv4), func(s *state.State) {
				s.Phase, s.Desired = state.PhasePrepared, settings(state.ModeProxy, state.IPv4)
			}))), []string{"registryProxy=true"}, "proxy value"},
		"true":                      {nil, []string{"registryProxy=true"}, "proxy value"},
		"false":                     {nil, []string{"registryProxy=false"}, "nodeport value"},
		"true overrides the state":  {inMode(state.ModeNodePort), []string{"registryProxy=true"}, "proxy value"},
		"false overrides the state": {inMode(state.ModeProxy), []string{"registryProxy=false"}, "nodeport value"},
		"false overrides an external registry": {
			inMode(state.ModeExternal), []string{"registryProxy=false"}, "nodeport value",
		},
		"an external registry": {nil, []string{"registryURL=registry.example.com"}, "external value registry.example.com"},
		"an external registry overrides the state": {
			inMode(state.ModeProxy), []string{"registryURL=registry.example.com"}, "external value registry.example.com",
		},
		"an external registry and false": {
			nil, []string{"registryURL=registry.example.com", "registryProxy=false"}, "external value registry.example.com",
		},
		"another external registry": {
			inMode(state.ModeExternal), []string{"registryURL=https://registry.example.org/"},
			"external value registry.example.org",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := rendering{values: with(t, nil, test.values...), cluster: test.cluster}.render(t)
			d := decided(out)
			if got := strings.TrimSpace(fmt.Sprint(d.Mode, " ", d.ModeSource, " ", d.RegistryURL)); got != test.want {
				t.Errorf("the Jobs are told %s, want %s", got, test.want)
			}
			if mode, _, _ := strings.Cut(test.want, " "); !strings.Contains(out.files["NOTES.txt"], "mode: "+mode) {
				t.Errorf("the notes lack %s:\n%s", mode, out.files["NOTES.txt"])
			}
		})
	}
}

// kube-proxy's default mode is nftables from Kubernetes 1.40.
func TestTheDefaultModeFollowsKubeProxysDefault(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		version string
		cluster *cluster
		want    state.Mode
	}{
		{"v1.39.2", kubeProxy(`mode: ""`), state.ModeNodePort},
		{"v1.40.0", kubeProxy(`mode: ""`), state.ModeProxy},
		{"v1.40.0-beta.1", kubeProxy("clusterCIDR: 10.0.0.0/8"), state.ModeProxy},
		{"v1.40.0", kubeProxy("mode: iptables"), state.ModeNodePort},
		{"v1.40.0", newCluster(kubernetes(corev1.IPv4Protocol)), state.ModeNodePort}, // unknown
	} {
		out := rendering{cluster: test.cluster, version: test.version}.render(t)
		if got := decided(out).Mode; got != test.want {
			t.Errorf("on %s: %s, want %s", test.version, got, test.want)
		}
	}
}

// kubeProxy returns a new IPv4 cluster whose kube-proxy has this configuration, as kubeadm stores it.
func kubeProxy(config string, objects ...runtime.Object) *cluster {
	return newCluster(append(objects, kubernetes(corev1.IPv4Protocol), &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-proxy"},
		Data:       map[string]string{"config.conf": config},
	})...)
}

func TestTheReasonForTheModeIsPrinted(t *testing.T) {
	t.Parallel()
	const reason = "kube-proxy runs in nftables mode, which serves no node port on 127.0.0.1"
	out := rendering{cluster: kubeProxy("mode: nftables")}.render(t)
	if got := decided(out).ModeReason; got != reason {
		t.Errorf("the Jobs are told the reason %q", got)
	}
	if !strings.Contains(out.files["NOTES.txt"], "reason for the mode: "+reason+"\n") {
		t.Errorf("the notes lack the reason:\n%s", out.files["NOTES.txt"])
	}
	out = rendering{cluster: kubeProxy("mode: nftables"), values: with(t, nil, "registryProxy=true")}.render(t)
	if got := decided(out).ModeReason + out.files["NOTES.txt"]; strings.Contains(got, "reason") || strings.Contains(got, "nftables") {
		t.Errorf("a reason for an explicit mode: %s", got)
	}
}

func TestJobsKnowWhetherHelmAdoptsObjects(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"": false, "v3.18.6": false, "3.21.0": false, "v4.3.1": true} {
		if got := decided(rendering{helmVersion: version}.render(t)).HelmAdopts; got != want {
			t.Errorf("Helm %q: %t", version, got)
		}
	}
}

func TestRegistryURLIsNormalized(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"registry.example.com":            "registry.example.com",
		"https://registry.example.com/":   "registry.example.com",
		"https://registry.example.com":    "registry.example.com",
		"registry.example.com:5000":       "registry.example.com:5000",
		"registry.example.com/a/b_c/d--e": "registry.example.com/a/b_c/d--e",
		"10.0.0.1:5000/team":              "10.0.0.1:5000/team",
		"[fd00::1]:5000/team":             "[fd00::1]:5000/team",
		"localhost/team":                  "localhost/team",
		"registry:5000":                   "registry:5000",
		"http://registry.example.com":     "",
		"HTTP://registry.example.com":     "",
		"oci://registry.example.com":      "",
		"https://":                        "",
		"/team":                           "",
		"registry":                        "",
		"registry/team":                   "",
		"registry:5000:5000":              "",
		"registry.example.com:port":       "",
		"registry.example.com/Team":       "",
		"registry.example.com//team":      "",
		"registry.example.com/team:1":     "",
		"registry.example.com/team?a=b":   "",
		"user@registry.example.com":       "",
		"registry.example.com team":       "",
		"-registry.example.com":           "",
	} {
		out, err := rendering{values: with(t, nil, "registryURL="+mustYAML(t, url))}.try(t)
		switch {
		case want == "":
			if err == nil || !strings.Contains(err.Error(), "zarf-registry: registryURL: ") {
				t.Errorf("%s: want a rejection of this URL, got %v", url, err)
			}
		case err != nil:
			t.Errorf("%s: %v", url, err)
		case decided(out).RegistryURL != want || decided(out).Address != want:
			t.Errorf("%s: %+v", url, decided(out))
		}
	}
}

func TestRejectsInvalidState(t *testing.T) {
	t.Parallel()
	data := require.Value(state.Encode(ready(settings(state.ModeProxy, state.IPv4)), nil))(t)
	replace := func(old, new string) string {
		changed := strings.Replace(string(data), old, new, 1)
		if changed == string(data) {
			t.Fatalf("%q is not in the state", old)
		}
		return changed
	}
	for _, json := range []string{
		"", "rubbish", string(data[:40]), string(data) + "{}", "[]", "null", "{}",
		replace(": 1,", ": 2,"), replace(": 1,", ": 0,"), replace(": 1,", `: "1.5",`),
		replace(`"mode": "proxy"`, `"mode": "carrier pigeon"`),
		replace(`"mode": "proxy",`, ``),
		replace(`"desired"`, `"desire"`),
		replace(`"ipFamily": "IPv4"`, `"ipFamily": "IPX"`),
		replace(`"address": "127.0.0.1:31999"`, `"address": ""`),
		replace(`"address": "127.0.0.1:31999"`, `"address": 31999`),
		replace(`"updatedBy"`, `"pki": {"mode": "letter"}, "updatedBy"`),
		replace(`"updatedBy"`, `"pki": {"clusterDomain": "c"}, "updatedBy"`),
		replace(`"updatedBy"`, `"nodeConfig": ["/etc/k0s"], "updatedBy"`),
		replace(`"updatedBy"`, `"nodeConfig": {"directories": "/etc/k0s"}, "updatedBy"`),
		replace(`"updatedBy"`, `"nodeConfig": {"directories": [1]}, "updatedBy"`),
	} {
		for _, sets := range [][]string{nil, {"registryProxy=true"}, {"registryURL=registry.example.com"}} {
			_, err := rendering{
				values: with(t, nil, sets...), cluster: newCluster(kubernetes(corev1.IPv4Protocol), stateSecret(json)),
			}.try(t)
			if err == nil || !strings.Contains(err.Error(), ": zarf-registry: Secret zarf/zarf-registry-state: ") {
				t.Errorf("%s with %s: %v", json, sets, err)
			}
		}
		// The hook must reject them too: the chart must not be stricter.
		if _, err := state.Decode([]byte(json)); err == nil {
			t.Errorf("the hook accepts %s", json)
		}
	}
	without := stateSecret("")
	without.Data = nil
	if _, err := (rendering{cluster: newCluster(kubernetes(corev1.IPv4Protocol), without)}).try(t); err == nil ||
		!strings.Contains(err.Error(), "Secret zarf/zarf-registry-state: its key state.json") {
		t.Errorf("a Secret without data: %v", err)
	}
}

// The registry's pods, Services and policies are the same in both modes, whatever else is configured,
// so that a switch does not interrupt pulls.
func TestSwitchingModesDoesNotChangeTheRegistry(t *testing.T) {
	t.Parallel()
	lasting := func(out *output) string {
		var texts []string
		for _, name := range []string{
			"registry/deployment", "registry/service", "registry/serviceaccount", "registry/configmap", "registry/networkpolicy",
			"registry/persistentvolumeclaim", "proxy/serviceaccount", "proxy/networkpolicy", "init-hook/networkpolicy",
			"certificates/networkpolicy", "certificates/role", "certificates/serviceaccount",
		} {
			texts = append(texts, out.files[name+".yaml"])
		}
		// Only proxies have a CA that nodes may have to trust, and ports of the nodes, which an annotation names.
		all := strings.Join(texts, "---\n")
		all = regexp.MustCompile(`(?m)(^  annotations:\n)?^    zarf-registry/node-ports: .*\n`).ReplaceAllString(all, "")
		for _, rule := range []string{
			"[\"\"]\n    resources: [pods]\n    verbs: [delete]\n", "[apps]\n    resources: [daemonsets]\n    verbs: [list]\n",
		} {
			all = strings.Replace(all, "  - apiGroups: "+rule, "", 1)
		}
		// Only proxies use caches, which have a certificate.
		return regexp.MustCompile(`(?m)^ +- \S+-cache(-tls|-issued)?\n`).ReplaceAllString(all, "")
	}
	clusters, compared := clusters(), 0
	delete(clusters, "no cluster") // the modes are switched in clusters; others are similar to one below
	delete(clusters, "a new cluster")
	delete(clusters, "a dual-stack cluster")
	for _, before := range matrix(t) {
		cluster, here := clusters[before.cluster]
		if !here {
			continue
		}
		other, ok := map[string]string{"proxy": "false", "nodeport": "true"}[decidedMode(before.output)]
		// Mirrors, the proxies' CA, and Zarf's registry are not available in nodeport mode.
		if !ok || strings.HasPrefix(before.file, "node-config") || before.file == "zarf" {
			continue
		}
		compared++
		after := rendering{values: with(t, ciValues(t)[before.file], "registryProxy="+other), cluster: cluster()}.render(t)
		if diff := cmp.Diff(lasting(before.output), lasting(after)); diff != "" {
			t.Errorf("%s:\n%s", before.name, diff)
		}
	}
	if compared < 50 {
		t.Fatalf("only %d renderings were compared", compared)
	}
}

// Invalid values for proxies do not matter in other modes. Where they do, refusals.golden has them.
func TestProxyValuesAreValidatedInProxyModeOnly(t *testing.T) {
	t.Parallel()
	for _, sets := range [][]string{
		{"ipFamily=IPv6", "proxy.hostNetwork=false"},
		{"proxy.hostNetwork=true", "proxy.metricsPort=31999"},
		{"proxy.metricsPort=5000"},
		{"proxy.updateStrategy.maxUnavailable=0"}, {"proxy.updateStrategy.maxSurge=0"},
	} {
		for _, mode := range []string{"registryProxy=false", "registryURL=registry.example.com"} {
			rendering{values: with(t, nil, append(sets, mode)...)}.render(t)
		}
	}
	for _, set := range []string{"registry.replicas=2", "registry.storage.type=s3", "initHook.image.tag=1..2"} {
		rendering{values: with(t, nil, set, "registryURL=registry.example.com")}.render(t)
	}
}

func TestJobsUseThePushedImageIfNoNodeHasTheConfiguredOne(t *testing.T) {
	t.Parallel()
	const pushed = "127.0.0.1:31999/zarf-registry/init-hook:0.1.0"
	knows := func(mode state.Mode, edits ...func(*state.State)) runtime.Object {
		with := func(s *state.State) { s.HookImage = pushedHookImage }
		return remembers(ready(settings(mode, state.IPv4), append([]func(*state.State){with}, edits...)...))
	}
	unverified := func(s *state.State) { s.Phase, s.Current = state.PhasePrepared, nil }
	interrupted := func(s *state.State) {
		s.Phase, s.Desired = state.PhasePrepared, settings(state.ModeProxy, state.IPv4)
	}
	a, b, c := node("a", "amd64"), node("b", "amd64", "docker.io/library/app:1"), node("c", "amd64", pushed)
	proxy, nodePort := knows(state.ModeProxy), knows(state.ModeNodePort)
	inSituations(t, "pushed-image", map[string]situation{
		"proxy mode":                                      {objects: objects{a, b, proxy}},
		"nodeport mode":                                   {objects: objects{a, b, nodePort}},
		"a switch between modes":                          {objects: objects{a, b, nodePort}, values: []string{"registryProxy=true"}},
		"an interrupted switch":                           {objects: objects{a, b, knows(state.ModeNodePort, interrupted)}},
		"only some nodes have a proxy":                    {objects: objects{a, b, proxy}, values: []string{"proxy.nodeSelector={role: worker}"}},
		"nodes with the pushed image are preferred":       {objects: objects{a, c, proxy}},
		"never verified, but a node has the pushed image": {objects: objects{a, c, knows(state.ModeProxy, unverified)}},
		"pushed and not yet verified":                     {objects: objects{a, knows(state.ModeProxy, unverified)}},
		"a node has the configured image":                 {objects: objects{a, node("d", "amd64", hookImage), c, proxy}},
		"no image was pushed":                             {objects: objects{a, remembers(ready(settings(state.ModeProxy, state.IPv4)))}},
		"another version":                                 {objects: objects{a, c, proxy}, values: []string{"initHook.image.tag=0.2.0"}},
		"a digest": {objects: objects{a, proxy},
			values: []string{"initHook.image.digest=sha256:" + strings.Repeat("a", 64)}},
		"pulls are disabled":                         {objects: objects{a, proxy}, values: []string{"image.pullPolicy=Never"}},
		"the address changes during the upgrade":     {objects: objects{a, proxy}, values: []string{"port=32000"}},
		"the registry is removed during the upgrade": {objects: objects{a, proxy}, values: []string{"registryURL=registry.example.com"}},
		"a node selector":                            {objects: objects{a, proxy}, values: []string{"initHook.nodeSelector={disk: fast}"}},
	}, hookPods, "registryProxy=null", "imagePullSecrets=[{name: mine}]")
}
