package stored

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/workloads"
	"github.com/zarf-dev/zarf-registry/internal/oci"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

type missingFlags struct {
	cluster           cmdflags.Cluster
	excluded          []string
	prefix, platforms string
	all, noTrunc      bool
	output            string
}

func NewMissing(global *cmdflags.Global) *cobra.Command {
	f := &missingFlags{cluster: cmdflags.Cluster{Global: global}}
	cmd := &cobra.Command{
		Use:   "missing [MANIFEST...]",
		Short: "List images that manifests or the cluster's workloads need and the registry lacks",
		Long: `missing lists which images the cluster's registry lacks, and who needs them: of manifests (YAML
or JSON files, directories of these, or - for stdin, such as the output of helm template), or,
without arguments, of the workloads in the cluster.

An image is needed by a pod, or by the template of a Deployment, ReplicaSet, StatefulSet,
DaemonSet, ReplicationController, Job, CronJob or PodTemplate: as the image of a container or
a volume, or in an environment variable RELATED_IMAGE_*. Pods and Jobs that have ended, and
ReplicaSets of previous revisions, need none. In manifests, custom resources count with their
fields image and variables RELATED_IMAGE_*.

Complete references (with registry, and tag or digest) in arguments and other variables of
containers may be images that an operator creates pods with. If they are missing, they are
listed last, but do not count.

The registry has docker.io/library/redis:7 if it has library/redis:7, which mirrors and
rewritten references lead to, or the tag that Zarf makes of it; and if that has the platforms
of all nodes. What belongs to the registry itself does not count, nor do the workloads of
kube-system, whose images come with the nodes (--exclude-namespace).

--output name prints the missing references for zarf-registry images pull -f. Those that name
only the registry itself are comments: where their images come from is not known.

Exit codes: 0 if nothing is missing, 1 on failure, 3 if the command line or a manifest is
invalid, 4 if an image is missing.`,
		Example: `  helm template shop ./shop | zarf-registry images missing -
  zarf-registry images missing -o name > images.txt
  zarf-registry images pull -f images.txt --out images.tar   # outside
  kubectl get prometheuses,alertmanagers -A -o yaml | zarf-registry images missing -`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.excluded, "exclude-namespace", []string{"kube-system"},
		"leave out the cluster's workloads in these `NAMESPACES`; empty excludes none")
	flags.StringVar(&f.prefix, "prefix", "", "`PATH` in the registry before the repositories of images, as of images push")
	flags.StringVar(&f.platforms, "platform", "auto",
		"`PLATFORMS` that an image must have: a list such as linux/amd64,linux/arm64, auto (the platforms of the cluster's "+
			"nodes), or all, which accepts any")
	cmdflags.Complete(cmd, "platform", "auto", "all", "linux/amd64", "linux/arm64", "linux/amd64,linux/arm64")
	flags.BoolVar(&f.all, "all", false, "also list images that the registry has")
	f.cluster.Register(flags)
	cmdflags.AddNoTrunc(flags, &f.noTrunc)
	cmdflags.AddOutput(cmd, &f.output, render.FormatName)
	return cmd
}

// missingReport is the output of images missing.
type missingReport struct {
	// Platforms are those that images must have. It is empty if they were not checked.
	Platforms []string `json:"platforms"`
	// References counts those that were checked, and Missing those that the registry lacks, for any platform.
	References int `json:"references"`
	Missing    int `json:"missing"`
	// Images are the missing ones, with --all all.
	Images []neededImage `json:"images"`
}

type neededImage struct {
	Reference string `json:"reference"`
	// Stored reports whether the registry has the image, and MissingPlatforms for which platforms it does not.
	Stored           bool     `json:"stored"`
	MissingPlatforms []string `json:"missingPlatforms"`
	// Possible means that the reference is only in arguments or environment variables. It does not count.
	Possible bool `json:"possible"`
	// Origin is where to pull the image from. It is empty if the reference names only the cluster's registry.
	Origin   string   `json:"origin"`
	NeededBy []string `json:"neededBy"`
	Problem  string   `json:"problem,omitempty"`
}

