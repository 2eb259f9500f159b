// Package browse serves read-only web pages about the content and the state of a registry: images with their
// layers, signatures and users, nodes, certificates and storage. It is for a workstation's loopback address. It
// changes nothing, and its pages load nothing from elsewhere.
package browse

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/status"
	"github.com/zarf-dev/zarf-registry/internal/status/show"
)

//go:embed assets
var assets embed.FS

// pageSize is how many images a page lists.
const pageSize = 200

// Snapshot is what the pages show.
type Snapshot struct {
	Address string // that references begin with
	Content *catalog.Catalog
	// Using returns the workloads that use an image. It is nil if they may not be listed.
	Using  func(*catalog.Image) []string
	Status *status.Report
}

// Source reads from the cluster. It must be safe for concurrent use.
type Source interface {
	Load(ctx context.Context) (*Snapshot, error)
	// Manifest returns the content of a manifest.
	Manifest(ctx context.Context, repository string, d digest.Digest) ([]byte, error)
}

// Server serves the pages. It is safe for concurrent use.
type Server struct {
	source    Source
	host      string
	token     string
	templates *template.Template
	mux       *http.ServeMux

	mu      sync.Mutex
	current *model
}

// New returns a server of pages below /TOKEN/, so that other users of the machine, and web pages that the user visits,
// do not find them. Host is what browsers must name in the header Host: an address and port.
func New(source Source, host, token string) *Server {
	s := &Server{source: source, host: host, token: token, mux: http.NewServeMux()}
	s.templates = template.Must(template.New("").Funcs(template.FuncMap{
		"bytes": space.FormatBytes, "short": shortDigest, "time": formatTime,
		"nodes": show.Nodes,
		"join":  func(list []string) string { return strings.Join(list, ", ") },
	}).ParseFS(assets, "assets/*.html"))
	base := "/" + token
	s.mux.HandleFunc("GET "+base+"/{$}", s.page("images.html", s.images))
	s.mux.HandleFunc("GET "+base+"/image", s.page("image.html", s.image))
	s.mux.HandleFunc("GET "+base+"/state", s.page("state.html", func(_ *http.Request, m *model) (any, error) {
		return m.Status, nil
	}))
	s.mux.HandleFunc("POST "+base+"/refresh", s.refresh)
	for name, mediaType := range map[string]string{
		"style.css": "text/css; charset=utf-8", "script.js": "text/javascript",
	} {
		s.mux.HandleFunc("GET "+base+"/"+name, func(w http.ResponseWriter, r *http.Request) {
			content, _ := assets.ReadFile("assets/" + name) // embedded
			w.Header().Set("Content-Type", mediaType)
			_, _ = w.Write(content) // the client may have disconnected
		})
	}
	return s
}

// URL is the address of the first page.
func (s *Server) URL() string { return "http://" + s.host + "/" + s.token + "/" }

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A name that leads to a loopback address would let a web page read the pages (DNS rebinding).
	if r.Host != s.host {
		http.Error(w, "open "+s.host+" instead", http.StatusMisdirectedRequest)
		return
	}
	header := w.Header()
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'; "+
		"base-uri 'none'; frame-ancestors 'none'")
	header.Set("Referrer-Policy", "no-referrer") // the path is secret
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	s.mux.ServeHTTP(w, r)
}

// model is a snapshot, prepared for the pages.
type model struct {
	*Snapshot
	Images       []*image
	Size         int64 // of all blobs
	Unused       int
	Repositories int
}

type image struct {
	*catalog.Image
	References []string
	Size       int64
	Unshared   int64
	UsedBy     []string
	Known      bool // whether UsedBy is known
}

// ID names an image in the query of a URL.
func (i *image) ID() string { return i.Repository + "@" + i.Digest.String() }

func newModel(snapshot *Snapshot) *model {
	m := &model{Snapshot: snapshot}
	for _, b := range snapshot.Content.Blobs {
		m.Size += b.Size
	}
	unshared := snapshot.Content.Unshared()
	last := ""
	for _, i := range snapshot.Content.Images() {
		shown := &image{Image: i, Size: snapshot.Content.Size(i.Members), Unshared: unshared(i.Members),
			Known: snapshot.Using != nil, References: i.References(snapshot.Address)}
		if shown.Known {
			if shown.UsedBy = snapshot.Using(i); len(shown.UsedBy) == 0 {
				m.Unused++
			}
		}
		if i.Repository != last {
			m.Repositories++
			last = i.Repository
		}
		m.Images = append(m.Images, shown)
	}
	return m
}

// load returns what was read last, and reads first if nothing was.
func (s *Server) load(ctx context.Context) (*model, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		snapshot, err := s.source.Load(ctx)
		if err != nil {
			return nil, err
		}
		s.current = newModel(snapshot)
	}
	return s.current, nil
}

// refresh reads again and leads back to the page.
func (s *Server) refresh(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.current = nil
	s.mu.Unlock()
	back := "./"
	if page := r.FormValue("page"); page == "state" {
		back = page
	}
	http.Redirect(w, r, back, http.StatusSeeOther)
}

// errNotFound means that a page is about something that does not exist.
var errNotFound = errors.New("this image is not in the registry (any more)")

type view struct {
	Page  string
	Model *model
	Data  any
	Error string
}

