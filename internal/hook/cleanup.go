package hook

import (
	"context"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/names"
)

// Cleanup removes everything that Prepare and Finish made, and what Helm is told to
// keep for their sake: NodePort Service and proxies. It does so in every mode and
// half-way through a switch. The registry's volume is the chart's, and stays unless
// its values say otherwise.
func (h *Hook) Cleanup(ctx context.Context) error {
	return h.runSteps(ctx, "cleanup", []step{
		{"look at the Jobs", "kubectl apply of all that helm template prints makes this Job too, and nobody uninstalls then", h.uninstalls},
		{"put back the nodes' files", "what the nodes had before is theirs; it takes the payload and the Secrets", h.restoreNodes},
		{"delete proving pods", "a killed run may have left some", func(context.Context) (string, error) {
			h.deleteProofs()
			return "none remain", nil
		}},
		{"delete the pods of helm test", "they stay after a test, so that helm test --logs can read their logs", h.deleteTestPods},
		{"delete the NodePort Service", "Helm leaves it, because a switch may need it until the end", h.deleteService},
		{"delete the proxies", "Helm leaves them, because a switch may need them until the end", h.deleteProxies},
		{"delete the Jobs", "those that failed stayed, so that their logs could be read", h.deleteJobs},
		{"delete the payload", "nothing starts from it any more", h.deletePayload},
		{"tell tools nothing any more", "the registry is going", h.withdraw},
		{"delete the Secrets", "state, certificates and credentials end with the release", h.deleteSecrets},
		{"delete cert-manager's objects", "the state is gone, so that no CronJob makes them again", h.cleanUpCertManager},
		{"put the namespace's label back", "only prepare's label goes, podSecurity.label=true", onlyIf(h.Settings.Preflight.LabelNamespace, h.restoreLabel)},
	})
}

// together is how far apart the Jobs of one kubectl apply may be made.
const together = 30 * time.Second

// uninstalls refuses to delete what was not asked for: where prepare, finish and cleanup
// were made together, and finish before prepare had ended. Helm and Argo CD delete
// prepare's Job before they make finish's; who makes them by hand waits in between.
func (h *Hook) uninstalls(ctx context.Context) (string, error) {
	const fine = "they were not all made at once"
	var jobs []*batchv1.Job
	for _, step := range []string{"-prepare", "-finish", "-cleanup"} {
		name := h.Settings.Name + step
		job, err := h.Cluster.Jobs.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), missingRight(err):
			return fine, nil
		case err != nil:
			return "", fmt.Errorf("reading %s: %w", h.object("Job", name), err)
		}
		jobs = append(jobs, job)
	}
	prepare, finish, cleanup := jobs[0], jobs[1], jobs[2]
	made := func(a, b *batchv1.Job) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) }
	ended := prepare.Status.CompletionTime
	switch {
	case len(cleanup.Status.Conditions) > 0: // that one has ended, and this is another
	case ended != nil && !finish.CreationTimestamp.Before(ended):
	case slices.MaxFunc(jobs, made).CreationTimestamp.Sub(slices.MinFunc(jobs, made).CreationTimestamp.Time) > together:
	default:
		return "", refuse("the Jobs prepare, finish and cleanup were made at the same time, as kubectl apply does with all that helm template prints: nothing was deleted; " +
			"leave out the Jobs with helm template --no-hooks and apply them one after the other, as docs/gitops.md says")
	}
	return fine, nil
}

func (h *Hook) cleanUpCertManager(ctx context.Context) (string, error) {
	did, err := h.deleteCertManager(ctx)
	if missingRight(err) {
		return "nothing: they may not be looked at, so none were made with these rights", nil
	}
	return did, err
}

func (h *Hook) deleteJobs(ctx context.Context) (string, error) {
	background := metav1.DeletePropagationBackground // with their pods
	deleted := 0
	for _, name := range []string{h.Settings.Name + "-prepare", h.Settings.Name + "-finish"} {
		err := h.Cluster.Jobs.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return "", fmt.Errorf("deleting %s: %w", h.object("Job", name), err)
		default:
			deleted++
		}
	}
	return fmt.Sprintf("deleted %d Jobs", deleted), nil
}

func (h *Hook) deleteProxies(ctx context.Context) (string, error) {
	sets, err := h.Cluster.DaemonSets.List(ctx, h.selector(names.ComponentProxy))
	if err != nil {
		return "", fmt.Errorf("listing the proxy DaemonSets in namespace %s: %w", h.Settings.Namespace, err)
	}
	return h.deleteDaemonSets(ctx, sets.Items)
}

func (h *Hook) deleteTestPods(ctx context.Context) (string, error) {
	pods, err := h.Cluster.Pods.List(ctx, h.selector(names.ComponentTest))
	if err != nil {
		return "", fmt.Errorf("listing the pods of helm test in namespace %s: %w", h.Settings.Namespace, err)
	}
	for _, pod := range pods.Items {
		if err := h.deletePod(ctx, &pod); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("deleted %d pods", len(pods.Items)), nil
}

func (h *Hook) deletePayload(ctx context.Context) (string, error) {
	have, err := h.payloadNames(ctx)
	if err != nil {
		return "", err
	}
	if err := h.deleteConfigMaps(ctx, have); err != nil {
		return "", err
	}
	return fmt.Sprintf("deleted %d ConfigMaps", len(have)), nil
}

func (h *Hook) deleteSecrets(ctx context.Context) (string, error) {
	deleted := 0
	for _, suffix := range []string{names.SuffixState, names.SuffixPull, names.SuffixCredentials, names.SuffixPushTLS, names.SuffixNodeTLS, names.SuffixServerTLS, names.SuffixCA} {
		name := h.Settings.Name + suffix
		secret, err := h.Cluster.Secrets.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return "", fmt.Errorf("reading %s: %w", h.object("Secret", name), err)
		case secret.Labels[names.LabelManagedBy] != names.Manager:
			h.Log.Warn("a Secret was not made by init-hook and stays", "secret", name)
			continue
		}
		if err := h.Cluster.Secrets.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("deleting %s: %w", h.object("Secret", name), err)
		}
		deleted++
	}
	return fmt.Sprintf("deleted %d Secrets", deleted), nil
}
