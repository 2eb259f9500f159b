package e2e

import (
	"bufio"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// installedValues are the values files of the chart's ci/ that resemble no other scenario. make
// e2e-long installs all of them, and the template tests render all of them.
var installedValues = []string{"cert-manager", "injector-disabled"}

// TestChartTesting runs ct install: each values file in turn is installed under another
// release name, tested with helm test, and uninstalled.
func TestChartTesting(t *testing.T) {
	images := built(t, "E2E_IMAGES")
	args := []string{"--nodes", "1"} // other scenarios check that every node is served
	for _, image := range []string{"registry", "registry-node"} {
		args = append(args, "--load", "n1="+filepath.Join(images, image+".tar")) // for injector.enabled=false
	}
	w := ownCluster(t, "e2e-chart-testing", layout{args: args})
	ct := strings.TrimSpace(run(t, w.testcluster, "tool", "ct"))
	chart, values := chartToInstall(t)
	w.chartTestingNeeds(t)

	must(t, "ct install installs and tests every values file", func(t *testing.T) {
		config := require.Value(filepath.Abs("../../ct.yaml"))(t)
		// Each takes about a minute where several clusters share two cores.
		cmd := w.longCommand(t, time.Duration(len(values))*6*time.Minute, ct, "install", "--config", config, "--charts",
			chart, "--namespace", namespace, "--helm-extra-set-args", noRotation)
		helm, ran := recordHelm(t, w.helm)
		cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(helm)+":"+filepath.Dir(w.kubectl)+":"+os.Getenv("PATH"))
		pipe, err := cmd.StdoutPipe()
		require.NoError(t, err)
		cmd.Stderr = cmd.Stdout
		require.NoError(t, cmd.Start())
		said := readInstalls(pipe)
		err = cmd.Wait()
		for i, values := range said.values {
			t.Logf("figure: ct install of %s took %.1f s", values, said.took[i].Seconds())
		}
		require.NoError(t, err, said.text[max(0, len(said.text)-40000):])
		if slices.Sort(said.values); !slices.Equal(said.values, values) {
			t.Errorf("ct installed %v, want %v", said.values, values)
		}
		// At least two pods test each release, except one with an external registry.
		want := 2 * len(slices.DeleteFunc(slices.Clone(values), func(name string) bool {
			return name == "external-values.yaml"
		}))
		if tested := strings.Count(ran(), "Phase:          Succeeded"); tested < want {
			t.Errorf("%d tests for %d values files, want %d\n%s\n%s", tested, len(values), want, said.text, ran())
		}
		// ct itself ignores that.
		if strings.Contains(said.text, "Error deleting Helm release") {
			t.Errorf("uninstalling failed:\n%s", said.text)
		}
	})
	must(t, "only the retained volumes are left", func(t *testing.T) {
		var volumes []string
		for _, volume := range strings.Fields(output(t, w.command(t, w.kubectl, "get", "pvc", "-n", namespace, "-o",
			"name"))) {
			if !strings.HasPrefix(volume, "persistentvolumeclaim/"+release+"-") {
				t.Errorf("%s is left", volume)
			}
			volumes = append(volumes, volume)
		}
		var needs []string
		for _, name := range slices.Sorted(slices.Values(chartTestingSecrets)) {
			needs = append(needs, "secret/"+name)
		}
		w.nothingLeft(t, append(volumes, needs...)...)
		if w.dial(t, w.nodes[0], w.address) == nil {
			t.Errorf("something still answers at %s", w.address)
		}
	})
	t.Run("a failing helm test reports the cause and deletes its pod", func(t *testing.T) { testFailingHelmTest(t, w) })
}

// recordHelm returns a program that runs helm, and a function that returns what it printed. ct 3.14.0 prints the
// output of helm, but loses what it has not read when helm ends.
func recordHelm(t *testing.T, helm string) (program string, ran func() string) {
	t.Helper()
	dir := t.TempDir()
	record := filepath.Join(dir, "record")
	program = filepath.Join(dir, "helm")
	script := "#!/bin/bash\nset -o pipefail\n" + helm + ` "$@" | tee -a ` + record + "\n"
	require.NoError(t, os.WriteFile(program, []byte(script), 0o700))
	return program, func() string {
		return string(require.Value(os.ReadFile(record))(t))
	}
}

// chartToInstall returns the chart's folder and its values files, sorted. Unless the run is a long
// one, it is a copy of the chart with those of [installedValues].
func chartToInstall(t *testing.T) (chart string, values []string) {
	t.Helper()
	chart = built(t, "E2E_CHART")
	if !long() {
		dir := filepath.Join(t.TempDir(), "zarf-registry")
		require.NoError(t, os.CopyFS(dir, os.DirFS(chart)))
		chart = dir
	}
	files := require.Value(os.ReadDir(filepath.Join(chart, "ci")))(t)
	for _, file := range files {
		name, isValues := strings.CutSuffix(file.Name(), "-values.yaml")
		if isValues && !long() && !slices.Contains(installedValues, name) {
			require.NoError(t, os.Remove(filepath.Join(chart, "ci", file.Name())))
		} else if isValues {
			values = append(values, file.Name())
		}
	}
	if len(values) < len(installedValues) {
		t.Fatalf("the chart has only %v of %v", values, installedValues)
	}
	return chart, values
}

