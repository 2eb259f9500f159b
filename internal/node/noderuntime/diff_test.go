package noderuntime

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDiff(t *testing.T) {
	const head = "--- OLD f\n+++ NEW f\n"
	ca := authority(t)
	for name, c := range map[string]struct {
		kind     Kind
		old, new string
		want     string
	}{
		"no change": {KindRegistries, "a: b\n", "a: b\n", ""},
		"a comment that is a secret": {
			KindRegistries, "mirrors: {}\n", "mirrors: {} # hunter2\n", "f: only comments, order or layout changed\n",
		},
		"only comments": {
			KindHosts,
			"# hunter2\n",
			"server = \"https://x\"\n",
			head + "@@ -1 +1 @@\n-(only comments)\n+server = \"https://x\"\n",
		},
		"a secret in another style": {
			KindRegistries, "configs: {x: {auth: {password: 'hunter2'}}}", "configs: {x: {auth: {password: hunter2}}}",
			"f: only comments, order or layout changed\n",
		},
		"keeps the document's order": {
			KindRegistries,
			"mirrors: {b.io: , a.io: }",
			"mirrors: {a.io: , b.io: }",
			head + "@@ -1,3 +1,3 @@\n mirrors:\n+  a.io:\n   b.io:\n-  a.io:\n",
		},
		"a secret of another type": {
			KindRegistries,
			"configs: {x: {auth: {password: {hunter2: 1}}}}",
			"configs: {x: {auth: {password: hunter2}}}",
			head +
				"@@ -1,4 +1,4 @@\n configs:\n   x:\n     auth:\n-      password: <REDACTED>\n+      password: <REDACTED> " +
				"(changed)\n",
		},
		"a password in a URL": {
			KindRegistries,
			"mirrors: {x: {endpoint: ['http://u:hunter2@y']}}",
			"mirrors: {x: {endpoint: [z.io, 'http://u:hunter3@y']}}",
			head +
				"@@ -1,4 +1,5 @@\n mirrors:\n   x:\n     endpoint:\n-      - \"http://<REDACTED>@y\"\n+      - \"z.io\"\n+      " +
				"- \"http://<REDACTED>@y\" (changed)\n",
		},
		"a shown value of another type": {
			KindRegistries,
			"mirrors: {x: {endpoint: hunter2}}",
			"mirrors: {x: {rewrite: {a: [hunter2]}}}",
			head + "@@ -1,3 +1,4 @@\n mirrors:\n   x:\n-    endpoint: <REDACTED>\n+    rewrite:\n+      a: <REDACTED>\n",
		},
		"an unknown key": {
			KindRegistries,
			"hunter: hunter2\n",
			"hunter: {a: hunter3}\n",
			head + "@@ -1 +1 @@\n-hunter: <REDACTED>\n+hunter: <REDACTED> (changed)\n",
		},
		"a merge is expanded": {KindRegistries, "mirrors: {}",
			"mirrors:\n  a: &a\n    endpoint: [x.io]\n    rewrite: {b: c/d}\n  d:\n    <<: *a\n    endpoint: [z.io]\n",
			head +
				"@@ -1 +1,11 @@\n-mirrors: {}\n+mirrors:\n+  a:\n+    endpoint:\n+      - \"x.io\"\n+    rewrite:\n+      b: " +
				"\"c/d\"\n+  d:\n+    endpoint:\n+      - \"z.io\"\n+    rewrite:\n+      b: \"c/d\"\n"},
		"an unparsable file": {
			KindRegistries,
			"a: [hunter2",
			"mirrors: {}",
			head + "@@ -1 +1 @@\n-(11 bytes of invalid registries.yaml: not shown)\n+mirrors: {}\n",
		},
		"two unparsable files": {
			KindHosts,
			"a = hunter2",
			"a = hunter3",
			head +
				"@@ -1 +1 @@\n-(11 bytes of invalid hosts.toml: not shown)\n+(11 bytes of invalid hosts.toml: not shown) " +
				"(changed)\n",
		},
		"a header": {
			KindHosts,
			"[header]\nAuthorization = \"hunter2\"",
			"[header]\nAuthorization = [\"hunter3\"]\nhunter2 = \"a\"",
			head +
				"@@ -1,2 +1,3 @@\n [header]\n-  Authorization = <REDACTED>\n+  Authorization = [<REDACTED>] (changed)\n+  " +
				"<REDACTED> = <REDACTED>\n",
		},
		"authorities": {
			KindCA, "", string(ca), head + "@@ -1 +1 @@\n-(only comments)\n+" + shownOf(t, ca) + "\n",
		},
		"a key among certificates": {
			KindCA,
			string(ca),
			"-----BEGIN PRIVATE KEY-----\naHVudGVyMg==\n-----END PRIVATE KEY-----\n",
			head + "@@ -1 +1 @@\n-" + shownOf(t, ca) + "\n+(67 bytes of invalid ca.crt: not shown)\n",
		},
		"CRI-O's": {
			KindRegistriesConf,
			"[[registry]]\nprefix = \"a\"\nmirror = [{location = \"b\"}]",
			"credential-helpers = [\"hunter2\"]\n[[registry]]\nprefix = \"a\"\n[[registry.mirror]]\nlocation = \"c\"",
			head +
				"@@ -1,4 +1,5 @@\n+credential-helpers = [<REDACTED>]\n [[registry]]\n   prefix = \"a\"\n   " +
				"[[registry.mirror]]\n-    location = \"b\"\n+    location = \"c\"\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Diff("f", c.kind, []byte(c.old), []byte(c.new))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s\n%s", diff, got)
			}
			if strings.Contains(got, "hunter2") || strings.Contains(got, "hunter3") {
				t.Error("a secret is displayed")
			}
		})
	}
}

