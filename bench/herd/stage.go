package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

const (
	// registryName and cacheName are the names of the Services.
	registryName, cacheName = "zarf-registry.zarf.svc", "zarf-registry-cache.zarf.svc"
	// proxyAddress is where proxies serve their nodes.
	proxyAddress = "127.0.0.1:31999"
	// readyTimeout is for a process to start, which takes a fraction of a second.
	readyTimeout = 30 * time.Second
)

// environment names the ClusterIPs, as the kubelet does.
var environment = []string{
	"ZARF_REGISTRY_SERVICE_HOST=" + registryService,
	"ZARF_REGISTRY_CACHE_SERVICE_HOST=" + cacheService,
}

func (b *benchmark) path(name string) string { return filepath.Join(b.dir, name) }

// issue writes the certificates to the directories registry-tls, cache-tls and node-tls.
func (b *benchmark) issue() error {
	server, client := x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	for name, leaf := range map[string]pki.Leaf{
		"registry-tls": {Organization: pki.OrganizationServer, DNSNames: []string{registryName},
			IPAddresses: []net.IP{b.fabric.registry.address.AsSlice()}, Usages: []x509.ExtKeyUsage{server}},
		"cache-tls": {Organization: pki.OrganizationCache, DNSNames: []string{cacheName},
			Usages: []x509.ExtKeyUsage{server, client}},
		"node-tls": {Organization: pki.OrganizationNode, Usages: []x509.ExtKeyUsage{client}},
	} {
		leaf.CommonName = name
		if err := b.certificates.Write(b.path(name), leaf); err != nil {
			return err
		}
	}
	return nil
}

// stage is a case with its processes.
type stage struct {
	*benchmark
	testcase
	registry *registries.Process
	cached   []*registries.Process // the caches
	proxies  []*registries.Process
	ended    map[int]usage // of caches that were killed, by number
	mounts   []string
}

func (s *stage) start(ctx context.Context) error {
	caches := s.fabric.caches[:s.caches]
	if err := s.connect(ctx, caches); err != nil {
		return err
	}
	if err := s.startRegistry(ctx); err != nil {
		return err
	}
	for n, m := range caches {
		if err := s.startCache(n, m); err != nil {
			return err
		}
	}
	for _, m := range caches {
		if err := s.ready(ctx, m); err != nil {
			return err
		}
	}
	if s.fault == flipped {
		if err := s.corrupt(ctx, caches[0]); err != nil {
			return err
		}
	}
	return s.startProxies(ctx)
}

// connect sets up links and Services.
func (s *stage) connect(ctx context.Context, caches []member) error {
	for _, m := range append([]member{s.fabric.registry}, caches...) {
		if err := m.limit(ctx, s.rate); err != nil {
			return err
		}
	}
	if s.fault == slow {
		if err := caches[0].limit(ctx, slowRate); err != nil {
			return err
		}
	}
	return s.fabric.route(ctx, append(caches[:len(caches):len(caches)], s.fabric.nodes...), caches)
}

func (s *stage) startRegistry(ctx context.Context) (err error) {
	m := s.fabric.registry
	address := fmt.Sprintf("%s:%d", m.address, port)
	program, args := m.command(s.benchmark.registry, append(registries.ServeArgs(s.path("registry"), address,
		s.path("registry-tls")), fmt.Sprintf("--metrics-listen=%s:%d", m.address, metricsPort))...)
	s.registry, err = registries.Start(ctx, address, s.certificates, program, args...)
	return err
}

func (s *stage) startCache(n int, m member) error {
	dir := s.path(m.name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if s.fault == full && n == 0 {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", s.imageBytes/int64(s.layers)*3/2)); err != nil {
			return fmt.Errorf("mounting %s: %w", dir, err)
		}
		s.mounts = append(s.mounts, dir)
	}
	var program string
	var args []string
	if s.nginx {
		config := filepath.Join(dir, "nginx.conf")
		if err := os.WriteFile(config, []byte(s.nginxConfig(dir)), 0o600); err != nil {
			return err
		}
		program, args = m.command("nginx", "-c", config)
	} else {
		program, args = m.command(s.node, "cache", fmt.Sprintf("--listen=:%d", port),
			fmt.Sprintf("--registry=%s:%d", registryName, port), "--tls-dir="+s.path("cache-tls"), "--dir="+dir,
			"--size=10Gi", fmt.Sprintf("--metrics-listen=:%d", metricsPort))
	}
	p, err := registries.StartClient(environment, program, args...)
	if err == nil {
		s.cached = append(s.cached, p)
	}
	return err
}

