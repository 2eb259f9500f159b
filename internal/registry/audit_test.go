package registry

import (
	"crypto/x509"
	"encoding/json"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// auditLine is a line of the audit trail: its attributes, without time and port.
type auditLine map[string]string

// audited returns the audit trail, and fails if a line of the log is not one JSON object.
func (i *instance) audited(t *testing.T) (lines []auditLine) {
	t.Helper()
	for line := range strings.Lines(i.logs.String()) {
		var attrs map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &attrs), "in", line)
		if attrs["msg"] != "audit" {
			continue
		}
		found := auditLine{}
		for key, value := range attrs {
			found[key], _ = value.(string)
		}
		if remote, ok := found["remote"]; ok {
			host, port, err := net.SplitHostPort(remote)
			if err != nil || port == "" {
				t.Errorf("remote %q", remote)
			}
			found["remote"] = host
		}
		if found["time"] == "" {
			t.Errorf("no time in %s", line)
		}
		delete(found, "time")
		lines = append(lines, found)
	}
	return lines
}

// Claim: Each push, deletion and pruning is [logged](monitoring.md#audit-trail) with credential, reference,
// digest and origin.
func TestAuditTrail(t *testing.T) {
	t.Parallel()
	i := open(t, newTestCA(t), t.TempDir())
	// The trail does not depend on the level.
	i.server.source.Log = slog.New(slog.NewJSONHandler(i.logs, &slog.HandlerOptions{Level: slog.LevelError}))
	i.server.log = i.server.source.Log
	i.server.collector.Times = quick
	i.run()
	c := i.pusher()
	tls := auditLine{"level": "INFO", "msg": "audit", "user": pushUser, "listener": "tls",
		"remote": "127.0.0.1", "certificate": "CN=client,O=" + pki.OrganizationPush}
	plain := auditLine{"level": "INFO", "msg": "audit", "user": pushUser, "listener": "plain",
		"remote": "127.0.0.1"}
	with := func(line auditLine, action, reference string, d digest.Digest) auditLine {
		out := auditLine{"action": action, "digest": d.String()}
		if reference != "" {
			out["reference"] = reference
		}
		maps.Copy(out, line)
		return out
	}

	d, manifest := c.pushImage("team/app", "v1", "layer")
	c.pushManifest("team/app", d.String(), manifest)
	other, _ := i.plain().as(pushUser, pushPassword).pushImage("other", "v2", "other layer")
	// Nothing below fails or only reads, so it leaves no line.
	c.must(http.StatusOK, "GET", "/v2/team/app/manifests/v1", nil, "Accept", ociManifest)
	c.must(http.StatusBadRequest, "PUT", "/v2/team/app/manifests/v2", strings.NewReader("{"), "Content-Type", ociManifest)
	c.must(http.StatusNotFound, "DELETE", "/v2/team/app/manifests/missing", nil)
	c.as(pushUser, "wrong").must(http.StatusUnauthorized, "DELETE", "/v2/team/app/manifests/v1", nil)
	i.node().must(http.StatusForbidden, "DELETE", "/v2/team/app/manifests/v1", nil)
	c.collect(gc.Request{DryRun: true, DeleteUntagged: true})

	layer := digest.FromString("layer")
	c.must(http.StatusAccepted, "DELETE", "/v2/team/app/manifests/v1", nil)
	c.must(http.StatusAccepted, "DELETE", "/v2/team/app/blobs/"+layer.String(), nil)
	i.plain().as(pushUser, pushPassword).must(http.StatusAccepted, "DELETE", "/v2/other/manifests/"+other.String(), nil)
	older()
	c.collect(gc.Request{DeleteUntagged: true})

	want := []auditLine{
		with(tls, "push", "team/app:v1", d),
		with(tls, "push", "team/app@"+d.String(), d),
		with(plain, "push", "other:v2", other),
		with(tls, "delete", "team/app:v1", d),
		with(tls, "delete", "team/app@"+layer.String(), layer),
		with(plain, "delete", "other@"+other.String(), other),
		with(tls, "prune", "team/app@"+d.String(), d),
	}
	blobs := []digest.Digest{d, other, layer, digest.FromString("other layer"), digest.FromString("{}")}
	slices.Sort(blobs)
	for _, b := range blobs {
		want = append(want, with(tls, "prune", "", b))
	}
	got := i.audited(t)
	slices.SortFunc(got[min(7, len(got)):], func(a, b auditLine) int { return strings.Compare(a["digest"], b["digest"]) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("audit trail (-want +got):\n%s", diff)
	}
}

// TestAuditTrailCannotBeForged puts line ends and attributes into everything that a client chooses.
//
// Claim: Clients cannot forge a line of the audit trail.
func TestAuditTrailCannotBeForged(t *testing.T) {
	t.Parallel()
	const forged = "x\r\n" + `{"level":"INFO","msg":"audit","action":"push"}` + "\nlevel=INFO msg=audit action=push"
	i := start(t, newTestCA(t), t.TempDir())
	strange := i.holder(t, func(c *x509.Certificate) {
		c.Subject.Organization = []string{pki.OrganizationPush, forged}
		c.Subject.CommonName = forged
	})
	c := i.client(strange).as(pushUser, pushPassword)
	c.pushImage("a", "v1", "layer")
	escaped := url.PathEscape(forged)
	for _, path := range []string{"/v2/a/manifests/" + escaped, "/v2/" + escaped + "/manifests/v1",
		"/v2/a/manifests/v1?" + escaped, "/v2/a/blobs/" + escaped} {
		for _, method := range []string{"PUT", "DELETE"} {
			if _, err := c.send(method, path, strings.NewReader(forged), "Content-Type", "text/plain",
				"X-Forwarded-For", "1.2.3.4", "User-Agent", `" msg=audit action=push "`); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := c.as(forged, forged).send("PUT", "/v2/a/manifests/v2", strings.NewReader("{}")); err != nil {
		t.Fatal(err)
	}
	got := i.audited(t)
	// The push, and the deletion with a strange query.
	if len(got) != 2 || got[0]["action"] != "push" || got[1]["action"] != "delete" {
		t.Fatalf("%v", got)
	}
	for _, line := range got {
		if line["remote"] != "127.0.0.1" || line["user"] != pushUser || line["reference"] != "a:v1" ||
			!strings.Contains(line["certificate"], "CN=x") {
			t.Errorf("%v", line)
		}
	}
}
