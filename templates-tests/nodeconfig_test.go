package templates

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rancher/wharfie/pkg/registries"
	"gopkg.in/yaml.v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/nodeimages"
	jobsettings "github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	containerdCerts = "/etc/containerd/certs.d"
	// listedCerts is what containerd's transfer service makes of the default config_path since 2.2.
	listedCerts = "/etc/containerd/certs.d:/etc/docker/certs.d"
	k3sCerts    = "/var/lib/rancher/k3s/agent/etc/containerd/certs.d"
	rke2Certs   = "/var/lib/rancher/rke2/agent/etc/containerd/certs.d"
	crioCerts   = "/etc/containers/certs.d"
	crioConf    = "/etc/containers/registries.conf.d"
)

// nodeConfig returns the configuration for the pods that write node files, the zero value if there is
// none.
func nodeConfig(t testing.TB, out *output) noderuntime.Config {
	t.Helper()
	var config noderuntime.Config
	for _, s := range all[*corev1.Secret](out) {
		if !strings.HasSuffix(s.Name, "-node-config") {
			continue
		}
		decoder := json.NewDecoder(strings.NewReader(string(s.Data[noderuntime.KeyConfig])))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(&config), s.Name)
	}
	return config
}

// runs sets the container runtime and the kubelet version of a node.
func runs(n *corev1.Node, runtimeVersion, kubeletVersion string) *corev1.Node {
	n.Status.NodeInfo.ContainerRuntimeVersion, n.Status.NodeInfo.KubeletVersion = runtimeVersion, kubeletVersion
	return n
}

func k3sNode(name string) *corev1.Node {
	return runs(node(name, "amd64"), "containerd://2.1.4-k3s1", "v1.34.1+k3s1")
}

func rke2Node(name string) *corev1.Node {
	return runs(node(name, "amd64"), "containerd://2.1.4-k3s1", "v1.34.1+rke2r1")
}

func crioNode(name, version string) *corev1.Node {
	return runs(node(name, "amd64"), "cri-o://"+version, "v1.35.0")
}

// leftFiles records directories in the state in which nodes may have files.
func leftFiles(mode state.Mode, directories ...string) runtime.Object {
	return remembers(
		ready(
			settings(mode, state.IPv4), func(s *state.State) { s.NodeConfig = &state.NodeConfig{Directories: directories} },
		),
	)
}

func TestNodeConfiguration(t *testing.T) {
	t.Parallel()
	const registries = "nodeConfig.k3s.registries={mirrors: {docker.io: {endpoint: [https://a.example]}}}"
	golden := golden.Open(t, "nodeconfig")
	for name, test := range map[string]struct {
		values  []string
		objects []runtime.Object // nil means no cluster
	}{
		"nothing is configured": {nil, nil},
		"nothing is configured for any node": {nil,
			[]runtime.Object{k3sNode("a"), node("b", "amd64"), crioNode("c", "1.34.2")}},
		"options without configuration": {[]string{
			"nodeConfig.force=true", "nodeConfig.tlsDirectories=[/etc/ssl]", "nodeConfig.runtimes=[k3s]",
			"nodeConfig.k3s.path=/etc/rancher/x.yaml"}, nil},
		"mirrors with unknown runtimes": {[]string{"nodeConfig.mirrors=[docker.io]"}, nil},
		"mirrors with containerd": {[]string{"nodeConfig.mirrors=[docker.io, '*', '!quay.io']"},
			[]runtime.Object{node("a", "amd64")}},
		"mirrors with K3s":   {[]string{"nodeConfig.mirrors=[docker.io]"}, []runtime.Object{k3sNode("a")}},
		"mirrors with RKE2":  {[]string{"nodeConfig.mirrors=[docker.io]"}, []runtime.Object{rke2Node("a")}},
		"mirrors with CRI-O": {[]string{"nodeConfig.mirrors=[docker.io]"}, []runtime.Object{crioNode("a", "1.34.1")}},
		"mirrors with several runtimes": {[]string{"nodeConfig.mirrors=[docker.io]"},
			[]runtime.Object{crioNode("a", "1.35.0"), node("b", "arm64")}},
		"runtimes of the values override those of the nodes": {[]string{"nodeConfig.mirrors=[docker.io]", "nodeConfig.runtimes=[rke2]"},
			[]runtime.Object{k3sNode("a"), crioNode("b", "1.35.0")}},
		"a path for containerd": {[]string{"nodeConfig.mirrors=[docker.io]", "nodeConfig.containerd.path=/var/snap/microk8s/current/args/certs.d/"},
			nil},
		"hosts for containerd with certificates": {[]string{`nodeConfig.containerd.hosts={a.example: "[host.'https://b.example']\n  ca = ['/etc/pki/a/ca.pem', \"/opt/b/ca.pem\"]\n  client = [[\"/opt/b/tls/c.crt\", \"/opt/b/tls/c.key\"]]\n  header = {a = '/root/secret/value'}\n"}`},
			nil},
		"K3s' registries":                               {[]string{registries}, []runtime.Object{k3sNode("a")}},
		"K3s' registries without a cluster":             {[]string{registries}, nil},
		"K3s' registries and mirrors without a cluster": {[]string{registries, "nodeConfig.mirrors=[ghcr.io]"}, nil},
		"RKE2's registries":                             {[]string{registries}, []runtime.Object{rke2Node("a")}},
		"K3s' registries at another path": {[]string{registries, "nodeConfig.k3s.path=/etc/rancher/other/private.yaml"},
			nil},
		"a Secret with K3s' registries": {[]string{"nodeConfig.k3s.existingSecret=mine"}, nil},
		"force, and directories with certificates": {[]string{
			registries, "nodeConfig.force=true",
			"nodeConfig.tlsDirectories=[/opt/c/, /etc/rancher/k3s/tls, /opt/c/d, /opt/cd]"}, nil},
		"CRI-O 1.35":                  {nil, []runtime.Object{crioNode("a", "1.35.0")}},
		"CRI-O 1.35 among others":     {nil, []runtime.Object{k3sNode("b"), crioNode("a", "1.36.1")}},
		"CRI-O 1.35 in plain HTTP":    {[]string{"proxy.tls=never"}, []runtime.Object{crioNode("a", "1.35.0")}},
		"CRI-O 1.35 with a node port": {[]string{"registryProxy=false"}, []runtime.Object{crioNode("a", "1.35.0")}},
		"CRI-O 1.35 with an external registry": {[]string{"registryProxy=null", "registryURL=registry.example.com"},
			[]runtime.Object{crioNode("a", "1.35.0")}},
		"CRI-O 1.35, disabled": {[]string{"nodeConfig.crio.ca=false"}, []runtime.Object{crioNode("a", "1.35.0")}},
		"CRI-O of the values":  {[]string{"proxy.tls=always", "nodeConfig.runtimes=[crio]"}, nil},
		"CRI-O 1.34, enabled": {[]string{"proxy.tls=always", "nodeConfig.crio.ca=true"},
			[]runtime.Object{crioNode("a", "1.34.0")}},
		"plain HTTP for CRI-O":                  {[]string{"nodeConfig.crio.insecure=true"}, nil},
		"plain HTTP for CRI-O with a node port": {[]string{"registryProxy=false", "nodeConfig.crio.insecure=true"}, nil},
		"mirrors with an anonymous node port":   {[]string{"registryProxy=false", "auth.anonymousPull=true", "nodeConfig.mirrors=[docker.io]"}, nil},
		"mirrors on IPv6":                       {[]string{"ipFamily=IPv6", "port=32000", "nodeConfig.mirrors=[docker.io]"}, nil},
		"recorded directories": {nil,
			[]runtime.Object{node("a", "amd64"), leftFiles(state.ModeProxy, containerdCerts, listedCerts, "/etc/rancher/k3s")}},
		"recorded directories in nodeport mode": {[]string{"registryProxy=null"},
			[]runtime.Object{leftFiles(state.ModeNodePort, containerdCerts)}},
		"recorded directories that are still configured": {[]string{"nodeConfig.mirrors=[docker.io]"},
			[]runtime.Object{node("a", "amd64"), leftFiles(state.ModeProxy, containerdCerts, crioConf)}},
		"directories of the values": {[]string{"nodeConfig.directories=[/etc/crio/x/, /etc/k0s]"}, nil},
		"both": {[]string{"nodeConfig.directories=[/etc/k0s]"},
			[]runtime.Object{leftFiles(state.ModeProxy, containerdCerts)}},
		"an empty list disables the lookup": {[]string{"nodeConfig.directories=[]"},
			[]runtime.Object{leftFiles(state.ModeProxy, containerdCerts)}},
	} {
		t.Run(name, func(t *testing.T) {
			out := situation{objects: test.objects, values: test.values}.rendering(t).render(t)
			golden.Check(t, name, mustYAML(t, nodeConfig(t, out))+mustYAML(t, decided(out).NodeConfig))
		})
	}
}

