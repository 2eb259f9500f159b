package pki_test

import (
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/pki"
)

var roles = []string{server, node, push}

// secret is a version of a Secret in the API server; revision 0 is that of none.
type secret struct {
	pki.Held
	revision int
}

// pod is one of the registry or a proxy. One that could load nothing yet does not run.
type pod struct {
	name, role string
	leaf       *x509.Certificate
	trust      pki.Bundle
	silent     bool
}

func (p *pod) running() bool { return p.leaf != nil }

// engine is a process that changes Secrets as init-hook does: it reads, looks at the
// pods, decides and writes, and anything can happen between any two of these. Writes
// fail where somebody else has written since it read.
type engine struct {
	position  *pki.Position
	revisions map[string]int
	authority *pki.CA
	writes    []func() bool
	done      bool
}

// cluster is what a rotation meets.
type cluster struct {
	t         *testing.T
	random    *rand.Rand
	count     map[pki.Action]int
	secrets   map[string]secret
	due       map[string]*x509.Certificate // the leaf that is past half of its life
	authority *pki.CA
	previous  []*pki.CA
	recorded  int // odd: a change is recorded as under way
	revision  int
	pods      []*pod
	engines   []*engine
	log       []string
	verified  map[string]error
	names     int
}

func newCluster(t *testing.T, seed uint64, count map[pki.Action]int) *cluster {
	c := &cluster{
		t: t, random: rand.New(rand.NewPCG(seed, 0)), count: count,
		secrets: map[string]secret{}, due: map[string]*x509.Certificate{}, verified: map[string]error{},
		authority: authority(t, now, 0), engines: []*engine{{}, {}},
	}
	c.previous = []*pki.CA{c.authority}
	for c.settle(); len(c.pods) < 5; {
		c.addPod([]string{server, node, node}[len(c.pods)%3])
	}
	return c
}

func (c *cluster) say(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf(format, args...))
}

func (c *cluster) write(role string, h pki.Held) {
	c.revision++
	c.secrets[role] = secret{h, c.revision}
}

// load is the kubelet's doing and the program's: all of a generation, or nothing.
func (c *cluster) load(p *pod) {
	if s := c.secrets[p.role]; s.Leaf != nil && !s.Trust.Empty() {
		p.leaf, p.trust = s.Leaf, s.Trust
	}
}

func (c *cluster) addPod(role string) {
	c.names++
	p := &pod{name: fmt.Sprintf("%s-%d", role, c.names), role: role}
	c.load(p)
	c.pods = append(c.pods, p)
}

// step does the next thing of an engine.
func (c *cluster) step(e *engine) {
	switch {
	case len(e.writes) != 0:
		write := e.writes[0]
		if e.writes = e.writes[1:]; !write() {
			c.say("an engine meets a conflict")
			e.writes = nil
		}
	case e.position == nil:
		p := pki.Position{Want: pki.NewBundle(c.authority.Certificate()), Held: map[string]pki.Held{},
			Settled: c.recorded%2 == 0}
		e.revisions = map[string]int{"state": c.recorded}
		for _, role := range roles {
			s := c.secrets[role]
			if e.revisions[role] = s.revision; s.revision != 0 {
				p.Held[role] = s.Held
			}
			if s.Leaf == nil || s.Leaf == c.due[role] || !c.trusted(s.Leaf, p.Want, x509.ExtKeyUsageAny) {
				p.Due = append(p.Due, role)
			}
		}
		e.position, e.authority = &p, c.authority
	default:
		next := pki.Next(*e.position)
		c.count[next.Action]++
		if (next.Action == pki.Observe || next.Action == pki.Wait) && !e.position.Observed {
			e.position.Observed = true
			for _, p := range c.pods {
				switch {
				case p.silent:
					e.position.Loaded = append(e.position.Loaded, pki.Loaded{Pod: p.name, Role: p.role, Problem: "it does not answer"})
				case p.running():
					e.position.Loaded = append(e.position.Loaded,
						pki.Loaded{Pod: p.name, Role: p.role, Leaf: pki.Fingerprint(p.leaf), Trust: p.trust.Fingerprints()})
				}
			}
			return
		}
		c.decided(e, next)
	}
}

