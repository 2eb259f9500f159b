package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The operations, in the order of measurement.
const (
	coldPush   = "cold push"
	warmPush   = "warm push"
	coldPull   = "cold pull"
	warmPull   = "warm pull"
	cachedPull = "cached pull"
)

var operations = []struct{ name, about string }{
	{coldPush, "The registry is empty."},
	{warmPush, "The registry has everything."},
	{coldPull, "Output and cache are empty."},
	{warmPull, "The output has everything."},
	{cachedPull, "The output is empty, the tool's cache has everything."},
}

const (
	// operationTimeout ends a hanging tool. The slowest one takes half a minute.
	operationTimeout = 15 * time.Minute
	// A client's peak memory is read after firstLook, then after twice that, and so on, at most every
	// lastLook. The kernel keeps the peak, so only the last moment of a process is missed.
	firstLook = time.Millisecond
	lastLook  = 16 * time.Millisecond
)

// sample is one measurement of an operation.
type sample struct {
	Operation      string  `json:"operation"`
	Seconds        float64 `json:"seconds"`
	ClientCPU      float64 `json:"clientCPUSeconds"`
	ClientPeak     int64   `json:"clientPeakBytes"` // of the largest process
	RegistryPeak   int64   `json:"registryPeakBytes"`
	counters               // of the registry
	ClientCommands int     `json:"commands"`
}

// measure runs all operations of a tool once in dir, which is removed. With verify, pulled blobs
// are read and hashed.
func measure(ctx context.Context, t tool, set *imageSet, dir string, verify bool) (samples []sample, err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	registry, err := startRegistry(ctx, filepath.Join(dir, "registry"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, registry.stop()) }()
	j := job{program: t.program, host: registry.host, set: set, cache: filepath.Join(dir, "cache"),
		list: filepath.Join(dir, "images.txt")}
	if err := os.WriteFile(j.list, []byte(strings.Join(j.references(), "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	out := filepath.Join(dir, "out")
	operation := func(name string, commands [][]string) error {
		s, err := measureOperation(ctx, registry, commands, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.Operation = name
		samples = append(samples, s)
		return nil
	}
	for _, name := range []string{coldPush, warmPush} {
		if err := operation(name, t.push(j)); err != nil {
			return nil, err
		}
		if err := checkPushed(ctx, registry.host, t, set); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, name := range []string{coldPull, warmPull} {
		if err := operation(name, t.pull(j, out)); err != nil {
			return nil, err
		}
		if err := checkPulled(out, set, verify); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if t.cached == nil {
		return samples, nil
	}
	if !t.fills {
		if _, err := measureOperation(ctx, registry, t.cached(j, filepath.Join(dir, "fill")), dir); err != nil {
			return nil, fmt.Errorf("filling the cache: %w", err)
		}
	}
	for _, used := range []string{out, filepath.Join(dir, "fill")} {
		if err := os.RemoveAll(used); err != nil {
			return nil, err
		}
	}
	if err := operation(cachedPull, t.cached(j, out)); err != nil {
		return nil, err
	}
	return samples, checkPulled(out, set, verify)
}

// measureOperation runs the commands of an operation one after the other.
func measureOperation(ctx context.Context, registry *childRegistry, commands [][]string, dir string) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	if err := syncTree(dir); err != nil {
		return sample{}, err
	}
	resetPeak(registry.process.Process.Pid)
	before, err := registry.counters()
	if err != nil {
		return sample{}, err
	}
	s := sample{ClientCommands: len(commands)}
	started := time.Now()
	for _, command := range commands {
		seconds, peak, err := runClient(ctx, command, dir)
		if err != nil {
			return sample{}, err
		}
		s.ClientCPU += seconds
		s.ClientPeak = max(s.ClientPeak, peak)
	}
	s.Seconds = time.Since(started).Seconds()
	after, err := registry.counters()
	if err != nil {
		return sample{}, err
	}
	s.counters = after.since(before)
	s.RegistryPeak = peak(registry.process.Process.Pid)
	return s, nil
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

// runClient runs a command that keeps its configuration and caches in dir. It returns the CPU time in
// seconds and the peak memory in bytes.
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
	if err := os.MkdirAll(home, 0o700); err != nil {
		return 0, 0, err
	}
	if err := os.WriteFile(filepath.Join(home, "auth.json"), []byte("{}"), 0o600); err != nil {
		return 0, 0, err
	}
	if err := c.Start(); err != nil {
		return 0, 0, err
	}
	stop, done := make(chan struct{}), make(chan struct{})
	var reached int64 // owned by the goroutine until done
	go func() {
		defer close(done)
		for pause := firstLook; ; pause = min(2*pause, lastLook) {
			reached = max(reached, peak(c.Process.Pid))
			select {
			case <-time.After(pause):
			case <-stop:
				return
			}
		}
	}()
	err = c.Wait()
	close(stop)
	<-done
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w:\n%s", strings.Join(command[:min(len(command), 8)], " "), err, tail(output.String()))
	}
	return cpu(c.ProcessState.SysUsage().(*syscall.Rusage)), reached, nil
}

// tail returns the last 2000 bytes of s.
func tail(s string) string {
	return s[max(0, len(s)-2000):]
}

// peak returns the peak resident memory of a process since its start or resetPeak, in bytes, or 0 if it
// has ended. The value in rusage would include the memory of the parent at the fork.
func peak(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}

// resetPeak resets the peak to the current value, if the kernel supports that.
func resetPeak(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// checkPushed verifies that the registry has every manifest. It accepts a manifest only with all blobs.
func checkPushed(ctx context.Context, host string, t tool, set *imageSet) error {
	client := http.Client{Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	for _, i := range set.images {
		repository := i.repository
		if t.repository != nil {
			repository = t.repository(i)
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet,
			fmt.Sprintf("http://%s/v2/%s/manifests/%s", host, repository, i.manifest.Digest), nil)
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
			return fmt.Errorf("manifest %s not found in %s: %s", i.manifest.Digest, repository, response.Status)
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
