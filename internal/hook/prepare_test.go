package hook_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/hook/credentials"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// checkPrepared checks what holds after every successful Prepare.
func (b *bench) checkPrepared() {
	b.Helper()
	ca, err := pki.ParseCA(pki.KeyPair{Certificate: b.secret("zarf-registry-ca").Data["tls.crt"],
		Key: b.secret("zarf-registry-ca").Data["tls.key"]})
	require.NoError(b, err)
	for _, name := range []string{"server", "node", "push"} {
		s := b.secret("zarf-registry-" + name + "-tls")
		cert := require.Value(pki.ParseCertificate(s.Data["tls.crt"]))(b)
		if err := cert.CheckSignatureFrom(ca.Certificate()); err != nil {
			b.Errorf("%s: %v", s.Name, err)
		}
		if !bytes.Equal(s.Data["ca.crt"], b.secret("zarf-registry-ca").Data["tls.crt"]) {
			b.Errorf("%s: ca.crt is not the CA", s.Name)
		}
		if want := "zarf-registry:" + name; cert.Subject.Organization[0] != want {
			b.Errorf("%s: organization is %q, want %q", s.Name, cert.Subject.Organization, want)
		}
	}
	c := b.secret("zarf-registry-credentials").Data
	user, hash, _ := strings.Cut(strings.TrimSpace(string(c["htpasswd"])), ":")
	if user != string(c["username"]) || bcrypt.CompareHashAndPassword([]byte(hash), c["password"]) != nil {
		b.Error("htpasswd does not accept the credential")
	}
	mode := b.hook.Settings.Mode
	for program, p := range b.hook.Programs.(programs).all() {
		if mode == state.ModeNodePort && program.Name == "registry-node" {
			continue
		}
		for _, o := range p.Objects() {
			name := injector.ConfigMapName("zarf-registry", "0.1.0", program, o.Index)
			cm, err := b.client.CoreV1().ConfigMaps("zarf").Get(b.Context(), name, metav1.GetOptions{})
			if err != nil {
				b.Errorf("%v", err)
				continue
			}
			if cm.Immutable != nil && *cm.Immutable {
				b.Errorf("%s is immutable: kubelets would never see it repaired", name)
			}
			for key, want := range o.Data {
				if !bytes.Equal(cm.BinaryData[key], want) {
					b.Errorf("%s: %s differs", name, key)
				}
			}
		}
	}
	if s := b.state(); s.Desired.Mode != mode || s.Desired.Address != "127.0.0.1:31999" {
		b.Errorf("state is %+v", s)
	}
}

// checkPull checks the Secret for pulls through a node port.
func checkPull(b *bench, s *corev1.Secret, open bool) {
	b.Helper()
	user, password := string(s.Data["username"]), string(s.Data["password"])
	if s.Type != corev1.SecretTypeDockerConfigJson || user != "zarf-pull" || len(password) < 40 {
		b.Errorf("%s has type %s, user %q and a password of %d characters", s.Name, s.Type, user, len(password))
	}
	var config struct {
		Auths map[string]struct{ Username, Password, Auth string }
	}
	if err := json.Unmarshal(s.Data[".dockerconfigjson"], &config); err != nil {
		b.Errorf("%s: %v", s.Name, err)
	}
	auth, err := base64.StdEncoding.DecodeString(config.Auths["127.0.0.1:31999"].Auth)
	if err != nil || string(auth) != user+":"+password || config.Auths["127.0.0.1:31999"].Password != password {
		b.Errorf("%s has no credential for the address: %s", s.Name, s.Data[".dockerconfigjson"])
	}
	name, hash, has := strings.Cut(strings.TrimSpace(string(s.Data["htpasswd"])), ":")
	switch {
	case has != open:
		b.Errorf("%s has htpasswd: %t, want %t", s.Name, has, open)
	case has && (name != user || bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil):
		b.Error("htpasswd does not accept the pull credential")
	}
}

func TestPrepareCreatesAllObjectsThatTheChartNeedsOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.hook.Programs = programs{large: true}
	b.mustPrepare()
	b.checkPrepared()
	if s := b.state(); s.Phase != state.PhasePrepared || s.Current != nil {
		t.Errorf("the state records more than was verified: %+v", s)
	}
	for _, secret := range []string{string(b.secret("zarf-registry-credentials").Data["password"]), "PRIVATE KEY"} {
		if strings.Contains(b.log.String(), secret) {
			t.Error("a secret was logged")
		}
	}
	b.mustWriteOnlyTheStateAgain()
}

