package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// TestHelm318 has the oldest version of Helm that is supported.
func TestHelm318(t *testing.T) {
	onlyInLongRuns(t)
	testRollbacks(t, ownCluster(t, "e2e-helm-318", layout{open: true}), "helm-3.18")
}

// TestHelm321 has the newest Helm 3.
func TestHelm321(t *testing.T) {
	onlyInLongRuns(t)
	testRollbacks(t, ownCluster(t, "e2e-helm-321", layout{open: true}), "helm-3.21")
}

// TestHelm4 has Helm 4, which applies on the server.
func TestHelm4(t *testing.T) {
	onlyInLongRuns(t)
	testRollbacks(t, ownCluster(t, "e2e-helm-4", layout{open: true}), "helm4")
}

// testRollbacks installs, switches and rolls back, also after switches that failed. Helm 3 refuses to create objects
// that exist and that the failed revision lacks.
func testRollbacks(t *testing.T, w *world, version string) {
	t.Helper()
	w.helm = strings.TrimSpace(run(t, w.testcluster, "tool", version))
	must(t, "install in nodeport mode", func(t *testing.T) {
		w.helmChart(t, "install", nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
		w.pushFresh(t)
	})
	w.underLoop(t, "switch to proxy mode", func(t *testing.T) {
		w.helmChart(t, "upgrade", proxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
	})
	w.failedSwitches(t, state.ModeProxy, state.ModeNodePort)
	proxies := w.revision(t) // Helm keeps ten
	w.underLoop(t, "switch to nodeport mode", func(t *testing.T) {
		w.helmChart(t, "upgrade", nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
	})
	nodePort := w.revision(t)
	w.underLoop(t, "rollback to proxy mode", func(t *testing.T) {
		w.rollback(t, proxies)
		w.isIn(t, state.ModeProxy, state.SourceValue)
	})
	w.underLoop(t, "rollback to nodeport mode", func(t *testing.T) {
		w.rollback(t, nodePort)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
	})
	w.failedSwitches(t, state.ModeNodePort, state.ModeProxy)
	must(t, "rollback from an external registry", func(t *testing.T) {
		working := w.revision(t)
		w.helmChart(t, "upgrade", "--set=registryURL=registry.example.com,registryProxy=null")
		if w.helm4() {
			w.rollback(t, working)
		} else {
			out, errOut, err := try(w.command(t, w.helm, "rollback", release, working, "-n", namespace, "--timeout", "5m"))
			if err == nil {
				t.Fatalf("it succeeded: %s", out)
			}
			if job := w.jobLog(t, "rollback"); !strings.Contains(job+errOut, "then helm upgrade with --reset-values") {
				t.Errorf("the Job does not name the commands: %s %s", errOut, job)
			}
			output(t, w.command(t, w.helm, "rollback", release, "-n", namespace, "--timeout", "5m"))
			w.helmChart(t, "upgrade", nodePortMode, "--reset-values")
		}
		w.isIn(t, state.ModeNodePort, state.SourceValue)
		stop := w.freshLoop(t, nothingFails) // the images are there
		time.Sleep(5 * time.Second)
		stop()
	})
	must(t, "uninstall leaves only the volume", w.uninstall)
}

// helm4 reports whether the world uses Helm 4.
func (w *world) helm4() bool { return strings.Contains(w.helm, "helm4") }

// failedSwitches tries to switch from a mode in ways that fail in each phase, and goes back, with helm rollback and by
// itself.
func (w *world) failedSwitches(t *testing.T, mode, to state.Mode) {
	t.Helper()
	atomic := "--atomic"
	if w.helm4() {
		atomic = "--rollback-on-failure"
	}
	w.kubectlApply(t, strings.ReplaceAll(noProbes, "MODE", string(to)))
	defer w.kubectlRun(t, "delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", "e2e-no-probes")
	for _, f := range []struct{ phase, words, set string }{
		{"its pre-upgrade hook", "pre-upgrade", "--set=auth.existingSecret=missing-secret"},
		// Helm creates Ingresses after all other objects.
		{"the middle", `namespaces "missing" not found`, `--set-json=extraObjects=[{"apiVersion":"networking.k8s.io/v1",` +
			`"kind":"Ingress","metadata":{"name":"late","namespace":"missing"},"spec":{"defaultBackend":{"service":{` +
			`"name":"none","port":{"number":80}}}}}]`},
		{"its post-upgrade hook", "post-upgrade", "--set=initHook.timeout=60s"},
	} {
		for _, way := range []string{"helm rollback", atomic} {
			w.underLoop(t, "a switch from "+string(mode)+" mode fails in "+f.phase+": "+way, func(t *testing.T) {
				working := w.revision(t)
				args := []string{fmt.Sprintf("--set=registryProxy=%t", to == state.ModeProxy), f.set}
				if way == atomic {
					w.helmChartFails(t, []string{f.words, "rolled back"}, "upgrade", append(args, atomic)...)
				} else {
					w.helmChartFails(t, []string{f.words}, "upgrade", args...)
					w.rollback(t, working)
				}
				w.isIn(t, mode, state.SourceValue)
				s := output(t, w.command(t, w.helm, "status", release, "-n", namespace))
				if !strings.Contains(s, "STATUS: deployed") {
					t.Errorf("the release is not deployed: %s", s)
				}
			})
		}
	}
}

// noProbes is a policy that rejects the pods which verify pulls in a mode, so that finish fails.
const noProbes = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: e2e-no-probes}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  matchConditions:
    - {name: probes, expression: 'object.spec.containers[0].image.contains("/probe-MODE")'}
  validations:
    - {expression: "false", message: no pods that verify pulls}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: e2e-no-probes}
spec:
  policyName: e2e-no-probes
  validationActions: [Deny]
`
