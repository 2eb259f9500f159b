package certs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

const (
	// certManagerTimeout is the wait timeout for cert-manager. An issuer in the cluster needs seconds;
	// manual approval takes longer than any run.
	certManagerTimeout = 90 * time.Second
	// certManagerPoll is the interval at which cert-manager's objects are read while waiting.
	certManagerPoll = time.Second
)

// Reasons of the condition Issuing. cmctl renew sets the first. cert-manager sets the second after
// a successful issuance.
const (
	reasonManuallyTriggered = "ManuallyTriggered"
	reasonIssued            = "Issued"
)

// certManagerSources creates or updates our Certificates, and the Issuers if the user has none. It
// waits until all certificates are issued, and returns the names of the Secrets that cert-manager
// wrote.
func (m *Manager) certManagerSources(ctx context.Context, p state.PKI) (state.ExistingSecrets, error) {
	seen := map[string]bool{}
	_, err := m.awaitIssued(ctx, m.certManagerWanted(p),
		func(ctx context.Context, i issued) (why string, failed bool, err error) {
			why, failure := i.notReady(), i.failure()
			first := !seen[i.Name]
			switch {
			case failure == "":
			case why != "" && first:
				// The failure is from an earlier run. Its cause may be fixed by now, but cert-manager's backoff
				// can take hours.
				why, err = failure, m.issueAgain(ctx, i)
			case why != "":
				why, failed = failure, true
			case first:
				m.Log.Warn("cert-manager cannot renew a certificate; the current one stays in use",
					"object", m.Object("Certificate", i.Name), "reason", failure, "until", i.Status.NotAfter.String(),
					"remedy", fmt.Sprintf("kubectl --namespace %s describe certificate %s", m.Settings.Namespace, i.Name))
			}
			seen[i.Name] = !first || err == nil
			return why, failed, err
		})
	if err != nil {
		return state.ExistingSecrets{}, err
	}
	return IssuedSecrets(m.Settings.Name), nil
}

// certManagerRenew triggers a new issuance of all certificates, whether due or not, and waits for
// it. If ca is set, it starts with the CA, which must be our own.
func (m *Manager) certManagerRenew(ctx context.Context, p state.PKI, ca bool) error {
	wanted := m.certManagerWanted(p)
	leaves := wanted.certificates
	if p.Issuer == nil {
		leaves = leaves[1:]
	}
	var trust pki.Bundle
	if ca {
		all, err := m.reissue(ctx, wanted, wanted.certificates[:1], pki.Bundle{})
		if err != nil {
			return err
		}
		if trust, err = pki.ParseBundle([]byte(all[0].certificatePEM())); err != nil {
			return fmt.Errorf("the new CA in %s: %w", m.Object("Secret", all[0].Spec.SecretName), err)
		}
	}
	_, err := m.reissue(ctx, wanted, leaves, trust)
	return err
}

// reissue triggers a new issuance of the Certificates that are due, waits for it, and returns all
// Certificates. The CAs of the new certificates must include those in trust.
func (m *Manager) reissue(
	ctx context.Context, wanted certManagerWanted, due []*certmanagerv1.Certificate, trust pki.Bundle,
) ([]issued, error) {
	previous := map[string]string{} // the certificates before the new issuance
	return m.awaitIssued(ctx, wanted, func(ctx context.Context, i issued) (why string, failed bool, err error) {
		if !slices.ContainsFunc(due, func(c *certmanagerv1.Certificate) bool { return c.Name == i.Name }) {
			return "", false, nil
		}
		before, requested := previous[i.Name]
		issuing := i.condition(certmanagerv1.CertificateConditionIssuing)
		request := false
		switch why = i.notReady(); {
		case i.DeletionTimestamp != nil:
		case !requested:
			why, request = "a new certificate was requested", true
		case i.failure() != "":
			return i.failure(), true, nil
		case issuing != nil && issuing.Status == cmmeta.ConditionTrue:
			why = fmt.Sprintf("%s: %s", issuing.Reason, issuing.Message)
		case why != "":
		case i.certificatePEM() == before:
			why = "its Secret " + i.Spec.SecretName + " still has the previous certificate"
		case !i.trusts(trust):
			// cert-manager may have signed with a cached version of the CA Secret.
			why, request = "the previous CA signed it; another was requested", true
		}
		if request {
			if err := m.issueAgain(ctx, i); err != nil {
				return "", false, err
			}
			previous[i.Name] = i.certificatePEM()
		}
		return why, false, nil
	})
}

