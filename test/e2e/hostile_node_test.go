package e2e

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// testHostileNode does what root on worker n2 can do, in proxy mode.
func testHostileNode(t *testing.T, w *world) {
	must(t, "the certificates CronJob cannot have an image run by what it writes to the state", w.hostileState)
	must(t, "with egress denied by default, the documented policies suffice", w.deniesEgress)
	must(t, "a node's static pod joins no Service", w.staticPods)
}

// deniesEgress denies egress from the namespace, and applies the documented policies.
func (w *world) deniesEgress(t *testing.T) {
	w.kubectlApply(t, `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: zarf}, `+
		`spec: {podSelector: {}, policyTypes: [Egress]}}`)
	image := w.push(t, w.makeArchive(t, "example.com/e2e/egress:1", 8))
	proxy := w.proxyOn(t, "n2")
	w.deletePod(t, proxy.Name, 0) // its successor has no connection yet
	time.Sleep(2 * time.Second)
	if out, err := w.onNode(t, "n2", "timeout", "10", "crictl", "pull", image); err == nil {
		t.Fatalf("a pull succeeded although egress is denied: %s", out)
	}
	policies := require.Value(os.ReadFile("../../docs/reference/policies/egress.yaml"))(t)
	slice, err := w.client.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	require.NoError(t, err)
	if port := *slice.Ports[0].Port; port != 6443 {
		t.Fatalf("the port of the API server is %d", port)
	}
	w.kubectlApply(t, strings.ReplaceAll(string(policies), "192.0.2.10/32", slice.Endpoints[0].Addresses[0]+"/32"))
	w.rolloutsEnd(t)
	w.pullEverywhere(t, image)
	w.helmChart(t, "upgrade", noMode)
	output(t, w.command(t, w.helm, "test", release, "-n", namespace))
}

// hostileState writes the state with the token of the certificates CronJob.
func (w *world) hostileState(t *testing.T) {
	const evil = "evil.example/x:1"
	accounts := w.client.CoreV1().ServiceAccounts(namespace)
	token, err := accounts.CreateToken(t.Context(), release+"-certificates", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	require.NoError(t, err)
	config := rest.AnonymousClientConfig(w.config)
	config.BearerToken = token.Status.Token
	client := require.Value(kubernetes.NewForConfig(config))(t)
	secrets := client.CoreV1().Secrets(namespace)
	change := func(change func(saved map[string]any)) {
		t.Helper()
		secret := require.Value(secrets.Get(t.Context(), release+"-state", metav1.GetOptions{}))(t)
		var saved map[string]any
		decode(t, string(secret.Data[state.Key]), &saved)
		change(saved)
		secret.Data[state.Key] = []byte(mustJSON(saved))
		require.Value(secrets.Update(t.Context(), secret, metav1.UpdateOptions{}))(t)
	}
	var good any
	change(func(saved map[string]any) {
		good = saved["pauseImages"]
		saved["pauseImages"] = map[string]any{"amd64": map[string]string{"reference": evil, "reason": "value"}}
	})
	before := w.usedImages(t)
	words := []string{"injector.image", evil}
	w.helmChartFails(t, words, "upgrade", noMode)
	if r := w.install(t, nil); r.err == nil || !strings.Contains(r.text, words[0]) || !strings.Contains(r.text, words[1]) {
		t.Errorf("zarf-registry install: %v: %s", r.err, r.text)
	}
	if after := w.usedImages(t); !slices.Equal(before, after) {
		t.Errorf("before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	change(func(saved map[string]any) { saved["pauseImages"] = good })
}

// staticPods runs static pods with the registry's labels on n2, in the release's namespace and in another one.
func (w *world) staticPods(t *testing.T) {
	image := w.chosenPause(t)
	run := func(namespace string) {
		t.Helper()
		labels := map[string]string{"app.kubernetes.io/name": release, "app.kubernetes.io/instance": release,
			"app.kubernetes.io/component": "registry"}
		manifest := mustJSON(corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: "static", Namespace: namespace, Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image,
				Ports: []corev1.ContainerPort{{Name: "plain", ContainerPort: 5001}}}}},
		})
		w.writeOnNode(t, "n2", "/etc/kubernetes/static", []byte(manifest))
		w.shell(t, "n2", `mv /etc/kubernetes/static "/etc/kubernetes/manifests/$1.json"`, namespace)
	}
	mirror := func(namespace string) error {
		_, err := w.client.CoreV1().Pods(namespace).Get(t.Context(), "static-n2", metav1.GetOptions{})
		return err
	}
	joined := func() bool {
		slices, err := w.client.DiscoveryV1().EndpointSlices(namespace).List(t.Context(),
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + release + "-nodeport"})
		require.NoError(t, err)
		return strings.Contains(mustJSON(slices.Items), `"static-n2"`)
	}
	w.helmChart(t, "upgrade", nodePortMode, "--set=refuseStaticPods=false")
	run(namespace)
	eventually(t, "the static pod to join the Service of the node port, which the policy must prevent", func() error {
		if !joined() {
			return errors.New("it has not")
		}
		return nil
	})
	w.shell(t, "n2", `rm /etc/kubernetes/manifests/*`)
	eventually(t, "it to end", func() error {
		if !apierrors.IsNotFound(mirror(namespace)) {
			return errors.New("it is there")
		}
		return nil
	})
	w.helmChart(t, "upgrade", nodePortMode)
	run(namespace)
	run("default")
	eventually(t, "the kubelet to be refused", func() error {
		log, err := os.ReadFile(w.stateOf("log", "kubelet.n2.log"))
		if err == nil && !strings.Contains(string(log), "a node may not create pods with the labels of zarf-registry") {
			err = errors.New("its log says nothing")
		}
		return err
	})
	eventually(t, "a static pod of another namespace to have its mirror pod", func() error { return mirror("default") })
	if joined() || !apierrors.IsNotFound(mirror(namespace)) {
		t.Errorf("the static pod has a mirror pod, in the Service of the node port: %t", joined())
	}
	w.isIn(t, state.ModeNodePort, state.SourceValue)
}