func TestRegistriesYAMLIsUnchanged(t *testing.T) {
	t.Parallel()
	const text = "# of ours\nmirrors:\n  docker.io: # first\n    endpoint: ['https://a.example']\n\n"
	for name, test := range map[string]struct{ value, want string }{
		"a string":                   {mustYAML(t, text), text},
		"a string that is not YAML":  {mustYAML(t, "configs: ["), "configs: ["},
		"a string that is not a map": {mustYAML(t, "- configs"), "- configs"},
		"a map": {
			"{configs: {'*': {tls: {insecure_skip_verify: true}}, docker.io: {}}}",
			"configs:\n  '*':\n    tls:\n      insecure_skip_verify: true\n  docker.io: {}\n",
		},
		"a map with wrong types": {"{configs: [a], mirrors: 1}", "configs:\n- a\nmirrors: 1\n"},
		"configs of wrong types": {
			"{configs: {a: b, c: {tls: d}, e: {tls: {ca_file: [f], key_file: ~}}}}",
			"configs:\n  a: b\n  c:\n    tls: d\n  e:\n    tls:\n      ca_file:\n      - f\n      key_file: null\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := rendering{values: proxyMode(t, "nodeConfig.k3s.registries="+test.value)}.render(t)
			for _, name := range []string{"zarf-registry-node-config", "zarf-registry-node-config-proposal"} {
				if got := string(find[*corev1.Secret](t, out, name).Data[noderuntime.KeyRegistries]); got != test.want {
					t.Errorf("%s: %q, want %q", name, got, test.want)
				}
			}
		})
	}
	out := rendering{
		values: proxyMode(t, "nodeConfig.k3s.existingSecret=mine", "nodeConfig.k3s.existingSecretKey=k"),
	}.render(t)
	if data := find[*corev1.Secret](t, out, "zarf-registry-node-config").Data; len(data) != 2 {
		t.Errorf("with an existing Secret: %d keys", len(data))
	}
}

