package mask_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/status/mask"
)

const password = `pa55+word/"with'<all>&such$`

func TestKnownValuesAreMaskedInEveryForm(t *testing.T) {
	quoted, _ := json.Marshal(password)
	twice, _ := json.Marshal(string(quoted))
	docker := base64.StdEncoding.EncodeToString([]byte("push:" + password))
	config := fmt.Sprintf(`{ "x": {"registry": {"blob": %q}}}`, docker)
	for name, text := range map[string]string{
		"plain":                    password,
		"within a word":            "x" + password + "y",
		"twice":                    password + password,
		"JSON":                     string(quoted),
		"JSON in JSON":             string(twice),
		"Go":                       strconv.Quote(password),
		"YAML":                     "'" + strings.ReplaceAll(password, "'", "''") + "'",
		"a query":                  url.QueryEscape(password),
		"a path":                   url.PathEscape(password),
		"base64":                   base64.StdEncoding.EncodeToString([]byte(password)),
		"base64, one byte later":   base64.StdEncoding.EncodeToString([]byte("a" + password + "b")),
		"base64, two bytes later":  base64.StdEncoding.EncodeToString([]byte("ab" + password + "b")),
		"base64 of URLs":           base64.RawURLEncoding.EncodeToString([]byte("ab" + password)),
		"a docker credential":      docker,
		"a docker file in base64":  base64.StdEncoding.EncodeToString([]byte(config)),
		"base64 of JSON":           base64.StdEncoding.EncodeToString(quoted),
		"base64 of base64":         base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString(quoted))),
		"base64 of JSON in base64": base64.URLEncoding.EncodeToString([]byte("." + base64.URLEncoding.EncodeToString(quoted))),
	} {
		t.Run(name, func(t *testing.T) {
			m := mask.New()
			// Other forms than that of known values are not masked, so that the test can fail.
			if got := m.String("before " + text + " after"); got != "before "+text+" after" && name != "a docker file in base64" {
				t.Fatalf("without a known value: %s", got)
			}
			m.Add(password)
			got := m.String("before " + text + " after")
			rest := strings.NewReplacer("before ", "", " after", "", mask.Masked, "").Replace(got)
			if !strings.Contains(got, mask.Masked) || !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
				t.Errorf("masked: %s", got)
			}
			if strings.Contains(rest, "pa55") || strings.Contains(rest, "such") {
				t.Errorf("a part remains: %s", got)
			}
		})
	}
}

func TestNoBitOfAKnownValueRemainsNextToItsBase64(t *testing.T) {
	m := mask.New()
	m.Add("secret1")
	for before := range 3 {
		shown := map[string]bool{}
		for _, next := range []string{"secret1", "decret1"} {
			m.Add(next)
			shown[m.String(base64.StdEncoding.EncodeToString([]byte("abc"[:before]+next+"z")))] = true
		}
		if len(shown) != 1 {
			t.Errorf("%d bytes before: results differ: %v", before, shown)
		}
	}
}

func TestOverlappingValuesLeaveNothing(t *testing.T) {
	m := mask.New()
	for _, value := range []string{"abcdefgh", "efghijkl", "ijklmnop"} {
		m.Add(value)
	}
	if got := m.String("<abcdefghijklmnop>"); got != "<(masked)>" {
		t.Errorf("masked: %s", got)
	}
}

func TestLongValuesAreMaskedWhole(t *testing.T) {
	value := strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyz\"", 300) + "end"
	quoted, _ := json.Marshal(value)
	m := mask.New()
	m.Add(value)
	for _, text := range []string{value, string(quoted[1 : len(quoted)-1]), base64.StdEncoding.EncodeToString([]byte(value))} {
		if got := m.String("<" + text + ">"); got != "<(masked)>" {
			t.Errorf("masked: %.100s … %s", got, got[max(0, len(got)-100):])
		}
	}
}

