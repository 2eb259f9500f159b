package e2e

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/e2e/scenarios"
)

// long reports whether scenarios run at full length, as make e2e-long does.
func long() bool { return os.Getenv("E2E_LONG") != "" }

// onlyInLongRuns skips a scenario in other runs, unless -run names it alone.
func onlyInLongRuns(t *testing.T) {
	t.Helper()
	if !long() && !named(scenarioOf(t)) {
		t.Skipf("SKIPPED, NOTHING CHECKED: make e2e-long, or make e2e E2E_RUN=^%s$, runs it", scenarioOf(t))
	}
}

// named reports whether -run names one scenario, or steps of it.
func named(scenario string) bool {
	test, _, _ := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
	return strings.Trim(test, "^$") == scenario
}

// ranks orders the scenarios of this run: the longest begins first.
var ranks = map[string]int{}

// clientsMissing says why the packages of clients are not installed.
var clientsMissing string

// needsClients skips a test that needs Debian's packages of clients if they cannot be installed.
func needsClients(t *testing.T) {
	t.Helper()
	if clientsMissing != "" {
		t.Skip("SKIPPED, NOTHING CHECKED: " + clientsMissing)
	}
}

// choose limits a run without -run to the scenarios that the environment selects, and builds what they need:
//
//	E2E_TIER=core          core scenarios only
//	E2E_CHANGED_SINCE=REV  and those that a file concerns that differs from this commit
//	E2E_LONG=1             long scenarios, too
//	E2E_NETWORK=N          only the deep ones that support this network
//	E2E_SHARD=I/N          the I-th of N parts
//	E2E_PREPARE=1          end before the first test
func choose() error {
	if os.Getenv("E2E_TESTCLUSTER") == "" || flag.Lookup("test.list").Value.String() != "" {
		return nil // each test skips itself
	}
	var chosen []scenarios.Scenario
	if pattern := flag.Lookup("test.run").Value.String(); pattern != "" {
		test, _, _ := strings.Cut(pattern, "/")
		selects, err := regexp.Compile(test)
		if err != nil {
			return err
		}
		for _, s := range scenarios.All {
			if selects.MatchString(s.Test) && (!s.Long || long() || named(s.Test)) {
				chosen = append(chosen, s)
			}
		}
	} else {
		var err error
		if chosen, err = selected(); err != nil {
			return err
		}
		var tests []string
		for _, s := range chosen {
			tests = append(tests, s.Test)
		}
		if err := flag.Set("test.run", "^("+strings.Join(tests, "|")+")$"); err != nil {
			return err
		}
	}
	for i, s := range chosen {
		ranks[s.Test] = i
	}
	if err := prepare(chosen); err != nil {
		return fmt.Errorf("building what the scenarios need: %w", err)
	}
	if os.Getenv("E2E_PREPARE") != "" {
		os.Exit(0)
	}
	return nil
}

// selected returns the scenarios that the environment selects, and prints which it does not.
func selected() ([]scenarios.Scenario, error) {
	all := scenarios.All
	if os.Getenv("KUBECONFIG") != "" {
		all = slices.DeleteFunc(slices.Clone(all), func(s scenarios.Scenario) bool { return s.Test != "TestMainJob" })
		fmt.Fprintln(os.Stderr, "not selected: all scenarios but TestMainJob need test clusters; unset KUBECONFIG")
	}
	tier := os.Getenv("E2E_TIER")
	if tier != "" && tier != "core" {
		return nil, fmt.Errorf("invalid E2E_TIER %q: want core, or nothing for all scenarios", tier)
	}
	files, err := scenarios.Files(".")
	if err != nil {
		return nil, err
	}
	different, err := changed()
	if err != nil {
		return nil, err
	}
	chosen, others, err := scenarios.Selection{Core: tier == "core", Changed: different, Files: files, Long: long(),
		Network: os.Getenv("E2E_NETWORK"), Shard: os.Getenv("E2E_SHARD")}.Select(all)
	if err != nil {
		return nil, err
	}
	because := map[string][]string{}
	for _, test := range slices.Sorted(maps.Keys(others)) {
		because[others[test]] = append(because[others[test]], test)
	}
	for _, reason := range slices.Sorted(maps.Keys(because)) {
		fmt.Fprintf(os.Stderr, "not selected: %s: %s\n", strings.Join(because[reason], ", "), reason)
	}
	for _, s := range chosen {
		fmt.Fprintf(os.Stderr, "selected: %s (about %.1f minutes)\n", s.Test, s.Minutes)
	}
	return chosen, nil
}

// changed lists the files that differ from the commit in E2E_CHANGED_SINCE, and none outside of a clone.
func changed() ([]string, error) {
	base := os.Getenv("E2E_CHANGED_SINCE")
	if base == "" {
		return nil, nil
	}
	if _, _, err := try(exec.Command("git", "rev-parse", "--git-dir")); err != nil {
		fmt.Fprintln(os.Stderr, "not in a clone: E2E_CHANGED_SINCE selects nothing")
		return nil, nil
	}
	git := exec.Command("git", "diff", "--name-only", base, "--")
	git.Dir = filepath.Join("..", "..")
	out, errOut, err := try(git)
	if err != nil {
		return nil, fmt.Errorf("E2E_CHANGED_SINCE=%s: %w: %s", base, err, strings.TrimSpace(errOut))
	}
	return strings.Fields(out), nil
}

// prepare builds what scenarios need before any cluster needs the CPU, and installs the packages of clients.
func prepare(chosen []scenarios.Scenario) error {
	testcluster := os.Getenv("E2E_TESTCLUSTER")
	tools, versions := []string{"kubectl"}, []string{""}
	var clients, certManager, fromCandidate bool
	for _, s := range chosen {
		tools, versions = append(tools, s.Tools...), append(versions, s.Versions...)
		clients, certManager = clients || s.Clients, certManager || s.CertManager
		fromCandidate = fromCandidate || s.Candidate
		if long() {
			tools = append(tools, s.LongTools...)
		}
	}
	if len(chosen) == 0 {
		return nil
	}
	shows := func(name string, args ...string) error {
		cmd := exec.Command(name, args...)
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
		}
		return nil
	}
	var errs []error
	for _, tool := range unique(tools) {
		errs = append(errs, shows(testcluster, "tool", tool))
	}
	if boots() == nil && os.Getenv("KUBECONFIG") == "" {
		for _, version := range unique(versions) {
			errs = append(errs, shows(testcluster, append([]string{"build"}, strings.Fields(version)...)...))
		}
	}
	if certManager {
		errs = append(errs, shows("make", "-C", filepath.Join("..", ".."), "bin/testcertmanager"))
	}
	if fromCandidate {
		_, err := candidate()
		errs = append(errs, err)
	}
	if clients {
		if err := shows(filepath.Join("..", "..", "hack", "deps.sh"), "clients"); err != nil {
			clientsMissing = err.Error()
		}
	}
	return errors.Join(errs...)
}

func unique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}
