// Package soak plans and evaluates TestSoak: the sequence of faults for a seed, which failures each
// fault excuses and for how long, which ports may be open, and which data must not appear between
// nodes. It does not access the cluster, so it has unit tests; package e2e injects the faults.
package soak

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

const (
	// ExcuseGrace is how long after the repair of a fault its excuses still apply: a killed pod must
	// be scheduled, started and found on a busy machine.
	ExcuseGrace = 60 * time.Second
	// RecoveryTimeout is how long after the repair of a fault everything must work again: each node
	// pulls, images are pushed, and init-hook status reports a healthy cluster.
	RecoveryTimeout = 90 * time.Second
)

// A Scope is a set of nodes on which pulls may fail.
type Scope int

const (
	Nowhere    Scope = iota
	OnTarget         // on the node of the fault
	Everywhere       // the fault may take the registry down, and nothing holds pulls
)

func (s Scope) String() string { return [...]string{"none", "on that node", "on all nodes"}[s] }

// A Kind is a kind of fault and what it may break. Nothing else may fail.
type Kind struct {
	Name string
	// Proxy and NodePort are where pulls may fail in each mode.
	Proxy, NodePort Scope
	// Pushes may fail. They reach the registry through the API server and the kubelet of the
	// registry's node.
	Pushes bool
	// OnNode means that the fault is about one node.
	OnNode bool
	// ProxyOnly means that the fault does not exist in nodeport mode.
	ProxyOnly bool
	// Holds are the minimum and maximum duration, 0 if the fault ends by itself. None is longer than
	// the proxies hold pulls (60 s) or the node grace period (50 s).
	Holds [2]time.Duration
	// Variants are ways to inject the fault; one is chosen.
	Variants []string
}

// Kinds that change the plan's own state.
const (
	Switch     = "switch modes"
	AddNode    = "add a node"
	RemoveNode = "remove a node"
)

// Kinds are all kinds. docs/soak.md describes them.
var Kinds = []Kind{
	{Name: "kill the registry", NodePort: Everywhere, Variants: []string{"its pod", "its process"}},
	{Name: "kill a proxy", Proxy: OnTarget, OnNode: true, ProxyOnly: true, Variants: []string{"its pod", "its process"}},
	{Name: "kill a kubelet", Pushes: true, OnNode: true, Holds: [2]time.Duration{3 * time.Second, 12 * time.Second}},
	{Name: "kill containerd", Pushes: true, OnNode: true, Holds: [2]time.Duration{2 * time.Second, 8 * time.Second}},
	{Name: "kill the API server", Pushes: true, Holds: [2]time.Duration{3 * time.Second, 15 * time.Second}},
	{Name: "cut a node off", NodePort: Everywhere, Pushes: true, OnNode: true,
		Holds: [2]time.Duration{3 * time.Second, 15 * time.Second}},
	{Name: "fill the volume", Pushes: true, Holds: [2]time.Duration{3 * time.Second, 10 * time.Second}},
	{Name: "corrupt a certificate", Holds: [2]time.Duration{2 * time.Second, 6 * time.Second},
		Variants: []string{"server-tls", "node-tls"}},
	{Name: "corrupt the push certificate", Pushes: true, Holds: [2]time.Duration{2 * time.Second, 6 * time.Second},
		Variants: []string{"push-tls"}},
	{Name: "corrupt the payload", Proxy: OnTarget, OnNode: true, Holds: [2]time.Duration{2 * time.Second, 6 * time.Second},
		Variants: []string{"a bit flipped", "a chunk missing"}},
	{Name: "rotate", Variants: []string{"certificates", "CA"}},
	// Until the registry has read the Secret, it refuses pushes with the new credential.
	{Name: "rotate the credential", Pushes: true},
	{Name: Switch},
	{Name: "upgrade and roll back", NodePort: Everywhere},
	{Name: AddNode},
	{Name: RemoveNode, Proxy: OnTarget, NodePort: Everywhere, OnNode: true},
}

// Short is the sequence of faults of make test: those that no other scenario injects. It takes about
// 90 s with [ShortSeed]. It has no mode switch, which takes 30 s: TestHelm, TestCrash and TestReplicas
// switch modes while nodes pull.
var Short = []string{
	"kill a kubelet", "cut a node off", "kill containerd", "fill the volume", "kill a proxy",
	"corrupt the push certificate",
}

// ShortSeed determines the nodes, durations and variants of [Short].
const ShortSeed = 1

