package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/bench/internal/processes"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

const (
	tablePush    = "Push of 40 images, 1.48 GB"
	tableChanged = "Push of the same after 1 % has changed"
)

// forwarded is the local address of kubectl port-forward.
const forwarded = "127.0.0.1:31995"

// measurePushes measures pushes by all tools to the release in nodeport mode.
func (c *cluster) measurePushes(ctx context.Context, report *results.Report, found []tool) error {
	all, changed, err := makeSets(filepath.Join(c.dir, "set"), 1, c.scale)
	if err != nil {
		return fmt.Errorf("generating images: %w", err)
	}
	var subjects []string
	for _, t := range found {
		subjects = append(subjects, t.Name)
		if t.Name == ours { // has a row in other tables
			continue
		}
		report.Subjects = append(report.Subjects, t.Subject)
	}
	dir := filepath.Join(c.dir, "home")
	return report.Repeat(c.pushes, subjects, func(n int) error {
		return errors.Join(c.measurePush(ctx, report, found[n], all, changed, dir), os.RemoveAll(dir))
	})
}

// emptyRegistry replaces the registry pod of the release in nodeport mode and its storage.
func (c *cluster) emptyRegistry(ctx context.Context) (*corev1.Pod, error) {
	previous, err := c.registry(ctx, second, nil)
	if err != nil {
		return nil, err
	}
	if err := c.client.CoreV1().Pods(second).Delete(ctx, previous.Name, metav1.DeleteOptions{}); err != nil {
		return nil, err
	}
	return c.registry(ctx, second, previous)
}

// measurePush pushes both sets with a tool, whose configuration and temporary files are in dir.
func (c *cluster) measurePush(ctx context.Context, report *results.Report, t tool, all, changed *imageSet,
	dir string) error {
	pod, err := c.emptyRegistry(ctx)
	if err != nil {
		return err
	}
	certificate, err := c.secret(ctx, second, names.SuffixPushTLS)
	if err != nil {
		return err
	}
	credential, err := c.secret(ctx, second, names.SuffixCredentials)
	if err != nil {
		return err
	}
	j := job{program: t.program, host: forwarded, dir: dir, cluster: c.access(second)}
	var beside []int
	if !t.direct {
		port := mutualPort
		if t.plain {
			port = plainPort
		}
		forward, err := c.portForward(ctx, pod, port)
		if forward != nil {
			defer func() { _ = errors.Join(forward.Process.Kill(), forward.Wait()) }()
		}
		if err != nil {
			return err
		}
		beside = append(beside, forward.Process.Pid)
	}
	if err := j.configure(certificate, credential); err != nil {
		return err
	}
	for _, push := range []struct {
		table string
		set   *imageSet
	}{{tablePush, all}, {tableChanged, changed}} {
		if err := settle(ctx); err != nil {
			return err
		}
		u, err := measure(func() (used, error) { return runAll(ctx, t.push(j, push.set), dir) }, beside...)
		if err != nil {
			return fmt.Errorf("%s: %w", push.table, err)
		}
		if err := c.checkPushed(ctx, push.set); err != nil {
			return fmt.Errorf("%s: %w", push.table, err)
		}
		u.add(report, push.table, t.Name)
	}
	return nil
}

// portForward starts kubectl port-forward from forwarded to a port of a pod.
func (c *cluster) portForward(ctx context.Context, pod *corev1.Pod, port int) (*exec.Cmd, error) {
	kubectl, err := c.tool(ctx, "kubectl")
	if err != nil {
		return nil, err
	}
	_, local, _ := strings.Cut(forwarded, ":")
	command := exec.CommandContext(ctx, kubectl, "port-forward", "--kubeconfig="+c.kubeconfig,
		"--namespace="+pod.Namespace, "pod/"+pod.Name, "--address=127.0.0.1", fmt.Sprintf("%s:%d", local, port))
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return nil, err
	}
	return command, waitFor(ctx, "kubectl port-forward", func() (bool, error) {
		connection, err := net.Dial("tcp", forwarded)
		if err != nil {
			return false, err
		}
		return true, connection.Close()
	})
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
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return err
	}
	for name, content := range map[string]any{"config.json": auths, "auth.json": auths, "regctl.json": regctl} {
		raw, err := json.Marshal(content)
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(j.dir, name), string(raw)); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(path, content string) error { return os.WriteFile(path, []byte(content), 0o600) }

