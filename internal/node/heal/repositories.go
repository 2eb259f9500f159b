package heal

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// Repositories is where the names of the registry's repositories are copied from, and to. A policy of the chart reads
// them.
type Repositories struct {
	// ConfigMap is the name of an existing one in the release's namespace. Empty for none.
	ConfigMap string
	// Registry is the host:port of the registry, with mutual TLS.
	Registry string
	// TLSDir is a directory with tls.crt, tls.key and ca.crt. It is read for each listing.
	TLSDir string
}

// Flags of registry-node heal, with which the chart configures the copy.
const (
	FlagRepositories = "repositories-configmap"
	FlagRegistry     = "registry"
	FlagTLSDir       = "tls-dir"
)

// Validate reports whether the fields are valid, as given with flags.
func (r Repositories) Validate() error {
	_, _, err := net.SplitHostPort(r.Registry)
	if r.ConfigMap != "" && (err != nil || r.TLSDir == "") {
		return fmt.Errorf("--%s needs --%s=HOST:PORT and --%s", FlagRepositories, FlagRegistry, FlagTLSDir)
	}
	return nil
}

// MaxRepositoryData is the size limit of keys and values in a ConfigMap, in bytes.
const MaxRepositoryData = 1 << 20

const (
	// listPeriod is the least time between listings, and listShare how many times longer than a listing it is: a
	// large registry spends 5 % of its time on them for each healer.
	listPeriod = 5 * time.Second
	listShare  = 20
	// reread is how long the ConfigMap is taken to be as it was.
	reread = time.Minute
	// listTimeout limits a listing, and listPage the names in a response, as distribution does by default.
	listTimeout = 10 * time.Minute
	listPage    = 1000
	maxListPage = 1 << 20 // bytes: a name has at most 255
)

// EncodeRepositories returns the data of the ConfigMap, and how many of the names do not fit. The order of the names
// does not matter.
//
// Names with the same first component have one owner: a credential for acme can create thousands of repositories
// there. So the space is for the names of the component that has least of it, and a component that needs no more than
// an equal part of the space gets that.
//
// The API server converts all keys and values of a policy's parameters for each pod, which takes 1 µs or more for each
// key, but hardly longer for long values. Searching a value takes CEL the longer, the longer it is. So the names are
// distributed over 251 keys (see repositoryKey). Each value begins and ends with a line feed, as do the names in it.
func EncodeRepositories(repositories []string) (data map[string]string, left int) {
	owners := ownersOf(repositories)
	named := map[string][]string{}
	size := 0
	for len(owners) > 0 {
		first := owners[0]
		name := first.names[0]
		key := repositoryKey(name)
		grows := len(name) + 1
		if named[key] == nil {
			grows += len(key) + 1
		}
		if size+grows > MaxRepositoryData {
			left++
		} else {
			size += grows
			first.used += len(name) + 1
			named[key] = append(named[key], name)
		}
		if first.names = first.names[1:]; len(first.names) == 0 {
			heap.Pop(&owners)
		} else {
			heap.Fix(&owners, 0)
		}
	}
	data = map[string]string{}
	for key, names := range named {
		slices.Sort(names)
		data[key] = "\n" + strings.Join(names, "\n") + "\n"
	}
	return data, left
}

// owner is the first component of the names of repositories.
type owner struct {
	component string
	names     []string // the rest, sorted
	used      int      // bytes
}

// owners is a heap whose first element has used least.
type owners []*owner

func ownersOf(repositories []string) (o owners) {
	byComponent := map[string]*owner{}
	for _, name := range slices.Sorted(slices.Values(repositories)) {
		component, _, _ := strings.Cut(name, "/")
		if byComponent[component] == nil {
			byComponent[component] = &owner{component: component}
			o = append(o, byComponent[component])
		}
		byComponent[component].names = append(byComponent[component].names, name)
	}
	heap.Init(&o)
	return o
}

func (o owners) Len() int { return len(o) }

func (o owners) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(o[i].used, o[j].used), cmp.Compare(o[i].component, o[j].component)) < 0
}

func (o owners) Swap(i, j int) { o[i], o[j] = o[j], o[i] }

func (o *owners) Push(x any) { *o = append(*o, x.(*owner)) }

func (o *owners) Pop() any {
	last := (*o)[len(*o)-1]
	*o = (*o)[:len(*o)-1]
	return last
}

// repositoryKey returns the key of a name, as the policy computes it in CEL: the sum of its characters' indexes in an
// alphabet, each multiplied by its position, modulo a prime.
func repositoryKey(name string) string {
	sum := 0
	for i := range len(name) {
		sum += i * strings.IndexByte("abcdefghijklmnopqrstuvwxyz0123456789._-/", name[i])
	}
	return strconv.Itoa(sum % 251)
}