// KindOf returns the kind with that name, which must be in [Kinds].
func KindOf(name string) Kind {
	i := slices.IndexFunc(Kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		panic("unknown kind of fault: " + name)
	}
	return Kinds[i]
}

// A Step is one fault of a plan.
type Step struct {
	Kind    Kind
	Node    string // of the fault; empty for none
	Hold    time.Duration
	Variant string
	// Proxy is whether the cluster is in proxy mode before the step.
	Proxy bool
	// NoWait starts the next step right after the repair, before the cluster has recovered.
	NoWait bool
}

// Pulls returns where pulls may fail.
func (s Step) Pulls() Scope {
	if s.Proxy {
		return s.Kind.Proxy
	}
	return s.Kind.NodePort
}

func (s Step) String() string {
	words := []string{s.Kind.Name}
	if s.Kind.Name == Switch {
		words = append(words, map[bool]string{true: "to nodeport mode", false: "to proxy mode"}[s.Proxy])
	}
	if s.Variant != "" {
		words = append(words, "("+s.Variant+")")
	}
	if s.Node != "" {
		words = append(words, "("+s.Node+")")
	}
	if s.Hold > 0 {
		words = append(words, "for "+s.Hold.String())
	}
	if s.NoWait {
		words = append(words, "without waiting")
	}
	return strings.Join(words, " ")
}

// A Plan is an endless sequence of steps. It depends only on its seed, not on time or on the
// cluster.
type Plan struct {
	random *rand.Rand
	proxy  bool
	nodes  []string
	extra  string // the added node, if any
	added  int
	deck   []string
	// Steps until the mode is switched back, or the added node is removed.
	back, leave int
}

// NewPlan returns a plan for a cluster in proxy mode with these nodes. It begins with the kinds
// named in first, in that order.
func NewPlan(seed uint64, nodes []string, first ...string) *Plan {
	return &Plan{random: rand.New(rand.NewPCG(seed, 0)), proxy: true, nodes: slices.Clone(nodes),
		deck: slices.Clone(first)}
}

// Next returns the next step. Each kind occurs once before any occurs again. Nodeport mode and an
// added node last for a few steps.
func (p *Plan) Next() Step {
	step := Step{Kind: KindOf(p.draw()), Proxy: p.proxy}
	switch k := step.Kind; {
	case k.Name == AddNode:
		p.added++
		p.extra = fmt.Sprintf("late%d", p.added)
		step.Node = p.extra
		p.leave = 2 + p.random.IntN(3)
	case k.Name == RemoveNode:
		step.Node, p.extra = p.extra, ""
	case k.Name == Switch:
		p.proxy = !p.proxy
		p.back = 1 + p.random.IntN(3)
	case k.OnNode:
		all := p.nodes
		if p.extra != "" {
			all = append(slices.Clone(all), p.extra)
		}
		step.Node = all[p.random.IntN(len(all))]
	}
	if k := step.Kind; k.Holds[1] > 0 {
		const unit = time.Second / 10
		step.Hold = k.Holds[0] + unit*time.Duration(p.random.Int64N(int64((k.Holds[1]-k.Holds[0])/unit)+1))
		// Faults that need a command to repair them are followed by a recovery.
		step.NoWait = k.Variants == nil && p.random.IntN(4) == 0
	}
	if n := len(step.Kind.Variants); n > 0 {
		step.Variant = step.Kind.Variants[p.random.IntN(n)]
	}
	return step
}

// draw takes the next playable card. Reverting the mode or an added node comes first.
func (p *Plan) draw() string {
	if !p.proxy {
		if p.back--; p.back < 0 {
			return Switch
		}
	}
	if p.extra != "" {
		if p.leave--; p.leave < 0 {
			return RemoveNode
		}
	}
	for {
		for i, name := range p.deck {
			if p.playable(KindOf(name)) {
				p.deck = slices.Delete(p.deck, i, i+1)
				return name
			}
		}
		for _, k := range Kinds {
			if k.Name != RemoveNode {
				p.deck = append(p.deck, k.Name)
			}
		}
		p.random.Shuffle(len(p.deck), func(i, j int) { p.deck[i], p.deck[j] = p.deck[j], p.deck[i] })
	}
}

func (p *Plan) playable(k Kind) bool {
	switch {
	case k.Name == Switch, k.ProxyOnly:
		return p.proxy
	case k.Name == AddNode:
		return p.extra == ""
	}
	return true
}
