package mask_test

import (
	"encoding/json"
	"strings"
	"testing"

	"gopkg.in/yaml.v2"

	"github.com/zarf-dev/zarf-registry/internal/mask"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestDocument(t *testing.T) {
	for name, c := range map[string]struct{ document, want string }{
		"registries.yaml": {
			"configs: {'h:5': {auth: {username: u, password: 12, identity_token: t, other: {x: [y]}}, tls: {ca_file: /a, " +
				"key_file: /k, insecure_skip_verify: true}}}",
			`{"configs":{"h:5":{"auth":{"identity_token":"<REDACTED>","other":{"x":["<REDACTED>"]},"password":"<REDACTED>",` +
				`"username":"<REDACTED>"},"tls":{"ca_file":"/a","insecure_skip_verify":true,"key_file":"<REDACTED>"}}}}`,
		},
		"keys in other notations": {
			"{Password: a, registryToken: b, identitytoken: c, tls.key: d, accessKey: e, secret-key: f, htpasswd: g}",
			`{"Password":"<REDACTED>","accessKey":"<REDACTED>","htpasswd":"<REDACTED>","identitytoken":"<REDACTED>",` +
				`"registryToken":"<REDACTED>","secret-key":"<REDACTED>","tls.key":"<REDACTED>"}`,
		},
		"a Secret": {
			"{kind: Secret, metadata: {name: x}, data: {a: b}, stringData: {c: d}}",
			`{"data":{"a":"<REDACTED>"},"kind":"Secret","metadata":{"name":"x"},"stringData":{"c":"<REDACTED>"}}`,
		},
		"a pod": {
			"{metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: all}}, env: [{name: TOKEN, value: t}, " +
				"{name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}, {name: LEVEL, value: debug}, " +
				"{name: HTTPS_PROXY, value: 'http://u:p@h:1'}], volumes: [{secret: {secretName: s}}]}",
			`{"env":[{"name":"TOKEN","value":"<REDACTED>"},{"name":"TOKEN","valueFrom":{"secretKeyRef":{"key":"k","name":"s"}}},` +
				`{"name":"LEVEL","value":"debug"},{"name":"HTTPS_PROXY","value":"http://<REDACTED>@h:1"}],` +
				`"metadata":{"annotations":{}},"volumes":[{"secret":{"secretName":"s"}}]}`,
		},
		"names of Secrets": {
			"{existingSecret: a, imagePullSecrets: [b], token: null, password: ''}",
			`{"existingSecret":"a","imagePullSecrets":["b"],"password":"","token":null}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var document any
			require.NoError(t, yaml.Unmarshal([]byte(c.document), &document))
			var encoded strings.Builder
			encoder := json.NewEncoder(&encoded)
			encoder.SetEscapeHTML(false)
			require.NoError(t, encoder.Encode(mask.Document(document)))
			if got := strings.TrimSpace(encoded.String()); got != c.want {
				t.Errorf("masked:\n%s\nwant:\n%s", got, c.want)
			}
		})
	}
}

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"https://registry.example.com:5000/v2":              "",
		"docker://host:5000/team/app:1@sha256:0123":         "",
		"host:5000/app:1@sha512:0":                          "",
		"alice@example.com":                                 "",
		"see https://u:pw@x/y and http://pw@z":              "see https://<REDACTED>@x/y and http://<REDACTED>@z",
		"https://u:p/w@x":                                   "https://<REDACTED>@x",
		"u:pw@x.io":                                         "<REDACTED>@x.io",
		"HTTPS_PROXY=me:pw@host:3128":                       "HTTPS_PROXY=<REDACTED>@host:3128",
		"https://x/y?token=pw&a":                            "https://x/y?<REDACTED>",
		"https://x#pw":                                      "https://x#<REDACTED>",
		"a\n-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END": "<REDACTED>",
	} {
		if want == "" {
			want = text
		}
		if got := mask.Text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
