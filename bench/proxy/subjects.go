package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

// Names of subjects that the code refers to.
const (
	oursName  = "registry-node"
	naiveName = "naive Go"
)

// subject is a proxy to be measured.
type subject struct {
	results.Subject
	program string
	// config is the content of the configuration file, if there is one, and args are the arguments. measurement.start
	// replaces what is in capitals: LISTEN, REGISTRY and their ports, NAME of the registry, CONFIG, and DIR of the
	// certificates.
	config string
	args   []string
	// versionArgs make the program print its version; nil if the version is not reported.
	versionArgs []string
}

// subjects returns all subjects, in the order of the tables.
func subjects() []subject {
	return []subject{
		{
			Subject: results.Subject{Name: oursName, About: "as in the chart, without metrics"},
			program: oursName,
			args:    []string{"proxy", "--listen=LISTEN", "--registry=NAME:REGISTRY_PORT", "--tls-dir=DIR"},
		},
		{
			Subject: results.Subject{Name: naiveName, About: "`httputil.ReverseProxy`, 32 idle connections"},
			program: naiveName,
			args:    []string{naiveMode, "LISTEN", "REGISTRY", "DIR"},
		},
		{
			Subject: results.Subject{Name: "nginx http", About: "`keepalive 32`, buffers in memory"},
			program: "nginx", versionArgs: []string{"-v"},
			config: nginxHTTP,
			args:   []string{"-c", "CONFIG"},
		},
		{
			Subject: results.Subject{Name: "haproxy http", About: "`http-reuse always`"},
			program: "haproxy", versionArgs: []string{"-v"},
			config: haproxy,
			args:   []string{"-db", "-f", "CONFIG"},
		},
		{
			Subject: results.Subject{Name: "ghostunnel", About: "TCP, without its log"},
			program: "ghostunnel", versionArgs: []string{"--version"},
			args: []string{"client", "--listen=LISTEN", "--target=REGISTRY", "--override-server-name=NAME",
				"--cert=DIR/tls.crt", "--key=DIR/tls.key", "--cacert=DIR/ca.crt", "--quiet=all"},
		},
		{
			Subject: results.Subject{Name: "socat", About: "TCP, a process per connection, as in Zarf"},
			program: "socat", versionArgs: []string{"-V"},
			args: []string{"tcp4-listen:LISTEN_PORT,bind=127.0.0.1,reuseaddr,fork",
				"openssl:REGISTRY,cert=DIR/tls.crt,key=DIR/tls.key,cafile=DIR/ca.crt,verify=1"},
		},
	}
}

// Timeouts are longer than any measurement. nginx's limit of 1000 requests per connection is raised, because
// registry-node has no such limit. Only nginx needs a setting for TLS 1.3.
const (
	nginxHTTP = `
user root;
daemon off;
pid DIR/nginx.pid;
error_log stderr error;
worker_processes auto;
worker_rlimit_nofile 8192;
events { worker_connections 4096; }
http {
    access_log off;
    client_body_temp_path DIR/nginx-body;
    proxy_temp_path DIR/nginx-proxy;
    fastcgi_temp_path DIR/nginx-fastcgi;
    uwsgi_temp_path DIR/nginx-uwsgi;
    scgi_temp_path DIR/nginx-scgi;
    keepalive_timeout 600s;
    keepalive_requests 100000000;
    upstream registry {
        server REGISTRY;
        keepalive 32;
        keepalive_requests 100000000;
    }
    server {
        listen LISTEN;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host $http_host;
        proxy_buffers 16 64k;
        proxy_busy_buffers_size 256k;
        proxy_max_temp_file_size 0;
        proxy_ssl_protocols TLSv1.3;
        proxy_ssl_certificate DIR/tls.crt;
        proxy_ssl_certificate_key DIR/tls.key;
        proxy_ssl_trusted_certificate DIR/ca.crt;
        proxy_ssl_verify on;
        proxy_ssl_server_name on;
        proxy_ssl_name NAME;
        location / { proxy_pass https://registry; }
    }
}
`
	haproxy = `global
    maxconn 4096
defaults
    mode http
    http-reuse always
    timeout connect 10s
    timeout client 600s
    timeout server 600s
listen registry
    bind LISTEN
    server registry REGISTRY ssl crt DIR/both.pem ca-file DIR/ca.crt verify required sni str(NAME) verifyhost NAME
`
)

// findSubjects returns the selected subjects that are installed, with their programs and versions,
// and prints which are missing.
func findSubjects(ctx context.Context, o options, dir string) (found []subject, err error) {
	names := strings.FieldsFunc(o.subjects, func(r rune) bool { return r == ',' })
	for _, s := range subjects() {
		if len(names) > 0 && !slices.Contains(names, s.Name) {
			continue
		}
		if err := s.find(ctx, o, dir); err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			fmt.Fprintf(os.Stderr, "\nMISSING, not measured: %s: %v\n\n", s.Name, err)
			continue
		}
		found = append(found, s)
	}
	if len(found) == 0 {
		return nil, errors.New("no proxy to measure: install one of them or change -subjects")
	}
	return found, nil
}

// copySelf copies this program, so that the naive proxy does not share the pages of its file with client
// and registry.
func copySelf(dir string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "naive")
	return path, os.WriteFile(path, program, 0o755)
}

func (s *subject) find(ctx context.Context, o options, dir string) (err error) {
	switch {
	case s.Name == oursName:
		s.program, s.versionArgs = o.node, []string{"version"}
	case s.Name == naiveName:
		s.program, err = copySelf(dir)
	case s.Name == "ghostunnel":
		var path []byte
		path, err = exec.CommandContext(ctx, o.testcluster, "tool", s.program).Output()
		s.program = strings.TrimSpace(string(path))
	default:
		s.program, err = exec.LookPath(s.program)
	}
	if err != nil {
		return fmt.Errorf("%w: make bench-proxy installs or builds it", err)
	}
	if s.program, err = filepath.Abs(s.program); err != nil || s.versionArgs == nil {
		return err
	}
	out, err := exec.CommandContext(ctx, s.program, s.versionArgs...).CombinedOutput()
	if err != nil {
		return err
	}
	s.Version = version(string(out))
	return nil
}

// version returns the first word of a program's output that looks like a version, or the first word if
// none does.
func version(text string) string {
	words := strings.Fields(text)
	for _, word := range words {
		if _, after, ok := strings.Cut(word, "/"); ok {
			word = after // nginx/1.22.1
		}
		if number := strings.TrimPrefix(word, "v"); strings.Contains(number, ".") && number[0] >= '0' && number[0] <= '9' {
			return word
		}
	}
	return cmp.Or(strings.Join(words[:min(1, len(words))], ""), "?")
}