type copier struct {
	config  Repositories
	connect func() (*Client, error)
	log     *slog.Logger

	known  map[string]string // what the ConfigMap contains
	read   time.Time         // when it did
	left   int               // the names that do not fit
	failed bool              // the last time
}

// copyRepositories copies the names of repositories until ctx ends. Other healers do the same, and write the same.
func (h *Healer) copyRepositories(ctx context.Context) {
	c := &copier{config: h.config.Repositories, connect: h.config.Connect, log: h.config.Logger}
	for ctx.Err() == nil {
		pause := listPeriod
		began := time.Now()
		repositories, err := h.list(ctx, c.config)
		if err == nil {
			now := time.Now()
			pause = max(pause, listShare*now.Sub(began))
			err = c.store(ctx, repositories, now)
		}
		c.note(ctx, err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// note logs the first of several failures. What the ConfigMap contains stays.
func (c *copier) note(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && !c.failed:
		c.log.Warn("copying the names of repositories failed", "error", err)
	case err == nil && c.failed:
		c.log.Info("copying the names of repositories works again")
	}
	c.failed = err != nil
}

// store updates the ConfigMap if it differs. If it has changed since it was read, the next call reads it again.
func (c *copier) store(ctx context.Context, repositories []string, now time.Time) error {
	data, left := EncodeRepositories(repositories)
	if left != c.left && left > 0 {
		c.log.Error("the names of some repositories do not fit into the ConfigMap: their images are not rewritten",
			"configmap", c.config.ConfigMap, "repositories", len(repositories), "remaining", left)
	}
	c.left = left
	if c.known != nil && maps.Equal(data, c.known) && now.Sub(c.read) < reread {
		return nil
	}
	c.known = nil
	client, err := c.connect()
	if err != nil {
		return err
	}
	defer client.HTTP.CloseIdleConnections()
	path := "/api/v1/namespaces/" + url.PathEscape(client.Namespace) + "/configmaps/" + url.PathEscape(c.config.ConfigMap)
	var object map[string]any
	if err := client.do(ctx, http.MethodGet, path, nil, "", nil, &object); err != nil {
		return fmt.Errorf("reading ConfigMap %s/%s: %w", client.Namespace, c.config.ConfigMap, err)
	}
	if !sameData(object["data"], data) {
		object["data"] = data
		query := url.Values{"fieldManager": {names.Chart + "-" + names.ComponentHealer}}
		err := client.do(ctx, http.MethodPut, path, query, "application/json", object, nil)
		if codeOf(err) == http.StatusConflict {
			c.log.Debug("the ConfigMap has changed", "error", err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("updating ConfigMap %s/%s: %w", client.Namespace, c.config.ConfigMap, err)
		}
		c.log.Info("copied the names of repositories", "configmap", c.config.ConfigMap,
			"repositories", len(repositories)-left)
	}
	c.known, c.read = data, now
	return nil
}

func sameData(decoded any, data map[string]string) bool {
	have, _ := decoded.(map[string]any)
	return maps.EqualFunc(have, data, func(a any, b string) bool { return a == b })
}

// listRegistry lists the repositories with the current certificate.
func listRegistry(ctx context.Context, config Repositories) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	host, _, err := net.SplitHostPort(config.Registry)
	if err != nil {
		return nil, err
	}
	source, err := tlsfiles.Open(config.TLSDir, tlsfiles.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: requestTimeout}).DialContext,
		TLSClientConfig:     tlsfiles.ClientConfig(source.Current(), host),
		TLSHandshakeTimeout: requestTimeout,
	}
	defer transport.CloseIdleConnections()
	return listRepositories(ctx, &http.Client{Transport: transport}, "https://"+config.Registry)
}

// listRepositories returns the names of a registry's repositories. On volumes, a repository remains after its last
// image was deleted.
func listRepositories(ctx context.Context, client *http.Client, registry string) ([]string, error) {
	var found []string
	for query := (url.Values{"n": {strconv.Itoa(listPage)}}); ; {
		page, more, err := listPageOf(ctx, client, registry+"/v2/_catalog?"+query.Encode())
		if err != nil {
			return nil, fmt.Errorf("listing the repositories of %s: %w", registry, err)
		}
		found = append(found, page...)
		if !more || len(page) == 0 {
			return found, nil
		}
		query.Set("last", page[len(page)-1])
	}
}

func listPageOf(ctx context.Context, client *http.Client, url string) (repositories []string, more bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, false, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, false, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxListPage))
	if err != nil {
		return nil, false, err
	}
	if response.StatusCode != http.StatusOK {
		message := strings.TrimSpace(string(body[:min(len(body), 500)]))
		return nil, false, fmt.Errorf("HTTP %d: %s", response.StatusCode, message)
	}
	var page struct {
		Repositories []string `json:"repositories"`
	}
	err = json.Unmarshal(body, &page)
	return page.Repositories, response.Header.Get("Link") != "", err
}
