package tlsfiles

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/tlsfiles/tlsfilestest"
)

func TestOpenRefuses(t *testing.T) {
	ca := tlsfilestest.NewCA(t, "ca")
	good := ca.Files(t, "node", []string{"registry"})
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
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

	for sentence, tt := range map[string]struct {
		files tlsfilestest.Files
		want  string
	}{
		"a directory without a certificate":             {without(CertificateFile), "tls.crt: no such file"},
		"a directory without a key":                     {without(KeyFile), "tls.key: no such file"},
		"a directory without a CA":                      {without(CAFile), "ca.crt: no such file"},
		"the key of another certificate":                {with(KeyFile, otherKey), "private key does not match"},
		"the certificate of another key":                {with(CertificateFile, otherCertificate), "private key does not match"},
		"rubbish for a certificate":                     {with(CertificateFile, []byte("rubbish")), "tls.crt: holds no certificate"},
		"rubbish for a key":                             {with(KeyFile, []byte("rubbish")), "tls.crt and tls.key: "},
		"an empty CA bundle":                            {with(CAFile, nil), "ca.crt: holds no certificate"},
		"a leaf certificate for a CA":                   {with(CAFile, good[CertificateFile]), "is not a CA"},
		"a CA bundle with a leaf in it":                 {with(CAFile, join(ca.PEM, good[CertificateFile])), "is not a CA"},
		"a CA bundle with a key in it":                  {with(CAFile, join(ca.PEM, otherKey)), `PEM block of type "PRIVATE KEY"`},
		"a CA bundle that was cut off":                  {with(CAFile, join(ca.PEM, ca.PEM[:len(ca.PEM)/2])), "1 of 2 PEM blocks are damaged"},
		"a CA bundle whose first certificate is broken": {with(CAFile, join(ca.PEM[:len(ca.PEM)/2], []byte("!\n"), ca.PEM)), "1 of 2 PEM blocks are damaged"},
		"a PEM block that is not a certificate inside": {
			with(CAFile, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")), "ca.crt: certificate 1: "},
		"a file of ten megabytes": {with(CAFile, bytes.Repeat([]byte("x"), 10<<20)), "ca.crt is larger than 1048576 bytes"},
	} {
		t.Run(sentence, func(t *testing.T) {
			dir := t.TempDir()
			tlsfilestest.WriteSecret(t, dir, tt.files)
			_, err := Open(dir)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), dir) {
				t.Fatalf("Open() error = %v, want one that names %s and says %q", err, dir, tt.want)
			}
		})
	}

	t.Run("a named pipe, without waiting for a writer", func(t *testing.T) {
		dir := t.TempDir()
		writePlain(t, dir, without(KeyFile))
		if err := syscall.Mkfifo(filepath.Join(dir, KeyFile), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Fatalf("Open() error = %v", err)
		}
	})
	t.Run("a directory that is not there", func(t *testing.T) {
		if _, err := Open(filepath.Join(t.TempDir(), "nowhere")); err == nil {
			t.Fatal("Open() succeeded")
		}
	})
	t.Run("an interval of nothing", func(t *testing.T) {
		if _, err := Open(t.TempDir(), WithInterval(0)); err == nil || !strings.Contains(err.Error(), "not positive") {
			t.Fatalf("Open() error = %v", err)
		}
	})
}

func TestOpenAccepts(t *testing.T) {
	ca, other := tlsfilestest.NewCA(t, "ca"), tlsfilestest.NewCA(t, "other")
	for sentence, write := range map[string]func(t *testing.T, dir string){
		"a mounted Secret":  func(t *testing.T, dir string) { tlsfilestest.WriteSecret(t, dir, ca.Files(t, "node", nil)) },
		"a plain directory": func(t *testing.T, dir string) { writePlain(t, dir, ca.Files(t, "node", nil)) },
		"a bundle of two CAs with words between": func(t *testing.T, dir string) {
			files := ca.Files(t, "node", nil)
			files[CAFile] = bytes.Join([][]byte{[]byte("# old\n"), other.PEM, []byte("# new\n"), ca.PEM, []byte("\n# end\n")}, nil)
			tlsfilestest.WriteSecret(t, dir, files)
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir)
			source, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
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
	source, err := Open(dir, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if err != nil {
		t.Fatal(err)
	}
	var told []uint64
	source.OnChange(func(m *Material) {
		if source.Current() != m {
			t.Error("OnChange was called before the generation was in use")
		}
		told = append(told, m.Generation)
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
		t.Error("the same files made another generation")
	}
	tlsfilestest.WriteSecret(t, dir, first)
	if reload(false, false) != one {
		t.Error("the same files in a new directory made another generation")
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
		t.Errorf("%d failures were logged, want 3: one that came back after a success is news", got)
	}
	tlsfilestest.WriteSecret(t, dir, first)
	reload(true, false)
	if len(told) != 2 || told[0] != 2 || told[1] != 3 {
		t.Errorf("OnChange was told of generations %v, want [2 3]", told)
	}
}

// The files are replaced as fast as possible while others read: each generation that is seen must be whole.
func TestGenerationsNeverMix(t *testing.T) {
	dir := t.TempDir()
	var generations []tlsfilestest.Files
	for range 4 {
		ca := tlsfilestest.NewCA(t, "ca")
		generations = append(generations, ca.Files(t, "node", []string{"registry"}))
	}
	tlsfilestest.WriteSecret(t, dir, generations[0])
	source, err := Open(dir, WithInterval(time.Microsecond), WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
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
			}
		})
	}
	for i := range 300 {
		tlsfilestest.WriteSecret(t, dir, generations[i%len(generations)])
	}
	cancel()
	wg.Wait()
	if _, err := source.Reload(); err != nil {
		t.Error(err)
	}
	if got := source.Current().Generation; got < 10 {
		t.Errorf("only %d generations were loaded in 300 replacements: the test shows nothing", got)
	}
}

func writePlain(t *testing.T, dir string, files tlsfilestest.Files) {
	t.Helper()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
