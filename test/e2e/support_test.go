package e2e

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/zarf-dev/zarf-registry/internal/status/support"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// testSupportBundle writes bundles, as an administrator and as a user who may only view, while a pod of the release
// fails whose environment contains secrets. others are secrets that no Secret's value equals. It searches the bundles
// for each secret of the cluster: those of all Secrets, in plain, escaped and base64 form.
func testSupportBundle(t *testing.T, w *world, others []string) {
	inURL, inVariable := random(t), random(t)
	failing := pod("failing", "n1", "docker.io/library/hello:1", "dial", "nothing")
	failing.Namespace, failing.Labels = namespace, map[string]string{"app.kubernetes.io/instance": release}
	failing.Spec.RestartPolicy = corev1.RestartPolicyAlways
	failing.Spec.Containers[0].ImagePullPolicy = corev1.PullIfNotPresent
	failing.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "DB_PASSWORD", Value: inVariable},
		{Name: "HTTPS_PROXY", Value: "https://me:" + inURL + "@host/"}}
	pods := w.client.CoreV1().Pods(namespace)
	require.Value(pods.Create(t.Context(), failing, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		now := int64(0)
		pods.Delete(context.Background(), failing.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
	status := func() (corev1.ContainerStatus, error) {
		p, err := pods.Get(t.Context(), failing.Name, metav1.GetOptions{})
		if err != nil || len(p.Status.ContainerStatuses) == 0 {
			return corev1.ContainerStatus{}, errors.Join(errors.New("no status"), err)
		}
		return p.Status.ContainerStatuses[0], nil
	}
	// The kubelet restarts a container at once the first time, also with an outdated image. Then it waits, for 80 s after
	// the fourth time: long enough for the patch to come before the next start, if the wait has just begun. A container
	// that is stopped while it starts may have no log.
	eventually(t, "the pod to fail again", func() error {
		s, err := status()
		if err != nil {
			return err
		}
		last := cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated)
		if s.RestartCount < 4 || s.State.Running != nil || last == nil || time.Since(last.FinishedAt.Time) > 30*time.Second {
			return errors.New(mustJSON(s))
		}
		return nil
	})
	// The next container runs, so that the log of the previous one is not replaced.
	patch := fmt.Sprintf(`{"spec":{"containers":[{"name":"main","image":%q}]}}`, w.pauseImage(t))
	require.Value(pods.Patch(t.Context(), failing.Name, types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{}))(t)
	eventually(t, "the pod to run", func() error {
		s, err := status()
		if err == nil && (s.State.Running == nil || s.LastTerminationState.Terminated == nil || !strings.Contains(s.Image, "pause")) {
			err = errors.New(mustJSON(s))
		}
		return err
	})

	// What the bundles must not contain.
	secrets := map[string]string{"in a URL": inURL, "in an environment variable": inVariable}
	// What is masked is there to be read, and the search finds it.
	raw := output(t, w.command(t, w.kubectl, "-n", namespace, "get", "pod", failing.Name, "-o", "yaml"))
	for what, secret := range secrets {
		if !contains(raw, secret) {
			t.Errorf("the secret %s is not in:\n%s", what, raw)
		}
	}
	for i, other := range others {
		secrets[fmt.Sprintf("secret %d", i)] = other
	}
	w.addSecrets(t, secrets)

	t.Run("as an administrator", func(t *testing.T) {
		files, result, took := w.supportBundle(t, w.kubeconfig)
		// A pod has five seconds for an answer.
		for n := 0; n < 5 && strings.Contains(strings.Join(result.Missing, "\n"), "no answer within"); n++ {
			files, result, took = w.supportBundle(t, w.kubeconfig)
		}
		size := 0
		for name, text := range files {
			size += len(text)
			for what, secret := range secrets {
				if contains(text, secret) {
					t.Errorf("%s contains the secret %s", name, what)
				}
			}
		}
		t.Logf("figure: the support bundle has %d files of %d bytes and %d bytes compressed after %.1f s; searched for %d "+
			"secrets", len(files), size, result.Size, took.Seconds(), len(secrets))
		if len(result.Missing) > 0 {
			t.Errorf("missing: %q", result.Missing)
		}
		want := map[string]string{
			"status.txt":                       w.address,
			"status.json":                      `"namespace": "` + namespace + `"`,
			"preflight.txt":                    "no changes were made",
			"events.txt":                       "Pod failing ",
			"helm/history.txt":                 "superseded",
			"objects/nodes.yaml":               w.address + "/e2e/hello:1",
			"objects/daemonsets.yaml":          certsDir,
			"objects/deployments.yaml":         "kind: Deployment",
			"objects/roles.yaml":               "kind: Role",
			"objects/configmaps.yaml":          "bytes of base64)",
			"objects/pods.yaml":                "value: <REDACTED>",
			"logs/failing_main.previous.log":   "dial",
			"objects/networkpolicies.yaml":     "kind: NetworkPolicy",
			"objects/endpointslices.yaml":      "addressType",
			"objects/services.yaml":            "kind: Service",
			"objects/clusterroles.yaml":        "kind: ClusterRole",
			"objects/serviceaccounts.yaml":     "kind: ServiceAccount",
			"objects/cronjobs.yaml":            "kind: CronJob",
			"objects/rolebindings.yaml":        "kind: RoleBinding",
			"objects/clusterrolebindings.yaml": "kind: ClusterRoleBinding",
			"objects/namespaces.yaml":          "name: " + namespace,
		}
		list, err := pods.List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component in (registry,proxy)"})
		if err != nil || len(list.Items) <= len(w.nodes) {
			t.Fatalf("%v: %d pods", err, len(list.Items))
		}
		for _, p := range list.Items {
			want["metrics/"+p.Name+".txt"], want["metrics/"+p.Name+".loaded.json"] = "build_info", `"certificates"`
			want["logs/"+p.Name+"_"+p.Spec.Containers[0].Name+".log"] = "listening"
		}
		for file, text := range want {
			if !strings.Contains(files[file], text) {
				t.Errorf("%s lacks %q:\n%.1000s", file, text, files[file])
			}
		}
		if slices.ContainsFunc(result.Files, func(f support.File) bool { return strings.Contains(f.Name, "secret") }) {
			t.Errorf("Secrets are in %v", slices.Sorted(maps.Keys(files)))
		}
		for _, node := range w.nodes {
			if !strings.Contains(files["summary.txt"], "\n"+node+" ") {
				t.Errorf("the summary lacks node %s", node)
			}
		}
		t.Logf("summary.txt:\n%s", files["summary.txt"])
	})
	t.Run("as a user who may only view", func(t *testing.T) {
		files, result, _ := w.supportBundle(t, w.viewer(t))
		for _, want := range []string{"helm: ", "objects/nodes.yaml: ", "objects/roles.yaml: ",
			"metrics/"} {
			if !slices.ContainsFunc(result.Missing, func(what string) bool { return strings.HasPrefix(what, want) }) {
				t.Errorf("missing: %q lacks %q", result.Missing, want)
			}
			if !strings.Contains(files["summary.txt"], "  - "+want) {
				t.Errorf("the summary lacks %q", want)
			}
		}
		if !strings.Contains(files["objects/pods.yaml"], "name: failing") ||
			!strings.Contains(files["logs/failing_main.previous.log"], "dial") {
			t.Errorf("files %v", slices.Sorted(maps.Keys(files)))
		}
		for name, text := range files {
			for what, secret := range secrets {
				if contains(text, secret) {
					t.Errorf("%s contains the secret %s", name, what)
				}
			}
		}
		t.Logf("summary.txt:\n%s", files["summary.txt"])
	})
}

// addSecrets adds the values of the namespace's Secrets, without what other objects contain, too.
func (w *world) addSecrets(t *testing.T, secrets map[string]string) {
	t.Helper()
	list := require.Value(w.client.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{}))(t)
	known := len(secrets)
	for _, s := range list.Items {
		for key, value := range s.Data {
			if public(key, value) {
				continue
			}
			name := s.Name + ", key " + key
			secrets[name] = strings.TrimSpace(string(value))
			if key == "tls.key" || key == "ca.key" || strings.HasSuffix(key, "htpasswd") {
				for i, line := range strings.Split(secrets[name], "\n") {
					if !strings.HasPrefix(line, "-----") && line != "" {
						secrets[fmt.Sprintf("%s, line %d", name, i+1)] = line
					}
				}
			}
		}
	}
	if len(secrets) < known+10 {
		t.Errorf("the Secrets have only %d values", len(secrets)-known)
	}
}

