// Package arm64 tests the released programs for arm64, on other architectures emulated: they reach a node as
// payload, and an image is pushed to them and pulled from them.
package arm64

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/crypto/bcrypt"

	"github.com/zarf-dev/zarf-registry/internal/images/build"
	"github.com/zarf-dev/zarf-registry/internal/images/source"
	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/payload/embedded"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/arm64/emulate"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	architecture = "arm64"
	// longest is for emulated programs on a busy machine.
	longest = time.Minute

	userName = "pusher"
	password = "correct horse battery staple"
)

// A push, and pulls from a proxy, where loaders start registry and proxy as in pods that have only a pause image. The
// proxy's program changes between the pulls.
func TestPull(t *testing.T) {
	if err := emulate.Check(); err != nil {
		t.Skipf("needs programs for arm64 to run here (%v): run make arm64, which installs qemu", err)
	}
	if _, err := embedded.Loader(architecture); err != nil {
		t.Skip("SKIPPED, NOTHING CHECKED: needs programs for arm64: run make arm64")
	}
	// make images writes this file, and make payload, which makes images obsolete, removes it.
	if _, err := os.Stat("../../charts/zarf-registry/files/init-hook.json"); err != nil {
		t.Skip("SKIPPED, NOTHING CHECKED: needs images with the programs: run make arm64")
	}
	dir := t.TempDir()
	hash := require.Value(bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost))(t)
	config := write(t, filepath.Join(dir, "config.yml"),
		fmt.Sprintf("version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\n", filepath.Join(dir, "storage")))
	users := write(t, filepath.Join(dir, "htpasswd"), userName+":"+string(hash)+"\n")
	ca := tlsfilestest.NewCA(t, "arm64")
	bundle := write(t, filepath.Join(dir, "ca.crt"), string(ca.PEM))
	certificate := func(organization string) string {
		dir := t.TempDir()
		tlsfilestest.WriteSecret(t, dir, ca.Files(t, organization, []string{"127.0.0.1"}))
		return dir
	}
	service, exposed, address := freeport.Loopback(t), freeport.Loopback(t), freeport.Loopback(t)

	registry := newPod(t, "registry", embeddedPayload(t, "registry"))
	registry.start(nil, "serve", "--config="+config, "--htpasswd="+users, "--listen="+service, "--expose-listen="+exposed,
		"--tls-dir="+certificate(pki.OrganizationServer), "--health-listen=", "--metrics-listen=")
	proxy := newPod(t, "registry-node", embeddedPayload(t, "registry-node"))
	proxy.start([]string{"-s"}, "proxy", "--ready-fd=3", "--reuse-port", "--listen="+address, "--registry="+service,
		"--tls-dir="+certificate(pki.OrganizationNode))
	waitFor(t, exposed)
	waitFor(t, address)

	for _, p := range []*pod{registry, proxy} {
		program := require.Value(os.ReadFile(p.target))(t)
		if !bytes.Equal(program, released(t, p.name)) {
			t.Errorf("the image of %s has another program than its payload", p.name)
		}
	}

	hook := filepath.Join(dir, "init-hook")
	require.NoError(t, os.WriteFile(hook, released(t, "init-hook"), 0o755))
	pushed := runHook(t, hook, "push", archiveOf("registry-node"), "--to="+exposed, "--prefix=team", "--ca-file="+bundle,
		"--username="+userName, "--password-stdin")
	name := strings.TrimPrefix(pushed.Reference, exposed+"/")

	// By a client of this machine's architecture.
	repository, tag, _ := strings.Cut(name, ":")
	base := "http://" + address + "/v2/" + repository
	index := get[ocispec.Index](t, base+"/manifests/"+tag, pushed.Digest)
	if len(index.Manifests) != len(build.Architectures) {
		t.Fatalf("%d manifests", len(index.Manifests))
	}
	for _, desc := range index.Manifests {
		manifest := get[ocispec.Manifest](t, base+"/manifests/"+desc.Digest.String(), desc.Digest.String())
		for _, blob := range append(manifest.Layers, manifest.Config) {
			wantDigest(t, fetch(t, base+"/blobs/"+blob.Digest.String()), blob.Digest.String())
		}
	}

	changed := changedPayload(t, "registry-node")
	manifest := require.Value(injector.ParseManifest(changed.Manifest))(t)
	proxy.deliver(changed)
	proxy.waitForLog("takes over")
	proxy.waitForLog(fmt.Sprintf(`"version":"%x"`, manifest.ProgramSHA256[:6]))

	// By the released client, through the changed program.
	layout := filepath.Join(dir, "layout")
	pulled := runHook(t, hook, "pull", address+"/"+name, "--plain-http", "--platform=all", "--no-store", "--out="+layout)
	if pulled.Digest != pushed.Digest {
		t.Errorf("pulled %s, pushed %s", pulled.Digest, pushed.Digest)
	}
	source, err := source.Open(t.Context(), layout) // reads and verifies all manifests
	require.NoError(t, err)
	require.NoError(t, source.Close())

	for _, p := range []*pod{proxy, registry} {
		p.terminate()
	}
}

// result is a part of what zarf-registry images prints as JSON for each image.
type result struct{ Reference, Digest string }

// runHook runs a command of zarf-registry images for a single image.
func runHook(t *testing.T, hook, command string, args ...string) result {
	t.Helper()
	cmd := emulate.Command(hook, slices.Concat([]string{"images", command, "--output=json"}, args)...)
	cmd.Stdin = strings.NewReader(password)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var results struct{ Items []result }
	require.NoError(t, cmd.Run(), "zarf-registry images", command, &stderr)
	if err := json.Unmarshal(stdout.Bytes(), &results); err != nil || len(results.Items) != 1 {
		t.Fatalf("zarf-registry images %s printed %s: %v", command, &stdout, err)
	}
	return results.Items[0]
}