func TestAddTellsWhatCannotBeSearched(t *testing.T) {
	for value, want := range map[string]bool{
		"": true, " \n": true, "short": false, " short \n": false, "sixsix": true, "a\nb\n": false, "a\nlonger-one": true,
	} {
		if got := mask.New().Add(value); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
	m := mask.New()
	m.Add("first-line\n  second-line  \nx\n")
	if got := m.String("- second-line\n- first-line\n"); got != "- (masked)\n- (masked)\n" {
		t.Errorf("lines: %s", got)
	}
}

const privateKey = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIBkg4LVWM9nuwNSk3yByxZpYRTBnVJk5C\nAwEHoUQDQgAE\n-----END EC PRIVATE KEY-----"

func TestWhatHasTheFormOfASecretIsMasked(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"a private key":                   {"a\n" + privateKey + "\nb", "a\n(masked)\nb"},
		"a private key in YAML":           {"k: |\n  " + strings.ReplaceAll(privateKey, "\n", "\n  ") + "\nb: c", "k: |\n  (masked)\nb: c"},
		"a private key in JSON":           {`{"k":"` + strings.ReplaceAll(privateKey, "\n", `\n`) + `\n"}`, `{"k":"(masked)\n"}`},
		"two of them":                     {strings.ReplaceAll(privateKey+privateKey, "\n", `\n`) + "x", "(masked)(masked)x"},
		"one without an end":              {strings.Split(privateKey, "-----END")[0] + "more", "(masked)\n"},
		"base64 of a private key":         {"k: " + base64.StdEncoding.EncodeToString([]byte(privateKey)), "k: (masked)"},
		"a token":                         {"got eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln done", "got (masked) done"},
		"a bearer token":                  {"curl -H 'Authorization: Bearer abc' x", "curl -H 'Authorization: (masked)' x"},
		"a header in JSON":                {`{"Authorization":["Basic YTpi"],"Accept":["x"]}`, `{"Authorization":["(masked)"],"Accept":["x"]}`},
		"a header in JSON in JSON":        {`"{\"authorization\":\"Basic YTpi\"}"`, `"{\"authorization\":\"(masked)\"}"`},
		"a bearer token in a message":     {"sent bearer 0123456789abcdef0", "sent bearer (masked)"},
		"a password in a URL":             {"pulling https://me:pass@host/v2/ failed", "pulling https://(masked)@host/v2/ failed"},
		"a password with a slash":         {`"https://me:pa/ss@host/v2/"`, `"https://(masked)@host/v2/"`},
		"a user in a URL":                 {"https://ghtoken@host/", "https://(masked)@host/"},
		"a URL without a scheme":          {"HTTPS_PROXY=me:pass@host:3128", "HTTPS_PROXY=(masked)@host:3128"},
		"an assignment":                   {"PGPASSWORD=abc x", "PGPASSWORD=(masked) x"},
		"a query":                         {"/v2/?account=a&access_token=abc", "/v2/?account=a&access_token=(masked)"},
		"JSON":                            {`{"pushPassword":"a\"b c","user":"x"}`, `{"pushPassword":"(masked)","user":"x"}`},
		"JSON in JSON":                    {`"{\"token\":\"abc\",\"a\":1}"`, `"{\"token\":\"(masked)\",\"a\":1}"`},
		"docker's auth":                   {`{"auths":{"h":{"auth":"YTpi"}}}`, `{"auths":{"h":{"auth":"(masked)"}}}`},
		"docker's configuration, base64":  {"x: " + base64.StdEncoding.EncodeToString([]byte(`{"auths":{"h":{"auth":"YTpi"}}}`)), "x: (masked)"},
		"YAML":                            {"    password: 'a b'", "    password: '(masked)'"},
		"a flag":                          {"login --password abc host", "login --password (masked) host"},
		"a flag in a list":                {`["--token","abc","--x"]`, `["--token","(masked)","--x"]`},
		"a flag in a list in JSON":        {`"[\"--token\", \"abc\"]"`, `"[\"--token\", \"(masked)\"]"`},
		"an entry of an htpasswd file":    {"push:$2y$05$abcdefghijklmnopqrstuvabcdefghijklmnopqrstuvabcdefghijk", "push:(masked)"},
		"a key of AWS":                    {"id AKIAIOSFODNN7EXAMPLE", "id (masked)"},
		"a key of age":                    {"AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQ", "(masked)"},
		"a line that is too long":         {"a\n" + strings.Repeat("x", 1<<20+1) + "\nb", "a\n(a line of more than 1 MiB is not shown)\nb"},
		"a certificate":                   {"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", ""},
		"base64 of a certificate":         {base64.StdEncoding.EncodeToString([]byte("-----BEGIN CERTIFICATE-----\nMIIB\n")), ""},
		"an image by digest":              {"docker://host:5000/team/app:1@sha256:0123 host:5000/app:1@sha256:0", ""},
		"names of Secrets":                {"existingSecret: zarf-x\nimagePullSecrets: [a]\nsecretName: b", ""},
		"constants":                       {"automountServiceAccountToken: false\ntoken:\n  x: 1\nauth: {}", ""},
		"a path":                          {"--htpasswd=/etc/auth/htpasswd --token /var/run/token", ""},
		"a challenge":                     {`Bearer realm="https://host/token",service="x"`, ""},
		"the end of a path":               {"/etc/credentials/pull-htpasswd has no users", ""},
		"words":                           {"basic authentication is required", ""},
		"metrics":                         {`go_info{version="go1"} 1`, ""},
		"masked already, by noderuntime":  {"password: <REDACTED> (changed)", ""},
		"a header that is masked already": {"-  Authorization = <REDACTED>\n+  Authorization = <REDACTED> (changed)", ""},
		"a message about a missing token": {"invalid token: ", ""},
	} {
		t.Run(name, func(t *testing.T) {
			want := c.want
			if want == "" {
				want = c.text
			}
			m := mask.New()
			got := m.String(c.text)
			if got != want {
				t.Errorf("masked:\n%.300s\nwant:\n%.300s", got, want)
			}
			if again := m.String(got); again != got {
				t.Errorf("masked again:\n%.300s", again)
			}
		})
	}
}

