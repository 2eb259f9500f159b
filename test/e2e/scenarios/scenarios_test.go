package scenarios

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
)

const top = "../../.."

// TestEveryScenarioIsListed compares the table with the tests of package e2e that boot a cluster.
func TestEveryScenarioIsListed(t *testing.T) {
	files := require.Value(filepath.Glob("../*_test.go"))(t)
	own := require.Value(Files(".."))(t)
	var found []string
	for _, file := range files {
		parsed := require.Value(parser.ParseFile(token.NewFileSet(), file, nil, 0))(t)
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" && boots(f) {
				if own[f.Name.Name] != "test/e2e/"+filepath.Base(file) {
					t.Errorf("%s is in %s, not in %s", f.Name.Name, file, own[f.Name.Name])
				}
				found = append(found, f.Name.Name)
			}
		}
	}
	var listed []string
	for _, s := range All {
		listed = append(listed, s.Test)
	}
	slices.Sort(found)
	slices.Sort(listed)
	if !slices.Equal(found, listed) {
		t.Errorf("tests that boot a cluster are %q; the table has %q", found, listed)
	}
}

// boots reports whether a test boots a cluster.
func boots(f *ast.FuncDecl) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			name, _ := call.Fun.(*ast.Ident)
			found = found || name != nil && (name.Name == "ownCluster" || name.Name == "newWorld")
		}
		return true
	})
	return found
}

func TestEachClusterHasOneScenario(t *testing.T) {
	seen := map[string]string{}
	for _, s := range All {
		if len(s.Networks) == 0 && !s.Alone || s.Minutes == 0 && !s.Alone {
			t.Errorf("%s has no network or no estimate", s.Test)
		}
		for _, cluster := range s.Clusters {
			if seen[cluster] != "" {
				t.Errorf("%s and %s use cluster %s", seen[cluster], s.Test, cluster)
			}
			seen[cluster] = s.Test
		}
	}
}

func TestEveryNetworkIsCovered(t *testing.T) {
	covered := map[Network]bool{}
	for _, s := range All {
		if s.Deep() && !s.Long && !s.Alone {
			covered[s.Networks[0]] = true
		}
	}
	for _, n := range Everywhere {
		if !covered[n] {
			t.Errorf("make e2e runs no deep scenario on %s", n)
		}
	}
}

// TestEachPathExists keeps the lists of paths correct when files move.
func TestEachPathExists(t *testing.T) {
	var files []string
	for _, root := range []string{"charts", "docs", "examples", "internal", "loader", "test", "tools"} {
		err := filepath.WalkDir(filepath.Join(top, root), func(name string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, err = filepath.Rel(top, name)
			files = append(files, filepath.ToSlash(name))
			return err
		})
		require.NoError(t, err)
	}
	for _, s := range All {
		for _, pattern := range s.Paths {
			if !slices.ContainsFunc(files, func(file string) bool { return covers(pattern, file) }) {
				t.Errorf("%s: no file is in %s", s.Test, pattern)
			}
		}
	}
}

func names(list []Scenario) (tests []string) {
	for _, s := range list {
		tests = append(tests, s.Test)
	}
	return tests
}

func TestSelect(t *testing.T) {
	list := []Scenario{
		{Test: "TestA", Core: true, Minutes: 2, Networks: []Network{ipv4, ipv6}},
		{Test: "TestB", Minutes: 3, Networks: []Network{ipv4}, Paths: []string{"internal/api/gc", "charts/*/gc.yaml"}},
		{Test: "TestC", Minutes: 1, Long: true, Networks: []Network{ipv6}},
		{Test: "TestD", Alone: true},
	}
	for name, c := range map[string]struct {
		Selection
		want string
	}{
		"all":                         {Selection{}, "TestB TestA"},
		"a long run":                  {Selection{Long: true}, "TestB TestA TestC"},
		"the core":                    {Selection{Core: true}, "TestA"},
		"a changed file in a folder":  {Selection{Core: true, Changed: []string{"internal/api/gc/x/y.go"}}, "TestB TestA"},
		"a changed file of a pattern": {Selection{Core: true, Changed: []string{"charts/one/gc.yaml"}}, "TestB TestA"},
		"another changed file":        {Selection{Core: true, Changed: []string{"internal/gcs/y.go"}}, "TestA"},
		"a scenario's own file": {Selection{Core: true, Changed: []string{"test/e2e/b_test.go"},
			Files: map[string]string{"TestB": "test/e2e/b_test.go"}}, "TestB TestA"},
		"a network":                    {Selection{Network: "IPv6/iptables"}, "TestA"},
		"the first of two shards":      {Selection{Long: true, Shard: "1/2"}, "TestB"},
		"the second":                   {Selection{Long: true, Shard: "2/2"}, "TestA TestC"},
		"a shard without any scenario": {Selection{Shard: "3/3"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, others, err := c.Select(list)
			if strings.Join(names(got), " ") != c.want || err != nil {
				t.Errorf("got %q, want %q (%v)", names(got), c.want, err)
			}
			if len(got)+len(others) != len(list) {
				t.Errorf("%q and %q are not all", names(got), others)
			}
		})
	}
	for _, wrong := range []Selection{{Shard: "0/2"}, {Shard: "3/2"}, {Shard: "1"}, {Network: "IPv5/iptables"}} {
		if got, _, err := wrong.Select(list); err == nil {
			t.Errorf("%+v selects %q", wrong, names(got))
		}
	}
}

// TestShards checks that shards have all scenarios together, each once, and take about the same time.
func TestShards(t *testing.T) {
	all, _, err := Selection{Long: true}.Select(All)
	require.NoError(t, err)
	seen := map[string]int{}
	var minutes []float64
	for _, shard := range []string{"1/4", "2/4", "3/4", "4/4"} {
		part, _, err := Selection{Long: true, Shard: shard}.Select(All)
		require.NoError(t, err)
		sum := 0.0
		for _, s := range part {
			seen[s.Test]++
			sum += s.Minutes
		}
		minutes = append(minutes, sum)
	}
	if len(seen) != len(all) || slices.Max(slices.Collect(maps.Values(seen))) != 1 {
		t.Errorf("the shards have %v", seen)
	}
	if slices.Max(minutes) > 1.1*slices.Min(minutes) {
		t.Errorf("the shards take %v minutes", minutes)
	}
}

// TestCoreIsShort limits the time before a merge: two scenarios run at a time.
func TestCoreIsShort(t *testing.T) {
	list, _, err := Selection{Core: true}.Select(All)
	require.NoError(t, err)
	sum := 0.0
	for _, s := range list {
		sum += s.Minutes
	}
	if sum/2 > 15 {
		t.Errorf("%d scenarios take %.1f minutes, want at most 15", len(list), sum/2)
	}
}
