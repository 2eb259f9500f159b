package injector_test

import (
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
)

func TestConfigMapName(t *testing.T) {
	for program, want := range map[string]string{
		"registry":      "zarf-registry-payload-0.1.0-registry-amd64-00",
		"registry-node": "zarf-registry-payload-registry-node-amd64-00",
	} {
		p := injector.Program{Name: program, Architecture: "amd64"}
		if got := injector.ConfigMapName("zarf-registry", "0.1.0", p, 0); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
