package certs

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

const (
	// certManagerTimeout is the wait timeout for cert-manager. An issuer in the cluster needs seconds;
	// manual approval takes longer than any run.
	certManagerTimeout = 90 * time.Second
	// certManagerPoll is the interval at which cert-manager's objects are read while waiting.
	certManagerPoll = time.Second
)

// Suffixes of the names of cert-manager objects, after Settings.Name. The Secret of a Certificate
// has the name of the Certificate plus names.SuffixIssued.
const (
	suffixServer     = "-server"
	suffixNode       = "-node"
	suffixPush       = "-push"
	suffixSelfSigned = "-selfsigned"
)

// Reasons of the condition Issuing. cmctl renew sets the first. cert-manager sets the second after
// a successful issuance.
const (
	reasonManuallyTriggered = "ManuallyTriggered"
	reasonIssued            = "Issued"
)

const certManagerMissing = "cert-manager is not installed: install it first, see " +
	"https://cert-manager.io/docs/installation/, or use --set pki.mode=internal"

// certManagerWanted are the cert-manager objects that should exist.
type certManagerWanted struct {
	// issuers is empty if the user has an issuer.
	issuers []*certmanagerv1.Issuer
	// certificates starts with that of the CA, if the CA is our own.
	certificates []*certmanagerv1.Certificate
}

func (k *Keeper) certManagerWanted(p state.PKI) certManagerWanted {
	var wanted certManagerWanted
	ref := cmmeta.IssuerReference{Group: certmanagerv1.SchemeGroupVersion.Group, Kind: certmanagerv1.IssuerKind,
		Name: k.Settings.Name + names.SuffixCA}
	if p.Issuer != nil {
		ref = cmmeta.IssuerReference{Group: p.Issuer.Group, Kind: p.Issuer.Kind, Name: p.Issuer.Name}
	} else {
		selfSigned := cmmeta.IssuerReference{Group: ref.Group, Kind: ref.Kind, Name: k.Settings.Name + suffixSelfSigned}
		ca := k.certificate(names.SuffixCA, time.Duration(p.AuthorityLifetime), selfSigned)
		ca.Spec.IsCA = true
		ca.Spec.CommonName = k.Settings.Name + " certificate authority"
		ca.Spec.Usages = []certmanagerv1.KeyUsage{certmanagerv1.UsageDigitalSignature, certmanagerv1.UsageCertSign,
			certmanagerv1.UsageCRLSign}
		wanted.certificates = append(wanted.certificates, ca)
		wanted.issuers = []*certmanagerv1.Issuer{
			k.issuer(selfSigned.Name, certmanagerv1.IssuerConfig{SelfSigned: &certmanagerv1.SelfSignedIssuer{}}),
			k.issuer(ref.Name, certmanagerv1.IssuerConfig{CA: &certmanagerv1.CAIssuer{SecretName: ca.Spec.SecretName}}),
		}
	}
	for _, l := range k.leaves(p) {
		c := k.certificate(strings.TrimSuffix(l.suffix, "-tls"), time.Duration(p.LeafLifetime), ref)
		c.Spec.CommonName = l.leaf.CommonName
		c.Spec.Subject = &certmanagerv1.X509Subject{Organizations: []string{l.leaf.Organization}}
		// Some issuers ignore the requested subject.
		c.Spec.URIs = []string{l.leaf.Organization}
		c.Spec.DNSNames = l.leaf.DNSNames
		for _, ip := range l.leaf.IPAddresses {
			c.Spec.IPAddresses = append(c.Spec.IPAddresses, ip.String())
		}
		c.Spec.Usages = []certmanagerv1.KeyUsage{certmanagerv1.UsageDigitalSignature}
		for _, usage := range l.leaf.Usages {
			switch usage {
			case x509.ExtKeyUsageClientAuth:
				c.Spec.Usages = append(c.Spec.Usages, certmanagerv1.UsageClientAuth)
			case x509.ExtKeyUsageServerAuth:
				c.Spec.Usages = append(c.Spec.Usages, certmanagerv1.UsageServerAuth)
			}
		}
		wanted.certificates = append(wanted.certificates, c)
	}
	return wanted
}

