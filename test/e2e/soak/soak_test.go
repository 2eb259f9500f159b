package soak

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
)

func steps(seed uint64, n int) []Step {
	plan := NewPlan(seed, []string{"n1", "n2"})
	var all []Step
	for range n {
		all = append(all, plan.Next())
	}
	return all
}

func text(all []Step) string {
	var lines []string
	for _, s := range all {
		lines = append(lines, s.String())
	}
	return strings.Join(lines, "\n")
}

func TestSeedDeterminesTheSequence(t *testing.T) {
	first := text(steps(7, 200))
	if again := text(steps(7, 200)); again != first {
		t.Errorf("the same seed gave\n%s\nand\n%s", first, again)
	}
	if other := text(steps(8, 200)); other == first {
		t.Error("another seed gave the same sequence")
	}
}

func TestClassOf(t *testing.T) {
	for message, want := range map[string]Class{
		`manifests sha256:4010: Get "http://127.0.0.1:31999/v2/": dial tcp 127.0.0.1:31999: connect: connection refused`: Refused,
		`dial tcp 127.0.0.1:31999: connect: no route to host`:                                                            Refused,
		`release zarf-registry has no ready registry pod in namespace zarf`:                                              Refused,
		`read tcp 127.0.0.1:4: read: connection reset by peer`:                                                           Reset,
		`blobs sha256:aa, after 404 bytes: unexpected EOF`:                                                               Reset,
		`dial tcp 127.0.0.1:31999: i/o timeout`:                                                                          Timeout,
		`signal: killed: `:                                                                                               Timeout,
		`manifests 1: 503 Service Unavailable: no registry: connection refused`:                                          Unavailable,
		`registry zarf-registry.zarf.svc:5000 refuses pushes (507): the file system of the storage has no space left`:    NoSpace,
		`registry responded to PUT with 507 Insufficient Storage`:                                                        NoSpace,
		`registry rejected the credential (401 Unauthorized): log in`:                                                    Unauthorized,
		`tag 3: 404 Not Found, digest ""`:                                                                                Other,
		`registry denied access (403 Forbidden): connection refused`:                                                     Other,
		`502 Bad Gateway: the registry answered 404 Not Found`:                                                           Other,
		`using the push certificate: tls: failed to find any PEM data`:                                                   Certificate,
		`CORRUPT: content does not match its digest`:                                                                     Other,
		``: Other,
	} {
		if got := ClassOf(message); got != want {
			t.Errorf("%q is %s, want %s", message, got, want)
		}
	}
}

