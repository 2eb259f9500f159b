package registry

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry/request"
	"github.com/zarf-dev/zarf-registry/internal/registry/users"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	dockerAgent  = "docker/28.5.2 go/go1.24.9 os/linux arch/amd64"
	basic        = `Basic realm="zarf-registry"`
	emptyAccount = "Basic Og=="
)

// challenged sends a request without a credential that must be refused, and returns the challenge.
func (c client) challenged(method, path, agent string) string {
	c.t.Helper()
	c.user = ""
	return c.must(http.StatusUnauthorized, method, path, nil, "User-Agent", agent).Header.Get("WWW-Authenticate")
}

// dockerToken gets a token as docker does: from the realm of the challenge at /v2/.
func (c client) dockerToken() (status int, token string) {
	c.t.Helper()
	challenge := c.challenged("GET", "/v2/", dockerAgent)
	realm, ok := strings.CutPrefix(challenge, `Bearer realm="`)
	realm, service, _ := strings.Cut(realm, `",service=`)
	if !ok || service != `"zarf-registry"` {
		c.t.Fatalf("the challenge is %s", challenge)
	}
	if _, err := url.Parse(realm); err != nil || !strings.HasPrefix(realm, c.base+"/") {
		c.t.Fatalf("the realm is %s, want one below %s", realm, c.base)
	}
	a, err := c.send("GET", realm+"?account=x&scope=repository%3Aa%3Apull%2Cpush&service=zarf-registry", nil,
		"User-Agent", dockerAgent)
	require.NoError(c.t, err)
	var response struct {
		Token     string
		ExpiresIn int `json:"expires_in"`
	}
	if a.StatusCode != http.StatusOK {
		return a.StatusCode, ""
	}
	if err := json.Unmarshal([]byte(a.body), &response); err != nil || response.ExpiresIn < 60 ||
		a.Header.Get("Cache-Control") != "no-store" {
		c.t.Fatalf("%v, %+v, %s", err, response, a.Header)
	}
	return a.StatusCode, response.Token
}

// with returns a status with a value of the header Authorization.
func (c client) with(authorization, method, path string) int {
	c.t.Helper()
	c.user = ""
	a, err := c.send(method, path, nil, "Authorization", authorization, "User-Agent", dockerAgent)
	require.NoError(c.t, err)
	return a.StatusCode
}

// Claim: Where reading is open, wrong passwords are refused.
func TestChallenges(t *testing.T) {
	t.Parallel()
	for _, anonymous := range []bool{false, true} {
		e := startExposed(t, func(o *Options) { o.AnonymousPull, o.ExposeAnonymousPull = anonymous, anonymous })
		for listener, tt := range map[string]struct {
			client client
			open   bool // reading needs no credential
		}{
			"plain":                       {e.plain(), anonymous},
			"exposed":                     {e.outsider(), anonymous},
			"loopback":                    {e.loopback(), false},
			"tls, with the push role":     {e.client(e.ca.client(t, pki.OrganizationPush)), true},
			"tls, with the client's role": {e.client(e.ca.client(t, pki.OrganizationClient)), true},
		} {
			c, base := tt.client, http.StatusUnauthorized
			docker := basic
			if tt.open {
				base = http.StatusOK
				docker = `Bearer realm="` + c.base + `/v2/token",service="zarf-registry"`
				c.must(http.StatusOK, "GET", "/v2/_catalog", nil)
			}
			for agent, want := range map[string]string{
				"skopeo/1.20.0": basic, dockerAgent: docker, "Docker-Client/28.5.2 (linux)": docker,
				"dockerized/1": basic, "": basic,
			} {
				if got := c.challenged("GET", "/v2/", agent); got != want {
					t.Errorf("%s, anonymous pull %t: %q is challenged by %s, want %s", listener, anonymous, agent, got, want)
				}
				// containerd does not request /v2/, also in the docker daemon.
				if got := c.challenged("POST", "/v2/a/blobs/uploads/", agent); got != basic {
					t.Errorf("%s: the challenge of an upload is %s", listener, got)
				}
			}
			if got := c.with(emptyAccount, "GET", "/v2/"); got != base {
				t.Errorf("%s, anonymous pull %t: an empty credential gets %d, want %d", listener, anonymous, got, base)
			}
			if got := c.with("Bearer anonymous", "GET", "/v2/"); got != base {
				t.Errorf("%s, anonymous pull %t: an anonymous token gets %d, want %d", listener, anonymous, got, base)
			}
			c.as(pushUser, "wrong").must(http.StatusUnauthorized, "GET", "/v2/", nil)
			c.as(pushUser, pushPassword).must(http.StatusOK, "GET", "/v2/", nil)
			c.as(pullUser, pullPassword).must(http.StatusOK, "GET", "/v2/", nil)
		}
		// Whatever a node sends.
		for _, authorization := range []string{"", emptyAccount, "Basic eDp5", "Bearer x"} {
			if got := e.node().with(authorization, "GET", "/v2/"); got != http.StatusOK {
				t.Errorf("a node that sends %q gets %d", authorization, got)
			}
		}
	}
}

