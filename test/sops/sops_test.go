// Package sops follows docs/reference/sops.md with the real sops, age and helm.
package sops

import (
	"encoding/base64"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// nodeConfigSecret is the chart's Secret with the node configuration, and keyRegistries its key for
// K3s.
const (
	nodeConfigSecret = "zarf-registry-node-config"
	keyRegistries    = "registries.yaml"
)

// sopsUsers have passwords that a tool on the way might misinterpret.
var sopsUsers = map[string]string{
	"plain.example":           "correct-horse-battery",
	"octal.example:5000":      "0123456701",
	"number.example":          "1234567890123456789012",
	"exponent.example":        "1e1234567",
	"underscores.example":     "1_000_000_1",
	"sexagesimal.example":     "12:34:56:01",
	"date.example":            "1999-12-31",
	"signs.example":           `$d"q'b\t#%{{ .Values }}&*!|>-`,
	"spaces.example":          "  in front and behind  ",
	"letters.example":         "pässwörd-日本-🔑",
	"lines.example":           "first line\n\n  second line\n",
	"encrypted.example":       "ENC[AES256_GCM,data:none]",
	"[fd00::1]:5000":          "on-an-address-of-ipv6",
	"trailing-colon.example.": "colon-at-the-end:",
}

var (
	// ciphertext matches what sops writes in place of a value, and of the key.
	ciphertext = regexp.MustCompile(`(?s)ENC\[AES256_GCM[^\]]*\]|-----BEGIN AGE.*?END AGE ENCRYPTED FILE-----`)
	// base64Words matches words that are long enough to hold a secret.
	base64Words = regexp.MustCompile(`[A-Za-z0-9+/]{8,}={0,2}`)
)

// execFile renders the chart with values that sops decrypts for Helm alone.
const execFile = `sops exec-file values.enc.yaml ` +
	`'helm template zarf-registry "$CHART" -n zarf --kube-version 1.36.0 -f {}'`

// sopsDir is a directory like a repository with encrypted files.
type sopsDir struct {
	dir, chart string
	env        []string
}

// TestSOPS renders the chart from encrypted values and with an encrypted Secret, for many passwords.
func TestSOPS(t *testing.T) {
	s := newSOPSDir(t)
	text := s.registriesText(t)
	for name, registries := range map[string]any{
		"a map":    registriesMap(),
		"a string": text,
	} {
		t.Run("values with "+name, func(t *testing.T) { s.values(t, registries, text) })
	}
	t.Run("an existing Secret", func(t *testing.T) { s.existingSecret(t, text) })
}

// newSOPSDir makes a directory with a key and the configuration of sops.
func newSOPSDir(t *testing.T) *sopsDir {
	t.Helper()
	chart := require.Value(filepath.Abs(filepath.Join("..", "..", "charts", "zarf-registry")))(t)
	if _, err := os.Stat(filepath.Join(chart, "files", "programs.json")); err != nil {
		t.Skipf("SKIPPED, NOTHING CHECKED: %v: run make payload", err)
	}
	for _, tool := range []string{"sops", "age-keygen", "helm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED, NOTHING CHECKED: %v: make unit-all builds it", err)
		}
	}
	s := &sopsDir{dir: t.TempDir(), chart: chart}
	// Without the keys and the cluster of the user who runs the test.
	s.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "SOPS_AGE_KEY_FILE=keys.txt", "KUBECONFIG=/dev/null",
		"CHART=" + s.chart,
	}
	s.sh(t, `age-keygen -o keys.txt`)
	s.write(t, ".sops.yaml", strings.ReplaceAll(`creation_rules:
  - path_regex: values\.enc\.yaml$
    age: RECIPIENT
  - path_regex: secret\.enc\.yaml$
    encrypted_regex: ^(data|stringData)$
    age: RECIPIENT
`, "RECIPIENT", strings.TrimSpace(s.sh(t, `age-keygen -y keys.txt`))))
	return s
}

// try runs a script with pipefail, as continuous integration does.
func (s *sopsDir) try(t *testing.T, script string, env ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = s.dir, append(slices.Clone(s.env), env...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// sh runs a script that must succeed.
func (s *sopsDir) sh(t *testing.T, script string, env ...string) string {
	t.Helper()
	out, errOut, err := s.try(t, script, env...)
	require.NoError(t, err, script, errOut)
	return out
}

func (s *sopsDir) write(t *testing.T, name, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600))
}

func (s *sopsDir) read(t *testing.T, name string) string {
	t.Helper()
	return string(require.Value(os.ReadFile(filepath.Join(s.dir, name)))(t))
}