func (i neededImage) missing() bool { return !i.Stored || len(i.MissingPlatforms) > 0 }

func (i neededImage) stored() string {
	switch {
	case i.Problem != "":
		return "cannot be read: " + i.Problem
	case !i.Stored:
		return "no"
	case len(i.MissingPlatforms) > 0:
		return "not for " + strings.Join(i.MissingPlatforms, ",")
	}
	return "yes"
}

func (f *missingFlags) run(cmd *cobra.Command, args []string) error {
	log := f.cluster.Progress(cmd.ErrOrStderr())
	s := &imageSearch{}
	var err error
	if s.prefix, s.platforms, err = f.check(cmd, args); err != nil {
		return exitcode.Usage(err)
	}
	used, err := readManifests(cmd.InOrStdin(), args)
	if err != nil {
		return exitcode.Usage(err)
	}
	ctx := cmd.Context()
	c, content, err := f.cluster.ConnectToCatalog(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	s.find, s.address = content.Finder(), c.Address
	if f.platforms == "auto" {
		if s.platforms, err = platformsOfNodes(ctx, c, log); err != nil {
			return err
		}
	}
	var counts func(namespace string, labels map[string]string) bool // all of the manifests
	if used == nil {
		if used, err = workloads.List(ctx, c.Client); err != nil {
			return err
		}
		counts = f.counts
	}
	report := s.report(used.Needs(counts), f.all)
	return f.print(cmd.OutOrStdout(), report)
}

// check checks the flags. The platforms of auto are nil.
func (f *missingFlags) check(cmd *cobra.Command, args []string) (prefix name.Prefix, p graph.Platforms, err error) {
	errs := []error{f.cluster.Validate()}
	prefix, err = name.ParsePrefix(f.prefix)
	errs = append(errs, err)
	if f.platforms != "auto" {
		if p, err = graph.ParsePlatforms(f.platforms); err != nil {
			errs = append(errs, fmt.Errorf("--platform: %w", err))
		}
	}
	if len(args) > 0 && cmd.Flags().Changed("exclude-namespace") {
		errs = append(errs, errors.New("--exclude-namespace applies to the cluster's workloads, not to manifests"))
	}
	return prefix, p, errors.Join(errs...)
}

// counts leaves out the cluster's workloads in excluded namespaces, and the release's own, which run images of the
// nodes.
func (f *missingFlags) counts(namespace string, labels map[string]string) bool {
	own := namespace == f.cluster.Namespace && labels[names.LabelInstance] == f.cluster.Release
	return !own && !slices.Contains(f.excluded, namespace)
}

// readManifests reads files, directories and, for -, stdin. It returns nil without any.
func readManifests(stdin io.Reader, paths []string) (*workloads.Set, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	set, total := &workloads.Set{}, 0
	read := func(r io.Reader, name string) error {
		n, err := set.AddManifests(r, name)
		total += n
		return err
	}
	for _, path := range paths {
		if path == "-" {
			if err := read(stdin, "stdin"); err != nil {
				return nil, err
			}
			continue
		}
		files, err := manifestFiles(path)
		if err != nil {
			return nil, err
		}
		for _, name := range files {
			file, err := os.Open(name)
			if err != nil {
				return nil, err
			}
			err = read(file, name)
			file.Close()
			if err != nil {
				return nil, err
			}
		}
	}
	if total == 0 {
		return nil, fmt.Errorf("no Kubernetes manifest in %s", strings.Join(paths, ", "))
	}
	return set, nil
}

// manifestFiles returns a file or, of a directory, the YAML and JSON files at any depth. Hidden ones and kustomizations
// are left out.
func manifestFiles(path string) ([]string, error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return []string{path}, err
	}
	var files []string
	err := fs.WalkDir(os.DirFS(path), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		base := strings.ToLower(entry.Name())
		switch extension := filepath.Ext(base); {
		case strings.HasPrefix(base, ".") && entry.IsDir():
			return fs.SkipDir
		case strings.HasPrefix(base, "."), entry.IsDir(), strings.TrimSuffix(base, extension) == "kustomization":
		case slices.Contains([]string{".yaml", ".yml", ".json"}, extension):
			files = append(files, filepath.Join(path, name))
		}
		return nil
	})
	return files, err
}

