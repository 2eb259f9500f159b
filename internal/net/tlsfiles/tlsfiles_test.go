package tlsfiles

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/net/mounted"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// badDirectories are certificate directories that must be rejected: variations of the good one. Package pki tests what
// is wrong within a file.
func badDirectories(t *testing.T, ca *tlsfilestest.CA, good tlsfilestest.Files) map[string]tlsfilestest.Files {
	t.Helper()
	otherCertificate, otherKey := ca.Issue(t, "other")
	with := func(name string, data []byte) tlsfilestest.Files {
		files := maps.Clone(good)
		files[name] = data
		return files
	}
	without := func(name string) tlsfilestest.Files {
		files := maps.Clone(good)
		delete(files, name)
		return files
	}
	huge := bytes.Repeat([]byte("x"), 10<<20)
	return map[string]tlsfilestest.Files{
		"no files, as after the Secret was deleted": {},
		"no certificate":                 without(CertificateFile),
		"no key":                         without(KeyFile),
		"no CA":                          without(CAFile),
		"the key of another certificate": with(KeyFile, otherKey),
		"the certificate of another key": with(CertificateFile, otherCertificate),
		"an invalid certificate":         with(CertificateFile, []byte("rubbish")),
		"an invalid key":                 with(KeyFile, []byte("rubbish")),
		"an empty key":                   with(KeyFile, nil),
		"a certificate instead of a key": with(KeyFile, good[CertificateFile]),
		"an empty CA bundle":             with(CAFile, nil),
		"a CA bundle with a leaf":        with(CAFile, slices.Concat(ca.PEM, good[CertificateFile])),
		"a file of ten megabytes":        with(CAFile, huge),
		"a key of ten megabytes":         with(KeyFile, huge),
	}
}

// secretDirectory is the directory that ..data of a mounted Secret leads to.
var secretDirectory = regexp.MustCompile(`\.\.generation_[0-9]+`)

func TestOpenRefuses(t *testing.T) {
	ca := tlsfilestest.NewCA(t, "ca")
	good := ca.Files(t, "node", []string{"registry"})
	golden := golden.Open(t, "refusals")
	for description, files := range badDirectories(t, ca, good) {
		dir := t.TempDir()
		tlsfilestest.WriteSecret(t, dir, files)
		_, err := Open(dir)
		message := strings.ReplaceAll(fmt.Sprint(err), dir, "DIR")
		golden.Check(t, description, secretDirectory.ReplaceAllString(message, "SECRET"))
	}

	t.Run("a named pipe, without waiting for a writer", func(t *testing.T) {
		dir := t.TempDir()
		files := maps.Clone(good)
		delete(files, KeyFile)
		writePlain(t, dir, files)
		require.NoError(t, syscall.Mkfifo(filepath.Join(dir, KeyFile), 0o600))
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Fatalf("Open() error = %v", err)
		}
	})
	t.Run("a missing directory", func(t *testing.T) {
		_, err := Open(filepath.Join(t.TempDir(), "nowhere"))
		if err == nil || !strings.Contains(err.Error(), "tls.crt: no such file") {
			t.Fatalf("Open() error = %v", err)
		}
	})
}

