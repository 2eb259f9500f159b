package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/hook/pull"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// warmFlags are the flags of images warm.
type warmFlags struct {
	cluster  clusterFlags
	lists    []string
	nodes    string
	allNodes bool
	timeout  time.Duration
	output   string
}

func newImagesWarm(global *globalFlags) *cobra.Command {
	f := &warmFlags{cluster: clusterFlags{globalFlags: global}}
	cmd := &cobra.Command{
		Use:   "warm REFERENCE...",
		Short: "Bring images into the caches, or onto nodes, ahead of a rollout",
		Long: `warm makes the cache pods (cache.replicas, cache.nodeSelector) fetch images that the cluster's
registry contains, so that the nodes' pulls find them there: all manifests and blobs for the
platforms of the cluster's nodes. With --nodes or --all-nodes, nodes then pull the images, too,
up to 50 nodes at once, through the caches if there are any.

References are those of images missing: docker.io/library/redis:7 is library/redis:7 in the
registry. Nodes pull by the registry's address, 127.0.0.1:31999/library/redis:7. A workload that
names the image otherwise, through a mirror, still finds the layers on its node.

A node pulls for a pod in the release's namespace, which has a container for each image. Their
command exists in no image, so nothing runs; the pods are deleted at the end. A node that has an
image under its reference does not pull it again, even if the tag has moved since. Kubelets may
remove unused images when a node's disk fills up. Run one warm with --nodes at a time: it deletes
the pods that an earlier one left.

A node's pull has failed after the third attempt of its kubelet, and if the node is not ready.

It needs the right to list nodes, and in the release's namespace to get Secrets, to list pods and
to create pods/portforward; with --nodes or --all-nodes also to create and delete pods and to
list events.

Exit codes: 0 if each cache and node has all images, 1 if something failed, 3 if nothing was
tried: an invalid reference, an image that the registry lacks, or neither caches nor nodes.`,
		Example: `  zarf-registry images warm team/shop:2
  zarf-registry images warm team/shop:2 --nodes node-role.kubernetes.io/worker
  zarf-registry images warm -f images.txt --all-nodes --timeout 2h
  zarf-registry images warm team/shop:2 --all-nodes -o json | jq '.nodes[] | select(.result == "failed")'`,
		ValidArgsFunction: f.cluster.completeStored(references),
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&f.lists, "file", "f", nil,
		"read references from `LIST`, one per line, with comments after #; - is stdin; can be repeated")
	flags.StringVar(&f.nodes, "nodes", "", "make the nodes pull whose labels match `SELECTOR`")
	complete(cmd, "nodes")
	flags.BoolVar(&f.allNodes, "all-nodes", false, "make all Linux nodes pull")
	flags.DurationVar(&f.timeout, "timeout", 30*time.Minute, "time limit for the whole run")
	f.cluster.register(flags)
	outputFlag(cmd, &f.output)
	return cmd
}

// warmReport is the output of images warm.
type warmReport struct {
	// Caches are the results by cache pod and image, and Nodes by node and image.
	Caches []pull.Result `json:"caches"`
	Nodes  []pull.Result `json:"nodes"`
}

func (f *warmFlags) run(cmd *cobra.Command, args []string) error {
	log := f.cluster.progress(cmd.ErrOrStderr())
	wanted, err := f.check(cmd, args)
	if err != nil {
		return &exitcode.Refusal{Err: err}
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), f.timeout,
		fmt.Errorf("not finished within %s (--timeout)", f.timeout))
	defer cancel()
	c, content, err := f.cluster.connectToCatalog(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	s := &imageSearch{find: content.Finder(), address: c.address}
	found, references, err := s.stored(wanted)
	if err != nil {
		return err
	}
	pods, err := f.cachePods(ctx, c.client, log)
	if err != nil {
		return err
	}
	selected, err := f.selectNodes(ctx, c.client)
	if err != nil {
		return err
	}
	report := &warmReport{Caches: []pull.Result{}, Nodes: []pull.Result{}}
	if len(pods) > 0 {
		if s.platforms, err = platformsOfNodes(ctx, c, log); err != nil {
			return err
		}
		if report.Caches, err = f.fill(ctx, c, pods, s.contents(found, references, log), log); err != nil {
			return err
		}
	}
	if len(selected) > 0 {
		p := pull.Puller{
			Pods: c.client.CoreV1().Pods(f.cluster.namespace), Events: c.client.CoreV1().Events(f.cluster.namespace),
			Ready:     (&nodes.Observer{Cluster: nodes.Cluster{Nodes: c.client.CoreV1().Nodes()}}).NodesReady,
			Namespace: f.cluster.namespace, Release: f.cluster.release, Mode: c.mode,
			Images: references, Limit: f.timeout, Log: log,
		}
		if c.mode == state.ModeNodePort {
			p.PullSecret = f.cluster.name + names.SuffixPull
		}
		report.Nodes = p.Pull(ctx, selected)
	}
	return printWarm(cmd.OutOrStdout(), f.output, report)
}

