package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
)

// Up creates a cluster and waits until it runs pods. programs maps the names of the components'
// programs to paths; those of a container runtime are named like containerd-2.4/ctr. If it fails, what
// exists is kept for inspection until Down.
func Up(ctx context.Context, options Options, programs map[string]string, log func(format string, args ...any)) error {
	if err := options.Validate(); err != nil {
		return err
	}
	c := newCluster(options, log)
	// Report an unsuitable machine before anything is created.
	groups, err := findCgroups()
	if err != nil {
		return err
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.checkUnused(groups); err != nil {
		return err
	}
	if err := raiseInotify(inotifyFile); err != nil {
		return err
	}
	for i := 1; i <= options.Nodes; i++ {
		c.Nodes = append(c.Nodes, options.newNode(i))
	}
	c.NextIndex = options.Nodes + 1
	if c.Port, err = freePort(); err != nil {
		return err
	}
	for _, dir := range []string{binDir, configDir, logDir, processDir, nodeDir, volumeDir} {
		if err := os.MkdirAll(c.path(dir), 0o755); err != nil {
			return fmt.Errorf("making the cluster's directory: %w", err)
		}
	}
	if options.AuditPolicy != "" {
		if err := copyFile(options.AuditPolicy, c.path(configDir, auditPolicyFile)); err != nil {
			return err
		}
	}
	if options.VolumesSize > 0 {
		if err := c.limitVolumes(options.VolumesSize); err != nil {
			return err
		}
	}
	if err := c.save(); err != nil {
		return err
	}
	ctx, done := c.watch(ctx)
	defer done()
	return c.build(ctx, groups, programs)
}

// A step creates a part of a cluster.
type step struct {
	name string
	do   func() error
}

// build creates the cluster's parts in the order of their dependencies.
func (c *Cluster) build(ctx context.Context, groups cgroups, programs map[string]string) error {
	steps := c.steps(ctx, groups, programs)
	if c.Options.Kubeadm {
		steps = c.kubeadmSteps(ctx, groups, programs)
	}
	for _, step := range steps {
		start := time.Now()
		if err := step.do(); err != nil {
			// An ended process is the root cause of other failures.
			if guilty, ok := errors.AsType[*ComponentError](context.Cause(ctx)); ok {
				return guilty
			}
			return err
		}
		c.log("%s: %s", step.name, time.Since(start).Round(100*time.Millisecond))
	}
	return nil
}

// prepare installs programs and creates what nodes are connected to.
func (c *Cluster) prepare(ctx context.Context, groups cgroups, programs map[string]string) error {
	if err := errors.Join(c.installSelf(), c.installPrograms(programs), c.installFlexVolume()); err != nil {
		return err
	}
	if err := groups.create(cgroupOf(c.Options.Name, controlPlaneName, systemCgroup)); err != nil {
		return err
	}
	c.loadKernelModules(ctx)
	return c.createFabric(ctx)
}

// steps make a cluster whose control plane is no node.
func (c *Cluster) steps(ctx context.Context, groups cgroups, programs map[string]string) []step {
	var ca *clusterCA
	var client kubernetes.Interface
	return []step{
		{"programs, certificates and the fabric between nodes", func() (err error) {
			if err := c.prepare(ctx, groups, programs); err != nil {
				return err
			}
			if ca, err = c.writePKI(time.Now()); err != nil {
				return err
			}
			if err := c.writeKubeconfigs(ca, time.Now()); err != nil {
				return err
			}
			client, err = c.client()
			return err
		}},
		{"etcd, API server, and the nodes' container runtimes", func() error {
			group, ctx := errgroup.WithContext(ctx)
			group.Go(func() error { return c.startControlPlane(ctx) })
			for _, n := range c.Nodes {
				group.Go(func() error { return c.createNode(ctx, ca, n) })
			}
			return group.Wait()
		}},
		{"controllers, storage, DNS, and the nodes' kubelets", func() error {
			if err := c.startControllers(); err != nil {
				return err
			}
			group, ctx := errgroup.WithContext(ctx)
			for _, n := range c.Nodes {
				group.Go(func() error { return c.joinNode(ctx, client, n) })
			}
			group.Go(func() error {
				return errors.Join(c.publishKubeProxyConfig(ctx, client), c.startStorage(ctx, client))
			})
			group.Go(func() error { return c.waitForControllers(ctx, client) })
			if c.Options.DNS {
				group.Go(func() error { return c.startDNS(ctx, client) })
			}
			return group.Wait()
		}},
	}
}

// checkUnused fails if anything of a cluster of the same name exists.
func (c *Cluster) checkUnused(groups cgroups) error {
	const advice = "testcluster down --name %[1]s removes it, up --replace also creates it again"
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return fmt.Errorf("looking for a cluster of the same name: %w", err)
	}
	namespaces, err := netnsOf(c.Options.Name)
	if err != nil {
		return err
	}
	if len(entries) > 0 || len(namespaces) > 0 || len(groups.processes(cgroupOf(c.Options.Name))) > 0 {
		return fmt.Errorf("cluster %[1]q exists, possibly incomplete: "+advice, c.Options.Name)
	}
	return nil
}

// reload reads the state again after the lock was taken.
func (c *Cluster) reload() error {
	fresh, err := Open(c.Options.Name, c.log)
	if err != nil {
		return err
	}
	c.Options, c.Nodes, c.NextIndex, c.Port = fresh.Options, fresh.Nodes, fresh.NextIndex, fresh.Port
	return nil
}

func sleep(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(100 * time.Millisecond):
		return nil
	}
}
