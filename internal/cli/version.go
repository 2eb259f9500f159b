package cli

import (
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"helm.sh/helm/v3/pkg/action"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/install"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// versionTimeout is how long version waits for the cluster.
const versionTimeout = 5 * time.Second

func newVersion(global *cmdflags.Global) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `version prints the version of this program. With --output json or yaml, it adds the commit, the
version of Go, that of the embedded chart, and what the release in the cluster has, if one
answers.

Exit codes: 0 on success, 1 on failure, 3 if the command line is invalid.`,
		Example: `  zarf-registry version
  zarf-registry version --output json | jq .release`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !render.IsData(output) {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), version.Version)
				return err
			}
			chart, err := install.LoadChart("")
			if err != nil {
				return err
			}
			v := programVersion{Version: version.Version, Commit: version.Commit, Go: runtime.Version(),
				Chart: chart.Metadata.Version}
			v.askCluster(global)
			return render.Report(cmd.OutOrStdout(), output, render.Version, v,
				func(io.Writer, programVersion) error { return nil }, nil)
		},
	}
	cmdflags.AddOutput(cmd, &output)
	return cmd
}

// programVersion is what version prints as data.
type programVersion struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	Chart   string `json:"chart"` // embedded
	// Release is null if there is none, or if it is unknown: Problem then says why.
	Release *releaseVersion `json:"release"`
	Problem string          `json:"problem,omitempty"`
}

type releaseVersion struct {
	Namespace  string `json:"namespace"`
	Release    string `json:"release"`
	Revision   int    `json:"revision"`
	Status     string `json:"status"`
	Chart      string `json:"chart"`
	AppVersion string `json:"appVersion"`
}

// askCluster adds the release in the cluster.
func (v *programVersion) askCluster(global *cmdflags.Global) {
	config, _, err := cluster.Connect(global.Access)
	var helm *action.Configuration
	if err == nil {
		config = rest.CopyConfig(config)
		config.Timeout = versionTimeout
		helm, err = install.Connect(config, global.Namespace, slog.New(slog.DiscardHandler))
	}
	if err == nil {
		v.Release, err = readRelease(helm, global.Release)
	}
	if err != nil {
		v.Problem = err.Error()
	}
}

func readRelease(helm *action.Configuration, name string) (*releaseVersion, error) {
	rel, err := install.Installed(helm, name)
	if rel == nil || err != nil {
		return nil, err
	}
	return &releaseVersion{Namespace: rel.Namespace, Release: rel.Name, Revision: rel.Version,
		Status: rel.Info.Status.String(), Chart: rel.Chart.Metadata.Version, AppVersion: rel.Chart.Metadata.AppVersion}, nil
}
