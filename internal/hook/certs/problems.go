package certs

import (
	"context"
	"fmt"
	"slices"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Problems returns what prevents certificates from being issued or copied.
func (m *Manager) Problems(ctx context.Context, p state.PKI) ([]Problem, error) {
	switch p.Mode {
	case state.PKICertManager:
		return m.certManagerProblems(ctx, p)
	case state.PKIExistingSecret:
		_, problems, err := m.sources(ctx, p, *p.Existing)
		return sentences(problems), err
	}
	return nil, nil
}

// PushProblems returns what is wrong with the user's Secret for the push credential. name is the
// name of that Secret.
func (m *Manager) PushProblems(ctx context.Context, name string) ([]Problem, error) {
	_, problems, err := m.pushSource(ctx, name)
	return sentences(problems), err
}

// sentences turns causes that continue a sentence into complete ones.
func sentences(problems []Problem) []Problem {
	for i := range problems {
		problems[i].Cause = "it " + problems[i].Cause
	}
	return problems
}

// certManagerProblems checks what prevents cert-manager from issuing. It does not check
// ClusterIssuers and external issuers: reading them needs permissions outside the namespace or
// outside the API of cert-manager, which init-hook does not need otherwise. If one of those is
// broken, waiting for the Certificates reports it.
func (m *Manager) certManagerProblems(ctx context.Context, p state.PKI) ([]Problem, error) {
	_, err := m.Cluster.CertificateRequests.List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) {
		return []Problem{{Object: "namespace " + m.Settings.Namespace,
			Cause: "pki.mode is certManager, and the cluster does not know cert-manager's API",
			Remedy: "install cert-manager first, see https://cert-manager.io/docs/installation/, " +
				"or use --set pki.mode=internal"}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the CertificateRequests in namespace %s: %w", m.Settings.Namespace,
			release.RefuseForbidden(err))
	}
	problems, err := m.foreignObjects(ctx, m.certManagerWanted(p))
	if err != nil || p.Issuer == nil {
		return problems, err
	}
	found, err := m.checkIssuer(ctx, *p.Issuer)
	return append(problems, found...), err
}

// foreignObjects returns a Problem for each object that has one of our names and was not created by
// init-hook.
func (m *Manager) foreignObjects(ctx context.Context, wanted certManagerWanted) ([]Problem, error) {
	var problems []Problem
	add := func(kind, name string, foreign bool) {
		if foreign {
			problems = append(problems, Problem{Object: m.Object(kind, name),
				Cause:  "zarf-registry did not create it, and needs that name",
				Remedy: "rename or delete it, or install under another name: --set fullnameOverride=…"})
		}
	}
	for _, want := range wanted.issuers {
		have, ours, err := find(ctx, m, certmanagerv1.IssuerKind, m.Cluster.Issuers, want.Name)
		if err != nil {
			return nil, err
		}
		add(certmanagerv1.IssuerKind, want.Name, have != nil && !ours)
	}
	for _, want := range wanted.certificates {
		have, ours, err := find(ctx, m, certmanagerv1.CertificateKind, m.Cluster.Certificates, want.Name)
		if err != nil {
			return nil, err
		}
		add(certmanagerv1.CertificateKind, want.Name, have != nil && !ours)
		secret, ours, err := m.issuedSecret(ctx, want)
		if err != nil {
			return nil, err
		}
		add("Secret", want.Spec.SecretName, secret != nil && !ours)
	}
	return problems, nil
}

// checkIssuer checks the user's issuer if it is an Issuer in the namespace.
func (m *Manager) checkIssuer(ctx context.Context, ref state.Issuer) ([]Problem, error) {
	if ref.Group != certmanagerv1.SchemeGroupVersion.Group || ref.Kind == certmanagerv1.ClusterIssuerKind {
		return nil, nil
	}
	problem := func(cause, remedy string) ([]Problem, error) {
		return []Problem{{Object: m.Object(ref.Kind, ref.Name), Cause: cause, Remedy: remedy}}, nil
	}
	const another = "name another: --set pki.certManager.issuerRef.name=…"
	if ref.Kind != certmanagerv1.IssuerKind {
		return problem("cert-manager has no issuers of that kind",
			"name Issuer or ClusterIssuer (--set pki.certManager.issuerRef.kind=…), "+
				"or the group of that kind (--set pki.certManager.issuerRef.group=…)")
	}
	issuer, err := m.Cluster.Issuers.Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return problem("it does not exist, and pki.certManager.issuerRef names it", "create it first, or "+another)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", m.Object("Issuer", ref.Name), release.RefuseForbidden(err))
	}
	describe := fmt.Sprintf("check kubectl --namespace %s describe issuer %s, or %s", m.Settings.Namespace, ref.Name,
		another)
	n := slices.IndexFunc(issuer.Status.Conditions,
		func(c certmanagerv1.IssuerCondition) bool { return c.Type == certmanagerv1.IssuerConditionReady })
	switch {
	case issuer.Spec.SelfSigned != nil:
		return problem("it issues self-signed certificates, so proxies and registry would not trust each other",
			"use an issuer with a CA, or none to have one created (--set pki.certManager.issuerRef.name=)")
	case issuer.Spec.ACME != nil:
		return problem("it is an ACME issuer, which does not provide its CA (ca.crt) "+
			"and cannot issue for names inside the cluster",
			"use an issuer with a CA, or none to have one created (--set pki.certManager.issuerRef.name=)")
	case n < 0 || issuer.Status.Conditions[n].ObservedGeneration < issuer.Generation:
		return problem("cert-manager has not processed it: its controller may not be running", describe)
	case issuer.Status.Conditions[n].Status != cmmeta.ConditionTrue:
		c := issuer.Status.Conditions[n]
		return problem(fmt.Sprintf("it is not ready: %s: %s", c.Reason, c.Message), describe)
	}
	return nil, nil
}
