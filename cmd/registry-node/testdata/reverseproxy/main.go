// Command reverseproxy is what the proxy is measured against: a few lines around the standard library's reverse proxy.
// Usage: reverseproxy REGISTRY SERVERNAME TLS-DIR.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"

	"github.com/zarf-dev/zarf-registry/internal/tlsfiles"
)

func main() {
	source, err := tlsfiles.Open(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: os.Args[1]})
	proxy.Transport = &http.Transport{
		TLSClientConfig:     tlsfiles.ClientConfig(source.Current(), os.Args[2]),
		DisableCompression:  true,
		MaxIdleConnsPerHost: 32,
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintf(os.Stderr, "address=%s\n", listener.Addr())
	log.Fatal(http.Serve(listener, proxy))
}
