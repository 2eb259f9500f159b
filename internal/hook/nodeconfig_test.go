package hook_test

import (
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

func TestPreflightChecksNodeConfiguration(t *testing.T) {
	t.Parallel()
	const k3sDirectory = "/etc/rancher/k3s"
	k3s := func(b *bench, registries string) {
		config := noderuntime.Config{Release: "zarf/zarf-registry", Directories: []string{k3sDirectory},
			K3s: noderuntime.K3s{File: k3sDirectory + "/registries.yaml"}}
		if registries == "" {
			config.K3s.ExistingSecret, config.K3s.ExistingSecretKey = "corp-registries", "registries.yaml"
			b.hook.Settings.NodeConfig.RegistriesSecret, b.hook.Settings.NodeConfig.RegistriesKey = "corp-registries",
				"registries.yaml"
		}
		b.hook.Settings.NodeConfig.Directories = config.Directories
		b.hook.NodeConfigData = configData(b, config)
		if registries != "" {
			b.hook.NodeConfigData["registries.yaml"] = []byte(registries)
		}
	}
	corp := func(key, content string) func(*bench) {
		return func(b *bench) {
			k3s(b, "")
			b.add(&corev1.Secret{ObjectMeta: foreignMeta("corp-registries"), Data: map[string][]byte{key: []byte(content)}})
		}
	}
	recorded := savedWith(t, func(s *state.State) {
		s.NodeConfig = &state.NodeConfig{Directories: []string{k3sDirectory}}
	})
	agentsOnly := func(b *bench) {
		b.configureNodes(false)
		o := &b.hook.Settings.NodeConfig
		o.Directories, o.AgentsOnly = append(o.Directories, k3sDirectory), true
	}
	const good, bad = "mirrors: {docker.io: {endpoint: [\"https://a.example\"]}}\n",
		"configs: {a.example: {auth: [hunter2, hunter2]}}\n"
	findings(t, "nodeconfig", map[string]situation{
		"valid":                                        {arrange: func(b *bench) { b.configureNodes(true) }},
		"registries.yaml in the values":                {arrange: func(b *bench) { k3s(b, good) }},
		"registries.yaml in the user's Secret":         {arrange: corp("registries.yaml", good)},
		"invalid registries.yaml in the values":        {arrange: func(b *bench) { k3s(b, bad) }},
		"invalid registries.yaml in the user's Secret": {arrange: corp("registries.yaml", bad)},
		"missing Secret of the user":                   {arrange: func(b *bench) { k3s(b, "") }},
		"missing key in the user's Secret":             {arrange: corp("other.yaml", good)},
		"a configuration of another release": {arrange: func(b *bench) {
			b.configureNodes(false)
			b.hook.NodeConfigData["config.json"] = []byte(`{"colour":1}`)
		}},
		"missing Secret of the chart": {arrange: func(b *bench) { b.configureNodes(false); b.hook.NodeConfigData = nil }},
		"Secret of the chart": {arrange: func(b *bench) {
			b.configureNodes(false)
			b.add(&corev1.Secret{ObjectMeta: foreignMeta("zarf-registry-node-config-proposal"), Data: b.hook.NodeConfigData})
			b.hook.NodeConfigData = nil
		}},
		"external mode": {arrange: func(b *bench) { k3s(b, bad); b.mode(state.ModeExternal) }},

		// Pods must not write to the directory of a server's kubeconfig.
		"a server and an agent":            {objects: objects{node("n1", server), node("n2")}, arrange: agentsOnly},
		"a server only":                    {objects: objects{node("n1", server)}, arrange: agentsOnly},
		"a server only, configured before": {objects: objects{node("n1", server), recorded}, arrange: agentsOnly},
		"a server that is configured": {objects: objects{node("n1", server)}, arrange: func(b *bench) {
			agentsOnly(b)
			b.hook.Settings.NodeConfig.AgentsOnly = false
		}},
		"no server": {objects: objects{node("n1"), node("n2")}, arrange: agentsOnly},
	})
}

func TestPreflightNamesMissingPermissionForNodeConfiguration(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.configureNodes(false)
	b.hook.NodeConfigData = nil
	b.client.PrependReactor("get", "secrets", func(a kubetesting.Action) (bool, runtime.Object, error) {
		if strings.HasSuffix(a.(kubetesting.GetAction).GetName(), "-proposal") {
			return true, nil, forbiddenBy("get", "secrets")
		}
		return false, nil, nil
	})
	_, err := b.hook.Preflight(t.Context())
	b.mustFail(err, true, "reading Secret zarf/zarf-registry-node-config-proposal", `cannot get resource "secrets"`)
}

func TestDirectoriesForgottenByABlindRenderingStayRecorded(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]state.Mode{"in proxy mode": state.ModeProxy,
		"in external mode": state.ModeExternal} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, node("n1"), savedWith(t, func(s *state.State) {
				s.NodeConfig = &state.NodeConfig{Directories: []string{certsD, "/etc/rancher/k3s"}}
				if mode == state.ModeExternal {
					s.Desired = state.Settings{Mode: mode, Address: registryURL, IPFamily: state.IPv4, DecidedBy: state.SourceValue}
					s.Current = &s.Desired
				}
			}))
			b.mode(mode)
			b.mustPrepare()
			b.mustRecord([]string{certsD, "/etc/rancher/k3s"})
			b.hook.Settings.NodeConfig.Directories = []string{certsD, "/etc/rancher/k3s"}
			b.hook.NodeConfigData = configData(b, noderuntime.Config{Release: "zarf/zarf-registry",
				Directories: b.hook.Settings.NodeConfig.Directories})
			b.mustFindNothing()
		})
	}
}

