package cli

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/test/cluster/internal/build"
	"github.com/zarf-dev/zarf-registry/test/cluster/internal/cluster"
)

func newUp(a *app) *cobra.Command {
	options := cluster.Options{}
	var family string
	var pauseImages, archives []string
	var replace bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create a cluster and wait until it runs pods",
		Example: `  testcluster up
  testcluster up --name six --nodes 3 --ip-family IPv6 --kube-proxy nftables --portmap nftables
  testcluster up --pause-image n2=docker.io/rancher/mirrored-pause:3.6
  testcluster up --load n1=dist/images/init-hook.tar`,
		Args:    cobra.NoArgs,
		PreRunE: needRoot,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx := cmd.Context()
			options.Name, options.Family = a.name, cluster.Family(family)
			if options.PauseImage, options.PauseImages, err = cluster.ParsePauseImages(pauseImages); err != nil {
				return err
			}
			options.Archives = cluster.ParseArchives(archives)
			if err := options.Validate(); err != nil {
				return err
			}
			cache, err := build.OpenCache(a.log)
			if err != nil {
				return err
			}
			if err := cache.EnsureRuntime(ctx); err != nil {
				return err
			}
			recipes := slices.DeleteFunc(build.ClusterRecipes(), func(r build.Recipe) bool {
				return r.Name == build.CoreDNS && !options.DNS || r.Name == build.KubeRouter && !options.NetworkPolicy
			})
			if err := cache.EnsureAll(ctx, recipes); err != nil {
				return err
			}
			programs := make(map[string]string)
			for _, r := range recipes {
				for _, name := range r.ProgramNames() {
					programs[name] = cache.Program(r, name)
				}
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
	flags.StringVar(&options.KubeProxy, "kube-proxy", cluster.IPTables, "kube-proxy mode: iptables or nftables")
	flags.StringVar(&options.KubeProxyProgram, "kube-proxy-program", "",
		"absolute path of another version of kube-proxy (default: "+build.KubernetesVersion+")")
	flags.StringVar(&options.PortMap, "portmap", cluster.IPTables,
		"how the CNI plugin implements host ports: iptables or nftables")
	flags.StringArrayVar(&pauseImages, "pause-image", nil,
		"pause image, as REF for all nodes or NODE=REF for one; repeatable (default "+cluster.DefaultPauseImage+")")
	flags.StringArrayVar(&archives, "load", nil,
		"image archive to preload, as ARCHIVE for all nodes or NODE=ARCHIVE for one; repeatable")
	flags.BoolVar(&options.NetworkPolicy, "network-policy", true, "enforce NetworkPolicy objects; has no effect on IPv6")
	flags.BoolVar(&options.DNS, "dns", true, "resolve names of the cluster, with CoreDNS")
	flags.DurationVar(&options.NodeGrace, "node-grace", cluster.DefaultNodeGrace,
		"node grace period until a silent node becomes NotReady; the default in production is 50s")
	flags.StringVar(&options.AuditPolicy, "audit-policy", "",
		"audit policy file for the API server, which then writes log/audit.log (default: no audit log)")
	flags.Int64Var(&options.VolumesSize, "volumes-size", 0,
		"total size of all volumes in bytes, in memory (default: limited by the disk)")
	flags.BoolVar(&replace, "replace", false, "remove a cluster of the same name first")
	return cmd
}

func newDown(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Remove a cluster",
		Long: `Remove a cluster: its processes, containers, namespaces, mounts, cgroups and files.
It works after a crash and on half-made clusters, and where there is no cluster it
does nothing.`,
		Example: `  testcluster down
  testcluster down --all`,
		Args:    cobra.NoArgs,
		PreRunE: needRoot,
		RunE: func(cmd *cobra.Command, _ []string) error {
			names := []string{a.name}
			if all {
				var err error
				if names, err = cluster.List(); err != nil {
					return err
				}
			}
			for _, name := range names {
				if err := cluster.Down(cmd.Context(), name, a.log); err != nil {
					return err
				}
				a.log("cluster %s is gone", name)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "remove every test cluster of this machine")
	return cmd
}
