// Package hopbyhop knows the HTTP headers of a single connection, which proxies do not forward (RFC 9110, section
// 7.6.1).
package hopbyhop

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// Headers are the names in canonical form. The header Connection names more of them.
var Headers = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authentication-Info",
	"Proxy-Authorization", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// Is reports whether name, in canonical form, is among Headers or named by the header Connection of h.
func Is(h http.Header, name string) bool { return slices.Contains(Headers, name) || NamedBy(h, name) }

// NamedBy reports whether the header Connection of h names the header name.
func NamedBy(h http.Header, name string) bool {
	for _, value := range h["Connection"] {
		for named := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(textproto.TrimString(named), name) {
				return true
			}
		}
	}
	return false
}
