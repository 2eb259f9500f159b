package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/bench/internal/processes"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// Tables of the report, one for each operation. The targets in bench/report refer to them.
const (
	coldPush   = "Cold push"
	warmPush   = "Warm push"
	coldPull   = "Cold pull"
	warmPull   = "Warm pull"
	cachedPull = "Cached pull"

	took = "took"
)

// operationTimeout ends a hanging tool. The slowest one takes a minute.
const operationTimeout = 15 * time.Minute

// measure runs all operations of a tool once in dir, which is removed. With verify, pulled blobs
// are read and hashed.
func measure(ctx context.Context, c *cluster, report *results.Report, t tool, set *imageSet, dir string,
	verify bool) (err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	pod, err := c.emptyRegistry(ctx, nodeportMode)
	if err != nil {
		return err
	}
	registry, err := c.Process(ctx, pod)
	if err != nil {
		return err
	}
	f, err := c.portForward(ctx, pod)
	if err != nil {
		return err
	}
	defer f.stop()
	certificate, err := c.secret(ctx, nodeportMode, names.SuffixPushTLS)
	if err != nil {
		return err
	}
	credential, err := c.secret(ctx, nodeportMode, names.SuffixCredentials)
	if err != nil {
		return err
	}
	j := job{program: t.program, host: f.mutual, set: set, dir: dir,
		cluster: []string{"--namespace=" + nodeportMode, "--kubeconfig=" + c.Kubeconfig}}
	if t.plain {
		j.host = f.plain
	}
	if err := j.configure(certificate, credential); err != nil {
		return err
	}

	out := filepath.Join(dir, "out")
	operation := func(name string, commands [][]string) error {
		forwarded := f
		if t.direct && (name == coldPush || name == warmPush) {
			forwarded = nil
		}
		u, err := measureOperation(ctx, commands, dir, registry, forwarded)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		add := func(what, unit string, value float64) { report.Add(name, t.name, what, unit, value) }
		add(took, "s", u.seconds)
		add("client: CPU", "s", u.client)
		add("client: memory", "MB", float64(u.clientMemory)/1e6)
		add("registry: CPU", "s", u.registry)
		add("registry: memory", "MB", float64(u.registryMemory)/1e6)
		fmt.Fprintf(os.Stderr, "  %-12s %-12s %6.2f s\n", t.name, name, u.seconds)
		return nil
	}
	for _, name := range []string{coldPush, warmPush} {
		if err := operation(name, t.push(j)); err != nil {
			return err
		}
		if err := c.checkPushed(ctx, pod, certificate, set); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, name := range []string{coldPull, warmPull} {
		if err := operation(name, t.pull(j, out)); err != nil {
			return err
		}
		if err := checkPulled(out, set, verify); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if t.cached == nil {
		return nil
	}
	fill := filepath.Join(dir, "fill")
	if !t.fills {
		if _, err := measureOperation(ctx, t.cached(j, fill), dir, registry, f); err != nil {
			return fmt.Errorf("filling the cache: %w", err)
		}
	}
	if err := errors.Join(os.RemoveAll(out), os.RemoveAll(fill)); err != nil {
		return err
	}
	if err := operation(cachedPull, t.cached(j, out)); err != nil {
		return err
	}
	return checkPulled(out, set, verify)
}

// configure writes the tools' configuration files: client certificate and push credential. The server's
// certificate is not verified, because it is not valid for the local address of kubectl port-forward.
func (j job) configure(certificate, credential map[string][]byte) error {
	user, password := string(credential[names.KeyUsername]), string(credential[names.KeyPassword])
	type object = map[string]any
	auths := object{"auths": object{j.host: object{
		"auth": base64.StdEncoding.EncodeToString([]byte(user + ":" + password))}}}
	regctl := object{"hosts": object{j.host: object{"tls": "insecure", "hostname": j.host, "user": user, "pass": password,
		"clientCert": string(certificate[corev1.TLSCertKey]), "clientKey": string(certificate[corev1.TLSPrivateKeyKey])}}}
	if err := os.MkdirAll(j.path("home"), 0o700); err != nil {
		return err
	}
	for name, content := range map[string]any{"config.json": auths, "auth.json": auths, "regctl.json": regctl} {
		raw, err := json.Marshal(content)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(j.path("home"), name), raw, 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(j.path(listFile), []byte(strings.Join(j.references(), "\n")+"\n"), 0o600)
}

// used is what an operation took: seconds, seconds of CPU time, and peak memory in bytes.
type used struct {
	seconds, client, registry    float64
	clientMemory, registryMemory int64
}

// measureOperation runs the commands of an operation one after the other. registry is the PID of the
// registry, and f the port-forward that belongs to the client, if any.
func measureOperation(ctx context.Context, commands [][]string, dir string, registry int, f *forward) (u used,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	if err := syncTree(dir); err != nil {
		return u, err
	}
	watched := []int{registry}
	if f != nil {
		watched = append(watched, f.command.Process.Pid)
	}
	before := make([]float64, len(watched))
	for n, pid := range watched {
		if err := processes.ResetPeak(pid); err != nil {
			return u, err
		}
		if before[n], err = processes.CPU(pid); err != nil {
			return u, err
		}
	}
	began := time.Now()
	for _, command := range commands {
		seconds, peak, err := runClient(ctx, command, dir)
		if err != nil {
			return u, err
		}
		u.client += seconds
		u.clientMemory = max(u.clientMemory, peak)
	}
	u.seconds = time.Since(began).Seconds()
	for n, pid := range watched {
		after, err := processes.CPU(pid)
		if err != nil {
			return u, err
		}
		peak, err := processes.Peak(pid)
		if err != nil {
			return u, err
		}
		if n == 0 {
			u.registry, u.registryMemory = after-before[n], peak
		} else {
			u.client += after - before[n]
			u.clientMemory += peak
		}
	}
	return u, nil
}

// syncTree flushes the files in dir to disk, so that the next operation does not wait for them.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(file.Sync(), file.Close())
	})
}