// registriesMap returns a registries.yaml with all users.
func registriesMap() map[string]any {
	configs := map[string]any{}
	for host, password := range sopsUsers {
		configs[host] = map[string]any{"auth": map[string]any{"username": "user-of-" + host, "password": password}}
	}
	return map[string]any{
		"mirrors": map[string]any{"docker.io": map[string]any{"endpoint": []string{"https://plain.example"}}},
		"configs": configs,
	}
}

// registriesText is the same as text, with comments and blank lines.
func (s *sopsDir) registriesText(t *testing.T) string {
	t.Helper()
	text := require.Value(sigsyaml.Marshal(registriesMap()))(t)
	return "# Ask the platform team; the old password was previous-secret-in-a-comment.\n\n" + string(text) +
		"\n# End.  \n"
}

// secretWords are the words that an encrypted file must not contain.
func secretWords() []string {
	words := []string{"previous-secret-in-a-comment"}
	for host, password := range sopsUsers {
		words = append(words, "user-of-"+host, strings.TrimSpace(strings.SplitN(password, "\n", 2)[0]))
	}
	return words
}

// holdsNone fails if a text contains a secret, in plain text or in base64.
func holdsNone(t *testing.T, what, text string) {
	t.Helper()
	for _, word := range secretWords() {
		if strings.Contains(text, word) {
			t.Errorf("%s has %q", what, word)
		}
	}
	for _, encoded := range base64Words.FindAllString(text, -1) {
		decoded, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			continue
		}
		for _, word := range secretWords() {
			if strings.Contains(string(decoded), word) {
				t.Errorf("%s has %q in base64", what, word)
			}
		}
	}
}

// values encrypts values and renders the chart with them.
func (s *sopsDir) values(t *testing.T, registries any, text string) {
	plain, err := sigsyaml.Marshal(map[string]any{
		"registryProxy": true, "ipFamily": "IPv4",
		"nodeConfig": map[string]any{"k3s": map[string]any{"registries": registries}},
	})
	require.NoError(t, err)
	s.write(t, "values.yaml", string(plain))
	s.write(t, "values.enc.yaml", string(plain))
	s.sh(t, `sops encrypt --in-place values.enc.yaml`)
	encrypted := s.read(t, "values.enc.yaml")
	if !strings.Contains(encrypted, "ENC[AES256_GCM") {
		t.Fatalf("the file is not encrypted:\n%s", encrypted)
	}
	holdsNone(t, "values.enc.yaml", withoutCiphertext(encrypted))

	want := s.sh(t, `helm template zarf-registry "$CHART" -n zarf --kube-version 1.36.0 -f values.yaml`)
	got := registriesOf(t, want)
	if _, isText := registries.(string); isText && got != text {
		t.Errorf("registries.yaml is\n%s\nwant\n%s", got, text)
	}
	wellUnderstood(t, got)
	for name, script := range map[string]string{
		"sops -d | helm": `sops -d values.enc.yaml | helm template zarf-registry "$CHART" -n zarf --kube-version 1.36.0 -f -`,
		"sops exec-file": execFile,
	} {
		t.Run(name, func(t *testing.T) {
			out := s.sh(t, script)
			if encrypted := registriesOf(t, out); encrypted != got {
				t.Errorf("registries.yaml is\n%s\nwant\n%s", encrypted, got)
			}
			if out != want {
				t.Error("the output differs from that with plain values")
			}
		})
		t.Run(name+", with a wrong key", func(t *testing.T) {
			other := filepath.Join(t.TempDir(), "keys.txt")
			s.sh(t, `age-keygen -o "$OTHER"`, "OTHER="+other)
			out, errOut, err := s.try(t, script, "SOPS_AGE_KEY_FILE="+other)
			if err == nil || !strings.Contains(errOut, "Failed to get the data key") {
				t.Errorf("the error is %v: %s", err, errOut)
			}
			// A pipe cannot stop helm from rendering without the values.
			if strings.Contains(out, nodeConfigSecret) || name == "sops exec-file" && out != "" {
				t.Errorf("helm rendered\n%s", out)
			}
		})
	}
	t.Run("another password", func(t *testing.T) {
		s.sh(t, `sops edit values.enc.yaml`, `EDITOR=sed -i s/correct-horse-battery/other-horse-battery/`)
		out := s.sh(t, execFile)
		if changed := registriesOf(t, out); changed != strings.ReplaceAll(got, "correct-horse-battery",
			"other-horse-battery") {
			t.Errorf("registries.yaml is\n%s", changed)
		}
		if checksumOf(t, out) == checksumOf(t, want) {
			t.Error("the pods that configure nodes are not replaced")
		}
	})
}

