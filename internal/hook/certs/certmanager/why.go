package certmanager

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// notIssued returns an error with all details about the first Certificate. The others usually have
// the same problem, or wait for the first.
func (c *Client) notIssued(ctx context.Context, waiting []pendingCertificate, took time.Duration) error {
	first := waiting[0]
	problem := fmt.Sprintf("is not ready after %s: %s", took, first.why)
	if first.failed {
		problem = fmt.Sprintf("was not issued: cert-manager gave up at %s: %s",
			first.Status.LastFailureTime.UTC().Format(time.RFC3339), first.why)
	}
	ref := first.Spec.IssuerRef
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
	kubectl := "kubectl --namespace " + c.Settings.Namespace
	return fmt.Errorf("%s %s%s; check its issuer (%s describe %s %s), then %s describe certificate %s%s",
		c.Object("Certificate", first.Name), problem, c.requestProblem(ctx, first.Name), kubectl, issuer, ref.Name,
		kubectl, first.Name, others)
}

// requestProblem returns the problem of the newest CertificateRequest of a Certificate as part of a
// message. It is "" if there is none or if it cannot be read.
func (c *Client) requestProblem(ctx context.Context, certificate string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // ctx may have expired
	defer cancel()
	list, err := c.Cluster.CertificateRequests.List(ctx, metav1.ListOptions{})
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
	return fmt.Sprintf("; %s: %s", c.Object("CertificateRequest", newest.Name), problem)
}
