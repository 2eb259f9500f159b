package certs

import (
	"context"
	"crypto/x509"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Suffixes of the names of cert-manager objects, after Settings.Name. The Secret of a Certificate
// has the name of the Certificate plus names.SuffixIssued.
const (
	suffixServer     = "-server"
	suffixNode       = "-node"
	suffixPush       = "-push"
	suffixSelfSigned = "-selfsigned"
)

const certManagerMissing = "cert-manager is not installed: install it first, see " +
	"https://cert-manager.io/docs/installation/, or use --set pki.mode=internal"

var keyUsages = map[x509.ExtKeyUsage]certmanagerv1.KeyUsage{
	x509.ExtKeyUsageClientAuth: certmanagerv1.UsageClientAuth,
	x509.ExtKeyUsageServerAuth: certmanagerv1.UsageServerAuth,
}

// exclusiveFields are the spec fields, by kind, that are deleted if we do not set them. All other
// fields keep defaults and what others set.
var exclusiveFields = map[string][]string{
	certmanagerv1.CertificateKind: {"isCA", "subject.organizations", "uris", "dnsNames", "ipAddresses"},
	certmanagerv1.IssuerKind:      {"acme", "ca", "selfSigned", "vault", "venafi"}, // an Issuer can have only one type
}

// certManagerWanted are the cert-manager objects that should exist.
type certManagerWanted struct {
	// issuers is empty if the user has an issuer.
	issuers []*certmanagerv1.Issuer
	// certificates starts with that of the CA, if the CA is our own.
	certificates []*certmanagerv1.Certificate
}

func (m *Manager) certManagerWanted(p state.PKI) certManagerWanted {
	var wanted certManagerWanted
	issuer := cmmeta.IssuerReference{Name: m.Settings.Name + names.SuffixCA, Kind: certmanagerv1.IssuerKind,
		Group: certmanagerv1.SchemeGroupVersion.Group}
	if p.Issuer != nil {
		issuer = cmmeta.IssuerReference(*p.Issuer)
	} else {
		selfSigned := issuer
		selfSigned.Name = m.Settings.Name + suffixSelfSigned
		ca := m.certificate(names.SuffixCA, time.Duration(p.CALifetime), certmanagerv1.CertificateSpec{
			IsCA: true, CommonName: m.Settings.Name + " certificate authority", IssuerRef: selfSigned,
			Usages: []certmanagerv1.KeyUsage{certmanagerv1.UsageDigitalSignature, certmanagerv1.UsageCertSign,
				certmanagerv1.UsageCRLSign},
		})
		wanted.certificates = append(wanted.certificates, ca)
		wanted.issuers = []*certmanagerv1.Issuer{{ObjectMeta: m.certManagerMeta(suffixSelfSigned)},
			{ObjectMeta: m.certManagerMeta(names.SuffixCA)}}
		wanted.issuers[0].Spec.SelfSigned = &certmanagerv1.SelfSignedIssuer{}
		wanted.issuers[1].Spec.CA = &certmanagerv1.CAIssuer{SecretName: ca.Spec.SecretName}
	}
	for _, l := range m.leaves(p) {
		spec := certmanagerv1.CertificateSpec{
			CommonName: l.leaf.CommonName, DNSNames: l.leaf.DNSNames, IssuerRef: issuer,
			Subject: &certmanagerv1.X509Subject{Organizations: []string{l.role()}},
			URIs:    []string{l.role()}, // some issuers ignore the requested subject
			Usages:  []certmanagerv1.KeyUsage{certmanagerv1.UsageDigitalSignature},
		}
		for _, ip := range l.leaf.IPAddresses {
			spec.IPAddresses = append(spec.IPAddresses, ip.String())
		}
		for _, usage := range l.leaf.Usages {
			spec.Usages = append(spec.Usages, keyUsages[usage])
		}
		wanted.certificates = append(wanted.certificates,
			m.certificate(strings.TrimSuffix(l.suffix, "-tls"), time.Duration(p.LeafLifetime), spec))
	}
	return wanted
}

func (m *Manager) certManagerMeta(suffix string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Settings.Name + suffix, Namespace: m.Settings.Namespace,
		Labels: m.Labels(names.ComponentCertificates), Annotations: release.Annotations()}
}