// DeleteCertManager deletes the objects that init-hook created for cert-manager, and the Secrets
// that cert-manager wrote for them.
func (m *Manager) DeleteCertManager(ctx context.Context) (string, error) {
	deleted, err := m.deleteCertManagerObjects(ctx, suffixServer, suffixNode, suffixPush, names.SuffixCache,
		names.SuffixCA)
	if err != nil {
		return "", err
	}
	if len(deleted) == 0 {
		return "nothing", nil
	}
	return "deleted " + strings.Join(deleted, ", "), nil
}

// deleteOwnIssuer deletes our own CA and Issuers after the user has named an issuer. The key of
// that CA has no more use and should not be left around.
func (m *Manager) deleteOwnIssuer(ctx context.Context) error {
	deleted, err := m.deleteCertManagerObjects(ctx, names.SuffixCA)
	if len(deleted) > 0 {
		m.Log.Info("deleted our own issuer, because the user has named one", "objects", deleted)
	}
	return err
}

// deleteCertManagerObjects deletes Certificates and the Issuers, and then the Secrets of the
// Certificates: cert-manager would write them again while their Certificates exist.
func (m *Manager) deleteCertManagerObjects(ctx context.Context, certificates ...string) ([]string, error) {
	var secrets []string
	for _, suffix := range certificates {
		secrets = append(secrets, suffix+names.SuffixIssued)
	}
	deleted, err := remove(ctx, m, certmanagerv1.CertificateKind, m.Cluster.Certificates, certificates)
	if err != nil {
		return deleted, err
	}
	more, err := remove(ctx, m, certmanagerv1.IssuerKind, m.Cluster.Issuers, []string{names.SuffixCA, suffixSelfSigned})
	deleted = append(deleted, more...)
	if err != nil {
		return deleted, err
	}
	more, err = remove(ctx, m, "Secret", m.Secrets, secrets)
	return append(deleted, more...), err
}

// unissued is a Certificate that is not issued yet.
type unissued struct {
	issued
	why string
	// failed reports that waiting is pointless.
	failed bool
}

// awaitIssued creates or updates the objects, and polls the Certificates until check returns no
// reason to wait for any of them. It then returns them.
func (m *Manager) awaitIssued(
	ctx context.Context, wanted certManagerWanted,
	check func(context.Context, issued) (why string, failed bool, err error),
) ([]issued, error) {
	w := &issueWait{Manager: m, wanted: wanted, check: check, begin: time.Now()}
	limited, cancel := context.WithTimeout(ctx, certManagerTimeout)
	defer cancel()
	for {
		all, waiting, err := w.look(limited)
		switch {
		case err == nil && len(waiting) == 0:
			return all, nil
		case err == nil:
			w.waiting, w.lookErr = waiting, nil
		case limited.Err() == nil && !retryable(err):
			return nil, err
		case limited.Err() == nil || w.lookErr == nil && w.waiting == nil:
			w.lookErr = err
		}
		if n := slices.IndexFunc(w.waiting, func(u unissued) bool { return u.failed }); n >= 0 {
			return nil, m.notIssued(ctx, slices.Concat(w.waiting[n:], w.waiting[:n]), 0)
		}
		w.report()
		if release.Sleep(limited, certManagerPoll) != nil {
			return nil, w.timedOut(ctx)
		}
	}
}

// issueWait is one wait for Certificates.
type issueWait struct {
	*Manager
	wanted   certManagerWanted
	check    func(context.Context, issued) (why string, failed bool, err error)
	begin    time.Time
	waiting  []unissued // as of the last complete look
	lookErr  error      // of the last look
	reported string
}

