package support_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	helmrelease "helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
	helmtime "helm.sh/helm/v3/pkg/time"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/status/support"
	"github.com/zarf-dev/zarf-registry/test/require"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// The secrets of the cluster outside of Secrets. Each has characters that some format escapes.
const (
	valuesPassword = `from+the/values"19&c4`
	mirrorUser     = "mirror-user-5b1d"
	mirrorPassword = "mirror-pw-<5b1d>"
	hostsHeader    = "Basic bWlycm9yOmhvc3RzLXRvbWw="
	htpasswd       = "$2y$05$c2VjcmV0c2VjcmV0c2VjcuW8Q0vEoLQb2Z1r0mYdH5nq3aXbQwzGi"
	env            = "environment-0a9b"
	urlPassword    = "in-a-url-31e0"
	extraObject    = "of-an-extra-object-90ef"
	template       = "of-an-extra-template-77aa"
	pushPassword   = `push+PW/7f3a9"c&1`
	keyLine        = "MHcCAQEEIBkg4LVWM9nuwNSk3yByxZpYRTBnVJk5CkqRoAoGCCqGSM49AwEHoUQD"
)

// privateKey is in PEM form.
var privateKey = "-----BEGIN EC PRIVATE KEY-----\n" + keyLine + "\nAQ==\n-----END EC PRIVATE KEY-----\n"

var publicCertificate = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("a public certificate")}))

func meta(name, component string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "zarf", Name: name, Labels: map[string]string{
		"app.kubernetes.io/instance": "zarf-registry", "app.kubernetes.io/component": component}}
}

func secret(name string, data map[string]string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: meta(name, "x"), Type: corev1.SecretTypeOpaque, Data: map[string][]byte{}}
	for key, value := range data {
		s.Data[key] = []byte(value)
	}
	return s
}

// registries is a registries.yaml with credentials.
var registries = fmt.Sprintf("configs:\n  mirror.example:\n    auth: {username: %s, password: %q}\n", mirrorUser, mirrorPassword)

// objects are those of the cluster.
func objects() []runtime.Object {
	registry := &corev1.Pod{ObjectMeta: meta("zarf-registry-0", "registry")}
	registry.Annotations = map[string]string{"zarf-registry/metrics-port": "9102",
		"kubectl.kubernetes.io/last-applied-configuration": env}
	registry.Spec.Containers = []corev1.Container{{Name: "registry", Args: []string{"serve"},
		Env: []corev1.EnvVar{{Name: "S3_SECRET", Value: env}, {Name: "HTTPS_PROXY", Value: "http://me:" + urlPassword + "@proxy:3128"}}}}
	registry.Status.Phase = corev1.PodRunning
	registry.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "registry", RestartCount: 1, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}},
		{Name: "waiting", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}},
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.36.3", ContainerRuntimeVersion: "containerd://2.2.1",
		OSImage: "Debian 13", KernelVersion: "6.12", Architecture: "amd64"}
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"registry.k8s.io/pause:3.10.1"}}}
	healer := &corev1.Pod{ObjectMeta: meta("zarf-registry-healer-0", "healer")}
	healer.Annotations, healer.Status.Phase = registry.Annotations, corev1.PodRunning
	cache := &corev1.Pod{ObjectMeta: meta("zarf-registry-cache-0", "cache")}
	cache.Annotations, cache.Status.Phase = registry.Annotations, corev1.PodRunning
	cache.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "cache", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	elsewhere := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "elsewhere"}}
	payload := &corev1.ConfigMap{ObjectMeta: meta("payload", "payload"), BinaryData: map[string][]byte{"program": []byte("ELF")}}
	payload.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "a-field-manager"}}
	return []runtime.Object{
		secret("zarf-registry-credentials", map[string]string{"username": "zarf-push", "password": pushPassword}),
		secret("zarf-registry-auth", map[string]string{"htpasswd": "zarf-push:" + htpasswd + "\n"}),
		secret("zarf-registry-server-tls", map[string]string{"tls.key": privateKey, "tls.crt": publicCertificate}),
		secret("zarf-registry-ca", map[string]string{"ca.key": privateKey}),
		secret("zarf-registry-node-config", map[string]string{"registries.yaml": registries, "salt": "of-node-config-41e7"}),
		secret("s3", map[string]string{"accessKey": "access-key-2d11", "secretKey": "secret-key-8a52"}),
		secret("pull", map[string]string{".dockerconfigjson": `{"auths":{"h":{"auth":"cHVzaDpkb2NrZXItcHctODgxMg=="}}}`}),
		secret("theirs", map[string]string{"opaque": "s p a c e s  and\ttabs 4411", "brackets": "{Sup3rS3cret}"}),
		registry, healer, cache, node, elsewhere, payload,
		&appsv1.Deployment{ObjectMeta: meta("zarf-registry", "registry")},
		&corev1.ConfigMap{ObjectMeta: meta("config", "x"), Data: map[string]string{"certificate": publicCertificate}},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "second"}, Reason: "Second", LastTimestamp: metav1.NewTime(now),
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "p"}, Message: "pulling\nfailed"},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "z-first"}, Reason: "First",
			LastTimestamp: metav1.NewTime(now.Add(-time.Hour))},
	}
}