// Helm decodes 0123 as 83 and 12345678901234567890 as 1.2345678901234567e+19, which nodes would then
// use as passwords.
func TestRejectsUnquotedRegistriesText(t *testing.T) {
	t.Parallel()
	const end = ": must be a string, but Helm parsed a number or boolean; put " +
		"it in quotes, or use --set-string"
	for value, want := range map[string]string{
		"{configs: {a.b: {auth: {password: 0123}}}}":                 `configs."a.b".auth.password`,
		"{configs: {a.b: {auth: {password: 12345678901234567890}}}}": `configs."a.b".auth.password`,
		"{configs: {a.b: {auth: {username: 83.0}}}}":                 `configs."a.b".auth.username`,
		"{configs: {'*': {auth: {auth: yes}}}}":                      `configs."*".auth.auth`,
		"{configs: {'[::1]:83': {auth: {identity_token: " +
			"83}}}}": `configs."[::1]:83".auth.identity_token`,
		"{configs: {a: {auth: {token: 83}}}}":                `configs."a".auth.token`,
		"{configs: {a: {tls: {ca_file: 83}}}}":               `configs."a".tls.ca_file`,
		"{configs: {a: {tls: {cert_file: no}}}}":             `configs."a".tls.cert_file`,
		"{configs: {a: {tls: {key_file: [83]}}}}":            `configs."a".tls.key_file`,
		"{mirrors: {a: {endpoint: [b, 83]}}}":                `mirrors."a".endpoint`,
		"{mirrors: {a: {rewrite: {b: 83}}}}":                 `mirrors."a".rewrite`,
		"{auths: {a: {password: 83}}}":                       `auths."a".password`,
		"{configs: {'user:8383@a': {auth: {password: 83}}}}": `configs.<REDACTED>.auth.password`,
		"{configs: {a: {auth: {password: 83}}, b: {auth: {username: 84, password: " +
			"85}}}}": `configs."a".auth.password, nodeConfig.k3s.registries.configs."b".auth.password, nodeConfig.k3s.registries.configs."b".auth.username`,
	} {
		_, err := rendering{values: proxyMode(t, "nodeConfig.k3s.registries="+value)}.try(t)
		if err == nil || !strings.HasSuffix(err.Error(), "zarf-registry: nodeConfig.k3s.registries."+want+end) {
			t.Errorf("%s: %v", value, err)
		} else if strings.Contains(err.Error(), "83") != strings.Contains(value, ":83'") {
			t.Errorf("%s: the error contains the value: %v", value, err)
		}
	}
	// A string is passed unchanged to K3s' own parser.
	texts := []string{
		"0123", "83", "1e3", "1.50", "yes", "null", "~", "2001-01-02", "0x1F", "1_000", "=", "<<", "a: b", "#a", "'", `"`,
		"\\", " a ", "a\n", "\na", "a\r\nb\r\n", "a\tb", "\t", "\u2028", "\ufeff", "\u00e9",
		"\U0001F511", "%a", "@a", "`a", "{a}", "[a]", "*a", "&a", "!a", "|", ">", "- a", "? a", "---", "...",
		strings.Repeat("a long word ", 40), strings.Repeat("a", 500) + " " + strings.Repeat("b", 500), "<&>", "",
	}
	configs := map[string]any{}
	for i, text := range texts {
		configs[fmt.Sprintf("%d.example", i)] = map[string]any{"auth": map[string]any{"username": "u", "password": text}}
	}
	values := proxyMode(t)
	values["nodeConfig"] = map[string]any{"k3s": map[string]any{"registries": map[string]any{"configs": configs}}}
	data := find[*corev1.Secret](
		t, rendering{values: values}.render(t), "zarf-registry-node-config",
	).Data[noderuntime.KeyRegistries]
	var got registries.Registry
	if !bytes.HasSuffix(data, []byte("\n")) {
		t.Error("the document does not end with a newline, which a final block scalar needs")
	}
	require.NoError(t, yaml.Unmarshal(data, &got))
	for i, text := range texts {
		if got := got.Configs[fmt.Sprintf("%d.example", i)].Auth; got == nil || got.Password != text {
			t.Errorf("%q became %+v", text, got)
		}
	}
}

func TestReferencedCertificateDirectoriesAreMounted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tls  string
		want []string
	}{
		"a file": {"{ca_file: /etc/ssl/corporate/ca.pem}", []string{"/etc/ssl/corporate"}},
		"three files": {
			"{ca_file: /a/ca.pem, cert_file: /c/tls.crt, key_file: /b/tls.key}", []string{"/a", "/b", "/c"},
		},
		"a directory in another": {
			"{ca_file: /a/ca.pem, cert_file: /a/b/tls.crt, key_file: /ab/tls.key}", []string{"/a", "/ab"},
		},
		"a directory that is written to": {
			"{ca_file: /etc/rancher/k3s/ca.pem, cert_file: /etc/rancher/k3s/tls/tls.crt}", nil,
		},
		"at the root":                   {"{ca_file: /ca.pem}", nil},
		"not absolute":                  {"{ca_file: etc/ca.pem, cert_file: ''}", nil},
		"a path with ..":                {"{ca_file: /etc/ssl/../passwd/ca.pem, cert_file: /etc/./ca.pem}", nil},
		"a path that cannot be mounted": {"{ca_file: '/a:b/ca.pem', cert_file: \"/a\\nb/c\"}", nil},
		"not a path":                    {"{ca_file: [/a/b], cert_file: {a: b}, key_file: ''}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			out := rendering{values: proxyMode(t, "nodeConfig.k3s.registries={configs: {a: {tls: "+test.tls+"}}}")}.render(t)
			if diff := cmp.Diff(test.want, nodeConfig(t, out).TLSDirectories); diff != "" {
				t.Error(diff)
			}
			text := mustYAML(t, "configs: {a: {tls: "+test.tls+"}}")
			out = rendering{values: proxyMode(t, "nodeConfig.k3s.registries="+text)}.render(t)
			if diff := cmp.Diff(test.want, nodeConfig(t, out).TLSDirectories); diff != "" {
				t.Errorf("as a string: %s", diff)
			}
		})
	}
}