// testFailingHelmTest gives the pod that pushes a wrong password.
func testFailingHelmTest(t *testing.T, w *world) {
	w.helmChart(t, "install", proxyMode, "--set=registry.persistence.enabled=false")
	helmTest := func(flags ...string) (string, error) {
		out, errOut, err := try(w.command(t, w.helm, append([]string{"test", release, "-n", namespace}, flags...)...))
		return out + errOut, err
	}
	credentials := w.get(t, release+"-credentials")
	wrong := credentials.DeepCopy()
	wrong.Data["password"] = []byte("wrong password")
	require.Value(w.client.CoreV1().Secrets(namespace).Update(t.Context(), wrong, metav1.UpdateOptions{}))(t)
	text, err := helmTest()
	if err == nil || !strings.Contains(text, release+"-test-push") {
		t.Errorf("%v: %s", err, text)
	}
	for _, want := range []string{"FAIL  an image can be pushed", "got 401"} {
		if !strings.Contains(text, want) {
			t.Errorf("the output does not name the cause: no %q in %s", want, text)
		}
	}
	// A node can read the Secrets of a pod while it exists.
	if _, _, err := try(w.command(t, w.kubectl, "get", "pod", "-n", namespace, release+"-test-push")); err == nil {
		t.Error("the failed pod is still there")
	}
	current := w.get(t, release+"-credentials")
	current.Data = credentials.Data
	require.Value(w.client.CoreV1().Secrets(namespace).Update(t.Context(), current, metav1.UpdateOptions{}))(t)
	text, err = helmTest("--logs")
	for _, test := range []string{"pull", "push", "tls"} {
		if err != nil || !strings.Contains(text, "POD LOGS: "+release+"-test-"+test) {
			t.Errorf("with the right password: %v: %s", err, text)
		}
	}
	output(t, w.command(t, w.helm, "uninstall", release, "-n", namespace, "--timeout", "3m", "--wait"))
	if left := strings.TrimSpace(output(t, w.command(t, w.kubectl, "get", "pods", "-n", namespace, "-l",
		"app.kubernetes.io/component=test", "-o", "name"))); left != "" {
		t.Errorf("uninstalling left %s", left)
	}
}

// chartTestingSecrets are the Secrets that the values files name.
var chartTestingSecrets = []string{"my-authority", "my-node", "my-push", "my-push-credential", "my-server",
	"pull-secret"}

// chartTestingNeeds creates what the values files require: the namespace, Secrets, and an issuer.
func (w *world) chartTestingNeeds(t *testing.T) {
	t.Helper()
	require.Value(w.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}))(t)
	theirs := newCorporate(t)
	// ct generates the release names.
	w.putSecret(t, "my-server", theirs.issue(t, "my-server", time.Now(), []string{"*." + namespace + ".svc"}, "",
		x509.ExtKeyUsageServerAuth))
	w.putSecret(t, "my-node", theirs.issue(t, "my-node", time.Now(), nil, pki.OrganizationNode,
		x509.ExtKeyUsageClientAuth))
	w.putSecret(t, "my-push", theirs.issue(t, "my-push", time.Now(), nil, pki.OrganizationPush,
		x509.ExtKeyUsageClientAuth))
	w.putSecret(t, "my-authority", map[string][]byte{"ca.crt": theirs.pem})
	w.putSecret(t, "my-push-credential", map[string][]byte{"username": []byte("pusher"),
		"password": []byte("of-the-users-own-choice")})
	w.putSecret(t, "pull-secret", map[string][]byte{}) // no image is pulled with it

	w.companyIssuer(t)
}

// installs is the parsed output of ct install.
type installs struct {
	text   string
	values []string // the files, in order
	took   []time.Duration
}

func readInstalls(from io.Reader) (said installs) {
	text, begin := &strings.Builder{}, time.Now()
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, 1<<20) // lines with commands and logs are long
	for scanner.Scan() {
		line := scanner.Text()
		fmt.Fprintln(text, line)
		if file, found := strings.CutPrefix(line, "Installing chart with values file "); found {
			if len(said.values) > 0 {
				said.took = append(said.took, time.Since(begin))
			}
			begin = time.Now()
			said.values = append(said.values, filepath.Base(strings.Trim(file, `".`)))
		}
	}
	said.took = append(said.took, time.Since(begin))
	said.text = text.String()
	return said
}