func helmRelease(version int, status helmrelease.Status, values map[string]any) *helmrelease.Release {
	return &helmrelease.Release{Name: "zarf-registry", Namespace: "zarf", Version: version, Config: values,
		Info:  &helmrelease.Info{Status: status, Description: "Upgrade\nfailed", LastDeployed: helmtime.Time{Time: now}},
		Chart: &chart.Chart{Metadata: &chart.Metadata{Name: "zarf-registry", Version: "0.1.0", AppVersion: "0.1.0"}},
	}
}

var values = map[string]any{
	"auth":     map[string]any{"existingSecret": "my-credentials", "push": []any{map[string]any{"name": "ci-of-team"}}},
	"registry": map[string]any{"extraEnv": []any{map[string]any{"name": "DB_PASSWORD", "value": valuesPassword}}},
	"nodeConfig": map[string]any{
		"k3s": map[string]any{"registries": map[string]any{"configs": map[string]any{"mirror.example": map[string]any{
			"auth": map[string]any{"username": mirrorUser, "password": mirrorPassword}}}}},
		"containerd": map[string]any{"hosts": map[string]any{"mirror.example": fmt.Sprintf(
			"server = \"https://mirror.example\"\n[host.\"https://mirror.example\".header]\n  authorization = %q\n", hostsHeader)}}},
	"secrets": map[string]any{"htpasswd": "zarf-push:" + htpasswd},
	"extraObjects": []any{"kind: Secret\nstringData: {a: " + template + "}\n", map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "x"},
		"stringData": map[string]any{"a": extraObject}}},
}

// options are those for the cluster, in which "verb resource" are forbidden.
func options(t *testing.T, deny ...string) support.Options {
	t.Helper()
	client := fake.NewClientset(objects()...)
	records := storage.Init(driver.NewSecrets(client.CoreV1().Secrets("zarf")))
	for _, rel := range []*helmrelease.Release{
		helmRelease(1, helmrelease.StatusSuperseded, nil),
		helmRelease(2, helmrelease.StatusDeployed, values), helmRelease(3, helmrelease.StatusFailed, values)} {
		require.NoError(t, records.Create(rel))
	}
	kinds := map[schema.GroupVersionResource]string{}
	for _, k := range [][3]string{{"cert-manager.io", "certificates", "Certificate"}, {"cert-manager.io", "issuers", "Issuer"},
		{"gateway.networking.k8s.io", "httproutes", "HTTPRoute"}, {"gateway.networking.k8s.io", "backendtlspolicies", "BackendTLSPolicy"}} {
		kinds[schema.GroupVersionResource{Group: k[0], Version: "v1", Resource: k[1]}] = k[2] + "List"
	}
	dynamic := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(scheme.Scheme, kinds, objects()...)
	react := func(a kubetesting.Action) (bool, runtime.Object, error) {
		if a.GetVerb() != "get" && a.GetVerb() != "list" {
			t.Errorf("it asked for %s %s", a.GetVerb(), a.GetResource().Resource)
		}
		resource := schema.GroupResource{Group: a.GetResource().Group, Resource: a.GetResource().Resource}
		if resource.Group == "gateway.networking.k8s.io" {
			return true, nil, apierrors.NewNotFound(resource, "")
		}
		if slices.Contains(deny, a.GetVerb()+" "+path.Join(resource.Resource, a.GetSubresource())) {
			return true, nil, apierrors.NewForbidden(resource, "", errors.New("no"))
		}
		if a.GetSubresource() != "log" {
			return false, nil, nil
		}
		o := a.(kubetesting.GenericAction).GetValue().(*corev1.PodLogOptions)
		return true, &runtime.Unknown{Raw: fmt.Appendf(nil, "previous=%v tail=%d\n", o.Previous, *o.TailLines)}, nil
	}
	client.PrependReactor("*", "*", react)
	dynamic.PrependReactor("*", "*", react)
	return support.Options{
		Namespace: "zarf", Release: "zarf-registry", Name: "zarf-registry", Client: client, Objects: dynamic, Tail: 100,
		Fetch: func(_ context.Context, pod *corev1.Pod, path string, w io.Writer) error {
			_, err := fmt.Fprintf(w, "metric{pod=%q,path=%q} 1\n", pod.Name, path)
			return err
		},
		Reports: []support.Report{
			{Name: "status.txt", Write: func(_ context.Context, w io.Writer) error {
				_, err := io.WriteString(w, "healthy\n")
				return err
			}},
			{Name: "preflight.txt", Write: func(context.Context, io.Writer) error { return errors.New("no chart") }},
		},
		Timeout: time.Minute, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
	}
}

