package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const enforce = "pod-security.kubernetes.io/enforce"

// TestPreflight installs on clusters with a problem. Preflight must report the problem and the
// remedy, and change nothing.
func TestPreflight(t *testing.T) {
	w := ownCluster(t, "e2e-preflight", layout{open: true})
	blocked := func(t *testing.T, words ...string) {
		t.Helper()
		before := w.everything(t)
		_, text := w.preflight(t, 3, "--registry-proxy")
		for _, word := range words {
			if !strings.Contains(text, word) {
				t.Errorf("zarf-registry install --dry-run does not report %q", word)
			}
		}
		if after := w.everything(t); !slices.Equal(before, after) {
			t.Errorf("zarf-registry install --dry-run changed objects; before:\n%s\nafter:\n%s", strings.Join(before, "\n"),
				strings.Join(after, "\n"))
		}
		objects := w.made(t)
		w.helmChartFails(t, words, "install", proxyMode)
		if after := w.made(t); !slices.Equal(objects, after) {
			t.Errorf("helm install created objects: %v before, %v after", objects, after)
		}
		w.uninstall(t)
	}

	must(t, "preflight finds nothing on a new cluster", func(t *testing.T) { w.preflight(t, 0, "--registry-proxy") })
	must(t, "Pod Security refuses host ports", func(t *testing.T) {
		output(t, w.command(t, w.kubectl, "create", "namespace", namespace))
		w.label(t, "baseline")
		blocked(t, "kubectl label", "namespace "+namespace, enforce+"=privileged", "podSecurity.label=true")
		if got := w.labelled(t); got != "baseline" {
			t.Errorf("the namespace now has the level %q", got)
		}
	})
	must(t, "with podSecurity.label=true it works", func(t *testing.T) {
		w.helmChart(t, "install", proxyMode, "--set=podSecurity.label=true")
		w.isIn(t, state.ModeProxy, state.SourceValue)
		w.pullEverywhere(t, w.pushHello(t))
		if got := w.labelled(t); got != "privileged" {
			t.Errorf("the namespace has the level %q", got)
		}
	})
	w.loopbackOnly(t)
	must(t, "helm uninstall restores the label", func(t *testing.T) {
		w.uninstall(t)
		if got := w.labelled(t); got != "baseline" {
			t.Errorf("the namespace has the level %q", got)
		}
		w.label(t, "")
	})
	must(t, "another Service uses the node port", func(t *testing.T) {
		web := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": "web"},
				Ports: []corev1.ServicePort{{Port: 80, NodePort: 31999}}},
		}
		services := w.client.CoreV1().Services(workloads)
		require.Value(services.Create(t.Context(), web, metav1.CreateOptions{}))(t)
		blocked(t, "Service "+workloads+"/web", "31999")
		require.NoError(t, services.Delete(t.Context(), web.Name, metav1.DeleteOptions{}))
		w.preflight(t, 0, "--registry-proxy")
	})
	w.nodePortNeedsProxy(t)
	w.usesExternal(t)
	w.wrongOwner(t)
}

