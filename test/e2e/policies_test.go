package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestPolicies installs under the ValidatingAdmissionPolicies of docs/policies: one that denies host
// access, with exceptions that must allow no more than necessary, and one that protects the payload.
//
// Claim (only the hook and administrators write the payload): The policy for the payload's ConfigMaps admits
// only the hook and administrators.
func TestPolicies(t *testing.T) {
	w := ownCluster(t, "e2e-policies", layout{args: []string{"--nodes", "1"}})
	apply := func(t *testing.T, manifest string) string {
		cmd := w.command(t, w.kubectl, "apply", "-f", "-")
		cmd.Stdin = strings.NewReader(manifest)
		out, errOut, err := try(cmd)
		if err != nil {
			return errOut
		}
		return out
	}
	policy := require.Value(os.ReadFile("../../docs/reference/policies/validating-admission-policy/host-access.yaml"))(t)
	protection := require.Value(os.ReadFile("../../docs/reference/policies/validating-admission-policy/payload.yaml"))(t)
	settings := []string{"--set=registry.persistence.enabled=false", "--set=nodeConfig.mirrors={docker.io}",
		"--set=nodeConfig.runtimes={containerd}"}
	pod := func(labels, spec string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: trial, namespace: zarf, labels: {%s}}, spec: {%s}}",
			labels, spec)
	}
	const container = "name: a, image: \"registry.k8s.io/pause:3.10.1\""
	const ours = "app.kubernetes.io/name: zarf-registry, app.kubernetes.io/component: "

	must(t, "without the exceptions preflight names the policy", func(t *testing.T) {
		output(t, w.command(t, w.kubectl, "create", "namespace", namespace))
		strict := strings.ReplaceAll(string(policy), "request.namespace == 'zarf'", "request.namespace == 'somewhere-else'")
		if said := apply(t, strict); !strings.Contains(said, "created") {
			t.Fatal(said)
		}
		eventually(t, "the policy to take effect", func() error {
			said := apply(t, pod("", "hostNetwork: true, containers: [{"+container+"}]"))
			if !strings.Contains(said, "do not use their node's network") {
				output(t, w.command(t, w.kubectl, "-n", namespace, "delete", "pod", "trial", "--ignore-not-found",
					"--grace-period=0", "--force"))
				return fmt.Errorf("output: %s", said)
			}
			return nil
		})
		w.helmChartFails(t, nil, "install", append(settings, noMode)...)
		log := output(t, w.command(t, w.kubectl, "-n", namespace, "logs", "job/"+release+"-prepare"))
		for _, want := range []string{"admission", "host-access", "pods take no port of their node",
			"pods mount nothing of their node"} {
			if !strings.Contains(log, want) {
				t.Errorf("prepare does not report %q: %s", want, log)
			}
		}
	})
	must(t, "with the exceptions it installs, including the nodes' files", func(t *testing.T) {
		if said := apply(t, string(policy)); !strings.Contains(said, "configured") {
			t.Fatal(said)
		}
		if said := apply(t, string(protection)); !strings.Contains(said, "created") {
			t.Fatal(said)
		}
		time.Sleep(2 * time.Second) // the API server reloads policies every second
		w.helmChart(t, "upgrade", append(settings, noMode)...)
		w.isIn(t, state.ModeProxy, state.SourceCluster) // kube-proxy uses nftables
		w.pullEverywhere(t, w.pushHello(t))
	})
	must(t, "another IP family moves proxies and nodes' files to [::1]", func(t *testing.T) {
		w.apply(t, append(settings, noMode, "--set=ipFamily=IPv6")...)
		previous := w.address
		w.address = "[::1]:31999"
		w.isIn(t, state.ModeProxy, state.SourceState)
		w.pullEverywhere(t, w.address+"/e2e/hello:1")
		if got := w.shell(t, w.nodes[0], `cat "$1/docker.io/hosts.toml"`, certsDir); !strings.Contains(got, w.address) {
			t.Errorf("hosts.toml is\n%s", got)
		}
		if w.dial(t, w.nodes[0], previous) == nil {
			t.Errorf("something still answers at %s", previous)
		}
	})
	w.loopbackOnly(t)
	t.Run("the exceptions allow nothing else", func(t *testing.T) {
		for name, test := range map[string]struct{ labels, spec, want string }{
			"another pod's port": {"", "containers: [{" + container +
				", ports: [{containerPort: 80, hostPort: 80}]}]", "take no port"},
			"a proxy on all addresses": {ours + "proxy",
				"containers: [{" + container + ", ports: [{containerPort: 80, hostPort: 80}]}]", "take no port"},
			"a proxy with the node's files": {ours + "proxy",
				"containers: [{" + container + "}], volumes: [{name: a, hostPath: {path: /etc/containerd}}]", "mount nothing"},
			"node configuration of /etc": {ours + "node-config",
				"containers: [{" + container + "}], volumes: [{name: a, hostPath: {path: /etc}}]", "mount nothing"},
			"a directory of a similar name": {ours + "node-config",
				"containers: [{" + container + "}], volumes: [{name: a, hostPath: {path: /etc/containerd-keys}}]", "mount nothing"},
			"node configuration on the host network": {ours + "node-config",
				"hostNetwork: true, containers: [{" + container + "}]", "node's network"},
			"a proxy with the node's PIDs": {ours + "proxy", "hostPID: true, containers: [{" + container + "}]",
				"share processes"},
			"the registry on the host network": {ours + "registry", "hostNetwork: true, containers: [{" + container + "}]",
				"node's network"},
		} {
			if said := apply(t, pod(test.labels, test.spec)); !strings.Contains(said, test.want) {
				t.Errorf("%s: %s", name, said)
			}
		}
	})
	t.Run("only the hook and administrators write the payload", func(t *testing.T) {
		output(t, w.command(t, w.kubectl, "-n", namespace, "create", "rolebinding", "mallory", "--clusterrole=edit",
			"--user=mallory"))
		chunk := output(t, w.command(t, w.kubectl, "-n", namespace, "get", "configmaps", "-o", "name", "-l",
			"app.kubernetes.io/component=payload"))
		chunk, _, _ = strings.Cut(chunk, "\n")
		as := func(args ...string) string {
			out, errOut, _ := try(w.command(t, w.kubectl, append([]string{"-n", namespace}, args...)...))
			return out + errOut
		}
		const denied = "only the hook of zarf-registry and administrators write its programs"
		patch := []string{"patch", chunk, "--type=merge", `--patch={"binaryData":{"extra":"AA=="}}`}
		if said := as(append(patch, "--as=mallory")...); !strings.Contains(said, denied) {
			t.Errorf("a chunk could be changed: %s", said)
		}
		if said := as("create", "configmap", release+"-payload-registry-node-amd64-04", "--as=mallory"); !strings.Contains(
			said, denied) {
			t.Errorf("a chunk could be created: %s", said)
		}
		if said := as("create", "configmap", "mine", "--as=mallory"); !strings.Contains(said, "created") {
			t.Errorf("another ConfigMap was refused: %s", said)
		}
		if said := as("annotate", chunk, "note=checked"); !strings.Contains(said, "annotated") {
			t.Errorf("an administrator was refused: %s", said)
		}
		output(t, w.command(t, w.kubectl, "-n", namespace, "delete", "configmap/mine", "rolebinding/mallory"))
	})
	must(t, "helm uninstall restores the nodes' files", w.uninstall)
}