// certificate returns a Certificate with the fields that all of our Certificates share.
func (k *Keeper) certificate(
	suffix string, lifetime time.Duration, issuer cmmeta.IssuerReference,
) *certmanagerv1.Certificate {
	revisions := int32(1)
	return &certmanagerv1.Certificate{
		ObjectMeta: metav1.ObjectMeta{Name: k.Settings.Name + suffix, Namespace: k.Settings.Namespace,
			Labels: k.Labels(names.ComponentCertificates), Annotations: release.Annotations()},
		Spec: certmanagerv1.CertificateSpec{
			SecretName: k.Settings.Name + suffix + names.SuffixIssued,
			SecretTemplate: &certmanagerv1.CertificateSecretTemplate{Labels: k.Labels(names.ComponentCertificates),
				Annotations: release.Annotations()},
			Duration: &metav1.Duration{Duration: lifetime},
			// Renew at half of the lifetime, as in internal mode.
			RenewBefore: &metav1.Duration{Duration: lifetime / 2},
			PrivateKey: &certmanagerv1.CertificatePrivateKey{
				Algorithm: certmanagerv1.ECDSAKeyAlgorithm, Size: 256, Encoding: certmanagerv1.PKCS8,
				// cert-manager before 1.18 reuses the key by default.
				RotationPolicy: certmanagerv1.RotationPolicyAlways,
			},
			IssuerRef: issuer,
			// Previous CertificateRequests are not needed.
			RevisionHistoryLimit: &revisions,
		},
	}
}

func (k *Keeper) issuer(name string, config certmanagerv1.IssuerConfig) *certmanagerv1.Issuer {
	return &certmanagerv1.Issuer{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: k.Settings.Namespace,
			Labels: k.Labels(names.ComponentCertificates), Annotations: release.Annotations()},
		Spec: certmanagerv1.IssuerSpec{IssuerConfig: config},
	}
}

// updateCertificate sets the fields of have that differ from want, and returns their names. It
// keeps fields that want does not set, such as defaults and additions of others.
func updateCertificate(have, want *certmanagerv1.Certificate) []string {
	to, from := &have.Spec, &want.Spec
	if to.Subject == nil {
		to.Subject = &certmanagerv1.X509Subject{}
	}
	if to.PrivateKey == nil {
		to.PrivateKey = &certmanagerv1.CertificatePrivateKey{}
	}
	if to.SecretTemplate == nil {
		to.SecretTemplate = &certmanagerv1.CertificateSecretTemplate{}
	}
	subject := from.Subject
	if subject == nil {
		subject = &certmanagerv1.X509Subject{}
	}
	var fields []string
	put := func(field string, changed bool) {
		if changed {
			fields = append(fields, field)
		}
	}
	put("metadata.labels", mergeLabels(&have.Labels, want.Labels))
	put("metadata.annotations", mergeLabels(&have.Annotations, want.Annotations))
	put("spec.secretName", set(&to.SecretName, from.SecretName))
	put("spec.secretTemplate.labels", mergeLabels(&to.SecretTemplate.Labels, from.SecretTemplate.Labels))
	put("spec.secretTemplate.annotations", mergeLabels(&to.SecretTemplate.Annotations, from.SecretTemplate.Annotations))
	put("spec.duration", set(&to.Duration, from.Duration))
	put("spec.renewBefore", set(&to.RenewBefore, from.RenewBefore))
	put("spec.isCA", set(&to.IsCA, from.IsCA))
	put("spec.commonName", set(&to.CommonName, from.CommonName))
	put("spec.subject.organizations", set(&to.Subject.Organizations, subject.Organizations))
	put("spec.uris", set(&to.URIs, from.URIs))
	put("spec.dnsNames", set(&to.DNSNames, from.DNSNames))
	put("spec.ipAddresses", set(&to.IPAddresses, from.IPAddresses))
	put("spec.usages", set(&to.Usages, from.Usages))
	put("spec.privateKey.algorithm", set(&to.PrivateKey.Algorithm, from.PrivateKey.Algorithm))
	put("spec.privateKey.size", set(&to.PrivateKey.Size, from.PrivateKey.Size))
	put("spec.privateKey.encoding", set(&to.PrivateKey.Encoding, from.PrivateKey.Encoding))
	put("spec.privateKey.rotationPolicy", set(&to.PrivateKey.RotationPolicy, from.PrivateKey.RotationPolicy))
	put("spec.issuerRef", set(&to.IssuerRef, from.IssuerRef))
	put("spec.revisionHistoryLimit", set(&to.RevisionHistoryLimit, from.RevisionHistoryLimit))
	return fields
}

