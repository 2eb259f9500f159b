// Package build builds the components of a cluster and the pinned tools of this repository from the
// Go module proxy and Debian packages.
//
// Each recipe names a Go module, its version and the programs to build from it. The result is a
// directory in the cache whose name contains the version and a hash of the recipe, so changing a
// recipe rebuilds only that recipe. The package downloads no binaries and, except for Debian
// packages that apt-get installs, writes only to the cache.
package build

import (
	"crypto/sha256"
	_ "embed" // for kubernetesSource
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
)

// Versions of the cluster's components, and the modules in which Renovate looks for new ones.
const (
	etcdVersion       = "v3.6.5"  // go.etcd.io/etcd/server/v3
	runcVersion       = "v1.5.2"  // github.com/opencontainers/runc
	cniVersion        = "v1.9.1"  // github.com/containernetworking/plugins
	coreDNSVersion    = "v1.15.0" // github.com/coredns/coredns
	kubeRouterVersion = "v2.1.0"  // github.com/cloudnativelabs/kube-router/v2
	criToolsVersion   = "v1.36.0" // sigs.k8s.io/cri-tools
)

// DefaultKubernetes is the minor version of Kubernetes of clusters that name none.
const DefaultKubernetes = "1.36"

// kubernetesVersions are the patch releases of the minor versions of Kubernetes that clusters can run.
var kubernetesVersions = map[string]string{
	"1.30": "v1.30.14", // the oldest supported
	"1.31": "v1.31.4",
	"1.34": "v1.34.4",
	"1.36": "v1.36.3",
	"1.37": "v1.37.0",
}

// DefaultRuntime is the container runtime of nodes that name none.
const DefaultRuntime = "containerd-2.4"

// runtimes are the recipes of the container runtimes that nodes can run, by name.
var runtimes = map[string]Recipe{
	"containerd-1.7": containerdRecipe("1.7", "github.com/containerd/containerd", "v1.7.29"),
	"containerd-2.1": containerdRecipe("2.1", "github.com/containerd/containerd/v2", "v2.1.5"),
	"containerd-2.4": containerdRecipe("2.4", "github.com/containerd/containerd/v2", "v2.4.2"),
	"crio-1.34":      crioRecipe("1.34"),
	// Simulated: the module of 1.35 is not to be had. It differs from 1.34 in what matters here: plain HTTP is refused
	// on loopback too (commit 93f9201).
	"crio-1.35": crioRecipe("1.35",
		Edit{"internal/storage/image.go",
			`serverConfig.InsecureRegistries = append(serverConfig.InsecureRegistries, "127.0.0.0/8")`, ""},
		Edit{"internal/version/version.go", `const Version = "1.34.0"`, `const Version = "1.35.0"`},
	),
}

func containerdRecipe(minor, module, version string) Recipe {
	return Recipe{
		Name: "containerd-" + minor, Module: module, Version: version,
		Programs:  programs(module+"/cmd", "containerd", "containerd-shim-runc-v2", "ctr"),
		Variables: []string{module + "/version.Version=" + version},
	}
}

func crioRecipe(minor string, edits ...Edit) Recipe {
	return Recipe{
		Name: "crio-" + minor, Module: "github.com/cri-o/cri-o", Version: "v1.34.0", Inside: true, Edits: edits, CGO: true,
		Tags:     []string{"containers_image_openpgp", "exclude_graphdriver_btrfs", "seccomp"}, // libseccomp only
		Programs: map[string]string{"crio": "github.com/cri-o/cri-o/cmd/crio", "pinns": "pinns/src/*.c"},
		Calls:    []string{"conmon", "skopeo"}, // CRI-O cannot import archives
	}
}

// Runtime returns the recipe of a container runtime, such as containerd-2.4.
func Runtime(name string) (Recipe, error) {
	if r, ok := runtimes[name]; ok {
		return r, nil
	}
	return Recipe{}, fmt.Errorf("unknown container runtime %q: want one of %s", name,
		strings.Join(RuntimeNames(), ", "))
}

// RuntimeNames returns the names that Runtime accepts.
func RuntimeNames() []string { return slices.Sorted(maps.Keys(runtimes)) }

