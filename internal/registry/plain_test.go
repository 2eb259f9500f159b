package registry

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry/users"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// followed is a registry whose plain listener follows a mounted Secret, which is empty at first.
type followed struct {
	*instance
	volume string
}

func openFollowed(t *testing.T, changes ...func(*Options)) followed {
	t.Helper()
	volume := filepath.Join(t.TempDir(), "pull")
	require.NoError(t, os.Mkdir(volume, 0o700))
	i := open(t, newTestCA(t), t.TempDir(), append([]func(*Options){func(o *Options) {
		o.PlainListen, o.PullHtpasswd = freeport.Loopback(t), filepath.Join(volume, "htpasswd")
	}}, changes...)...)
	i.server.credentials.Interval = time.Millisecond
	return followed{i, volume}
}

// startFollowed runs a registry whose plain listener is open.
func startFollowed(t *testing.T, changes ...func(*Options)) followed {
	t.Helper()
	f := openFollowed(t, changes...)
	f.addUser(pullUser, pullPassword)
	f.run()
	return f
}

// addUser updates the volume as the kubelet does.
func (f followed) addUser(user, password string) {
	f.t.Helper()
	tlsfilestest.WriteSecret(f.t, f.volume, tlsfilestest.Files{"htpasswd": htpasswd(f.t, user, password)})
}

func (f followed) open() {
	f.t.Helper()
	f.addUser(pullUser, pullPassword)
	f.waitOpen()
}

func (f followed) close() {
	f.t.Helper()
	tlsfilestest.WriteSecret(f.t, f.volume, nil)
	f.waitClosed()
}

// timesLogged counts how often something was logged.
func (i *instance) timesLogged(text string) int { return strings.Count(i.logs.String(), text) }

func (i *instance) wantLogged(text string, times int) {
	i.t.Helper()
	if got := i.timesLogged(text); got != times {
		i.t.Errorf("%q was logged %d times, want %d", text, got, times)
	}
}

// refuses reports whether a listener is closed.
func (i *instance) refuses(listener string) bool {
	conn, err := net.Dial("tcp", i.addresses[listener])
	if err == nil {
		conn.Close()
	}
	return err != nil
}

func (f followed) waitClosed() {
	f.t.Helper()
	eventually(f.t, "the plain listener closes", func() bool { return f.server.plain.address() == nil })
	if !f.refuses("plain") {
		f.t.Error("the address is nil but connections are accepted")
	}
}

// reportsOpen checks the metric and /loaded.
func (f followed) reportsOpen(want bool) {
	f.t.Helper()
	f.wantMetric("zarf_registry_plain_listener_open", boolean(want))
	if open := f.loaded().PlainListenerOpen; open == nil || *open != want {
		f.t.Errorf("/loaded does not say that it is open: %t", want)
	}
}