// write returns the files of a bundle.
func write(t *testing.T, o support.Options) (map[string]string, *support.Result) {
	t.Helper()
	var archive bytes.Buffer
	result := require.Value(support.Write(t.Context(), &archive, o))(t)
	compressed := require.Value(gzip.NewReader(&archive))(t)
	files, r := map[string]string{}, tar.NewReader(compressed)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, result
		}
		require.NoError(t, err)
		data := require.Value(io.ReadAll(r))(t)
		name, ok := strings.CutPrefix(header.Name, "zarf-registry-support-20261121T120000Z/")
		if _, twice := files[name]; !ok || twice || header.Mode != 0o644 || !header.ModTime.Equal(now) {
			t.Errorf("header %+v", header)
		}
		files[name] = string(data)
	}
}

// forms returns a secret in plain, escaped and base64 form.
func forms(secret string) []string {
	quoted, _ := json.Marshal(secret)
	all := []string{secret, strings.Trim(string(quoted), `"`), url.QueryEscape(secret)}
	for before := range 3 { // how many bytes of a group of three precede the secret
		encoded := base64.RawStdEncoding.EncodeToString([]byte("ab"[:before] + secret))
		all = append(all, encoded[(before*8+5)/6:(before+len(secret))*8/6])
	}
	return all
}

func contains(files map[string]string, secret string) string {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, form := range forms(secret) {
			if strings.Contains(files[name], form) {
				return name
			}
		}
	}
	return ""
}

// secrets are all that exist in the cluster: in Secrets, and in the release's values and environment variables.
func secrets() map[string]string {
	all := map[string]string{"values": valuesPassword, "user of a mirror": mirrorUser, "password of a mirror": mirrorPassword,
		"hosts.toml": hostsHeader, "environment": env, "URL": urlPassword, "extra object": extraObject, "template": template,
		"line of a key": keyLine, "htpasswd": htpasswd}
	for _, o := range objects() {
		s, ok := o.(*corev1.Secret)
		if !ok {
			continue
		}
		for key, value := range s.Data {
			if key != "username" && key != "tls.crt" {
				all[s.Name+" "+key] = strings.TrimSpace(string(value))
			}
		}
	}
	return all
}

