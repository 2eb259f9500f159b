package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/build"
)

func newBuild(a *app) *cobra.Command {
	var kubernetes string
	var runtimes []string
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build all components of a cluster into the cache",
		Long: `Build all components of a cluster: Kubernetes, etcd, containerd, runc, the CNI
plugins, CoreDNS, kube-router, and helm and crictl for the tests. The first build
takes about ten minutes on two cores. "up" builds missing components too.

The cache is ` + build.DefaultCacheDir + `, or the directory that ` + build.CacheVariable + ` names.`,
		Example: `  testcluster build
  testcluster build --kubernetes 1.30 --runtime containerd-1.7`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, err := build.OpenCache(a.log)
			if err != nil {
				return err
			}
			common, ofNodes, err := components(kubernetes, runtimes)
			if err != nil {
				return err
			}
			if err := cache.EnsureAll(cmd.Context(), append(common, ofNodes...)); err != nil {
				return err
			}
			a.log("all components are built")
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&kubernetes, "kubernetes", build.DefaultKubernetes, "version of Kubernetes")
	flags.StringSliceVar(&runtimes, "runtime", []string{build.DefaultRuntime}, "container runtimes")
	return cmd
}

// components returns the recipes of a cluster with a version of Kubernetes, and those of the container runtimes of its
// nodes.
func components(kubernetes string, runtimes []string) (common, ofNodes []build.Recipe, err error) {
	version, err := build.Kubernetes(kubernetes)
	if err != nil {
		return nil, nil, fmt.Errorf("--kubernetes: %w", err)
	}
	for _, name := range runtimes {
		recipe, err := build.Runtime(name)
		if err != nil {
			return nil, nil, fmt.Errorf("--runtime: %w", err)
		}
		ofNodes = append(ofNodes, recipe)
	}
	return append(build.ClusterRecipes(), version), ofNodes, nil
}
