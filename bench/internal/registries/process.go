// Package registries starts registries as processes that serve mutual TLS on loopback. It pushes to
// them, pulls from them, and reads their CPU time and memory.
package registries

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/zarf-dev/zarf-registry/bench/internal/processes"
	"github.com/zarf-dev/zarf-registry/internal/net/freeport"
)

const (
	// startTimeout limits the time until a registry answers, which takes a fraction of a second.
	startTimeout = 2 * time.Minute
	// stopTimeout is the time after SIGTERM before a registry is killed.
	stopTimeout = 10 * time.Second

	user, password = "bench", "bench-password"
)

// Process is a running registry.
type Process struct {
	// Address is the HOST:PORT on which it serves.
	Address string

	command *exec.Cmd
	output  *bytes.Buffer
	ended   chan struct{} // closed when the process has ended
}

// StartOurs starts program (bin/registry) like the chart's Deployment, with its configuration in dir. Driver is the
// entry in the configuration's section storage; empty: a directory in dir.
func StartOurs(ctx context.Context, program, dir, driver string, c *Certificates) (*Process, error) {
	if driver == "" {
		driver = "filesystem: {rootdirectory: " + filepath.Join(dir, "storage") + "}"
	}
	address, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
	if err != nil {
		return nil, err
	}
	for name, content := range map[string]string{
		"config.yml":    "version: 0.1\nstorage: {" + driver + "}\n",
		"htpasswd":      user + ":" + string(hash) + "\n",
		"upload-secret": strings.Repeat("secret", 8),
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	return Start(ctx, address, c, program, ServeArgs(dir, address, c.Dir)...)
}

// ServeArgs returns the arguments of bin/registry that StartOurs uses, with the configuration that it has written to
// dir. Later flags override them.
func ServeArgs(dir, listen, tlsDir string) []string {
	return []string{"serve", "--config=" + filepath.Join(dir, "config.yml"), "--listen=" + listen, "--tls-dir=" + tlsDir,
		"--htpasswd=" + filepath.Join(dir, "htpasswd"), "--upload-secret=" + filepath.Join(dir, "upload-secret"),
		"--plain-listen=127.0.0.1:0", "--pull-htpasswd=" + filepath.Join(dir, "no-such-file"),
		"--health-listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "--log-level=info", "--log-format=json"}
}

// Start starts a program that serves at address, and waits until it answers.
func Start(ctx context.Context, address string, c *Certificates, program string, args ...string) (*Process, error) {
	p := newProcess(program, args...)
	p.Address = address
	if err := p.start(); err != nil {
		return nil, err
	}
	client := NewClient(c.Node())
	defer client.CloseIdleConnections()
	for deadline := time.Now().Add(startTimeout); ; {
		response, err := client.Get(p.URL("/v2/"))
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return p, nil
			}
			err = errors.New(response.Status)
		}
		select {
		case <-p.ended:
			return nil, fmt.Errorf("%s exited: %s", program, p.output)
		case <-ctx.Done():
			p.Stop()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.Stop()
			return nil, fmt.Errorf("%s does not answer at %s: %w", program, address, err)
		}
	}
}

// StartClient starts a program that serves nothing, with environment variables besides PATH and HOME.
func StartClient(env []string, program string, args ...string) (*Process, error) {
	p := newProcess(program, args...)
	p.command.Env = append(p.command.Env, env...)
	return p, p.start()
}

// Ended is closed when the process has ended. Output may be called then.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Output returns what the process has written.
func (p *Process) Output() string { return p.output.String() }

func newProcess(program string, args ...string) *Process {
	p := &Process{output: new(bytes.Buffer), ended: make(chan struct{}), command: exec.Command(program, args...)}
	p.command.Stdout, p.command.Stderr = p.output, p.output
	// The kernel terminates the process when the benchmark dies; nginx's workers would outlive a killed master.
	// Environment variables of the caller must not configure it. Distribution's own image also disables traces.
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	p.command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir(), "OTEL_TRACES_EXPORTER=none"}
	return p
}

func (p *Process) start() error {
	if err := p.command.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.command.Path, err)
	}
	go func() {
		_ = p.command.Wait() // an unexpected exit shows in the output
		close(p.ended)
	}()
	return nil
}

// URL returns the URL of a path.
func (p *Process) URL(path string) string { return "https://" + p.Address + path }

// Stop terminates the process and waits for it.
func (p *Process) Stop() {
	_ = p.command.Process.Signal(syscall.SIGTERM) // fails if it has ended
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		_ = p.command.Process.Kill() // fails if it has ended
		<-p.ended
	}
}

// CPU returns the CPU time of the process since its start, in seconds.
func (p *Process) CPU() (float64, error) { return processes.CPU(p.command.Process.Pid) }

// Memory returns the resident memory of the process and its descendants, in bytes.
func (p *Process) Memory() (int64, error) { return processes.Memory(p.command.Process.Pid) }

// PeakMemory returns the peak resident memory since the start or the last ResetPeak, in bytes.
func (p *Process) PeakMemory() (int64, error) { return processes.Peak(p.command.Process.Pid) }

// ResetPeak resets the peak to the current value.
func (p *Process) ResetPeak() error { return processes.ResetPeak(p.command.Process.Pid) }
