package state_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/internal/state"
)

func settings() state.Settings {
	return state.Settings{
		Mode: state.ModeProxy, Address: "127.0.0.1:31999", Port: 31999,
		IPFamily: state.IPv4, MTLS: "internal", DecidedBy: state.SourceValue,
	}
}

func TestWhatWasEncodedIsDecoded(t *testing.T) {
	current := settings()
	for name, s := range map[string]state.State{
		"prepared": {Phase: state.PhasePrepared, Desired: settings()},
		"ready": {Phase: state.PhaseReady, Desired: settings(), Current: &current, Nodes: []string{"n1", "n2"},
			UpdatedBy: "0.1.0", UpdatedAt: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)},
		"with an image for later Jobs": {Phase: state.PhasePrepared, Desired: settings(),
			HookImage: &state.HookImage{Reference: "zarf-registry/init-hook:0.1.0", Architecture: "amd64"}},
		"nodeport": {Phase: state.PhasePrepared, Current: &current,
			Desired: state.Settings{Mode: state.ModeNodePort, Address: "[::1]:31999", Port: 31999, IPFamily: state.IPv6, MTLS: "internal", DecidedBy: state.SourceCluster}},
		"external, which has no port and no certificates": {Phase: state.PhasePrepared,
			Desired: state.Settings{Mode: state.ModeExternal, Address: "registry.example.com/team", IPFamily: state.IPv4, DecidedBy: state.SourceState}},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := state.Encode(s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := state.Decode(data)
			if err != nil {
				t.Fatal(err)
			}
			s.Version = state.Version
			if diff := cmp.Diff(s, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAStateThatCannotBeUnderstoodIsRefused(t *testing.T) {
	good := `{"version":1,"phase":"prepared","desired":{"mode":"proxy","address":"127.0.0.1:31999","port":31999,"ipFamily":"IPv4","hostNetwork":false,"mtls":"internal","decidedBy":"value"},"updatedBy":"","updatedAt":"2026-11-20T12:00:00Z"}`
	if _, err := state.Decode([]byte(good)); err != nil {
		t.Fatalf("the good state is refused: %v", err)
	}
	replace := func(old, new string) string {
		changed := strings.Replace(good, old, new, 1)
		if changed == good {
			t.Fatalf("%q is not in the good state", old)
		}
		return changed
	}
	for name, c := range map[string]struct{ data, want string }{
		"empty":           {"", "unexpected end"},
		"not JSON":        {"rubbish", "invalid character"},
		"cut short":       {good[:40], "unexpected end"},
		"two of them":     {good + "{}", "after top-level value"},
		"newer version":   {replace(`"version":1`, `"version":2,"colour":"blue"`), "reads up to version 1"},
		"no version":      {replace(`"version":1,`, ``), "version 0"},
		"unknown field":   {replace(`"phase"`, `"colour":"blue","phase"`), "unknown field"},
		"unknown mode":    {replace(`"proxy"`, `"carrier pigeon"`), "carrier pigeon"},
		"unknown phase":   {replace(`"prepared"`, `"waning"`), "waning"},
		"unknown family":  {replace(`"IPv4"`, `"IPX"`), "IPX"},
		"impossible port": {replace(`"port":31999`, `"port":70000`), "70000"},
		"ready, unproven": {replace(`"prepared"`, `"ready"`), "nothing is current"},
		"no port":         {replace(`"port":31999`, `"port":0`), "port 0"},
		"half an image":   {replace(`"updatedBy"`, `"hookImage":{"reference":"zarf-registry/init-hook:1","architecture":""},"updatedBy"`), "incomplete"},
		"half a current":  {replace(`"updatedBy"`, `"current":{"mode":"proxy"},"updatedBy"`), "current: "},
		"no address":      {replace(`"127.0.0.1:31999"`, `""`), "address is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := state.Decode([]byte(c.data))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestSettingsAreTheSameWhoeverDecidedThem(t *testing.T) {
	a, b := settings(), settings()
	b.DecidedBy = state.SourceState
	if !a.Same(b) {
		t.Error("another decision for the same settings makes them differ")
	}
	b.HostNetwork = true
	if a.Same(b) {
		t.Error("host network makes no difference")
	}
}

func FuzzDecode(f *testing.F) {
	data, err := state.Encode(state.State{Phase: state.PhasePrepared, Desired: settings()})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := state.Decode(data)
		if err != nil {
			return
		}
		again, err := state.Encode(s)
		if err != nil {
			t.Fatalf("decoded but cannot be encoded: %v", err)
		}
		if _, err := state.Decode(again); err != nil {
			t.Fatalf("encoded but cannot be decoded: %v", err)
		}
	})
}
