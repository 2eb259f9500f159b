package noderuntime

import (
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// validEndpoint accepts http and https URLs. Without a scheme, they start with the host, as K3s and containerd allow.
func validEndpoint(s string) bool {
	if !strings.Contains(s, "://") {
		s = "https://" + s
	}
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && validHost(u.Host)
}

// validHost accepts host and host:port as in image references.
func validHost(s string) bool {
	name, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		name, port = s[:i], s[i+1:]
		if p, err := strconv.Atoi(port); err != nil || p < 1 || p > 65535 || port[0] == '+' || port[0] == '0' {
			return false
		}
	}
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		addr, err := netip.ParseAddr(name[1 : len(name)-1])
		return err == nil && addr.Is6() && addr.Zone() == ""
	}
	return len(name) <= 253 && hostName.MatchString(name)
}

var hostName = regexp.MustCompile(
	`^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*$`,
)
