package certs

import (
	"context"
	"fmt"
	"slices"
	"strings"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// certManagerSources creates or updates our Certificates, and the Issuers if the user has none. It
// waits until all certificates are issued, and returns the names of the Secrets that cert-manager
// wrote.
func (k *Keeper) certManagerSources(ctx context.Context, p state.PKI) (state.ExistingSecrets, error) {
	seen := map[string]bool{}
	_, err := k.awaitIssued(ctx, k.certManagerWanted(p),
		func(ctx context.Context, i issued) (why string, failed bool, err error) {
			why, failure := i.notReady(), i.failure()
			first := !seen[i.Name]
			switch {
			case failure == "":
			case why != "" && first:
				// The failure is from an earlier run. Its cause may be fixed by now, but cert-manager's backoff
				// can take hours.
				why, err = failure, k.issueAgain(ctx, i)
			case why != "":
				why, failed = failure, true
			case first:
				k.Log.Warn("cert-manager cannot renew a certificate; the current one stays in use",
					"object", k.Object("Certificate", i.Name), "reason", failure, "until", i.Status.NotAfter.String(),
					"remedy", fmt.Sprintf("kubectl --namespace %s describe certificate %s", k.Settings.Namespace, i.Name))
			}
			seen[i.Name] = !first || err == nil
			return why, failed, err
		})
	if err != nil {
		return state.ExistingSecrets{}, err
	}
	if p.Issuer != nil {
		if err := k.deleteOwnIssuer(ctx); err != nil {
			return state.ExistingSecrets{}, err
		}
	}
	name := k.Settings.Name
	return state.ExistingSecrets{Server: name + suffixServer + names.SuffixIssued,
		Node: name + suffixNode + names.SuffixIssued, Push: name + suffixPush + names.SuffixIssued}, nil
}

// certManagerRenew triggers a new issuance of all certificates, whether due or not, and waits for
// it. If ca is set, it starts with the CA, which must be our own.
func (k *Keeper) certManagerRenew(ctx context.Context, p state.PKI, ca bool) error {
	wanted := k.certManagerWanted(p)
	leaves := wanted.certificates
	if p.Issuer == nil {
		leaves = leaves[1:]
	}
	var trust pki.Bundle
	if ca {
		all, err := k.reissue(ctx, wanted, wanted.certificates[:1], pki.Bundle{})
		if err != nil {
			return err
		}
		if trust, err = pki.ParseBundle([]byte(all[0].certificatePEM())); err != nil {
			return fmt.Errorf("the new CA in %s: %w", k.Object("Secret", all[0].Spec.SecretName), err)
		}
	}
	_, err := k.reissue(ctx, wanted, leaves, trust)
	return err
}

// reissue triggers a new issuance of the Certificates that are due, waits for it, and returns all
// Certificates. The CAs of the new certificates must include those in trust.
func (k *Keeper) reissue(
	ctx context.Context, wanted certManagerWanted, due []*certmanagerv1.Certificate, trust pki.Bundle,
) ([]issued, error) {
	previous := map[string]string{} // the certificates before the new issuance
	return k.awaitIssued(ctx, wanted, func(ctx context.Context, i issued) (why string, failed bool, err error) {
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
			if err := k.issueAgain(ctx, i); err != nil {
				return "", false, err
			}
			previous[i.Name] = i.certificatePEM()
		}
		return why, false, nil
	})
}

// DeleteCertManager deletes the objects that init-hook created for cert-manager, and the Secrets
// that cert-manager wrote for them.
func (k *Keeper) DeleteCertManager(ctx context.Context) (string, error) {
	deleted, err := k.deleteCertManagerObjects(ctx, suffixServer, suffixNode, suffixPush, names.SuffixCA)
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
func (k *Keeper) deleteOwnIssuer(ctx context.Context) error {
	deleted, err := k.deleteCertManagerObjects(ctx, names.SuffixCA)
	if release.MissingPermission(err) {
		k.Log.Warn("objects of the previous issuer remain; helm upgrade deletes them", "error", err.Error())
		return nil
	}
	if len(deleted) > 0 {
		k.Log.Info("deleted our own issuer, because the user has named one", "objects", deleted)
	}
	return err
}

// deleteCertManagerObjects deletes Certificates and the Issuers, and then the Secrets of the
// Certificates: cert-manager would write them again while their Certificates exist.
func (k *Keeper) deleteCertManagerObjects(ctx context.Context, certificates ...string) ([]string, error) {
	var secrets []string
	for _, suffix := range certificates {
		secrets = append(secrets, suffix+names.SuffixIssued)
	}
	deleted, err := remove(ctx, k, certmanagerv1.CertificateKind, k.Cluster.Certificates, certificates)
	if err != nil {
		return deleted, err
	}
	more, err := remove(ctx, k, certmanagerv1.IssuerKind, k.Cluster.Issuers, []string{names.SuffixCA, suffixSelfSigned})
	deleted = append(deleted, more...)
	if err != nil {
		return deleted, err
	}
	more, err = remove(ctx, k, "Secret", k.Secrets, secrets)
	return append(deleted, more...), err
}
