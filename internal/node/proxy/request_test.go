package proxy

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:31999": true, "127.1.2.3:1": true, "127.0.0.1:": true,
		"[::1]:31999": true, "[::1]": true, "localhost": true, "LocalHost:31999": true,

		"": false, ":31999": false, "0.0.0.0:31999": false, "10.244.0.7:5000": false, "[::]:31999": false,
		"[fe80::1]:31999": false, "[::1%lo]:31999": false, "example.com": false, "localhost.example.com": false,
		"127.0.0.1.example.com:31999": false, "localhost:x": false, "127.0.0.1:1:2": false, "2130706433": false,
		"127.1": false, "0x7f.0.0.1": false, "[::1]\r\nX: y": false, "127.0.0.1 x": false, "ä": false,
		"zarf-registry.zarf.svc:5000": false,
	} {
		if got := isLoopback(host); got != want {
			t.Errorf("isLoopback(%q) = %t", host, got)
		}
	}
}

// A page in a browser on the node may send requests to the proxy, under a name of its own whose
// address changes to 127.0.0.1, but gets nothing from the registry.
//
// Claim (another name; another site): Proxies refuse web pages under their own names and of other sites.
func TestWebPagesAreRefused(t *testing.T) {
	var served atomic.Int32
	f := start(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
	for name, tt := range map[string]struct {
		target, header, message string // without a message, the registry answers
	}{
		"a runtime":                {"/v2/", "Host: 127.0.0.1:31999", ""},
		"a runtime on IPv6":        {"/v2/", "Host: [::1]:31999", ""},
		"a runtime by name":        {"/v2/", "Host: localhost:31999", ""},
		"an address that is typed": {"/v2/", "Host: localhost:31999\r\nSec-Fetch-Site: none", ""},
		"its own page":             {"/v2/", "Host: localhost:31999\r\nSec-Fetch-Site: same-origin", ""},
		"another name":             {"/v2/", "Host: attacker.example:31999", `host "attacker.example:31999" is not a loopback`},
		"another name in the target": {
			"http://attacker.example/v2/", "Host: 127.0.0.1", `host "attacker.example" is not a loopback`,
		},
		"an escaped name in the target": {"http://%c3%a4/v2/", "Host: 127.0.0.1", "is not a loopback"},
		"a pod's address":               {"/v2/", "Host: 10.244.0.7:5000", "is not a loopback"},
		"an origin":                     {"/v2/", "Host: 127.0.0.1:31999\r\nOrigin: http://attacker.example", "not web pages"},
		"an opaque origin":              {"/v2/", "Host: 127.0.0.1:31999\r\nOrigin: null", "not web pages"},
		"another site":                  {"/v2/", "Host: 127.0.0.1:31999\r\nSec-Fetch-Site: cross-site", "not web pages"},
		"the same site, another port":   {"/v2/", "Host: localhost:31999\r\nSec-Fetch-Site: same-site", "not web pages"},
	} {
		t.Run(name, func(t *testing.T) {
			before := served.Load()
			got := exchange(t, f, "GET "+tt.target+" HTTP/1.1\r\n"+tt.header+"\r\nConnection: close\r\n\r\n")
			if tt.message == "" {
				if !strings.HasPrefix(got, "HTTP/1.1 200 ") {
					t.Errorf("response = %q", got)
				}
				return
			}
			response := require.Value(http.ReadResponse(bufio.NewReader(strings.NewReader(got)), nil))(t)
			body, _ := io.ReadAll(response.Body)
			if response.StatusCode != http.StatusForbidden || served.Load() != before {
				t.Errorf("%s, the registry got %d requests", response.Status, served.Load()-before)
			}
			checkOCIError(t, response, body, "DENIED", tt.message)
		})
	}
}

// A header that arrives in pieces may take longer than limits.unwatched.
func TestSlowResponseHeader(t *testing.T) {
	content := newBlob(10)
	f := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		for _, piece := range []string{"", "HTTP/1.1 200", " OK\r\nContent-Length: 10\r\n", "\r\n", string(content.data[:5]),
			string(content.data[5:])} {
			time.Sleep(2 * defaultLimits.disconnectCheckAfter)
			_, _ = io.WriteString(c, piece)
		}
	}), retryFor(0))
	response, body, err := f.get("/v2/")
	if err := content.check(response, body, err); err != nil {
		t.Error(err)
	}
}
