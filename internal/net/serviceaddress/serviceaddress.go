// Package serviceaddress parses the address of a Service and completes it from the environment: a pull must
// not depend on cluster DNS, whose own image may be the one to pull. It connects to nothing.
package serviceaddress

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Address is the address of a Service.
type Address struct {
	// Host is the DNS name that the server's certificate must match.
	Host string
	Port uint16
	// ClusterIP is invalid if the environment does not name it.
	ClusterIP netip.AddrPort
}

// String returns host:port.
func (a Address) String() string { return net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port))) }

// Parse parses host:port. It completes it from the variables that the kubelet sets for Services of the
// pod's namespace, <NAME>_SERVICE_HOST and <NAME>_SERVICE_PORT, where NAME is the host's first label. An
// explicit port takes precedence over the variable, which holds the first port of a multi-port Service.
func Parse(service string, getenv func(string) string) (Address, error) {
	host, port, err := net.SplitHostPort(service)
	if err != nil {
		host, port = service, ""
	}
	if host == "" || strings.ContainsAny(host, "/ []") || port == "" && strings.Contains(host, ":") {
		return Address{}, fmt.Errorf("%q: want host:port", service)
	}
	a := Address{Host: host}
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
		return Address{}, fmt.Errorf("%q: want host:port with a port from 1 to 65535", service)
	}
	a.Port = uint16(number)
	if variable == "" {
		return a, nil
	}
	if value := getenv(variable + "HOST"); value != "" {
		ip, err := netip.ParseAddr(value)
		if err != nil {
			return Address{}, fmt.Errorf("invalid environment variable %sHOST=%q: want an IP address", variable, value)
		}
		a.ClusterIP = netip.AddrPortFrom(ip, a.Port)
	}
	return a, nil
}