// certificate returns a Certificate with the fields that all of our Certificates share.
func (m *Manager) certificate(
	suffix string, lifetime time.Duration, spec certmanagerv1.CertificateSpec,
) *certmanagerv1.Certificate {
	meta, revisions := m.certManagerMeta(suffix), int32(1)
	spec.SecretName = meta.Name + names.SuffixIssued
	spec.SecretTemplate = &certmanagerv1.CertificateSecretTemplate{Labels: meta.Labels, Annotations: meta.Annotations}
	spec.Duration = &metav1.Duration{Duration: lifetime}
	spec.RenewBefore = &metav1.Duration{Duration: lifetime / 2} // as in internal mode
	spec.PrivateKey = &certmanagerv1.CertificatePrivateKey{
		Algorithm: certmanagerv1.ECDSAKeyAlgorithm, Size: 256, Encoding: certmanagerv1.PKCS8,
		RotationPolicy: certmanagerv1.RotationPolicyAlways, // cert-manager before 1.18 reuses the key by default
	}
	spec.RevisionHistoryLimit = &revisions // previous CertificateRequests are not needed
	return &certmanagerv1.Certificate{ObjectMeta: meta, Spec: spec}
}

// issued is a Certificate and its Secret. The Secret is nil if it does not exist.
type issued struct {
	*certmanagerv1.Certificate
	secret *corev1.Secret
}

// ensureCertManager creates or updates all objects, and returns the Certificates.
func (m *Manager) ensureCertManager(ctx context.Context, wanted certManagerWanted) ([]issued, error) {
	for _, want := range wanted.issuers {
		if _, err := ensure(ctx, m, certmanagerv1.IssuerKind, m.Cluster.Issuers, want); err != nil {
			return nil, err
		}
	}
	var all []issued
	for _, want := range wanted.certificates {
		// Check the Secret first: cert-manager would overwrite one that is not ours.
		secret, ours, err := m.issuedSecret(ctx, want)
		if err != nil {
			return nil, err
		}
		if secret != nil && !ours {
			return nil, m.NotOurs("Secret", want.Spec.SecretName)
		}
		certificate, err := ensure(ctx, m, certmanagerv1.CertificateKind, m.Cluster.Certificates, want)
		if err != nil {
			return nil, err
		}
		all = append(all, issued{certificate, secret})
	}
	return all, nil
}

// issuedSecret returns the Secret of a Certificate, nil if it does not exist. A Secret without our
// label is ours if cert-manager wrote it for one of our Certificates: its labels may have been
// changed, and cert-manager is about to restore them.
func (m *Manager) issuedSecret(
	ctx context.Context, of *certmanagerv1.Certificate,
) (secret *corev1.Secret, ours bool, err error) {
	secret, ours, err = find(ctx, m, "Secret", m.Secrets, of.Spec.SecretName)
	if secret != nil && !ours && secret.Annotations[certmanagerv1.CertificateNameKey] == of.Name {
		_, ours, err = find(ctx, m, certmanagerv1.CertificateKind, m.Cluster.Certificates, of.Name)
	}
	return secret, ours, err
}

type object[T any] interface {
	*T
	metav1.Object
}

// find returns an object, nil if it does not exist, and whether init-hook created it.
func find[T any, P object[T]](
	ctx context.Context, k *Manager, kind string, api Objects[T], name string,
) (have P, ours bool, err error) {
	have, err = api.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("reading %s: %w", k.Object(kind, name), release.RefuseForbidden(err))
	}
	return have, have.GetLabels()[names.LabelManagedBy] == names.Manager, nil
}

