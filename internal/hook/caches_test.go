package hook_test

import (
	"bytes"
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

const cacheSecret = "zarf-registry-cache-tls"

func TestCachesGetACertificate(t *testing.T) {
	t.Parallel()
	for _, mode := range []state.PKIMode{state.PKIInternal, state.PKICertManager} {
		subtest(t, string(mode), func(t *testing.T) {
			b := installed(t, func(b *bench) { b.installed = true; b.pki(mode) }, caches)
			cache, node := filesOf(b.secret(cacheSecret)), filesOf(b.secret("zarf-registry-node-tls"))
			chain, err := pki.ParseChain(cache.certificate)
			b.must(err)
			if roles := pki.Roles(chain[0]); !slices.Equal(roles, []string{pki.OrganizationCache}) {
				t.Errorf("its roles are %q", roles)
			}
			for _, name := range []string{"zarf-registry-cache", "zarf-registry-cache.zarf", "zarf-registry-cache.zarf.svc",
				"zarf-registry-cache.zarf.svc.cluster.local"} {
				if err := node.verifies(cache, x509.ExtKeyUsageServerAuth, name, b.now); err != nil {
					t.Errorf("a proxy rejects the cache: %v", err)
				}
			}
			if chain[0].VerifyHostname("zarf-registry.zarf.svc") == nil {
				t.Error("the cache's certificate is valid for the registry")
			}
			server := filesOf(b.secret("zarf-registry-server-tls"))
			if err := server.verifies(cache, x509.ExtKeyUsageClientAuth, "", b.now); err != nil {
				t.Errorf("the registry rejects the cache: %v", err)
			}
			b.must(b.prepareAndFinish())
			if w := strings.Join(b.writes(), " "); strings.Contains(w, "-tls") || strings.Contains(w, "certificates") {
				t.Errorf("nothing has changed, and these were written: %s", w)
			}
		})
	}
}

// A cache is a server for the proxies, and they trust a new CA before it shows a certificate of it.
func TestCARotationWaitsForCaches(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t, caches)
		b.asTheCronJobDoes()
		b.hook.Timeout = 3 * time.Minute
		b.deaf = map[string]bool{cachePod: true}
		b.mustFail(b.rotate(), false, "pod zarf/zarf-registry-cache-1 on node n1: it does not trust")
		if r := b.state().Rotation; r == nil || r.Phase != state.RotationTrust {
			t.Errorf("the state records %+v", r)
		}
		b.deaf = nil
		b.must(b.renew())
		b.checkConverged()
	})
}

// Otherwise helm upgrade --wait would wait for caches that cannot start, and never run finish.
func TestCachesCanStartBeforeAllPodsTrustThem(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t, func(b *bench) { b.corp(); b.pki(state.PKIExistingSecret) })
		caches(b) // their certificate is of our own CA, which is new
		b.unwatched = true
		b.slow = map[string]time.Duration{registryPod: 30 * time.Second}
		b.mustPrepare()
		cache, node := filesOf(b.secret(cacheSecret)), filesOf(b.secret("zarf-registry-node-tls"))
		if err := node.verifies(cache, x509.ExtKeyUsageServerAuth, "zarf-registry-cache.zarf.svc", b.now); err != nil {
			t.Errorf("a proxy that loads its Secret rejects the cache: %v", err)
		}
		server := filesOf(b.secret("zarf-registry-server-tls"))
		if err := cache.verifies(server, x509.ExtKeyUsageServerAuth, "zarf-registry.zarf.svc", b.now); err != nil {
			t.Errorf("the cache rejects the registry: %v", err)
		}
		if b.state().Rotation == nil {
			t.Error("no rotation is in progress, so this test does not test anything")
		}
		b.helm()
		b.mustFinish()
		b.unwatched = false
		b.checkConverged()
		if !bytes.Equal(cache.certificate, filesOf(b.secret(cacheSecret)).certificate) {
			t.Error("another certificate was issued")
		}
	})
}

func TestASecretOfTheUserWithTheNameOfTheCachesIsKept(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := newBench(t)
		b.putSecret(&corev1.Secret{ObjectMeta: foreignMeta(cacheSecret)})
		b.upgrade(state.ModeProxy)
		b.must(b.hook.Cleanup(t.Context()))
		if b.get("secrets", cacheSecret) == nil {
			t.Error("it was deleted")
		}
	})
}

func TestCachesEndWithAnotherMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []state.Mode{state.ModeNodePort, state.ModeExternal} {
		subtest(t, string(mode), func(t *testing.T) {
			b := installed(t, caches)
			noCaches(b)
			b.upgrade(mode)
			b.must(b.hook.Cleanup(t.Context()))
			if b.get("secrets", cacheSecret) != nil {
				t.Error("the Secret remains after cleanup")
			}
		})
	}
}

func TestPKIModesWithCaches(t *testing.T) {
	simulate(t, func(t *testing.T) {
		b := installed(t, func(b *bench) {
			b.installed = true
			b.corp()
			b.pki(state.PKIExistingSecret)
		}, caches)
		for _, change := range []func(*bench){
			func(b *bench) { b.pki(state.PKICertManager) },
			noCaches,
			caches,
			func(b *bench) { b.pki(state.PKIInternal) },
		} {
			change(b)
			b.must(b.prepareAndFinish())
			b.checkConverged()
			b.checkOnlyNeeded()
		}
	})
}

// Pulls do not need caches.
func TestFinishReportsCachesThatAreNotReady(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*bench)
		warned bool
		want   []string
	}{
		"all are ready": {func(*bench) {}, false, []string{"1 caches are ready"}},
		"one becomes ready late": {func(b *bench) {
			b.change(cachePod, func(p *corev1.Pod) { p.Status.Conditions = nil })
			go func() {
				after(30 * time.Second)
				b.change(cachePod, func(p *corev1.Pod) { p.Status.Conditions = podReady })
			}()
		}, false, []string{"1 caches are ready", "caches not ready: zarf-registry-cache-1"}},
		"one cannot start": {func(b *bench) {
			b.change(cachePod, func(p *corev1.Pod) {
				p.Status.Conditions = nil
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "cache", State: corev1.ContainerState{
					Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such host"}}}}
			})
		}, true, []string{`"level":"WARN","msg":"not all caches are ready; proxies pull from the registry instead"`,
			"pod zarf/zarf-registry-cache-1 on node n1: ErrImagePull: no such host", "0 caches are ready, not all"}},
		"none exists": {func(b *bench) { b.remove("pods", cachePod) }, true,
			[]string{"no cache exists", "0 caches are ready, not all"}},
		"one was evicted": {func(b *bench) {
			b.add(&corev1.Pod{ObjectMeta: meta("zarf-registry-cache-2", "cache"), Spec: corev1.PodSpec{NodeName: "n2"},
				Status: corev1.PodStatus{Phase: corev1.PodFailed}})
		}, false, []string{"1 caches are ready"}},
		"one is on a node that is down": {func(b *bench) {
			b.add(node("down", notReady))
			b.add(&corev1.Pod{ObjectMeta: meta("zarf-registry-cache-2", "cache"), Spec: corev1.PodSpec{NodeName: "down"}})
		}, false, []string{"1 caches are ready"}},
	} {
		subtest(t, name, func(t *testing.T) {
			b := newBench(t)
			caches(b)
			b.begin(state.ModeProxy)
			c.change(b)
			b.mustFinish()
			b.mustLog(c.want...)
			if warned := strings.Contains(b.log.String(), "not all caches are ready"); warned != c.warned {
				t.Errorf("it warns: %t", warned)
			}
		})
	}
}