// existingSecret encrypts a Secret and renders the chart with its name only.
func (s *sopsDir) existingSecret(t *testing.T, text string) {
	manifest, err := sigsyaml.Marshal(corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "zarf", Name: "node-registries"},
		StringData: map[string]string{keyRegistries: text},
	})
	require.NoError(t, err)
	s.write(t, "secret.enc.yaml", string(manifest))
	s.sh(t, `sops encrypt --in-place secret.enc.yaml`)
	encrypted := s.read(t, "secret.enc.yaml")
	holdsNone(t, "secret.enc.yaml", withoutCiphertext(encrypted))
	if !strings.Contains(encrypted, "name: node-registries") || !strings.Contains(encrypted, "ENC[AES256_GCM") {
		t.Errorf("the file is encrypted wrongly:\n%s", encrypted)
	}

	var applied corev1.Secret // what sops -d secret.enc.yaml | kubectl apply -f - would apply
	require.NoError(t, sigsyaml.UnmarshalStrict([]byte(s.sh(t, `sops -d secret.enc.yaml`)), &applied))
	if applied.Kind != "Secret" || applied.Namespace != "zarf" || applied.StringData[keyRegistries] != text {
		t.Errorf("it is\n%+v", applied)
	}
	rendered := s.sh(t, `helm template zarf-registry "$CHART" -n zarf --kube-version 1.36.0 `+
		`--set registryProxy=true,ipFamily=IPv4 --set nodeConfig.k3s.existingSecret=node-registries`)
	holdsNone(t, "what is rendered", rendered)
	mounted := false
	for _, d := range objects[appsv1.DaemonSet](t, rendered, "DaemonSet") {
		for _, v := range d.Spec.Template.Spec.Volumes {
			if v.Projected == nil {
				continue
			}
			mounted = mounted || slices.ContainsFunc(v.Projected.Sources, func(p corev1.VolumeProjection) bool {
				return p.Secret != nil && p.Secret.Name == applied.Name &&
					slices.Equal(p.Secret.Items, []corev1.KeyToPath{{Key: keyRegistries, Path: keyRegistries}})
			})
		}
	}
	if !mounted {
		t.Error("no pod mounts the Secret")
	}
}

// withoutCiphertext removes what sops wrote in place of values: short words occur in it by chance.
func withoutCiphertext(text string) string { return ciphertext.ReplaceAllString(text, "") }

// wellUnderstood parses registries.yaml as K3s does and compares the passwords.
func wellUnderstood(t *testing.T, text string) {
	t.Helper()
	var registries struct {
		Configs map[string]struct {
			Auth struct{ Username, Password string }
		}
	}
	require.NoError(t, sigsyaml.Unmarshal([]byte(text), &registries))
	for host, password := range sopsUsers {
		if got := registries.Configs[host].Auth; got.Password != password || got.Username != "user-of-"+host {
			t.Errorf("%s has %+v, want the password %q", host, got, password)
		}
	}
}

// registriesOf returns registries.yaml from the Secret that pods mount. That of the hook must be
// the same.
func registriesOf(t *testing.T, rendered string) string {
	t.Helper()
	found := map[string]string{}
	for _, secret := range objects[corev1.Secret](t, rendered, "Secret") {
		if content, ok := secret.Data[keyRegistries]; ok {
			found[secret.Name] = string(content)
		}
	}
	content, ok := found[nodeConfigSecret]
	if !ok || len(found) != 2 || found[nodeConfigSecret+"-proposal"] != content {
		t.Fatalf("Secrets with %s: %q", keyRegistries, found)
	}
	return content
}

// checksumOf returns the annotation whose change replaces the pods.
func checksumOf(t *testing.T, rendered string) string {
	t.Helper()
	for _, d := range objects[appsv1.DaemonSet](t, rendered, "DaemonSet") {
		if checksum, ok := d.Spec.Template.Annotations["zarf-registry/node-config-checksum"]; ok {
			return checksum
		}
	}
	t.Fatal("no DaemonSet has a checksum")
	return ""
}

// objects returns the rendered objects of a kind.
func objects[T any](t *testing.T, rendered, kind string) []T {
	t.Helper()
	var found []T
	documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(rendered), 4096)
	for {
		var document map[string]any
		err := documents.Decode(&document)
		if errors.Is(err, io.EOF) {
			return found
		}
		require.NoError(t, err)
		if document["kind"] != kind {
			continue
		}
		var object T
		text, err := sigsyaml.Marshal(document)
		if err == nil {
			err = sigsyaml.Unmarshal(text, &object)
		}
		require.NoError(t, err)
		found = append(found, object)
	}
}
