// Package scenarios lists the end-to-end scenarios of package e2e, and selects those of a run. It does not access a
// cluster, so it has unit tests.
package scenarios

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Network is the network of a test cluster: its IP family (IPv4, IPv6 or DualStack) and kube-proxy's mode
// (iptables or nftables).
type Network struct{ Family, KubeProxy string }

func (n Network) String() string { return n.Family + "/" + n.KubeProxy }

var (
	ipv4, ipv4nft           = Network{"IPv4", "iptables"}, Network{"IPv4", "nftables"}
	ipv6, ipv6nft           = Network{"IPv6", "iptables"}, Network{"IPv6", "nftables"}
	dualStack, dualStackNFT = Network{"DualStack", "iptables"}, Network{"DualStack", "nftables"}

	// Everywhere are all networks.
	Everywhere = []Network{ipv4, ipv4nft, ipv6, ipv6nft, dualStack, dualStackNFT}
	// NodePorts are those where kube-proxy serves node ports on the loopback address: 127.0.0.1 with iptables.
	NodePorts = []Network{ipv4, dualStack}
	withIPv4  = []Network{ipv4, ipv4nft, dualStack, dualStackNFT}
)

// first returns the networks with that one first.
func first(n Network, all []Network) []Network {
	rest := slices.DeleteFunc(slices.Clone(all), func(other Network) bool { return other == n })
	return append([]Network{n}, rest...)
}

// Scenario is a test function of package e2e.
type Scenario struct {
	Test string
	// Clusters are the names of its test clusters.
	Clusters []string
	// Networks are those that it supports. It runs on the first one; make e2e-networks runs scenarios with more, the
	// deep ones, on all of theirs.
	Networks []Network
	// Core scenarios run before each merge.
	Core bool
	// Long scenarios run only in long runs.
	Long bool
	// Alone scenarios run only if -run selects them.
	Alone bool
	// Minutes is how long it took where two scenarios share two cores. make e2e fails if all that ran take much longer.
	Minutes float64
	// Tools are those of testcluster, beside kubectl, and LongTools those of long runs.
	Tools, LongTools []string
	// Versions are arguments of testcluster build for what clusters run beside the default versions.
	Versions []string
	// Clients means that it uses Debian's packages of clients, and CertManager that it uses cert-manager's controllers.
	Clients, CertManager bool
	// Candidate means that it needs the programs of the commit that test/e2e/testdata/candidate names.
	Candidate bool
	// Paths are files and folders of the repository, and patterns of path.Match, that concern it beside its own
	// file. It runs before a merge that changes one.
	Paths []string
}

// Deep reports whether the scenario runs on more than one network.
func (s Scenario) Deep() bool { return len(s.Networks) > 1 }

// Selection is what a run asks for.
type Selection struct {
	// Core limits it to core scenarios, and those that changed files concern.
	Core    bool
	Changed []string
	// Files are the files of tests; see [Files].
	Files map[string]string
	// Long runs contain long scenarios.
	Long bool
	// Network limits it to the deep scenarios that support that network.
	Network string
	// Shard is empty, or I/N: the I-th of N parts that take about the same time.
	Shard string
}

// Select returns the selected scenarios, the longest first, and why the others are not selected.
func (s Selection) Select(all []Scenario) (selected []Scenario, others map[string]string, err error) {
	shard, shards, err := parseShard(s.Shard)
	if err != nil {
		return nil, nil, err
	}
	if s.Network != "" && !slices.ContainsFunc(Everywhere, s.is) {
		return nil, nil, fmt.Errorf("invalid network %q: want one of %v", s.Network, Everywhere)
	}
	others = map[string]string{}
	for _, scenario := range all {
		switch {
		case scenario.Alone:
			others[scenario.Test] = "it runs alone"
		case scenario.Long && !s.Long:
			others[scenario.Test] = "make e2e-long runs it"
		case s.Network != "" && (!scenario.Deep() || !slices.ContainsFunc(scenario.Networks, s.is)):
			others[scenario.Test] = "it does not run on " + s.Network
		case s.Core && !scenario.Core && !scenario.concerned(s.Changed, s.Files[scenario.Test]):
			others[scenario.Test] = "it is no core scenario, and no changed file concerns it"
		default:
			selected = append(selected, scenario)
		}
	}
	slices.SortStableFunc(selected, func(a, b Scenario) int {
		return cmp.Or(cmp.Compare(b.Minutes, a.Minutes), strings.Compare(a.Test, b.Test))
	})
	// The next longest scenario goes to the shard that is shortest so far.
	load := make([]float64, shards)
	selected = slices.DeleteFunc(selected, func(scenario Scenario) bool {
		i := slices.Index(load, slices.Min(load))
		load[i] += scenario.Minutes
		if i+1 != shard {
			others[scenario.Test] = fmt.Sprintf("it is in shard %d/%d", i+1, shards)
		}
		return i+1 != shard
	})
	return selected, others, nil
}

func (s Selection) is(n Network) bool { return n.String() == s.Network }

func parseShard(text string) (shard, shards int, err error) {
	if text == "" {
		return 1, 1, nil
	}
	i, n, _ := strings.Cut(text, "/")
	shard, errI := strconv.Atoi(i)
	shards, errN := strconv.Atoi(n)
	if errI != nil || errN != nil || shard < 1 || shard > shards {
		return 0, 0, fmt.Errorf("invalid shard %q: want I/N with 1 <= I <= N", text)
	}
	return shard, shards, nil
}

// concerned reports whether one of the changed files is the scenario's own, or concerns it.
func (s Scenario) concerned(changed []string, own string) bool {
	return slices.ContainsFunc(changed, func(file string) bool {
		return file == own || slices.ContainsFunc(s.Paths, func(pattern string) bool { return covers(pattern, file) })
	})
}

// test matches the declaration of a test.
var test = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)

// Files returns the files of the tests in package e2e, which is in that folder.
func Files(dir string) (map[string]string, error) {
	sources, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	files := map[string]string{}
	for _, source := range sources {
		content, problem := os.ReadFile(source)
		err = errors.Join(err, problem)
		for _, match := range test.FindAllSubmatch(content, -1) {
			files[string(match[1])] = "test/e2e/" + filepath.Base(source)
		}
	}
	return files, err
}

// covers reports whether a pattern matches a file or one of the folders that it is in.
func covers(pattern, file string) bool {
	for ; file != "." && file != "/"; file = path.Dir(file) {
		if matched, _ := path.Match(pattern, file); matched {
			return true
		}
	}
	return false
}

// ByCluster returns the scenario with a test cluster.
func ByCluster(name string) (Scenario, bool) {
	i := slices.IndexFunc(All, func(s Scenario) bool { return slices.Contains(s.Clusters, name) })
	if i < 0 {
		return Scenario{}, false
	}
	return All[i], true
}
