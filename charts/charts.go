// Package charts carries the project's Helm chart, so that init-hook can install
// it from a workstation without a file beside it. It neither parses nor renders
// the chart.
package charts

import (
	"embed"
	"io/fs"
)

// Not files/init-hook.json, which make images writes: it has the digests of this very program.
//
//go:embed zarf-registry/.helmignore zarf-registry/*.* zarf-registry/LICENSE zarf-registry/files/[^i]* zarf-registry/ci
//go:embed all:zarf-registry/templates
var embedded embed.FS

// Registry is the folder of the chart, with Chart.yaml at its root and with the
// files that its .helmignore keeps out. It is read-only and safe for concurrent use.
func Registry() fs.FS {
	sub, err := fs.Sub(embedded, "zarf-registry")
	if err != nil {
		panic(err) // the name is valid
	}
	return sub
}