// look creates or updates the objects. It returns all Certificates, and those that are not issued.
func (w *issueWait) look(ctx context.Context) (all []issued, waiting []unissued, err error) {
	if all, err = w.ensureCertManager(ctx, w.wanted); err != nil {
		return nil, nil, err
	}
	for _, i := range all {
		why, failed, err := w.check(ctx, i)
		if err != nil {
			return nil, nil, err
		}
		if why != "" {
			waiting = append(waiting, unissued{i, why, failed})
		}
	}
	return all, waiting, nil
}

// report logs what is missing, when that changes.
func (w *issueWait) report() {
	missing := ""
	switch {
	case w.lookErr != nil:
		missing = w.lookErr.Error()
	case len(w.waiting) > 0:
		missing = w.Object("Certificate", w.waiting[0].Name) + ": " + w.waiting[0].why
	}
	if missing != w.reported {
		w.Progress.Waiting("cert-manager", missing)
		w.reported = missing
	}
}

// timedOut returns the error of a wait that has ended.
func (w *issueWait) timedOut(ctx context.Context) (err error) {
	took := time.Since(w.begin).Round(time.Second)
	switch {
	case len(w.waiting) == 0:
		err = fmt.Errorf("waiting %s for cert-manager: %w", took, w.lookErr)
	case w.lookErr != nil:
		err = fmt.Errorf("%w; and then %w", w.notIssued(ctx, w.waiting, took), w.lookErr)
	default:
		err = w.notIssued(ctx, w.waiting, took)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return err
}

// retryable reports whether an error may be gone at the next poll: a conflict, or cert-manager's
// webhook, which starts last, is not ready yet.
func retryable(err error) bool {
	if exitcode.IsRefusal(err) {
		return false
	}
	return release.IsTransient(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.IsInternalError(err)
}

// condition returns nil if there is no such condition.
func (i issued) condition(kind certmanagerv1.CertificateConditionType) *certmanagerv1.CertificateCondition {
	for n, c := range i.Status.Conditions {
		if c.Type == kind {
			return &i.Status.Conditions[n]
		}
	}
	return nil
}

// notReady returns why the Secret does not match the Certificate yet, "" if it does.
func (i issued) notReady() string {
	ready := i.condition(certmanagerv1.CertificateConditionReady)
	switch {
	case i.DeletionTimestamp != nil:
		return "it is being deleted"
	case ready == nil:
		return "cert-manager has not processed it: is its controller running?"
	case ready.ObservedGeneration < i.Generation:
		return "cert-manager has not processed its last change: is its controller running?"
	case ready.Status != cmmeta.ConditionTrue:
		return fmt.Sprintf("%s: %s", ready.Reason, ready.Message)
	case len(i.certificatePEM()) == 0:
		return "its Secret " + i.Spec.SecretName + " is missing, or has no certificate"
	}
	return ""
}

func (i issued) certificatePEM() string {
	if i.secret == nil {
		return ""
	}
	return string(i.secret.Data[keyCertificate])
}

// failure returns why the last issuance failed, "" if it did not. cert-manager retries after an
// hour at the earliest, with exponential backoff.
func (i issued) failure() string {
	issuing := i.condition(certmanagerv1.CertificateConditionIssuing)
	if issuing == nil || issuing.Status != cmmeta.ConditionFalse || issuing.Reason == reasonIssued ||
		issuing.ObservedGeneration < i.Generation || i.Status.LastFailureTime == nil {
		return ""
	}
	return fmt.Sprintf("%s: %s", issuing.Reason, issuing.Message)
}

// issueAgain triggers a new issuance, regardless of the state of the current certificate and of the
// backoff after a failure.
func (m *Manager) issueAgain(ctx context.Context, i issued) error {
	changed := i.DeepCopy()
	now := metav1.NewTime(m.Now())
	condition := certmanagerv1.CertificateCondition{
		Type: certmanagerv1.CertificateConditionIssuing, Status: cmmeta.ConditionTrue,
		Reason: reasonManuallyTriggered, Message: "zarf-registry asked for a new certificate",
		ObservedGeneration: i.Generation, LastTransitionTime: &now,
	}
	if previous := (issued{changed, nil}).condition(condition.Type); previous == nil {
		changed.Status.Conditions = append(changed.Status.Conditions, condition)
	} else {
		if previous.Status == condition.Status {
			condition.LastTransitionTime = previous.LastTransitionTime
		}
		*previous = condition
	}
	if _, err := m.Cluster.Certificates.UpdateStatus(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("requesting a new issuance in the status of %s: %w", m.Object("Certificate", i.Name),
			release.RefuseForbidden(err))
	}
	m.Log.Info("requested a new certificate from cert-manager", "object", m.Object("Certificate", i.Name))
	return nil
}

// trusts reports whether the ca.crt of the Secret contains all CAs of a bundle.
func (i issued) trusts(bundle pki.Bundle) bool {
	if bundle.Empty() {
		return true
	}
	have, err := pki.ParseBundle(i.secret.Data[names.KeyCA])
	return err == nil && have.Contains(bundle)
}

// notIssued returns an error with all details about the first Certificate. The others usually have
// the same problem, or wait for the first.
func (m *Manager) notIssued(ctx context.Context, waiting []unissued, took time.Duration) error {
	c := waiting[0]
	problem := fmt.Sprintf("is not ready after %s: %s", took, c.why)
	if c.failed {
		problem = fmt.Sprintf("was not issued: cert-manager gave up at %s: %s",
			c.Status.LastFailureTime.UTC().Format(time.RFC3339), c.why)
	}
	ref := c.Spec.IssuerRef
	issuer := strings.ToLower(ref.Kind)
	if ref.Group != certmanagerv1.SchemeGroupVersion.Group {
		issuer += "." + ref.Group // kinds of external issuers are not unique
	}
	others := ""
	if len(waiting) > 1 {
		others = "; also not ready: " + waiting[1].Name
		for _, u := range waiting[2:] {
			others += ", " + u.Name
		}
	}
	kubectl := "kubectl --namespace " + m.Settings.Namespace
	return fmt.Errorf("%s %s%s; check its issuer (%s describe %s %s), then %s describe certificate %s%s",
		m.Object("Certificate", c.Name), problem, m.requestProblem(ctx, c.Name), kubectl, issuer, ref.Name, kubectl, c.Name,
		others)
}

// requestProblem returns the problem of the newest CertificateRequest of a Certificate as part of a
// message. It is "" if there is none or if it cannot be read.
func (m *Manager) requestProblem(ctx context.Context, certificate string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // ctx may have expired
	defer cancel()
	list, err := m.Cluster.CertificateRequests.List(ctx, metav1.ListOptions{})
	if err != nil {
		return ""
	}
	requests := slices.DeleteFunc(list.Items, func(r certmanagerv1.CertificateRequest) bool {
		return r.Annotations[certmanagerv1.CertificateNameKey] != certificate
	})
	if len(requests) == 0 {
		return ""
	}
	revision := func(r certmanagerv1.CertificateRequest) int {
		n, _ := strconv.Atoi(r.Annotations[certmanagerv1.CertificateRequestRevisionAnnotationKey])
		return n
	}
	newest := slices.MaxFunc(requests, func(a, b certmanagerv1.CertificateRequest) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(revision(a), revision(b)))
	})
	conditions := map[certmanagerv1.CertificateRequestConditionType]certmanagerv1.CertificateRequestCondition{}
	for _, c := range newest.Status.Conditions {
		conditions[c.Type] = c
	}
	ready, processed := conditions[certmanagerv1.CertificateRequestConditionReady]
	_, approved := conditions[certmanagerv1.CertificateRequestConditionApproved]
	denied := conditions[certmanagerv1.CertificateRequestConditionDenied]
	invalid := conditions[certmanagerv1.CertificateRequestConditionInvalidRequest]
	problem := ""
	switch {
	case denied.Status == cmmeta.ConditionTrue: // more specific than the conditions that follow from it
		problem = denied.Reason + ": " + denied.Message
	case invalid.Status == cmmeta.ConditionTrue:
		problem = invalid.Reason + ": " + invalid.Message
	case ready.Status == cmmeta.ConditionFalse:
		problem = ready.Reason + ": " + ready.Message
	case processed:
		return ""
	case !approved:
		problem = "it is not approved"
	default:
		problem = "its issuer has not processed it"
	}
	return fmt.Sprintf("; %s: %s", m.Object("CertificateRequest", newest.Name), problem)
}