func TestPlainListenerFollowsTheFile(t *testing.T) {
	t.Parallel()
	f := openFollowed(t)
	f.run()
	f.waitClosed()
	path := "/v2/a/blobs/" + f.pusher().pushBlob("a", "content").String()
	address := f.server.options.PlainListen
	pusher := f.client(f.ca.client(t, pki.OrganizationPush))
	for n := range 3 {
		f.reportsOpen(false)
		f.open()
		if f.addresses["plain"] != address {
			t.Fatalf("it opened at %s, want %s", f.addresses["plain"], address)
		}
		f.reportsOpen(true)
		f.plain().must(http.StatusUnauthorized, "GET", path, nil)
		kept := f.plain().as(pullUser, pullPassword)
		if got := kept.must(http.StatusOK, "GET", path, nil); got.body != "content" {
			t.Errorf("body %q", got.body)
		}
		f.plain().as(pushUser, pushPassword).must(http.StatusOK, "GET", path, nil)
		pusher.as(pullUser, pullPassword).must(http.StatusForbidden, "POST", "/v2/a/blobs/uploads/", nil)

		// Changed users do not close it.
		f.addUser("other", "password")
		eventually(t, "the other user is accepted", func() bool {
			return f.plain().as("other", "password").mustAny("GET", path).StatusCode == http.StatusOK
		})
		if a, wasOpen, err := reused(t, kept.as("other", "password"), path); err != nil || !wasOpen {
			t.Errorf("status %d, %v, on an open connection %t", a.StatusCode, err, wasOpen)
		}
		kept.must(http.StatusUnauthorized, "GET", path, nil)

		f.close()
		eventually(t, "the idle connection is closed", func() bool {
			_, err := kept.send("GET", path, nil)
			return err != nil
		})
		for _, user := range []string{pullUser, "other"} {
			pusher.as(user, pullPassword).must(http.StatusUnauthorized, "POST", "/v2/a/blobs/uploads/", nil)
		}
		f.node().must(http.StatusOK, "GET", path, nil)
		f.wantLogged(`"msg":"plain listener opened"`, n+1)
		f.wantLogged(`"msg":"plain listener closed"`, n+2)
	}
	f.wantLogged(`"reason":"`+f.pull+` has users"`, 3)
	f.wantLogged(`"reason":"`+f.pull+` has no users"`, 4)
}

// mustAny sends a request that must get a response with any status.
func (c client) mustAny(method, path string) answer {
	c.t.Helper()
	a, err := c.send(method, path, nil)
	require.NoError(c.t, err, method, path)
	return a
}

func TestExistingFileOpensThePlainListenerAtOnce(t *testing.T) {
	t.Parallel()
	f := openFollowed(t, func(o *Options) {
		tlsfilestest.WriteSecret(t, filepath.Dir(o.PullHtpasswd),
			tlsfilestest.Files{"htpasswd": htpasswd(t, pullUser, pullPassword)})
	})
	f.server.credentials.Interval = time.Hour
	f.run()
	f.plain().as(pullUser, pullPassword).must(http.StatusOK, "GET", "/v2/", nil)
}

func TestInvalidFileDoesNotOpenThePlainListener(t *testing.T) {
	t.Parallel()
	f := openFollowed(t, func(o *Options) {
		tlsfilestest.WriteSecret(t, filepath.Dir(o.PullHtpasswd), tlsfilestest.Files{"htpasswd": []byte("rubbish")})
	})
	listening := f.server.plain
	ctx, stop := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() { f.server.credentials.Run(ctx, func() { f.server.watchPullUsers(ctx) }) })
	t.Cleanup(func() {
		stop()
		following.Wait()
		for _, e := range listening.handOff() {
			_ = e.drain(context.Background())
		}
	})
	looks := func() {
		t.Helper()
		from := f.server.credentials.ReloadErrors.Load()
		eventually(t, "the file is read again", func() bool { return f.server.credentials.ReloadErrors.Load() > from+2 })
	}
	looks()
	if listening.address() != nil {
		t.Error("an invalid file opened the listener")
	}
	f.addUser(pullUser, pullPassword)
	eventually(t, "it opens", func() bool { return listening.address() != nil })
	tlsfilestest.WriteSecret(t, f.volume, tlsfilestest.Files{"htpasswd": []byte("more rubbish")})
	looks()
	if listening.address() == nil {
		t.Error("an invalid file closed the listener")
	}
	from := users.Origin{Listener: listenerPlain, Source: netip.MustParseAddr("10.0.0.1")}
	u, err := f.server.credentials.Verify(ctx, from, pullUser, pullPassword)
	if u == nil || u.Role != users.RolePull || err != nil {
		t.Errorf("verify() = %+v, %v", u, err)
	}
	f.wantLogged("loading credentials failed", 2)
}

// slowUpload is an upload that the test finishes.
type slowUpload struct {
	body   *io.PipeWriter
	result chan error
}

func (f followed) slowUpload(content string) slowUpload {
	f.t.Helper()
	return f.instance.slowUpload(f.plain().as(pushUser, pushPassword), "plain", content)
}