func TestDiffOfNewAndRemovedFiles(t *testing.T) {
	content := []byte("mirrors: {x.io: }\n")
	if got, want := Diff("f", KindRegistries, nil, content), "mirrors:\n  x.io:\n"; got != want {
		t.Errorf("a new file: %q", got)
	}
	if got, want := Diff(
		"f", KindRegistries, content, nil,
	), "--- OLD f\n+++ NEW f\n@@ -1,2 +0,0 @@\n-mirrors:\n-  x.io:\n"; got != want {
		t.Errorf("a removed file: %q", got)
	}
}

func shownOf(t *testing.T, ca []byte) string {
	t.Helper()
	v := viewCertificates(ca)
	if len(v) != 1 || !strings.Contains(v[0].text, "CN=nodes' proxies\", SHA-256 ") ||
		!strings.HasSuffix(v[0].text, ", until 2026-01-03") {
		t.Fatalf("certificates: %v", v)
	}
	return v[0].text
}

// The places in a URL where users put secrets, valid or not.
func TestURLsAreMasked(t *testing.T) {
	for url, want := range map[string]string{
		"https://registry.example.com:5000/v2": "https://registry.example.com:5000/v2",
		"registry.example.com/a":               "registry.example.com/a",
		"https://u:hunter2@x":                  "https://<REDACTED>@x",
		"https://hunter2@x/y":                  "https://<REDACTED>@x/y",
		"u:hunter2@x.io":                       "<REDACTED>@x.io",
		"https:u:hunter2@x.io":                 "<REDACTED>@x.io",
		"hunter2":                              redacted,
		"localhost":                            "localhost",
		"https:/u:hunter2@x":                   redacted,
		"https:///u:hunter2@x":                 redacted,
		"https://u:hun/ter2@x":                 redacted,
		"https://u:1/hunter2@x":                redacted,
		"https://u:1/hunter2%40x":              redacted,
		"https://u%3Ahunter2%40x":              redacted,
		"https://u#hunter2@x":                  "https://u#<REDACTED>",
		"https://u?hunter2@x":                  "https://u?<REDACTED>",
		"https://x?hunter2":                    "https://x?<REDACTED>",
		"https://x?token=hunter2&hunter2":      "https://x?token=<REDACTED>&<REDACTED>",
		"https://x?a b=hunter2":                "https://x?<REDACTED>",
		"https://x?":                           "https://x?<REDACTED>",
		"https://[fd00::1]:5000":               "https://[fd00::1]:5000",
		"https://x y/hunter2":                  redacted,
		"hunter2://x":                          redacted,
		"https://x/hunter%202":                 redacted,
		"hunter2\n":                            redacted,
		"":                                     redacted,
	} {
		if got, hidden := maskURL(url); got != want || hidden != strings.Contains(want, redacted) {
			t.Errorf("%q: %q, %v", url, got, hidden)
		}
	}
}