// mustWriteOnlyTheStateAgain runs Prepare once more. The state records who ran it last, and when.
func (b *bench) mustWriteOnlyTheStateAgain() {
	b.Helper()
	b.forget()
	b.mustPrepare()
	if got, want := b.writes(), []string{"update secrets zarf-registry-state"}; !slices.Equal(got, want) {
		b.Errorf("the second run wrote %q, want %q", got, want)
	}
}

func TestPrepareInNodePortModeCreatesPullCredential(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.mode(state.ModeNodePort)
	b.mustPrepare()
	b.checkPrepared()
	checkPull(b, b.secret("zarf-registry-pull"), true)
	cms, _ := b.client.CoreV1().ConfigMaps("zarf").List(t.Context(), metav1.ListOptions{})
	for _, cm := range cms.Items {
		if strings.Contains(cm.Name, "registry-node") {
			t.Errorf("%s is for proxies, which this mode does not have", cm.Name)
		}
	}
	b.mustWriteOnlyTheStateAgain()
	if strings.Contains(b.log.String(), string(b.secret("zarf-registry-pull").Data["password"])) {
		t.Error("the password was logged")
	}
}

func TestPrepareInExternalModeOnlySavesState(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.mode(state.ModeExternal)
	b.mustPrepare()
	if got, want := b.writes(), []string{"create secrets zarf-registry-state"}; !slices.Equal(got, want) {
		t.Errorf("it wrote %q, want %q", got, want)
	}
	want := state.Settings{Mode: state.ModeExternal, Address: registryURL, IPFamily: state.IPv4,
		DecidedBy: state.SourceValue}
	if s := b.state(); s.Desired != want || s.HookImage != nil {
		t.Errorf("state is %+v", s)
	}
}

func TestUploadSigningKeySurvivesCredentialRotation(t *testing.T) {
	t.Parallel()
	const name, key = "zarf-registry-credentials", "upload-secret"
	b := newBench(t)
	b.mustPrepare()
	first := b.secret(name).Data
	if len(first[key]) < 32 {
		t.Fatalf("the key has %d bytes", len(first[key]))
	}
	before := first
	b.add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "mine", Namespace: "zarf"},
		Data: map[string][]byte{"username": []byte("me"), "password": []byte("secret")}})
	for _, from := range []string{"mine", ""} {
		b.hook.Settings.Push.Secret = from
		b.mustPrepare()
		now := b.secret(name).Data
		if bytes.Equal(now["password"], before["password"]) || !bytes.Equal(now[key], first[key]) {
			t.Errorf("with auth.existingSecret=%q new pods could not continue uploads of running pods", from)
		}
		before = now
	}
	// Somebody deleted it.
	s := b.secret(name)
	delete(s.Data, key)
	b.remove("secrets", name)
	b.add(s)
	b.mustPrepare()
	if now := b.secret(name).Data; len(now[key]) < 32 || !bytes.Equal(now["password"], before["password"]) {
		t.Error("the key was not created, or the credential changed")
	}

	synctest.Test(t, func(t *testing.T) {
		b := installed(t)
		b.asTheCronJobDoes()
		before := b.secret(name).Data
		b.must(b.hook.RotateCredential(t.Context(), credentials.Push))
		if after := b.secret(name).Data; bytes.Equal(before["password"], after["password"]) ||
			!bytes.Equal(before[key], after[key]) {
			t.Error("a rotation changed the key")
		}
	})
}

func TestPullCredentialFollowsAddress(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.mode(state.ModeNodePort)
	b.mustPrepare()
	before := b.secret("zarf-registry-pull").Data
	b.hook.Settings.Port = 32000
	b.mustPrepare()
	after := b.secret("zarf-registry-pull").Data
	if !bytes.Equal(before["password"], after["password"]) || !bytes.Equal(before["htpasswd"], after["htpasswd"]) {
		t.Error("another port changed the password")
	}
	if !strings.Contains(string(after[".dockerconfigjson"]), "127.0.0.1:32000") {
		t.Errorf("the pull Secret is for %s", after[".dockerconfigjson"])
	}
}