// nodePods reports violations by pods that write node files: they run as root, but without
// capabilities, and mount only the directories that they need.
func nodePods(out *output, wrong report) {
	var config noderuntime.Config
	for _, s := range configSecrets(out) {
		if err := json.Unmarshal(s.Data[noderuntime.KeyConfig], &config); err != nil {
			wrong("%s: %v", s.Name, err)
		}
	}
	for _, w := range workloads(out) {
		spec := w.pod.Spec
		if !w.ofNodes() {
			continue
		}
		say := func(format string, args ...any) {
			wrong("%s: %s", w.object, fmt.Sprintf(format, args...))
		}
		if spec.HostPID || spec.HostIPC || spec.HostNetwork || len(spec.InitContainers) != 1 || len(spec.Containers) != 1 {
			say("it shares a namespace of the node, or has other containers")
			continue
		}
		c := spec.SecurityContext
		if c == nil || !is(c.RunAsNonRoot, true) || !is(c.RunAsUser, 65535) || c.FSGroup != nil ||
			c.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			say("the pod's security context is %v", c)
		}
		for _, c := range containers(spec) {
			s := c.SecurityContext
			if s == nil || !is(s.AllowPrivilegeEscalation, false) || !is(s.Privileged, false) ||
				!is(s.ReadOnlyRootFilesystem, true) ||
				s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
				len(s.Capabilities.Add) > 0 ||
				s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || len(c.Ports) > 0 ||
				len(c.Env) > 0 || len(c.EnvFrom) > 0 {
				say("%s may more than it must", c.Name)
			}
		}
		configure, pause := spec.InitContainers[0], spec.Containers[0]
		if s := configure.SecurityContext; !is(s.RunAsUser, 0) || !is(s.RunAsNonRoot, false) || s.SELinuxOptions == nil ||
			s.SELinuxOptions.Type != "spc_t" {
			say("configure cannot write to a node: %v", s)
		}
		if s := pause.SecurityContext; !is(s.RunAsNonRoot, true) || s.RunAsUser != nil {
			say("pause is root's: %v", s)
		}
		if slices.Contains(configure.Args, "--restore") != (w.component() == "node-restore") {
			say("it is told %s", configure.Args)
		}

		volumes := map[string]corev1.Volume{}
		for _, v := range spec.Volumes {
			volumes[v.Name] = v
		}
		seen := map[string]bool{} // directory of the node → whether it is writable
		for _, m := range configure.VolumeMounts {
			v := volumes[m.Name]
			switch {
			case v.HostPath != nil:
				seen[v.HostPath.Path] = !m.ReadOnly
				if m.MountPath != "/host"+v.HostPath.Path || !is(v.HostPath.Type, corev1.HostPathDirectoryOrCreate) ||
					m.MountPropagation != nil {
					say("%s is mounted at %s", v.HostPath.Path, m.MountPath)
				}
			case m.ReadOnly != (m.Name != "program"):
				say("%s is writable: %t", m.Name, !m.ReadOnly)
			}
		}
		want := map[string]bool{}
		for _, directory := range config.TLSDirectories {
			want[directory] = false
		}
		for _, directory := range config.Directories {
			want[directory] = true
			if !strings.HasPrefix(directory, "/etc/") && !strings.HasPrefix(directory, "/var/") ||
				path.Clean(directory) != directory {
				say("it writes to %s", directory)
			}
		}
		if !maps.Equal(want, seen) || len(seen) == 0 {
			say("it sees %v of the node, which is to be %v", seen, want)
		}
		for _, m := range pause.VolumeMounts {
			if m.Name != "payload" && m.Name != "program" {
				say("pause has %s", m.Name)
			}
		}
		secrets := volumes["config"].Projected
		if secrets == nil || !is(secrets.DefaultMode, 0o400) ||
			secrets.Sources[0].Secret.Name != fullNameOf(out)+"-node-config" {
			say("its configuration comes from %v", secrets)
			continue
		}
		for _, source := range secrets.Sources[1:] {
			if s := source.Secret; s == nil || len(s.Items) != 1 ||
				s.Name != fullNameOf(out)+"-node-tls" && !is(s.Optional, true) {
				say("it gets %v", source)
			}
		}
	}
}

// configSecrets returns the Secrets with the configuration of the nodes.
func configSecrets(out *output) []*corev1.Secret {
	return ofComponent[*corev1.Secret](out, "node-config")
}

// nodeSets reports violations by the DaemonSets that write or restore node files.
func nodeSets(out *output, wrong report) {
	groups := map[string][]string{}
	var names []string
	for _, component := range []string{"node-config", "node-restore"} {
		for _, d := range daemonSets(out, component) {
			groups[component] = append(groups[component], d.Spec.Selector.MatchLabels["zarf-registry/nodes"])
			rolling := d.Spec.UpdateStrategy.RollingUpdate
			if rolling == nil || rolling.MaxUnavailable == nil || rolling.MaxSurge != nil {
				wrong("%s: wrong selector or update strategy", d.Name)
			}
			if (d.Annotations["helm.sh/hook"] == "pre-delete") != (component == "node-restore") {
				wrong("%s: hook %q", d.Name, d.Annotations["helm.sh/hook"])
			}
			if component == "node-config" {
				names = append(names, d.Name)
			}
		}
	}
	if !slices.Equal(groups["node-config"], groups["node-restore"]) {
		wrong("configured groups %s, restored groups %s", groups["node-config"], groups["node-restore"])
	}
	if sets := daemonSets(out, "proxy"); len(sets) > 0 && len(names) > 0 &&
		sets[0].Spec.Template.Spec.Containers[0].Command[0] == "/payload/loader" {
		var proxied []string
		for _, d := range sets {
			proxied = append(proxied, d.Spec.Selector.MatchLabels["zarf-registry/proxies"])
		}
		if !slices.Equal(proxied, groups["node-config"]) {
			wrong("groups with proxies %s, configured groups %s", proxied, groups["node-config"])
		}
	}
	if known := decided(out).NodeConfig.DaemonSets; !slices.Equal(names, known) {
		wrong("rendered %s, known to finish %s", names, known)
	}
	var data []map[string][]byte
	for _, s := range configSecrets(out) {
		data = append(data, s.Data)
	}
	if len(data) > 0 && (len(data) != 2 || !maps.EqualFunc(data[0], data[1], slices.Equal)) ||
		(len(data) > 0) != (len(names) > 0) {
		wrong("%d Secrets, or prepare does not check what is applied", len(data))
	}
}

