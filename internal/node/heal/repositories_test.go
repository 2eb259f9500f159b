package heal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry"
	"github.com/zarf-dev/zarf-registry/test/registrytest"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestEncodeRepositories(t *testing.T) {
	// "ba" has b at 0 and a at 1: 0*1 + 1*0.
	want := map[string]string{"0": "\na\nba\nc\n", "1": "\nab\n", "39": "\na/\n", "162": "\nteam/nginx\n"}
	for _, order := range [][]string{{"a", "ba", "c", "ab", "a/", "team/nginx"}, {"team/nginx", "ab", "c", "a/", "ba", "a"}} {
		data, left := EncodeRepositories(order)
		if diff := cmp.Diff(want, data); diff != "" || left != 0 {
			t.Errorf("%d names are left, the data differs:\n%s", left, diff)
		}
	}
	if data, left := EncodeRepositories(nil); len(data) != 0 || left != 0 {
		t.Errorf("of no names: %v, %d left", data, left)
	}
}

// However similar the names are, no value has more than a fortieth of them.
func TestRepositoriesAreDistributed(t *testing.T) {
	for _, format := range []string{"image-%05d", "library/%d", "team-%04d/app", strings.Repeat("component/", 10) + "%04x/api"} {
		var names []string
		for i := range 10_000 {
			names = append(names, fmt.Sprintf(format, i))
		}
		data, _ := EncodeRepositories(names)
		longest := 0
		for _, value := range data {
			longest = max(longest, strings.Count(value, "\n")-1)
		}
		if longest > len(names)/40 {
			t.Errorf("%s: %d of %d names have the same key, of %d", format, longest, len(names), len(data))
		}
	}
}

// The limits that docs/reference/rewriting.md states.
func TestRepositoriesThatFit(t *testing.T) {
	for length, fit := range map[int]int{35: 29_000, 103: 10_000} {
		var names []string
		for i := range 40_000 {
			names = append(names, fmt.Sprintf("%0*d", length, i))
		}
		data, left := EncodeRepositories(names)
		size := 0
		for key, value := range data {
			size += len(key) + len(value)
		}
		if size > MaxRepositoryData || size < MaxRepositoryData-length-1 {
			t.Errorf("names of %d characters take %d bytes", length, size)
		}
		if got := len(names) - left; got < fit || got > fit+200 {
			t.Errorf("%d names of %d characters fit, want %d", got, length, fit)
		}
		if again, _ := EncodeRepositories(names); !maps.Equal(data, again) {
			t.Error("two healers would write different data")
		}
	}
}

// cluster is an API server with the ConfigMap, and a registry.
type cluster struct {
	mu                    sync.Mutex
	object                map[string]any
	version, reads, write int
	meddle                func() // before an update is handled
	repositories          []string
	listings              int
	takes                 time.Duration // for a listing
	failure               error         // of listings
	log                   bytes.Buffer
}

func (c *cluster) serve(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/ns/configmaps/names" {
			if r.URL.Query().Get("watch") != "1" {
				t.Errorf("%s %s", r.Method, r.URL)
			}
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		body, _ := io.ReadAll(r.Body)
		c.mu.Lock()
		defer c.mu.Unlock()
		switch r.Method {
		case http.MethodGet:
			c.reads++
			c.object["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(c.version)
			_ = json.NewEncoder(w).Encode(c.object)
		case http.MethodPut:
			if c.meddle != nil {
				c.meddle()
			}
			var object map[string]any
			if err := json.Unmarshal(body, &object); err != nil {
				t.Error(err)
			}
			if object["metadata"].(map[string]any)["resourceVersion"] != strconv.Itoa(c.version) {
				w.WriteHeader(http.StatusConflict)
				return
			}
			c.object, c.version, c.write = object, c.version+1, c.write+1
		default:
			t.Errorf("%s %s", r.Method, r.URL)
		}
	}
}

// runHealers runs healers that copy the names until the test ends.
func (c *cluster) runHealers(t *testing.T, n int) {
	c.object = map[string]any{"metadata": map[string]any{"name": "names", "labels": map[string]any{"a": "b"}}}
	client := inMemory(t, c.serve(t))
	logger := slog.New(slog.NewTextHandler(&c.log, nil))
	for range n {
		h := New(Config{
			Connect: func() (*Client, error) {
				return &Client{HTTP: client, URL: inMemoryURL, Namespace: "ns", Release: "r"}, nil
			},
			Repositories: Repositories{ConfigMap: "names"}, Logger: logger,
		})
		h.list = func(context.Context, Repositories) ([]string, error) {
			time.Sleep(c.takes)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.listings++
			return c.repositories, c.failure
		}
		runHealer(t, h)
	}
}

// with changes the cluster and then gives the healers time to react.
func (c *cluster) with(change func()) {
	c.mu.Lock()
	change()
	c.mu.Unlock()
	rest(listPeriod + time.Second)
}

// rest waits while the healers work.
func rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (c *cluster) contains(t *testing.T, names ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	want, _ := EncodeRepositories(names)
	if !sameData(c.object["data"], want) {
		t.Errorf("the ConfigMap contains %v, want %v", c.object["data"], want)
	}
	if c.object["metadata"].(map[string]any)["labels"].(map[string]any)["a"] != "b" {
		t.Error("the ConfigMap has lost its label")
	}
}

