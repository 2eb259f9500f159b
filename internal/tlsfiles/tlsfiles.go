// Package tlsfiles loads a certificate directory (tls.crt, tls.key, ca.crt) and keeps it current while the files change
// underneath, as they do in a mounted Kubernetes Secret.
//
// A directory is read as one generation: all three files or none. What cannot be read, parsed or matched is reported and
// counted, and the generation before it stays in use. Every generation gets TLS configurations of its own, with ticket keys
// and a session cache of their own, so that a session made under one trust bundle is never resumed under another:
// crypto/tls does not check a chain again when it resumes (golang/go#77217).
//
// The package does not issue, renew or write certificates, and does not judge expiry: a node whose clock is wrong at boot
// would otherwise refuse a good certificate. Peers refuse an expired one, and Material.Leaf tells when that will be.
package tlsfiles

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// The names of the files, those of a Secret of type kubernetes.io/tls plus the trust bundle that cert-manager also writes.
const (
	CertificateFile = "tls.crt"
	KeyFile         = "tls.key"
	CAFile          = "ca.crt"
)

// DefaultInterval is how often Run looks at the directory. The kubelet itself brings a changed Secret up to about 90 s
// late, so a few seconds more are lost in it, and reading three small files costs nothing that could be measured. Polling
// also works where inotify does not (overlay and network file systems), and needs no dependency.
const DefaultInterval = 5 * time.Second

// maxFileSize is the largest file that is read, in bytes: a Secret cannot hold more.
const maxFileSize = 1 << 20

// Material is one consistent generation of a certificate directory. It is immutable and may be shared.
type Material struct {
	// Certificate is tls.crt with its chain, and tls.key.
	Certificate tls.Certificate
	// CAs is the trust bundle, ca.crt: one certificate or several while a CA is being rotated.
	CAs *x509.CertPool
	// Leaf is the first certificate of tls.crt.
	Leaf *x509.Certificate
	// Generation counts the loads that changed something, from 1.
	Generation uint64
	// Fingerprint is the SHA-256 of the three files, in hex. Equal fingerprints mean equal files.
	Fingerprint string
}

// Source is a certificate directory that is kept current. All methods are safe for concurrent use.
type Source struct {
	dir      string
	interval time.Duration
	log      *slog.Logger

	current  atomic.Pointer[Material]
	failures atomic.Uint64

	mu       sync.Mutex // serialises Reload
	failure  string     // the failure that was logged last; empty after a success
	onChange []func(*Material)
}

// Option changes a default of Open.
type Option func(*Source)

// WithInterval sets how often Run looks at the directory, instead of DefaultInterval. It must be positive.
func WithInterval(interval time.Duration) Option {
	return func(s *Source) { s.interval = interval }
}

// WithLogger sets where new generations and failures are logged, instead of slog.Default().
func WithLogger(log *slog.Logger) Option {
	return func(s *Source) { s.log = log }
}

// Open loads dir, which is a mounted Secret (the files are links through ..data) or a plain directory. It fails if the
// first load does. Call Run to keep the Source current.
func Open(dir string, options ...Option) (*Source, error) {
	s := &Source{dir: dir, interval: DefaultInterval, log: slog.Default()}
	for _, option := range options {
		option(s)
	}
	if s.interval <= 0 {
		return nil, fmt.Errorf("certificate directory %s: interval %s is not positive", dir, s.interval)
	}
	if _, err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// Current returns the newest good generation; never nil. It takes no lock.
func (s *Source) Current() *Material { return s.current.Load() }

// ReloadErrors counts the loads that failed since Open. While a directory stays broken each look at it counts.
func (s *Source) ReloadErrors() uint64 { return s.failures.Load() }

// OnChange registers fn to be called with each generation after the current one, once it is in use, in the goroutine
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
			// Reload has logged and counted a failure already.
			_, _ = s.Reload()
		}
	}
}

