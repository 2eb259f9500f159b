package status_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/api/loaded"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// withCaches makes the state have caches, without their pods.
func (c cluster) withCaches(t *testing.T) cluster {
	t.Helper()
	c.changeState(t, func(s *state.State) { s.PKI.Cache = true })
	held := c["Secret zarf-registry-ca"].(*corev1.Secret).Data
	ca := require.Value(pki.ParseCA(pki.KeyPair{Certificate: held["tls.crt"], Key: held["tls.key"]}))(t)
	c.certificate(t, "cache-tls", ca, now, 0)
	return c
}

// caches is the Deployment of the caches, as Kubernetes shows it.
func caches(replicas int32, reason string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: meta("zarf-registry-cache", "cache"),
		Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
	d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Reason: reason}}
	return d
}

const done = "NewReplicaSetAvailable"

func TestCaches(t *testing.T) {
	reports(t, "caches", state.ModeProxy, func(c cluster) { c.withCaches(t) }, map[string]func(cluster){
		"missing": func(cluster) {},
		"ready":   func(c cluster) { c.add(caches(2, done), pod("cache", "n1", true), pod("cache", "n2", true)) },
		"one on each selected node": func(c cluster) {
			d := &appsv1.DaemonSet{ObjectMeta: meta("zarf-registry-cache-amd64", "cache")}
			d.Status.DesiredNumberScheduled = 1
			c.add(d, pod("cache", "n2", true))
		},
		"one is not ready":     func(c cluster) { c.add(caches(2, done), pod("cache", "n1", true), pod("cache", "n2", false)) },
		"one is not ready yet": func(c cluster) { c.add(caches(1, "ReplicaSetUpdated"), pod("cache", "n1", false)) },
		"no pod exists":        func(c cluster) { c.add(caches(1, done)) },
		"scaled to none":       func(c cluster) { c.add(caches(0, done)) },
	})
}

func TestCachesReportTheirUse(t *testing.T) {
	c := healthy(t, state.ModeProxy).withCaches(t)
	replicas := int32(3)
	ending := pod("cache", "n3", true)
	ending.DeletionTimestamp, ending.Finalizers = &metav1.Time{Time: now}, []string{"x/y"}
	c.add(&appsv1.Deployment{ObjectMeta: meta("zarf-registry-cache", "cache"),
		Spec: appsv1.DeploymentSpec{Replicas: &replicas}}, pod("cache", "n1", true), pod("cache", "n2", true), ending,
		pod("cache", "n4", false))
	o := c.options(t)
	want := &loaded.Cache{Size: 10 << 30, Used: 1 << 30, Hits: 5, Misses: 2}
	o.Loaded = func(_ context.Context, p *corev1.Pod) (*loaded.State, error) {
		if p.Name == "cache-n1" {
			return &loaded.State{Cache: want}, nil
		}
		return nil, errors.New("no permission")
	}
	r := collect(t, o)
	var got []string
	for _, p := range r.Caches.Pods {
		got = append(got, fmt.Sprint(p.Name, " ", p.Node, " ", p.Ready, " ", p.Use == want))
	}
	if all := []string{"cache-n1 n1 true true", "cache-n2 n2 true false", "cache-n4 n4 false false"}; !slices.Equal(got, all) {
		t.Errorf("caches are %q, want %q", got, all)
	}
}

func TestCertificatesOfCaches(t *testing.T) {
	c := healthy(t, state.ModeProxy).withCaches(t)
	c.add(pod("cache", "n1", true))
	r := c.certificates(t, c.running(t))
	if !r.Healthy || len(r.Secrets) != 5 || r.Secrets[4].Kind != "cache" || !r.Secrets[4].Valid {
		t.Errorf("report is %+v", r)
	}
	if p := podOf(t, r, "cache-n1"); p.Component != "cache" || p.Secret != "zarf-registry-cache-tls" || !p.Current ||
		!p.TrustCurrent {
		t.Errorf("the pod is %+v", p)
	}
	c["Secret zarf-registry-cache-tls"].(*corev1.Secret).Data = c["Secret zarf-registry-node-tls"].(*corev1.Secret).Data
	if r := c.certificates(t, c.running(t)); r.Healthy || !strings.Contains(strings.Join(r.Next, "\n"),
		"The certificate in Secret zarf/zarf-registry-cache-tls is not usable (it is not valid for zarf-registry-cache.zarf.svc") {
		t.Errorf("next is %q", r.Next)
	}
}