func TestNamesOfRepositoriesAreCopied(t *testing.T) {
	for _, healers := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			c := &cluster{repositories: []string{"nginx"}}
			c.runHealers(t, healers)
			c.with(func() {})
			c.contains(t, "nginx")
			c.with(func() { c.repositories = []string{"nginx", "team/app"} })
			c.contains(t, "nginx", "team/app")
			c.with(func() { c.repositories = nil })
			c.contains(t)
			if c.write != 3 {
				t.Errorf("%d updates", c.write)
			}
		})
	}
}

func TestAnUnchangedListIsNotWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{repositories: []string{"nginx"}}
		c.runHealers(t, 1)
		rest(10*reread - time.Second)
		if c.write != 1 || c.reads != 10 || c.listings < 100 {
			t.Errorf("%d updates and %d reads for %d listings", c.write, c.reads, c.listings)
		}
	})
}

func TestAConfigMapThatAnotherChangesIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{repositories: []string{"nginx"}}
		c.runHealers(t, 1)
		c.with(func() { delete(c.object, "data") }) // helm upgrade --force
		rest(reread)
		c.contains(t, "nginx")
	})
}

func TestALostRaceIsHarmless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{repositories: []string{"nginx"}}
		c.meddle = func() {
			c.version++
			c.meddle = nil
		}
		c.runHealers(t, 1)
		c.with(func() {})
		c.contains(t, "nginx")
		if c.log.String() == "" || strings.Contains(c.log.String(), "level=WARN") {
			t.Errorf("it logs %s", &c.log)
		}
	})
}

func TestAnUnreachableRegistryChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{repositories: []string{"nginx"}}
		c.runHealers(t, 1)
		c.with(func() {})
		c.with(func() { c.repositories, c.failure = nil, errors.New("connection refused") })
		rest(10 * reread)
		c.contains(t, "nginx")
		if n := strings.Count(c.log.String(), "copying the names of repositories failed"); n != 1 {
			t.Errorf("%d warnings: %s", n, &c.log)
		}
		c.with(func() { c.repositories, c.failure = []string{"other"}, nil })
		c.contains(t, "other")
		if !strings.Contains(c.log.String(), "works again") {
			t.Errorf("it logs %s", &c.log)
		}
	})
}

// A registry that takes a second to list its repositories is asked three times a minute.
func TestSlowListingsAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{repositories: []string{"nginx"}, takes: time.Second}
		c.runHealers(t, 1)
		rest(10 * time.Minute)
		if c.listings < 25 || c.listings > 30 {
			t.Errorf("%d listings", c.listings)
		}
	})
}

func TestNamesThatDoNotFitAreReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{}
		for i := range 10_000 {
			c.repositories = append(c.repositories, fmt.Sprintf("%0200d", i))
		}
		c.runHealers(t, 1)
		rest(time.Minute)
		if n := strings.Count(c.log.String(), "do not fit"); n != 1 {
			t.Errorf("%d messages: %s", n, &c.log)
		}
	})
}

func TestTheRegistryIsListedWithANodesCertificate(t *testing.T) {
	ca := tlsfilestest.NewCA(t, "ca")
	r := registrytest.Start(t, ca, func(o *registry.Options) {
		o.TLSDir = t.TempDir()
		tlsfilestest.WriteSecret(t, o.TLSDir, ca.Files(t, pki.OrganizationServer, []string{"localhost"}))
	})
	_, port, err := net.SplitHostPort(r.Address)
	require.NoError(t, err)
	config := Repositories{Registry: "localhost:" + port, TLSDir: t.TempDir()}
	tlsfilestest.WriteSecret(t, config.TLSDir, ca.Files(t, pki.OrganizationNode, nil))
	listed := func(want []string) {
		t.Helper()
		got := require.Value(listRegistry(t.Context(), config))(t)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%d repositories are listed, want %d", len(got), len(want))
		}
	}
	listed(nil)
	// More than fit on two pages, as distribution stores them.
	var want []string
	for i := range 2*listPage + 1 {
		name := fmt.Sprintf("team/app-%04d", i)
		want = append(want, name)
		link := filepath.Join(r.Root, "docker/registry/v2/repositories", name, "_manifests/revisions/sha256/a/link")
		require.NoError(t, os.MkdirAll(filepath.Dir(link), 0o700))
		require.NoError(t, os.WriteFile(link, nil, 0o600))
	}
	listed(want)

	tlsfilestest.WriteSecret(t, config.TLSDir, tlsfilestest.NewCA(t, "other").Files(t, pki.OrganizationNode, nil))
	if _, err := listRegistry(t.Context(), config); err == nil {
		t.Error("a server of another CA is accepted: the certificate was not read again")
	}
	config.TLSDir = t.TempDir()
	if _, err := listRegistry(t.Context(), config); err == nil || !strings.Contains(err.Error(), config.TLSDir) {
		t.Errorf("without a certificate: %v", err)
	}
}

// A credential for one component cannot displace others from the list with many or long names.
//
// Claim: One push credential cannot displace others from the list of repositories.
func TestOneOwnerDoesNotFillTheListOfRepositories(t *testing.T) {
	var names, others []string
	for i := range 20_000 {
		names = append(names, fmt.Sprintf("acme/%0250d", i))
	}
	for i := range 5000 {
		others = append(others, fmt.Sprintf("library/component-%05d", i), fmt.Sprintf("z%05d/app", i))
	}
	data, left := EncodeRepositories(slices.Concat(names, others))
	for _, name := range others {
		if !strings.Contains(data[repositoryKey(name)], "\n"+name+"\n") {
			t.Fatalf("%s is left out, of %d", name, left)
		}
	}
	if left == 0 || left == len(names) {
		t.Errorf("%d names are left", left)
	}
}
