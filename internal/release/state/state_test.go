package state_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

func settings() state.Settings {
	return state.Settings{
		Mode: state.ModeProxy, Address: "127.0.0.1:31999", Port: 31999,
		IPFamily: state.IPv4, PKIMode: "internal", DecidedBy: state.SourceValue,
	}
}

func TestDecodeReturnsWhatWasEncoded(t *testing.T) {
	current := settings()
	with := func(change ...func(*state.PKI)) *state.PKI {
		p := internalPKI(change...)
		return &p
	}
	for name, s := range map[string]state.State{
		"ready": {Phase: state.PhaseReady, Desired: settings(), Current: &current, VerifiedNodes: []string{"n1", "n2"},
			UpdatedBy: "0.1.0", UpdatedAt: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), PKI: with()},
		"with a hook image": {HookImage: &state.HookImage{Reference: "zarf-registry/init-hook:0.1.0", Architecture: "amd64"}},
		"nodeport": {Current: &current,
			Desired: state.Settings{Mode: state.ModeNodePort, Address: "[::1]:31999", Port: 31999, IPFamily: state.IPv6,
				PKIMode: "internal", DecidedBy: state.SourceCluster}},
		"external, without port and certificates": {Desired: state.Settings{Mode: state.ModeExternal,
			Address: "registry.example.com/team", IPFamily: state.IPv4, DecidedBy: state.SourceState}},
		"a rotation": {PushSecret: "corp-credential",
			Rotation: &state.Rotation{Phase: state.RotationReissue, Reason: "it was asked for",
				Since: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), Waiting: "pod zarf/x"}},
		"Zarf's certificate, and caches": {PKI: with(func(p *state.PKI) { p.Zarf, p.Cache = true, true })},
		"existing Secrets": {PKI: with(func(p *state.PKI) {
			p.Mode, p.Existing, p.ServeTLS = state.PKIExistingSecret, existing, true
		})},
		"cert-manager": {PKI: with(func(p *state.PKI) { p.Mode, p.Issuer = state.PKICertManager, issuer })},
	} {
		t.Run(name, func(t *testing.T) {
			s.Version = state.Version
			if s.Phase == "" {
				s.Phase = state.PhasePrepared
			}
			if s.Desired == (state.Settings{}) {
				s.Desired = settings()
			}
			data := require.Value(state.Encode(s, nil))(t)
			got := require.Value(state.Decode(data))(t)
			if diff := cmp.Diff(s, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecodeRejects(t *testing.T) {
	valid := `{"version":1,"phase":"prepared","desired":{"mode":"proxy","address":"127.0.0.1:31999","port":31999,"ipFamily":"IPv4","hostNetwork":false,"pkiMode":"internal","decidedBy":"value"},"updatedBy":"","updatedAt":"2026-11-20T12:00:00Z"}`
	if _, err := state.Decode([]byte(valid)); err != nil {
		t.Fatalf("the valid state is rejected: %v", err)
	}
	replace := func(old, new string) string {
		changed := strings.Replace(valid, old, new, 1)
		if changed == valid {
			t.Fatalf("%q is not in the valid state", old)
		}
		return changed
	}
	for name, c := range map[string]struct{ data, want string }{
		"empty":       {"", "unexpected end"},
		"not JSON":    {"rubbish", "invalid character"},
		"cut short":   {valid[:40], "unexpected end"},
		"two of them": {valid + "{}", "after top-level value"},
		"newer version": {strings.Replace(replace(`"version":1`, `"version":2`), `"updatedBy":""`, `"updatedBy":"9.8.7"`, 1),
			"its format has version 2, written by 9.8.7, and this program (dev) supports version 1: use the release that wrote it"},
		"no version":          {replace(`"version":1,`, ``), "version 0, written by an unknown release"},
		"unknown mode":        {replace(`"proxy"`, `"carrier pigeon"`), "carrier pigeon"},
		"unknown phase":       {replace(`"prepared"`, `"waning"`), "waning"},
		"unknown family":      {replace(`"IPv4"`, `"IPX"`), "IPX"},
		"impossible port":     {replace(`"port":31999`, `"port":70000`), "70000"},
		"ready, not verified": {replace(`"prepared"`, `"ready"`), "current is not set"},
		"no port":             {replace(`"port":31999`, `"port":0`), "port 0"},
		"half an image": {replace(`"updatedBy"`,
			`"hookImage":{"reference":"zarf-registry/init-hook:1","architecture":""},"updatedBy"`), "incomplete"},
		"half a current": {replace(`"updatedBy"`, `"current":{"mode":"proxy"},"updatedBy"`), "current: "},
		"no address":     {replace(`"127.0.0.1:31999"`, `""`), "address is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := state.Decode([]byte(c.data))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
		})
	}
}

// A later release adds fields. A program of an older one, such as a workstation's, keeps them.
func TestUnknownFieldsAreKept(t *testing.T) {
	later := []byte(`{"version":1,"phase":"prepared","colour":{"name":"blue"},"pushSecret":"old","desired":{"mode":"proxy",` +
		`"address":"127.0.0.1:31999","port":31999,"ipFamily":"IPv4"},"updatedBy":"9.8.7","updatedAt":"2026-11-20T12:00:00Z"}`)
	s := require.Value(state.Decode(later))(t)
	s.PushSecret, s.RenewalFailed = "", "no"
	data := require.Value(state.Encode(s, later))(t)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(data, &fields))
	if colour, _ := fields["colour"].(map[string]any); colour["name"] != "blue" || fields["renewalFailed"] != "no" ||
		fields["pushSecret"] != nil {
		t.Errorf("it is %s", data)
	}
	if again, err := state.Decode(data); err != nil || again.RenewalFailed != "no" {
		t.Errorf("%+v, %v", again, err)
	}
	if own, err := state.Encode(s, []byte("rubbish")); err != nil || bytes.Contains(own, []byte("colour")) {
		t.Errorf("%s, %v", own, err)
	}
}

func TestSameIgnoresTheSource(t *testing.T) {
	a, b := settings(), settings()
	b.DecidedBy = state.SourceState
	if !a.Same(b) {
		t.Error("settings from different sources differ")
	}
	b.HostNetwork = true
	if a.Same(b) {
		t.Error("settings with and without host network are the same")
	}
}

// FuzzDecode checks that every decoded state is valid, and does not change when it is encoded and decoded
// again.
func FuzzDecode(f *testing.F) {
	current := settings()
	full := state.State{
		Phase: state.PhaseReady, Desired: settings(), Current: &current, VerifiedNodes: []string{"a", "b"},
		HookImage: &state.HookImage{Reference: "zarf-registry/init-hook:1", Architecture: "arm64"},
		Rotation:  &state.Rotation{Phase: state.RotationTrust}, PushSecret: "mine", UpdatedBy: "1.0.0",
		UpdatedAt: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
	}
	for _, s := range []state.State{{Phase: state.PhasePrepared, Desired: settings()}, full} {
		data := require.Value(state.Encode(s, nil))(f)
		f.Add(data)
		f.Add(bytes.Replace(data, []byte(`"version": 1`), []byte(`"version": 2`), 1))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := state.Decode(data)
		if err != nil {
			if !reflect.DeepEqual(s, state.State{}) {
				t.Errorf("Decode returned both a state and an error: %+v, %v", s, err)
			}
			return
		}
		if s.Version != state.Version {
			t.Errorf("version %d was decoded", s.Version)
		}
		if s.Phase == state.PhaseReady && s.Current == nil || s.Phase != state.PhaseReady && s.Phase != state.PhasePrepared {
			t.Errorf("phase %q was decoded, with %+v as current", s.Phase, s.Current)
		}
		for _, settings := range []*state.Settings{&s.Desired, s.Current} {
			if settings != nil && (settings.Address == "" || settings.Mode != state.ModeExternal &&
				(settings.Port < 1 || settings.Port > 65535)) {
				t.Errorf("decoded settings without an address or port: %+v", settings)
			}
		}
		again, err := state.Encode(s, nil)
		require.NoError(t, err, "decoded but cannot be encoded")
		read, err := state.Decode(again)
		require.NoError(t, err, "encoded but cannot be decoded")
		if diff := cmp.Diff(s, read, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("the state changed (-before +after):\n%s", diff)
		}
		if third, err := state.Encode(read, nil); err != nil || !bytes.Equal(third, again) {
			t.Errorf("encoding is not stable:\n%s\nand\n%s\n%v", again, third, err)
		}
	})
}
