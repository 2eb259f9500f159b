package hook_test

import (
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
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
	const good, bad = "mirrors: {docker.io: {endpoint: [\"https://a.example\"]}}\n",
		"configs: {a.example: {auth: [mallory, hunter2]}}\n"
	for name, c := range map[string]struct {
		arrange func(*bench)
		want    []string // of one blocker; nil: no finding
	}{
		"valid":                                {func(b *bench) { b.configureNodes(true) }, nil},
		"registries.yaml in the values":        {func(b *bench) { k3s(b, good) }, nil},
		"registries.yaml in the user's Secret": {corp("registries.yaml", good), nil},
		"invalid registries.yaml in the values": {func(b *bench) { k3s(b, bad) },
			[]string{"K3s cannot read it (line 1)", "nothing was written on any node"}},
		"invalid registries.yaml in the user's Secret": {corp("registries.yaml", bad), []string{"K3s cannot read it (line 1)"}},
		"missing Secret of the user": {func(b *bench) { k3s(b, "") },
			[]string{"nodeConfig: Secret zarf/corp-registries: it does not exist", "nodeConfig.k3s.existingSecret"}},
		"missing key in the user's Secret": {corp("other.yaml", good),
			[]string{"Secret zarf/corp-registries: it has no key registries.yaml", "nodeConfig.k3s.existingSecretKey"}},
		"a configuration of another release": {func(b *bench) {
			b.configureNodes(false)
			b.hook.NodeConfigData["config.json"] = []byte(`{"colour":1}`)
		}, []string{"Secret zarf/zarf-registry-node-config: its key config.json cannot be used", "own release"}},
		"missing Secret of the chart": {func(b *bench) { b.configureNodes(false); b.hook.NodeConfigData = nil },
			[]string{"Secret zarf/zarf-registry-node-config-proposal: it does not exist", "helm upgrade"}},
		"Secret of the chart": {func(b *bench) {
			b.configureNodes(false)
			b.add(&corev1.Secret{ObjectMeta: foreignMeta("zarf-registry-node-config-proposal"), Data: b.hook.NodeConfigData})
			b.hook.NodeConfigData = nil
		}, nil},
		"external mode": {func(b *bench) { k3s(b, bad); b.mode(state.ModeExternal) }, []string{"K3s cannot read it (line 1)"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			c.arrange(b)
			if len(c.want) == 0 {
				b.mustFindNothing()
				b.mustPrepare()
				return
			}
			found := b.mustFind("nodeConfig", preflight.Blocker)
			b.mustFail(b.hook.Prepare(t.Context()), true, append(c.want, "nothing was changed")...)
			b.mustNotWrite()
			if said := b.log.String() + found.String(); strings.Contains(said, "hunter2") ||
				strings.Contains(said, "mallory") {
				t.Errorf("the message contains data of a Secret: %s", said)
			}
		})
	}
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

func TestPreflightRefusesToLeaveOutAllNodes(t *testing.T) {
	t.Parallel()
	recorded := savedWith(t, func(s *state.State) {
		s.NodeConfig = &state.NodeConfig{Directories: []string{"/etc/rancher/k3s"}}
	})
	for name, c := range map[string]struct {
		objects    []runtime.Object
		agentsOnly bool
		found      bool
	}{
		"a server and an agent":            {[]runtime.Object{node("n1", server), node("n2")}, true, false},
		"a server only":                    {[]runtime.Object{node("n1", server)}, true, true},
		"a server only, configured before": {[]runtime.Object{node("n1", server), recorded}, true, false},
		"a server that is configured":      {[]runtime.Object{node("n1", server)}, false, false},
		"no server":                        {[]runtime.Object{node("n1"), node("n2")}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.objects...)
			b.configureNodes(false)
			o := &b.hook.Settings.NodeConfig
			o.Directories, o.AgentsOnly = append(o.Directories, "/etc/rancher/k3s"), c.agentsOnly
			if !c.found {
				b.mustFindNothing()
				return
			}
			b.mustFind("nodeConfig", preflight.Blocker, "nodeConfig: node n1: ", "nodeConfig.k3s.controlPlane=true")
		})
	}
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

func TestNoCRIOFindingWithMatchingNodeConfiguration(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tls      bool
		severity preflight.Severity
		remedy   string
		change   func(*bench)
	}{
		"CA on nodes": {true, preflight.Warning, "--set nodeConfig.crio.ca=true",
			func(b *bench) { b.configureNodes(true) }},
		"insecure registry on nodes": {false, preflight.Blocker, "--set proxy.tls=always", func(b *bench) {
			config := noderuntime.Config{Release: "zarf/zarf-registry", Address: "127.0.0.1:31999",
				Directories: []string{"/etc/containers/registries.conf.d"}}
			config.CRIO.ConfDirectory, config.CRIO.Insecure = "/etc/containers/registries.conf.d", true
			b.hook.Settings.NodeConfig.Directories, b.hook.NodeConfigData = config.Directories, configData(b, config)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, node("n1", runtimeVersion("cri-o://1.35.0")))
			b.hook.Settings.Proxy.HostNetwork = true
			b.hook.Settings.PKI.ServeTLS = c.tls
			b.mustFind("cri-o", c.severity, c.remedy)
			c.change(b)
			b.mustFindNothing()
		})
	}
}

func TestMissingNodeProgramIsABlockerInExternalMode(t *testing.T) {
	t.Parallel()
	b := newBench(t, node("n1", architecture("arm64")))
	b.configureNodes(false)
	b.mode(state.ModeExternal)
	b.mustFail(b.hook.Prepare(t.Context()), true, "program registry-node for arm64")
}
