package state_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

func internalPKI(change ...func(*state.PKI)) state.PKI {
	p := state.PKI{Mode: state.PKIInternal, LeafLifetime: state.Duration(8760 * time.Hour),
		CALifetime: state.Duration(43800 * time.Hour), ClusterDomain: "cluster.local"}
	for _, c := range change {
		c(&p)
	}
	return p
}

var (
	existing = &state.ExistingSecrets{Server: "corp-server", Node: "corp-node"}
	issuer   = &state.Issuer{Name: "corp", Kind: "ClusterIssuer", Group: "cert-manager.io"}
)

func TestPKIValidateRejects(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*state.PKI)
		want   string
	}{
		"an unknown mode": {func(p *state.PKI) { p.Mode = "vault" },
			`unknown mode "vault": want internal, existingSecret or certManager`},
		"no mode":                 {func(p *state.PKI) { *p = state.PKI{} }, `unknown mode ""`},
		"no certificate lifetime": {func(p *state.PKI) { p.LeafLifetime = 0 }, "certificate lifetime 0s must be positive"},
		"a short CA lifetime": {func(p *state.PKI) { p.CALifetime = p.LeafLifetime },
			"want at least twice as much"},
		"existing Secrets in another mode": {func(p *state.PKI) { p.Existing = existing },
			"existing Secrets must be set in mode existingSecret, and only there"},
		"no existing Secrets": {func(p *state.PKI) { p.Mode = state.PKIExistingSecret },
			"must be set in mode existingSecret"},
		"existing Secrets without the node's": {func(p *state.PKI) {
			p.Mode, p.Existing = state.PKIExistingSecret, &state.ExistingSecrets{Server: "x"}
		}, "server and node Secrets"},
		"an issuer in another mode": {func(p *state.PKI) { p.Issuer = issuer },
			"an issuer must be set in mode certManager, and only there"},
		"an issuer without a kind": {func(p *state.PKI) {
			p.Mode, p.Issuer = state.PKICertManager, &state.Issuer{Name: "x", Group: "y"}
		}, "an issuer needs a name, a kind and a group"},
		"no issuer": {func(p *state.PKI) { p.Mode = state.PKICertManager },
			"an issuer must be set in mode certManager"},
		"Zarf's certificate in another mode": {func(p *state.PKI) { p.Mode, p.Issuer, p.Zarf = state.PKICertManager, issuer, true },
			"the client certificate of Zarf is issued in mode internal only"},
		"no cluster domain": {func(p *state.PKI) { p.ClusterDomain = "" }, "cluster domain is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			p := internalPKI(c.change)
			if err := p.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
			if _, err := state.Encode(state.State{Phase: state.PhasePrepared, Desired: settings(), PKI: &p}, nil); err == nil ||
				!strings.Contains(err.Error(), "pki: ") {
				t.Errorf("it is encoded: %v", err)
			}
		})
	}
	s := state.State{Phase: state.PhasePrepared, Desired: settings(), Rotation: &state.Rotation{Phase: "waning"}}
	if _, err := state.Encode(s, nil); err == nil || !strings.Contains(err.Error(), `rotation: unknown phase "waning"`) {
		t.Errorf("error is %v", err)
	}
}

func TestDurationsStandInJSONAsInGo(t *testing.T) {
	data, err := json.Marshal(state.Duration(90 * time.Minute))
	if err != nil || string(data) != `"1h30m0s"` {
		t.Errorf("it is %s (%v)", data, err)
	}
	var d state.Duration
	if err := json.Unmarshal([]byte(`"8760h"`), &d); err != nil || time.Duration(d) != 8760*time.Hour {
		t.Errorf("it is %s (%v)", d, err)
	}
	if err := json.Unmarshal([]byte(`"a year"`), &d); err == nil {
		t.Error("a year is a duration")
	}
}

func TestOwnCA(t *testing.T) {
	for want, p := range map[bool]state.PKI{
		false: {Mode: state.PKIExistingSecret, Existing: &state.ExistingSecrets{Push: "p"}},
		true:  {Mode: state.PKIExistingSecret, Cache: true, Existing: &state.ExistingSecrets{Push: "p"}},
	} {
		if p.OwnCA() != want {
			t.Errorf("an own CA with %+v: %t", p.Existing, p.OwnCA())
		}
	}
}
