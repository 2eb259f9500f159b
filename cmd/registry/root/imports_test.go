package root

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestImports limits the size of the program, which is shipped to nodes in ConfigMaps and so stored in etcd.
func TestImports(t *testing.T) {
	out := require.Value(exec.Command("go", "list", "-deps", "..").Output())(t)
	packages := strings.Fields(string(out))
	const distribution = "github.com/distribution/distribution/v3/registry"
	forbidden := map[string]string{ // by prefix
		distribution + "/storage/driver/gcs":         "no Google Cloud Storage",
		distribution + "/storage/driver/azure":       "no Azure",
		distribution + "/storage/driver/middleware/": "no storage middleware",
		distribution + "/auth/":                      "the front end authorizes",
		"cloud.google.com/":                          "no Google Cloud Storage",
		"github.com/Azure/":                          "no Azure",
		"k8s.io/":                                    "the registry does not talk to Kubernetes",
		"sigs.k8s.io/":                               "the registry does not talk to Kubernetes",
		"helm.sh/":                                   "only init-hook uses Helm",
		"oras.land/":                                 "only init-hook is a client",
		"testing":                                    "only tests use it",
		"github.com/zarf-dev/zarf-registry/internal/version": "it would change the payload in each release",
	}
	needed := map[string]bool{
		distribution + "/handlers":                  false,
		distribution + "/storage/driver/filesystem": false,
		distribution + "/storage/driver/inmemory":   false,
		distribution + "/storage/driver/s3-aws":     false,
		"golang.org/x/crypto/x509roots/fallback":    false,
	}
	for _, name := range packages {
		if name == distribution {
			t.Errorf("%s is linked: distribution's own main", name)
		}
		for prefix, why := range forbidden {
			if strings.HasPrefix(name, prefix) {
				t.Errorf("%s is linked: %s", name, why)
			}
		}
		if _, ok := needed[name]; ok {
			needed[name] = true
		}
	}
	for name, linked := range needed {
		if !linked {
			t.Errorf("%s is not linked", name)
		}
	}
}