// platformsOfNodes returns nil, which checks no platforms, if the nodes cannot be listed.
func platformsOfNodes(ctx context.Context, c *cmdflags.Access, log *slog.Logger) (graph.Platforms, error) {
	text, err := NodePlatforms(ctx, c.Client)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		log.Warn("cannot read the platforms of the cluster's nodes, checking none (--platform)", "error", err)
		return nil, nil
	}
	return graph.ParsePlatforms(text)
}

// imageSearch finds needed images in the registry.
type imageSearch struct {
	find      func(repository, tag string, d digest.Digest) *catalog.Manifest
	address   string // of the registry, in references
	prefix    name.Prefix
	platforms graph.Platforms
}

// report finds the needed images. Those that name the cluster's registry and another one are listed once, unless the
// registry has only one of them.
func (s *imageSearch) report(needs []*workloads.Need, all bool) *missingReport {
	report := &missingReport{Platforms: []string{}, Images: []neededImage{}}
	for _, p := range s.platforms {
		report.Platforms = append(report.Platforms, graph.Platforms{p}.String())
	}
	found := map[*workloads.Need]neededImage{}
	var listed, local []*workloads.Need
	for _, n := range needs {
		found[n] = s.search(n.Name)
		switch {
		case !s.isOurs(n.Registry):
			listed = append(listed, n)
		case !catalog.Own(n.Path):
			local = append(local, n)
		}
	}
	for _, n := range local {
		i := slices.IndexFunc(listed, func(o *workloads.Need) bool { return s.isOrigin(o.Name, n.Name) })
		if i >= 0 && found[listed[i]].stored() == found[n].stored() {
			listed[i].Merge(n)
			continue
		}
		if i >= 0 {
			image := found[n]
			image.Origin = listed[i].String()
			found[n] = image
		}
		listed = append(listed, n)
	}
	last := func(n *workloads.Need) int {
		if n.Possible {
			return 1
		}
		return 0
	}
	slices.SortFunc(listed, func(a, b *workloads.Need) int {
		return cmp.Or(last(a)-last(b), cmp.Compare(a.String(), b.String()))
	})
	for _, n := range listed {
		image := found[n]
		image.Possible, image.NeededBy = n.Possible, n.By()
		if !image.Possible {
			report.References++
			if image.missing() {
				report.Missing++
			}
		}
		if all || image.missing() {
			report.Images = append(report.Images, image)
		}
	}
	return report
}

// search finds an image by the name under which nodes pull it from the registry.
func (s *imageSearch) search(n name.Name) neededImage {
	image := neededImage{Reference: n.String(), MissingPlatforms: []string{}}
	if !s.isOurs(n.Registry) {
		image.Origin = image.Reference
	}
	m := s.locate(n)
	switch {
	case m == nil:
	case m.Problem != "":
		image.Problem = m.Problem
	default:
		image.Stored = true
		if len(m.Platforms) > 0 { // otherwise it is an artifact
			image.MissingPlatforms = append(image.MissingPlatforms, s.platforms.Lacking(s.available(m))...)
		}
	}
	return image
}

// locate returns the manifest that a name refers to in the registry, or nil.
func (s *imageSearch) locate(n name.Name) *catalog.Manifest {
	path := n.Path
	if !s.isOurs(n.Registry) {
		path = s.prefix.Join(n.Path)
	}
	if m := s.find(path, n.Tag, n.Digest); m != nil {
		return m
	}
	return s.find(path, n.ZarfTag, n.Digest)
}

// available returns the platforms of an image that are in the registry, which may lack manifests of an index.
func (s *imageSearch) available(m *catalog.Manifest) []string {
	if !oci.IsIndex(m.MediaType) {
		return m.Platforms
	}
	var found []string
	complete := true
	for _, d := range m.Needs {
		if child := s.find(m.Repository, "", d); child != nil {
			found = append(found, s.available(child)...)
		} else {
			complete = false
		}
	}
	if complete {
		return m.Platforms
	}
	return found
}