// Claim: A support bundle contains no Secret, and no secret of Helm's values and of environment variables.
func TestABundleContainsNoSecret(t *testing.T) {
	masked, result := write(t, options(t))
	all := secrets()
	if len(all) < 20 {
		t.Fatalf("only %d secrets", len(all))
	}
	for what, secret := range all {
		if file := contains(masked, secret); file != "" {
			t.Errorf("%s is in %s:\n%s", what, file, masked[file])
		}
	}
	// The places of the secrets are in the bundle, and so is what is no secret.
	for file, want := range map[string][]string{
		"logs/zarf-registry-0_registry.log":          {"previous=false tail=100\n"},
		"logs/zarf-registry-0_registry.previous.log": {"previous=true tail=100\n"},
		"metrics/zarf-registry-0.txt":                {`metric{pod="zarf-registry-0",path="/metrics"} 1`},
		"metrics/zarf-registry-0.loaded.json":        {`path="/loaded"`},
		"events.txt":                                 {"pulling failed"},
		"objects/pods.yaml": {"name: zarf-registry-0", "name: S3_SECRET\n      value: <REDACTED>", "http://<REDACTED>@proxy:3128",
			"ImagePullBackOff"},
		"objects/nodes.yaml":       {"registry.k8s.io/pause:3.10.1"},
		"objects/configmaps.yaml":  {"program: (4 bytes of base64)", "BEGIN CERTIFICATE"},
		"objects/deployments.yaml": {"name: zarf-registry"},
		"helm/history.txt":         {"zarf-registry-0.1.0", "Upgrade; failed", "superseded"},
		"helm/values-2.yaml": {"existingSecret: my-credentials", "name: ci-of-team", "password: <REDACTED>", "mirror.example",
			"authorization: <REDACTED>", "htpasswd: <REDACTED>", "a: <REDACTED>", "- <REDACTED>"},
		"helm/values-3.yaml": {"name: DB_PASSWORD\n    value: <REDACTED>"},
		"status.txt":         {"healthy"},
		"summary.txt": {"Kubernetes", "zarf-registry 0.1.0, revision 3, failed", "n1    v1.36.3  containerd://2.2.1  Debian 13  6.12    amd64",
			"preflight.txt: no chart", "Secrets are not collected", "logs/zarf-registry-0_registry.log"},
	} {
		for _, text := range want {
			if !strings.Contains(masked[file], text) {
				t.Errorf("%s lacks %q:\n%.2000s", file, text, masked[file])
			}
		}
	}
	if e := masked["events.txt"]; strings.Index(e, "First") > strings.Index(e, "Second") {
		t.Errorf("events are not sorted:\n%s", e)
	}
	if strings.Contains(masked["objects/configmaps.yaml"], "a-field-manager") || strings.Contains(masked["objects/pods.yaml"], "elsewhere") {
		t.Error("objects of others, or managers of fields, are in the bundle")
	}
	if masked["metrics/zarf-registry-cache-0.loaded.json"] == "" || masked["logs/zarf-registry-cache-0_cache.log"] == "" {
		t.Error("the log of a cache, or what it has loaded, is missing")
	}
	if masked["metrics/zarf-registry-healer-0.txt"] == "" || masked["metrics/zarf-registry-healer-0.loaded.json"] != "" {
		t.Error("healers have metrics, and load nothing")
	}
	want := []string{"preflight.txt: no chart"}
	if len(result.Missing) != len(want) {
		t.Errorf("missing: %q", result.Missing)
	}
	for _, text := range want {
		if !slices.ContainsFunc(result.Missing, func(what string) bool { return strings.Contains(what, text) }) {
			t.Errorf("missing: %q lacks %q", result.Missing, text)
		}
	}
	for _, f := range result.Files {
		if int64(len(masked[f.Name])) != f.Size && f.Name != "summary.txt" {
			t.Errorf("%s has %d bytes, the result says %d", f.Name, len(masked[f.Name]), f.Size)
		}
	}
}

func TestWhatMayNotBeReadIsMissing(t *testing.T) {
	files, result := write(t, options(t, "list secrets", "list nodes", "list events", "get pods/log", "list roles",
		"list certificates"))
	for _, want := range []string{"helm: ", "objects/nodes.yaml: ", "objects/roles.yaml: ",
		"events.txt: ", "logs/zarf-registry-0_registry.log: ", "logs/zarf-registry-0_registry.previous.log: "} {
		if !slices.ContainsFunc(result.Missing, func(what string) bool { return strings.HasPrefix(what, want) }) {
			t.Errorf("missing: %q lacks %q", result.Missing, want)
		}
		if !strings.Contains(files["summary.txt"], "  - "+want) {
			t.Errorf("the summary lacks %q:\n%s", want, files["summary.txt"])
		}
	}
	if slices.ContainsFunc(result.Missing, func(what string) bool { return strings.Contains(what, "certificates") }) {
		t.Errorf("a kind that the cluster does not know is missing: %q", result.Missing)
	}
	if files["objects/pods.yaml"] == "" || files["metrics/zarf-registry-0.txt"] == "" {
		t.Errorf("the rest is missing, too: %v", slices.Sorted(maps.Keys(files)))
	}
}

func TestAPodThatDoesNotAnswerDelaysFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(t)
		o.Fetch = func(ctx context.Context, _ *corev1.Pod, _ string, w io.Writer) error {
			fmt.Fprintln(w, "the beginning")
			<-ctx.Done()
			return errors.New("connection closed")
		}
		begin := time.Now()
		files, result := write(t, o)
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("it took %s", took)
		}
		if files["metrics/zarf-registry-0.txt"] != "the beginning\n" {
			t.Errorf("metrics: %q", files["metrics/zarf-registry-0.txt"])
		}
		if !slices.Contains(result.Missing, "metrics/zarf-registry-0.txt: no answer within 5s") {
			t.Errorf("missing: %q", result.Missing)
		}
	})
}

