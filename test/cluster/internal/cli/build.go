package cli

import (
	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/build"
)

func newBuild(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "Build all components of a cluster into the cache",
		Long: `Build all components of a cluster with default options: Kubernetes, etcd, containerd, runc, the CNI
plugins, CoreDNS, kube-router, and helm and crictl for the tests. The first build
takes about ten minutes on two cores. "up" builds missing components too.

The cache is ` + build.DefaultCacheDir + `, or the directory that ` + build.CacheVariable + ` names.`,
		Example: "  testcluster build",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, err := build.OpenCache(a.log)
			if err != nil {
				return err
			}
			if err := cache.EnsureAll(cmd.Context(), build.DefaultRecipes()); err != nil {
				return err
			}
			a.log("all components are built")
			return nil
		},
	}
}