// The main container never runs its image's own program: with the healer that image may change.
func TestNodeConfigPodsPauseAfterwards(t *testing.T) {
	t.Parallel()
	for _, sets := range [][]string{nil, {"healer.enabled=false"}, {"injector.enabled=false"}} {
		out := rendering{values: proxyMode(t, append(sets, "nodeConfig.mirrors=[docker.io]")...),
			cluster: newCluster(kubernetes(corev1.IPv4Protocol), node("a", "amd64", "registry.k8s.io/pause:3.10"))}.render(t)
		found := daemonSets(out, "node-config")
		for _, d := range found {
			c := d.Spec.Template.Spec.Containers[0]
			want := "/payload/loader"
			if sets != nil && sets[0] == "injector.enabled=false" {
				want = "/registry-node"
			}
			if c.Command[0] != want || !slices.Equal(c.Args, []string{"pause"}) {
				t.Errorf("%s: %s runs %s %s", sets, d.Name, c.Command, c.Args)
			}
		}
		if len(found) != 2 {
			t.Errorf("%s: %d DaemonSets", sets, len(found))
		}
		nodePods(out, reporter(t, sets...))
		nodeSets(out, reporter(t, sets...))
	}
}

// On K3s servers, /etc/rancher/k3s contains an administrator's kubeconfig.
//
// Claim (K3s' registries): Pods that configure nodes leave out K3s servers.
func TestControlPlaneNodesWithAKubeconfigAreLeftOut(t *testing.T) {
	t.Parallel()
	const registries = "nodeConfig.k3s.registries={mirrors: {}}"
	agents := []corev1.NodeSelectorRequirement{
		{Key: "node-role.kubernetes.io/control-plane", Operator: corev1.NodeSelectorOpDoesNotExist},
		{Key: "node-role.kubernetes.io/etcd", Operator: corev1.NodeSelectorOpDoesNotExist},
	}
	for name, test := range map[string]struct {
		values  []string
		objects []runtime.Object
		leftOut bool
	}{
		"K3s' registries":     {[]string{registries}, []runtime.Object{k3sNode("a")}, true},
		"RKE2's registries":   {[]string{registries}, []runtime.Object{rke2Node("a")}, true},
		"a Secret":            {[]string{"nodeConfig.k3s.existingSecret=mine"}, nil, true},
		"included":            {[]string{registries, "nodeConfig.k3s.controlPlane=true"}, nil, false},
		"a narrow directory":  {[]string{registries, "nodeConfig.k3s.path=/etc/rancher/k3s/private/registries.yaml"}, nil, false},
		"all of /etc/rancher": {[]string{registries, "nodeConfig.k3s.path=/etc/rancher/registries.yaml"}, nil, true},
		"keys to be read": {
			[]string{"nodeConfig.k3s.existingSecret=mine", "nodeConfig.k3s.path=/etc/rancher/k3s/private/registries.yaml",
				"nodeConfig.tlsDirectories=[/var/lib/rancher/k3s/server/tls]"}, nil, true,
		},
		"mirrors": {[]string{"nodeConfig.mirrors=[docker.io]"}, []runtime.Object{k3sNode("a")}, false},
		"a previous directory": {
			[]string{"nodeConfig.mirrors=[docker.io]"},
			[]runtime.Object{k3sNode("a"), leftFiles(state.ModeProxy, "/etc/rancher/k3s")}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := rendering{values: proxyMode(t, test.values...)}
			if test.objects != nil {
				r.cluster = newCluster(append(test.objects, kubernetes(corev1.IPv4Protocol))...)
			}
			out := r.render(t)
			if told := decided(out).NodeConfig.AgentsOnly; told != test.leftOut {
				t.Errorf("the Jobs are told %t", told)
			}
			for component, want := range map[string]bool{"node-config": test.leftOut, "node-restore": false} {
				for _, d := range daemonSets(out, component) {
					var terms []corev1.NodeSelectorTerm
					if a := d.Spec.Template.Spec.Affinity; a != nil {
						terms = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
					}
					if len(terms) == 0 {
						t.Errorf("%s runs on virtual nodes", d.Name)
					}
					for _, term := range terms {
						if leftOut := cmp.Equal(term.MatchExpressions, slices.Concat(virtual, agents)); leftOut != want ||
							!leftOut && !cmp.Equal(term.MatchExpressions, virtual) {
							t.Errorf("%s: leaves out control-plane nodes: %t: %v", d.Name, leftOut, term)
						}
					}
				}
			}
		})
	}
}