func TestValuesOfAChart(t *testing.T) {
	values := map[string]any{
		"auth":     map[string]any{"existingSecret": "mine", "push": []any{map[string]any{"name": "ci"}}},
		"secrets":  map[string]any{"htpasswd": "line-of-htpasswd"},
		"registry": map[string]any{"extraEnv": []any{map[string]any{"name": "S3_SECRET", "value": "env-value"}}},
		"proxy": map[string]any{"tolerations": []any{map[string]any{"key": "zarf.dev/x", "operator": "Exists"}},
			"replicas": 3.0},
		"extraObjects": []any{map[string]any{"kind": "Secret", "metadata": map[string]any{"name": "s"},
			"stringData": map[string]any{"a": "of-the-secret"}}},
		"configs": map[string]any{"auth": map[string]any{"username": "corp-user", "pin": 1234.0, "on": true}},
		"signing": map[string]any{"key": "signing-value"},
		"client":  map[string]any{"name": "shown", "secret": "named-value"},
		"args":    []any{"--password", "argument-value", "--verbose"},
	}
	m := mask.New()
	encoded, err := json.Marshal(m.Values(values))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"line-of-htpasswd", "env-value", "of-the-secret", "corp-user", "1234", "signing-value",
		"argument-value", "named-value"} {
		if strings.Contains(string(encoded), secret) {
			t.Errorf("%s remains in %s", secret, encoded)
		}
	}
	for _, public := range []string{`"existingSecret":"mine"`, `"key":"zarf.dev/x"`, `"replicas":3`, `"on":true`, `"--verbose"`,
		`"name":"S3_SECRET"`} {
		if !strings.Contains(string(encoded), public) {
			t.Errorf("%s is missing in %s", public, encoded)
		}
	}
	if got := m.String("env-value corp-user signing-value argument-value"); got != strings.TrimSpace(strings.Repeat("(masked) ", 4)) {
		t.Errorf("elsewhere: %s", got)
	}
}

func TestObject(t *testing.T) {
	object := map[string]any{"kind": "Pod",
		"metadata": map[string]any{"annotations": map[string]any{"a": "b",
			"kubectl.kubernetes.io/last-applied-configuration": "all of it"}},
		"spec": map[string]any{"containers": []any{map[string]any{"env": []any{
			map[string]any{"name": "TOKEN", "value": "t0ken-value"},
			map[string]any{"name": "TOKEN", "valueFrom": map[string]any{"secretKeyRef": map[string]any{"name": "s", "key": "k"}}},
		}}}, "hostAliases": nil, "priority": 5.0},
	}
	encoded, err := json.Marshal(mask.New().Object(object))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"kind":"Pod","metadata":{"annotations":{"a":"b"}},"spec":{"containers":[{"env":[{"name":"TOKEN",` +
		`"value":"(masked)"},{"name":"TOKEN","valueFrom":{"secretKeyRef":{"key":"k","name":"s"}}}]}],"hostAliases":null,` +
		`"priority":5}}`
	if string(encoded) != want {
		t.Errorf("masked:\n%s\nwant:\n%s", encoded, want)
	}
}
