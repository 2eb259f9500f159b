package pki_test

import (
	"crypto/x509"
	"slices"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/internal/pki"
)

const (
	server = pki.OrganizationServer
	node   = pki.OrganizationNode
	push   = pki.OrganizationPush
	cache  = pki.OrganizationCache
)

func leafOf(role string) pki.Leaf {
	switch role {
	case server:
		return serverLeaf()
	case node:
		return nodeLeaf()
	}
	return pki.Leaf{CommonName: "push", Organization: push, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

// held are three Secrets with leaves of a and the given trust.
func held(t *testing.T, a *pki.CA, trust pki.Bundle) map[string]pki.Held {
	t.Helper()
	out := map[string]pki.Held{}
	for _, role := range []string{server, node, push} {
		out[role] = pki.Held{Leaf: parse(t, issue(t, a, leafOf(role), now)), Trust: trust}
	}
	return out
}

// loadedAs is a pod that has loaded what its Secret holds.
func loadedAs(pod, role string, secrets map[string]pki.Held) pki.Loaded {
	return pki.Loaded{Pod: pod, Role: role, Leaf: pki.Fingerprint(secrets[role].Leaf),
		Trust: secrets[role].Trust.Fingerprints()}
}

func TestNext(t *testing.T) {
	oldCA, newCA, nextCA := authority(t, now, 0), authority(t, now, 0), authority(t, now, 0)
	bundle := func(as ...*pki.CA) pki.Bundle {
		var b pki.Bundle
		for _, a := range as {
			b = b.Union(pki.NewBundle(a.Certificate()))
		}
		return b
	}
	was, both, is := bundle(oldCA), bundle(oldCA, newCA), bundle(newCA)
	began := held(t, oldCA, was)     // before a rotation
	overlap := held(t, oldCA, both)  // trust is written
	reissued := held(t, newCA, both) // leaves are written
	ended := held(t, newCA, is)      // the previous CA is dropped
	with := func(secrets map[string]pki.Held, role string, h pki.Held) map[string]pki.Held {
		out := map[string]pki.Held{}
		for r, s := range secrets {
			out[r] = s
		}
		out[role] = h
		return out
	}
	pods := func(registry, proxy map[string]pki.Held) []pki.Loaded {
		return []pki.Loaded{loadedAs("registry-0", server, registry), loadedAs("proxy-a", node, proxy),
			loadedAs("proxy-b", node, proxy)}
	}
	silent := pki.Loaded{Pod: "proxy-c", Role: node, Problem: "it does not answer"}
	silentRegistry := pki.Loaded{Pod: "registry-1", Role: server, Problem: "it does not answer"}
	all := []string{node, push, server}
	fingerprint := func(a *pki.CA) string { return pki.Fingerprint(a.Certificate())[:16] }

	cases := map[string]struct {
		at      pki.Position
		action  pki.Action
		trust   pki.Bundle
		drops   bool
		roles   []string
		waiting []string // a part of each line
	}{
		"first install: nothing is held, and no pod runs": {at: pki.Position{Want: is, Due: all, Settled: true},
			action: pki.Reissue, trust: is, roles: all},
		"first install, where a previous attempt was recorded": {at: pki.Position{Want: is, Due: all, Observed: true},
			action: pki.Reissue, trust: is, roles: all},
		"a settled cluster needs nothing, and nobody is asked": {at: pki.Position{Want: was, Held: began, Settled: true},
			action: pki.Done},
		"a leaf past half of its life is replaced at once where all is settled": {
			at:     pki.Position{Want: was, Held: began, Due: []string{node}, Settled: true},
			action: pki.Reissue, trust: was, roles: []string{node},
		},
		"so is a deleted Secret, though it trusts nothing": {
			at:     pki.Position{Want: was, Held: with(began, server, pki.Held{}), Due: []string{server}, Settled: true},
			action: pki.Reissue, trust: was, roles: []string{server},
		},
		"a Secret without a leaf is due though nobody said so": {
			at:     pki.Position{Want: was, Held: with(began, server, pki.Held{Trust: was}), Settled: true},
			action: pki.Reissue, trust: was, roles: []string{server},
		},
		"1: a new CA is first trusted beside the previous": {
			at:     pki.Position{Want: is, Held: began, Due: all, Settled: true},
			action: pki.WriteTrust, trust: both,
		},
		"1: also where that was written to some Secrets only": {
			at:     pki.Position{Want: is, Held: with(began, server, overlap[server]), Due: all},
			action: pki.WriteTrust, trust: both,
		},
		"1: a second rotation keeps the authorities of the first": {
			at:     pki.Position{Want: bundle(nextCA), Held: with(overlap, server, reissued[server]), Due: all},
			action: pki.WriteTrust, trust: bundle(oldCA, newCA, nextCA),
		},
		"1: a second rotation while the first drops keeps what is still trusted somewhere": {
			at:     pki.Position{Want: bundle(nextCA), Held: with(reissued, node, ended[node]), Due: all},
			action: pki.WriteTrust, trust: bundle(oldCA, newCA, nextCA),
		},
		"1: a Secret without a leaf still says what was trusted": {
			at: pki.Position{Want: is, Held: map[string]pki.Held{server: {Trust: was}, node: {Leaf: ended[node].Leaf}},
				Due: all},
			action: pki.WriteTrust, trust: both,
		},
		"1: a lost ca.crt comes back without asking anybody": {
			at:     pki.Position{Want: was, Held: with(began, node, pki.Held{Leaf: began[node].Leaf}), Settled: true},
			action: pki.WriteTrust, trust: was,
		},
		"1: an authority more to trust is added without asking anybody": {
			at:     pki.Position{Want: both, Held: began, Settled: true},
			action: pki.WriteTrust, trust: both,
		},
		"2: before a leaf of another authority, the pods are looked at": {
			at:     pki.Position{Want: is, Held: overlap, Due: all},
			action: pki.Observe,
		},
		"2: trust that is written but not loaded is waited for": {
			at:     pki.Position{Want: is, Held: overlap, Due: all, Observed: true, Loaded: pods(overlap, began)},
			action: pki.Wait, waiting: []string{"proxy-a: it does not trust", "proxy-b: it does not trust"},
		},
		"2: so is the registry": {
			at:     pki.Position{Want: is, Held: overlap, Due: all, Observed: true, Loaded: pods(began, overlap)},
			action: pki.Wait, waiting: []string{"(SHA-256 " + fingerprint(newCA) + ") yet"},
		},
		"2: so is a pod that cannot be asked": {
			at: pki.Position{Want: is, Held: overlap, Due: all, Observed: true,
				Loaded: append(pods(overlap, overlap), silent)},
			action: pki.Wait, waiting: []string{"proxy-c: it does not answer"},
		},
		"2: unless a leaf is about to expire": {
			at: pki.Position{Want: is, Held: overlap, Due: all, Observed: true, Urgent: true,
				Loaded: append(pods(overlap, overlap), silent)},
			action: pki.Reissue, trust: both, roles: all, waiting: []string{"proxy-c: it does not answer"},
		},
		"2: even then, pods that lack trust are waited for": {
			at: pki.Position{Want: is, Held: overlap, Due: all, Observed: true, Urgent: true,
				Loaded: append(pods(overlap, began), silent)},
			action: pki.Wait, waiting: []string{"proxy-a: it does not trust", "proxy-b: it does not trust",
				"proxy-c: it does not answer"},
		},
		"2: until they had much longer than a kubelet takes": {
			at: pki.Position{Want: is, Held: overlap, Due: all, Observed: true, Urgent: true, Overdue: true,
				Loaded: append(pods(overlap, began), silent)},
			action: pki.Reissue, trust: both, roles: all, waiting: []string{"proxy-a: it does not trust",
				"proxy-b: it does not trust", "proxy-c: it does not answer"},
		},
		"2: leaves follow when all pods trust the new authority": {
			at:     pki.Position{Want: is, Held: overlap, Due: all, Observed: true, Loaded: pods(overlap, overlap)},
			action: pki.Reissue, trust: both, roles: all,
		},
		"2: and what an interrupted run left of them": {
			at: pki.Position{Want: is, Held: with(overlap, server, reissued[server]), Due: []string{node, push},
				Observed: true, Loaded: pods(overlap, overlap)},
			action: pki.Reissue, trust: both, roles: []string{node, push},
		},
		"2: without pods there is nobody to wait for": {
			at:     pki.Position{Want: is, Held: overlap, Due: all, Observed: true},
			action: pki.Reissue, trust: both, roles: all,
		},
		"2: a recorded change is not settled, even where all Secrets are equal": {
			at:     pki.Position{Want: is, Held: ended, Due: []string{node}},
			action: pki.Observe,
		},
		"2: nor are unequal Secrets settled, even without a record": {
			at:     pki.Position{Want: is, Held: overlap, Due: all, Settled: true},
			action: pki.Observe,
		},
		"2: a Secret without a leaf gets it first, when its peers trust it": {
			at: pki.Position{Want: is, Held: with(overlap, server, pki.Held{}), Due: all, Observed: true,
				Loaded: append(pods(began, overlap), silentRegistry)},
			action: pki.Reissue, trust: both, roles: []string{server},
		},
		"2: not before its peers do": {
			at: pki.Position{Want: is, Held: with(overlap, server, pki.Held{}), Due: all, Observed: true,
				Loaded: pods(began, began)},
			action: pki.Wait, waiting: []string{"proxy-a: it does not trust", "proxy-b: it does not trust"},
		},
		"2: where all trust it, it does not go alone": {
			at: pki.Position{Want: is, Held: with(overlap, server, pki.Held{}), Due: all, Observed: true,
				Loaded: pods(overlap, overlap)},
			action: pki.Reissue, trust: both, roles: all,
		},
		"2: where no Secret has a leaf, there is nothing to wait for": {
			at: pki.Position{Want: is, Held: map[string]pki.Held{server: {Trust: was}, node: {}}, Due: all, Settled: true,
				Observed: true, Loaded: pods(began, began)},
			action: pki.Reissue, trust: both, roles: all,
		},
		"3: before the previous CA is dropped, the pods are looked at": {at: pki.Position{Want: is, Held: reissued},
			action: pki.Observe},
		"3: also where nothing is recorded": {at: pki.Position{Want: is, Held: reissued, Settled: true},
			action: pki.Observe},
		"3: it stays while a pod shows a certificate of it": {
			at:     pki.Position{Want: is, Held: reissued, Observed: true, Loaded: pods(reissued, overlap)},
			action: pki.Wait, waiting: []string{"proxy-a: it still presents the certificate with SHA-256 " +
				pki.Fingerprint(overlap[node].Leaf)[:16], "proxy-b: it still presents"},
		},
		"3: and while a pod cannot be asked": {
			at:     pki.Position{Want: is, Held: reissued, Observed: true, Loaded: append(pods(reissued, reissued), silent)},
			action: pki.Wait, waiting: []string{"proxy-c: it does not answer"},
		},
		"3: and while there is a pod of a role that is unknown": {
			at:     pki.Position{Want: is, Held: reissued, Observed: true, Loaded: []pki.Loaded{{Pod: "other", Role: "other"}}},
			action: pki.Wait, waiting: []string{`other: there is no certificate for its role "other"`},
		},
		"3: then it is dropped": {
			at:     pki.Position{Want: is, Held: reissued, Observed: true, Loaded: pods(reissued, reissued)},
			action: pki.WriteTrust, trust: is, drops: true,
		},
		"3: and what an interrupted run left of that": {
			at: pki.Position{Want: is, Held: with(reissued, server, ended[server]), Observed: true,
				Loaded: pods(reissued, reissued)},
			action: pki.Wait, waiting: []string{"registry-0: it still presents"}, // ended has leaves of its own
		},
		"3: a rotation that is taken back drops the new authority": {
			at:     pki.Position{Want: was, Held: overlap, Observed: true, Loaded: pods(overlap, overlap)},
			action: pki.WriteTrust, trust: was, drops: true,
		},
		"4: at the end the pods are looked at again": {at: pki.Position{Want: is, Held: ended}, action: pki.Observe},
		"4: it has not ended while a pod trusts the previous CA": {
			at: pki.Position{Want: is, Held: ended, Observed: true,
				Loaded: []pki.Loaded{loadedAs("registry-0", server, ended),
					{Pod: "proxy-a", Role: node, Leaf: pki.Fingerprint(ended[node].Leaf), Trust: both.Fingerprints()}}},
			action: pki.Wait, waiting: []string{"proxy-a: it still trusts the previous CA with SHA-256 " + fingerprint(oldCA)},
		},
		"4: nor while one does not trust the new": {
			at: pki.Position{Want: is, Held: ended, Observed: true,
				Loaded: []pki.Loaded{{Pod: "proxy-a", Role: node, Leaf: pki.Fingerprint(ended[node].Leaf)}}},
			action: pki.Wait, waiting: []string{"proxy-a: it does not trust"},
		},
		"4: nor while one shows another certificate": {
			at: pki.Position{Want: is, Held: ended, Observed: true,
				Loaded: []pki.Loaded{{Pod: "proxy-a", Role: node, Trust: is.Fingerprints(), Leaf: "ab"}}},
			action: pki.Wait, waiting: []string{"proxy-a: it still presents the certificate with SHA-256 ab, not"},
		},
		"4: it has ended when all have loaded all": {
			at:     pki.Position{Want: is, Held: ended, Observed: true, Loaded: pods(ended, ended)},
			action: pki.Done,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := pki.Next(c.at)
			if got.Action != c.action || !got.Trust.Equal(c.trust) || got.Drops != c.drops ||
				!slices.Equal(got.Roles, c.roles) || got.Why == "" {
				t.Errorf("got %s %q (drops: %v, roles %q, waiting %q, why %q)\nwant %s %q (drops: %v, roles %q)",
					got.Action, got.Trust.Fingerprints(), got.Drops, got.Roles, got.Waiting, got.Why, c.action, c.trust.Fingerprints(),
					c.drops, c.roles)
			}
			if len(got.Waiting) != len(c.waiting) {
				t.Fatalf("waits for %q, want %q", got.Waiting, c.waiting)
			}
			for i, part := range c.waiting {
				if !strings.Contains(got.Waiting[i], part) {
					t.Errorf("waits for %q, want %q", got.Waiting[i], part)
				}
			}
			if !c.at.Observed && got.Action == pki.Wait {
				t.Error("it waits for what nobody looked at")
			}
		})
	}
}