func TestPrepareWaitsForListenerOfRunningRegistry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := upgraded(t, state.ModeProxy)
		b.mode(state.ModeNodePort)
		b.mustPrepare()
		if !b.registry.open {
			t.Error("the listener is closed")
		}
		if got := b.get("pods", registryPod).(*corev1.Pod).Annotations["zarf-registry/refreshed-at"]; got == "" {
			t.Error("the pod was not annotated")
		}
	})
	for name, c := range map[string]struct {
		change func(*registry)
		want   string
	}{
		"listener stays closed": {func(r *registry) { r.deaf = true }, "pod zarf/zarf-registry-1: it is still closed"},
		"registry unreachable": {func(r *registry) { r.unreachable = errors.New("i/o timeout") },
			"pod zarf/zarf-registry-1: i/o timeout"},
	} {
		subtest(t, name, func(t *testing.T) {
			b := upgraded(t, state.ModeProxy)
			c.change(b.registry)
			b.mode(state.ModeNodePort)
			b.mustFail(b.hook.Prepare(t.Context()), false, c.want, "Secret zarf/zarf-registry-auth", "see the log of that pod")
			if b.state().Desired.Mode != state.ModeProxy {
				t.Error("the mode was recorded")
			}
		})
	}
}

func TestPrepareDoesNotWaitForPodsOfAChartWithoutTheListener(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.add(&corev1.Pod{ObjectMeta: meta("zarf-registry-0", "registry"), Status: corev1.PodStatus{Conditions: podReady},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "registry",
			Ports: []corev1.ContainerPort{{Name: "registry", ContainerPort: 5000}}}}}})
	b.mode(state.ModeNodePort)
	b.mustPrepare()
}

func TestPrepareKilledAtAnyWriteConvergesOnTheNextRun(t *testing.T) {
	t.Parallel()
	for _, mode := range []state.Mode{state.ModeProxy, state.ModeNodePort, state.ModeExternal} {
		subtest(t, string(mode), func(t *testing.T) {
			killedAtEachWrite(t, func() *bench {
				b := newBench(t)
				b.hook.Programs = programs{large: true}
				b.mode(mode)
				return b
			}, func(b *bench) error { return b.hook.Prepare(t.Context()) }, func(b *bench) {
				b.mustPrepare()
				if mode != state.ModeExternal {
					b.checkPrepared()
				}
			})
		})
	}
}

// savedState returns a Secret with a state.
func savedState(content string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: meta("zarf-registry-state", "state"),
		Data: map[string][]byte{"state.json": []byte(content)}}
}

func saved(t *testing.T, mode state.Mode, address string, family state.IPFamily) *corev1.Secret {
	t.Helper()
	settings := state.Settings{Mode: mode, Address: address, IPFamily: family, PKIMode: "internal",
		DecidedBy: state.SourceValue}
	if mode != state.ModeExternal {
		settings.Port = 31999
	}
	return savedWith(t, func(s *state.State) { s.Desired, s.Current = settings, &settings })
}

// issuedPKI is a PKI with certificates from cert-manager.
var issuedPKI = func() state.PKI {
	p := internalPKI
	p.Mode = state.PKICertManager
	p.Issuer = &state.Issuer{Name: "corp", Kind: "ClusterIssuer", Group: "cert-manager.io"}
	return p
}()

func savedWith(t *testing.T, change func(*state.State)) *corev1.Secret {
	t.Helper()
	settings := state.Settings{Mode: state.ModeProxy, Address: "127.0.0.1:31999", Port: 31999, IPFamily: state.IPv4,
		PKIMode: "internal", DecidedBy: state.SourceValue}
	s := state.State{Phase: state.PhaseReady, Desired: settings, Current: &settings}
	change(&s)
	return savedState(string(require.Value(state.Encode(s, nil))(t)))
}

