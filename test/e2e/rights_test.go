package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/e2e/rights"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// auditPolicy logs what ServiceAccounts of the release's namespace do.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts:` + namespace + `"]
  - level: None
`

// TestLeastPrivilege compares what the Roles and ClusterRoles of a release grant with what each ServiceAccount
// uses in the release's life.
//
// Claim (each ServiceAccount has the rights that it used, and no others): Each ServiceAccount has exactly the
// rights that it uses, by the API server's audit log.
func TestLeastPrivilege(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "audit-policy.yaml")
	require.NoError(t, os.WriteFile(policy, []byte(auditPolicy), 0o600))
	w := ownCluster(t, "e2e-rights", layout{open: true, args: []string{"--nodes", "1", "--audit-policy", policy}})
	const never, missing, pushCredential = "0 0 31 12 *", "example.com/missing/pause:1", "push-credential"
	w.provoked = []string{missing}
	w.sets = append(w.sets, "--set=auth.existingSecret="+pushCredential,
		"--set=registry.garbageCollection.enabled=true", "--set-string=registry.garbageCollection.schedule="+never,
		"--set=registry.garbageCollection.prune.olderThan=1h", "--set=rewrite.enabled=true", "--set=rewrite.missing=keep", namedPause,
		"--set=cache.replicas=1", "--set=localRegistryHosting=true")
	// changeCredential changes the user's Secret that the push credential is copied from.
	changeCredential := func(t *testing.T, password string) {
		w.putSecret(t, pushCredential, map[string][]byte{"username": []byte("robot"), "password": []byte(password)})
	}
	output(t, w.command(t, w.kubectl, "create", "namespace", namespace))
	changeCredential(t, "first password")
	granted := w.watchGrants(t)

	must(t, "install", func(t *testing.T) {
		w.helmChart(t, "install", proxyMode)
		w.isIn(t, state.ModeProxy, state.SourceValue)
	})
	must(t, "push", func(t *testing.T) { w.pushHello(t) })
	must(t, "pruning and garbage collection", func(t *testing.T) { w.runCronJob(t, release+"-gc") })
	must(t, "a renewal by the CronJob, which leaves nothing behind", func(t *testing.T) {
		w.runCronJob(t, release+"-certificates")
	})
	must(t, "a CA rotation, begun by the CronJob", func(t *testing.T) {
		changeCredential(t, "second password")
		w.rotatedBy(t, func() func() {
			job := release + "-certificates-now"
			output(t, w.command(t, w.kubectl, "-n", namespace, "create", "job", job, "--from=cronjob/"+release+"-certificates"))
			// It waits for kubelets to refresh Secrets by themselves, and need not finish.
			return func() {
				eventually(t, "the Job to ask what pods have loaded", func() error {
					for _, r := range w.auditLog(t) {
						if strings.HasSuffix(r.Account, "-certificates") && r.Resource == "pods/portforward" {
							return nil
						}
					}
					return errors.New("it has not")
				})
				output(t, w.command(t, w.kubectl, "-n", namespace, "delete", "job", job))
			}
		})
		w.certs(t, "renew")
		w.isHealthy(t)
	})
	must(t, "a switch to nodeport mode", func(t *testing.T) {
		w.helmChart(t, "upgrade", nodePortMode)
		w.isIn(t, state.ModeNodePort, state.SourceValue)
	})
	must(t, "an upgrade that repairs and renews everything, and switches back", func(t *testing.T) {
		changeCredential(t, "third password")
		w.damage(t, namespace, "-registry-amd64-")
		w.damage(t, "kube-public", "local-registry-hosting")
		w.rotatedBy(t, func() func() {
			output(t, w.command(t, w.helm, append([]string{"upgrade", release, newerChart(t), "-n", namespace, "--timeout=5m",
				proxyMode}, w.sets...)...))
			return func() {}
		})
		w.isIn(t, state.ModeProxy, state.SourceValue)
	})
	must(t, "a heal", func(t *testing.T) {
		sets := w.client.AppsV1().DaemonSets(namespace)
		list, err := sets.List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=proxy"})
		if err != nil || len(list.Items) == 0 {
			t.Fatalf("%d proxy DaemonSets: %v", len(list.Items), err)
		}
		for _, set := range list.Items {
			patch := `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"` + missing + `"}]`
			require.Value(sets.Patch(t.Context(), set.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}))(t)
		}
		eventually(t, "a proxy to be healed", func() error {
			healed := w.healedPods(t)
			for _, p := range w.pods(t, "proxy") {
				if slices.Contains(healed, p.Name) && ready(p) {
					return nil
				}
			}
			return fmt.Errorf("healed pods: %v", healed)
		})
	})
	must(t, "helm uninstall leaves only the user's Secret", func(t *testing.T) {
		output(t, w.command(t, w.helm, "uninstall", release, "-n", namespace, "--timeout=3m", "--wait"))
		w.nothingLeft(t, "secret/"+pushCredential, "persistentvolumeclaim/"+release)
	})
	must(t, "each ServiceAccount has the rights that it used, and no others", func(t *testing.T) {
		requests := w.auditLog(t)
		all := granted()
		t.Logf("figure: %d rights, %d different requests, %d exceptions", len(all), len(requests), len(rights.Exceptions))
		if len(all) < 50 || len(requests) < 50 {
			t.Errorf("that is too few: rights %v, requests %v", all, requests)
		}
		for _, problem := range rights.Compare(all, requests, rights.Exceptions) {
			t.Error(problem)
		}
	})
}

// auditLog returns the requests of the release's ServiceAccounts until now.
func (w *world) auditLog(t *testing.T) []rights.Request {
	t.Helper()
	log := require.Value(os.Open(filepath.Join(filepath.Dir(w.kubeconfig), "log", "audit.log")))(t)
	defer log.Close()
	return require.Value(rights.ReadAuditLog(log, namespace))(t)
}

// watchGrants collects the release's roles and bindings, which for hooks exist only while Helm runs them, until
// the returned function is called.
func (w *world) watchGrants(t *testing.T) func() []rights.Right {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + release}
	rbac := w.client.RbacV1()
	grants := &rights.Grants{}
	var lock sync.Mutex
	var done sync.WaitGroup
	for _, open := range []func(context.Context, metav1.ListOptions) (watch.Interface, error){
		rbac.Roles("").Watch, rbac.ClusterRoles().Watch, rbac.RoleBindings("").Watch, rbac.ClusterRoleBindings().Watch,
	} {
		watcher := require.Value(open(ctx, options))(t)
		done.Go(func() {
			for event := range watcher.ResultChan() {
				lock.Lock()
				switch o := event.Object.(type) {
				case *rbacv1.Role:
					grants.AddRole(o.Namespace, o.Name, o.Rules)
				case *rbacv1.ClusterRole:
					grants.AddRole("", o.Name, o.Rules)
				case *rbacv1.RoleBinding:
					grants.AddBinding(o.Namespace, o.RoleRef, o.Subjects)
				case *rbacv1.ClusterRoleBinding:
					grants.AddBinding("", o.RoleRef, o.Subjects)
				default:
					if ctx.Err() != nil {
						break // it ends with an error
					}
					t.Errorf("watching roles and bindings: %s", mustJSON(event))
				}
				lock.Unlock()
			}
			if ctx.Err() == nil {
				t.Error("a watch of roles or bindings ended early")
			}
		})
	}
	return func() []rights.Right {
		cancel()
		done.Wait()
		return grants.Rights()
	}
}

// runCronJob runs a CronJob now and waits until the run has succeeded. Its Job and pod must not stay: a node could
// get tokens for the pod.
func (w *world) runCronJob(t *testing.T, name string) {
	t.Helper()
	job := name + "-now"
	begin := time.Now()
	output(t, w.command(t, w.kubectl, "-n", namespace, "create", "job", job, "--from=cronjob/"+name))
	eventually(t, "Job "+job+" to succeed and to be deleted", func() error {
		j, err := w.client.BatchV1().Jobs(namespace).Get(t.Context(), job, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue
		}) {
			log, _, _ := try(w.command(t, w.kubectl, "-n", namespace, "logs", "job/"+job))
			t.Fatalf("Job %s failed: %s", job, log)
		}
		return errors.New("it is still there: " + mustJSON(j.Status))
	})
	// The controller deletes the Job before it writes the CronJob's status.
	eventually(t, "the CronJob "+name+" to record the run", func() error {
		c, err := w.client.BatchV1().CronJobs(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if last := c.Status.LastSuccessfulTime; last == nil || last.Time.Before(begin.Truncate(time.Second)) {
			return fmt.Errorf("it has last succeeded at %v", last)
		}
		return nil
	})
	eventually(t, "the pod of Job "+job+" to be deleted", func() error {
		pods, err := w.client.CoreV1().Pods(namespace).List(t.Context(),
			metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job})
		if err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("%d pods are left", len(pods.Items))
		}
		return nil
	})
	t.Logf("figure: CronJob %s took %.1f s", name, time.Since(begin).Seconds())
}

// rotatedBy makes the CA due and waits until what start starts has written all Secrets with certificates, and the
// push credential. Then it calls what start returns.
func (w *world) rotatedBy(t *testing.T, start func() (stop func())) {
	t.Helper()
	const years = 365 * 24 * time.Hour
	old := require.Value(pki.NewCA(release+" certificate authority", time.Now().Add(-3*years), 5*years))(t)
	ca := w.secret(t, "-ca")
	ca.Data["tls.crt"], ca.Data["tls.key"] = old.KeyPair().Certificate, old.KeyPair().Key
	require.Value(w.client.CoreV1().Secrets(namespace).Update(t.Context(), ca, metav1.UpdateOptions{}))(t)
	watched := map[string]string{"-ca": "tls.crt", "-server-tls": "ca.crt", "-node-tls": "ca.crt", "-push-tls": "ca.crt",
		"-credentials": "password", "-auth": "htpasswd"}
	const cacheSecret = "-cache-tls" // in proxy mode only
	if _, err := w.client.CoreV1().Secrets(namespace).Get(t.Context(), release+cacheSecret, metav1.GetOptions{}); err == nil {
		watched[cacheSecret] = "ca.crt"
	}
	before := map[string][]byte{}
	for suffix, key := range watched {
		before[suffix] = w.secret(t, suffix).Data[key]
	}
	stop := start()
	eventually(t, "all Secrets to be written", func() error {
		for suffix, key := range watched {
			if bytes.Equal(before[suffix], w.secret(t, suffix).Data[key]) {
				return fmt.Errorf("key %s of Secret %s%s is unchanged", key, release, suffix)
			}
		}
		return nil
	})
	stop()
}

// damage changes the content of the first ConfigMap with that part of a name.
func (w *world) damage(t *testing.T, namespace, name string) {
	t.Helper()
	configMaps := w.client.CoreV1().ConfigMaps(namespace)
	list := require.Value(configMaps.List(t.Context(), metav1.ListOptions{}))(t)
	i := slices.IndexFunc(list.Items, func(c corev1.ConfigMap) bool { return strings.Contains(c.Name, name) })
	if i < 0 {
		t.Fatalf("namespace %s has no ConfigMap %s", namespace, name)
	}
	damaged := &list.Items[i]
	for key := range damaged.Data {
		damaged.Data[key] += " "
	}
	for key := range damaged.BinaryData {
		damaged.BinaryData[key] = append(damaged.BinaryData[key], 0)
	}
	require.Value(configMaps.Update(t.Context(), damaged, metav1.UpdateOptions{}))(t)
}
