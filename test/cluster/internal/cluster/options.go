package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// DefaultPauseImage is the default pause image, that of kubeadm for the cluster's Kubernetes
// version.
const DefaultPauseImage = "registry.k8s.io/pause:3.10.1"

// Modes of kube-proxy and of the CNI plugin that serves host ports.
const (
	IPTables = "iptables"
	NFTables = "nftables"
)

// maxNodes is the capacity of the address plan.
const maxNodes = 200

// DefaultNodeGrace lets tests notice a node's death within seconds: a kubelet reports every 4 s,
// and one that missed four reports is considered dead.
const DefaultNodeGrace = 16 * time.Second

// Options describe a cluster. AddNode uses them too.
type Options struct {
	Name string `json:"name"`
	// Nodes is the number of nodes that Up creates, named n1, n2 and so on.
	Nodes     int    `json:"-"`
	Family    Family `json:"ipFamily"`
	KubeProxy string `json:"kubeProxy"`
	// KubeProxyProgram is the path of kube-proxy's program. Empty: the one of the cluster's version.
	KubeProxyProgram string `json:"kubeProxyProgram,omitempty"`
	PortMap          string `json:"portmap"`
	// PauseImage is for nodes that PauseImages does not name.
	PauseImage  string            `json:"pauseImage"`
	PauseImages map[string]string `json:"-"`
	// Archives are image archives that nodes load before their kubelets start, so that the nodes
	// report the images from the beginning.
	Archives []Archive `json:"-"`
	// NetworkPolicy runs a controller on each node that enforces NetworkPolicy objects.
	NetworkPolicy bool `json:"networkPolicy"`
	// DNS runs CoreDNS.
	DNS bool `json:"-"`
	// NodeGrace is how long a node may be silent before it and its pods become NotReady.
	NodeGrace time.Duration `json:"nodeGrace"`
	// AuditPolicy is an audit policy file for the API server, which then writes audit.log next to the
	// logs. Empty: no audit log.
	AuditPolicy string `json:"-"`
	// VolumesSize is the total size of all volumes in bytes, in memory; 0 means limited by the disk.
	VolumesSize int64 `json:"volumesSize"`
}

var (
	namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)
	// A tag is required, because the kubelet and the chart find the image by it.
	imagePattern = regexp.MustCompile(`^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)+:[A-Za-z0-9_][A-Za-z0-9._-]*$`)
)

// ValidateName checks the name of a cluster or node, which becomes part of paths, cgroups and
// network namespaces.
func ValidateName(what, name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("invalid %s name %q: want at most 40 of a-z, 0-9 and -, without - at either end", what, name)
	}
	if what == "node" && name == controlPlaneName {
		return fmt.Errorf("node name %q is reserved for the control plane", name)
	}
	return nil
}

// Validate reports mistakes that can be found before anything is created.
func (o Options) Validate() error {
	var errs []error
	if err := ValidateName("cluster", o.Name); err != nil {
		errs = append(errs, err)
	}
	if o.Nodes < 1 || o.Nodes > maxNodes {
		errs = append(errs, fmt.Errorf("--nodes %d: choose 1 to %d", o.Nodes, maxNodes))
	}
	switch o.Family {
	case IPv4, IPv6, DualStack:
	default:
		errs = append(errs, fmt.Errorf("invalid --ip-family %q: want %s, %s or %s", o.Family, IPv4, IPv6, DualStack))
	}
	for _, mode := range []struct{ flag, value string }{{"kube-proxy", o.KubeProxy}, {"portmap", o.PortMap}} {
		if mode.value != IPTables && mode.value != NFTables {
			errs = append(errs, fmt.Errorf("invalid --%s %q: want %s or %s", mode.flag, mode.value, IPTables, NFTables))
		}
	}
	if o.KubeProxyProgram != "" {
		if _, err := exec.LookPath(o.KubeProxyProgram); err != nil {
			errs = append(errs, fmt.Errorf("--kube-proxy-program: %w", err))
		} else if !filepath.IsAbs(o.KubeProxyProgram) {
			errs = append(errs, fmt.Errorf("--kube-proxy-program %s: want an absolute path", o.KubeProxyProgram))
		}
	}
	if o.NodeGrace < DefaultNodeGrace {
		errs = append(errs, fmt.Errorf("invalid --node-grace %s: want at least %s, four kubelet reports", o.NodeGrace,
			DefaultNodeGrace))
	}
	if o.VolumesSize < 0 {
		errs = append(errs, fmt.Errorf("invalid --volumes-size %d: want a number of bytes, or 0", o.VolumesSize))
	}
	if err := validateImage(o.PauseImage); err != nil {
		errs = append(errs, err)
	}
	for node, image := range o.PauseImages {
		if !o.hasNode(node) {
			errs = append(errs, fmt.Errorf("--pause-image %s=%s: no such node: the nodes are n1 to n%d", node,
				image, o.Nodes))
		}
		if err := validateImage(image); err != nil {
			errs = append(errs, err)
		}
	}
	for _, archive := range o.Archives {
		if archive.Node != "" && !o.hasNode(archive.Node) {
			errs = append(errs, fmt.Errorf("--load %s=%s: no such node: the nodes are n1 to n%d", archive.Node,
				archive.Path, o.Nodes))
		}
		errs = append(errs, ValidateArchive(archive.Path))
	}
	if o.AuditPolicy != "" {
		if _, err := os.Stat(o.AuditPolicy); err != nil {
			errs = append(errs, fmt.Errorf("--audit-policy: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (o Options) hasNode(name string) bool {
	for i := 1; i <= o.Nodes; i++ {
		if nodeName(i) == name {
			return true
		}
	}
	return false
}

// pauseImageOf returns the pause image of a node.
func (o Options) pauseImageOf(node string) string {
	if image, ok := o.PauseImages[node]; ok {
		return image
	}
	return o.PauseImage
}

// archivesOf returns the paths of the image archives for a node.
func (o Options) archivesOf(node string) []string {
	var paths []string
	for _, archive := range o.Archives {
		if archive.Node == "" || archive.Node == node {
			paths = append(paths, archive.Path)
		}
	}
	return paths
}

// ParseArchives reads the values of --load: ARCHIVE for all nodes, NODE=ARCHIVE for one.
func ParseArchives(values []string) []Archive {
	var archives []Archive
	for _, value := range values {
		archive := Archive{Path: value}
		// A path may contain an equals sign, but no node name precedes it then.
		if node, path, found := strings.Cut(value, "="); found && namePattern.MatchString(node) {
			archive = Archive{Node: node, Path: path}
		}
		archives = append(archives, archive)
	}
	return archives
}

func validateImage(image string) error {
	if !imagePattern.MatchString(image) {
		return fmt.Errorf("invalid pause image %q: want registry, repository and tag, as in %s", image, DefaultPauseImage)
	}
	return nil
}

// ParsePauseImages reads the values of --pause-image: REF for all nodes, NODE=REF for one.
func ParsePauseImages(values []string) (all string, byNode map[string]string, err error) {
	all, byNode = DefaultPauseImage, make(map[string]string)
	for _, value := range values {
		node, image, found := strings.Cut(value, "=")
		switch {
		case !found:
			all = value
		case node == "" || image == "":
			return "", nil, fmt.Errorf("--pause-image %q: write REF or NODE=REF", value)
		default:
			byNode[node] = image
		}
	}
	return all, byNode, nil
}

func nodeName(index int) string { return fmt.Sprintf("n%d", index) }
