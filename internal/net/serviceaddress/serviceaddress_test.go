package serviceaddress

import (
	"strings"
	"testing"
)

type environment map[string]string

func (e environment) get(name string) string { return e[name] }

func TestParse(t *testing.T) {
	both := environment{"ZARF_REGISTRY_SERVICE_HOST": "10.96.0.7", "ZARF_REGISTRY_SERVICE_PORT": "5000"}
	for name, tt := range map[string]struct {
		registry    string
		environment environment
		want        string // host:port and ClusterIP, or part of the error
		ok          bool
	}{
		"the Service is in the environment": {
			"zarf-registry.zarf.svc:5000", both, "zarf-registry.zarf.svc:5000 10.96.0.7:5000", true,
		},
		"the port is in the environment": {
			"zarf-registry.zarf.svc", both, "zarf-registry.zarf.svc:5000 10.96.0.7:5000", true,
		},
		"an explicit port takes precedence": {
			"zarf-registry.zarf.svc:5443", both, "zarf-registry.zarf.svc:5443 10.96.0.7:5443", true,
		},
		"the ClusterIP is an IPv6 address": {
			"zarf-registry.zarf.svc:5000", environment{"ZARF_REGISTRY_SERVICE_HOST": "fd00::7"},
			"zarf-registry.zarf.svc:5000 [fd00::7]:5000", true,
		},
		"a name without dots": {"zarf-registry:5000", both, "zarf-registry:5000 10.96.0.7:5000", true},
		"another Service is in the environment": {
			"my-registry.zarf.svc:5000", both, "my-registry.zarf.svc:5000 invalid AddrPort", true,
		},
		"an IPv4 address":                {"127.0.0.1:5000", both, "127.0.0.1:5000 invalid AddrPort", true},
		"an IPv6 address":                {"[::1]:5000", both, "[::1]:5000 invalid AddrPort", true},
		"nothing":                        {"", both, `""`, false},
		"no port":                        {"my-registry.zarf.svc", both, "a port from 1 to 65535", false},
		"an invalid port":                {"zarf-registry.zarf.svc:http", both, "a port from 1 to 65535", false},
		"port 0":                         {"zarf-registry.zarf.svc:0", both, "a port from 1 to 65535", false},
		"port 65536":                     {"zarf-registry.zarf.svc:65536", both, "a port from 1 to 65535", false},
		"a URL":                          {"https://zarf-registry.zarf.svc:5000", both, "want host:port", false},
		"an IPv6 address without a port": {"::1", both, "want host:port", false},
		"an invalid address in the environment": {
			"zarf-registry.zarf.svc:5000", environment{"ZARF_REGISTRY_SERVICE_HOST": "None"},
			`ZARF_REGISTRY_SERVICE_HOST="None"`, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := Parse(tt.registry, tt.environment.get)
			got := a.String() + " " + a.ClusterIP.String()
			if err != nil {
				got = err.Error()
			}
			if (err == nil) != tt.ok || tt.ok && got != tt.want || !strings.Contains(got, tt.want) {
				t.Errorf("Parse(%q) = %s, want %s", tt.registry, got, tt.want)
			}
		})
	}
}
