package hook

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/steps"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// Cleanup deletes everything that Prepare and Finish created, and the objects that Helm keeps for
// them, the proxies. It works in every mode and in the middle of a switch.
// The registry's volume belongs to the chart and stays unless the chart's values say otherwise.
func (h *Hook) Cleanup(ctx context.Context) error {
	r := h.start()
	restore := func(ctx context.Context) (string, error) { return r.Restore(ctx, r.seedRestorers) }
	return r.phase(ctx, "cleanup", []steps.Step{
		{Name: "check the Jobs", Run: r.checkJobs,
			Why: "kubectl apply of helm template's whole output creates this Job too, without an uninstall"},
		{Name: "restore the nodes' files", Run: restore,
			Why: "nodes get back their original files; that needs the payload and the Secrets"},
		{Name: "delete probe pods", Why: "a killed run may have left some", Run: func(context.Context) (string, error) {
			r.verifier.DeletePods()
			return "none remain", nil
		}},
		{Name: "delete the pods of helm test", Run: r.deleteTestPods,
			Why: "Helm keeps them for helm test --logs"},
		{Name: "delete the NodePort Service", Run: r.port.Delete,
			Why: "it owns the node port until the end, and Helm does not know it"},
		{Name: "delete the proxies", Run: r.deleteProxies,
			Why: "Helm keeps them, because a switch may need them until the end"},
		{Name: "delete the Jobs", Run: r.deleteJobs, Why: "failed Jobs stayed for their logs"},
		{Name: "delete the payload", Run: r.payload.Delete, Why: "nothing starts from it any more"},
		{Name: "delete the advertisement", Run: r.withdraw, Why: "tools must no longer find it"},
		{Name: "delete the Secrets", Run: r.deleteSecrets,
			Why: "state, certificates and credentials end with the release"},
		{Name: "delete cert-manager's objects", Run: r.deleteCertManager,
			Why: "without the state no CronJob recreates them"},
		{Name: "restore the namespace's label", Run: steps.OnlyIf(r.Settings.Preflight.LabelNamespace,
			r.inspection().RestoreLabel),
			Why: "podSecurity.label=true: prepare may have changed it"},
	})
}

// seedRestorers writes missing payload for the pods that restore the nodes' files. These pods
// belong to the last revision, and Prepare may have been refused before it wrote that revision's
// payload.
func (r *run) seedRestorers(ctx context.Context) error {
	if !r.Settings.Injector.Enabled || r.Settings.Injector.PayloadID == "" {
		return nil
	}
	i := r.inspection()
	if _, err := i.Look(ctx); err != nil {
		return err
	}
	_, err := r.payload.Seed(ctx, i.Architectures(), func(string) []string { return []string{"registry-node"} })
	return err
}

// together is the maximum age difference of Jobs created by one kubectl apply.
const together = 30 * time.Second

// checkJobs refuses an unintended cleanup: prepare, finish and cleanup were created together, and
// finish was created before prepare had ended. Helm and Argo CD delete prepare's Job before they
// create finish's; users who create the Jobs by hand wait in between.
func (r *run) checkJobs(ctx context.Context) (string, error) {
	const fine = "they were not all made at once"
	var jobs []*batchv1.Job
	for _, step := range []string{"-prepare", "-finish", "-cleanup"} {
		name := r.Settings.Name + step
		job, err := r.cluster.Jobs.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), release.MissingPermission(err):
			return fine, nil
		case err != nil:
			return "", fmt.Errorf("reading %s: %w", r.Object("Job", name), err)
		}
		jobs = append(jobs, job)
	}
	prepare, finish, cleanup := jobs[0], jobs[1], jobs[2]
	made := func(a, b *batchv1.Job) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) }
	ended := prepare.Status.CompletionTime
	switch {
	case len(cleanup.Status.Conditions) > 0: // that Job has ended; this is another run
	case ended != nil && !finish.CreationTimestamp.Before(ended):
	case slices.MaxFunc(jobs, made).CreationTimestamp.Sub(slices.MinFunc(jobs, made).CreationTimestamp.Time) > together:
	default:
		return "", exitcode.Refuse(
			"the Jobs prepare, finish and cleanup were created at the same time, as kubectl apply does with the output of " +
				"helm template: nothing was deleted; " +
				"leave out the Jobs with helm template --no-hooks and apply them one after the other, as " +
				"docs/reference/helm.md says")
	}
	return fine, nil
}

func (r *run) deleteCertManager(ctx context.Context) (string, error) {
	deleted, err := r.certs.CertManager.Delete(ctx)
	switch {
	case release.MissingPermission(err):
		return "nothing: this identity may not read them, so none were created for it", nil
	case err != nil:
		return "", err
	case len(deleted) == 0:
		return "nothing", nil
	}
	return "deleted " + strings.Join(deleted, ", "), nil
}

func (r *run) deleteJobs(ctx context.Context) (string, error) {
	background := metav1.DeletePropagationBackground // also deletes the pods
	deleted := 0
	for _, step := range []string{"-prepare", "-rollback", "-finish"} {
		name := r.Settings.Name + step
		err := r.cluster.Jobs.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return "", fmt.Errorf("deleting %s: %w", r.Object("Job", name), err)
		default:
			deleted++
		}
	}
	return fmt.Sprintf("deleted %d Jobs", deleted), nil
}

func (r *run) deleteProxies(ctx context.Context) (string, error) {
	sets, err := r.ListDaemonSets(ctx, names.ComponentProxy)
	if err != nil {
		return "", err
	}
	return r.DeleteDaemonSets(ctx, sets)
}

func (r *run) deleteTestPods(ctx context.Context) (string, error) {
	pods, err := r.ListPods(ctx, names.ComponentTest)
	if err != nil {
		return "", err
	}
	for _, pod := range pods {
		if err := r.DeletePod(ctx, pod.Name, string(pod.UID)); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("deleted %d pods", len(pods)), nil
}

func (r *run) deleteSecrets(ctx context.Context) (string, error) {
	deleted := 0
	var all []string
	for _, suffix := range []string{names.SuffixState, names.SuffixRegistryAuth, names.SuffixPull, names.SuffixCredentials,
		names.SuffixCacheTLS, names.SuffixPushTLS, names.SuffixNodeTLS, names.SuffixServerTLS, names.SuffixCA} {
		all = append(all, r.Settings.Name+suffix)
	}
	// A Secret of the chart, which Helm 3.18 leaves if prepare refused an upgrade.
	proposal := r.Settings.Name + names.SuffixNodeProposal
	if r.Settings.ConfiguresNodes() {
		all = append(all, proposal)
	}
	for _, name := range all {
		secret, err := r.Secrets.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			continue
		case release.MissingPermission(err) && name == proposal: // the Role is of a revision without it
			continue
		case err != nil:
			return "", fmt.Errorf("reading %s: %w", r.Object("Secret", name), err)
		case name == proposal && secret.Labels[names.LabelInstance] == r.Settings.Release:
		case secret.Labels[names.LabelManagedBy] != names.Manager:
			r.Log.Warn("keeping a Secret that was not made by zarf-registry", "secret", name)
			continue
		}
		if err := r.DeleteSecret(ctx, secret); err != nil {
			return "", err
		}
		deleted++
	}
	return fmt.Sprintf("deleted %d Secrets", deleted), nil
}