func TestTheTimeoutEndsTheCollectionAndNotTheBundle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(t)
		o.Timeout = time.Second
		o.Fetch = func(ctx context.Context, _ *corev1.Pod, _ string, _ io.Writer) error {
			<-ctx.Done()
			return ctx.Err()
		}
		o.Reports = []support.Report{{Name: "late.txt", Write: func(ctx context.Context, _ io.Writer) error {
			<-ctx.Done()
			return ctx.Err()
		}}}
		files, result := write(t, o)
		if !slices.Contains(result.Missing, "late.txt: not done within 1s (--timeout)") || files["summary.txt"] == "" {
			t.Errorf("missing: %q", result.Missing)
		}
	})
}

func TestANodeThatDoesNotAnswerDelaysOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(t)
		logs := 0
		o.Client.(*fake.Clientset).PrependReactor("get", "pods", func(a kubetesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() != "log" {
				return false, nil, nil
			}
			logs++
			time.Sleep(31 * time.Second)
			return true, nil, errors.New("dial tcp: i/o timeout")
		})
		o.Timeout = 10 * time.Minute
		files, result := write(t, o)
		if logs != 1 || files["status.txt"] == "" || files["metrics/zarf-registry-0.txt"] == "" {
			t.Errorf("%d logs were asked for; the bundle has %q", logs, slices.Sorted(maps.Keys(files)))
		}
		if !slices.Contains(result.Missing, "logs/zarf-registry-0_registry.previous.log: its node does not answer") {
			t.Errorf("missing: %q", result.Missing)
		}
	})
}

func TestRecordsOfHelmThatCannotBeDecodedAreMissing(t *testing.T) {
	o := options(t)
	client := o.Client.(*fake.Clientset)
	list, err := client.CoreV1().Secrets("zarf").List(t.Context(), metav1.ListOptions{LabelSelector: "owner=helm"})
	if err != nil || len(list.Items) != 3 {
		t.Fatalf("%d records, %v", len(list.Items), err)
	}
	for _, record := range list.Items {
		record.Data = map[string][]byte{"release": []byte("truncated")}
		require.NoError(t, client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("secrets"), &record, "zarf"))
	}
	_, result := write(t, o)
	if !slices.Contains(result.Missing, "helm: no record of the release can be decoded") {
		t.Errorf("missing: %q", result.Missing)
	}
}

func TestACanceledRunWritesNoBundle(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := options(t)
	o.Reports = []support.Report{{Name: "x", Write: func(context.Context, io.Writer) error {
		cancel()
		return nil
	}}}
	if _, err := support.Write(ctx, io.Discard, o); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestAnErrorOfTheArchiveIsReturned(t *testing.T) {
	if _, err := support.Write(t.Context(), full{}, options(t)); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("error %v", err)
	}
}

func TestLimits(t *testing.T) {
	o := options(t)
	o.Timeout = time.Hour
	line := strings.Repeat("x", 1<<10-1) + "\n"
	o.Reports = []support.Report{{Name: "large.txt", Write: func(_ context.Context, w io.Writer) error {
		for range 70 << 10 {
			if _, err := io.WriteString(w, line); err != nil {
				return err
			}
		}
		return nil
	}}}
	o.Fetch = func(_ context.Context, _ *corev1.Pod, _ string, w io.Writer) error {
		for range 3 << 10 {
			if _, err := io.WriteString(w, line); err != nil {
				return err
			}
		}
		return nil
	}
	files, result := write(t, o)
	if n := len(files["large.txt"]); n != 64<<20 {
		t.Errorf("the file has %d bytes", n)
	}
	for _, want := range []string{"large.txt: cut after 64 MiB", "metrics/zarf-registry-0.txt: more than 2 MiB"} {
		if !slices.Contains(result.Missing, want) {
			t.Errorf("missing: %q lacks %q", result.Missing, want)
		}
	}
}

func TestALogThatTheRuntimeRemovedIsMissing(t *testing.T) {
	o := options(t)
	o.Client.(*fake.Clientset).PrependReactor("get", "pods", func(a kubetesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "log" || !a.(kubetesting.GenericAction).GetValue().(*corev1.PodLogOptions).Previous {
			return false, nil, nil
		}
		return true, &runtime.Unknown{Raw: []byte("unable to retrieve container logs for containerd://0123")}, nil
	})
	files, result := write(t, o)
	const file = "logs/zarf-registry-0_registry.previous.log"
	if !slices.Contains(result.Missing, file+": the container runtime has removed it") || files[file] != "" {
		t.Errorf("the log is %q; missing: %q", files[file], result.Missing)
	}
}