// runClient runs a command whose configuration is in dir. It returns the CPU time in seconds and the peak
// memory in bytes.
func runClient(ctx context.Context, command []string, dir string) (seconds float64, memory int64, err error) {
	var output bytes.Buffer
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.Stdout, c.Stderr = &output, &output
	home := filepath.Join(dir, "home")
	c.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + dir, "KUBECONFIG=" + os.DevNull,
		"DOCKER_CONFIG=" + home, "REGCTL_CONFIG=" + filepath.Join(home, "regctl.json"),
		"REGISTRY_AUTH_FILE=" + filepath.Join(home, "auth.json"),
		"XDG_RUNTIME_DIR=" + home, "XDG_DATA_HOME=" + home, "XDG_CACHE_HOME=" + home, "XDG_CONFIG_HOME=" + home,
		"_CONTAINERS_ROOTLESS_UID=65534", // otherwise skopeo writes to /var/lib as root
	}
	if err := c.Start(); err != nil {
		return 0, 0, err
	}
	ended, peak := make(chan struct{}), make(chan int64, 1)
	go func() { peak <- processes.WatchPeak(c.Process.Pid, ended) }()
	err = c.Wait()
	close(ended)
	memory = <-peak
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w:\n%s", strings.Join(command[:min(len(command), 8)], " "), err, tail(output.String()))
	}
	return (c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds(), memory, nil
}

// tail returns the last 2000 bytes of s.
func tail(s string) string {
	return s[max(0, len(s)-2000):]
}

// checkPushed verifies that a registry has every manifest. It accepts a manifest only with all blobs.
func (c *cluster) checkPushed(ctx context.Context, pod *corev1.Pod, certificate map[string][]byte,
	set *imageSet) error {
	pair, err := tls.X509KeyPair(certificate[corev1.TLSCertKey], certificate[corev1.TLSPrivateKeyKey])
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate[names.KeyCA])
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx, pod) },
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair},
			ServerName: release + "." + pod.Namespace + ".svc", MinVersion: tls.VersionTLS13},
	}}
	defer client.CloseIdleConnections()
	return hasManifests(ctx, client, "https://registry", set)
}

// hasManifests returns an error if the registry lacks a manifest.
func hasManifests(ctx context.Context, client *http.Client, registry string, set *imageSet) error {
	for _, i := range set.images {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet,
			fmt.Sprintf("%s/v2/%s/manifests/%s", registry, i.repository, i.manifest.Digest), nil)
		if err != nil {
			return err
		}
		request.Header.Set("Accept", i.manifest.MediaType)
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		raw, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK || i.manifest.Digest.Algorithm().FromBytes(raw) != i.manifest.Digest {
			return fmt.Errorf("manifest %s not found in %s: %s", i.manifest.Digest, i.repository, response.Status)
		}
	}
	return nil
}

// checkPulled verifies that the layout out has every blob with the right size and, if hash is set, the
// right digest.
func checkPulled(out string, set *imageSet, hash bool) error {
	for _, desc := range set.blobs {
		path := blobFile(out, desc.Digest)
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if info.Size() != desc.Size {
			return fmt.Errorf("%s has %d bytes, want %d", path, info.Size(), desc.Size)
		}
		if !hash {
			continue
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		got, err := desc.Digest.Algorithm().FromReader(file)
		file.Close()
		if err != nil {
			return err
		}
		if got != desc.Digest {
			return fmt.Errorf("digest mismatch: %s is %s", path, got)
		}
	}
	return nil
}