func TestExcuses(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	const refused, reset, timeout, unavailable = "connection refused", "unexpected EOF", "i/o timeout", "503 Service Unavailable"
	pull := func(node string, begin, took int, err string) Attempt {
		return Attempt{Node: node, Begin: at(begin), Took: time.Duration(took) * time.Second, Err: err}
	}
	push := func(begin int, err string) Attempt { return pull("", begin, 1, err) }
	corrupt := pull("n1", 12, 1, refused)
	corrupt.Corrupt = true
	in := func(name string, proxy bool) Step { return Step{Kind: KindOf(name), Node: "n1", Proxy: proxy} }
	proxy := in("kill a proxy", true)
	end := 20 + int(proxy.Kind.Recovery.Seconds())
	for desc, c := range map[string]struct {
		step    Step // from 10 to 20, and recovered at 50
		attempt Attempt
		excused bool
	}{
		"a pull through a killed proxy":              {proxy, pull("n1", 12, 1, refused), true},
		"a pull that started before the fault":       {proxy, pull("n1", 8, 3, reset), true},
		"a pull that ended before the fault":         {proxy, pull("n1", 8, 1, reset), false},
		"a pull that fails before the window's end":  {proxy, pull("n1", end-2, 1, reset), true},
		"a pull that fails after the window's end":   {proxy, pull("n1", end-2, 4, reset), false},
		"a pull that starts after the window's end":  {proxy, pull("n1", end+1, 1, refused), false},
		"a pull that notices its timeout later":      {proxy, pull("n1", end-1, 75, timeout), true},
		"a timeout that begins after the window":     {proxy, pull("n1", end+1, 1, timeout), false},
		"another class":                              {proxy, pull("n1", 12, 1, unavailable), false},
		"a 404":                                      {proxy, pull("n1", 12, 1, "404 Not Found"), false},
		"a 401":                                      {proxy, pull("n1", 12, 1, "401 Unauthorized"), false},
		"a pull on another node":                     {proxy, pull("n2", 12, 1, refused), false},
		"a push during the fault":                    {proxy, push(12, refused), false},
		"corrupt content":                            {proxy, corrupt, false},
		"a pull while proxies wait for a registry":   {in("kill the registry", true), pull("n1", 12, 1, refused), false},
		"a pull in nodeport mode without a registry": {in("kill the registry", false), pull("n2", 12, 1, refused), true},
		"a push while the API server is down":        {in("kill the API server", true), push(12, refused), false},
		"a push while a kubelet is down":             {in("kill a kubelet", true), push(12, refused), false},
		"a push while containerd is down":            {in("kill containerd", true), push(12, reset), false},
		"a push while a node is cut off":             {in("cut a node off", false), push(12, timeout), false},
		"a push without space":                       {in("fill the volume", true), push(12, "507 Insufficient Storage"), true},
		"a push that does not begin without space": {in("fill the volume", true), push(12, "exit status 3: Error: the images "+
			"need 264.5 kB that the registry does not have, and it accepts 0 B more"), true},
		"a push that is refused without space": {in("fill the volume", true), push(12, refused), false},
		"a push with the next credential":      {in("rotate the credential", true), push(21, "401 Unauthorized"), true},
		"a push with it seconds later":         {in("rotate the credential", true), push(23, "401 Unauthorized"), false},
		"another failure of it":                {in("rotate the credential", true), push(12, "403 Forbidden"), false},
		"a pull during a mode switch":          {in(Switch, true), pull("n1", 12, 1, reset), false},
		"a pull during the loss of a node":     {in(LoseNode, true), pull("n2", 12, 60, unavailable), true},
		"a 404 during the loss of a node":      {in(LoseNode, true), pull("n2", 12, 1, "404 Not Found"), false},
	} {
		t.Run(desc, func(t *testing.T) {
			account := NewAccount()
			account.Begin(c.step, at(10))
			account.Repaired(at(20))
			account.Recovered(at(50))
			account.Add(c.attempt)
			if bad := account.Unexcused(); (len(bad) == 0) != c.excused {
				t.Errorf("unexcused: %v", bad)
			}
			if again := account.Unexcused(); len(again) > 0 {
				t.Errorf("a failure was returned twice: %v", again)
			}
		})
	}
}

func TestExcusesEndOnRecovery(t *testing.T) {
	now := time.Unix(1000, 0)
	account := NewAccount()
	account.Begin(Step{Kind: KindOf("kill a proxy"), Node: "n1", Proxy: true}, now)
	account.Repaired(now.Add(time.Second))
	account.Recovered(now.Add(5 * time.Second))
	late := Attempt{Node: "n1", Begin: now.Add(6 * time.Second), Err: "connection refused"}
	account.Add(late)
	if bad := account.Unexcused(); len(bad) != 1 || !strings.Contains(bad[0].String(), "pull on n1") {
		t.Errorf("unexcused: %v", bad)
	}
	// The next step does not excuse it either.
	account.Begin(Step{Kind: KindOf("kill a kubelet"), Node: "n1", Proxy: true}, now.Add(10*time.Second))
	account.Repaired(now.Add(11 * time.Second))
	account.Add(late)
	if bad := account.Unexcused(); len(bad) != 1 {
		t.Errorf("unexcused: %v", bad)
	}
}

func TestLatencyIsLimited(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	attempt := func(node string, begin, took int) Attempt {
		return Attempt{Node: node, Begin: at(begin), Took: time.Duration(took) * time.Second}
	}
	cut, kubelet := Step{Kind: KindOf("cut a node off")}, Step{Kind: KindOf("kill a kubelet")}
	for desc, c := range map[string]struct {
		steps   []Step // each from 10, 5 seconds after the previous one, to 40
		attempt Attempt
		ok      bool
	}{
		"30 s":                        {nil, attempt("n1", 0, 30), true},
		"31 s":                        {nil, attempt("n1", 0, 31), false},
		"a push":                      {nil, attempt("", 0, 31), false},
		"held for an outage":          {[]Step{cut}, attempt("n1", 0, 60), true},
		"held longer":                 {[]Step{cut}, attempt("n1", 0, 61), false},
		"held in it and afterwards":   {[]Step{cut}, attempt("n1", 20, 50), true},
		"held too long afterwards":    {[]Step{cut}, attempt("n1", 20, 51), false},
		"a burst counts once":         {[]Step{cut, cut}, attempt("n1", 0, 61), false},
		"a fault that delays no pull": {[]Step{kubelet}, attempt("n1", 0, 31), false},
		"but pushes":                  {[]Step{kubelet}, attempt("", 0, 60), true},
	} {
		account := NewAccount()
		for i, s := range c.steps {
			account.Begin(s, at(10+5*i))
		}
		account.Repaired(at(40))
		account.Add(c.attempt)
		if bad := account.Unexcused(); (len(bad) == 0) != c.ok {
			t.Errorf("%s: %v", desc, bad)
		}
	}
}

