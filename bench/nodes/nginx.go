package main

import "strings"

// nginxConfig returns the configuration of nginx as a cache: what a digest names is fetched once and kept, everything
// else is requested from the registry. /readyz is for the benchmark.
func (s *stage) nginxConfig(dir string) string {
	return strings.NewReplacer("DIR", dir, "CERTS", s.path("cache-tls"), "NAME", registryName,
		"REGISTRY", registryService+port, "LISTEN", "*"+port, "METRICS", "*"+metricsPort).Replace(nginxConfig)
}

// The lock's timeouts are longer than any fetch, else every request for a large blob would go to the registry. Not
// limited are requests per connection, as in the caches.
const nginxConfig = `
user root; daemon off; pid DIR/nginx.pid;
error_log stderr error;
worker_processes auto; worker_rlimit_nofile 8192;
events { worker_connections 4096; }
http {
    access_log off;
    client_body_temp_path DIR/body; proxy_temp_path DIR/proxy;
    fastcgi_temp_path DIR/fastcgi; uwsgi_temp_path DIR/uwsgi; scgi_temp_path DIR/scgi;
    proxy_cache_path DIR/cache levels=1:2 keys_zone=blobs:10m max_size=10g inactive=1d use_temp_path=off;
    keepalive_requests 100000000;
    upstream registry { server REGISTRY; keepalive 32; }
    server { listen METRICS; location = /readyz { return 200; } }
    server {
        listen LISTEN ssl;
        ssl_protocols TLSv1.3;
        ssl_certificate CERTS/tls.crt; ssl_certificate_key CERTS/tls.key;
        ssl_client_certificate CERTS/ca.crt; ssl_verify_client on;
        proxy_http_version 1.1;
        proxy_set_header Connection ""; proxy_set_header Host NAME;
        proxy_ssl_protocols TLSv1.3;
        proxy_ssl_certificate CERTS/tls.crt; proxy_ssl_certificate_key CERTS/tls.key;
        proxy_ssl_trusted_certificate CERTS/ca.crt; proxy_ssl_verify on;
        proxy_ssl_server_name on; proxy_ssl_name NAME;
        location ~ ^/v2/.+/(blobs|manifests)/sha256: {
            proxy_pass https://registry;
            proxy_cache blobs; proxy_cache_key $uri; proxy_cache_valid 200 1d;
            proxy_cache_lock on; proxy_cache_lock_timeout 1h; proxy_cache_lock_age 1h;
        }
        location / { proxy_pass https://registry; }
    }
}
`