func TestPrepareRefusesBeforeItChangesAnything(t *testing.T) {
	t.Parallel()
	const local = "127.0.0.1:31999"
	byDefault := func(mode state.Mode) func(*settings.Settings) {
		return func(o *settings.Settings) { o.Mode, o.ModeSource = mode, state.SourceDefault }
	}
	golden := golden.Open(t, "refusals")
	for name, c := range map[string]struct {
		objects []runtime.Object
		change  func(*settings.Settings)
	}{
		"no nodes":            {objects{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "zarf"}}}, nil},
		"a newer state":       {objects{node("n1"), savedState(`{"version":2}`)}, nil},
		"an unreadable state": {objects{node("n1"), savedState(`rubbish`)}, nil},
		"state Secret of another owner": {objects{node("n1"),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-state", Namespace: "zarf"}}}, nil},
		"blind rendering reverts nodeport mode": {objects{node("n1"),
			saved(t, state.ModeNodePort, local, state.IPv4)}, byDefault(state.ModeProxy)},
		"blind rendering reverts proxy mode": {objects{node("n1"), saved(t, state.ModeProxy, local, state.IPv4)},
			byDefault(state.ModeNodePort)},
		"blind rendering reverts external mode": {objects{node("n1"),
			saved(t, state.ModeExternal, registryURL, state.IPv4)}, byDefault(state.ModeNodePort)},
		"blind rendering reverts the IP family": {objects{node("n1"), saved(t, state.ModeProxy, "[::1]:31999", state.IPv6)},
			func(o *settings.Settings) { o.IPFamilySource = state.SourceDefault }},
		"blind rendering reverts the PKI mode": {objects{node("n1"),
			savedWith(t, func(s *state.State) { s.PKI = &issuedPKI })},
			func(o *settings.Settings) { o.PKI.Source = state.SourceDefault }},
		"cert-manager is not installed": {objects{node("n1")},
			func(o *settings.Settings) { o.PKI.PKI = issuedPKI }},
		"an unknown check to ignore": {objects{node("n1")},
			func(o *settings.Settings) { o.Preflight.Ignore = []string{"port", "prot"} }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.objects...)
			if c.change != nil {
				c.change(&b.hook.Settings)
			}
			b.mustRefuse(golden, name, b.hook.Prepare(t.Context()))
			b.mustNotWrite()
			if found, err := b.hook.Preflight(t.Context()); err == nil && len(found) == 0 {
				t.Error("preflight accepts it")
			}
		})
	}
}

func TestPrepareAcceptsExplicitOrUnchangedSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		saved  *corev1.Secret
		change func(*settings.Settings)
	}{
		"another mode by value": {saved(t, state.ModeNodePort, "127.0.0.1:31999", state.IPv4),
			func(*settings.Settings) {}},
		"another mode by a rollback": {saved(t, state.ModeNodePort, "127.0.0.1:31999", state.IPv4),
			func(o *settings.Settings) { o.ModeSource = state.SourceState }},
		"the same mode by default": {saved(t, state.ModeProxy, "127.0.0.1:31999", state.IPv4),
			func(o *settings.Settings) { o.ModeSource = state.SourceDefault }},
		"the same family by default": {saved(t, state.ModeProxy, "127.0.0.1:31999", state.IPv4),
			func(o *settings.Settings) { o.IPFamilySource = state.SourceDefault }},
		"another PKI mode by value": {savedWith(t, func(s *state.State) { s.PKI = &issuedPKI }),
			func(*settings.Settings) {}},
		"the same PKI mode by default": {savedWith(t, func(s *state.State) { s.PKI = &internalPKI }),
			func(o *settings.Settings) { o.PKI.Source = state.SourceDefault }},
		"external mode with another PKI mode": {savedWith(t, func(s *state.State) { s.PKI = &issuedPKI }),
			func(o *settings.Settings) {
				o.Mode, o.RegistryURL, o.PKI.PKI, o.PKI.Source = state.ModeExternal, registryURL, state.PKI{}, state.SourceDefault
			}},
		"external mode with another IP family": {saved(t, state.ModeProxy, "[::1]:31999", state.IPv6),
			func(o *settings.Settings) {
				o.Mode, o.RegistryURL, o.IPFamilySource = state.ModeExternal, registryURL, state.SourceDefault
			}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, node("n1"), c.saved)
			c.change(&b.hook.Settings)
			b.mustPrepare()
		})
	}
}