func TestTags(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	tags := NewTags()
	tags.Push("latest", "one", at(0))
	tags.Acknowledge("latest", at(1))
	tags.Push("latest", "two", at(10))
	tags.Acknowledge("latest", at(12))
	tags.Push("latest", "three", at(20)) // failed at 21, perhaps too late
	tags.Push("latest", "four", at(30))
	tags.Acknowledge("latest", at(31))
	for _, c := range []struct {
		digest     string
		begin, end int
		ok         bool
	}{
		{"one", 2, 3, true},
		{"two", 2, 3, false},  // not pushed yet
		{"one", 9, 11, true},  // the push is in progress
		{"two", 9, 11, true},  // the same
		{"one", 11, 13, true}, // acknowledged during the pull
		{"one", 13, 14, false},
		{"two", 22, 23, true},
		{"three", 22, 23, true},
		{"one", 22, 23, false},
		{"three", 32, 33, false},
		{"two", 32, 33, false},
		{"four", 32, 33, true},
		{"", 32, 33, false},
	} {
		if err := tags.Check("latest", c.digest, at(c.begin), at(c.end)); (err == nil) != c.ok {
			t.Errorf("%s between %d and %d: %v", c.digest, c.begin, c.end, err)
		}
	}
	if tags.Check("1", "one", at(2), at(3)) == nil {
		t.Error("a tag that was not pushed")
	}
}

func TestFindMarkers(t *testing.T) {
	m := Markers{"content": []byte("abcdefgh")}
	m.Credential("the push", "zarf-push", "very-secret")
	for packet, want := range map[string]string{
		"....abcdefgh....": "content",
		"....abcdefg":      "",
		"GET /v2/ HTTP/1.1\r\nAuthorization: Basic emFyZi1wdXNoOnZlcnktc2VjcmV0\r\n": "the push credential in base64",
		"password=very-secret abcdefgh":                                              "content, the push password",
	} {
		if got := strings.Join(m.Find([]byte(packet)), ", "); got != want {
			t.Errorf("in %q: %q, want %q", packet, got, want)
		}
	}
}

func TestUnexpectedPorts(t *testing.T) {
	if bad := Unexpected([]int{10256, 10250}, NodePorts(true)); len(bad) > 0 {
		t.Errorf("%v", bad)
	}
	if bad := Unexpected([]int{31999, 10250, 5000}, NodePorts(true)); !slices.Equal(bad, []int{5000, 31999}) {
		t.Errorf("in proxy mode %v", bad)
	}
	if bad := Unexpected([]int{31999}, NodePorts(false)); len(bad) > 0 {
		t.Errorf("in nodeport mode %v", bad)
	}
	if bad := Unexpected([]int{5000, 5001}, PodPorts(false)); !slices.Equal(bad, []int{5000}) {
		t.Errorf("of a pod in nodeport mode %v", bad)
	}
}

func TestAllKindsAreDocumented(t *testing.T) {
	page := require.Value(os.ReadFile("../../../docs/dev/soak.md"))(t)
	for _, k := range Kinds {
		row := regexp.MustCompile(`(?m)^\|` + k.Name + `\|.*\|(\d+) s\|`).FindSubmatch(page)
		if row == nil {
			t.Errorf("docs/dev/soak.md has no row for %q with its time to recover", k.Name)
		} else if want := fmt.Sprint(k.Recovery.Seconds()); string(row[1]) != want {
			t.Errorf("docs/dev/soak.md gives %q %s s to recover, want %s", k.Name, row[1], want)
		}
	}
}