// Kubernetes returns the recipe of a minor version of Kubernetes, such as 1.36.
func Kubernetes(minor string) (Recipe, error) {
	version, ok := kubernetesVersions[minor]
	if !ok {
		return Recipe{}, fmt.Errorf("unknown Kubernetes version %q: want one of %s", minor,
			strings.Join(KubernetesVersions(), ", "))
	}
	return Recipe{
		Name: "kubernetes", Module: "k8s.io/kubernetes", Version: version,
		StagingVersion: "v0" + strings.TrimPrefix(version, "v1"),
		// kubectl starts faster alone.
		Programs: map[string]string{"kubernetes": ".", "kubectl": "k8s.io/kubernetes/cmd/kubectl"},
		Sources:  map[string]string{"main.go": kubernetesSource},
		Links: map[string][]string{"kubernetes": {"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet",
			"kube-proxy", "cri-version"}},
		Variables: kubernetesVariables(version),
	}, nil
}

// Kubeadm returns the recipe of kubeadm of a minor version of Kubernetes.
func Kubeadm(minor string) (Recipe, error) {
	r, err := Kubernetes(minor)
	r.Name, r.Sources, r.Links = "kubeadm", nil, nil
	r.Programs = programs("k8s.io/kubernetes/cmd", "kubeadm")
	return r, err
}

// KubernetesVersions returns the minor versions that Kubernetes accepts.
func KubernetesVersions() []string { return slices.Sorted(maps.Keys(kubernetesVersions)) }

// Names of the recipes of components that a cluster can be without.
const (
	CoreDNS    = "coredns"
	KubeRouter = "kube-router"
	CRITools   = "cri-tools"
)

// FlannelRecipes returns what a cluster with flannel needs: its daemon, and its CNI plugin, whose own module is
// newer than the copy used here, from when it was one of the reference plugins.
func FlannelRecipes() []Recipe {
	return []Recipe{
		{
			Name: "flannel", Module: "github.com/flannel-io/flannel", Version: "v0.27.4", CGO: true, // for its UDP backend
			Programs:  map[string]string{"flanneld": "github.com/flannel-io/flannel"},
			Variables: []string{"github.com/flannel-io/flannel/pkg/version.Version=v0.27.4"},
		},
		{
			Name: "flannel-cni-plugin", Module: "github.com/containernetworking/plugins", Version: "v0.9.1",
			Programs: programs("github.com/containernetworking/plugins/plugins", "meta/flannel"),
		},
	}
}

// A Recipe describes how to build the programs of one Go module.
type Recipe struct {
	// Name of the recipe, and prefix of its directory in the cache.
	Name string
	// Module and Version as the Go module proxy knows them.
	Module, Version string
	// Programs maps the name of a program to the package it is built from. A
	// package that begins with "." is one of Sources. One that ends in ".c" is a
	// pattern of files of the copy that Inside makes, for a static C program.
	Programs map[string]string
	// Links are further names of a program, which it finds in its first argument.
	Links map[string][]string `json:",omitempty"`
	// Sources are files that are written into the module that builds the
	// programs, for modules whose own main package cannot be built from outside.
	Sources map[string]string `json:",omitempty"`
	// StagingVersion, when set, replaces every module that Module's go.mod
	// replaces by a local directory with that module's release of this version.
	StagingVersion string `json:",omitempty"`
	// Inside builds in a copy of Module, whose go.mod and go.sum then decide, for modules with replace
	// directives. The copy stays beside the programs, in the directory module.
	Inside bool `json:",omitempty"`
	// Edits change files of the copy that Inside makes.
	Edits []Edit `json:",omitempty"`
	// Sums are lines for go.sum, for modules that are missing in the checksum database.
	Sums []string `json:",omitempty"`
	// Tags and Variables (package.name=value) are passed to the Go tool.
	Tags      []string `json:",omitempty"`
	Variables []string `json:",omitempty"`
	// CGO links against C libraries. Everything else is built without cgo.
	CGO bool `json:",omitempty"`
	// C is the source of a static C program, instead of a Go module.
	C string `json:",omitempty"`
	// Calls are programs that the recipe's programs run, from Debian packages of the same names.
	Calls []string `json:",omitempty"`
}

// An Edit replaces a text that occurs once in a file.
type Edit struct{ File, Old, New string }

// Key returns the name of the directory in the cache. It changes whenever an input of the build
// changes.
func (r Recipe) Key() string {
	encoded, err := json.Marshal(r)
	if err != nil { // strings, booleans and maps of strings can be encoded
		panic(err)
	}
	hash := sha256.Sum256(append(encoded, runtime.Version()+runtime.GOARCH...))
	return fmt.Sprintf("%s-%s-%s", r.Name, strings.TrimPrefix(r.Version, "v"), hex.EncodeToString(hash[:4]))
}