// isOurs reports whether a registry is the cluster's: its address, or its port at another name of the loopback
// interface.
func (s *imageSearch) isOurs(registry string) bool {
	_, ourPort, _ := net.SplitHostPort(s.address)
	host, port, err := net.SplitHostPort(registry)
	if err != nil || port != ourPort {
		return false
	}
	ip := net.ParseIP(host)
	return registry == s.address || host == "localhost" || ip != nil && ip.IsLoopback()
}

// isOrigin reports whether a reference to another registry leads to one of the cluster's: through a mirror, or
// rewritten.
func (s *imageSearch) isOrigin(n, ours name.Name) bool {
	return !s.isOurs(n.Registry) && s.prefix.Join(n.Path) == ours.Path && n.Digest == ours.Digest &&
		(n.Tag == ours.Tag || n.ZarfTag == ours.Tag)
}

// print writes the report. The error has no message if references are missing.
func (f *missingFlags) print(w io.Writer, report *missingReport) error {
	var next []string
	for _, image := range report.Images {
		if image.missing() && !image.Possible {
			next = append(next, image.Reference)
		}
	}
	write := func(w io.Writer, report *missingReport) error { return printMissing(w, report, f.noTrunc) }
	if f.output == render.FormatName {
		write = printMissingNames
	}
	return render.Report(w, f.output, render.MissingImages, report, write, next)
}

func printMissing(w io.Writer, report *missingReport, noTrunc bool) error {
	possible := 0
	if len(report.Images) > 0 {
		t := render.NewTable(w, "REFERENCE", "IN THE REGISTRY", "NEEDED BY")
		t.Short = !noTrunc
		for _, image := range report.Images {
			t.Row(image.Reference, image.stored(), firstOf(image.NeededBy))
			if image.Possible && image.missing() {
				possible++
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	summary := fmt.Sprintf("%d of %d images missing", report.Missing, report.References)
	if possible > 0 {
		summary += fmt.Sprintf("; possibly %d more, named only in arguments or environment variables", possible)
	}
	_, err := fmt.Fprintln(w, summary)
	return err
}

// printMissingNames writes the missing references as images pull --file reads them. What it must not pull is a comment.
func printMissingNames(w io.Writer, report *missingReport) error {
	if report.Missing > 0 && len(report.Platforms) > 0 {
		fmt.Fprintln(w, "# pull with --platform", strings.Join(report.Platforms, ","))
	}
	written := map[string]bool{}
	for _, image := range report.Images {
		reference, comment := image.Origin, firstOf(image.NeededBy)
		switch {
		case !image.missing():
			continue
		case image.Possible:
			reference = "# possibly " + cmp.Or(image.Origin, image.Reference)
		case image.Origin == "":
			reference = "# unknown origin: " + image.Reference
		}
		if written[reference] {
			continue
		}
		written[reference] = true
		if _, err := fmt.Fprintf(w, "%s  # %s\n", reference, comment); err != nil {
			return err
		}
	}
	return nil
}

// nodesTimeout bounds the query for the nodes' platforms, so that the kubeconfig of an unreachable cluster does not
// delay a pull.
const nodesTimeout = 3 * time.Second

// NodePlatforms returns the platforms of the cluster's Linux nodes, sorted, in the form of
// --platform. Windows nodes are ignored: their images are rarely in an index with others.
func NodePlatforms(ctx context.Context, client kubernetes.Interface) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, nodesTimeout, fmt.Errorf("no answer within %s", nodesTimeout))
	defer cancel()
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return "", err
	}
	var found []string
	for _, node := range nodes.Items {
		info := node.Status.NodeInfo
		platform := info.OperatingSystem + "/" + info.Architecture
		if info.OperatingSystem == "linux" && info.Architecture != "" && !slices.Contains(found, platform) {
			found = append(found, platform)
		}
	}
	slices.Sort(found)
	if len(found) == 0 {
		return "", errors.New("the cluster has no Linux node")
	}
	return strings.Join(found, ","), nil
}