// pod is a program that the loader starts from files such as a kubelet writes for a projected volume.
type pod struct {
	t                     *testing.T
	name, payload, target string
	cmd                   *exec.Cmd
	mu                    sync.Mutex
	log                   bytes.Buffer
}

func newPod(t *testing.T, program string, payload *injector.Payload) *pod {
	t.Helper()
	p := &pod{t: t, name: program, payload: t.TempDir(), target: filepath.Join(t.TempDir(), program)}
	p.deliver(payload)
	return p
}

func (p *pod) deliver(payload *injector.Payload) {
	p.t.Helper()
	files := tlsfilestest.Files{}
	for _, object := range payload.Objects() {
		maps.Copy(files, object.Data)
	}
	tlsfilestest.WriteSecret(p.t, p.payload, files)
}

// start starts the loader with the options, and with the program's arguments.
func (p *pod) start(options []string, args ...string) {
	p.t.Helper()
	loader := filepath.Join(p.payload, injector.LoaderKey)
	require.NoError(p.t, os.Chmod(loader, 0o555))
	p.cmd = emulate.Command(loader, slices.Concat(options, []string{p.payload, p.target}, args)...)
	p.cmd.SysProcAttr.Setpgid = true // for programs that the loader leaves
	p.cmd.Stderr = p
	require.NoError(p.t, p.cmd.Start())
	p.t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		_ = p.cmd.Wait()
		if p.t.Failed() {
			p.t.Logf("log of %s:\n%s", p.name, &p.log)
		}
	})
}

// terminate ends the program as a kubelet does.
func (p *pod) terminate() {
	p.t.Helper()
	err := p.cmd.Process.Signal(syscall.SIGTERM)
	if err := errors.Join(err, p.cmd.Wait()); err != nil {
		p.t.Errorf("%s: %v", p.name, err)
	}
}

// Write appends to the log.
func (p *pod) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(data)
}

func (p *pod) waitForLog(text string) {
	p.t.Helper()
	for began := time.Now(); time.Since(began) < longest; time.Sleep(20 * time.Millisecond) {
		p.mu.Lock()
		found := bytes.Contains(p.log.Bytes(), []byte(text))
		p.mu.Unlock()
		if found {
			return
		}
	}
	p.t.Fatalf("%s does not log %q", p.name, text)
}

func embeddedPayload(t *testing.T, program string) *injector.Payload {
	t.Helper()
	return encode(t, program, require.Value(embedded.Load(program, architecture))(t))
}

// changedPayload has a program with other bytes, which does the same.
func changedPayload(t *testing.T, program string) *injector.Payload {
	t.Helper()
	return encode(t, program, require.Value(injector.BuildLayer(program, append(released(t, program), 0)))(t))
}

func encode(t *testing.T, program string, layer []byte) *injector.Payload {
	t.Helper()
	loader := require.Value(embedded.Loader(architecture))(t)
	payload, err := injector.Encode(injector.Program{Name: program, Architecture: architecture}, layer, loader)
	require.NoError(t, err)
	return payload
}

func archiveOf(program string) string { return filepath.Join("../../dist/images", program+".tar") }

// released returns the program of an image that make images has built.
func released(t *testing.T, program string) []byte {
	t.Helper()
	source, err := source.Open(t.Context(), archiveOf(program))
	require.NoError(t, err, "run make images")
	defer func() { _ = source.Close() }()
	index := blob[ocispec.Index](t, source, source.Images()[0].Descriptor)
	for _, desc := range index.Manifests {
		if desc.Platform.Architecture != architecture {
			continue
		}
		layer := require.Value(source.Fetch(context.Background(), blob[ocispec.Manifest](t, source, desc).Layers[0]))(t)
		defer func() { _ = layer.Close() }()
		inflated := require.Value(gzip.NewReader(layer))(t)
		archive := tar.NewReader(inflated)
		for {
			header, err := archive.Next()
			require.NoError(t, err, "no", program, "in its image")
			if header.Name != program {
				continue
			}
			return require.Value(io.ReadAll(archive))(t)
		}
	}
	t.Fatalf("no image of %s for %s", program, architecture)
	return nil
}

// blob returns a JSON blob of a source.
func blob[T any](t *testing.T, source *source.Source, desc ocispec.Descriptor) (value T) {
	t.Helper()
	content := require.Value(source.Fetch(t.Context(), desc))(t)
	defer func() { _ = content.Close() }()
	require.NoError(t, json.NewDecoder(content).Decode(&value))
	return value
}

// get returns a JSON document with a known digest.
func get[T any](t *testing.T, url, digest string) (value T) {
	t.Helper()
	content := fetch(t, url)
	wantDigest(t, content, digest)
	require.NoError(t, json.Unmarshal(content, &value))
	return value
}

func fetch(t *testing.T, url string) []byte {
	t.Helper()
	request := require.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	request.Header.Set("Accept", ocispec.MediaTypeImageIndex+", "+ocispec.MediaTypeImageManifest)
	response := require.Value(http.DefaultClient.Do(request))(t)
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", url, response.Status, err)
	}
	return content
}

func wantDigest(t *testing.T, content []byte, want string) {
	t.Helper()
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256(content)); got != want {
		t.Fatalf("%d bytes with digest %s, want %s", len(content), got, want)
	}
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func waitFor(t *testing.T, address string) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			_ = connection.Close()
			return
		}
		if time.Since(began) > longest {
			t.Fatalf("nothing listens at %s: %v", address, err)
		}
	}
}
