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
  testcluster build --kubernetes 1.28 --runtime containerd-1.7`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, err := build.OpenCache(a.log)
			if err != nil {
				return err
			}
			version, err := build.Kubernetes(kubernetes)
			if err != nil {
				return fmt.Errorf("--kubernetes: %w", err)
			}
			recipes := append(build.ClusterRecipes(), version)
			for _, name := range runtimes {
				recipe, err := build.Runtime(name)
				if err != nil {
					return fmt.Errorf("--runtime: %w", err)
				}
				recipes = append(recipes, recipe)
			}
			if err := cache.EnsureAll(cmd.Context(), recipes); err != nil {
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