// updateIssuer is updateCertificate for an Issuer. It replaces the issuer type as a whole, because
// an Issuer can have only one.
func updateIssuer(have, want *certmanagerv1.Issuer) []string {
	var fields []string
	if mergeLabels(&have.Labels, want.Labels) {
		fields = append(fields, "metadata.labels")
	}
	if mergeLabels(&have.Annotations, want.Annotations) {
		fields = append(fields, "metadata.annotations")
	}
	to, from := have.Spec.IssuerConfig, want.Spec.IssuerConfig
	sameKind := (to.CA != nil) == (from.CA != nil) && (to.SelfSigned != nil) == (from.SelfSigned != nil)
	if !sameKind || to.CA != nil && to.CA.SecretName != from.CA.SecretName {
		have.Spec.IssuerConfig = from
		fields = append(fields, "spec")
	}
	return fields
}

func set[T any](have *T, want T) bool {
	if equality.Semantic.DeepEqual(*have, want) {
		return false
	}
	*have = want
	return true
}

func mergeLabels(have *map[string]string, want map[string]string) bool {
	all := maps.Clone(*have)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, want)
	return set(have, all)
}

// ensurer is the client for one kind of objects that ensure needs.
type ensurer[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*T, error)
	Create(ctx context.Context, object *T, opts metav1.CreateOptions) (*T, error)
	Update(ctx context.Context, object *T, opts metav1.UpdateOptions) (*T, error)
}

type object[T any] interface {
	*T
	metav1.Object
}

// ensure creates an object or updates the fields that differ, and returns its current version. It
// does not change an object that is being deleted.
func ensure[T any, P object[T]](
	ctx context.Context, k *Keeper, kind string, api ensurer[T], want P, put func(have, want P) []string,
) (P, error) {
	name := k.Object(kind, want.GetName())
	read, err := api.Get(ctx, want.GetName(), metav1.GetOptions{})
	have := P(read)
	if apierrors.IsNotFound(err) {
		read, err = api.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) {
			return nil, exitcode.Refuse("creating %s: %w; %s", name, err, certManagerMissing)
		}
		if err != nil {
			return nil, fmt.Errorf("creating %s: %w", name, release.RefuseForbidden(err))
		}
		k.Log.Info("created for cert-manager", "object", name)
		have = read
		return have, changedBack(name, put(have, want))
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, release.RefuseForbidden(err))
	}
	if have.GetLabels()[names.LabelManagedBy] != names.Manager {
		return nil, k.NotOurs(kind, want.GetName())
	}
	if have.GetDeletionTimestamp() != nil {
		return have, nil
	}
	fields := put(have, want)
	if len(fields) == 0 {
		return have, nil
	}
	if read, err = api.Update(ctx, have, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("updating %s: %w", name, release.RefuseForbidden(err))
	}
	k.Log.Info("updated for cert-manager", "object", name, "fields", fields)
	have = read
	return have, changedBack(name, put(have, want))
}

// changedBack returns an error if a write did not stick. Writing again would start a fight, and
// every write of a Certificate may trigger an issuance.
func changedBack(name string, fields []string) error {
	if len(fields) == 0 {
		return nil
	}
	return exitcode.Refuse("%s was written, but something in the cluster, such as an admission webhook, changes %s: "+
		"exclude this object from it", name, strings.Join(fields, ", "))
}

// issued is a Certificate and its Secret. The Secret is nil if it does not exist.
type issued struct {
	*certmanagerv1.Certificate
	secret *corev1.Secret
}

