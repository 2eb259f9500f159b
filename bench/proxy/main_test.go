package main

import (
	"crypto/tls"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestMain runs the benchmark's child processes, which are the test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{registryMode, naiveMode}, os.Args[1]) {
		main()
		return
	}
	os.Exit(m.Run())
}

// node builds registry-node.
func node(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "registry-node")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/registry-node")
	build.Dir = "../.." // the module of the program
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building registry-node: %v\n%s", err, out)
	}
	return program
}

func TestEverythingIsMeasuredInEveryRun(t *testing.T) {
	out := t.TempDir()
	err := run(t.Context(), []string{
		"-force", "-n=2", "-connect=30ms", "-keep=20ms", "-stream=4194304", "-idle=2", "-quiet=1ms",
		"-registry-node=" + node(t),
		"-subjects=registry-node,naive Go", "-write=" + out,
	})
	require.NoError(t, err)
	r := require.Value(results.Read(out))(t)
	if len(r.Subjects) != 2 {
		t.Errorf("subjects are %v", r.Subjects)
	}
	for table, measures := range map[string][]string{
		tableRequests: {measureNew, measureNewP99, measureNewCPU, measureOpen, measureOpCPU},
		tableBodies:   {measureOne, measureOneCPU, measureFour, measureMemory, measureAfter},
	} {
		for _, s := range r.Subjects {
			for _, what := range measures {
				if m := r.Find(table, s.Name, what); m == nil || len(m.Runs) != 2 || slices.Min(m.Runs) <= 0 {
					t.Errorf("%s, %s: %s: %+v", table, s.Name, what, m)
				}
			}
		}
	}
	if ours := r.Find(tableBodies, oursName, measureMemory).Runs[0]; ours < 2 || ours > 100 {
		t.Errorf("a proxy uses %f MB", ours)
	}
}

// TLS 1.2 has cheaper handshakes and other record headers.
func TestOlderTLSIsNotMeasured(t *testing.T) {
	dir := t.TempDir()
	certificates, node, err := makeCertificates(dir)
	require.NoError(t, err)
	registry := require.Value(startRegistry(t.Context(), certificates))(t)
	defer registry.Stop()
	source := require.Value(tlsfiles.Open(node, tlsfiles.WithLogger(slog.New(slog.DiscardHandler))))(t)
	for version, accepted := range map[uint16]bool{tls.VersionTLS12: false, tls.VersionTLS13: true} {
		config := tlsfiles.ClientConfig(source.Current(), registryName)
		config.MinVersion, config.MaxVersion = version, version
		c, err := tls.Dial("tcp", registry.Address, config)
		if accepted != (err == nil) {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
		if err == nil {
			c.Close()
		}
	}
}

func TestUnexpectedResponsesAreDetected(t *testing.T) {
	head := "HTTP/1.1 200 OK\r\ncontent-length: 1024\r\n\r\n"
	good := head + string(content[:smallSize])
	if err := checkSmall([]byte(good), endOfHead([]byte(good))); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{strings.Replace(good, "200", "404", 1), head + string(content[1:smallSize+1]), good + "x",
		good[:len(good)-1]} {
		if checkSmall([]byte(bad), endOfHead([]byte(bad))) == nil {
			t.Errorf("%q is accepted", bad[:40])
		}
	}
	if err := sample(content[100:200], int64(len(content))+100); err != nil {
		t.Error(err)
	}
	if sample(content[100:200], 99) == nil {
		t.Error("a shifted body is accepted")
	}
}

func TestVersions(t *testing.T) {
	for text, want := range map[string]string{
		"nginx version: nginx/1.22.1\n":                                        "1.22.1",
		"HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/\n": "2.6.12-1+deb12u4",
		"v1.8.4\n": "v1.8.4",
		"socat by Gerhard Rieger and contributors - see www.dest-unreach.org\n" +
			"socat version 1.7.4.4 on 06 Nov 2022\n": "1.7.4.4",
		"dev\n": "dev",
		"":      "?",
	} {
		if got := version(text); got != want {
			t.Errorf("version of %q is %q, want %q", text, got, want)
		}
	}
}