// check checks the flags, and returns the parsed references in order.
func (f *warmFlags) check(cmd *cobra.Command, args []string) ([]images.Name, error) {
	refs, err := (&imageFlags{lists: f.lists}).references(cmd, args)
	errs := []error{err, f.cluster.validate(), validOutput(f.output)}
	var wanted []images.Name
	for _, ref := range refs {
		n, err := images.ParseName(ref)
		errs, wanted = append(errs, err), append(wanted, n)
	}
	if _, err := labels.Parse(f.nodes); err != nil {
		errs = append(errs, fmt.Errorf("invalid --nodes %q: want a label selector: %w", f.nodes, err))
	}
	if cmd.Flags().Changed("nodes") && (f.nodes == "" || f.allNodes) {
		errs = append(errs, errors.New("--nodes wants a label selector: use --all-nodes, without --nodes, for all nodes"))
	}
	if f.timeout <= 0 {
		errs = append(errs, fmt.Errorf("invalid --timeout %s: want a positive duration", f.timeout))
	}
	return wanted, errors.Join(errs...)
}

// stored returns the manifests of images and the references by which nodes pull them. It refuses those that the
// registry lacks.
func (s *imageSearch) stored(wanted []images.Name) (found []*catalog.Manifest, references []string, err error) {
	var errs []error
	for _, n := range wanted {
		m, ours := s.locate(n)
		switch {
		case m == nil:
			errs = append(errs, fmt.Errorf("the registry does not have %s: zarf-registry images list --untagged "+
				"lists what it has",
				ours))
		case m.Problem != "":
			errs = append(errs, fmt.Errorf("%s cannot be read: %s: push it again", ours, m.Problem))
		case !slices.Contains(references, ours.String()):
			found, references = append(found, m), append(references, ours.String())
		}
	}
	if len(errs) > 0 {
		return nil, nil, &exitcode.Refusal{Err: errors.Join(errs...)}
	}
	return found, references, nil
}

// cachePods returns the caches that are ready. It refuses if nothing can be warmed.
func (f *warmFlags) cachePods(ctx context.Context, client kubernetes.Interface, log *slog.Logger) (
	[]corev1.Pod, error,
) {
	list, err := client.CoreV1().Pods(f.cluster.namespace).List(ctx,
		metav1.ListOptions{LabelSelector: names.Selector(f.cluster.release, names.ComponentCache)})
	if err != nil {
		return nil, fmt.Errorf("listing the cache pods in namespace %s: %w", f.cluster.namespace, err)
	}
	var ready []corev1.Pod
	for _, pod := range list.Items {
		switch {
		case pod.DeletionTimestamp != nil:
		case release.PodReady(pod):
			ready = append(ready, pod)
		default:
			log.Warn("skipping a cache that is not ready", "cache", pod.Name)
		}
	}
	switch {
	case len(ready) > 0 || f.onNodes():
		return ready, nil
	case len(list.Items) > 0:
		return nil, exitcode.Refuse("no cache pod is ready: check: kubectl -n %s get pods; or make nodes pull with --nodes "+
			"or --all-nodes", f.cluster.namespace)
	}
	return nil, exitcode.Refuse("release %s has no cache pods in namespace %s: set cache.replicas or cache.nodeSelector, "+
		"or make nodes pull with --nodes or --all-nodes", f.cluster.release, f.cluster.namespace)
}