func (s *stage) startProxies(ctx context.Context) error {
	for _, m := range s.fabric.nodes {
		flags := []string{"proxy", "--listen=" + proxyAddress, fmt.Sprintf("--registry=%s:%d", registryName, port),
			"--tls-dir=" + s.path("node-tls"), fmt.Sprintf("--metrics-listen=%s:%d", m.address, metricsPort)}
		if s.caches > 0 {
			flags = append(flags, fmt.Sprintf("--cache=%s:%d", cacheName, port))
		}
		program, args := m.command(s.node, flags...)
		p, err := registries.StartClient(environment, program, args...)
		if err != nil {
			return err
		}
		s.proxies = append(s.proxies, p)
	}
	return each(s.fabric.nodes, func(m member) error { return s.ready(ctx, m) })
}

func metricsURL(m member, path string) string {
	return fmt.Sprintf("http://%s:%d%s", m.address, metricsPort, path)
}

// ready waits until a proxy or a cache is ready.
func (s *stage) ready(ctx context.Context, m member) error {
	for deadline := time.Now().Add(readyTimeout); ; {
		_, err := get(ctx, metricsURL(m, "/readyz"))
		if err == nil {
			return nil
		}
		if s.unexpected() != "" || time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("%s is not ready: %w", m.name, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// corrupt pulls the image through a cache, and then changes the stored content.
func (s *stage) corrupt(ctx context.Context, m member) error {
	config := s.certificates.Node()
	config.ServerName = cacheName
	client := registries.NewClient(config)
	defer client.CloseIdleConnections()
	if err := s.image.pull(ctx, client, fmt.Sprintf("https://%s:%d", m.address, port), io.Discard); err != nil {
		return err
	}
	for _, d := range s.image.Blobs {
		if err := flip(filepath.Join(s.path(m.name), strings.Replace(d.Digest.String(), ":", "-", 1))); err != nil {
			return err
		}
	}
	return nil
}

// flip changes a byte in the middle of a file.
func flip(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	one := make([]byte, 1)
	if _, err := f.ReadAt(one, info.Size()/2); err != nil {
		return err
	}
	one[0] ^= 1
	_, err = f.WriteAt(one, info.Size()/2)
	return err
}

// kill kills the first cache, and later removes its endpoint.
func (s *stage) kill(ctx context.Context) error {
	u, err := usageOf(s.cached[0])
	if err != nil {
		return err
	}
	s.ended = map[int]usage{0: u}
	s.cached[0].Kill()
	time.Sleep(endpointDelay)
	return s.fabric.route(ctx, s.fabric.nodes, s.fabric.caches[1:s.caches])
}

// unexpected describes processes that have ended by themselves.
func (s *stage) unexpected() string {
	var b strings.Builder
	for n, p := range append(append([]*registries.Process{}, s.cached...), s.proxies...) {
		if _, ok := s.ended[n]; ok && n < len(s.cached) {
			continue
		}
		select {
		case <-p.Ended():
			fmt.Fprintf(&b, "; a process has ended: %s", p.Output())
		default:
		}
	}
	return b.String()
}

// stop ends all processes and removes what caches have stored. It fails if a process had already ended.
func (s *stage) stop() (err error) {
	if text := s.unexpected(); text != "" {
		err = errors.New(strings.TrimPrefix(text, "; "))
	}
	for _, p := range s.proxies {
		p.Kill()
	}
	for _, p := range s.cached {
		if s.nginx {
			err = errors.Join(err, p.Stop()) // its workers would survive it
		} else {
			p.Kill()
		}
	}
	if s.registry != nil {
		err = errors.Join(err, s.registry.Stop())
	}
	http.DefaultClient.CloseIdleConnections()
	err = errors.Join(err, s.writeLogs())
	for _, dir := range s.mounts {
		err = errors.Join(err, unix.Unmount(dir, 0))
	}
	for _, m := range s.fabric.caches {
		err = errors.Join(err, os.RemoveAll(s.path(m.name)))
	}
	return err
}

// writeLogs appends what caches and proxies have logged to the file of -logs. They have ended.
func (s *stage) writeLogs() error {
	if s.logs == "" {
		return nil
	}
	f, err := os.OpenFile(s.logs, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	for kind, all := range map[string][]*registries.Process{"cache": s.cached, "proxy": s.proxies} {
		for n, p := range all {
			fmt.Fprintf(f, "# %s: %s %d\n%s", s.Name, kind, n+1, p.Output())
		}
	}
	return f.Close()
}
