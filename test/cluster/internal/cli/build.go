package cli

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/build"
	"github.com/zarf-dev/zarf-registry/test/cluster/internal/cluster"
)

func newBuild(a *app) *cobra.Command {
	options := cluster.Options{}
	var runtimes []string
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build all components of a cluster into the cache",
		Long: `Build all components of a cluster: Kubernetes, etcd, containerd, runc, the CNI
plugins, CoreDNS, kube-router and crictl. The first build takes about ten minutes on
two cores. "up" builds missing components too.

The cache is ` + build.DefaultCacheDir + `, or the directory that ` + build.CacheVariable + ` names.`,
		Example: `  testcluster build
  testcluster build --kubernetes 1.30 --runtime containerd-1.7`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, err := build.OpenCache(a.log)
			if err != nil {
				return err
			}
			common, ofNodes, err := components(options, runtimes)
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
	flags.StringVar(&options.Kubernetes, "kubernetes", build.DefaultKubernetes, "version of Kubernetes")
	flags.StringSliceVar(&runtimes, "runtime", []string{build.DefaultRuntime}, "container runtimes")
	flags.BoolVar(&options.NetworkPolicy, "network-policy", true, "build kube-router, which enforces NetworkPolicy objects")
	flags.BoolVar(&options.Kubeadm, "kubeadm", false, "build kubeadm")
	flags.BoolVar(&options.DNS, "dns", true, "build CoreDNS")
	flags.BoolVar(&options.CRITools, "crictl", true, "build crictl")
	return cmd
}

// components returns the recipes of what a cluster with these options runs, and those of the container runtimes of its
// nodes.
func components(options cluster.Options, runtimes []string) (common, ofNodes []build.Recipe, err error) {
	version, err := build.Kubernetes(options.Kubernetes)
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
	common = append([]build.Recipe{version}, build.ClusterRecipes()...) // the longest first
	if options.CNI == cluster.Flannel {
		common = append(common, build.FlannelRecipes()...)
	}
	if options.Kubeadm {
		kubeadm, err := build.Kubeadm(options.Kubernetes)
		if err != nil {
			return nil, nil, err
		}
		common = append(common, kubeadm)
	}
	common = slices.DeleteFunc(common, func(r build.Recipe) bool {
		return r.Name == build.CoreDNS && !options.DNS && !options.Kubeadm ||
			r.Name == build.KubeRouter && !options.NetworkPolicy && !options.Kubeadm ||
			r.Name == build.CRITools && !options.CRITools
	})
	return common, ofNodes, nil
}
