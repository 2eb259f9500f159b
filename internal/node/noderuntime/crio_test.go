package noderuntime

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/internal/mask"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const (
	crioCerts = "/etc/containers/certs.d"
	crioConf  = "/etc/containers/registries.conf.d"
)

func crioConfig() Config {
	return Config{
		Release:     "zarf/zarf-registry",
		Address:     address,
		Directories: []string{crioCerts, crioConf},
		CRIO:        CRIO{CertsDirectory: crioCerts, ConfDirectory: crioConf},
	}
}

func authority(t *testing.T) []byte {
	t.Helper()
	a := require.Value(pki.NewCA("nodes' proxies", time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), 24*time.Hour))(t)
	return pki.NewBundle(a.Certificate()).PEM()
}

func TestCRIOByteForByte(t *testing.T) {
	ca := authority(t)
	for name, c := range map[string]struct {
		change   func(*Config)
		want     map[string]string
		warnings int
	}{
		"a CA": {func(*Config) {}, map[string]string{crioCerts + "/127.0.0.1:31999/ca.crt": string(ca)}, 0},
		"mirrors": {func(c *Config) { c.Mirrors = []string{"docker.io", "*", "!quay.io"} }, map[string]string{
			crioCerts + "/127.0.0.1:31999/ca.crt": string(ca),
			crioConf + "/50-zarf-registry.conf": `
[[registry]]
prefix = "docker.io"
location = "docker.io"

[[registry.mirror]]
location = "127.0.0.1:31999"
insecure = false
`}, 1},
		"mirrors without a CA": {func(c *Config) { c.Mirrors, c.CRIO.CertsDirectory = []string{"docker.io"}, "" },
			map[string]string{crioConf + "/50-zarf-registry.conf": `
[[registry]]
prefix = "docker.io"
location = "docker.io"

[[registry.mirror]]
location = "127.0.0.1:31999"
insecure = true
`}, 0},
		"without verification": {func(c *Config) {
			c.Mirrors, c.CRIO.CertsDirectory, c.CRIO.Insecure = []string{"docker.io"}, "", true
		}, map[string]string{
			crioConf + "/50-zarf-registry.conf": `
[[registry]]
prefix = "127.0.0.1:31999"
location = "127.0.0.1:31999"
insecure = true

[[registry]]
prefix = "docker.io"
location = "docker.io"

[[registry.mirror]]
location = "127.0.0.1:31999"
insecure = true
`}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			config := crioConfig()
			c.change(&config)
			desired := require.Value(Build(Inputs{Config: config, CA: ca}))(t)
			got := map[string]string{}
			for _, f := range desired.Files {
				got[f.Path] = string(f.Content)
				if f.Mode != 0o644 {
					t.Errorf("%s has mode %v, so podman of other users cannot read it", f.Path, f.Mode)
				}
				shown := Diff(f.Path, f.Kind, nil, f.Content)
				if strings.Contains(shown, mask.Redacted) || f.Kind == KindRegistriesConf && !strings.Contains(shown, "insecure") {
					t.Errorf("displayed as:\n%s", shown)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if len(desired.Warnings) != c.warnings {
				t.Errorf("warnings: %q", desired.Warnings)
			}
		})
	}
}