// A Job's image must be pullable: finish records it after the push. prepare records it only if the
// same process runs finish.
func TestHookImageIsRecordedByThePusher(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.mustPrepare()
	if got := b.state().HookImage; got != nil {
		t.Errorf("prepare alone recorded %+v", got)
	}
	image := b.registry.image
	b.hook.FinishFollows = true
	b.mustPrepare()
	if got := b.state().HookImage; got == nil || *got != *image {
		t.Errorf("the state records %+v", got)
	}
	b.registry.image = nil // as on systems other than Linux
	b.mustPrepare()
	if got := b.state().HookImage; got == nil || *got != *image {
		t.Errorf("saved is %+v", got)
	}
}

// The record survives every writer of the state.
func TestPKIStateSurvivesLaterWrites(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.corp()
	b.pki(state.PKIExistingSecret)
	b.hook.Settings.PKI.Existing.Push = ""
	b.give("robot", "correct horse")
	b.mode(state.ModeNodePort)
	check := func(when string) {
		t.Helper()
		s := b.state()
		if s.PKI == nil || *s.PKI.Existing != (state.ExistingSecrets{Server: "corp-server", Node: "corp-node"}) ||
			s.PKI.ClusterDomain != "cluster.local" || s.PushSecret != "corp-credential" ||
			s.Desired.PKIMode != state.PKIExistingSecret {
			t.Errorf("%s: state is %+v, with %+v", when, s, s.PKI)
		}
	}
	b.mustPrepare()
	check("after prepare")
	b.helm()
	b.mustFinish()
	check("after finish")
	b.upgrade(state.ModeProxy)
	check("after a switch")
	options := b.hook.Settings
	b.asTheCronJobDoes()
	b.must(b.renew())
	check("after renew")
	b.hook.Settings = options
	b.upgrade(state.ModeExternal)
	if s := b.state(); s.PKI != nil || s.PushSecret != "" || s.Rotation != nil || s.Desired.PKIMode != "" {
		t.Errorf("in external mode, state is %+v", s)
	}
}

// An explicit value, and a rollback to an official image, replace an image that is recorded. A rendering that saw no
// cluster records what is new.
func TestPrepareRecordsPauseImages(t *testing.T) {
	b := newBench(t)
	check := func(description, amd64 string, reason state.PauseReason) {
		t.Helper()
		b.mustPrepare()
		got := b.state().PauseImages
		if want := (state.PauseImage{Reference: amd64, Reason: reason}); got["amd64"] != want || len(got) != 2 {
			t.Errorf("%s: %v, want %v", description, got, want)
		}
	}
	check("first", pauseImage, state.PauseDigest)
	b.hook.Settings.Preflight.Ignore = []string{"pause-image"}
	choosePause(&b.hook.Settings, "a/b@sha256:1", state.SourceDefault, state.PauseDefault)
	check("blind", pauseImage, state.PauseDigest)
	choosePause(&b.hook.Settings, "a/b:1", state.SourceValue, state.PauseValue)
	check("explicit", "a/b:1", state.PauseValue)
	b.hook.Settings.Preflight.Ignore = nil
	choosePause(&b.hook.Settings, "registry.k8s.io/pause:3.7", state.SourceCluster, state.PauseName)
	err := b.hook.Prepare(t.Context())
	b.mustFail(err, true, "pause-image", "the release uses a/b:1 for amd64 (set by injector.image)")
	if got := b.state().PauseImages["amd64"].Reference; got != "a/b:1" {
		t.Errorf("a refused run recorded %s", got)
	}
	choosePause(&b.hook.Settings, pauseImage, state.SourceCluster, state.PauseDigest)
	check("rollback", pauseImage, state.PauseDigest)
	// So do those to other images that a node has.
	for _, source := range []state.Source{state.SourceCluster, state.SourceDefault} {
		b.hook.Settings.Preflight.Ignore = []string{"pause-image"}
		choosePause(&b.hook.Settings, "a/b:1", state.SourceValue, state.PauseValue)
		check("explicit", "a/b:1", state.PauseValue)
		b.hook.Settings.Preflight.Ignore = nil
		reason := map[state.Source]state.PauseReason{state.SourceCluster: state.PauseName,
			state.SourceDefault: state.PauseDefault}[source]
		choosePause(&b.hook.Settings, pauseImage, source, reason)
		b.mustPrepare()
		recorded := b.state().PauseImages["amd64"].Reference == pauseImage
		if want := source == state.SourceCluster; recorded != want { // a blind rendering changes nothing that is recorded
			t.Errorf("a rollback to an image of the source %s is recorded: %t", source, recorded)
		}
	}
}
