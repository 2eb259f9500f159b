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

// Names of subjects that others are compared with.
const (
	oursName   = "registry-node"
	naiveName  = "naive Go"
	directName = "direct"
)

// subject is a proxy to be measured.
type subject struct {
	results.Subject
	direct  bool // none: the client does TLS
	program string
	// config is the text of a file, in which setting.fill replaces words; may be empty.
	config string
	// command returns arguments, and variables to add to the environment.
	command func(setting) (args, environment []string)
	// versionArgs make the program print its version; nil: the version of this project.
	versionArgs []string
}

// setting is what a proxy must know.
type setting struct {
	certificates
	Listen, Registry                       string // host:port
	listenPort, registryHost, registryPort string
	config                                 string // path of the file
}

// fill replaces the words of a configuration.
func (s setting) fill(text string) string {
	return strings.NewReplacer(
		"LISTEN", s.Listen, "REGISTRY", s.Registry, "NAME", registryName, "DIR", s.dir,
		"CERT", s.cert, "KEY", s.key, "BOTH", s.pem, "AUTHORITY", s.ca,
	).Replace(text)
}

// subjects returns the table, ours first.
func subjects() []subject {
	file := func(args ...string) func(setting) (a, e []string) {
		return func(s setting) (a, e []string) { return append(slices.Clone(args), s.config), nil }
	}
	return []subject{
		{
			Subject: results.Subject{Name: oursName, About: "as the chart starts it, without the listener for metrics"},
			program: oursName,
			command: func(s setting) (a, e []string) {
				return []string{"proxy", "--listen=" + s.Listen, "--registry=" + registryName + ":" + s.registryPort,
						"--tls-dir=" + s.dir},
					[]string{"ZARF_REGISTRY_SERVICE_HOST=" + s.registryHost}
			},
		},
		{
			Subject: results.Subject{Name: naiveName,
				About: "`httputil.ReverseProxy` on an `http.Transport` that keeps 32 connections"},
			program: naiveName,
			command: func(s setting) (a, e []string) { return []string{naiveMode, s.Listen, s.Registry, s.dir}, nil },
		},
		{
			Subject: results.Subject{Name: "nginx http",
				About: "`proxy_pass` to an upstream with `keepalive 32`; buffers of 64 KiB in memory only, a worker for each core"},
			program: "nginx", versionArgs: []string{"-v"},
			config:  nginxHTTP,
			command: file("-c"),
		},
		{
			Subject: results.Subject{Name: "nginx stream",
				About: "`proxy_ssl` in the stream module, with reuse of sessions; a worker for each core"},
			program: "nginx", versionArgs: []string{"-v"},
			config:  nginxStream,
			command: file("-c"),
		},
		{
			Subject: results.Subject{Name: "haproxy http", About: "`mode http`, `http-reuse always`; a thread for each core"},
			program: "haproxy", versionArgs: []string{"-v"},
			config:  strings.ReplaceAll(haproxy, "MODE", "http\n    http-reuse always"),
			command: file("-db", "-f"),
		},
		{
			Subject: results.Subject{Name: "haproxy tcp", About: "`mode tcp`; a thread for each core"},
			program: "haproxy", versionArgs: []string{"-v"},
			config:  strings.ReplaceAll(haproxy, "MODE", "tcp"),
			command: file("-db", "-f"),
		},
		{
			Subject: results.Subject{Name: "stunnel", About: "`client = yes`, with its cache of sessions"},
			program: "stunnel4", versionArgs: []string{"-version"},
			config:  stunnel,
			command: file(),
		},
		{
			Subject: results.Subject{Name: "ghostunnel", About: "`ghostunnel client`, without its log of connections"},
			program: "ghostunnel", versionArgs: []string{"--version"},
			command: func(s setting) (a, e []string) {
				return []string{"client", "--listen=" + s.Listen, "--target=" + s.Registry,
					"--override-server-name=" + registryName,
					"--cert=" + s.cert, "--key=" + s.key, "--cacert=" + s.ca, "--quiet=all"}, nil
			},
		},
		{
			Subject: results.Subject{Name: "socat",
				About: "upstream's proxy: `TCP4-LISTEN:…,reuseaddr,fork OPENSSL:…,verify=1`"},
			program: "socat", versionArgs: []string{"-V"},
			command: func(s setting) (a, e []string) {
				return []string{"TCP4-LISTEN:" + s.listenPort + ",bind=127.0.0.1,reuseaddr,fork",
					"OPENSSL:" + s.Registry + ",cert=" + s.cert + ",key=" + s.key + ",cafile=" + s.ca + ",verify=1"}, nil
			},
		},
		{
			Subject: results.Subject{Name: directName,
				About: "no proxy: the client does TLS itself, in Go, and resumes sessions for new connections"},
			direct: true,
		},
	}
}

// Timeouts are longer than any measurement. nginx's limit of 1000 requests per connection is
// lifted, because registry-node has none.
const (
	nginxCommon = `
user root;
daemon off;
pid DIR/nginx.pid;
error_log stderr error;
worker_processes auto;
worker_rlimit_nofile 8192;
events { worker_connections 4096; }
`
	nginxTLS = `
        proxy_ssl_certificate CERT;
        proxy_ssl_certificate_key KEY;
        proxy_ssl_trusted_certificate AUTHORITY;
        proxy_ssl_verify on;
        proxy_ssl_server_name on;
        proxy_ssl_name NAME;
`
	nginxHTTP = nginxCommon + `
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
        proxy_max_temp_file_size 0;` + nginxTLS + `
        location / { proxy_pass https://registry; }
    }
}
`
	nginxStream = `load_module /usr/lib/nginx/modules/ngx_stream_module.so;
` + nginxCommon + `
stream {
    server {
        listen LISTEN;
        proxy_pass REGISTRY;
        proxy_timeout 600s;
        proxy_ssl on;` + nginxTLS + `
    }
}
`
	haproxy = `global
    maxconn 4096
defaults
    mode MODE
    timeout connect 10s
    timeout client 600s
    timeout server 600s
listen registry
    bind LISTEN
    server registry REGISTRY ssl crt BOTH ca-file AUTHORITY verify required sni str(NAME) verifyhost NAME
`
	stunnel = `foreground = yes
pid =
syslog = no
debug = err
[registry]
client = yes
accept = LISTEN
connect = REGISTRY
cert = CERT
key = KEY
CAfile = AUTHORITY
verifyChain = yes
checkHost = NAME
sni = NAME
`
)

// findSubjects returns the selected subjects that are installed, with their programs and versions,
// and prints which are missing.
func findSubjects(ctx context.Context, o options, dir string) (found []subject, err error) {
	asked := strings.FieldsFunc(o.subjects, func(r rune) bool { return r == ',' })
	for _, s := range subjects() {
		if len(asked) > 0 && !slices.Contains(asked, s.Name) {
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
		return nil, errors.New("there is nothing to measure: see above, and -subjects")
	}
	return found, nil
}

// copyOfThis copies this program, so that its pages are not already in memory because client and
// registry use it.
func copyOfThis(dir string) (string, error) {
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
	case s.direct:
		return nil
	case s.Name == oursName:
		s.program, s.versionArgs = o.node, []string{"version"}
	case s.Name == naiveName:
		s.program, err = copyOfThis(dir)
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

// version returns the first word with a digit and a dot in the output of a program, otherwise the
// first word.
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

func described(found []subject) (all []results.Subject) {
	for _, s := range found {
		all = append(all, s.Subject)
	}
	return all
}
