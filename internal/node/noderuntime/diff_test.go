package noderuntime

import (
	"fmt"
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
		"a comment that is a secret": {KindRegistries, "mirrors: {}\n", "mirrors: {} # hunter2\n",
			"f: only masked values, comments, order or layout changed\n"},
		"a secret": {KindRegistries, "configs: {x: {auth: {password: hunter2}}}", "configs: {x: {auth: {password: hunter3}}}",
			"f: only masked values, comments, order or layout changed\n"},
		"an endpoint, below secrets": {KindRegistries,
			"configs: {x: {auth: {username: hunter2, identity_token: hunter2}, tls: {key_file: hunter2, ca_file: /a}}}",
			"configs: {x: {auth: {username: hunter2}, tls: {key_file: hunter2, ca_file: /b}}}",
			head + "@@ -1,8 +1,7 @@\n configs:\n   x:\n     auth:\n-      identity_token: <REDACTED>\n" +
				"       username: <REDACTED>\n     tls:\n-      ca_file: /a\n+      ca_file: /b\n       key_file: <REDACTED>\n"},
		"a password in a URL": {KindRegistries, "mirrors: {x: {endpoint: ['http://u:hunter2@y']}}",
			"mirrors: {x: {endpoint: [z.io, 'http://u:hunter3@y']}}",
			head + "@@ -1,4 +1,5 @@\n mirrors:\n   x:\n     endpoint:\n+    - z.io\n     - http://<REDACTED>@y\n"},
		"an invalid file": {KindRegistries, "a: [hunter2", "mirrors: {}",
			head + "@@ -1 +1 @@\n-(11 bytes of invalid registries.yaml: not shown)\n+mirrors: {}\n"},
		"nested aliases": {KindRegistries, bomb(), "mirrors: {}",
			head + "@@ -1 +1 @@\n-(448 bytes of invalid registries.yaml: not shown)\n+mirrors: {}\n"},
		"a header": {KindHosts, "[header]\nAuthorization = \"hunter2\"\n", "skip_verify = true\n[header]\nx = [\"hunter3\"]\n",
			head + "@@ -1,2 +1,4 @@\n header:\n-  Authorization: <REDACTED>\n+  x:\n+  - <REDACTED>\n+skip_verify: true\n"},
		"CAs": {KindCA, "", string(ca), head + "@@ -0,0 +1 @@\n+" + shownOf(t, ca)},
		"a key among certificates": {KindCA, string(ca),
			"-----BEGIN PRIVATE KEY-----\naHVudGVyMg==\n-----END PRIVATE KEY-----\n",
			head + "@@ -1 +1 @@\n-" + shownOf(t, ca) + "+(67 bytes of invalid ca.crt: not shown)\n"},
		"CRI-O's": {KindRegistriesConf, "[[registry]]\nprefix = \"a\"\nmirror = [{location = \"b\"}]",
			"[[registry]]\nprefix = \"a\"\n[[registry.mirror]]\nlocation = \"c\"",
			head + "@@ -1,4 +1,4 @@\n registry:\n - mirror:\n-  - location: b\n+  - location: c\n   prefix: a\n"},
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
	content := []byte("mirrors: {x.io: {}}\n")
	if got, want := Diff("f", KindRegistries, nil, content), "mirrors:\n  x.io: {}\n"; got != want {
		t.Errorf("a new file: %q", got)
	}
	if got, want := Diff(
		"f", KindRegistries, content, nil,
	), "--- OLD f\n+++ NEW f\n@@ -1,2 +0,0 @@\n-mirrors:\n-  x.io: {}\n"; got != want {
		t.Errorf("a removed file: %q", got)
	}
}

func shownOf(t *testing.T, ca []byte) string {
	t.Helper()
	shown := Masked(KindCA, ca)
	if strings.Count(shown, "\n") != 1 || !strings.Contains(shown, "CN=nodes' proxies\", SHA-256 ") ||
		!strings.HasSuffix(shown, ", until 2026-01-03\n") {
		t.Fatalf("certificates: %v", shown)
	}
	return shown
}

// bomb returns a small document that becomes large when its aliases are expanded.
func bomb() string {
	var b strings.Builder
	b.WriteString("a: &a [hunter2, hunter2, hunter2, hunter2, hunter2, hunter2, hunter2, hunter2]\n")
	for name := 'b'; name < 'k'; name++ {
		fmt.Fprintf(&b, "%c: &%c [%s]\n", name, name, strings.Repeat(fmt.Sprintf("*%c, ", name-1), 8))
	}
	return b.String()
}