func (f *warmFlags) onNodes() bool { return f.nodes != "" || f.allNodes }

// selectNodes returns the Linux nodes that are to pull, by name. It refuses if none matches.
func (f *warmFlags) selectNodes(ctx context.Context, client kubernetes.Interface) ([]corev1.Node, error) {
	if !f.onNodes() {
		return nil, nil
	}
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: f.nodes})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	nodes := slices.DeleteFunc(list.Items, func(n corev1.Node) bool { return !plan.RunsPods(n) })
	if len(nodes) == 0 {
		return nil, exitcode.Refuse("no Linux node matches --nodes %s: kubectl get nodes --show-labels lists labels", f.nodes)
	}
	return nodes, nil
}

func (f *warmFlags) fill(ctx context.Context, c *registryAccess, pods []corev1.Pod, contents []pull.Image,
	log *slog.Logger) ([]pull.Result, error) {
	access := c.access
	access.ServerName = release.CacheName(f.cluster.name, f.cluster.namespace)
	var caches []pull.Cache
	for i := range pods {
		transport, err := c.registry.CacheTransport(access, &pods[i], pull.RequestsPerCache)
		if err != nil {
			return nil, err
		}
		defer transport.CloseIdleConnections()
		caches = append(caches, pull.Cache{
			Pod: pods[i].Name, Object: "pod " + f.cluster.namespace + "/" + pods[i].Name,
			Transport: transport, Host: cluster.Host(access),
		})
	}
	return pull.Fill(ctx, caches, contents, log), nil
}

// contents returns what caches fetch of images.
func (s *imageSearch) contents(found []*catalog.Manifest, references []string, log *slog.Logger) []pull.Image {
	var all []pull.Image
	for i, m := range found {
		if lacks := s.platforms.Lacking(s.available(m)); len(m.Platforms) > 0 && len(lacks) > 0 {
			log.Warn("the registry does not have the image for all nodes", "image", references[i], "missing", lacks)
		}
		paths := s.paths(m)
		if n, err := images.ParseName(references[i]); err == nil && n.Digest == "" { // for cache.staleFor
			paths = append(paths, "/v2/"+m.Repository+"/manifests/"+n.Tag)
		}
		all = append(all, pull.Image{Reference: references[i], Paths: paths})
	}
	return all
}

// paths returns those of a manifest and of what it needs, for the platforms.
func (s *imageSearch) paths(m *catalog.Manifest) []string {
	prefix := "/v2/" + m.Repository
	paths := []string{prefix + "/manifests/" + m.Digest.String()}
	for _, d := range m.Needs {
		child := s.find(m.Repository, "", d)
		switch {
		case !oci.IsIndex(m.MediaType):
			paths = append(paths, prefix+"/blobs/"+d.String())
		case child == nil: // a sparse index
		case len(s.platforms) == 0 || len(s.platforms.Lacking(child.Platforms)) < len(s.platforms):
			paths = append(paths, s.paths(child)...)
		}
	}
	return paths
}

// printWarm writes the report. The error has no message if something failed.
func printWarm(w io.Writer, output string, report *warmReport) error {
	var failed []string
	for _, r := range slices.Concat(report.Caches, report.Nodes) {
		if r.Outcome == pull.Failed {
			failed = append(failed, r.Name)
		}
	}
	return render(w, output, report, func(w io.Writer, report *warmReport) error {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, part := range []struct {
			title   string
			results []pull.Result
		}{{"CACHE", report.Caches}, {"NODE", report.Nodes}} {
			if len(part.results) > 0 {
				fmt.Fprintf(table, "%s\tIMAGE\tSECONDS\tRESULT\n", part.title)
			}
			for _, r := range part.results {
				fmt.Fprintf(table, "%s\t%s\t%.1f\t%s\n", r.Name, r.Image, r.Seconds, r)
			}
		}
		return table.Flush()
	}, failed)
}
