package hook_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

func publicKey(t *testing.T) []byte {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// verifies makes the release verify signatures.
func verifies(t *testing.T) func(*bench) {
	return func(b *bench) {
		b.hook.Settings.Signatures.KeysSecret = "keys"
		b.add(&corev1.Secret{ObjectMeta: foreignMeta("keys"), Data: map[string][]byte{"cosign.pub": publicKey(t)}})
	}
}

func TestPreflightChecksPublicKeys(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		data map[string][]byte // nil: there is no Secret
		want []string          // of the one finding; nil: no finding
	}{
		"valid": {map[string][]byte{"a": publicKey(t), "b": publicKey(t)}, nil},
		"no Secret": {nil, []string{"Secret zarf/keys", "does not exist",
			"kubectl -n zarf create secret generic keys --from-file=cosign.pub"}},
		"no key": {map[string][]byte{}, []string{"Secret zarf/keys", "no public key"}},
		"a private key": {map[string][]byte{
			"cosign.key": []byte("-----BEGIN PRIVATE KEY-----\n\n-----END PRIVATE KEY-----\n")},
			[]string{"Secret zarf/keys", "cosign.key: a private key", "PEM-encoded public keys only"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.add(kubernetesService("10.96.0.1"))
			b.hook.Settings.Signatures.KeysSecret = "keys"
			if c.data != nil {
				b.add(&corev1.Secret{ObjectMeta: foreignMeta("keys"), Data: c.data})
			}
			if c.want == nil {
				b.mustFindNothing()
				return
			}
			b.mustFind("signatures", preflight.Blocker, c.want...)
		})
	}
}

// ownImages returns the digests that the registry gets.
func (b *bench) ownImages() []string {
	b.Helper()
	return strings.Fields(string(b.secret("zarf-registry-auth").Data["own-images"]))
}

func hookImage(n int) (string, *state.HookImage) {
	digest := fmt.Sprintf("sha256:%064x", n)
	return digest, &state.HookImage{Reference: "zarf-registry/init-hook:dev@" + digest, Architecture: "amd64"}
}

func TestTheRegistryKnowsTheImagesOfAllReleases(t *testing.T) {
	simulate(t, func(t *testing.T) {
		first, image := hookImage(16)
		b := installed(t, func(b *bench) { b.registry.image = image })
		want := ownProbe + " " + first
		if got := strings.Join(b.ownImages(), " "); got != want {
			t.Errorf("after the installation: %s, want %s", got, want)
		}
		for n := range 120 {
			next, image := hookImage(17 + n)
			b.registry.image = image
			b.mode(state.ModeProxy)
			b.mustPrepare()
			want = ownProbe + " " + next + strings.TrimPrefix(want, ownProbe)
			fields := strings.Fields(want)
			want = strings.Join(fields[:min(len(fields), 100)], " ")
			if got := strings.Join(b.ownImages(), " "); got != want {
				t.Fatalf("after upgrade %d: %s, want %s", n, got, want)
			}
		}
		b.forget()
		b.mustPrepare()
		for _, write := range b.writes() {
			if strings.HasSuffix(write, "zarf-registry-auth") {
				t.Errorf("the same release wrote again: %s", write)
			}
		}
	})
}

func TestFinishWaitsUntilTheRegistryKnowsItsOwnImages(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t, verifies(t))
		upgrade := func(n int) error {
			_, b.registry.image = hookImage(n)
			b.mode(state.ModeProxy)
			b.mustPrepare()
			return b.hook.Finish(t.Context())
		}
		b.slow = map[string]time.Duration{registryPod: 15 * time.Second}
		begin := time.Now()
		b.must(upgrade(16))
		checkTook(t, begin, 15*time.Second, 60*time.Second)
		b.deaf = map[string]bool{registryPod: true}
		b.mustFail(upgrade(17), false, "waiting for pods "+registryPod+" to load the key own-images of Secret "+
			"zarf/zarf-registry-auth, without which they deny the project's own images")
		b.mute = map[string]error{registryPod: fmt.Errorf("i/o timeout")}
		b.mustFail(upgrade(17), false, "waiting for pods "+registryPod)
	})
}
