package build

import (
	_ "embed" // for argoSyncSource
	"fmt"
	"maps"
	"slices"
	"strings"
)

// tools are pinned programs for developing this repository, built when they are first used. Helm is not one of them:
// make bin/helm builds it from the root module.
var tools = map[string]Recipe{
	"age-keygen": tool("age-keygen", "filippo.io/age", "v1.3.2", "filippo.io/age/cmd/age-keygen"),
	"argosync":   argoSync,
	// The conformance suite of the OCI distribution specification, which has no releases.
	"conformance": tool("conformance", "github.com/opencontainers/distribution-spec/conformance",
		"v0.0.0-20260831232431-97274622c111", "github.com/opencontainers/distribution-spec/conformance"),
	"crane": tool("crane", "github.com/google/go-containerregistry", "v0.22.1",
		"github.com/google/go-containerregistry/cmd/crane"),
	"cosign": tool("cosign", "github.com/sigstore/cosign/v3", "v3.1.3", "github.com/sigstore/cosign/v3/cmd/cosign",
		"sigs.k8s.io/release-utils/version.gitVersion={version}"),
	"crio": runtimes["crio-1.34"],
	"ct": tool("ct", "github.com/helm/chart-testing/v3", "v3.14.0", "github.com/helm/chart-testing/v3/ct",
		"github.com/helm/chart-testing/v3/ct/cmd.Version={version}"),
	"ghostunnel": ghostunnel,
	"golangci-lint": tool("golangci-lint", "github.com/golangci/golangci-lint/v2", "v2.15.0",
		"github.com/golangci/golangci-lint/v2/cmd/golangci-lint", "main.version={number}"),
	// The oldest Helm that is tested, and the last one that does not roll back when an object is missing.
	"helm-3.18": tool("helm-3.18", "helm.sh/helm/v3", "v3.18.6", "helm.sh/helm/v3/cmd/helm",
		"helm.sh/helm/v3/internal/version.version={version}"),
	"helm-3.21": tool("helm-3.21", "helm.sh/helm/v3", "v3.21.4", "helm.sh/helm/v3/cmd/helm",
		"helm.sh/helm/v3/internal/version.version={version}"),
	"helm-docs": tool("helm-docs", "github.com/norwoodj/helm-docs", "v1.14.2",
		"github.com/norwoodj/helm-docs/cmd/helm-docs", "main.version={number}"),
	"helm4": tool("helm4", "helm.sh/helm/v4", "v4.3.1", "helm.sh/helm/v4/cmd/helm",
		"helm.sh/helm/v4/internal/version.version={version}"),
	"kubeconform": tool("kubeconform", "github.com/yannh/kubeconform", "v0.8.0",
		"github.com/yannh/kubeconform/cmd/kubeconform", "main.version={version}"),
	"kube-proxy-1.34": olderKubeProxy,
	"oras": tool("oras", "oras.land/oras", "v1.3.0", "oras.land/oras/cmd/oras",
		"oras.land/oras/internal/version.BuildMetadata="),
	"promtool": promtool,
	"regctl": tool("regctl", "github.com/regclient/regclient", "v0.11.7",
		"github.com/regclient/regclient/cmd/regctl"),
	"runc-1.1":          olderRunc,
	"sops":              tool("sops", "github.com/getsops/sops/v3", "v3.13.3", "github.com/getsops/sops/v3/cmd/sops"),
	"source-controller": sourceController,
	// A gateway from S3 to a directory: the S3 of the tests.
	"versitygw": tool("versitygw", "github.com/versity/versitygw", "v1.8.0",
		"github.com/versity/versitygw/cmd/versitygw", "main.Version={version}"),
	"zarf": zarf,
}

// promtool checks rules only: without service discovery it needs no client libraries of clouds and
// builds in a fraction of the time.
var promtool = Recipe{
	Name: "promtool", Module: "github.com/prometheus/prometheus", Version: "v0.313.5", Tags: []string{"remove_all_sd"},
	Programs: programs("github.com/prometheus/prometheus/cmd", "promtool"),
}

// zarf is both Zarf's command line and the program of its agent, whose chart is in the module's
// packages/zarf-agent.
var zarf = Recipe{
	Name: "zarf", Module: "github.com/zarf-dev/zarf", Version: "v0.84.0", Inside: true,
	Programs:  programs("github.com/zarf-dev/zarf", ""),
	Variables: []string{"github.com/zarf-dev/zarf/src/config.CLIVersion=v0.84.0"},
}

