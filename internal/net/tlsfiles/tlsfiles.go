// Package tlsfiles loads a certificate directory (tls.crt, tls.key, ca.crt) and reloads it when the
// files change, as they do in a mounted Kubernetes Secret.
//
// A directory is loaded as one generation: all three files or none. If a file cannot be read or
// parsed or the files do not match, the failure is logged and counted, and the previous generation
// stays in use. Each generation has its own TLS configurations, ticket keys and session cache, so
// that a session established under one trust bundle is never resumed under another: crypto/tls does
// not verify the chain again when it resumes a session (golang/go#77217).
//
// The package does not issue, renew or write certificates. It does not check expiry either: a node
// whose clock is wrong at boot would refuse a good certificate. Peers refuse an expired one, and
// Material.Leaf has the expiry.
package tlsfiles

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/net/mounted"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// File names of a Secret of type kubernetes.io/tls, and of the trust bundle that cert-manager adds
// to it.
const (
	CertificateFile = "tls.crt"
	KeyFile         = "tls.key"
	CAFile          = "ca.crt"
)

// DefaultInterval is how often Run checks the directory. It is short because each step of a CA
// rotation waits for the slowest program, and cheap because checking a mounted Secret is one
// readlink. Polling also works where inotify does not (overlay and network file systems) and needs
// no dependency.
const DefaultInterval = time.Second

// maxFileSize is the size limit of a file in bytes. A Secret cannot hold more.
const maxFileSize = 1 << 20

// Material is one consistent generation of a certificate directory. It is immutable and may be
// shared.
type Material struct {
	// Certificate is tls.crt, including its chain, and tls.key.
	Certificate tls.Certificate
	// CAPool is the trust bundle, ca.crt: one certificate, or several during a CA rotation.
	CAPool *x509.CertPool
	// CAs are the certificates in CAPool in file order, without duplicates. There is at least
	// one, except with WithoutCAs.
	CAs []*x509.Certificate
	// Leaf is the first certificate in tls.crt.
	Leaf *x509.Certificate
	// Generation counts the loads that changed something, starting at 1.
	Generation uint64
	// Fingerprint is the SHA-256 of the three files in hex. Equal fingerprints mean equal files.
	Fingerprint string
	// LoadedAt is when this generation came into use.
	LoadedAt time.Time
}

// CAExpiry returns the earliest expiry of the CAs, or the zero time if there are none.
func (m *Material) CAExpiry() time.Time {
	if len(m.CAs) == 0 {
		return time.Time{}
	}
	first := m.CAs[0].NotAfter
	for _, ca := range m.CAs[1:] {
		if ca.NotAfter.Before(first) {
			first = ca.NotAfter
		}
	}
	return first
}

// Lifetime returns the total validity period of the certificate.
func (m *Material) Lifetime() time.Duration { return m.Leaf.NotAfter.Sub(m.Leaf.NotBefore) }

// Source keeps a certificate directory loaded. All methods are safe for concurrent use.
type Source struct {
	dir      string
	interval time.Duration // DefaultInterval
	log      *slog.Logger
	noCA     bool

	current  atomic.Pointer[Material]
	failures atomic.Uint64
	problem  atomic.Pointer[string] // why the last load failed; nil after a success

	mu       sync.Mutex // serializes Reload
	link     string     // target of ..data at the last load; empty in a plain directory
	onChange []func(*Material)
}

// Option is an option of Open.
type Option func(*Source)

// WithLogger sets the logger for new generations and failures. The default is slog.Default().
func WithLogger(log *slog.Logger) Option {
	return func(s *Source) { s.log = log }
}

// WithoutCAs ignores ca.crt, for a server that does not request client certificates.
// Material then has no CAs. Files may be missing at first, because cert-manager writes them later:
// Current is then nil, and handshakes fail.
func WithoutCAs() Option {
	return func(s *Source) { s.noCA = true }
}

// Open loads dir, which is a mounted Secret (the files are links through ..data) or a plain
// directory. It fails if the first load fails. Call Run to keep the Source current.
func Open(dir string, options ...Option) (*Source, error) {
	s := &Source{dir: dir, interval: DefaultInterval, log: slog.Default()}
	for _, option := range options {
		option(s)
	}
	if _, err := s.Reload(); err != nil && !s.awaits(err) {
		return nil, err
	}
	return s, nil
}

// awaits reports whether the error of the first load means that files may come later.
func (s *Source) awaits(err error) bool { return s.noCA && errors.Is(err, fs.ErrNotExist) }

// Current returns the newest valid generation. It is nil only WithoutCAs, and takes no lock.
func (s *Source) Current() *Material { return s.current.Load() }

// ReloadErrors returns the number of failed loads since Open. Each check of a broken directory
// counts.
func (s *Source) ReloadErrors() uint64 { return s.failures.Load() }

// Gauges returns metrics of the certificates in use, by name. Times are Unix times in seconds.
func (s *Source) Gauges() map[string]func() float64 {
	return map[string]func() float64{
		"certificate_expiry_timestamp_seconds": func() float64 { return float64(s.Current().Leaf.NotAfter.Unix()) },
		"certificate_lifetime_seconds":         func() float64 { return s.Current().Lifetime().Seconds() },
		"ca_expiry_timestamp_seconds":          func() float64 { return float64(s.Current().CAExpiry().Unix()) },
		"certificate_generation":               func() float64 { return float64(s.Current().Generation) },
	}
}

