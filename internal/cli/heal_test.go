package cli

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/cli/clitest"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// pauseRules is the ConfigMap that says which images may be used.
const pauseRules = `{"data":{"references":"a/pause:1","digest":"^$","name":"^b/pause:","own":"^$"}}`

// healAt runs heal with an API server below a path.
func healAt(t *testing.T, flags healFlags, api http.HandlerFunc) (stdout string, err error) {
	t.Helper()
	server := httptest.NewServer(http.StripPrefix("/prefix", api))
	defer server.Close()
	client, err := healClient(&rest.Config{Host: server.URL + "/prefix/"})
	require.NoError(t, err)
	client.Namespace, client.Release = "zarf", "zarf-registry"
	flags.cluster.Name = "zarf-registry"
	var out bytes.Buffer
	err = flags.heal(t.Context(), client, &out)
	return out.String(), err
}

func TestHeal(t *testing.T) {
	const pod = `{"items":[{"metadata":{"name":"p","uid":"u","resourceVersion":"7"},"status":{"phase":"Pending"},
		"spec":{"nodeName":"n1","containers":[{"name":"proxy","image":"a/pause:1","command":["/payload/loader"]}]}}]}`
	const images = `{"status":{"images":[{"names":["b/pause:2"],"sizeBytes":1}]}}`
	for description, c := range map[string]struct {
		flags   healFlags
		pods    string
		images  string
		refused int // status of a patch
		patches int
		out     string
		err     string
		silent  bool
	}{
		"nothing to do": {healFlags{output: "table"}, `{"items":[]}`, images, 0, 0,
			"no pod of the release needs another image\n", "", false},
		"a pod is healed": {healFlags{output: "table"}, pod, images, 0, 1,
			"p healed: node n1 does not have image a/pause:1: replaced with b/pause:2, which it has\n", "", false},
		"dry":     {healFlags{output: "table", dryRun: true}, pod, images, 0, 1, "p would be healed: ", "", false},
		"as JSON": {healFlags{output: "json"}, pod, images, 0, 1, "", "", false},
		"a pod that changes all the time": {healFlags{output: "table"}, pod, images, 422, 10, "run the command again",
			"1 problems", true},
		"no right": {healFlags{output: "table"}, pod, images, 403, 1, "", "policy says no (HTTP 403)", false},
	} {
		t.Run(description, func(t *testing.T) {
			patches, events := 0, 0
			out, err := healAt(t, c.flags, func(w http.ResponseWriter, r *http.Request) {
				switch r.Method + " " + r.URL.Path {
				case "GET /api/v1/namespaces/zarf/pods":
					if got := r.URL.Query().Get("fieldSelector"); got != "status.phase!=Succeeded,status.phase!=Failed" {
						t.Errorf("fieldSelector=%s", got)
					}
					_, _ = w.Write([]byte(c.pods))
				case "GET /api/v1/namespaces/zarf/configmaps/zarf-registry-pause-images":
					_, _ = w.Write([]byte(pauseRules))
				case "GET /api/v1/nodes/n1":
					_, _ = w.Write([]byte(c.images))
				case "PATCH /api/v1/namespaces/zarf/pods/p":
					patches++
					if dry := r.URL.Query().Get("dryRun") == "All"; dry != c.flags.dryRun {
						t.Errorf("a dry run: %t", dry)
					}
					if c.refused != 0 {
						w.WriteHeader(c.refused)
						_, _ = w.Write([]byte(`{"message":"policy says no"}`))
					}
				case "POST /api/v1/namespaces/zarf/events":
					events++
				default:
					t.Errorf("%s %s", r.Method, r.URL)
				}
			})
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want %q", err, c.err)
			}
			if silent, ok := errors.AsType[*render.SilentError](err); ok != c.silent || ok && silent.Code != exitcode.Found {
				t.Errorf("%v is explained by the output: %t", err, !c.silent)
			}
			if !strings.Contains(out, c.out) || patches != c.patches {
				t.Errorf("%d patches, output %q, want %q", patches, out, c.out)
			}
			want := 0
			if !c.flags.dryRun && c.refused == 0 {
				want = c.patches
			}
			if events != want {
				t.Errorf("%d events, want %d", events, want)
			}
			if c.flags.output == "json" {
				clitest.JSON(t, render.HealedPods, out)
			}
		})
	}
}
