package registrycheck

import (
	"bytes"
	cryptorand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/crypto/bcrypt"

	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles/tlsfilestest"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
	"github.com/zarf-dev/zarf-registry/test/s3test"
)

const (
	userName = "checker"
	password = "correct horse battery staple"
	// volumeSize is many times the content, so that only a fault fills the volume.
	volumeSize = "48m"
	// startTimeout is for a process on a busy machine.
	startTimeout = 5 * time.Minute
	// litterBlobs take a tenth of a second to sweep.
	litterBlobs = 200
)

// cluster is the registry under test: processes on shared storage, and a proxy.
type cluster struct {
	t       *testing.T
	plan    *plan
	history *history
	program programs
	dir     string
	volume  string // a file system in memory
	disk    string // a file in memory with the file system, if the power can be cut
	config  string
	servers []*server
	proxy   string // address
	push    tlsfilestest.Files

	outage    sync.Mutex  // held while the power is off
	collector *os.Process // the last registry garbage-collect
}

// addresses numbers the loopback addresses of clusters. Each cluster has its own, which no outgoing connection
// uses as its source, so that a restarted process finds its port free.
var addresses atomic.Uint32

func newCluster(t *testing.T, program programs, p *plan, h *history) *cluster {
	t.Helper()
	c := &cluster{t: t, plan: p, history: h, program: program, dir: t.TempDir()}
	n := addresses.Add(1)
	ip := net.IPv4(127, byte(1+os.Getpid()%250), byte(n/250), byte(1+n%250)).String()
	address := func(port int) string { return fmt.Sprintf("%s:%d", ip, port) }

	c.volume = filepath.Join(c.dir, "volume")
	c.mkdir(c.volume)
	if slices.Contains(p.kinds, cutPower) {
		c.createDisk()
	} else {
		c.mountMemory(c.volume, "size="+volumeSize)
	}
	hash := require.Value(bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost))(t)
	c.config = c.write("config.yml", fmt.Sprintf("version: 0.1\nstorage: {%s}\n", c.driver(address(5200))))
	users := c.write("htpasswd", userName+":"+string(hash)+"\n")
	ca := tlsfilestest.NewCA(t, "registrycheck")
	certificates := func(name, organization string) (string, tlsfilestest.Files) {
		dir := filepath.Join(c.dir, name)
		c.mkdir(dir)
		files := ca.Files(t, organization, []string{ip})
		tlsfilestest.WriteSecret(t, dir, files)
		return dir, files
	}
	serverDir, _ := certificates("server", pki.OrganizationServer)
	nodeDir, _ := certificates("node", pki.OrganizationNode)
	_, c.push = certificates("push", pki.OrganizationPush)

	random := rand.New(rand.NewPCG(p.seed, 1))
	var mutualTLS []string
	for i := range p.replicas {
		s := &server{
			cluster: c, name: fmt.Sprintf("registry-%d", i), plain: address(5000 + 10*i), tls: address(5001 + 10*i),
		}
		s.args = []string{"serve", "--config=" + c.config, "--htpasswd=" + users, "--plain-listen=" + s.plain,
			"--anonymous-pull", "--listen=" + s.tls, "--tls-dir=" + serverDir, "--health-listen=", "--metrics-listen="}
		s.front = s.plain
		if p.cut {
			s.front = address(5002 + 10*i)
			relay(t, s.front, []string{s.plain}, cutAfter(random))
		}
		mutualTLS = append(mutualTLS, s.tls)
		c.servers = append(c.servers, s)
	}
	// The relay takes the place of the registry's Service.
	service, after := address(5100), func() int { return 0 }
	if p.cut {
		after = cutAfter(random)
	}
	relay(t, service, mutualTLS, after)
	c.proxy = address(5101)
	for _, s := range c.servers {
		s.start()
		t.Cleanup(s.kill)
	}
	node := c.command("proxy", program.node, "proxy", "--listen="+c.proxy, "--registry="+service, "--tls-dir="+nodeDir)
	require.NoError(t, node.Start())
	t.Cleanup(func() {
		_ = node.Process.Kill()
		_ = node.Wait()
	})
	c.waitFor(c.proxy)
	return c
}

