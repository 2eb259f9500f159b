package certmanager

import (
	"context"
	"fmt"
	"slices"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/hook/userobject"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Problems returns what prevents cert-manager from issuing. It does not check ClusterIssuers and
// external issuers: reading them needs permissions outside the namespace or outside the API of
// cert-manager, which init-hook does not need otherwise. If one of those is broken, waiting for the
// Certificates reports it.
func (c *Client) Problems(ctx context.Context, issuer state.Issuer, leaves []Leaf) ([]userobject.Problem, error) {
	_, err := c.Cluster.CertificateRequests.List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) {
		return []userobject.Problem{{Object: "namespace " + c.Settings.Namespace,
			Cause: "pki.mode is certManager, and the cluster does not know cert-manager's API",
			Remedy: "install cert-manager first, see https://cert-manager.io/docs/installation/, " +
				"or use --set pki.mode=internal"}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the CertificateRequests in namespace %s: %w", c.Settings.Namespace,
			release.RefuseForbidden(err))
	}
	var problems []userobject.Problem
	for _, leaf := range leaves {
		_, foreign, err := c.read(ctx, c.Settings.Name+leaf.Suffix)
		if err != nil {
			return nil, err
		}
		for _, f := range foreign {
			problems = append(problems, userobject.Problem{Object: c.Object(f[0], f[1]),
				Cause:  "zarf-registry did not create it, and needs that name",
				Remedy: "rename or delete it, or install under another name: --set fullnameOverride=…"})
		}
	}
	found, err := c.checkIssuer(ctx, issuer)
	return append(problems, found...), err
}

// checkIssuer checks the user's issuer if it is an Issuer in the namespace.
func (c *Client) checkIssuer(ctx context.Context, ref state.Issuer) ([]userobject.Problem, error) {
	if ref.Group != certmanagerv1.SchemeGroupVersion.Group || ref.Kind == certmanagerv1.ClusterIssuerKind {
		return nil, nil
	}
	problem := func(cause, remedy string) ([]userobject.Problem, error) {
		return []userobject.Problem{{Object: c.Object(ref.Kind, ref.Name), Cause: cause, Remedy: remedy}}, nil
	}
	const another = "name another: --set pki.certManager.issuerRef.name=…"
	if ref.Kind != certmanagerv1.IssuerKind {
		return problem("cert-manager has no issuers of that kind",
			"name Issuer or ClusterIssuer (--set pki.certManager.issuerRef.kind=…), "+
				"or the group of that kind (--set pki.certManager.issuerRef.group=…)")
	}
	issuer, err := c.Cluster.Issuers.Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return problem("it does not exist, and pki.certManager.issuerRef names it", "create it first, or "+another)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", c.Object("Issuer", ref.Name), release.RefuseForbidden(err))
	}
	describe := fmt.Sprintf("check kubectl --namespace %s describe issuer %s, or %s", c.Settings.Namespace, ref.Name,
		another)
	n := slices.IndexFunc(issuer.Status.Conditions,
		func(c certmanagerv1.IssuerCondition) bool { return c.Type == certmanagerv1.IssuerConditionReady })
	switch {
	case issuer.Spec.SelfSigned != nil:
		return problem("it issues self-signed certificates, so proxies and registry would not trust each other",
			"use an issuer with a CA, such as a CA issuer")
	case issuer.Spec.ACME != nil:
		return problem("it is an ACME issuer, which does not provide its CA (ca.crt) "+
			"and cannot issue for names inside the cluster",
			"use an issuer with a CA, such as a CA issuer")
	case n < 0 || issuer.Status.Conditions[n].ObservedGeneration < issuer.Generation:
		return problem("cert-manager has not processed it: its controller may not be running", describe)
	case issuer.Status.Conditions[n].Status != cmmeta.ConditionTrue:
		c := issuer.Status.Conditions[n]
		return problem(fmt.Sprintf("it is not ready: %s: %s", c.Reason, c.Message), describe)
	}
	return nil, nil
}