// Who may read pods must not be able to test guesses of passwords.
//
// Claim (registries.yaml, upgrade; registries.yaml, no cluster): Checksums in pods are salted, and cost an
// scrypt where the chart is rendered without a cluster.
func TestPodsDoNotRevealPasswords(t *testing.T) {
	t.Parallel()
	const mirrors = "nodeConfig.mirrors=[docker.io]"
	// rest is everything else of the pod.
	type result struct{ sum, checksum, salt, content, rest string }
	render := func(t *testing.T, r rendering, values ...string) result {
		t.Helper()
		r.values = proxyMode(t, append(values, "injector.architectures=[amd64]")...)
		out := r.render(t)
		data := find[*corev1.Secret](t, out, "zarf-registry-node-config").Data
		pod := daemonSets(out, "node-config")[0].Spec.Template
		if !slices.Contains(pod.Spec.InitContainers[0].Args, "--config-sum="+string(data["sum"])) {
			t.Errorf("the arguments are %v", pod.Spec.InitContainers[0].Args)
		}
		sum, checksum := string(data["sum"]), pod.Annotations[names.AnnotationNodeConfig]
		return result{
			sum, checksum, string(data["salt"]),
			string(data[noderuntime.KeyConfig]) + "\n" + string(data[noderuntime.KeyRegistries]),
			strings.NewReplacer(sum, "", checksum, "").Replace(mustYAML(t, pod)),
		}
	}
	live := func(objects ...runtime.Object) rendering {
		return rendering{cluster: newCluster(append(objects, k3sNode("a"), kubernetes(corev1.IPv4Protocol))...)}
	}
	salted := func(salt string) runtime.Object {
		return &corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "zarf-registry-node-config"},
			Data:       map[string][]byte{"salt": []byte(salt)},
		}
	}
	for name, value := range map[string]string{
		"registries.yaml": "nodeConfig.k3s.registries={configs: {a.example: {auth: {username: u, password: %s}}}}",
		"hosts.toml":      "nodeConfig.containerd.hosts={a.example: '[host.x.header]\n  Authorization = \"%s\"'}",
	} {
		one, other := fmt.Sprintf(value, "hunter2"), fmt.Sprintf(value, "hunter3")
		t.Run(name+", first installation", func(t *testing.T) {
			first, second := render(t, live(), one), render(t, live(), one)
			if len(first.salt) != 32 || first.salt == second.salt || first.sum == second.sum {
				t.Errorf("%+v, then %+v", first, second)
			}
		})
		t.Run(name+", upgrade", func(t *testing.T) {
			first, again := render(t, live(salted("s1")), one), render(t, live(salted("s1")), one)
			if first != again || first.salt != "s1" {
				t.Errorf("%+v, then %+v", first, again)
			}
			changed := render(t, live(salted("s1")), other)
			if changed.sum == first.sum || changed.checksum == first.checksum {
				t.Error("another password does not replace the pods")
			}
			if changed.rest != first.rest {
				t.Errorf("more than the checksums depends on the password: %s", cmp.Diff(first.rest, changed.rest))
			}
			if elsewhere := render(t, live(salted("s2")), one); elsewhere.sum == first.sum ||
				elsewhere.checksum == first.checksum {
				t.Error("the pods do not depend on the salt")
			}
		})
		t.Run(name+", no cluster", func(t *testing.T) {
			plain := loadChart(t) // with the real checksums
			first, again := render(t, rendering{chart: plain}, one), render(t, rendering{chart: plain, upgrade: true}, one)
			if first != again || first.salt != "" {
				t.Errorf("%+v, then %+v", first, again)
			}
			if changed := render(t, rendering{chart: plain}, other); changed.sum == first.sum || changed.checksum == first.checksum {
				t.Error("another password does not replace the pods")
			}
			if guess := fmt.Sprintf("%x", sha256.Sum256([]byte(first.content))); strings.HasPrefix(guess, first.sum) {
				t.Error("a guess costs one SHA-256")
			}
		})
	}
	if r := render(t, live(), mirrors); r.salt != "" {
		t.Errorf("there is a salt although there is no password: %+v", r)
	}
}

// Credentials in the values appear in the two Secrets only.
//
// Claim (a map): Passwords of `nodeConfig` are rendered into Secrets only.
func TestCredentialsAreInSecretsOnly(t *testing.T) {
	t.Parallel()
	secrets := []string{"hush-user", "hush-word", "hush-token", "hush-header", "hush-endpoint"}
	registries := map[string]any{
		"mirrors": map[string]any{"docker.io": map[string]any{"endpoint": []any{"https://u:hush-endpoint@a.example"}}},
		"configs": map[string]any{"a.example": map[string]any{
			"auth": map[string]any{"username": "hush-user", "password": "hush-word", "identity_token": "hush-token"},
			"tls":  map[string]any{"ca_file": "/etc/ssl/c/ca.pem"},
		}},
	}
	hosts := "[host.\"https://a.example\".header]\n  ca = \"/etc/ssl/c/ca.pem\"\n  Authorization = \"/hush-header/x\"\n"
	for name, value := range map[string]any{
		"a map": registries, "a string": mustYAML(t, registries),
		"a string that is not YAML": "configs: {hush-user: [hush-word hush-token: hush-endpoint: /a: /b",
		"a string with wrong types": "hush-user hush-word hush-token hush-endpoint",
		"a map of something else":   map[string]any{"configs": "hush-user hush-word hush-token hush-endpoint"},
		"maps with wrong types": map[string]any{
			"configs": map[string]any{
				"hush-user": "hush-word", "b": map[string]any{"tls": "hush-token"},
				"c": map[string]any{"tls": map[string]any{"ca_file": "hush-endpoint/x"}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			values := proxyMode(t, "nodeConfig.containerd.hosts="+mustYAML(t, map[string]string{"b.example": hosts}))
			values["nodeConfig"].(map[string]any)["k3s"] = map[string]any{"registries": value}
			out := rendering{values: values, cluster: newCluster(kubernetes(corev1.IPv4Protocol), k3sNode("a"))}.render(t)
			found := 0
			for _, o := range out.objects {
				text := mustYAML(t, o.Object)
				if s, ok := o.typed.(*corev1.Secret); ok {
					for _, data := range s.Data {
						text += string(data)
					}
				}
				for _, secret := range secrets {
					switch there := strings.Contains(text, secret); {
					case there && o.GetKind() == "Secret":
						found++
					case there:
						t.Errorf("%s contains %s", o, secret)
					}
				}
			}
			if found != 2*len(secrets) {
				t.Errorf("the Secrets contain %d values, want each of %d in both", found, len(secrets))
			}
			for _, secret := range secrets {
				if strings.Contains(out.files["NOTES.txt"], secret) {
					t.Errorf("the notes contain %s", secret)
				}
			}
		})
	}
}

// Helm prints error messages, which may end up in logs.
func TestErrorsDoNotContainCredentials(t *testing.T) {
	t.Parallel()
	for _, sets := range [][]string{
		{"nodeConfig.k3s.registries=[hush-word]"},
		{"nodeConfig.k3s.registries=1234567890"},
		{"nodeConfig.k3s.registries={configs: {a: {auth: {password: hush-word}}}}", "nodeConfig.k3s.existingSecret=mine"},
		{"nodeConfig.k3s.registries={configs: {a: {auth: {password: hush-word}}}}", "nodeConfig.k3s.path=/tmp/x"},
		{"nodeConfig.containerd.hosts={a: [hush-word]}"},
		{"nodeConfig.containerd.hosts=hush-word"},
		{"nodeConfig.containerd.hosts={a: hush-word}", "nodeConfig.runtimes=[crio]"},
		{"nodeConfig.containerd.hosts={a: 1234567890}"},
	} {
		_, err := rendering{values: proxyMode(t, sets...)}.try(t)
		if err == nil {
			t.Errorf("%s is accepted", sets)
		} else if strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), "1234567890") {
			t.Errorf("%s: %v", sets, err)
		}
	}
}

