package cluster

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DefaultPauseImage is the default pause image, that of kubeadm for the cluster's Kubernetes
// version.
const DefaultPauseImage = "registry.k8s.io/pause:3.10.1"

// Modes of kube-proxy.
const (
	IPTables = "iptables"
	NFTables = "nftables"
	IPVS     = "ipvs"
)

// Networks of pods. Flannel runs on IPv4.
const (
	Bridge  = "bridge" // with routes to the pods of other nodes
	Flannel = "flannel"
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
	// Kubernetes is the minor version, such as 1.36.
	Kubernetes string `json:"kubernetes"`
	// Runtime is the container runtime of nodes that Runtimes does not name, such as containerd-2.4.
	Runtime  string            `json:"runtime"`
	Runtimes map[string]string `json:"-"`
	// Taints are for nodes from the beginning, by node, in the form of kubectl taint.
	Taints map[string][]string `json:"-"`
	// Kubeadm makes the cluster with kubeadm: its first node is the control plane, and kube-router the network of pods.
	Kubeadm bool `json:"kubeadm,omitempty"`
	// KubeProxyProgram is the path of kube-proxy's program. Empty: the one of the cluster's version.
	KubeProxyProgram string `json:"kubeProxyProgram,omitempty"`
	// CNI is the network of pods: Bridge or Flannel.
	CNI string `json:"cni"`
	// PauseImage is for nodes that PauseImages does not name.
	PauseImage  string            `json:"pauseImage"`
	PauseImages map[string]string `json:"-"`
	// Archives are image archives that nodes load before their kubelets start, so that the nodes
	// report the images from the beginning.
	Archives []Archive `json:"-"`
	// CRITools installs crictl.
	CRITools bool `json:"criTools"`
	// NetworkPolicy runs a controller on each node that enforces NetworkPolicy objects.
	NetworkPolicy bool `json:"networkPolicy"`
	// DNS runs CoreDNS.
	DNS bool `json:"-"`
	// NodeGrace is how long a node may be silent before it and its pods become NotReady.
	NodeGrace time.Duration `json:"nodeGrace"`
	// AuditPolicy is an audit policy file for the API server, which then writes audit.log next to the
	// logs. Empty: no audit log.
	AuditPolicy string `json:"-"`
	// APIServerFlags are further flags of the API server, as --NAME=VALUE.
	APIServerFlags []string `json:"apiServerFlags,omitempty"`
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
	errs = append(errs, ValidateName("cluster", o.Name), validateImage(o.PauseImage))
	if o.Nodes < 1 || o.Nodes > maxNodes {
		errs = append(errs, fmt.Errorf("--nodes %d: choose 1 to %d", o.Nodes, maxNodes))
	}
	switch o.Family {
	case IPv4, IPv6, DualStack:
	default:
		errs = append(errs, fmt.Errorf("invalid --ip-family %q: want %s, %s or %s", o.Family, IPv4, IPv6, DualStack))
	}
	switch {
	case o.CNI != Bridge && o.CNI != Flannel:
		errs = append(errs, fmt.Errorf("invalid --cni %q: want %s or %s", o.CNI, Bridge, Flannel))
	case o.CNI == Flannel && o.Family != IPv4:
		errs = append(errs, fmt.Errorf("--cni %s: needs --ip-family %s, not %s", Flannel, IPv4, o.Family))
	}
	errs = append(errs, o.validateKubeProxy(), o.validateKubeadm())
	for _, name := range append(slices.Collect(maps.Values(o.Runtimes)), o.Runtime) {
		_, err := runtimeOf(name)
		errs = append(errs, err)
	}
	for node := range o.Runtimes {
		errs = append(errs, o.checkNode("--runtime "+node+"="+o.Runtimes[node], node))
	}
	for node, taints := range o.Taints {
		errs = append(errs, o.checkNode("--taint "+node, node), validateTaints(taints))
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
	for _, flag := range o.APIServerFlags {
		if !strings.HasPrefix(flag, "--") {
			errs = append(errs, fmt.Errorf("invalid --api-server-flag %q: want --NAME=VALUE", flag))
		}
	}
	if o.VolumesSize < 0 {
		errs = append(errs, fmt.Errorf("invalid --volumes-size %d: want a number of bytes, or 0", o.VolumesSize))
	}
	for node, image := range o.PauseImages {
		errs = append(errs, o.checkNode("--pause-image "+node+"="+image, node), validateImage(image))
	}
	for _, archive := range o.Archives {
		if archive.Node != "" {
			errs = append(errs, o.checkNode("--load "+archive.Node+"="+archive.Path, archive.Node))
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

// ipvsFile exists where the kernel has IPVS.
const ipvsFile = "/proc/net/ip_vs"

func (o Options) validateKubeProxy() error {
	switch o.KubeProxy {
	case IPTables:
		return nil
	case NFTables:
		if o.minor() < 31 {
			return fmt.Errorf("--kube-proxy %s: needs Kubernetes 1.31 or later, not %s", NFTables, o.Kubernetes)
		}
		return nil
	case IPVS:
		if _, err := os.Stat(ipvsFile); err != nil {
			return fmt.Errorf("--kube-proxy %s: this kernel has no IPVS (modprobe ip_vs): %w", IPVS, err)
		}
		return nil
	default:
		return fmt.Errorf("invalid --kube-proxy %q: want %s, %s or %s", o.KubeProxy, IPTables, NFTables, IPVS)
	}
}

// validateKubeadm checks that kubeadm supports what the other options ask for: from Kubernetes 1.31, its configuration
// has the version that is written, and from version 2, containerd tells kubelets how it manages cgroups.
func (o Options) validateKubeadm() error {
	if !o.Kubeadm {
		return nil
	}
	var errs []error
	if o.minor() < 31 {
		errs = append(errs, fmt.Errorf("--kubeadm: needs Kubernetes 1.31 or later, not %s", o.Kubernetes))
	}
	for _, name := range append(slices.Collect(maps.Values(o.Runtimes)), o.Runtime) {
		if !strings.HasPrefix(name, "containerd-2") {
			errs = append(errs, fmt.Errorf("--kubeadm: needs --runtime containerd-2.1 or later, not %s", name))
		}
	}
	if o.CNI != Bridge || o.NetworkPolicy || len(o.Taints) > 0 || len(o.APIServerFlags) > 0 || o.AuditPolicy != "" {
		errs = append(errs, errors.New("--kubeadm: kubeadm and kube-router decide about networks, NetworkPolicies, "+
			"taints and the API server: use --network-policy=false and no flag about the others"))
	}
	return errors.Join(errs...)
}

// minor returns the number after the dot of the version of Kubernetes: 36.
func (o Options) minor() int {
	_, minor, _ := strings.Cut(o.Kubernetes, ".")
	n, _ := strconv.Atoi(minor) // package build knows the versions
	return n
}

// checkNode returns an error about a flag that names a node that Up does not create.
func (o Options) checkNode(flag, name string) error {
	for i := 1; i <= o.Nodes; i++ {
		if nodeName(i) == name {
			return nil
		}
	}
	return fmt.Errorf("%s: no such node: the nodes are n1 to n%d", flag, o.Nodes)
}

// newNode returns a node that Up creates.
func (o Options) newNode(index int) Node {
	name := nodeName(index)
	n := Node{Name: name, Index: index, PauseImage: o.PauseImage, Runtime: o.Runtime, Taints: o.Taints[name]}
	if image, ok := o.PauseImages[name]; ok {
		n.PauseImage = image
	}
	if runtime, ok := o.Runtimes[name]; ok {
		n.Runtime = runtime
	}
	return n
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

// ParseByNode reads the values of a flag that takes VALUE for all nodes or NODE=VALUE for one.
func ParseByNode(flag string, values []string, byDefault string) (all string, byNode map[string]string, err error) {
	all, byNode = byDefault, make(map[string]string)
	for _, value := range values {
		node, one, found := strings.Cut(value, "=")
		switch {
		case !found:
			all = value
		case node == "" || one == "":
			return "", nil, fmt.Errorf("%s %q: write VALUE or NODE=VALUE", flag, value)
		default:
			byNode[node] = one
		}
	}
	return all, byNode, nil
}

// ParseTaints reads the values of --taint: NODE=TAINT.
func ParseTaints(values []string) (map[string][]string, error) {
	byNode := make(map[string][]string)
	for _, value := range values {
		node, taint, found := strings.Cut(value, "=")
		if !found || !namePattern.MatchString(node) {
			return nil, fmt.Errorf("--taint %q: write NODE=KEY=VALUE:EFFECT", value)
		}
		byNode[node] = append(byNode[node], taint)
	}
	return byNode, nil
}

func nodeName(index int) string { return fmt.Sprintf("n%d", index) }