// page renders a template with the data that make returns.
func (s *Server) page(name string, make func(*http.Request, *model) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := view{Page: strings.TrimSuffix(name, ".html")}
		var err error
		if v.Model, err = s.load(r.Context()); err == nil {
			v.Data, err = make(r, v.Model)
		}
		shown, code := name, http.StatusOK
		if err != nil {
			shown, v.Error, code = "error.html", err.Error(), http.StatusBadGateway
			if errors.Is(err, errNotFound) {
				code = http.StatusNotFound
			}
		}
		var out bytes.Buffer
		if err := s.templates.ExecuteTemplate(&out, shown, v); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(code)
		_, _ = w.Write(out.Bytes()) // the client may have disconnected
	}
}

// imageList is the data of the page with all images.
type imageList struct {
	Query    string
	Unused   bool
	Untagged bool
	Sort     string
	Images   []*image
	Found    int
	From, To int    // positions, from 1
	Previous string // queries of other pages, or ""
	Next     string
}

func (s *Server) images(r *http.Request, m *model) (any, error) {
	query := r.URL.Query()
	l := imageList{Query: strings.TrimSpace(query.Get("q")), Unused: query.Has("unused"), Untagged: query.Has("untagged"),
		Sort: query.Get("sort")}
	found := slices.DeleteFunc(slices.Clone(m.Images), func(i *image) bool { return !l.matches(i) })
	switch l.Sort {
	case "size":
		slices.SortStableFunc(found, func(a, b *image) int { return cmp.Compare(b.Size, a.Size) })
	case "unshared":
		slices.SortStableFunc(found, func(a, b *image) int { return cmp.Compare(b.Unshared, a.Unshared) })
	case "pushed":
		slices.SortStableFunc(found, func(a, b *image) int { return b.Pushed.Compare(a.Pushed) })
	default:
		l.Sort = "name"
	}
	l.Found = len(found)
	from, _ := strconv.Atoi(query.Get("from"))
	from = min(max(from, 0), len(found))
	to := min(from+pageSize, len(found))
	l.Images, l.From, l.To = found[from:to], min(from+1, len(found)), to
	at := func(from int) string {
		other := maps.Clone(query)
		other.Set("from", strconv.Itoa(from))
		return "?" + other.Encode()
	}
	if from > 0 {
		l.Previous = at(max(from-pageSize, 0))
	}
	if to < len(found) {
		l.Next = at(to)
	}
	return l, nil
}

// matches reports whether an image has all words of the query in a reference, its digest, a platform or a workload.
func (l *imageList) matches(i *image) bool {
	if l.Unused && (!i.Known || len(i.UsedBy) > 0) || l.Untagged && len(i.Tags) > 0 {
		return false
	}
	texts := slices.Concat(i.References, i.Platforms, i.UsedBy, []string{i.Digest.String()})
	text := strings.ToLower(strings.Join(texts, " "))
	for word := range strings.FieldsSeq(strings.ToLower(l.Query)) {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// details is the data of the page about an image.
type details struct {
	*image
	Manifests []member
	Raw       string
}

// member is a manifest of an image.
type member struct {
	*catalog.Manifest
	Kind  string
	Blobs []layer
}

// layer is a blob of a manifest, in its order.
type layer struct {
	Kind    string
	Digest  digest.Digest
	Type    string
	Size    int64
	Missing bool // from the registry
}

func (s *Server) image(r *http.Request, m *model) (any, error) {
	id := r.URL.Query().Get("id")
	at := slices.IndexFunc(m.Images, func(i *image) bool { return i.ID() == id })
	if at < 0 {
		return nil, errNotFound
	}
	d := details{image: m.Images[at]}
	for _, listed := range d.Members {
		raw, err := s.source.Manifest(r.Context(), listed.Repository, listed.Digest)
		if err != nil && listed.Problem == "" {
			return nil, err
		}
		if listed.Digest == d.Digest {
			var indented bytes.Buffer
			if json.Indent(&indented, raw, "", "  ") == nil {
				d.Raw = indented.String()
			}
		}
		d.Manifests = append(d.Manifests, newMember(m.Content, listed, raw))
	}
	return d, nil
}

func newMember(content *catalog.Catalog, listed *catalog.Manifest, raw []byte) member {
	m := member{Manifest: listed, Kind: "manifest"}
	switch {
	case listed.IsSBOM():
		m.Kind = "SBOM"
	case listed.IsSignature():
		m.Kind = "signature"
	case listed.Subject != "":
		m.Kind = "referrer"
	case oci.IsIndex(listed.MediaType):
		m.Kind = "index"
	case len(listed.Predicates) > 0:
		m.Kind = "attestation"
	case len(listed.Platforms) > 0:
		m.Kind = "image for " + strings.Join(listed.Platforms, ", ")
	}
	var parts struct {
		Config *ocispec.Descriptor  `json:"config"`
		Layers []ocispec.Descriptor `json:"layers"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return m // Problem says why
	}
	add := func(kind string, desc ocispec.Descriptor) {
		_, stored := content.Blobs[desc.Digest]
		m.Blobs = append(m.Blobs, layer{kind, desc.Digest, desc.MediaType, desc.Size,
			!stored && desc.Digest.Algorithm() == digest.Canonical})
	}
	if parts.Config != nil {
		add("configuration", *parts.Config)
	}
	for i, desc := range parts.Layers {
		add("layer "+strconv.Itoa(i+1), desc)
	}
	return m
}

// shortDigest shortens a digest as Docker does, for humans.
func shortDigest(d digest.Digest) string {
	if len(d.Encoded()) < 12 {
		return d.String()
	}
	return d.Encoded()[:12]
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04")
}
