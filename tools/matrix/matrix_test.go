package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCellsCoverEveryPair(t *testing.T) {
	pairs, networks, names := map[string]bool{}, map[string]bool{}, map[string]bool{}
	second, tainted, flannel := false, false, false
	others := map[string]bool{}
	for _, c := range cells() {
		if names[c.name()] {
			t.Errorf("two cells are named %s", c.name())
		}
		names[c.name()] = true
		pairs[c.Kubernetes+" "+c.Runtime] = true
		networks[c.network()] = true
		others[c.Helm], others[c.Storage] = true, true
		second, tainted = second || c.Second != "", tainted || c.Tainted
		flannel = flannel || c.CNI == "flannel"
		if c.KubeProxy == "nftables" && c.Kubernetes == "1.28" {
			t.Errorf("%s: Kubernetes 1.28 has no nftables mode", c.name())
		}
		if c.Second == c.Runtime {
			t.Errorf("%s: the second runtime is the first", c.name())
		}
		if len(c.cluster()) > 40 || strings.Contains(c.cluster(), ".") {
			t.Errorf("%s: invalid cluster name %s", c.name(), c.cluster())
		}
	}
	for _, c := range cells()[:len(kubernetes)*len(runtimes)] {
		if reason := c.knownBroken(); reason != "" {
			t.Errorf("%s cannot work: %s", c.name(), reason)
		}
	}
	for _, minor := range kubernetes {
		for _, runtime := range runtimes {
			if !pairs[minor+" "+runtime] {
				t.Errorf("no cell has Kubernetes %s and %s", minor, runtime)
			}
		}
	}
	for _, family := range families {
		for _, kubeProxy := range proxies {
			if !networks[family+"/"+kubeProxy] {
				t.Errorf("no cell has %s and %s", family, kubeProxy)
			}
		}
	}
	for _, value := range slices.Concat(helms, storages) {
		if !others[value] {
			t.Errorf("no cell has %s", value)
		}
	}
	if !second || !tainted || !flannel {
		t.Errorf("two runtimes: %t, tainted: %t, flannel: %t", second, tainted, flannel)
	}
}

func TestSlicesAreAllCells(t *testing.T) {
	all := cells()
	seen := map[string]int{}
	for i := 1; i <= 4; i++ {
		for _, c := range slice(all, i, 4) {
			seen[c.name()]++
		}
	}
	for _, c := range all {
		if seen[c.name()] != 1 {
			t.Errorf("%s is in %d slices", c.name(), seen[c.name()])
		}
	}
}

func TestParse(t *testing.T) {
	o, err := parse([]string{"-slice", "2/4", "-run", "k1.28", "-parallel", "2"})
	if err != nil || o.index != 2 || o.count != 4 || !o.only.MatchString("k1.28-x") || o.parallel != 2 {
		t.Errorf("got %+v, %v", o, err)
	}
	for _, bad := range [][]string{{"-slice", "5/4"}, {"-slice", "0/4"}, {"-slice", "x"}, {"-run", "("}, {"-parallel", "0"}, {"x"}} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}

const events = `{"Action":"output","Test":"TestCell","Output":"    versions: n1: kubelet v1.28.15\n"}
{"Action":"pass","Test":"TestCell/install","Elapsed":20.5}
{"Action":"pass","Test":"TestCell/mode_switch/to_proxies","Elapsed":3}
{"Action":"fail","Test":"TestCell/mode_switch","Elapsed":30}
{"Action":"fail","Test":"TestCell","Elapsed":60}
{"Action":"fail","Package":"x","Elapsed":61}
`

func TestResultOfEvents(t *testing.T) {
	var r result
	var log strings.Builder
	passed, err := r.read(strings.NewReader(events), &log)
	if err != nil || passed || outcome(r) != "install=true, mode switch=false" || len(r.Versions) != 1 ||
		r.Versions[0] != "n1: kubelet v1.28.15" || !strings.Contains(log.String(), "kubelet v1.28.15") {
		t.Errorf("got %+v, passed %t, %v", r, passed, err)
	}
	if _, err := r.read(strings.NewReader("go: build failed"), &log); err == nil {
		t.Error("an output that is no event was accepted")
	}
}

func TestReportAndCompare(t *testing.T) {
	all := cells()
	first, second := all[0], all[1]
	logs, docs := t.TempDir(), t.TempDir()
	log := "=== RUN   TestCell/install\n    noise\n    x_test.go:1: figure: 3 s\n--- PASS: TestCell (3.00s)\n"
	if err := os.WriteFile(filepath.Join(logs, first.name()+".log"), []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	results := []result{
		{Cell: first.name(), Status: tested, Date: "2026-01-02", Steps: []step{{"install", true, 3}}},
		{Cell: second.name(), Status: notRunnable, Reason: "no such machine"},
	}
	if err := writeReport(docs, logs, results); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(docs, reportPage))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"[tested](compatibility/" + first.name() + ".log)", "no such machine", "not run", "1 passed"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	condensed, err := os.ReadFile(filepath.Join(docs, reportLogs, first.name()+".log"))
	if err != nil || strings.Contains(string(condensed), "noise") || !strings.Contains(string(condensed), "figure: 3 s") {
		t.Errorf("the log is %q, %v", condensed, err)
	}
	again := []result{results[0], results[1]}
	again[0].Steps = []step{{"install", true, 9}} // times may differ
	if err := compare(filepath.Join(docs, reportJSON), again, []cell{first, second}); err != nil {
		t.Error(err)
	}
	again[0].Status, again[0].Steps = failed, []step{{"install", false, 9}}
	if err := compare(filepath.Join(docs, reportJSON), again, []cell{first, second}); err == nil ||
		!strings.Contains(err.Error(), first.name()) {
		t.Errorf("a difference was not found: %v", err)
	}
	if err := compare(filepath.Join(docs, reportJSON), nil, []cell{first}); err == nil {
		t.Error("a cell that did not run was not found")
	}
}
