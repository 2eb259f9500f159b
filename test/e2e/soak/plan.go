// Package soak plans and evaluates TestSoak: the sequence of faults for a seed, which failures each
// fault excuses and for how long, which ports may be open, and which data must not appear between
// nodes. It does not access the cluster, so it has unit tests; package e2e injects the faults.
package soak

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
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
	// Classes are the failures that are excused.
	Classes []Class
	// Recovery is how long after the repair everything must work again: each node pulls, images are pushed,
	// and zarf-registry status reports a healthy cluster. Until then failures are excused. It is three times what
	// was measured (docs/dev/soak.md), and at least 10 s.
	Recovery time.Duration
	// Excused, if not 0, is how long failures are excused instead.
	Excused time.Duration
	// Outage means that pulls may wait for the repair. Pushes may always.
	Outage bool
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

// excused is how long after the repair failures are excused.
func (k Kind) excused() time.Duration { return cmp.Or(k.Excused, k.Recovery) }

// Kinds that change the plan's own state, or that need more than the test cluster.
const (
	Switch         = "switch modes"
	AddNode        = "add a node"
	RemoveNode     = "remove a node"
	LoseNode       = "lose the registry's node"
	Upgrade        = "upgrade and roll back"
	UpgradeWithout = "upgrade without a node"
	FillVolume     = "fill the volume"
)

// Removed is the variant of [LoseNode] whose node is replaced by another one with its name.
const Removed = "it is replaced"

// NoKubelet is the variant of [UpgradeWithout] whose node runs on without its kubelet. In the other, the node is off.
const NoKubelet = "its kubelet is dead"

// gone are the failures of clients whose server is gone.
var gone = []Class{Refused, Reset, Timeout}

// seconds is a range of durations.
func seconds(from, to int) [2]time.Duration {
	return [2]time.Duration{time.Duration(from) * time.Second, time.Duration(to) * time.Second}
}

// Kinds are all kinds. docs/dev/soak.md describes them.
var Kinds = []Kind{
	{Name: "kill the registry", Recovery: 50 * time.Second, NodePort: Everywhere, Classes: gone, Outage: true,
		Variants: []string{"its pod", "its process"}},
	{Name: "kill a proxy", Recovery: 13 * time.Second, Proxy: OnTarget, Classes: gone, OnNode: true, ProxyOnly: true,
		Variants: []string{"its pod", "its process"}},
	{Name: "kill a kubelet", Recovery: 17 * time.Second, OnNode: true, Holds: seconds(3, 12)},
	{Name: "kill containerd", Recovery: 30 * time.Second, OnNode: true, Holds: seconds(2, 8)},
	// Kubernetes' client gives up after ten attempts in 10 s, and a push with it. A push that has just failed waits
	// for up to 8 s before it tries again.
	{Name: "kill the API server", Recovery: 18 * time.Second, Holds: seconds(3, 6)},
	{Name: "cut a node off", Recovery: 35 * time.Second, NodePort: Everywhere, Classes: gone, Outage: true, OnNode: true,
		Holds: seconds(3, 15)},
	{Name: FillVolume, Recovery: 25 * time.Second, Pushes: true, Classes: []Class{Unavailable, NoSpace},
		Holds: seconds(3, 10)},
	{Name: "corrupt a certificate", Recovery: 10 * time.Second, ProxyOnly: true, Holds: seconds(2, 6),
		Variants: []string{"server-tls", "node-tls"}},
	{Name: "corrupt the push certificate", Recovery: 10 * time.Second, Pushes: true, Classes: []Class{Certificate},
		Holds: seconds(2, 6), Variants: []string{"push-tls"}},
	{Name: "corrupt the payload", Recovery: 10 * time.Second, Proxy: OnTarget, Classes: gone, OnNode: true,
		Holds: seconds(2, 6), Variants: []string{"a bit flipped", "a chunk missing"}},
	{Name: "rotate", Recovery: 10 * time.Second, Variants: []string{"certificates", "CA"}},
	// Until the registry has read the Secret, which it checks each second, it refuses pushes with the new
	// credential.
	{Name: "rotate the credential", Recovery: 10 * time.Second, Excused: 3 * time.Second, Pushes: true,
		Classes: []Class{Unauthorized}},
	{Name: Switch, Recovery: 10 * time.Second},
	// To a version with the same programs.
	{Name: Upgrade, Recovery: 10 * time.Second},
	{Name: AddNode, Recovery: 13 * time.Second},
	{Name: RemoveNode, Recovery: 30 * time.Second, Proxy: OnTarget, NodePort: Everywhere, Classes: gone, OnNode: true},
	{Name: "reboot a node", Recovery: 40 * time.Second, Proxy: OnTarget, NodePort: Everywhere, Classes: gone, Outage: true,
		OnNode: true},
	// Longer than proxies hold pulls, which then get 503.
	{Name: LoseNode, Recovery: 45 * time.Second, Proxy: Everywhere, NodePort: Everywhere, Pushes: true,
		Classes: append(slices.Clone(gone), Unavailable), Outage: true,
		Variants: []string{"it comes back", Removed}},
	// The caller chooses a node that a single registry does not need. A second registry may be lost with it.
	{Name: UpgradeWithout, Recovery: 40 * time.Second, Proxy: OnTarget, NodePort: Everywhere, Pushes: true,
		Classes: append(slices.Clone(gone), Unavailable), Outage: true, Variants: []string{"it is off", NoKubelet}},
}

// Short is the sequence of faults of make soak-short: those that no other scenario injects. It takes about
// 90 s with [ShortSeed]. It has no mode switch, which takes 30 s: TestHelm, TestCrash and TestReplicas
// switch modes while nodes pull.
var Short = []string{
	"kill a kubelet", "cut a node off", "kill containerd", FillVolume, "kill a proxy",
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
	// Without are kinds that the plan does not choose.
	Without []string

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
			if k.Name != RemoveNode && !slices.Contains(p.Without, k.Name) {
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