// bundleResult is what zarf-registry support-bundle prints.
type bundleResult struct {
	Path string
	Size int64
	support.Result
}

// supportBundle runs zarf-registry support-bundle, which must succeed, and returns the files of the bundle.
func (w *world) supportBundle(t *testing.T, kubeconfig string) (map[string]string, bundleResult, time.Duration) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	begin := time.Now()
	out, errOut, err := try(w.command(t, w.hook, "support-bundle", "--kubeconfig", kubeconfig, "-n", w.namespace, "--out", path,
		"--output", "json"))
	took := time.Since(begin)
	var result bundleResult
	if err := errors.Join(err, json.Unmarshal([]byte(out), &result)); err != nil {
		t.Fatalf("support-bundle: %v: %s%s", err, out, errOut)
	}
	file := require.Value(os.Open(path))(t)
	defer file.Close()
	info, err := file.Stat()
	if err != nil || result.Path != path || result.Size != info.Size() || info.Mode() != 0o600 {
		t.Errorf("%v: the result is %s, %d bytes; the file has mode %s", err, result.Path, result.Size, info.Mode())
	}
	compressed := require.Value(gzip.NewReader(file))(t)
	files, r := map[string]string{}, tar.NewReader(compressed)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		data := require.Value(io.ReadAll(r))(t)
		_, name, _ := strings.Cut(header.Name, "/")
		files[name] = string(data)
	}
	if len(files) != len(result.Files) {
		t.Errorf("the bundle has %d files, the result says %d", len(files), len(result.Files))
	}
	return files, result, took
}

// viewer returns a kubeconfig of a user with the ClusterRole view in the release's namespace.
func (w *world) viewer(t *testing.T) string {
	t.Helper()
	const user = "e2e-viewer"
	bindings := w.client.RbacV1().RoleBindings(w.namespace)
	_, err := bindings.Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: user},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { bindings.Delete(context.Background(), user, metav1.DeleteOptions{}) })
	config := require.Value(clientcmd.LoadFromFile(w.kubeconfig))(t)
	for _, info := range config.AuthInfos {
		info.Impersonate = user
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, path))
	return path
}