// used is what an operation took: seconds, seconds of the client's CPU time, and its peak memory in bytes.
type used struct {
	seconds, cpu float64
	memory       int64
}

func (u used) add(report *results.Report, table, subject string) {
	report.Add(table, subject, took, "s", u.seconds)
	report.Add(table, subject, "client: CPU", "s", u.cpu)
	report.Add(table, subject, "client: memory", "MB", float64(u.memory)/1e6)
	logf("  %-14s %-40s %6.2f s", subject, table, u.seconds)
}

// measure measures an operation. It returns its CPU time and peak memory; those of the processes beside are added.
func measure(operation func() (used, error), beside ...int) (u used, err error) {
	before := make([]float64, len(beside))
	for n, pid := range beside {
		if err := processes.ResetPeak(pid); err != nil {
			return u, err
		}
		if before[n], err = processes.CPU(pid); err != nil {
			return u, err
		}
	}
	began := time.Now()
	if u, err = operation(); err != nil {
		return u, err
	}
	u.seconds = time.Since(began).Seconds()
	for n, pid := range beside {
		cpu, err := processes.CPU(pid)
		if err != nil {
			return u, err
		}
		peak, err := processes.Peak(pid)
		if err != nil {
			return u, err
		}
		u.cpu, u.memory = u.cpu+cpu-before[n], u.memory+peak
	}
	return u, nil
}

// runAll runs commands one after the other, whose configuration is in dir.
func runAll(ctx context.Context, commands [][]string, dir string) (u used, err error) {
	for _, command := range commands {
		seconds, peak, err := runClient(ctx, command, dir)
		if err != nil {
			return u, err
		}
		u.cpu, u.memory = u.cpu+seconds, max(u.memory, peak)
	}
	return u, nil
}

// runClient runs a command whose configuration is in dir. It returns the CPU time in seconds and the peak
// memory in bytes.
func runClient(ctx context.Context, command []string, dir string) (seconds float64, memory int64, err error) {
	var output bytes.Buffer
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.Stdout, c.Stderr = &output, &output
	c.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir, "KUBECONFIG=" + os.DevNull,
		"DOCKER_CONFIG=" + dir, "REGCTL_CONFIG=" + filepath.Join(dir, "regctl.json"),
		"REGISTRY_AUTH_FILE=" + filepath.Join(dir, "auth.json"),
		"XDG_RUNTIME_DIR=" + dir, "XDG_DATA_HOME=" + dir, "XDG_CACHE_HOME=" + dir, "XDG_CONFIG_HOME=" + dir,
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
		return 0, 0, fmt.Errorf("%s: %w:\n%s", strings.Join(command[:min(len(command), 8)], " "), err, &output)
	}
	return (c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds(), memory, nil
}

// checkPushed verifies that the registry has every manifest. It accepts a manifest only with all blobs.
func (c *cluster) checkPushed(ctx context.Context, set *imageSet) error {
	list, err := c.output(ctx, c.zarf, append([]string{"images", "list", "--output=json"}, c.access(second)...)...)
	if err != nil {
		return err
	}
	return missing(list, set)
}

func missing(list string, set *imageSet) error {
	for _, i := range set.images {
		if !strings.Contains(list, i.manifest.Digest.String()) {
			return fmt.Errorf("%s is not in the registry with digest %s", i.repository, i.manifest.Digest)
		}
	}
	return nil
}