func TestChangedNodeConfigurationReplacesItsPods(t *testing.T) {
	t.Parallel()
	checksums := func(t *testing.T, objects []runtime.Object, sets ...string) []string {
		t.Helper()
		r := rendering{values: proxyMode(t, sets...)}
		if objects != nil {
			r.cluster = newCluster(append(objects, kubernetes(corev1.IPv4Protocol))...)
		}
		var found []string
		for _, d := range daemonSets(r.render(t), "node-config") {
			found = append(found, d.Spec.Template.Annotations["zarf-registry/node-config-checksum"])
		}
		if len(found) == 0 || len(found[0]) != 32 || len(slices.Compact(slices.Clone(found))) != 1 {
			t.Fatalf("checksums %s", found)
		}
		return found[:1]
	}
	base := []string{"nodeConfig.mirrors=[docker.io]", "nodeConfig.k3s.registries={configs: {a: {auth: {password: x}}}}"}
	before := checksums(t, nil, base...)
	for _, set := range []string{
		"nodeConfig.mirrors=[ghcr.io]", "nodeConfig.k3s.registries={configs: {a: {auth: {password: z}}}}",
		"nodeConfig.force=true", "port=32000",
		"nodeConfig.directories=[/etc/k0s]", "nodeConfig.tlsDirectories=[/opt]", "nodeConfig.containerd.hosts={a: b}",
		"nodeConfig.crio.insecure=true",
	} {
		if slices.Equal(before, checksums(t, nil, append(slices.Clone(base), set)...)) {
			t.Errorf("%s does not change the checksum", set)
		}
	}
	for _, set := range []string{
		"nodeConfig.updateStrategy.maxUnavailable=1", "commonAnnotations={a: b}", "logLevel=debug",
		"priorityClassName=high", "pki={mode: certManager, certManager: {issuerRef: {name: i}}}", "podSecurity.label=true",
	} {
		if !slices.Equal(before, checksums(t, nil, append(slices.Clone(base), set)...)) {
			t.Errorf("%s changes the checksum", set)
		}
	}
	secret := func(version string) runtime.Object {
		return &corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "mine", ResourceVersion: version},
		}
	}
	existing := "nodeConfig.k3s.existingSecret=mine"
	first := checksums(t, []runtime.Object{k3sNode("a"), secret("1")}, existing)
	if slices.Equal(first, checksums(t, []runtime.Object{k3sNode("a"), secret("2")}, existing)) {
		t.Error("a changed Secret does not change the checksum")
	}
	if !slices.Equal(first, checksums(t, []runtime.Object{k3sNode("a"), secret("1")}, existing)) {
		t.Error("the checksum changes without a change")
	}
	checksums(t, []runtime.Object{k3sNode("a")}, existing) // it may be missing
	checksums(t, nil, existing)
}

func TestNodeConfigurationIsDisabledByDefault(t *testing.T) {
	t.Parallel()
	for _, c := range matrix(t) {
		crio := c.cluster == "a cluster of all sorts" && decidedMode(c.output) == "proxy" && c.file != "explicit"
		want := crio || strings.HasPrefix(c.file, "node-config")
		got := slices.ContainsFunc(c.objects, func(o object) bool { return strings.HasPrefix(o.file, "node-config/") })
		if got != want {
			t.Errorf("%s: node configuration is rendered: %t", c.name, got)
		}
	}
}

// With an external registry only node configuration needs injected programs.
func TestExternalRegistryNeedsAPayloadForNodeConfigurationOnly(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sets []string
		want jobsettings.Injector
	}{
		"nothing on nodes": {nil, jobsettings.Injector{}},
		"a file on nodes": {[]string{"nodeConfig.k3s.existingSecret=mine"}, jobsettings.Injector{
			Enabled: true, PayloadID: "0.1.0", Healer: true,
		}},
		"with ordinary images": {
			[]string{"nodeConfig.k3s.existingSecret=mine", "injector.enabled=false"}, jobsettings.Injector{PayloadID: "0.1.0"},
		},
	} {
		d := decided(rendering{values: with(t, nil, append(test.sets, "registryURL=registry.example.com")...)}.render(t))
		d.Injector.PauseImages, d.Injector.PauseRules = nil, nodeimages.Rules{} // TestPauseImages
		if diff := cmp.Diff(test.want, d.Injector); diff != "" || !slices.Equal(d.Architectures, []string{"amd64", "arm64"}) {
			t.Errorf("%s: the Jobs are told (-want +got), for %s:\n%s", name, d.Architectures, diff)
		}
	}
}