// slowUpload sends the first half of an upload over a listener.
func (i *instance) slowUpload(c client, listener, content string) slowUpload {
	i.t.Helper()
	location := c.begin("a")
	before := i.inFlight(listener)
	body, writer := io.Pipe()
	u := slowUpload{writer, make(chan error, 1)}
	go func() {
		a, err := c.send("PUT", location+"&digest="+digest.FromString(content).String(), body)
		if err == nil && a.StatusCode != http.StatusCreated {
			err = fmt.Errorf("status %d: %s", a.StatusCode, a.body)
		}
		u.result <- err
	}()
	if _, err := writer.Write([]byte(content[:len(content)/2])); err != nil {
		i.t.Fatal(err)
	}
	eventually(i.t, "the upload is in progress", func() bool { return i.inFlight(listener) == before+1 })
	i.t.Cleanup(func() { // its handler writes to a directory that the test removes
		_ = writer.Close()
		eventually(i.t, "the upload has ended", func() bool { return i.inFlight(listener) == 0 })
	})
	return u
}

// end sends the second half.
func (u slowUpload) end(content string) error {
	_, _ = u.body.Write([]byte(content[len(content)/2:])) // fails if the upload does
	_ = u.body.Close()
	return <-u.result
}

func TestRequestsOfAClosedListenerFinish(t *testing.T) {
	t.Parallel()
	f := startFollowed(t)
	uploads := map[string]slowUpload{}
	for _, content := range []string{"the first time", "the second time", "the third time"} {
		uploads[content] = f.slowUpload(content)
		f.close()
		f.open() // while the previous listener drains
		f.plain().as(pullUser, pullPassword).must(http.StatusOK, "GET", "/v2/", nil)
	}
	for content, upload := range uploads {
		if err := upload.end(content); err != nil {
			t.Errorf("%s: %v", content, err)
		}
		f.node().must(http.StatusOK, "GET", "/v2/a/blobs/"+digest.FromString(content).String(), nil)
	}
	eventually(t, "no listener drains", func() bool {
		f.server.plain.mu.Lock()
		defer f.server.plain.mu.Unlock()
		return len(f.server.plain.draining) == 0
	})
	f.wantLogged("cut off", 0)
}

func TestRequestsOfAClosedListenerTimeOut(t *testing.T) {
	t.Parallel()
	f := startFollowed(t)
	f.server.plain.timeout = 50 * time.Millisecond
	upload := f.slowUpload("never ends")
	f.close()
	eventually(t, "it is logged", func() bool {
		return f.timesLogged("requests of the closed plain listener were cut off") > 0
	})
	if err := upload.end("never ends"); err == nil {
		t.Error("the upload succeeded")
	}
}

func TestShutdownDrainsClosedListeners(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		drain time.Duration
		ends  bool
	}{
		"requests end":                           {time.Minute, true},
		"requests are cut off after the timeout": {50 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFollowed(t, func(o *Options) { o.DrainTimeout = tt.drain })
			closed := f.slowUpload("closed before")
			f.close()
			f.open()
			open := f.slowUpload("open still")
			stopped := make(chan error, 1)
			go func() { stopped <- f.stop() }()
			eventually(t, "new connections are refused", func() bool { return f.refuses("plain") })
			if !tt.ends {
				if err := <-stopped; err != nil {
					t.Error(err)
				}
			}
			for content, upload := range map[string]slowUpload{"closed before": closed, "open still": open} {
				if err := upload.end(content); (err == nil) != tt.ends {
					t.Errorf("%s: %v", content, err)
				}
			}
			if tt.ends {
				if err := <-stopped; err != nil {
					t.Error(err)
				}
			}
			if got := f.timesLogged("requests were cut off: raise --drain-timeout") > 0; got == tt.ends {
				t.Errorf("logged that requests were cut off: %t", got)
			}
			f.server.plain.open(t.Context(), "a test")
			if f.server.plain.address() != nil {
				t.Error("the listener opens again after the shutdown")
			}
			eventually(t, "the handlers are done with their files", func() bool { return f.inFlight("plain") == 0 })
		})
	}
}