// Bad files change nothing but the report, and corrected files come into use.
func TestBadFilesKeepTheGeneration(t *testing.T) {
	ca := tlsfilestest.NewCA(t, "ca")
	good := ca.Files(t, "node", []string{"registry"})
	for layout, write := range map[string]func(t testing.TB, dir string, files tlsfilestest.Files){
		"in a mounted Secret": tlsfilestest.WriteSecret, "in a plain directory": writePlain,
	} {
		for description, bad := range badDirectories(t, ca, good) {
			t.Run(description+" "+layout, func(t *testing.T) {
				dir := t.TempDir()
				write(t, dir, good)
				var log bytes.Buffer
				source := require.Value(Open(dir, WithLogger(slog.New(slog.NewJSONHandler(&log, nil)))))(t)
				source.OnChange(func(m *Material) {
					if m.Generation != 2 {
						t.Errorf("generation %d came into use", m.Generation)
					}
				})
				before, report := source.Current(), source.Loaded()

				write(t, dir, bad)
				for look := range 3 {
					changed, err := source.Reload()
					if changed || err == nil {
						t.Fatalf("Reload() = %v, %v, want an error", changed, err)
					}
					report.ReloadErrors = uint64(look + 1)
					report.Problem = err.Error()
					if got := source.Loaded(); source.Current() != before || !reflect.DeepEqual(got, report) {
						t.Errorf("Report() = %+v, want %+v", got, report)
					}
				}
				var line struct{ Level, Error string }
				lines := strings.Split(strings.TrimSpace(log.String()), "\n")
				if len(lines) != 2 || json.Unmarshal([]byte(lines[1]), &line) != nil || line.Level != "ERROR" ||
					line.Error != report.Problem {
					t.Errorf("the failure must be logged once, with its text:\n%s", log.String())
				}

				write(t, dir, good)
				if changed, err := source.Reload(); changed || err != nil || source.Loaded().Problem != "" ||
					source.Current() != before {
					t.Errorf("Reload() = %v, %v after the old files came back, problem %q", changed, err, source.Loaded().Problem)
				}
				write(t, dir, bad)
				if _, err := source.Reload(); err == nil {
					t.Error("Reload() succeeded")
				}
				write(t, dir, ca.Files(t, "renewed", nil))
				if changed, err := source.Reload(); !changed || err != nil || source.Loaded().Problem != "" ||
					source.Current().Generation != 2 {
					t.Errorf("Reload() = %v, %v after new files arrived, problem %q", changed, err, source.Loaded().Problem)
				}
			})
		}
	}
}

// Peers check the expiry: their clocks may be better than ours.
func TestExpiredCertificatesAreLoaded(t *testing.T) {
	ca := tlsfilestest.NewCA(t, "ca")
	source, dir := open(t, ca.Files(t, "node", nil))
	for description, change := range map[string]func(*x509.Certificate){
		"expired":       func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) },
		"not yet valid": func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) },
	} {
		files := ca.Files(t, "node", nil)
		files[CertificateFile], files[KeyFile] = ca.IssueWith(t, change, description)
		replace(t, source, dir, files)
		report := source.Loaded()
		if report.Leaf.Subject != "CN="+description+",O="+description || report.Problem != "" || report.ReloadErrors != 0 {
			t.Errorf("%s: Report() = %+v", description, report)
		}
	}
}

func TestReport(t *testing.T) {
	ca, other := tlsfilestest.NewCA(t, "ca"), tlsfilestest.NewCA(t, "other")
	began := time.Now()
	files := ca.Files(t, "node", nil, other, ca)
	source, dir := open(t, files)
	leaf := source.Current().Leaf
	report := source.Loaded()
	if report.Generation != 1 || report.ReloadErrors != 0 || report.Problem != "" ||
		report.LoadedAt.Before(began.Add(-time.Second)) || report.LoadedAt.After(time.Now()) {
		t.Errorf("Report() = %+v", report)
	}
	sum := sha256.Sum256(leaf.Raw)
	want := loaded.Certificate{
		Subject: "CN=node,O=node", Serial: leaf.SerialNumber.Text(16), SHA256: hex.EncodeToString(sum[:]),
		NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
	}
	if report.Leaf != want {
		t.Errorf("leaf %+v, want %+v", report.Leaf, want)
	}
	if len(report.TrustedCAs) != 2 || report.TrustedCAs[0].Subject != "CN=ca" ||
		report.TrustedCAs[1].Subject != "CN=other" {
		t.Errorf("authorities %+v, want ca and other, in file order without duplicates", report.TrustedCAs)
	}
	first := source.Current()

	replace(t, source, dir, ca.Files(t, "node", nil))
	if next := source.Loaded(); next.Generation != 2 || !next.LoadedAt.After(report.LoadedAt) ||
		len(next.TrustedCAs) != 1 || next.Leaf.SHA256 == report.Leaf.SHA256 {
		t.Errorf("Report() = %+v after a reload", next)
	}
	if len(first.CAs) != 2 {
		t.Error("a previous generation has changed")
	}
}

func TestCAExpiryIsTheEarliest(t *testing.T) {
	at := func(hours ...int) *Material {
		m := &Material{}
		for _, hour := range hours {
			m.CAs = append(m.CAs, &x509.Certificate{NotAfter: time.Unix(int64(hour)*3600, 0)})
		}
		return m
	}
	for _, hours := range [][]int{{1}, {1, 2}, {2, 1}, {3, 1, 2}} {
		if got := at(hours...).CAExpiry().Unix(); got != 3600 {
			t.Errorf("CAExpiry() of %v = %d", hours, got)
		}
	}
}