// Others may be able to write the state Secret, so pods that run as root mount only those recorded
// directories that the values may name too.
func TestRecordedDirectoriesAreMounted(t *testing.T) {
	t.Parallel()
	for _, directory := range []string{
		"/", "/etc", "/etc/kubernetes", "/root/.ssh", "/etc/containerd/../kubernetes", "etc/containerd", "/etc/containerdx",
		"/etc/containerd,/etc", "/etc/containerd:/etc", "",
	} {
		data, err := state.Encode(ready(
			settings(state.ModeProxy, state.IPv4),
			func(s *state.State) { s.NodeConfig = &state.NodeConfig{Directories: []string{"/etc/k0s"}} },
		), nil)
		require.NoError(t, err)
		quoted, err := json.Marshal(directory)
		require.NoError(t, err)
		saved := strings.Replace(string(data), `"/etc/k0s"`, string(quoted), 1)
		_, err = rendering{
			values: proxyMode(t), cluster: newCluster(kubernetes(corev1.IPv4Protocol), stateSecret(saved)),
		}.try(t)
		if err == nil ||
			!strings.Contains(
				err.Error(),
				"zarf-registry: Secret zarf/zarf-registry-state: it names "+directory+", which is not a "+
					"configuration directory of a container runtime; nothing was changed",
			) {
			t.Errorf("%q: %v", directory, err)
		}
	}
}

// The programs accept the rendered configuration, both before anything is changed and on each node.
func TestProgramsAcceptTheNodeConfiguration(t *testing.T) {
	t.Parallel()
	ca := require.Value(pki.NewCA("test", time.Now(), time.Hour))(t)
	files := map[noderuntime.Kind]int{}
	for _, c := range matrix(t) {
		for _, suffix := range []string{names.SuffixNodeConfig, names.SuffixNodeProposal} {
			for _, s := range all[*corev1.Secret](c.output) {
				if s.Name != fullNameOf(c.output)+suffix {
					continue
				}
				config, err := noderuntime.ParseConfig(s.Data[noderuntime.KeyConfig])
				if err != nil {
					t.Errorf("%s: %s: %v", c.name, s.Name, err)
					continue
				}
				inputs := noderuntime.Inputs{Config: config, Registries: s.Data[noderuntime.KeyRegistries]}
				if config.K3s.ExistingSecret != "" {
					inputs.Registries = []byte("mirrors: {}\n")
				}
				if config.CRIO.CertsDirectory != "" {
					inputs.CA = ca.KeyPair().Certificate
				}
				// The pods wait for exactly this Secret.
				sum := "--config-sum=" + string(s.Data["sum"])
				for _, d := range all[*appsv1.DaemonSet](c.output) {
					if inits := d.Spec.Template.Spec.InitContainers; d.Labels["app.kubernetes.io/component"] == "node-config" &&
						!slices.Contains(inits[0].Args, sum) {
						t.Errorf("%s: DaemonSet %s does not wait for Secret %s: %v", c.name, d.Name, sum, inits[0].Args)
					}
				}
				wanted, err := noderuntime.Build(inputs)
				if err != nil {
					t.Errorf("%s: %s: %v", c.name, s.Name, err)
					continue
				}
				for _, f := range wanted.Files {
					files[f.Kind]++
				}
			}
		}
	}
	for _, kind := range []noderuntime.Kind{
		noderuntime.KindRegistries, noderuntime.KindHosts, noderuntime.KindRegistriesConf, noderuntime.KindCA,
	} {
		if files[kind] == 0 {
			t.Errorf("no %s was built: %v", kind, files)
		}
	}
}

func TestChartAndProgramsAllowTheSameDirectories(t *testing.T) {
	t.Parallel()
	allowed := 0
	for _, directory := range []string{
		"/etc/containerd", "/etc/containerd/certs.d", listedCerts, "/etc/containers/x", "/etc/rancher/k3s", "/etc/k0s/containerd.d",
		"/etc/crio", "/var/lib/rancher/a/b", "/var/snap/microk8s/current/args/certs.d", "/var/snap/k8s/common",
		"/etc", "/etc/containerdx", "/var/lib", "/var/lib/kubelet", "/var/snap", "/var/snap/other", "/opt", "/",
		"/etc/containerd/../shadow", "/etc/containerd/./x", "etc/containerd",
	} {
		_, chart := rendering{
			values: proxyMode(t, "nodeConfig.mirrors=[docker.io]", "nodeConfig.containerd.path="+directory),
		}.try(t)
		_, programs := noderuntime.Build(
			noderuntime.Inputs{Config: noderuntime.Config{Release: "a/b", Directories: []string{directory}}},
		)
		if (chart == nil) != (programs == nil) {
			t.Errorf("%s: allowed by the chart %v, by the programs %v", directory, chart, programs)
		}
		if chart == nil {
			allowed++
		}
	}
	if allowed != 10 {
		t.Errorf("%d are allowed", allowed)
	}
}

func TestCleanupKnowsThePayloadOfRestorePods(t *testing.T) {
	t.Parallel()
	out := rendering{values: proxyMode(t, "nodeConfig.mirrors=[docker.io]")}.render(t)
	if s, err := settingsOf(out, "cleanup"); err != nil || s.Injector.PayloadID != "0.1.0" || len(s.Architectures) != 2 {
		t.Errorf("cleanup is told %+v (%v)", s, err)
	}
}