func TestAddressInUseIsRetried(t *testing.T) {
	t.Parallel()
	taken := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	f := openFollowed(t, func(o *Options) { o.PlainListen = taken.Addr().String() })
	f.run()
	f.addUser(pullUser, pullPassword)
	const message = "opening plain listener failed"
	eventually(t, "it is logged", func() bool { return f.timesLogged(message) > 0 })
	f.node().must(http.StatusOK, "GET", "/v2/", nil)
	time.Sleep(20 * time.Millisecond) // some more tries
	taken.Close()
	f.waitOpen()
	f.plain().as(pullUser, pullPassword).must(http.StatusOK, "GET", "/v2/", nil)
	f.wantLogged(message, 1)
	if !strings.Contains(f.logs.String(), taken.Addr().String()) {
		t.Error("the logs do not name the address")
	}
}

func TestFailedListenerIsReopened(t *testing.T) {
	t.Parallel()
	f := startFollowed(t)
	upload := f.slowUpload("under way")
	f.server.plain.mu.Lock()
	f.server.plain.serving.listener.Close()
	f.server.plain.mu.Unlock()
	eventually(t, "it is opened again", func() bool { return f.timesLogged(`"msg":"plain listener opened"`) == 2 })
	f.plain().as(pullUser, pullPassword).must(http.StatusOK, "GET", "/v2/", nil)
	f.wantLogged("plain listener failed", 1)
	if err := upload.end("under way"); err != nil {
		t.Errorf("the upload: %v", err)
	}
}

func TestPlainListenerWithoutAFileIsAlwaysOpen(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	always := func(address string) func(*Options) {
		return func(o *Options) { o.PlainListen, o.PullHtpasswd = address, "" }
	}
	i := start(t, newTestCA(t), t.TempDir(), always("127.0.0.1:0"))
	i.plain().as(pushUser, pushPassword).must(http.StatusOK, "GET", "/v2/", nil)
	err = open(t, i.ca, t.TempDir(), always(taken.Addr().String())).server.Serve(context.Background())
	if err == nil || !strings.Contains(err.Error(), "listening for plain") {
		t.Errorf("Serve() = %v", err)
	}
}

// While the listener opens and closes, pulls are either served completely or refused.
func TestOpeningAndClosingUnderLoad(t *testing.T) {
	t.Parallel()
	f := startFollowed(t)
	content := random(1 << 20)
	path := "/v2/a/blobs/" + f.pusher().pushBlob("a", content).String()
	var served, refused atomic.Int64
	stop := repeatedly(4, func() bool {
		switch body, status, err := pullOnce(f.server.options.PlainListen, path); {
		case err != nil:
			refused.Add(1) // before its first byte
		case status == http.StatusUnauthorized: // the users were removed before the listener closed
		case status != http.StatusOK || body != content:
			t.Errorf("status %d and %d bytes", status, len(body))
			return false
		default:
			served.Add(1)
		}
		return true
	})
	for range 10 {
		from := served.Load()
		eventually(t, "pulls are served", func() bool { return served.Load() > from+5 })
		f.close()
		from = refused.Load()
		eventually(t, "pulls are refused", func() bool { return refused.Load() > from+5 })
		f.open()
	}
	stop()
}

// pullOnce sends a request on a new connection. An error means that there was no response; a
// truncated response is not an error.
func pullOnce(address, path string) (body string, status int, err error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return "", 0, err
	}
	defer conn.Close()
	request, err := http.NewRequest(http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", 0, err
	}
	request.SetBasicAuth(pullUser, pullPassword)
	if err := request.Write(conn); err != nil {
		return "", 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return "", 0, err
	}
	defer response.Body.Close()
	data, _ := io.ReadAll(response.Body) // the caller compares it
	return string(data), response.StatusCode, nil
}
