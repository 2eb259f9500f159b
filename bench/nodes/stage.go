package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/zarf-dev/zarf-registry/bench/internal/distribution"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

const (
	// registryName and cacheName are the names of the Services.
	registryName, cacheName = "zarf-registry.zarf.svc", "zarf-registry-cache.zarf.svc"
	// caseTimeout bounds a case, which takes at most a minute and a half.
	caseTimeout = 5 * time.Minute
	// readyTimeout is for a process to start, which takes a fraction of a second.
	readyTimeout = 30 * time.Second
	nodeAddress  = loopback + ":" + nodePort
	// user may pull through node ports.
	user, password = "zarf-pull", "bench-password"
)

func (b *benchmark) path(name string) string { return filepath.Join(b.dir, name) }

// issue writes the certificates to the directories registry-tls, cache-tls and node-tls, and the password.
func (b *benchmark) issue() error {
	server, client := x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	for name, leaf := range map[string]pki.Leaf{
		"registry-tls": {Organization: pki.OrganizationServer, DNSNames: []string{registryName},
			IPAddresses: []net.IP{net.ParseIP(b.fabric.registry.address)}, Usages: []x509.ExtKeyUsage{server}},
		"cache-tls": {Organization: pki.OrganizationCache, DNSNames: []string{cacheName},
			Usages: []x509.ExtKeyUsage{server, client}},
		"node-tls": {Organization: pki.OrganizationNode, Usages: []x509.ExtKeyUsage{client}},
	} {
		leaf.CommonName = name
		if err := b.certificates.Write(b.path(name), leaf); err != nil {
			return err
		}
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost) // Zarf's cost, too
	if err != nil {
		return err
	}
	return os.WriteFile(b.path("htpasswd"), []byte(user+":"+string(hash)+"\n"), 0o600)
}

// stage is a way with its processes.
type stage struct {
	*benchmark
	way
	crowd         crowd
	nodes, caches []member
	processes     []*registries.Process
	urls          []string // that answer when the processes are ready
}

// run measures a case on a stage of its own.
func (b *benchmark) run(ctx context.Context, c testcase) (err error) {
	ctx, cancel := context.WithTimeout(ctx, caseTimeout)
	defer cancel()
	s := &stage{benchmark: b, way: c.way, crowd: c.crowd, nodes: b.fabric.nodes[:c.crowd.nodes]}
	if c.way.caches {
		s.caches = b.fabric.caches[:c.crowd.caches]
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.start(ctx); err != nil {
		return err
	}
	return c.measure(s, ctx)
}

// server returns the URL at which each node pulls.
func (s *stage) server() string {
	if s.nodePort && (!s.distribution || s.htpasswd) {
		return "http://" + user + ":" + password + "@" + nodeAddress
	}
	return "http://" + nodeAddress
}

// start starts the registry, and when it is ready, caches and proxies.
func (s *stage) start(ctx context.Context) error {
	if err := s.fabric.connect(ctx, s.nodes, s.caches, s.crowd.rate, s.nodePort); err != nil {
		return err
	}
	if err := s.startRegistry(s.fabric.registry); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	for _, m := range s.caches {
		if err := s.startCache(m); err != nil {
			return err
		}
	}
	if err := s.ready(ctx); err != nil || s.nodePort {
		return err
	}
	for _, m := range s.nodes {
		flags := []string{"proxy", "--listen=" + nodeAddress, "--registry=" + registryName + port,
			"--tls-dir=" + s.path("node-tls"), "--metrics-listen=" + metricsPort}
		if s.way.caches {
			flags = append(flags, "--cache="+cacheName+port)
		}
		if err := s.launch(m, metricsURL(m, "/readyz"), s.node, flags...); err != nil {
			return err
		}
	}
	return s.ready(ctx)
}

// launch starts a program, which is ready when url answers.
func (s *stage) launch(m member, url, program string, args ...string) error {
	program, args = m.command(program, args...)
	p, err := registries.StartClient([]string{"ZARF_REGISTRY_SERVICE_HOST=" + registryService,
		"ZARF_REGISTRY_CACHE_SERVICE_HOST=" + cacheService}, program, args...) // as the kubelet does
	if err == nil {
		s.processes, s.urls = append(s.processes, p), append(s.urls, url)
	}
	return err
}

func (s *stage) startRegistry(m member) error {
	plain := m.address + plainPort
	url := "http://" + user + ":" + password + "@" + plain + "/v2/"
	if !s.distribution {
		return s.launch(m, url, s.registry, append(registries.ServeArgs(s.path("registry"), port, s.path("registry-tls")),
			"--plain-listen="+plainPort, "--metrics-listen="+metricsPort, "--pull-htpasswd="+s.path("htpasswd"))...)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	users := ""
	if s.htpasswd {
		users = s.path("htpasswd")
	}
	return s.launch(m, url, self, distribution.Mode, plain, s.path("registry/storage"), users)
}

// serveDistribution runs distribution's own server. The arguments are the address, the storage directory, and the file
// of users or nothing.
func serveDistribution(ctx context.Context, args []string) error {
	auth := ""
	if args[2] != "" {
		auth = fmt.Sprintf("auth: {htpasswd: {realm: bench, path: %q}}\n", args[2])
	}
	return distribution.Serve(ctx, fmt.Sprintf("version: 0.1\n"+
		"log: {level: error, accesslog: {disabled: true}}\nstorage: {cache: {blobdescriptor: inmemory}, filesystem: "+
		"{rootdirectory: %q}}\nhttp: {addr: %q, secret: bench}\n%s", args[1], args[0], auth))
}

func (s *stage) startCache(m member) error {
	dir, readyz := s.path(m.name), metricsURL(m, "/readyz")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if !s.nginx {
		return s.launch(m, readyz, s.node, "cache", "--listen="+port, "--registry="+registryName+port,
			"--tls-dir="+s.path("cache-tls"), "--dir="+dir, "--size=10Gi", "--metrics-listen="+metricsPort)
	}
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, []byte(s.nginxConfig(dir)), 0o600); err != nil {
		return err
	}
	return s.launch(m, readyz, "nginx", "-c", config)
}

func metricsURL(m member, path string) string { return "http://" + m.address + metricsPort + path }

// ready waits until all programs answer.
func (s *stage) ready(ctx context.Context) error {
	for deadline := time.Now().Add(readyTimeout); len(s.urls) > 0; {
		_, err := get(s.urls[0])
		if err == nil {
			s.urls = s.urls[1:]
			continue
		}
		if ended := s.ended(); ended != nil || time.Now().After(deadline) || ctx.Err() != nil {
			return errors.Join(err, ended)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// ended returns an error if a process has ended by itself.
func (s *stage) ended() error {
	for _, p := range s.processes {
		select {
		case <-p.Ended():
			return fmt.Errorf("a process has ended: %s", p.Output())
		default:
		}
	}
	return nil
}

// stop ends all processes and removes what caches have stored. It fails if a process had already ended.
func (s *stage) stop() error {
	err := s.ended()
	var group sync.WaitGroup
	for _, p := range s.processes {
		group.Go(p.Stop) // the workers of nginx would survive a SIGKILL
	}
	group.Wait()
	http.DefaultClient.CloseIdleConnections()
	for _, m := range s.caches {
		err = errors.Join(err, os.RemoveAll(s.path(m.name)))
	}
	return err
}