// decided turns a step into the writes that it takes.
func (c *cluster) decided(e *engine, next pki.Step) {
	position, revisions := *e.position, e.revisions
	e.position, e.done = nil, next.Action == pki.Done
	record := func(under bool) func() bool {
		return func() bool {
			if c.recorded != revisions["state"] {
				return false
			}
			if under != (c.recorded%2 == 1) {
				c.recorded++
			}
			return true
		}
	}
	put := func(role string, trust pki.Bundle, leaf func() *x509.Certificate) {
		e.writes = append(e.writes, func() bool {
			if c.secrets[role].revision != revisions[role] {
				return false
			}
			c.write(role, pki.Held{Leaf: leaf(), Trust: trust})
			c.say("%s: %s", next.Action, role)
			return true
		})
	}
	order := c.random.Perm(len(roles))
	switch next.Action {
	case pki.Done:
		e.writes = append(e.writes, record(false))
	case pki.WriteTrust:
		e.writes = append(e.writes, record(true))
		for _, i := range order {
			if s := position.Held[roles[i]]; s.Leaf != nil && !s.Trust.Equal(next.Trust) {
				put(roles[i], next.Trust, func() *x509.Certificate { return s.Leaf })
			}
		}
	case pki.Reissue:
		if !position.Settled {
			e.writes = append(e.writes, record(true))
		}
		for _, i := range order {
			if slices.Contains(next.Roles, roles[i]) {
				put(roles[i], next.Trust,
					func() *x509.Certificate { return parse(c.t, issue(c.t, e.authority, leafOf(roles[i]), now)) })
			}
		}
	}
}

// event is anything that a cluster does to a rotation.
func (c *cluster) event() {
	pick := func() *pod { return c.pods[c.random.IntN(len(c.pods))] }
	// Two Secrets lost at once can take with them the only copy of an authority that is
	// still needed; nothing can make up for that.
	lose := func(how string, lost func(pki.Held) *pki.Held) {
		for _, role := range roles {
			if s := c.secrets[role]; s.Leaf == nil || s.Trust.Empty() {
				return
			}
		}
		role := roles[c.random.IntN(len(roles))]
		c.say("%s: %s", how, role)
		if h := lost(c.secrets[role].Held); h != nil {
			c.write(role, *h)
		} else {
			delete(c.secrets, role)
		}
	}
	switch n := c.random.IntN(100); {
	case n < 50:
		c.step(c.engines[c.random.IntN(len(c.engines))])
	case n < 75:
		c.load(pick())
	case n < 81:
		p := pick()
		p.leaf, p.trust = nil, pki.Bundle{}
		c.load(p)
		c.say("restarted: %s", p.name)
	case n < 83:
		if len(c.pods) < 8 {
			c.addPod(roles[c.random.IntN(2)])
		}
	case n < 85:
		if len(c.pods) > 3 {
			c.pods = slices.Delete(c.pods, 0, 1)
		}
	case n < 89:
		p := pick()
		p.silent = c.random.IntN(5) == 0 // more, and no change would ever get far
	case n < 92:
		e := c.engines[c.random.IntN(len(c.engines))]
		e.position, e.writes = nil, nil
		c.say("an engine is killed")
	case n < 94:
		role := roles[c.random.IntN(len(roles))]
		c.due[role] = c.secrets[role].Leaf
	case n < 95:
		lose("deleted", func(pki.Held) *pki.Held { return nil })
	case n < 96:
		lose("leaf broken", func(h pki.Held) *pki.Held { return &pki.Held{Trust: h.Trust} })
	case n < 97:
		lose("ca.crt lost", func(h pki.Held) *pki.Held { return &pki.Held{Leaf: h.Leaf} })
	case n < 99:
		if len(c.previous) < 6 {
			c.authority = authority(c.t, now, 0)
			c.previous = append(c.previous, c.authority)
			c.say("another CA: %d", len(c.previous))
		}
	default:
		// See Next: this is safe only while nobody is about to drop that authority.
		for _, e := range c.engines {
			e.position, e.writes = nil, nil
		}
		i := c.random.IntN(len(c.previous))
		c.authority = c.previous[i]
		c.say("back to authority %d", i+1)
	}
}