// ensure creates an object or updates the fields that differ, and returns its current version. It
// does not change an object that is being deleted.
func ensure[T any, P object[T]](ctx context.Context, k *Manager, kind string, api Objects[T], want P) (P, error) {
	name := k.Object(kind, want.GetName())
	have, ours, err := find[T, P](ctx, k, kind, api, want.GetName())
	switch {
	case err != nil:
		return nil, err
	case have == nil:
		have, err = api.Create(ctx, want, metav1.CreateOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, exitcode.Refuse("creating %s: %w; %s", name, err, certManagerMissing)
		case release.MissingPermission(err): // the CronJob's identity may not
			return nil, exitcode.Refuse("%s is missing, and this identity may not create it: run helm upgrade, which does: %w",
				name, err)
		case err != nil:
			return nil, fmt.Errorf("creating %s: %w", name, err)
		}
		k.Log.Info("created for cert-manager", "object", name)
	case !ours:
		return nil, k.NotOurs(kind, want.GetName())
	case have.GetDeletionTimestamp() != nil:
		return have, nil
	default:
		fields, err := update(kind, have, want)
		if err != nil || len(fields) == 0 {
			return have, err
		}
		changed, err := api.Update(ctx, have, metav1.UpdateOptions{})
		if release.MissingPermission(err) {
			// The CronJob's identity may not. What cert-manager issues is checked before it is used.
			k.Log.Warn("an object of cert-manager is not as zarf-registry made it; helm upgrade repairs it", "object", name,
				"fields", fields)
			have, _, err = find[T, P](ctx, k, kind, api, want.GetName())
			if err == nil && have == nil {
				err = fmt.Errorf("%s was deleted meanwhile", name)
			}
			return have, err
		}
		if err != nil {
			return nil, fmt.Errorf("updating %s: %w", name, err)
		}
		have = changed
		k.Log.Info("updated for cert-manager", "object", name, "fields", fields)
	}
	fields, err := update(kind, have, want)
	if err == nil && len(fields) > 0 {
		// Writing again would start a fight, and every write of a Certificate may trigger an issuance.
		err = exitcode.Refuse("%s was written, but something in the cluster, such as an admission webhook, changes %s: "+
			"exclude this object from it", name, strings.Join(fields, ", "))
	}
	return have, err
}

// update sets the labels, annotations and spec fields of an object that differ, and returns their
// paths.
func update(kind string, have, want any) ([]string, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(have)
	if err != nil {
		return nil, err
	}
	all, err := runtime.DefaultUnstructuredConverter.ToUnstructured(want)
	if err != nil {
		return nil, err
	}
	wanted := unstructured.Unstructured{Object: map[string]any{"spec": all["spec"]}}
	for _, field := range exclusiveFields[kind] {
		path := append([]string{"spec"}, strings.Split(field, ".")...)
		if _, set, _ := unstructured.NestedFieldNoCopy(wanted.Object, path...); !set {
			_ = unstructured.SetNestedField(wanted.Object, nil, path...) // every parent is a map
		}
	}
	meta := want.(metav1.Object)
	wanted.SetLabels(meta.GetLabels())
	wanted.SetAnnotations(meta.GetAnnotations())
	fields := merge(content, wanted.Object, "")
	if len(fields) == 0 {
		return nil, nil
	}
	slices.Sort(fields)
	return fields, runtime.DefaultUnstructuredConverter.FromUnstructured(content, have)
}

// merge sets the fields of have that differ from want, and returns their paths. A nil in want
// deletes a field. Fields that want does not have stay.
func merge(have, want map[string]any, path string) []string {
	var changed []string
	for key, value := range want {
		fields, isMap := value.(map[string]any)
		inner, present := have[key].(map[string]any)
		switch {
		case isMap && (present || len(fields) > 0):
			if !present {
				inner = map[string]any{}
			}
			if found := merge(inner, fields, path+key+"."); len(found) > 0 {
				have[key], changed = inner, append(changed, found...)
			}
		case value == nil && have[key] != nil:
			delete(have, key)
			changed = append(changed, path+key)
		case value != nil && !reflect.DeepEqual(have[key], value):
			have[key], changed = value, append(changed, path+key)
		}
	}
	return changed
}

// remove deletes the objects with these suffixes that are ours, and returns their kinds and names.
func remove[T any, P object[T]](
	ctx context.Context, k *Manager, kind string, api Objects[T], suffixes []string,
) ([]string, error) {
	var deleted []string
	for _, suffix := range suffixes {
		name := k.Settings.Name + suffix
		have, ours, err := find[T, P](ctx, k, kind, api, name)
		switch {
		case err != nil:
			return deleted, err
		case have == nil:
			continue
		case !ours:
			k.Log.Warn("keeping an object that zarf-registry did not create", "object", k.Object(kind, name))
			continue
		}
		err = api.Delete(ctx, name, *metav1.NewPreconditionDeleteOptions(string(have.GetUID())))
		if err != nil && !apierrors.IsNotFound(err) {
			return deleted, fmt.Errorf("deleting %s: %w", k.Object(kind, name), release.RefuseForbidden(err))
		}
		deleted = append(deleted, kind+" "+name)
	}
	return deleted, nil
}
