package main

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

func TestAuditLogCountsByWho(t *testing.T) {
	event := func(id, who, agent, verb string) string {
		return `{"auditID":"` + id + `","verb":"` + verb + `","userAgent":"` + agent + `",` +
			`"requestURI":"/api/v1/namespaces/zarf/pods/a/status?limit=500","user":{"username":"` + who + `"}}` + "\n"
	}
	const healer = "system:serviceaccount:zarf:zarf-registry-healer"
	half := event("5", "admin", "zarf-registry", "list")
	log := bytes.NewBufferString(event("1", healer, "", "watch") + event("2", "system:kube-scheduler", "", "list") +
		event("3", "admin", scaleAgent, "list") + half[:20])
	a := &auditLog{log: bufio.NewReader(log), seen: map[string]bool{}}
	got, err := a.read()
	if err != nil || got[byHealers]["watch pods/status"] != 1 || got[byControllers]["list pods/status"] != 1 ||
		len(got[byInstaller]) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	log.WriteString(half[20:] + event("1", healer, "", "watch")) // the end of the watch
	if got, err = a.read(); err != nil || got[byInstaller]["list pods/status"] != 1 || len(got[byHealers]) != 0 {
		t.Errorf("then %v, %v", got, err)
	}
}

func TestTheFirstNumberHasARow(t *testing.T) {
	report := &results.Report{}
	report.Add(tableScaleSetUp, sized(10), took, "s", 1)
	merge(report, &results.Report{})
	if len(report.Subjects) == 0 || report.Subjects[0].Name != sized(10) {
		t.Errorf("rows are %v", report.Subjects)
	}
}

func TestMergeCalculatesTheLastRow(t *testing.T) {
	report, others := &results.Report{}, &results.Report{}
	report.Add(tableScaleSetUp, "1000 nodes", took, "s", 100)
	others.Add(tableScaleSetUp, "300 nodes", took, "s", 30)
	others.Add(tableScaleSetUp, "1000 nodes", took, "s", 90) // measured before
	others.Add(tableScaleSetUp, "*5000 nodes*", took, "s", 1)
	merge(report, others)
	for subject, want := range map[string]float64{"300 nodes": 30, "1000 nodes": 100, "*5000 nodes*": 500} {
		if m := report.Find(tableScaleSetUp, subject, took); m == nil || len(m.Runs) != 1 || m.Runs[0] != want {
			t.Errorf("%s: %v, want %v", subject, m, want)
		}
	}
	if len(report.Subjects) != 3 {
		t.Errorf("rows are %v", report.Subjects)
	}
}