// Reload looks at the directory now and reports whether there is a new generation. On an error the old one stays.
func (s *Source) Reload() (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	old := s.current.Load()
	m, err := load(s.dir, old)
	if err != nil {
		err = fmt.Errorf("certificate directory %s: %w", s.dir, err)
		if old != nil {
			s.failures.Add(1)
			if s.failure != err.Error() {
				s.log.Error("cannot reload certificates, keeping the old ones",
					"error", err, "generation", old.Generation, "expires", old.Leaf.NotAfter)
			}
			s.failure = err.Error()
		}
		return false, err
	}
	s.failure = ""
	if m == old {
		return false, nil
	}
	s.current.Store(m)
	s.log.Info("certificates loaded",
		"dir", s.dir, "generation", m.Generation, "expires", m.Leaf.NotAfter, "fingerprint", m.Fingerprint)
	for _, fn := range s.onChange {
		fn(m)
	}
	return true, nil
}

// load reads dir and returns old itself if nothing has changed.
func load(dir string, old *Material) (*Material, error) {
	files, err := readGeneration(dir)
	if err != nil {
		return nil, err
	}
	fingerprint := files.fingerprint()
	if old != nil && old.Fingerprint == fingerprint {
		return old, nil
	}
	m, err := parse(files)
	if err != nil {
		return nil, err
	}
	m.Fingerprint = fingerprint
	m.Generation = 1
	if old != nil {
		m.Generation = old.Generation + 1
	}
	return m, nil
}

type generation struct{ certificate, key, ca []byte }

func (g generation) fingerprint() string {
	h := sha256.New()
	for _, file := range [][]byte{g.certificate, g.key, g.ca} {
		// The length keeps bytes from moving over the border between two files unnoticed.
		fmt.Fprintf(h, "%d\n", len(file))
		h.Write(file)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// readGeneration reads the three files of one generation.
func readGeneration(dir string) (generation, error) {
	// The kubelet removes the former generation right after it has moved ..data, so a read that began before may find
	// its files gone. One more look is enough: generations are minutes apart.
	for attempt := 0; ; attempt++ {
		resolved, err := resolve(dir)
		if err != nil {
			return generation{}, err
		}
		g, err := readFiles(resolved)
		if err == nil || attempt == 1 || !errors.Is(err, os.ErrNotExist) {
			return g, err
		}
	}
}

// resolve follows ..data once, so that the files that are read next come from one generation.
func resolve(dir string) (string, error) {
	resolved, err := filepath.EvalSymlinks(filepath.Join(dir, "..data"))
	if errors.Is(err, os.ErrNotExist) {
		return dir, nil
	}
	return resolved, err
}

func readFiles(dir string) (g generation, err error) {
	if g.certificate, err = readFile(filepath.Join(dir, CertificateFile)); err != nil {
		return generation{}, err
	}
	if g.key, err = readFile(filepath.Join(dir, KeyFile)); err != nil {
		return generation{}, err
	}
	if g.ca, err = readFile(filepath.Join(dir, CAFile)); err != nil {
		return generation{}, err
	}
	return g, nil
}

func readFile(path string) ([]byte, error) {
	// Opening a named pipe would block for ever.
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
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFileSize)
	}
	return data, nil
}

func parse(g generation) (*Material, error) {
	chain, err := parseCertificates(g.certificate)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", CertificateFile, err)
	}
	certificate, err := tls.X509KeyPair(g.certificate, g.key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", CertificateFile, KeyFile, err)
	}
	cas, err := parseCertificates(g.ca)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", CAFile, err)
	}
	pool := x509.NewCertPool()
	for _, ca := range cas {
		if !ca.BasicConstraintsValid || !ca.IsCA {
			return nil, fmt.Errorf("%s: certificate %q is not a CA", CAFile, ca.Subject)
		}
		pool.AddCert(ca)
	}
	return &Material{Certificate: certificate, Leaf: chain[0], CAs: pool}, nil
}

// parseCertificates is strict where encoding/pem skips over what it does not understand: a bundle of which one
// certificate was damaged must not be taken for a shorter bundle.
func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certificates []*x509.Certificate
	begins := bytes.Count(data, []byte("-----BEGIN "))
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a PEM block of type %q, want CERTIFICATE only", block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(certificates)+1, err)
		}
		certificates = append(certificates, certificate)
	}
	switch {
	case begins == 0:
		return nil, errors.New("holds no certificate in PEM form")
	case len(certificates) != begins:
		return nil, fmt.Errorf("%d of %d PEM blocks are damaged", begins-len(certificates), begins)
	}
	return certificates, nil
}