// Checking an unchanged mounted Secret reads no file, which makes it cheap enough for every second
// on every node.
func TestUnchangedSecretIsNotRead(t *testing.T) {
	ca := tlsfilestest.NewCA(t, "ca")
	reads := func(t *testing.T, source *Source, dir string) bool {
		t.Helper()
		// The kubelet never does this. It shows whether the file is read.
		link, _ := mounted.Link(dir)
		require.NoError(t, os.WriteFile(filepath.Join(dir, link, KeyFile), []byte("rubbish"), 0o600))
		_, err := source.Reload()
		return err != nil
	}
	t.Run("in a mounted Secret", func(t *testing.T) {
		files := ca.Files(t, "node", nil)
		source, dir := open(t, files)
		if reads(t, source, dir) {
			t.Error("the files were read although ..data has the same target")
		}
		tlsfilestest.WriteSecret(t, dir, files)
		require.Value(source.Reload())(t)
		if reads(t, source, dir) {
			t.Error("the files were read although the target of ..data had the same files")
		}
		broken := maps.Clone(files)
		delete(broken, CAFile)
		tlsfilestest.WriteSecret(t, dir, broken)
		for range 2 {
			if _, err := source.Reload(); err == nil {
				t.Fatal("a broken generation was loaded")
			}
		}
		link, _ := mounted.Link(dir)
		require.NoError(t, os.WriteFile(filepath.Join(dir, link, CAFile), ca.PEM, 0o600))
		if _, err := source.Reload(); err != nil {
			t.Errorf("the files are not read again after a failure: %v", err)
		}

		good := require.Value(mounted.Link(dir))(t)
		for _, link := range []string{"nowhere", good} {
			require.NoError(t, os.Remove(filepath.Join(dir, "..data")))
			require.NoError(t, os.Symlink(link, filepath.Join(dir, "..data")))
			if _, err := source.Reload(); (err == nil) != (link == good) {
				t.Errorf("target of ..data %s: Reload() error = %v", link, err)
			}
		}
		if problem := source.Loaded().Problem; problem != "" {
			t.Errorf("the problem of a removed generation stays: %s", problem)
		}
	})
	t.Run("a plain directory is read each time", func(t *testing.T) {
		dir := t.TempDir()
		writePlain(t, dir, ca.Files(t, "node", nil))
		source := require.Value(Open(dir, WithLogger(slog.New(slog.DiscardHandler))))(t)
		if !reads(t, source, dir) {
			t.Error("the files were not read")
		}
	})
	t.Run("a mounted Secret that becomes a plain directory", func(t *testing.T) {
		source, dir := open(t, ca.Files(t, "node", nil))
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "..data")))
		if _, err := source.Reload(); err == nil {
			t.Error("dangling links were loaded")
		}
	})
}

func TestOpenAccepts(t *testing.T) {
	ca, other := tlsfilestest.NewCA(t, "ca"), tlsfilestest.NewCA(t, "other")
	for description, write := range map[string]func(t *testing.T, dir string){
		"a mounted Secret":  func(t *testing.T, dir string) { tlsfilestest.WriteSecret(t, dir, ca.Files(t, "node", nil)) },
		"a plain directory": func(t *testing.T, dir string) { writePlain(t, dir, ca.Files(t, "node", nil)) },
		"a bundle of two CAs with text between them": func(t *testing.T, dir string) {
			files := ca.Files(t, "node", nil)
			files[CAFile] = bytes.Join([][]byte{[]byte("\n"), other.PEM, []byte("\r\n\n"), ca.PEM, []byte("\n ")}, nil)
			tlsfilestest.WriteSecret(t, dir, files)
		},
		"ten certificates in each file": func(t *testing.T, dir string) {
			files := ca.Files(t, "node", nil)
			for range 9 {
				files[CertificateFile] = append(files[CertificateFile], tlsfilestest.NewCA(t, "ca").PEM...)
				files[CAFile] = append(files[CAFile], tlsfilestest.NewCA(t, "ca").PEM...)
			}
			tlsfilestest.WriteSecret(t, dir, files)
		},
	} {
		t.Run(description, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir)
			source := require.Value(Open(dir, WithLogger(slog.New(slog.DiscardHandler))))(t)
			m := source.Current()
			if m.Generation != 1 || len(m.Fingerprint) != 64 || m.Leaf.Subject.CommonName != "node" {
				t.Errorf("Current() = generation %d, fingerprint %q, leaf %s", m.Generation, m.Fingerprint, m.Leaf.Subject)
			}
		})
	}
}

