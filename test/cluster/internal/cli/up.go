package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/build"
	"github.com/zarf-dev/zarf-registry/test/cluster/internal/cluster"
)

func newUp(a *app) *cobra.Command {
	options := cluster.Options{}
	var family string
	var pauseImages, archives, runtimes, taints []string
	var replace bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create a cluster and wait until it runs pods",
		Example: `  testcluster up
  testcluster up --name six --nodes 3 --ip-family IPv6 --kube-proxy nftables
  testcluster up --pause-image n2=docker.io/rancher/mirrored-pause:3.6
  testcluster up --kubernetes 1.30 --runtime containerd-1.7 --runtime n2=containerd-2.1
  testcluster up --taint n1=node-role.kubernetes.io/control-plane=:NoSchedule
  testcluster up --load n1=dist/images/init-hook.tar
  testcluster up --kubeadm --network-policy=false`,
		Args:    cobra.NoArgs,
		PreRunE: needRoot,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx := cmd.Context()
			options.Name, options.Family = a.name, cluster.Family(family)
			if options.PauseImage, options.PauseImages, err = cluster.ParseByNode("--pause-image", pauseImages,
				cluster.DefaultPauseImage); err != nil {
				return err
			}
			if options.Runtime, options.Runtimes, err = cluster.ParseByNode("--runtime", runtimes,
				build.DefaultRuntime); err != nil {
				return err
			}
			if options.Taints, err = cluster.ParseTaints(taints); err != nil {
				return err
			}
			options.Archives = cluster.ParseArchives(archives)
			if err := options.Validate(); err != nil {
				return err
			}
			programs, err := a.ensure(ctx, options)
			if err != nil {
				return err
			}
			if replace {
				if err := cluster.Down(ctx, a.name, a.log); err != nil {
					return err
				}
			}
			if err := cluster.Up(ctx, options, programs, a.log); err != nil {
				return err
			}
			c, err := a.open()
			if err != nil {
				return err
			}
			a.log("cluster %s is up; its logs are in %s", a.name, c.LogDir())
			fmt.Fprintf(cmd.OutOrStdout(), "export KUBECONFIG=%s\n", c.Kubeconfig())
			return nil
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&options.Nodes, "nodes", 2, "number of nodes; they are called n1, n2, ...")
	flags.StringVar(&family, "ip-family", string(cluster.IPv4), "IPv4, IPv6 or DualStack")
	flags.StringVar(&options.Kubernetes, "kubernetes", build.DefaultKubernetes,
		"version of Kubernetes: "+strings.Join(build.KubernetesVersions(), ", "))
	flags.StringArrayVar(&runtimes, "runtime", nil, "container runtime, as NAME for all nodes or NODE=NAME for one; "+
		"repeatable: "+strings.Join(build.RuntimeNames(), ", ")+" (default "+build.DefaultRuntime+")")
	flags.StringArrayVar(&taints, "taint", nil, "taint of a node, as NODE=KEY=VALUE:EFFECT; repeatable")
	flags.StringVar(&options.KubeProxy, "kube-proxy", cluster.IPTables,
		"kube-proxy mode: iptables, nftables or ipvs")
	flags.StringVar(&options.KubeProxyProgram, "kube-proxy-program", "",
		"absolute path of another version of kube-proxy (default: that of --kubernetes)")
	flags.BoolVar(&options.Kubeadm, "kubeadm", false,
		"make the cluster with kubeadm: n1 is the control plane; needs --network-policy=false")
	flags.StringVar(&options.CNI, "cni", cluster.Bridge, "network of pods: bridge or flannel (VXLAN)")
	flags.StringArrayVar(&pauseImages, "pause-image", nil,
		"pause image, as REF for all nodes or NODE=REF for one; repeatable (default "+cluster.DefaultPauseImage+")")
	flags.StringArrayVar(&archives, "load", nil,
		"image archive to preload, as ARCHIVE for all nodes or NODE=ARCHIVE for one; repeatable")
	flags.BoolVar(&options.NetworkPolicy, "network-policy", true, "enforce NetworkPolicy objects; has no effect on IPv6")
	flags.BoolVar(&options.DNS, "dns", true, "resolve names of the cluster, with CoreDNS")
	flags.BoolVar(&options.CRITools, "crictl", true, "install crictl on nodes")
	flags.DurationVar(&options.NodeGrace, "node-grace", cluster.DefaultNodeGrace,
		"node grace period until a silent node becomes NotReady; the default in production is 50s")
	flags.StringVar(&options.AuditPolicy, "audit-policy", "",
		"audit policy file for the API server, which then writes log/audit.log (default: no audit log)")
	flags.StringArrayVar(&options.APIServerFlags, "api-server-flag", nil,
		"further flag of the API server, as --NAME=VALUE; repeatable")
	flags.Int64Var(&options.VolumesSize, "volumes-size", 0,
		"total size of all volumes in bytes, in memory (default: limited by the disk)")
	flags.BoolVar(&replace, "replace", false, "remove a cluster of the same name first")
	return cmd
}

// ensure builds what a cluster with these options needs, and returns its programs for cluster.Up.
func (a *app) ensure(ctx context.Context, options cluster.Options) (map[string]string, error) {
	runtimes := slices.AppendSeq([]string{options.Runtime}, maps.Values(options.Runtimes))
	common, ofNodes, err := components(options, runtimes)
	if err != nil {
		return nil, err
	}
	cache, err := build.OpenCache(a.log)
	if err != nil {
		return nil, err
	}
	if err := cache.EnsurePackages(ctx); err != nil {
		return nil, err
	}
	if err := cache.EnsureAll(ctx, append(slices.Clone(common), ofNodes...)); err != nil {
		return nil, err
	}
	programs := make(map[string]string)
	for _, r := range common {
		addPrograms(programs, "", cache, r)
	}
	for _, r := range ofNodes {
		addPrograms(programs, r.Name+"/", cache, r)
	}
	if options.Kubeadm {
		i := slices.IndexFunc(common, func(r build.Recipe) bool { return r.Name == build.KubeRouter })
		programs[cluster.KubeRouterManifest], err = cache.ModuleFile(ctx, common[i], "daemonset/"+cluster.KubeRouterManifest)
	}
	return programs, err
}

// addPrograms adds the paths of a recipe's programs.
func addPrograms(programs map[string]string, prefix string, cache *build.Cache, r build.Recipe) {
	for _, name := range r.ProgramNames() {
		programs[prefix+name] = cache.Program(r, name)
	}
}

func newDown(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove a cluster",
		Long: `Remove a cluster: its processes, containers, namespaces, mounts, cgroups and files.
It works after a crash and on half-made clusters, and where there is no cluster it
does nothing.`,
		Example: "  testcluster down",
		Args:    cobra.NoArgs,
		PreRunE: needRoot,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cluster.Down(cmd.Context(), a.name, a.log); err != nil {
				return err
			}
			a.log("cluster %s is gone", a.name)
			return nil
		},
	}
}