// ensureCertManager creates or updates all objects, and returns the Certificates.
func (k *Keeper) ensureCertManager(ctx context.Context, wanted certManagerWanted) ([]issued, error) {
	for _, want := range wanted.issuers {
		if _, err := ensure(ctx, k, "Issuer", k.Cluster.Issuers, want, updateIssuer); err != nil {
			return nil, err
		}
	}
	var all []issued
	for _, want := range wanted.certificates {
		// Check the Secret first: cert-manager would overwrite one that is not ours.
		secret, err := k.issuedSecret(ctx, want)
		if err != nil {
			return nil, release.RefuseForbidden(err)
		}
		certificate, err := ensure(ctx, k, "Certificate", k.Cluster.Certificates, want, updateCertificate)
		if err != nil {
			return nil, err
		}
		all = append(all, issued{certificate, secret})
	}
	return all, nil
}

// issuedSecret returns the Secret of a Certificate, or nil if it does not exist. A Secret without
// our label is accepted if cert-manager wrote it for one of our Certificates: its labels may have
// been changed, and cert-manager is about to restore them.
func (k *Keeper) issuedSecret(ctx context.Context, of *certmanagerv1.Certificate) (*corev1.Secret, error) {
	secret, err := k.Secret(ctx, of.Spec.SecretName)
	if err == nil || !exitcode.IsRefusal(err) {
		return secret, err
	}
	certificate, certificateErr := k.Cluster.Certificates.Get(ctx, of.Name, metav1.GetOptions{})
	if certificateErr != nil || certificate.Labels[names.LabelManagedBy] != names.Manager {
		return nil, err
	}
	secret, getErr := k.Secrets.Get(ctx, of.Spec.SecretName, metav1.GetOptions{})
	if getErr != nil || secret.Annotations[certmanagerv1.CertificateNameKey] != of.Name {
		return nil, err
	}
	return secret, nil
}