// ProgramNames returns the names of the recipe's programs in order, without programs that have links.
func (r Recipe) ProgramNames() []string {
	var names []string
	for name := range r.Programs {
		if links, ok := r.Links[name]; ok {
			names = append(names, links...)
		} else {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// programs maps packages to the names of their programs: the last element of the path.
func programs(prefix string, packages ...string) map[string]string {
	m := make(map[string]string, len(packages))
	for _, p := range packages {
		full := path.Join(prefix, p)
		m[path.Base(full)] = full
	}
	return m
}

// pauseSource does what Kubernetes' pause program does in a pod without a shared process namespace:
// it waits for a signal, or ends at once with -v, as before kubeadm's upgrades.
const pauseSource = `#include <signal.h>
#include <string.h>
#include <unistd.h>

static void stop(int signal) { (void)signal; _exit(0); }

int main(int argc, char **argv) {
	if (argc > 1 && !strcmp(argv[1], "-v")) return 0;
	signal(SIGINT, stop);
	signal(SIGTERM, stop);
	for (;;) pause();
}
`

// kubernetesSource is one program for all of Kubernetes but kubectl, whose packages are linked once instead of five
// times. As cri-version, it asks the container runtime of the socket in its argument for its version, by way of CRI.
//
//go:embed kubernetes/main.go.txt
var kubernetesSource string

// etcd's own main package is in a module with replace directives.
const etcdSource = `package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
`

// CoreDNS' own main package includes the client libraries of three clouds. With only the plugins
// that the Corefiles of clusters and of kubeadm name, it builds in a third of the time.
const coreDNSSource = `package main

import (
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() { coremain.Run() }
`

// ClusterRecipes returns the recipes of what clusters have beside Kubernetes and container runtimes.
func ClusterRecipes() []Recipe {
	return []Recipe{
		{Name: "pause", Version: "v1", C: pauseSource, Programs: map[string]string{"pause": ""}},
		{
			Name: "runc", Module: "github.com/opencontainers/runc", Version: runcVersion, CGO: true, Tags: []string{"seccomp"},
			Programs:  programs("github.com/opencontainers/runc", ""),
			Variables: []string{"main.version=" + strings.TrimPrefix(runcVersion, "v")},
		},
		{
			Name: "cni-plugins", Module: "github.com/containernetworking/plugins", Version: cniVersion,
			Programs: programs("github.com/containernetworking/plugins/plugins", "main/bridge", "main/loopback", "meta/portmap",
				"ipam/host-local"),
		},
		{
			Name: "etcd", Module: "go.etcd.io/etcd/server/v3", Version: etcdVersion,
			Programs: map[string]string{"etcd": "."},
			Sources:  map[string]string{"main.go": etcdSource},
		},
		{
			Name: CoreDNS, Module: "github.com/coredns/coredns", Version: coreDNSVersion,
			Programs: map[string]string{"coredns": "."},
			Sources:  map[string]string{"main.go": coreDNSSource},
		},
		{
			Name: KubeRouter, Module: "github.com/cloudnativelabs/kube-router/v2", Version: kubeRouterVersion,
			Programs: programs("github.com/cloudnativelabs/kube-router/v2/cmd", "kube-router"),
			Sums: []string{
				"github.com/cloudnativelabs/kube-router/v2 v2.1.0 h1:xWsptKtmZ44L+NjwFKoFAFlVdxCz8fka9A/eYJe95Ok=",
				"github.com/cloudnativelabs/kube-router/v2 v2.1.0/go.mod h1:JU/k2Qqcph0myF1cRDLidz1SZdoSrPczuYcGxYRSP0A=",
			},
		},
		{
			Name: CRITools, Module: "sigs.k8s.io/cri-tools", Version: criToolsVersion,
			Programs:  programs("sigs.k8s.io/cri-tools/cmd", "crictl"),
			Variables: []string{"sigs.k8s.io/cri-tools/pkg/version.Version=" + criToolsVersion},
		},
	}
}

// defaultRecipes returns the recipes of a cluster with default options.
func defaultRecipes() []Recipe {
	kubernetes, _ := Kubernetes(DefaultKubernetes)
	return append([]Recipe{kubernetes, runtimes[DefaultRuntime]}, ClusterRecipes()...)
}

// kubernetesVariables returns linker variables that make Kubernetes' programs report a version
// ("v1.36.3").
func kubernetesVariables(version string) []string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	const pkg = "k8s.io/component-base/version."
	return []string{pkg + "gitVersion=" + version, pkg + "gitMajor=" + parts[0], pkg + "gitMinor=" + parts[1]}
}