// sourceController is Flux's controller of sources, whose manifests are in the module's config. Later versions need
// Go 1.27. Its go.mod names a folder of its repository that is a module of its own, and one module in a version that is
// not to be had.
var sourceController = Recipe{
	Name: "source-controller", Module: "github.com/fluxcd/source-controller", Version: "v1.9.6", Inside: true,
	Programs: programs("github.com/fluxcd/source-controller", ""),
	Edits: []Edit{
		{"go.mod", "replace github.com/fluxcd/source-controller/api => ./api\n", ""},
		{"go.mod", "github.com/fluxcd/pkg/artifact v0.18.3", "github.com/fluxcd/pkg/artifact v0.18.0"},
		{"go.sum", "github.com/fluxcd/pkg/artifact v0.18.3 h1:lqlViNSJLaXSYmD6qCbltRO4QIhjiYqjQk5i52NPGTs=\n" +
			"github.com/fluxcd/pkg/artifact v0.18.3/go.mod h1:NJ8IQSUcIpb0xlVdmPcBQmnJIlntYA/2UFyNS1+mLHY=\n",
			"github.com/fluxcd/pkg/artifact v0.18.0 h1:TrIcQ6TaQ+787IA3YESFnihPqbfptqHHyqHZ2y0Cnsk=\n" +
				"github.com/fluxcd/pkg/artifact v0.18.0/go.mod h1:bNnNKUm9ExJonG3w1pD/4QmWEkbImt6ka3LrVCfcuL4=\n" +
				"github.com/fluxcd/source-controller/api v1.9.6 h1:h9+CsJVw4CNbMEsnEb11SGEhLfKzVTkWC0w7M8VX4Hk=\n" +
				"github.com/fluxcd/source-controller/api v1.9.6/go.mod h1:Y5mcHYzML/mJYjvSJRcIo7eLLjd+cZjnKR6WeIGrouE=\n"},
	},
}

//go:embed argosync/main.go.txt
var argoSyncSource string

// argoSync is a program with the engine of Argo CD. Argo CD 3.6, and the versions of the engine with a tag, need Go 1.27.
var argoSync = Recipe{
	Name: "argosync", Module: "github.com/argoproj/argo-cd/gitops-engine", Inside: true,
	Version:  "v0.0.0-20260914071520-c9c369efcc5b",
	Programs: map[string]string{"argosync": "."},
	Sources:  map[string]string{"main.go": argoSyncSource},
}

// olderKubeProxy is of the last minor but one that selects Services and EndpointSlices by the label
// service.kubernetes.io/service-proxy-name; since 1.36, kube-proxy selects only Services by it.
var olderKubeProxy = Recipe{
	Name: "kube-proxy-1.34", Module: "k8s.io/kubernetes", Version: "v1.34.4", StagingVersion: "v0.34.4",
	Programs:  map[string]string{"kube-proxy-1.34": "k8s.io/kubernetes/cmd/kube-proxy"},
	Variables: kubernetesVariables("v1.34.4"),
}

// olderRunc is of the last minor that keeps noexec of what it mounts into a container to write to.
var olderRunc = Recipe{
	Name: "runc-1.1", Module: "github.com/opencontainers/runc", Version: "v1.1.14", CGO: true, Tags: []string{"seccomp"},
	Programs:  map[string]string{"runc-1.1": "github.com/opencontainers/runc"},
	Variables: []string{"main.version=1.1.14"},
}

// ghostunnel is measured by bench/proxy.
var ghostunnel = Recipe{
	Name: "ghostunnel", Module: "github.com/ghostunnel/ghostunnel", Version: "v1.8.4",
	Variables: []string{"main.version=v1.8.4"},
	CGO:       true, // v1.8.4 does not compile without it
	Programs:  map[string]string{"ghostunnel": "github.com/ghostunnel/ghostunnel"},
	Sums: []string{ // from its own go.sum
		"github.com/landlock-lsm/go-landlock v0.0.0-20241014143150-479ddab4c04c " +
			"h1:nwPp7v5drD5P9tUDUGF5P6Mrg7qb/oCEJBmmjlMIwG0=",
		"github.com/landlock-lsm/go-landlock v0.0.0-20241014143150-479ddab4c04c/go.mod " +
			"h1:RSub3ourNF8Hf+swvw49Catm3s7HVf4hzdFxDUnEzdA=",
	},
}

// tool returns the recipe of a program whose variables may contain {version}, such as v1.2.3, and {number}, 1.2.3.
func tool(name, module, version, pkg string, variables ...string) Recipe {
	replace := strings.NewReplacer("{version}", version, "{number}", strings.TrimPrefix(version, "v"))
	for i, variable := range variables {
		variables[i] = replace.Replace(variable)
	}
	return Recipe{Name: name, Module: module, Version: version, Programs: map[string]string{name: pkg},
		Variables: variables}
}

// Tool returns the recipe of a pinned tool, or of a cluster's program, by its name.
func Tool(name string) (Recipe, error) {
	if r, ok := tools[name]; ok {
		return r, nil
	}
	for _, r := range defaultRecipes() {
		if slices.Contains(r.ProgramNames(), name) {
			return r, nil
		}
	}
	return Recipe{}, fmt.Errorf("unknown tool %q: want one of %s", name, strings.Join(ToolNames(), ", "))
}

// ToolNames returns the names that Tool accepts: the tools, then the programs of a cluster.
func ToolNames() []string {
	names := slices.Collect(maps.Keys(tools))
	for _, r := range defaultRecipes() {
		names = append(names, r.ProgramNames()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
