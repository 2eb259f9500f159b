package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// address is the registry's address.
type address struct {
	host      string // DNS name that the server certificate must match
	port      uint16
	clusterIP netip.AddrPort // invalid if the environment does not name it
}

func (a address) String() string { return net.JoinHostPort(a.host, strconv.Itoa(int(a.port))) }

// parseAddress parses the registry's host:port. It completes it from the variables that the kubelet
// sets for the Service named by the host's first label. An explicit port takes precedence over the
// variable, which holds the first port of a multi-port Service.
func parseAddress(registry string, getenv func(string) string) (address, error) {
	host, port, err := net.SplitHostPort(registry)
	if err != nil {
		host, port = registry, ""
	}
	if host == "" || strings.ContainsAny(host, "/ []") || port == "" && strings.Contains(host, ":") {
		return address{}, fmt.Errorf("registry %q: want host:port", registry)
	}
	a := address{host: host}
	var variable string
	if _, err := netip.ParseAddr(host); err != nil {
		label, _, _ := strings.Cut(host, ".")
		variable = strings.ToUpper(strings.ReplaceAll(label, "-", "_")) + "_SERVICE_"
		if port == "" {
			port = getenv(variable + "PORT")
		}
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return address{}, fmt.Errorf("registry %q: want host:port with a port from 1 to 65535", registry)
	}
	a.port = uint16(number)
	if variable == "" {
		return a, nil
	}
	if value := getenv(variable + "HOST"); value != "" {
		ip, err := netip.ParseAddr(value)
		if err != nil {
			return address{}, fmt.Errorf("invalid environment variable %sHOST=%q: want an IP address", variable, value)
		}
		a.clusterIP = netip.AddrPortFrom(ip, a.port)
	}
	return a, nil
}