func TestReload(t *testing.T) {
	ca := tlsfilestest.NewCA(t, "ca")
	dir := t.TempDir()
	first := ca.Files(t, "node", nil)
	tlsfilestest.WriteSecret(t, dir, first)
	var log bytes.Buffer
	source := require.Value(Open(dir, WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))(t)
	var seen []uint64
	source.OnChange(func(m *Material) {
		if source.Current() != m {
			t.Error("OnChange was called before the generation was in use")
		}
		seen = append(seen, m.Generation)
	})
	reload := func(wantChanged, wantError bool) *Material {
		t.Helper()
		changed, err := source.Reload()
		if changed != wantChanged || (err != nil) != wantError {
			t.Fatalf("Reload() = %v, %v", changed, err)
		}
		return source.Current()
	}

	one := source.Current()
	if reload(false, false) != one {
		t.Error("the same files created another generation")
	}
	tlsfilestest.WriteSecret(t, dir, first)
	if reload(false, false) != one {
		t.Error("the same files in a new directory created another generation")
	}

	broken := maps.Clone(first)
	broken[KeyFile] = []byte("rubbish")
	tlsfilestest.WriteSecret(t, dir, broken)
	for range 3 {
		if reload(false, true) != one {
			t.Error("a broken directory replaced the good generation")
		}
	}
	broken[CAFile] = nil
	delete(broken, KeyFile)
	tlsfilestest.WriteSecret(t, dir, broken)
	reload(false, true)
	if got := source.ReloadErrors(); got != 4 {
		t.Errorf("ReloadErrors() = %d, want 4", got)
	}
	if got := strings.Count(log.String(), "cannot reload"); got != 2 {
		t.Errorf("%d failures were logged, want one for each of 2 distinct ones:\n%s", got, log.String())
	}

	tlsfilestest.WriteSecret(t, dir, ca.Files(t, "renewed", nil))
	two := reload(true, false)
	if two.Generation != 2 || two.Leaf.Subject.CommonName != "renewed" || two.Fingerprint == one.Fingerprint {
		t.Errorf("Current() = generation %d, leaf %s", two.Generation, two.Leaf.Subject)
	}

	broken[KeyFile] = []byte("rubbish")
	tlsfilestest.WriteSecret(t, dir, broken)
	reload(false, true)
	if got := strings.Count(log.String(), "cannot reload"); got != 3 {
		t.Errorf("%d failures were logged, want 3: one that recurs after a success is new", got)
	}
	tlsfilestest.WriteSecret(t, dir, first)
	reload(true, false)
	if len(seen) != 2 || seen[0] != 2 || seen[1] != 3 {
		t.Errorf("OnChange was called with generations %v, want [2 3]", seen)
	}
}

// The files are replaced as fast as possible during reads: every generation must be consistent.
func TestGenerationsNeverMix(t *testing.T) {
	var generations []tlsfilestest.Files
	for range 4 {
		ca := tlsfilestest.NewCA(t, "ca")
		generations = append(generations, ca.Files(t, "node", []string{"registry"}))
	}
	source, dir := open(t, generations[0])
	source.interval = time.Microsecond
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { source.Run(ctx) })
	var seen sync.Map
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				m := source.Current()
				if _, known := seen.LoadOrStore(m.Generation, m.Fingerprint); !known {
					if err := m.verify(); err != nil {
						t.Errorf("generation %d: %v", m.Generation, err)
					}
				}
				runtime.Gosched()
			}
		})
	}
	// Most replacements are faster than a load. If nothing is loaded, the test times out.
	for i := 0; i < 300 || source.Current().Generation < 10; i++ {
		tlsfilestest.WriteSecret(t, dir, generations[i%len(generations)])
	}
	cancel()
	wg.Wait()
	if _, err := source.Reload(); err != nil {
		t.Error(err)
	}
}

// writePlain makes dir hold exactly these files.
func writePlain(t testing.TB, dir string, files tlsfilestest.Files) {
	t.Helper()
	for _, name := range []string{CertificateFile, KeyFile, CAFile} {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, name)))
	}
	for name, data := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
}