// condition returns nil if there is no such condition.
func (i issued) condition(kind certmanagerv1.CertificateConditionType) *certmanagerv1.CertificateCondition {
	n := slices.IndexFunc(i.Status.Conditions, func(c certmanagerv1.CertificateCondition) bool { return c.Type == kind })
	if n < 0 {
		return nil
	}
	return &i.Status.Conditions[n]
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
func (k *Keeper) issueAgain(ctx context.Context, i issued) error {
	changed := i.DeepCopy()
	now := metav1.NewTime(k.Now())
	condition := certmanagerv1.CertificateCondition{
		Type: certmanagerv1.CertificateConditionIssuing, Status: cmmeta.ConditionTrue,
		Reason: reasonManuallyTriggered, Message: "init-hook asked for a new certificate",
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
	if _, err := k.Cluster.Certificates.UpdateStatus(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("requesting a new issuance in the status of %s: %w", k.Object("Certificate", i.Name),
			release.RefuseForbidden(err))
	}
	k.Log.Info("requested a new certificate from cert-manager", "object", k.Object("Certificate", i.Name))
	return nil
}

// unissued is a Certificate that is not issued yet.
type unissued struct {
	issued
	why string
	// failed reports that waiting is pointless.
	failed bool
}

// awaitIssued polls look until it returns no more Certificates to wait for.
func (k *Keeper) awaitIssued(ctx context.Context, look func(context.Context) ([]unissued, error)) error {
	begin := time.Now()
	limited, cancel := context.WithTimeout(ctx, certManagerTimeout)
	defer cancel()
	var waiting []unissued
	var lookErr error
	reported := ""
	for {
		found, err := look(limited)
		switch {
		case err == nil && len(found) == 0:
			return nil
		case err == nil:
			waiting, lookErr = found, nil
		case limited.Err() == nil && !retryable(err):
			return err
		case limited.Err() == nil || lookErr == nil && waiting == nil:
			lookErr = err
		}
		if n := slices.IndexFunc(waiting, func(u unissued) bool { return u.failed }); n >= 0 {
			return k.notIssued(ctx, slices.Concat(waiting[n:], waiting[:n]), 0)
		}
		missing := ""
		switch {
		case lookErr != nil:
			missing = lookErr.Error()
		case len(waiting) > 0:
			missing = k.Object("Certificate", waiting[0].Name) + ": " + waiting[0].why
		}
		if missing != reported {
			k.Log.Info("waiting", "for", "cert-manager", "missing", missing)
			reported = missing
		}
		if release.Sleep(limited, certManagerPoll) == nil {
			continue
		}
		took := time.Since(begin).Round(time.Second)
		switch {
		case len(waiting) == 0:
			err = fmt.Errorf("waiting %s for cert-manager: %w", took, lookErr)
		case lookErr != nil:
			err = fmt.Errorf("%w; and then %w", k.notIssued(ctx, waiting, took), lookErr)
		default:
			err = k.notIssued(ctx, waiting, took)
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", err, ctx.Err())
		}
		return err
	}
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

// notIssued returns an error with all details about the first Certificate. The others usually have
// the same problem, or wait for the first.
func (k *Keeper) notIssued(ctx context.Context, waiting []unissued, took time.Duration) error {
	c := waiting[0]
	var b strings.Builder
	b.WriteString(k.Object("Certificate", c.Name))
	if c.failed {
		fmt.Fprintf(&b, " was not issued: cert-manager gave up at %s: %s",
			c.Status.LastFailureTime.UTC().Format(time.RFC3339), c.why)
	} else {
		fmt.Fprintf(&b, " is not ready after %s: %s", took, c.why)
	}
	b.WriteString(k.requestComplaint(ctx, c.Certificate))
	ref := c.Spec.IssuerRef
	kubectl := "kubectl --namespace " + k.Settings.Namespace
	fmt.Fprintf(&b, "; look at its issuer (%s describe %s %s), then at %s describe certificate %s", kubectl,
		issuerResource(ref), ref.Name, kubectl, c.Name)
	if len(waiting) > 1 {
		var others []string
		for _, u := range waiting[1:] {
			others = append(others, u.Name)
		}
		fmt.Fprintf(&b, "; also not ready: %s", strings.Join(others, ", "))
	}
	return errors.New(b.String())
}

// issuerResource returns the resource name of an issuer for kubectl. External issuers need the
// group, because kinds are not unique.
func issuerResource(ref cmmeta.IssuerReference) string {
	kind := strings.ToLower(ref.Kind)
	if ref.Group == certmanagerv1.SchemeGroupVersion.Group {
		return kind
	}
	return kind + "." + ref.Group
}

// requestComplaint returns the problem of the newest CertificateRequest of a Certificate as part of
// a message. It is "" if there is none or if it cannot be read.
func (k *Keeper) requestComplaint(ctx context.Context, c *certmanagerv1.Certificate) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // ctx may have expired
	defer cancel()
	list, err := k.Cluster.CertificateRequests.List(ctx, metav1.ListOptions{})
	if err != nil {
		return ""
	}
	requests := slices.DeleteFunc(list.Items, func(r certmanagerv1.CertificateRequest) bool {
		return r.Annotations[certmanagerv1.CertificateNameKey] != c.Name
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
	complaint := requestProblem(newest)
	if complaint == "" {
		return ""
	}
	return fmt.Sprintf("; %s: %s", k.Object("CertificateRequest", newest.Name), complaint)
}

func requestProblem(r certmanagerv1.CertificateRequest) string {
	// A denial is more specific than the conditions that follow from it.
	for _, bad := range []struct {
		kind   certmanagerv1.CertificateRequestConditionType
		status cmmeta.ConditionStatus
	}{
		{certmanagerv1.CertificateRequestConditionDenied, cmmeta.ConditionTrue},
		{certmanagerv1.CertificateRequestConditionInvalidRequest, cmmeta.ConditionTrue},
		{certmanagerv1.CertificateRequestConditionReady, cmmeta.ConditionFalse},
	} {
		for _, c := range r.Status.Conditions {
			if c.Type == bad.kind && c.Status == bad.status {
				return fmt.Sprintf("%s: %s", c.Reason, c.Message)
			}
		}
	}
	has := func(kind certmanagerv1.CertificateRequestConditionType) bool {
		return slices.ContainsFunc(r.Status.Conditions,
			func(c certmanagerv1.CertificateRequestCondition) bool { return c.Type == kind })
	}
	switch {
	case has(certmanagerv1.CertificateRequestConditionReady):
		return ""
	case !has(certmanagerv1.CertificateRequestConditionApproved):
		return "it is not approved"
	}
	return "its issuer has not processed it"
}

// certManagerSources creates or updates our Certificates, and the Issuers if the user has none. It
// waits until all certificates are issued, and returns the names of the Secrets that cert-manager
// wrote.
func (k *Keeper) certManagerSources(ctx context.Context, p state.PKI) (state.ExistingSecrets, error) {
	wanted := k.certManagerWanted(p)
	seen := map[string]bool{}
	err := k.awaitIssued(ctx, func(ctx context.Context) ([]unissued, error) {
		all, err := k.ensureCertManager(ctx, wanted)
		if err != nil {
			return nil, err
		}
		var waiting []unissued
		for _, i := range all {
			why, failure := i.notReady(), i.failure()
			switch {
			case why == "" && failure != "" && !seen[i.Name]:
				k.Log.Warn("cert-manager cannot renew a certificate; the current one stays in use",
					"object", k.Object("Certificate", i.Name), "reason", failure, "until", i.Status.NotAfter.String(),
					"remedy", fmt.Sprintf("kubectl --namespace %s describe certificate %s", k.Settings.Namespace, i.Name))
			case why == "":
			case failure != "" && !seen[i.Name]:
				// The failure is from an earlier run. Its cause may be fixed by now, but cert-manager's backoff
				// can take hours.
				if err := k.issueAgain(ctx, i); err != nil {
					return nil, err
				}
				waiting = append(waiting, unissued{i, failure, false})
			case failure != "":
				waiting = append(waiting, unissued{i, failure, true})
			default:
				waiting = append(waiting, unissued{i, why, false})
			}
			seen[i.Name] = true
		}
		return waiting, nil
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

// deleteOwnIssuer deletes our own CA and Issuers after the user has named an issuer. The key of
// that CA has no more use and should not be left around.
func (k *Keeper) deleteOwnIssuer(ctx context.Context) error {
	deleted, err := k.deleteCertManagerObjects(ctx, []string{names.SuffixCA}, []string{names.SuffixCA, suffixSelfSigned})
	if release.MissingPermission(err) {
		k.Log.Warn("objects of the previous issuer remain; helm upgrade deletes them", "error", err.Error())
		return nil
	}
	if len(deleted) > 0 {
		k.Log.Info("deleted our own issuer, because the user has named one", "objects", deleted)
	}
	return err
}

// certManagerRenew triggers a new issuance of all certificates, whether due or not, and waits for
// it. If ca is set, it starts with the CA.
func (k *Keeper) certManagerRenew(ctx context.Context, p state.PKI, ca bool) error {
	wanted := k.certManagerWanted(p)
	leaves := wanted.certificates
	var trust pki.Bundle
	switch {
	case ca && p.Issuer != nil:
		return exitcode.Refuse("the CA belongs to %s %s, not to this release: replace it there, then run init-hook certs "+
			"rotate, which reissues all certificates", p.Issuer.Kind, p.Issuer.Name)
	case p.Issuer == nil:
		leaves = wanted.certificates[1:]
	}
	if ca {
		own := wanted.certificates[:1]
		made, err := k.reissue(ctx, wanted, own, pki.Bundle{})
		if err != nil {
			return err
		}
		if trust, err = pki.ParseBundle([]byte(made[0].certificatePEM())); err != nil {
			return fmt.Errorf("the new CA in %s: %w", k.Object("Secret", own[0].Spec.SecretName), err)
		}
	}
	_, err := k.reissue(ctx, wanted, leaves, trust)
	return err
}

// reissue triggers a new issuance of certificates, and returns them once they are issued. Their CAs
// must include those in trust.
func (k *Keeper) reissue(
	ctx context.Context, wanted certManagerWanted, due []*certmanagerv1.Certificate, trust pki.Bundle,
) ([]issued, error) {
	previous := map[string]string{} // the certificates before the new issuance
	var done []issued
	err := k.awaitIssued(ctx, func(ctx context.Context) ([]unissued, error) {
		all, err := k.ensureCertManager(ctx, wanted)
		if err != nil {
			return nil, err
		}
		done = nil
		var waiting []unissued
		for _, i := range all {
			if !slices.ContainsFunc(due, func(c *certmanagerv1.Certificate) bool { return c.Name == i.Name }) {
				continue
			}
			before, asked := previous[i.Name]
			issuing := i.condition(certmanagerv1.CertificateConditionIssuing)
			why, ask := i.notReady(), false
			switch {
			case i.DeletionTimestamp != nil:
			case !asked:
				why, ask = "a new certificate was requested", true
			case i.failure() != "":
				waiting = append(waiting, unissued{i, i.failure(), true})
				continue
			case issuing != nil && issuing.Status == cmmeta.ConditionTrue:
				why = fmt.Sprintf("%s: %s", issuing.Reason, issuing.Message)
			case why != "":
			case i.certificatePEM() == before:
				why = "its Secret " + i.Spec.SecretName + " still has the previous certificate"
			case !i.trusts(trust):
				// cert-manager may have signed with a cached version of the CA Secret.
				why, ask = "the previous CA signed it; another was requested", true
			}
			if ask {
				if err := k.issueAgain(ctx, i); err != nil {
					return nil, err
				}
				previous[i.Name] = i.certificatePEM()
			}
			if why != "" {
				waiting = append(waiting, unissued{i, why, false})
				continue
			}
			done = append(done, i)
		}
		return waiting, nil
	})
	return done, err
}

// trusts reports whether the ca.crt of the Secret contains all CAs of a bundle.
func (i issued) trusts(bundle pki.Bundle) bool {
	if bundle.Empty() {
		return true
	}
	have, err := pki.ParseBundle(i.secret.Data[names.KeyCA])
	return err == nil && have.Contains(bundle)
}

// remover is the client for one kind of objects that remove needs.
type remover[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// remove deletes those of the objects that are ours, and returns their kinds and names.
func remove[T any, P object[T]](
	ctx context.Context, k *Keeper, kind string, api remover[T], objects []string,
) ([]string, error) {
	var deleted []string
	for _, name := range objects {
		have, err := api.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return deleted, fmt.Errorf("reading %s: %w", k.Object(kind, name), release.RefuseForbidden(err))
		case P(have).GetLabels()[names.LabelManagedBy] != names.Manager:
			k.Log.Warn("keeping an object that init-hook did not make", "object", k.Object(kind, name))
			continue
		}
		if err := api.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return deleted, fmt.Errorf("deleting %s: %w", k.Object(kind, name), release.RefuseForbidden(err))
		}
		deleted = append(deleted, kind+" "+name)
	}
	return deleted, nil
}

// DeleteCertManager deletes the objects that init-hook created for cert-manager, and the Secrets
// that cert-manager wrote for them.
func (k *Keeper) DeleteCertManager(ctx context.Context) (string, error) {
	deleted, err := k.deleteCertManagerObjects(ctx, []string{suffixServer, suffixNode, suffixPush, names.SuffixCA},
		[]string{names.SuffixCA, suffixSelfSigned})
	if err != nil {
		return "", err
	}
	if len(deleted) == 0 {
		return "nothing", nil
	}
	return "deleted " + strings.Join(deleted, ", "), nil
}

// deleteCertManagerObjects deletes Certificates and Issuers, and then the Secrets of the
// Certificates: cert-manager would write them again while their Certificates exist.
func (k *Keeper) deleteCertManagerObjects(ctx context.Context, certificates, issuers []string) ([]string, error) {
	var certificateNames, issuerNames, secretNames []string
	for _, suffix := range certificates {
		certificateNames = append(certificateNames, k.Settings.Name+suffix)
		secretNames = append(secretNames, k.Settings.Name+suffix+names.SuffixIssued)
	}
	for _, suffix := range issuers {
		issuerNames = append(issuerNames, k.Settings.Name+suffix)
	}
	deleted, err := remove(ctx, k, "Certificate", k.Cluster.Certificates, certificateNames)
	if err != nil {
		return deleted, err
	}
	more, err := remove(ctx, k, "Issuer", k.Cluster.Issuers, issuerNames)
	deleted = append(deleted, more...)
	if err != nil {
		return deleted, err
	}
	more, err = remove(ctx, k, "Secret", k.Secrets, secretNames)
	return append(deleted, more...), err
}