// OnChange registers fn to be called with each later generation once it is in use, in the goroutine
// that reloads. fn must not call OnChange or Reload.
func (s *Source) OnChange(fn func(*Material)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onChange = append(s.onChange, fn)
}

// Run reloads the directory at each interval until ctx ends.
func (s *Source) Run(ctx context.Context) {
	ticker := time.NewTicker(s.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			// Reload has already logged and counted the failure.
			_, _ = s.Reload()
		}
	}
}

// Loaded describes the generation in use and, if the last load failed, the reason.
func (s *Source) Loaded() loaded.Certificates {
	m := s.Current()
	report := loaded.Certificates{
		Generation:   m.Generation,
		LoadedAt:     m.LoadedAt,
		Leaf:         describe(m.Leaf),
		ReloadErrors: s.ReloadErrors(),
	}
	for _, ca := range m.CAs {
		report.TrustedCAs = append(report.TrustedCAs, describe(ca))
	}
	if problem := s.problem.Load(); problem != nil {
		report.Problem = *problem
	}
	return report
}

func describe(certificate *x509.Certificate) loaded.Certificate {
	return loaded.Certificate{
		Subject:   certificate.Subject.String(),
		Serial:    certificate.SerialNumber.Text(16),
		SHA256:    pki.Fingerprint(certificate),
		NotBefore: certificate.NotBefore.UTC(),
		NotAfter:  certificate.NotAfter.UTC(),
	}
}

// Reload checks the directory now and reports whether there is a new generation. If it fails, the
// previous generation stays in use.
//
// If the directory is a mounted Secret, the last load succeeded and ..data has the same target as
// then, the files are not read: the kubelet never writes to a directory that ..data points to.
func (s *Source) Reload() (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	old, failed := s.current.Load(), s.problem.Load()
	if old != nil && failed == nil && s.link != "" {
		if link, err := mounted.Link(s.dir); err == nil && link == s.link {
			return false, nil
		}
	}
	m, link, err := load(s.dir, s.noCA, old)
	if err != nil {
		err = fmt.Errorf("certificate directory %s: %w", s.dir, err)
		if old == nil && !s.awaits(err) {
			return false, err
		}
		s.failures.Add(1)
		text := err.Error()
		s.problem.Store(&text)
		switch {
		case failed != nil && *failed == text:
		case old == nil:
			s.log.Error("no certificates yet: connections fail until they exist", "error", err)
		default:
			s.log.Error("cannot reload certificates, keeping the previous ones",
				"error", err, "generation", old.Generation, "expires", old.Leaf.NotAfter)
		}
		return false, err
	}
	s.link = link
	if m == old {
		s.problem.Store(nil)
		return false, nil
	}
	s.current.Store(m)
	s.problem.Store(nil)
	s.log.Info("certificates loaded",
		"dir", s.dir, "generation", m.Generation, "expires", m.Leaf.NotAfter, "fingerprint", m.Fingerprint)
	for _, fn := range s.onChange {
		fn(m)
	}
	return true, nil
}

// load reads dir and returns the target of ..data. It returns old itself if nothing has changed.
func load(dir string, noCA bool, old *Material) (m *Material, link string, err error) {
	var files generation
	link, err = mounted.Read(dir, func(generation string) (err error) {
		files, err = readFiles(generation, noCA)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	fingerprint := files.fingerprint()
	if old != nil && old.Fingerprint == fingerprint {
		return old, link, nil
	}
	if m, err = parse(files, noCA); err != nil {
		return nil, "", err
	}
	m.Fingerprint = fingerprint
	m.LoadedAt = time.Now().UTC()
	m.Generation = 1
	if old != nil {
		m.Generation = old.Generation + 1
	}
	return m, link, nil
}

type generation struct{ certificate, key, ca []byte }

func (g generation) fingerprint() string {
	h := sha256.New()
	for _, file := range [][]byte{g.certificate, g.key, g.ca} {
		// The length prevents collisions when bytes move from one file to the next.
		fmt.Fprintf(h, "%d\n", len(file))
		h.Write(file)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func readFiles(dir string, noCA bool) (g generation, err error) {
	if g.certificate, err = readFile(filepath.Join(dir, CertificateFile)); err != nil {
		return generation{}, err
	}
	if g.key, err = readFile(filepath.Join(dir, KeyFile)); err != nil {
		return generation{}, err
	}
	if noCA {
		return g, nil
	}
	if g.ca, err = readFile(filepath.Join(dir, CAFile)); err != nil {
		return generation{}, err
	}
	return g, nil
}

func readFile(path string) ([]byte, error) {
	// Opening a named pipe would block forever.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileSize {
		return nil, fmt.Errorf("%s exceeds %d bytes", path, maxFileSize)
	}
	return data, nil
}

func parse(g generation, noCA bool) (*Material, error) {
	chain, err := pki.ParseChain(g.certificate)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", CertificateFile, err)
	}
	certificate, err := tls.X509KeyPair(g.certificate, g.key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", CertificateFile, KeyFile, err)
	}
	m := &Material{Certificate: certificate, Leaf: chain[0], CAPool: x509.NewCertPool()}
	if noCA {
		return m, nil
	}
	bundle, err := pki.ParseBundle(g.ca)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", CAFile, err)
	}
	m.CAs = bundle.Certificates()
	for _, ca := range m.CAs {
		m.CAPool.AddCert(ca)
	}
	return m, nil
}