func server(n *corev1.Node) {
	n.Labels = map[string]string{"node-role.kubernetes.io/control-plane": "true"}
}

// Control-plane nodes may have files of a version that configured them too, which helm uninstall
// restores.
func TestDirectoriesStayRecordedWhileControlPlaneNodesAreLeftOut(t *testing.T) {
	t.Parallel()
	for _, agentsOnly := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, node("n1"), node("n2", server), savedWith(t, func(s *state.State) {
				s.NodeConfig = &state.NodeConfig{Directories: []string{"/etc/rancher/k3s"}}
			}))
			b.configureNodes(false)
			o := &b.hook.Settings.NodeConfig
			o.Directories, o.AgentsOnly = append(o.Directories, "/etc/rancher/k3s"), agentsOnly
			b.mustPrepare()
			b.helmNodes([]string{"n1"})
			b.helm()
			b.mustFinish()
			want := []string{certsD}
			if agentsOnly {
				want = append(want, "/etc/rancher/k3s")
			}
			b.mustRecord(want)
		})
	}
}

func TestPrepareSavesAllDirectoriesThatPodsMayWriteTo(t *testing.T) {
	t.Parallel()
	for _, mode := range allModes {
		t.Run(string(mode), func(t *testing.T) {
			b := newBench(t, node("n1"), node("n2"), savedWith(t, func(s *state.State) {
				s.NodeConfig = &state.NodeConfig{Directories: []string{"/etc/rancher/k3s"}}
			}))
			b.configureNodes(false)
			b.mode(mode)
			b.mustPrepare()
			b.mustRecord([]string{certsD, "/etc/rancher/k3s"})
			programs := map[string]bool{}
			cms, _ := b.client.CoreV1().ConfigMaps("zarf").List(t.Context(), metav1.ListOptions{})
			for _, cm := range cms.Items {
				programs[cm.Name[:strings.LastIndex(cm.Name, "-amd64")]] = true
			}
			want := 2
			if mode == state.ModeExternal {
				want = 1
			}
			if !programs["zarf-registry-payload-registry-node"] || len(programs) != want {
				t.Errorf("the payload is %v", programs)
			}
		})
	}
}

func TestPreflightDryRunsNodeConfigPods(t *testing.T) {
	simulate(t, func(t *testing.T) {
		for _, mode := range []state.Mode{state.ModeNodePort, state.ModeExternal} {
			b := newBench(t, node("n1"), node("n2"), namespace("baseline"))
			b.configureNodes(false)
			b.mode(mode)
			b.admit = podSecurityAt(b)
			b.mustFail(b.hook.Prepare(t.Context()), true,
				"pod-security: namespace zarf: Pod Security rejects the pods of the node config: ", "hostPath volumes",
				"enforce=privileged")
			b.hook.Settings.Preflight.LabelNamespace = true
			b.mustPrepare()
			if b.level() != "privileged" {
				t.Errorf("in %s mode, the level is %s", mode, b.level())
			}
		}
	})
}

func TestMissingNodeProgramIsABlockerInExternalMode(t *testing.T) {
	t.Parallel()
	b := newBench(t, node("n1", architecture("arm64")))
	b.configureNodes(false)
	b.mode(state.ModeExternal)
	b.mustFail(b.hook.Prepare(t.Context()), true, "program registry-node for arm64")
}