// driver returns the storage driver's configuration. It starts the S3 server, if any, at an address.
func (c *cluster) driver(address string) string {
	root := filepath.Join(c.volume, "registry")
	if *s3 == "" {
		return fmt.Sprintf("filesystem: {rootdirectory: %s}", root)
	}
	server := require.Value(s3test.Start(*s3, address, c.volume))(c.t)
	c.t.Cleanup(server.Stop)
	return server.Driver(root)
}

func (c *cluster) mkdir(dir string) { require.NoError(c.t, os.Mkdir(dir, 0o755)) }

func (c *cluster) write(name, content string) string {
	path := filepath.Join(c.dir, name)
	require.NoError(c.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// command returns a command that writes its log to a file, and ends with this process.
func (c *cluster) command(name, program string, args ...string) *exec.Cmd {
	command := exec.Command(program, args...)
	log, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Error(err)
	}
	c.t.Cleanup(func() { _ = log.Close() })
	command.Stderr = log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return command
}

func (c *cluster) waitFor(address string) {
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			_ = connection.Close()
			return
		}
		if time.Since(began) > startTimeout {
			c.t.Errorf("nothing listens at %s: %v; see the logs in %s", address, err, c.dir)
			return
		}
	}
}

// server is a registry process that can be killed and started again.
type server struct {
	cluster           *cluster
	name              string
	args              []string
	plain, tls, front string // front is where clients connect

	faults  sync.Mutex // held during a fault
	mu      sync.Mutex
	command *exec.Cmd // nil while none runs
	epoch   int
	ended   []time.Duration // when each epoch ended
}

func (s *server) start() {
	command := s.cluster.command(s.name, s.cluster.program.registry, s.args...)
	if err := command.Start(); err != nil {
		s.cluster.t.Error(err)
		return
	}
	s.mu.Lock()
	s.command = command
	s.mu.Unlock()
	s.cluster.waitFor(s.plain)
}

// kill ends the process. When it returns, no request to it can have an effect any more.
func (s *server) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.command == nil {
		return
	}
	_ = s.command.Process.Kill()
	_ = s.command.Wait()
	s.command = nil
	s.epoch++
	s.ended = append(s.ended, s.cluster.history.now())
}

// restart kills the process and starts it again after so long.
func (s *server) restart(d time.Duration) {
	s.faults.Lock()
	defer s.faults.Unlock()
	s.kill()
	time.Sleep(d)
	s.start()
}

// pause stops the process at once. It returns a function that waits until the process continues, after so long.
func (s *server) pause(d time.Duration) (wait func()) {
	s.faults.Lock()
	s.mu.Lock()
	process := s.command.Process
	s.mu.Unlock()
	wait = pauseFor(process, d)
	go func() {
		wait()
		s.faults.Unlock()
	}()
	return wait
}

func pauseFor(process *os.Process, d time.Duration) (wait func()) {
	_ = process.Signal(syscall.SIGSTOP) // it may have ended
	continued := make(chan struct{})
	time.AfterFunc(d, func() {
		_ = process.Signal(syscall.SIGCONT)
		close(continued)
	})
	return func() { <-continued }
}

// post sends a request with the push credential and its certificate to the listener with mutual TLS. The caller closes
// the body of the response.
func (s *server) post(path string, query url.Values, body []byte) (*http.Response, error) {
	files := s.cluster.push
	certificate, err := tls.X509KeyPair(files["tls.crt"], files["tls.key"])
	if err != nil {
		s.cluster.t.Error(err)
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(files["ca.crt"])
	message, err := http.NewRequest(http.MethodPost, "https://"+s.tls+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		s.cluster.t.Error(err)
		return nil, err
	}
	message.SetBasicAuth(userName, password)
	config := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	return client.Do(message)
}

func (s *server) currentEpoch() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

// inject carries out a fault.
func (c *cluster) inject(f fault) {
	s := c.servers[f.server]
	switch f.name {
	case killProcess:
		s.restart(f.Duration)
	case pauseProcess:
		s.pause(f.Duration)()
	case cutPower:
		c.cutPower(f.Duration)
	case fillDisk:
		path := c.ballast()
		file, err := os.Create(path)
		if err != nil {
			c.t.Error(err)
			return
		}
		// Small pieces leave no room for small files.
		for piece := bytes.Repeat([]byte{1}, 4096); err == nil; {
			_, err = file.Write(piece)
		}
		_ = file.Close()
		if !errors.Is(err, syscall.ENOSPC) {
			c.t.Errorf("fill the volume: %v", err)
		}
		time.Sleep(f.Duration)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			c.t.Error(err)
		}
	}
}

