package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// helmVersions are those that roll back in different ways: up to 3.21, Helm refuses to create objects that exist and
// that the failed revision lacks; Helm 4 applies on the server.
var helmVersions = []string{"helm-3.18", "helm-3.21", "helm4"}

// TestHelmVersions installs, switches and rolls back with more versions of Helm than TestHelm, also switches that failed.
func TestHelmVersions(t *testing.T) {
	onlyInLongRuns(t)
	w := ownCluster(t, "e2e-helm-versions", layout{open: true})
	for i, version := range helmVersions {
		w.helm = strings.TrimSpace(run(t, w.testcluster, "tool", version))
		with := version + ": "
		must(t, with+"install in nodeport mode", func(t *testing.T) {
			w.helmChart(t, "install", nodePortMode)
			w.isIn(t, state.ModeNodePort, state.SourceValue)
			if i == 0 { // the volume is retained
				w.pushFresh(t)
			}
		})
		nodePort := w.revision(t)
		w.underLoop(t, with+"switch to proxy mode", func(t *testing.T) {
			w.helmChart(t, "upgrade", proxyMode)
			w.isIn(t, state.ModeProxy, state.SourceValue)
		})
		proxies := w.revision(t)
		w.failedSwitches(t, with, state.ModeProxy, state.ModeNodePort)
		w.underLoop(t, with+"rollback to nodeport mode", func(t *testing.T) {
			w.rollback(t, nodePort)
			w.isIn(t, state.ModeNodePort, state.SourceValue)
		})
		w.failedSwitches(t, with, state.ModeNodePort, state.ModeProxy)
		w.underLoop(t, with+"rollback to proxy mode", func(t *testing.T) {
			w.rollback(t, proxies)
			w.isIn(t, state.ModeProxy, state.SourceValue)
		})
		must(t, with+"rollback from an external registry", func(t *testing.T) {
			working := w.revision(t)
			w.helmChart(t, "upgrade", "--set=registryURL=registry.example.com,registryProxy=null")
			out, errOut, err := try(w.command(t, w.helm, "rollback", release, working, "-n", namespace, "--timeout", "5m"))
			if err == nil {
				t.Fatalf("it succeeded: %s", out)
			}
			if job := w.jobLog(t, "rollback"); !strings.Contains(job+errOut, "then helm upgrade with --reset-values") {
				t.Errorf("the Job does not name the commands: %s %s", errOut, job)
			}
			w.helmChart(t, "upgrade", proxyMode, "--reset-values")
			w.isIn(t, state.ModeProxy, state.SourceValue)
			stop := w.freshLoop(t, nothingFails) // the images are there
			time.Sleep(5 * time.Second)
			stop()
		})
		must(t, with+"uninstall leaves only the volume", w.uninstall)
	}
}

// failedSwitches tries to switch from a mode in ways that fail in each phase, and goes back, with helm rollback and by
// itself.
func (w *world) failedSwitches(t *testing.T, with string, mode, to state.Mode) {
	t.Helper()
	atomic := "--atomic"
	if strings.HasPrefix(with, "helm4") {
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
			w.underLoop(t, with+"a switch from "+string(mode)+" mode fails in "+f.phase+": "+way, func(t *testing.T) {
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