// settle lets everything go right until nothing is left to do.
func (c *cluster) settle() bool {
	e := &engine{}
	for range 200 {
		for _, p := range c.pods {
			p.silent = false
			c.load(p)
		}
		c.step(e)
		if broken := c.broken(); broken != "" {
			c.say("%s", broken)
			return false
		}
		if e.done && len(e.writes) == 0 {
			return true
		}
	}
	c.say("it does not end: %+v", e.position)
	return false
}

// broken says who would be refused now by whom.
func (c *cluster) broken() string {
	members := slices.Clone(c.pods)
	if s := c.secrets[push]; s.Leaf != nil && !s.Trust.Empty() {
		members = append(members, &pod{name: "push", role: push, leaf: s.Leaf, trust: s.Trust})
	}
	for _, registry := range c.pods {
		for _, client := range members {
			switch {
			case registry.role != server || client.role == server || !registry.running() || !client.running():
			case !c.trusted(client.leaf, registry.trust, x509.ExtKeyUsageClientAuth):
				return fmt.Sprintf("%s refuses %s", registry.name, client.name)
			case !c.trusted(registry.leaf, client.trust, x509.ExtKeyUsageServerAuth):
				return fmt.Sprintf("%s refuses %s", client.name, registry.name)
			}
		}
	}
	return ""
}

// trusted is a real verification, once for each question.
func (c *cluster) trusted(leaf *x509.Certificate, trust pki.Bundle, usage x509.ExtKeyUsage) bool {
	question := fmt.Sprint(pki.Fingerprint(leaf), trust.Fingerprints(), usage)
	err, known := c.verified[question]
	if !known {
		options := x509.VerifyOptions{Roots: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}}
		if usage == x509.ExtKeyUsageServerAuth {
			options.DNSName = "registry.zarf.svc"
		}
		for _, cert := range trust.Certificates() {
			options.Roots.AddCert(cert)
		}
		_, err = leaf.Verify(options)
		c.verified[question] = err
	}
	return err == nil
}

// simulate has 400 events happen to a cluster, and says what went wrong.
func simulate(t *testing.T, seed uint64, count map[pki.Action]int) string {
	c := newCluster(t, seed, count)
	last := func(problem string) string { return problem + "\n" + strings.Join(c.log[max(0, len(c.log)-40):], "\n") }
	for range 400 {
		c.event()
		if broken := c.broken(); broken != "" {
			return last(broken)
		}
	}
	if !c.settle() {
		return last("it did not settle")
	}
	want := pki.NewBundle(c.authority.Certificate())
	for _, p := range c.pods {
		if s := c.secrets[p.role]; p.leaf != s.Leaf || !p.trust.Equal(want) ||
			s.Leaf.CheckSignatureFrom(c.authority.Certificate()) != nil || s.Leaf == c.due[p.role] {
			return last(p.name + " has not loaded the present authority and certificate in the end")
		}
	}
	if c.recorded%2 == 1 {
		return last("a change is still recorded in the end")
	}
	return ""
}

// Whatever happens in the middle, no proxy, no registry and nobody who pushes ever
// meets a certificate that it does not trust, and it ends when it is let alone.
func TestNoRotationBreaksAConnection(t *testing.T) {
	count := map[pki.Action]int{}
	for seed := range uint64(40) {
		if problem := simulate(t, seed, count); problem != "" {
			t.Fatalf("seed %d: %s", seed, problem)
		}
	}
	for _, action := range []pki.Action{pki.Done, pki.Observe, pki.Wait, pki.WriteTrust, pki.Reissue} {
		if count[action] < 100 {
			t.Errorf("action %q was taken %d times only: the simulation is not worth much", action, count[action])
		}
	}
	t.Log(count)
}