// usesExternal uses an external registry before and after the chart's own.
func (w *world) usesExternal(t *testing.T) {
	const external = "registry.example.com/team"
	const volume = "persistentvolumeclaim/" + release // of the installation before
	remembered := func(t *testing.T, decidedBy state.Source, leaves ...string) {
		t.Helper()
		s := w.saved(t)
		if s.Phase != state.PhaseReady || s.Current == nil || s.Current.Mode != state.ModeExternal ||
			s.Current.Address != external || s.Desired.DecidedBy != decidedBy {
			t.Errorf("the state is %s", mustJSON(s))
		}
		if report, text := w.status(t); !report.Healthy {
			t.Errorf("not healthy: %s", text)
		}
		if made := w.made(t); !slices.Equal(made, leaves) {
			t.Errorf("objects: %v, want %v", made, leaves)
		}
		for _, node := range w.nodes {
			if w.dial(t, node, w.address) == nil {
				t.Errorf("something answers at %s of node %s", w.address, node)
			}
		}
	}
	must(t, "with an external registry, helm install creates only the state", func(t *testing.T) {
		w.helmChart(t, "install", "--set=registryURL=https://"+external+"/")
		remembered(t, state.SourceValue, "secret/"+release+"-state", volume)
	})
	must(t, "registryURL together with registryProxy is refused", func(t *testing.T) {
		w.helmChartFails(t, []string{"registryURL", "registryProxy"}, "upgrade", proxyMode, "--set=registryURL="+external)
		remembered(t, state.SourceValue, "secret/"+release+"-state", volume)
	})
	must(t, "an upgrade without either keeps the external registry", func(t *testing.T) {
		w.apply(t, noMode)
		remembered(t, state.SourceState, "secret/"+release+"-state", volume)
	})
	must(t, "an upgrade to the chart's own registry", func(t *testing.T) {
		w.apply(t, proxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
		w.pullEverywhere(t, w.pushHello(t))
	})
	must(t, "an upgrade back to the external one leaves the volume and the Secrets", func(t *testing.T) {
		w.apply(t, "--set=registryURL="+external)
		remembered(t, state.SourceValue, "secret/"+release+"-auth", "secret/"+release+"-ca",
			"secret/"+release+"-credentials", "secret/"+release+"-node-tls", "secret/"+release+"-push-tls",
			"secret/"+release+"-server-tls", "secret/"+release+"-state", volume)
	})
	w.startOver(t)
}

// preflight runs zarf-registry install --dry-run, which must end with that exit code, and returns the number of
// blockers and the text output.
func (w *world) preflight(t *testing.T, code int, args ...string) (blockers int, text string) {
	t.Helper()
	for _, format := range []string{"json", "table"} {
		out, errOut, err := try(w.command(t, w.hook, append([]string{"install", "--dry-run", "--output", format}, args...)...))
		got := 0
		if exit, failed := errors.AsType[*exec.ExitError](err); failed {
			got = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if got != code {
			t.Fatalf("the exit code is %d, want %d: %s%s", got, code, out, errOut)
		}
		if format == "table" {
			text = out + errOut
			continue
		}
		var printed struct {
			Findings []struct{ Check, Severity, Object, Cause, Remedy string }
		}
		require.NoError(t, json.Unmarshal([]byte(out), &printed), out)
		for _, f := range printed.Findings {
			if f.Check == "" || f.Cause == "" || f.Remedy == "" {
				t.Errorf("incomplete finding: %+v", f)
			}
			if f.Severity == "blocker" {
				blockers++
			}
		}
	}
	if (blockers > 0) != (code > 0) {
		t.Errorf("%d blockers, but exit code %d", blockers, code)
	}
	t.Logf("output:\n%s", text)
	return blockers, text
}

// label sets or, if level is empty, removes the namespace's Pod Security level.
func (w *world) label(t *testing.T, level string) {
	t.Helper()
	change := enforce + "=" + level
	if level == "" {
		change = enforce + "-"
	}
	output(t, w.command(t, w.kubectl, "label", "--overwrite", "namespace", namespace, change))
}

func (w *world) labelled(t *testing.T) string {
	t.Helper()
	ns := require.Value(w.client.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{}))(t)
	return ns.Labels[enforce]
}

// made lists the objects of the release's namespace that can be the registry's, without Helm's
// record and Jobs of a failed install.
func (w *world) made(t *testing.T) []string {
	t.Helper()
	objects := strings.Fields(output(t, w.command(t, w.kubectl, "get",
		"secrets,configmaps,deployments,daemonsets,services,persistentvolumeclaims,networkpolicies", "-n", namespace, "-o",
		"name")))
	return slices.DeleteFunc(objects, func(object string) bool {
		return ofTheNamespace(object) || strings.HasPrefix(object, "secret/sh.helm.release.v1.")
	})
}

// everything lists all objects of the cluster with their versions, without those that change by
// themselves.
func (w *world) everything(t *testing.T) []string {
	t.Helper()
	var objects []string
	for _, scope := range []struct{ namespaced, but string }{
		{"true", " events events.events.k8s.io leases.coordination.k8s.io endpoints "},
		{"false", " nodes componentstatuses csinodes.storage.k8s.io ipaddresses.networking.k8s.io " +
			"prioritylevelconfigurations.flowcontrol.apiserver.k8s.io flowschemas.flowcontrol.apiserver.k8s.io "},
	} {
		kinds := strings.Fields(output(t, w.command(t, w.kubectl, "api-resources", "--verbs=list,delete",
			"--namespaced="+scope.namespaced, "-o", "name")))
		kinds = slices.DeleteFunc(kinds, func(kind string) bool { return strings.Contains(scope.but, " "+kind+" ") })
		list := output(t, w.command(t, w.kubectl, "get", strings.Join(kinds, ","), "-A", "--ignore-not-found", "--no-headers",
			"-o", "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name,"+
				"VERSION:.metadata.resourceVersion"))
		for line := range strings.Lines(list) {
			objects = append(objects, strings.TrimSpace(line))
		}
	}
	if len(objects) < 50 {
		t.Fatal(fmt.Errorf("the cluster holds only %q", objects))
	}
	slices.Sort(objects)
	return objects
}