// TestEmptyCredentialsAreNotFailedLogins sends more of them than any budget allows.
//
// Claim: An empty credential is not a failed login.
func TestEmptyCredentialsAreNotFailedLogins(t *testing.T) {
	t.Parallel()
	i := start(t, newTestCA(t), t.TempDir(), func(o *Options) { o.AnonymousPull = true })
	stopped := time.Now()
	i.server.credentials.Now = func() time.Time { return stopped }
	for range 256 { // twice the failures that unknown users of one address may have
		if got := i.plain().with(emptyAccount, "GET", "/v2/"); got != http.StatusOK {
			t.Fatalf("status %d", got)
		}
	}
	if got := i.loopback().with(emptyAccount, "GET", "/v2/"); got != http.StatusUnauthorized {
		t.Errorf("the loopback listener responds with %d", got)
	}
	for n := range i.server.credentials.Checks {
		if got := i.server.credentials.Checks[n].Load(); got != 0 {
			t.Errorf("%d checks were %s", got, users.CheckResult(n))
		}
	}
	eventually(t, "the last request is logged", func() bool { return i.logged(`"listener":"loopback"`, `"code":401`) })
	for line := range strings.Lines(i.logs.String()) {
		// This machine's disk may be nearly full.
		if strings.Contains(line, `"WARN"`) && !strings.Contains(line, "the storage is nearly full") {
			t.Errorf("a warning is logged: %s", line)
		}
	}
}

// Claim: Docker's [tokens](expose.md#logging-in) permit what their credential does, end with it, and are in
// no log.
func TestTokens(t *testing.T) {
	t.Parallel()
	e := startExposed(t, func(o *Options) { o.AnonymousPull, o.ExposeAnonymousPull = true, true })
	const upload = "/v2/a/blobs/uploads/"
	var issued []string
	for name, c := range map[string]client{
		"plain": e.plain(), "exposed": e.outsider(), "tls": e.client(e.ca.client(t, pki.OrganizationPush)),
	} {
		for user, tt := range map[string]struct {
			client              client
			issue, login, write int
		}{
			"nobody":           {c, http.StatusOK, http.StatusOK, http.StatusUnauthorized},
			"the pull user":    {c.as(pullUser, pullPassword), http.StatusOK, http.StatusOK, http.StatusForbidden},
			"the push user":    {c.as(pushUser, pushPassword), http.StatusOK, http.StatusOK, http.StatusAccepted},
			"a wrong password": {c.as(pushUser, "wrong"), http.StatusUnauthorized, 0, 0},
			"an unknown user":  {c.as("nobody", pushPassword), http.StatusUnauthorized, 0, 0},
		} {
			status, token := tt.client.dockerToken()
			if status != tt.issue {
				t.Errorf("%s: %s: the token server responds with %d, want %d", name, user, status, tt.issue)
			}
			if token == "" {
				continue
			}
			if got := c.with("Bearer "+token, "GET", "/v2/"); got != tt.login {
				t.Errorf("%s: %s: login responds with %d, want %d", name, user, got, tt.login)
			}
			if got := c.with("bearer "+token, "POST", upload); got != tt.write {
				t.Errorf("%s: %s: an upload responds with %d, want %d", name, user, got, tt.write)
			}
			if token != "anonymous" {
				issued = append(issued, token)
			}
		}
	}
	if len(issued) != 6 {
		t.Fatalf("%d tokens", len(issued))
	}

	c := e.plain()
	_, token := c.as(pushUser, pushPassword).dockerToken()
	// A token works wherever its credential does, and does not yield another one.
	if got := e.loopback().with("Bearer "+token, "GET", "/v2/_catalog"); got != http.StatusOK {
		t.Errorf("the loopback listener responds with %d", got)
	}
	if a := c.must(http.StatusOK, "GET", request.TokenPath, nil, "Authorization", "Bearer "+token); !strings.Contains(a.body,
		`"`+"anonymous"+`"`) {
		t.Errorf("a token yields %s", a.body)
	}
	_, outsider := e.outsider().as(outsideUser, outsidePassword).dockerToken()
	if got := c.with("Bearer "+outsider, "GET", "/v2/"); got != http.StatusUnauthorized {
		t.Errorf("a token of the exposed listener's user gets %d at the node port", got)
	}
	for _, secret := range append(issued, token, outsider, pushPassword, pullPassword, outsidePassword) {
		if strings.Contains(e.logs.String(), secret) {
			t.Errorf("the logs contain %q", secret)
		}
	}

	// It ends with the credential.
	writeFile(t, e.htpasswd, htpasswd(t, outsideUser, "another password"))
	eventually(t, "the token is refused", func() bool {
		return e.outsider().with("Bearer "+outsider, "GET", "/v2/") == http.StatusUnauthorized
	})
}