// ballast is the file that fills the volume.
func (c *cluster) ballast() string { return filepath.Join(c.volume, "ballast") }

// cutAfter returns a function that chooses after how many bytes a connection breaks: half within the
// requests of a push, others within a large blob.
func cutAfter(random *rand.Rand) func() int {
	var mu sync.Mutex
	seed := random.Uint64()
	connections := rand.New(rand.NewPCG(seed, 2))
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		if connections.IntN(2) == 0 {
			return 1 + connections.IntN(30_000)
		}
		return 1 + connections.IntN(1_000_000)
	}
}

// relay forwards connections to the targets in turn until the test ends. It breaks each connection when so many
// bytes have passed as after returns; 0 means never.
func relay(t *testing.T, address string, targets []string, after func() int) {
	t.Helper()
	listener := require.Value(net.Listen("tcp", address))(t)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for turn := 0; ; turn++ {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			limit := after()
			go forward(client, targets[turn%len(targets)], limit)
		}
	}()
}

// forward relays one connection. Like a Service, it tries no other target.
func forward(client net.Conn, target string, limit int) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	var passed atomic.Int64
	var running sync.WaitGroup
	pass := func(to, from net.Conn) {
		buffer := make([]byte, 16<<10)
		for {
			n, err := from.Read(buffer)
			if limit > 0 {
				if over := int(passed.Add(int64(n))) - limit; over > 0 {
					n, err = max(0, n-over), io.ErrUnexpectedEOF
				}
			}
			if n > 0 {
				if _, failed := to.Write(buffer[:n]); failed != nil {
					err = failed
				}
			}
			if err != nil {
				break
			}
		}
		_ = to.Close()
		_ = from.Close()
	}
	running.Go(func() { pass(server, client) })
	running.Go(func() { pass(client, server) })
	running.Wait()
}

// litter stores old garbage, which no client knows, so that a sweep takes longer than a request.
func (c *cluster) litter() {
	if *s3 != "" {
		return
	}
	c.outage.Lock()
	defer c.outage.Unlock()
	long := time.Now().Add(-time.Hour)
	for range litterBlobs {
		content := cryptorand.Text()
		hex := digest.FromString(content).Encoded()
		path := filepath.Join(c.volume, "registry/docker/registry/v2/blobs/sha256", hex[:2], hex, "data")
		// The volume may be full.
		_ = os.MkdirAll(filepath.Dir(path), 0o755)
		_ = os.WriteFile(path, []byte(content), 0o600)
		_ = os.Chtimes(path, long, long)
	}
}

// settle ends all processes, so that no request can have an effect any more, and starts one without faults. A
// request that was not answered may have had an effect until its process ended.
func (c *cluster) settle(h *history) {
	for _, s := range c.servers {
		s.kill()
	}
	for _, e := range h.events {
		if e.Outcome == unknown && e.Status == 0 && e.Server >= 0 {
			if ended := c.servers[e.Server].ended; e.Epoch < len(ended) {
				e.Return = max(e.Return, ended[e.Epoch])
			}
		}
	}
	c.servers[0].start()
	c.servers[0].front = c.servers[0].plain // no connection breaks any more
}

// keepLogs copies the processes' logs.
func (c *cluster) keepLogs(dir string) {
	names, _ := filepath.Glob(filepath.Join(c.dir, "*.log"))
	for _, name := range slices.Sorted(slices.Values(names)) {
		content, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(name)), content, 0o600)
		}
		if err != nil {
			c.t.Error(err)
		}
	}
}
