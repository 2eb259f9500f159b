package certmanager

import (
	"context"
	"fmt"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
)

// Reasons of the condition Issuing. cmctl renew sets the first. cert-manager sets the second after
// a successful issuance.
const (
	reasonManuallyTriggered = "ManuallyTriggered"
	reasonIssued            = "Issued"
)

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
	return string(i.secret.Data[corev1.TLSCertKey])
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
func (c *Client) issueAgain(ctx context.Context, i issued) error {
	changed := i.DeepCopy()
	now := metav1.NewTime(c.Now())
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
	if _, err := c.Cluster.Certificates.UpdateStatus(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("requesting a new issuance in the status of %s: %w", c.Object("Certificate", i.Name),
			release.RefuseForbidden(err))
	}
	c.Log.Info("requested a new certificate from cert-manager", "object", c.Object("Certificate", i.Name))
	return nil
}
