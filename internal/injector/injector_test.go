package injector_test

import (
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/injector"
)

func TestConfigMapName(t *testing.T) {
	got := injector.ConfigMapName(
		"zarf-registry", "0.1.0", injector.Program{Name: "registry-node", Architecture: "amd64"}, 0,
	)
	if want := "zarf-registry-payload-0.1.0-registry-node-amd64-00"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
