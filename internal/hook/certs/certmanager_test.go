package certs

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cmacme "github.com/cert-manager/cert-manager/pkg/apis/acme/v1"
	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	certmanagerfake "github.com/cert-manager/cert-manager/pkg/client/clientset/versioned/typed/certmanager/v1/fake"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubetesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/golden"
)

// cmBench is a Keeper with a namespace in which cert-manager runs. A reactor of the fake client
// simulates its API as strictly as the API server: resource versions, generations, and a status that
// only UpdateStatus writes. The simulated cert-manager does a round on every read of a
// Certificate.
type cmBench struct {
	*testing.T
	keeper  *Manager
	log     *bytes.Buffer
	objects map[string]cmObject // by resource/name
	secrets map[string]*corev1.Secret
	version int
	// writes are the writes of the Keeper.
	writes []string

	// controller handles a Certificate as cert-manager does; nil does nothing.
	controller func(*certmanagerv1.Certificate)
	// authority signs for the user's issuer. issuedWith is the spec that each Certificate was last
	// issued for.
	authority  *pki.CA
	issuedWith map[string]certmanagerv1.CertificateSpec
	// intercept may answer a call. Calls have names such as "update certificates/zarf-registry-node".
	intercept func(call string) error
	// left is the number of writes that succeed before the process is killed; negative means that it
	// is never killed.
	left int
	dead bool
}

// cmObject is a Certificate, a CertificateRequest or an Issuer.
type cmObject interface {
	runtime.Object
	metav1.Object
}

var errCMKilled = errors.New("killed")

func newCMBench(t *testing.T) *cmBench {
	t.Helper()
	b := &cmBench{T: t, log: &bytes.Buffer{}, objects: map[string]cmObject{},
		secrets: map[string]*corev1.Secret{}, issuedWith: map[string]certmanagerv1.CertificateSpec{}, left: -1}
	var err error
	if b.authority, err = pki.NewCA("corp", time.Now(), 20*365*24*time.Hour); err != nil {
		t.Fatal(err)
	}
	client := &certmanagerfake.FakeCertmanagerV1{Fake: &kubetesting.Fake{}}
	client.AddReactor("*", "*", b.react)
	log := slog.New(slog.NewJSONHandler(b.log, nil))
	r := &release.Release{
		Settings: settings.Settings{Namespace: "zarf", Release: "zarf-registry", Name: "zarf-registry"},
		Secrets:  cmSecrets{b}, Log: log, Progress: release.Logged{Log: log}, Now: time.Now,
	}
	b.keeper = &Manager{
		Observer: &nodes.Observer{Release: r},
		Cluster: Cluster{
			Certificates:        client.Certificates("zarf"),
			CertificateRequests: client.CertificateRequests("zarf"),
			Issuers:             client.Issuers("zarf"),
		},
	}
	b.controller = b.issue
	return b
}

// ownIssuer and corpIssuer return settings without and with an issuer of the user.
func ownIssuer() state.PKI {
	return state.PKI{Mode: state.PKICertManager, LeafLifetime: state.Duration(365 * 24 * time.Hour),
		CALifetime: state.Duration(5 * 365 * 24 * time.Hour), ClusterDomain: "cluster.local"}
}

func corpIssuer() state.PKI {
	p := ownIssuer()
	p.Issuer = &state.Issuer{Name: "corp", Kind: "ClusterIssuer", Group: "cert-manager.io"}
	return p
}

// begin precedes every call. write reports whether the call would change something.
func (b *cmBench) begin(call string, write bool) error {
	if b.dead {
		return errCMKilled
	}
	if b.intercept != nil {
		if err := b.intercept(call); err != nil {
			return err
		}
	}
	if !write {
		return nil
	}
	if b.left == 0 {
		b.dead = true
		return errCMKilled
	}
	b.left--
	b.writes = append(b.writes, call)
	return nil
}

func (b *cmBench) next() string { b.version++; return fmt.Sprint(b.version) }

func (b *cmBench) react(action kubetesting.Action) (bool, runtime.Object, error) {
	resource := action.GetResource().Resource
	call := func(name string) string {
		verb := action.GetVerb()
		if action.GetSubresource() != "" {
			verb += " " + action.GetSubresource() + " of"
		}
		return verb + " " + resource + "/" + name
	}
	switch a := action.(type) {
	case kubetesting.GetActionImpl:
		if err := b.begin(call(a.Name), false); err != nil {
			return true, nil, err
		}
		if resource == "certificates" {
			b.round()
		}
		have := b.objects[resource+"/"+a.Name]
		if have == nil {
			return true, nil, apierrors.NewNotFound(a.Resource.GroupResource(), a.Name)
		}
		return true, have.DeepCopyObject(), nil
	case kubetesting.ListActionImpl:
		if err := b.begin(call(""), false); err != nil {
			return true, nil, err
		}
		list := &certmanagerv1.CertificateRequestList{}
		for _, key := range slices.Sorted(maps.Keys(b.objects)) {
			if request, ok := b.objects[key].(*certmanagerv1.CertificateRequest); ok {
				list.Items = append(list.Items, *request.DeepCopy())
			}
		}
		return true, list, nil
	case kubetesting.CreateActionImpl:
		object := a.Object.DeepCopyObject().(cmObject)
		key := resource + "/" + object.GetName()
		if err := b.begin(call(object.GetName()), true); err != nil {
			return true, nil, err
		}
		if b.objects[key] != nil {
			return true, nil, apierrors.NewAlreadyExists(a.Resource.GroupResource(), object.GetName())
		}
		object.SetGeneration(1)
		object.SetResourceVersion(b.next())
		switch o := object.(type) {
		case *certmanagerv1.Certificate:
			o.Status = certmanagerv1.CertificateStatus{}
		case *certmanagerv1.Issuer:
			o.Status = certmanagerv1.IssuerStatus{}
		}
		b.objects[key] = object
		return true, object.DeepCopyObject(), nil
	case kubetesting.UpdateActionImpl:
		object := a.Object.DeepCopyObject().(cmObject)
		key := resource + "/" + object.GetName()
		if err := b.begin(call(object.GetName()), true); err != nil {
			return true, nil, err
		}
		have := b.objects[key]
		if have == nil {
			return true, nil, apierrors.NewNotFound(a.Resource.GroupResource(), object.GetName())
		}
		if have.GetResourceVersion() != object.GetResourceVersion() {
			return true, nil, apierrors.NewConflict(a.Resource.GroupResource(), object.GetName(),
				errors.New("the object has been modified"))
		}
		changed, sameSpec := have.DeepCopyObject().(cmObject), true
		switch c := changed.(type) {
		case *certmanagerv1.Certificate:
			sent := object.(*certmanagerv1.Certificate)
			if a.GetSubresource() == "status" {
				c.Status = sent.Status
				break
			}
			sameSpec = equality.Semantic.DeepEqual(c.Spec, sent.Spec)
			c.Spec, c.Labels = sent.Spec, sent.Labels
		case *certmanagerv1.Issuer:
			sent := object.(*certmanagerv1.Issuer)
			sameSpec = equality.Semantic.DeepEqual(c.Spec, sent.Spec)
			c.Spec, c.Labels = sent.Spec, sent.Labels
		}
		if !sameSpec {
			changed.SetGeneration(have.GetGeneration() + 1)
		}
		changed.SetResourceVersion(b.next())
		b.objects[key] = changed
		return true, changed.DeepCopyObject(), nil
	case kubetesting.DeleteActionImpl:
		if err := b.begin(call(a.Name), true); err != nil {
			return true, nil, err
		}
		if b.objects[resource+"/"+a.Name] == nil {
			return true, nil, apierrors.NewNotFound(a.Resource.GroupResource(), a.Name)
		}
		delete(b.objects, resource+"/"+a.Name)
		return true, nil, nil
	}
	b.Errorf("unexpected: %v", action)
	return true, nil, errors.New("unexpected")
}

type cmSecrets struct{ *cmBench }

var cmSecretsResource = schema.GroupResource{Resource: "secrets"}

func (s cmSecrets) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Secret, error) {
	if err := s.begin("get secrets/"+name, false); err != nil {
		return nil, err
	}
	if s.secrets[name] == nil {
		return nil, apierrors.NewNotFound(cmSecretsResource, name)
	}
	return s.secrets[name].DeepCopy(), nil
}

func (s cmSecrets) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	if err := s.begin("delete secrets/"+name, true); err != nil {
		return err
	}
	if s.secrets[name] == nil {
		return apierrors.NewNotFound(cmSecretsResource, name)
	}
	delete(s.secrets, name)
	return nil
}

func (s cmSecrets) Create(context.Context, *corev1.Secret, metav1.CreateOptions) (*corev1.Secret, error) {
	s.Error("a Secret was created: that is cert-manager's business")
	return nil, errors.New("not allowed")
}

func (s cmSecrets) Update(context.Context, *corev1.Secret, metav1.UpdateOptions) (*corev1.Secret, error) {
	s.Error("a Secret was updated: that is cert-manager's business")
	return nil, errors.New("not allowed")
}

func (b *cmBench) store(resource string, object cmObject) {
	b.Helper()
	object.SetNamespace("zarf")
	object.SetResourceVersion(b.next())
	b.objects[resource+"/"+object.GetName()] = object.DeepCopyObject().(cmObject)
}

func (b *cmBench) certificate(name string) *certmanagerv1.Certificate {
	b.Helper()
	c, ok := b.objects["certificates/"+name].(*certmanagerv1.Certificate)
	if !ok {
		b.Fatalf("there is no Certificate %s", name)
	}
	return c.DeepCopy()
}

func (b *cmBench) issuer(name string) *certmanagerv1.Issuer {
	b.Helper()
	i, ok := b.objects["issuers/"+name].(*certmanagerv1.Issuer)
	if !ok {
		b.Fatalf("there is no Issuer %s", name)
	}
	return i.DeepCopy()
}

// answer makes a call fail.
func (b *cmBench) answer(call string, err error) {
	b.intercept = func(got string) error {
		if got == call {
			return err
		}
		return nil
	}
}

// change edits a Certificate as another client would.
func (b *cmBench) change(name string, edit func(*certmanagerv1.Certificate)) {
	b.Helper()
	c := b.certificate(name)
	edit(c)
	c.Generation++
	b.store("certificates", c)
}

// round does one round of cert-manager.
func (b *cmBench) round() {
	b.Helper()
	for _, key := range slices.Sorted(maps.Keys(b.objects)) {
		if name, ok := strings.CutPrefix(key, "certificates/"); ok && b.controller != nil {
			c := b.certificate(name)
			before := c.DeepCopy()
			b.controller(c)
			if !equality.Semantic.DeepEqual(before, c) {
				b.store("certificates", c)
			}
		}
	}
}

func setCondition(c *certmanagerv1.Certificate, kind certmanagerv1.CertificateConditionType,
	status cmmeta.ConditionStatus, reason, message string) {
	dropCondition(c, kind)
	c.Status.Conditions = append(c.Status.Conditions,
		certmanagerv1.CertificateCondition{Type: kind, Status: status, Reason: reason, Message: message,
			ObservedGeneration: c.Generation})
}

func dropCondition(c *certmanagerv1.Certificate, kind certmanagerv1.CertificateConditionType) {
	c.Status.Conditions = slices.DeleteFunc(c.Status.Conditions,
		func(c certmanagerv1.CertificateCondition) bool { return c.Type == kind })
}

// issuing returns the reason why cert-manager would issue now, "" if it would not.
func (b *cmBench) issuing(c *certmanagerv1.Certificate) string {
	if cond := (issued{c, nil}).condition(certmanagerv1.CertificateConditionIssuing); cond != nil &&
		cond.Status == cmmeta.ConditionTrue {
		return cond.Reason
	}
	previous, ok := b.issuedWith[c.Name]
	switch {
	case b.secrets[c.Spec.SecretName] == nil:
		return "DoesNotExist"
	case ok && !equality.Semantic.DeepEqual(previous, c.Spec):
		return "RequestChanged"
	}
	return ""
}

// backsOff reports whether cert-manager waits after a failed issuance of the current spec.
func backsOff(c *certmanagerv1.Certificate) bool {
	return slices.ContainsFunc(c.Status.Conditions, func(cond certmanagerv1.CertificateCondition) bool {
		return cond.Type == certmanagerv1.CertificateConditionIssuing && cond.Status == cmmeta.ConditionFalse &&
			cond.Reason == "Failed" && cond.ObservedGeneration == c.Generation
	})
}

// issue simulates a successful issuance.
func (b *cmBench) issue(c *certmanagerv1.Certificate) {
	b.Helper()
	if backsOff(c) {
		return
	}
	if b.issuing(c) == "" {
		setCondition(c, certmanagerv1.CertificateConditionReady, cmmeta.ConditionTrue, "Ready",
			"Certificate is up to date and has not expired")
		return
	}
	signer := b.authority
	var pair pki.KeyPair
	var err error
	now := time.Now()
	switch {
	case c.Spec.IsCA:
		if signer, err = pki.NewCA(c.Spec.CommonName, now, c.Spec.Duration.Duration); err == nil {
			pair = signer.KeyPair()
		}
	default:
		if ca := b.secrets["zarf-registry-ca-issued"]; c.Spec.IssuerRef.Name == "zarf-registry-ca" {
			if ca == nil {
				setCondition(c, certmanagerv1.CertificateConditionReady, cmmeta.ConditionFalse, "DoesNotExist",
					"Issuing certificate as Secret does not exist")
				return
			}
			if signer, err = pki.ParseCA(pki.KeyPair{Certificate: ca.Data["tls.crt"], Key: ca.Data["tls.key"]}); err != nil {
				b.Fatal(err)
			}
		}
		pair, err = signer.Issue(pki.Leaf{CommonName: c.Spec.CommonName, DNSNames: c.Spec.DNSNames,
			Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, now)
	}
	if err != nil {
		b.Fatal(err)
	}
	b.write(c, pair, signer)
	dropCondition(c, certmanagerv1.CertificateConditionIssuing)
	c.Status.LastFailureTime = nil
	setCondition(c, certmanagerv1.CertificateConditionReady, cmmeta.ConditionTrue, "Ready",
		"Certificate is up to date and has not expired")
}

func (b *cmBench) write(c *certmanagerv1.Certificate, pair pki.KeyPair, signer *pki.CA) {
	b.issuedWith[c.Name] = *c.Spec.DeepCopy()
	var labels map[string]string
	if c.Spec.SecretTemplate != nil {
		labels = maps.Clone(c.Spec.SecretTemplate.Labels)
	}
	b.secrets[c.Spec.SecretName] = &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: c.Spec.SecretName, Namespace: "zarf", Labels: labels,
			Annotations: map[string]string{"cert-manager.io/certificate-name": c.Name}},
		Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": pair.Certificate, "tls.key": pair.Key,
			"ca.crt": signer.KeyPair().Certificate},
	}
}

// fail simulates an issuer that refuses.
func (b *cmBench) fail(c *certmanagerv1.Certificate) {
	if b.issuing(c) == "" || backsOff(c) {
		return
	}
	failed := metav1.NewTime(time.Now())
	c.Status.LastFailureTime = &failed
	setCondition(c, certmanagerv1.CertificateConditionIssuing, cmmeta.ConditionFalse, "Failed",
		"The certificate request has failed to complete and will be retried: name is not permitted")
	if b.secrets[c.Spec.SecretName] == nil {
		setCondition(c, certmanagerv1.CertificateConditionReady, cmmeta.ConditionFalse, "DoesNotExist",
			"Issuing certificate as Secret does not exist")
	}
}

// pend simulates an issuer that does not answer.
func (b *cmBench) pend(c *certmanagerv1.Certificate) {
	if b.issuing(c) == "" {
		return
	}
	setCondition(c, certmanagerv1.CertificateConditionReady, cmmeta.ConditionFalse, "DoesNotExist",
		"Issuing certificate as Secret does not exist")
	setCondition(c, certmanagerv1.CertificateConditionIssuing, cmmeta.ConditionTrue, "DoesNotExist",
		"Issuing certificate as Secret does not exist")
	b.request(c.Name, c.Name+"-1", 1, time.Time{},
		certmanagerv1.CertificateRequestCondition{Type: certmanagerv1.CertificateRequestConditionReady,
			Status: cmmeta.ConditionFalse, Reason: "Pending", Message: `Referenced "ClusterIssuer" not found`})
}

func (b *cmBench) request(
	certificate, name string, revision int, created time.Time, conditions ...certmanagerv1.CertificateRequestCondition,
) {
	b.Helper()
	b.store("certificaterequests", &certmanagerv1.CertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(created), Annotations: map[string]string{
			"cert-manager.io/certificate-name": certificate, "cert-manager.io/certificate-revision": fmt.Sprint(revision)}},
		Status: certmanagerv1.CertificateRequestStatus{Conditions: conditions},
	})
}

// run creates the sources, and returns how long that took.
func (b *cmBench) run(p state.PKI) (state.ExistingSecrets, time.Duration, error) {
	b.Helper()
	begin := time.Now()
	sources, err := b.keeper.certManagerSources(b.Context(), p)
	if err == nil && p.Issuer != nil {
		err = b.keeper.deleteOwnIssuer(b.Context())
	}
	return sources, time.Since(begin), err
}

func (b *cmBench) mustRun(p state.PKI) {
	b.Helper()
	want := state.ExistingSecrets{Server: "zarf-registry-server-issued", Node: "zarf-registry-node-issued",
		Push: "zarf-registry-push-issued", Cache: "zarf-registry-cache-issued"}
	if sources, _, err := b.run(p); err != nil || sources != want {
		b.Fatalf("sources: %+v, %v", sources, err)
	}
	for _, name := range []string{want.Server, want.Node, want.Push} {
		if b.secrets[name] == nil {
			b.Errorf("Secret %s is missing", name)
		}
	}
}

// writesOf returns what run writes.
func (b *cmBench) writesOf(run func()) []string {
	b.writes = nil
	run()
	return b.writes
}

func (b *cmBench) names() []string {
	names := slices.Collect(maps.Keys(b.objects))
	for name := range b.secrets {
		names = append(names, "secrets/"+name)
	}
	slices.Sort(names)
	return names
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error %q has several lines", err)
	}
}

func refused(err error) bool {
	r := (*exitcode.Refusal)(nil)
	return errors.As(err, &r)
}

func cmTest(t *testing.T, run func(t *testing.T, b *cmBench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(t, newCMBench(t)) })
}

func cmSubtest(t *testing.T, name string, run func(t *testing.T, b *cmBench)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { cmTest(t, run) })
}

func leafNames() []string {
	return []string{"zarf-registry-server", "zarf-registry-node", "zarf-registry-push"}
}

func TestCertManagerIsAskedForWhatTheLeavesNeed(t *testing.T) {
	golden := golden.Open(t, "objects")
	for name, p := range map[string]state.PKI{"a user's issuer": corpIssuer(), "our own": ownIssuer()} {
		cmSubtest(t, name, func(t *testing.T, b *cmBench) {
			b.mustRun(p)
			var text strings.Builder
			for _, key := range slices.Sorted(maps.Keys(b.objects)) {
				o := b.objects[key].DeepCopyObject().(cmObject)
				spec := map[string]any{"labels": o.GetLabels()}
				switch o := o.(type) {
				case *certmanagerv1.Certificate:
					spec["spec"] = o.Spec
				case *certmanagerv1.Issuer:
					spec["spec"] = o.Spec
				}
				data, err := yaml.Marshal(spec)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&text, "%s\n%s", key, data)
			}
			golden.Check(t, name, text.String())
			if writes := b.writesOf(func() { b.mustRun(p) }); len(writes) > 0 {
				t.Errorf("a second run wrote %v", writes)
			}
		})
	}
}

func TestDriftIsPutRight(t *testing.T) {
	drifts := map[string]func(*certmanagerv1.Certificate){
		"secretName":     func(c *certmanagerv1.Certificate) { c.Spec.SecretName = "other" },
		"secretTemplate": func(c *certmanagerv1.Certificate) { c.Spec.SecretTemplate = nil },
		"secretTemplate label": func(c *certmanagerv1.Certificate) {
			c.Spec.SecretTemplate.Labels[names.LabelManagedBy] = "somebody"
		},
		"duration":        func(c *certmanagerv1.Certificate) { c.Spec.Duration = nil },
		"renewBefore":     func(c *certmanagerv1.Certificate) { c.Spec.RenewBefore = &metav1.Duration{Duration: time.Hour} },
		"isCA":            func(c *certmanagerv1.Certificate) { c.Spec.IsCA = true },
		"commonName":      func(c *certmanagerv1.Certificate) { c.Spec.CommonName = "x" },
		"organization":    func(c *certmanagerv1.Certificate) { c.Spec.Subject = nil },
		"another role":    func(c *certmanagerv1.Certificate) { c.Spec.URIs = append(c.Spec.URIs, pki.OrganizationPush) },
		"dnsNames":        func(c *certmanagerv1.Certificate) { c.Spec.DNSNames = nil },
		"ipAddresses":     func(c *certmanagerv1.Certificate) { c.Spec.IPAddresses = c.Spec.IPAddresses[:1] },
		"usages":          func(c *certmanagerv1.Certificate) { c.Spec.Usages = nil },
		"privateKey":      func(c *certmanagerv1.Certificate) { c.Spec.PrivateKey = nil },
		"algorithm":       func(c *certmanagerv1.Certificate) { c.Spec.PrivateKey.Algorithm = "RSA" },
		"size":            func(c *certmanagerv1.Certificate) { c.Spec.PrivateKey.Size = 384 },
		"encoding":        func(c *certmanagerv1.Certificate) { c.Spec.PrivateKey.Encoding = "PKCS1" },
		"rotationPolicy":  func(c *certmanagerv1.Certificate) { c.Spec.PrivateKey.RotationPolicy = "Never" },
		"issuerRef":       func(c *certmanagerv1.Certificate) { c.Spec.IssuerRef.Name = "x" },
		"revisions":       func(c *certmanagerv1.Certificate) { c.Spec.RevisionHistoryLimit = nil },
		"component label": func(c *certmanagerv1.Certificate) { delete(c.Labels, names.LabelComponent) },
	}
	for name, drift := range drifts {
		cmSubtest(t, name, func(t *testing.T, b *cmBench) {
			b.mustRun(corpIssuer())
			want := b.certificate("zarf-registry-node")
			b.change("zarf-registry-node", drift)
			writes := b.writesOf(func() { b.mustRun(corpIssuer()) })
			if !slices.Equal(writes, []string{"update certificates/zarf-registry-node"}) {
				t.Errorf("wrote %v", writes)
			}
			if got := b.certificate("zarf-registry-node"); !equality.Semantic.DeepEqual(got.Spec, want.Spec) ||
				!maps.Equal(got.Labels, want.Labels) {
				t.Errorf("it is %+v", got)
			}
		})
	}
}

func TestWhatOthersAddToACertificateStays(t *testing.T) {
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.mustRun(corpIssuer())
		encode := true
		b.change("zarf-registry-node", func(c *certmanagerv1.Certificate) {
			c.Labels["team"] = "platform"
			c.Annotations["a"] = "b"
			c.Spec.EncodeUsagesInRequest = &encode
			c.Spec.Subject.OrganizationalUnits = []string{"platform"}
			c.Spec.SecretTemplate.Annotations["a"] = "b"
		})
		before := b.certificate("zarf-registry-node")
		if writes := b.writesOf(func() { b.mustRun(corpIssuer()) }); len(writes) > 0 {
			t.Errorf("wrote %v", writes)
		}
		b.change("zarf-registry-node", func(c *certmanagerv1.Certificate) { c.Spec.DNSNames = nil })
		b.mustRun(corpIssuer())
		if got := b.certificate("zarf-registry-node"); !equality.Semantic.DeepEqual(got.Spec, before.Spec) ||
			!maps.Equal(got.Labels, before.Labels) || got.Annotations["a"] != "b" {
			t.Errorf("it is %+v", got)
		}
	})
}

func TestDriftOfAnIssuerIsPutRight(t *testing.T) {
	drifts := map[string]func(*certmanagerv1.Issuer){
		"another Secret": func(i *certmanagerv1.Issuer) { i.Spec.CA.SecretName = "other" },
		"another kind": func(i *certmanagerv1.Issuer) {
			i.Spec.IssuerConfig = certmanagerv1.IssuerConfig{ACME: &cmacme.ACMEIssuer{}}
		},
		"no kind":  func(i *certmanagerv1.Issuer) { i.Spec.IssuerConfig = certmanagerv1.IssuerConfig{} },
		"no label": func(i *certmanagerv1.Issuer) { delete(i.Labels, names.LabelInstance) },
	}
	for name, drift := range drifts {
		cmSubtest(t, name, func(t *testing.T, b *cmBench) {
			b.mustRun(ownIssuer())
			i := b.issuer("zarf-registry-ca")
			want := i.DeepCopy()
			drift(i)
			b.store("issuers", i)
			writes := b.writesOf(func() { b.mustRun(ownIssuer()) })
			if got := b.issuer("zarf-registry-ca"); !slices.Equal(writes, []string{"update issuers/zarf-registry-ca"}) ||
				!equality.Semantic.DeepEqual(got.Spec, want.Spec) || !maps.Equal(got.Labels, want.Labels) {
				t.Errorf("wrote %v, it is %+v", writes, got)
			}
		})
	}
}

func TestAWebhookThatChangesACertificateIsNotFought(t *testing.T) {
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.mustRun(corpIssuer())
		short := corpIssuer()
		short.LeafLifetime = state.Duration(24 * time.Hour)
		b.mustRun(short)

		client := b.keeper.Cluster.Certificates
		b.keeper.Cluster.Certificates = cmWebhook{client}
		writes := b.writesOf(func() {
			_, took, err := b.run(corpIssuer())
			wantError(t, err, "Certificate zarf/zarf-registry-server was written, but something in the cluster, such as an "+
				"admission webhook, changes spec.duration: exclude this object from it")
			if !refused(err) || took > time.Second {
				t.Errorf("refused: %t, after %s", refused(err), took)
			}
		})
		if !slices.Equal(writes, []string{"update certificates/zarf-registry-server"}) {
			t.Errorf("wrote %v", writes)
		}
	})
}

// cmWebhook limits the duration of every Certificate to a day.
type cmWebhook struct{ Certificates }

func (w cmWebhook) Update(
	ctx context.Context, c *certmanagerv1.Certificate, opts metav1.UpdateOptions,
) (*certmanagerv1.Certificate, error) {
	c = c.DeepCopy()
	c.Spec.Duration = &metav1.Duration{Duration: 24 * time.Hour}
	return w.Certificates.Update(ctx, c, opts)
}

func TestCertManagerObjectsOfOthersAreNeverTouched(t *testing.T) {
	foreign := map[string]func(*cmBench){
		"Certificate zarf/zarf-registry-node": func(b *cmBench) {
			b.store("certificates",
				&certmanagerv1.Certificate{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-node",
					Labels: map[string]string{names.LabelManagedBy: "Helm"}}})
		},
		"Issuer zarf/zarf-registry-ca": func(b *cmBench) {
			b.store("issuers", &certmanagerv1.Issuer{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-ca"}})
		},
		"Secret zarf/zarf-registry-push-issued": func(b *cmBench) {
			b.secrets["zarf-registry-push-issued"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-push-issued"}}
		},
	}
	for object, add := range foreign {
		cmSubtest(t, object, func(t *testing.T, b *cmBench) {
			b.controller = nil
			add(b)
			_, took, err := b.run(ownIssuer())
			wantError(t, err, object+" exists and was not created by zarf-registry: rename or delete it, or install under "+
				"another name (--set fullnameOverride=…)")
			if !refused(err) || took > 0 {
				t.Errorf("refused: %t, after %s", refused(err), took)
			}
			kind, name, _ := strings.Cut(object, " zarf/")
			resource := strings.ToLower(kind) + "s/" + name
			// cert-manager overwrites the Secret of a Certificate.
			certificate := "certificates/" + strings.TrimSuffix(name, names.SuffixIssued)
			for _, write := range b.writes {
				if strings.HasSuffix(write, " "+resource) || kind != "Issuer" && strings.HasSuffix(write, " "+certificate) {
					t.Errorf("wrote: %s", write)
				}
			}
			did, err := b.keeper.DeleteCertManager(b.Context())
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(did, kind+" "+name) || !slices.Contains(b.names(), resource) ||
				!strings.Contains(b.log.String(), object) {
				t.Errorf("%s; there is %v; log: %s", did, b.names(), b.log)
			}
		})
	}
}

func TestASecretThatTookTheNameOfOursIsNotTouched(t *testing.T) {
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.mustRun(corpIssuer())
		b.controller = nil
		b.secrets["zarf-registry-node-issued"] = &corev1.Secret{Data: map[string][]byte{"tls.crt": []byte("theirs")}}
		_, _, err := b.run(corpIssuer())
		wantError(t, err, "Secret zarf/zarf-registry-node-issued exists and was not created by zarf-registry")
		// cert-manager wrote it, but for a Certificate that no longer exists and was not ours.
		b.secrets["zarf-registry-node-issued"].Annotations = map[string]string{"cert-manager.io/certificate-name": "zarf-registry-node"}
		delete(b.objects, "certificates/zarf-registry-node")
		_, _, err = b.run(corpIssuer())
		wantError(t, err, "Secret zarf/zarf-registry-node-issued exists and was not created by zarf-registry")
		if b.objects["certificates/zarf-registry-node"] != nil {
			t.Error("a Certificate was made, and cert-manager would overwrite the Secret")
		}
	})
}

// notInstalled answers as an API server without cert-manager.
func notInstalled(call string) error {
	if strings.Contains(call, "secrets/") {
		return nil
	}
	verb, _, _ := strings.Cut(call, " ")
	return apierrors.NewGenericServerResponse(404, verb,
		schema.GroupResource{Group: "cert-manager.io", Resource: "certificates"}, "", "404 page not found", 0, true)
}

func TestWithoutCertManager(t *testing.T) {
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.intercept = notInstalled
		_, took, err := b.run(ownIssuer())
		wantError(t, err, "creating Issuer zarf/zarf-registry-selfsigned", "cert-manager is not installed: install it first",
			"--set pki.mode=internal")
		if !refused(err) || took > 0 {
			t.Errorf("refused: %t, after %s", refused(err), took)
		}
		did, err := b.keeper.DeleteCertManager(b.Context())
		if did != "nothing" || err != nil {
			t.Errorf("deleting: %q, %v", did, err)
		}
		// cert-manager was uninstalled, but its Secrets remain.
		b.secrets["zarf-registry-node-issued"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{names.LabelManagedBy: names.Manager}}}
		did, err = b.keeper.DeleteCertManager(b.Context())
		if did != "deleted Secret zarf-registry-node-issued" || err != nil {
			t.Errorf("deleting: %q, %v", did, err)
		}
	})
}

func TestWhatCertManagerWaitsForIsSaid(t *testing.T) {
	golden := golden.Open(t, "waits")
	for name, c := range map[string]struct {
		p    state.PKI
		play func(b *cmBench)
	}{
		"its controller does not run": {corpIssuer(), func(b *cmBench) { b.controller = nil }},
		"the issuer does not exist":   {corpIssuer(), func(b *cmBench) { b.controller = b.pend }},
		"an external issuer": {func() state.PKI {
			p := corpIssuer()
			p.Issuer = &state.Issuer{Name: "corp", Kind: "StepIssuer", Group: "certmanager.step.sm"}
			return p
		}(), func(b *cmBench) { b.controller = b.pend }},
		"our own authority comes first": {ownIssuer(), func(b *cmBench) {
			b.controller = func(c *certmanagerv1.Certificate) {
				if c.Spec.IsCA {
					b.pend(c)
				} else {
					b.issue(c)
				}
			}
		}},
		"one of three": {corpIssuer(), func(b *cmBench) {
			b.controller = func(c *certmanagerv1.Certificate) {
				if c.Name == "zarf-registry-push" {
					b.pend(c)
				} else {
					b.issue(c)
				}
			}
		}},
		"the Secret is written by nobody": {corpIssuer(), func(b *cmBench) {
			b.controller = func(c *certmanagerv1.Certificate) {
				setCondition(c, certmanagerv1.CertificateConditionReady, cmmeta.ConditionTrue, "Ready", "")
			}
		}},
		"a Certificate that is being deleted": {corpIssuer(), func(b *cmBench) {
			b.mustRun(corpIssuer())
			b.change("zarf-registry-node", func(c *certmanagerv1.Certificate) {
				c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: time.Now()}, []string{"foregroundDeletion"}
				c.Spec.DNSNames = nil
			})
			b.left = 0 // the first write kills the process
		}},
		"a change that nobody has looked at": {corpIssuer(), func(b *cmBench) {
			b.mustRun(corpIssuer())
			b.controller = nil
			b.change("zarf-registry-node", func(c *certmanagerv1.Certificate) { c.Spec.DNSNames = nil })
		}},
	} {
		cmSubtest(t, name, func(t *testing.T, b *cmBench) {
			c.play(b)
			_, took, err := b.run(c.p)
			golden.Check(t, name, fmt.Sprint(err))
			if took < certManagerTimeout || took > certManagerTimeout+2*certManagerPoll || refused(err) {
				t.Errorf("after %s, refused: %t", took, refused(err))
			}
		})
	}
}

func TestWaitingForCertManagerEndsWithTheRun(t *testing.T) {
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.controller = b.pend
		b.keeper.Cluster.CertificateRequests = cmRequests{b.keeper.Cluster.CertificateRequests}
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		defer cancel()
		_, err := b.keeper.certManagerSources(ctx, corpIssuer())
		wantError(t, err, "Certificate zarf/zarf-registry-server is not ready after 10s: ",
			"CertificateRequest zarf/zarf-registry-server-1: Pending")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v does not say that the time is over", err)
		}
	})
}

// cmRequests returns an error once the context has expired, as a real client does.
type cmRequests struct{ CertificateRequests }

func (r cmRequests) List(ctx context.Context, opts metav1.ListOptions) (*certmanagerv1.CertificateRequestList, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return r.CertificateRequests.List(ctx, opts)
}

func TestALookThatTheEndCutsShortSaysNothing(t *testing.T) {
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.controller = b.pend
		b.keeper.Cluster.Certificates = cmSlow{b.keeper.Cluster.Certificates,
			time.Now().Add(certManagerTimeout - 10*time.Second)}
		_, _, err := b.run(corpIssuer())
		wantError(t, err, "Certificate zarf/zarf-registry-server is not ready after 1m30s: DoesNotExist")
		if strings.Contains(err.Error(), "deadline") {
			t.Error(err)
		}
	})
}

// cmSlow stops answering at a point in time.
type cmSlow struct {
	Certificates
	from time.Time
}

func (s cmSlow) Get(ctx context.Context, name string, opts metav1.GetOptions) (*certmanagerv1.Certificate, error) {
	if time.Now().After(s.from) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Certificates.Get(ctx, name, opts)
}

// cert-manager ignores requests that failed before the last transition time. That time must not
// change during an issuance.
func TestAskingTwiceDoesNotMoveTheTransition(t *testing.T) {
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.mustRun(corpIssuer())
		b.controller = nil
		transition := func() time.Time {
			t.Helper()
			if err := b.keeper.issueAgain(b.Context(), issued{b.certificate("zarf-registry-node"), nil}); err != nil {
				t.Fatal(err)
			}
			c := b.certificate("zarf-registry-node")
			cond := (issued{c, nil}).condition(certmanagerv1.CertificateConditionIssuing)
			if cond == nil || cond.Status != cmmeta.ConditionTrue || cond.Reason != "ManuallyTriggered" ||
				cond.ObservedGeneration != c.Generation || len(c.Status.Conditions) != 2 {
				t.Fatalf("%+v", c.Status.Conditions)
			}
			return cond.LastTransitionTime.Time
		}
		first := transition()
		time.Sleep(time.Minute)
		if second := transition(); !second.Equal(first) {
			t.Errorf("it moved from %s to %s", first, second)
		}
	})
}

func TestOfTheRequestsTheNewestIsQuoted(t *testing.T) {
	ready := func(reason, message string) certmanagerv1.CertificateRequestCondition {
		return certmanagerv1.CertificateRequestCondition{Type: certmanagerv1.CertificateRequestConditionReady,
			Status: cmmeta.ConditionFalse, Reason: reason, Message: message}
	}
	condition := func(kind certmanagerv1.CertificateRequestConditionType, status cmmeta.ConditionStatus, reason,
		message string) certmanagerv1.CertificateRequestCondition {
		return certmanagerv1.CertificateRequestCondition{Type: kind, Status: status, Reason: reason, Message: message}
	}
	const name = "zarf-registry-server"
	golden := golden.Open(t, "requests")
	for what, play := range map[string]func(b *cmBench){
		"none": func(*cmBench) {},
		"another Certificate's": func(b *cmBench) {
			b.request("zarf-registry-node", "x", 1, time.Now(), ready("Pending", "x"))
		},
		"the younger": func(b *cmBench) {
			b.request(name, "b", 1, time.Now(), ready("Pending", "new"))
			b.request(name, "a", 2, time.Now().Add(-time.Hour), ready("Failed", "old"))
		},
		"of the same second": func(b *cmBench) {
			b.request(name, "b", 9, time.Now(), ready("Failed", "old"))
			b.request(name, "a", 10, time.Now(), ready("Pending", "new"))
		},
		"a denial": func(b *cmBench) {
			b.request(name, "a", 1, time.Now(), ready("Denied", "The CertificateRequest was denied by an approval controller"),
				condition(certmanagerv1.CertificateRequestConditionDenied, cmmeta.ConditionTrue, "policy.cert-manager.io",
					"No policy approved this request"))
		},
		"an invalid one": func(b *cmBench) {
			b.request(name, "a", 1, time.Now(), ready("Pending", "x"),
				condition(certmanagerv1.CertificateRequestConditionInvalidRequest, cmmeta.ConditionTrue, "Bad", "no such usage"))
		},
		"approved by nobody": func(b *cmBench) { b.request(name, "a", 1, time.Now()) },
		"looked at by no issuer": func(b *cmBench) {
			b.request(name, "a", 1, time.Now(),
				condition(certmanagerv1.CertificateRequestConditionApproved, cmmeta.ConditionTrue, "cert-manager.io", "approved"))
		},
		"one that is done": func(b *cmBench) {
			b.request(name, "a", 1, time.Now(),
				condition(certmanagerv1.CertificateRequestConditionReady, cmmeta.ConditionTrue, "Issued", "x"))
		},
		"no right to read them": func(b *cmBench) {
			b.request(name, "a", 1, time.Now(), ready("Pending", "x"))
			b.intercept = func(call string) error {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "certificaterequests"}, "", errors.New("no"))
			}
		},
	} {
		cmSubtest(t, what, func(t *testing.T, b *cmBench) {
			play(b)
			golden.Check(t, what, b.keeper.requestProblem(b.Context(), name))
		})
	}
}

func TestAFailedIssuanceIsSaidAtOnce(t *testing.T) {
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.controller = b.fail
		at := time.Now().UTC().Format("2006-01-02T15:04:")
		_, took, err := b.run(corpIssuer())
		wantError(t, err, "Certificate zarf/zarf-registry-server was not issued: cert-manager gave up at "+at,
			"Failed: The certificate request has failed to complete and will be retried: name is not permitted; check its "+
				"issuer")
		if took > 3*time.Second || refused(err) {
			t.Errorf("after %s, refused: %t", took, refused(err))
		}
	})
}

func TestAFailureOfAnEarlierRunIsTriedAgain(t *testing.T) {
	for name, mended := range map[string]bool{"mended": true, "not mended": false} {
		cmSubtest(t, name, func(t *testing.T, b *cmBench) {
			b.controller = b.fail
			if _, _, err := b.run(corpIssuer()); err == nil {
				t.Fatal("no error")
			}
			if mended {
				b.controller = b.issue
			}
			time.Sleep(10 * time.Minute)
			writes := b.writesOf(func() {
				_, took, err := b.run(corpIssuer())
				if (err == nil) != mended || took > 3*time.Second {
					t.Errorf("%v after %s", err, took)
				}
			})
			want := []string{"update status of certificates/zarf-registry-server",
				"update status of certificates/zarf-registry-node", "update status of certificates/zarf-registry-push"}
			if !slices.Equal(writes, want) {
				t.Errorf("wrote %v", writes)
			}
		})
	}
}

func TestAFailureOfAPreviousSpecMeansNothing(t *testing.T) {
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.controller = b.fail
		if _, _, err := b.run(corpIssuer()); err == nil {
			t.Fatal("no error")
		}
		b.controller = b.issue
		p := corpIssuer()
		p.Issuer.Name = "better"
		if writes := b.writesOf(func() { b.mustRun(p) }); len(writes) != 3 ||
			strings.Contains(strings.Join(writes, " "), "status") {
			t.Errorf("wrote %v", writes)
		}
	})
}

func TestARenewalThatFailsIsAWarningWhileTheCertificateIsGood(t *testing.T) {
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.mustRun(corpIssuer())
		b.controller = func(c *certmanagerv1.Certificate) {
			failed := metav1.NewTime(time.Now())
			c.Status.LastFailureTime, c.Status.NotAfter = &failed, &metav1.Time{Time: time.Now().Add(time.Hour)}
			setCondition(c, certmanagerv1.CertificateConditionIssuing, cmmeta.ConditionFalse, "Failed", "name is not permitted")
		}
		if writes := b.writesOf(func() { b.mustRun(corpIssuer()) }); len(writes) > 0 {
			t.Errorf("wrote %v", writes)
		}
		if log := b.log.String(); strings.Count(log, "cert-manager cannot renew a certificate") != 3 ||
			!strings.Contains(log, "Failed: name is not permitted") {
			t.Errorf("log: %s", log)
		}
	})
	// With server-side apply, cert-manager keeps the condition after a successful issuance.
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.controller = func(c *certmanagerv1.Certificate) {
			b.issue(c)
			setCondition(c, certmanagerv1.CertificateConditionIssuing, cmmeta.ConditionFalse, "Issued",
				"The certificate has been successfully issued")
			failed := metav1.NewTime(time.Now())
			c.Status.LastFailureTime = &failed
		}
		b.mustRun(corpIssuer())
		b.mustRun(corpIssuer())
		if strings.Contains(b.log.String(), "cannot renew") {
			t.Errorf("log: %s", b.log)
		}
	})
}

func TestWhatPassesIsWaitedFor(t *testing.T) {
	gr := schema.GroupResource{Group: "cert-manager.io", Resource: "certificates"}
	for name, passing := range map[string]error{
		"cert-manager's webhook does not answer yet": apierrors.NewInternalError(
			errors.New(`failed calling webhook "webhook.cert-manager.io": connection refused`)),
		"somebody wrote at the same time":   apierrors.NewConflict(gr, "zarf-registry-node", errors.New("modified")),
		"somebody made it at the same time": apierrors.NewAlreadyExists(gr, "zarf-registry-node"),
		"the API server restarts":           errors.New("connection refused"),
	} {
		cmSubtest(t, name, func(t *testing.T, b *cmBench) {
			until := time.Now().Add(20 * time.Second)
			b.intercept = func(call string) error {
				if time.Now().Before(until) && call == "create certificates/zarf-registry-node" {
					return passing
				}
				return nil
			}
			b.mustRun(ownIssuer())

			b.intercept = func(call string) error {
				if strings.Contains(call, "certificates/zarf-registry-node") {
					return passing
				}
				return nil
			}
			_, took, err := b.run(ownIssuer())
			wantError(t, err, "waiting 1m30s for cert-manager: ", passing.Error())
			if took < certManagerTimeout || refused(err) {
				t.Errorf("after %s, refused: %t", took, refused(err))
			}
		})
	}
}

func TestARightThatIsMissingForCertManagerIsNamed(t *testing.T) {
	for _, call := range []string{
		"get issuers/zarf-registry-ca", "create issuers/zarf-registry-ca", "get certificates/zarf-registry-node",
		"create certificates/zarf-registry-node", "get secrets/zarf-registry-node-issued",
	} {
		cmSubtest(t, call, func(t *testing.T, b *cmBench) {
			verb, rest, _ := strings.Cut(call, " ")
			resource, name, _ := strings.Cut(rest, "/")
			remedy := "request that permission"
			if verb == "create" {
				remedy = "run helm upgrade"
			}
			b.answer(call, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, name,
				fmt.Errorf(`User "u" cannot %s resource %q in API group ""`, verb, resource)))
			_, took, err := b.run(ownIssuer())
			wantError(t, err, "zarf/"+name, "cannot "+verb+" resource", remedy)
			if !refused(err) || took > 3*time.Second {
				t.Errorf("refused: %t, after %s", refused(err), took)
			}
		})
	}
}

func (b *cmBench) issuedNow() map[string]string {
	out := map[string]string{}
	for name, s := range b.secrets {
		out[name] = string(s.Data["tls.crt"])
	}
	return out
}

func TestCertManagerRenewsWhenAsked(t *testing.T) {
	for name, c := range map[string]struct {
		p         state.PKI
		authority bool
		renewed   []string
	}{
		"a user's issuer":           {corpIssuer(), false, leafNames()},
		"our own":                   {ownIssuer(), false, leafNames()},
		"our own and its authority": {ownIssuer(), true, append([]string{"zarf-registry-ca"}, leafNames()...)},
	} {
		cmSubtest(t, name, func(t *testing.T, b *cmBench) {
			b.mustRun(c.p)
			before := b.issuedNow()
			writes := b.writesOf(func() {
				if err := b.keeper.certManagerRenew(b.Context(), c.p, c.authority); err != nil {
					t.Fatal(err)
				}
			})
			after := b.issuedNow()
			var want []string
			for _, name := range c.renewed {
				want = append(want, "update status of certificates/"+name)
			}
			if !slices.Equal(writes, want) {
				t.Errorf("wrote %v", writes)
			}
			for name := range before {
				if renewed := before[name] != after[name]; renewed != slices.Contains(c.renewed,
					strings.TrimSuffix(name, names.SuffixIssued)) {
					t.Errorf("%s renewed: %t", name, renewed)
				}
			}
			if c.authority {
				for _, name := range leafNames() {
					if got := string(b.secrets[name+names.SuffixIssued].Data["ca.crt"]); got != after["zarf-registry-ca-issued"] {
						t.Errorf("%s is of another authority", name)
					}
				}
			}
			b.mustRun(c.p)
		})
	}
}

func TestRenewingWhatWasNeverMadeMakesIt(t *testing.T) {
	cmTest(t, func(t *testing.T, b *cmBench) {
		if err := b.keeper.certManagerRenew(b.Context(), ownIssuer(), true); err != nil {
			t.Fatal(err)
		}
		b.mustRun(ownIssuer())
	})
}

func TestTheAuthorityOfAUsersIssuerIsNotOurs(t *testing.T) {
	cmTest(t, func(t *testing.T, b *cmBench) {
		p := corpIssuer()
		c := &command{Manager: b.keeper, saved: &state.State{PKI: &p}}
		_, err := c.request(b.Context(), &rotation{}, true)
		wantError(t, err, "the CA belongs to ClusterIssuer corp, not to this release: replace it there, then run zarf-registry "+
			"certs rotate")
		if !refused(err) || len(b.writes) > 0 {
			t.Errorf("refused: %t, wrote %v", refused(err), b.writes)
		}
	})
}

// cert-manager may sign with a cached version of the CA Secret.
func TestALeafOfThePreviousCAIsRequestedAgain(t *testing.T) {
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.mustRun(ownIssuer())
		previous := b.secrets["zarf-registry-ca-issued"]
		late := true
		b.controller = func(c *certmanagerv1.Certificate) {
			if c.Name != "zarf-registry-node" || !late || b.issuing(c) == "" {
				b.issue(c)
				return
			}
			now := b.secrets["zarf-registry-ca-issued"]
			b.secrets["zarf-registry-ca-issued"] = previous
			b.issue(c)
			b.secrets["zarf-registry-ca-issued"] = now
			late = false
		}
		if err := b.keeper.certManagerRenew(b.Context(), ownIssuer(), true); err != nil {
			t.Fatal(err)
		}
		if late {
			t.Fatal("the case did not happen")
		}
		if !bytes.Equal(b.secrets["zarf-registry-node-issued"].Data["ca.crt"],
			b.secrets["zarf-registry-ca-issued"].Data["tls.crt"]) {
			t.Error("it is of the previous CA")
		}
	})
}

func TestARenewalThatDoesNotComeIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		play func(b *cmBench)
		want string
		fast bool
	}{
		"the issuer refuses": {func(b *cmBench) { b.controller = b.fail }, "was not issued: cert-manager gave up at",
			true},
		"nobody looks": {func(b *cmBench) { b.controller = nil },
			"is not ready after 1m30s: ManuallyTriggered: zarf-registry asked for a new certificate", false},
		"the same certificate": {func(b *cmBench) {
			b.controller = func(c *certmanagerv1.Certificate) {
				dropCondition(c,
					"Issuing")
			}
		}, "is not ready after 1m30s: its Secret zarf-registry-server-issued still has the previous certificate", false},
		"the answer is a conflict": {func(b *cmBench) {
			b.answer("update status of certificates/zarf-registry-server",
				apierrors.NewConflict(schema.GroupResource{Resource: "certificates"}, "x", errors.New("modified")))
		},
			"requesting a new issuance in the status of Certificate zarf/zarf-registry-server: ", false},
	} {
		cmSubtest(t, name, func(t *testing.T, b *cmBench) {
			b.mustRun(corpIssuer())
			before := b.issuedNow()
			c.play(b)
			begin := time.Now()
			err := b.keeper.certManagerRenew(b.Context(), corpIssuer(), false)
			wantError(t, err, c.want)
			if took := time.Since(begin); refused(err) || c.fast != (took < 5*time.Second) {
				t.Errorf("refused: %t, after %s", refused(err), took)
			}
			if got := b.issuedNow(); got["zarf-registry-server-issued"] != before["zarf-registry-server-issued"] {
				t.Error("the previous certificate is gone")
			}
		})
	}
}

func TestACertManagerConflictWhileAskingIsTriedAgain(t *testing.T) {
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.mustRun(corpIssuer())
		before, times := b.issuedNow(), 0
		b.intercept = func(call string) error {
			if call == "update status of certificates/zarf-registry-node" && times < 3 {
				times++
				return apierrors.NewConflict(schema.GroupResource{Resource: "certificates"}, "x", errors.New("modified"))
			}
			return nil
		}
		if err := b.keeper.certManagerRenew(b.Context(), corpIssuer(), false); err != nil {
			t.Fatal(err)
		}
		for name, previous := range before {
			if b.issuedNow()[name] == previous {
				t.Errorf("%s was not renewed", name)
			}
		}
	})
}

func TestWhatCertManagerKeptForUsIsDeleted(t *testing.T) {
	for name, p := range map[string]state.PKI{"a user's issuer": corpIssuer(), "our own": ownIssuer()} {
		cmSubtest(t, name, func(t *testing.T, b *cmBench) {
			b.mustRun(p)
			b.store("issuers", &certmanagerv1.Issuer{ObjectMeta: metav1.ObjectMeta{Name: "corp"}})
			b.secrets["zarf-registry-node-tls"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: b.keeper.Labels(
				names.ComponentCertificates)}}
			did, err := b.keeper.DeleteCertManager(b.Context())
			if err != nil || !strings.HasPrefix(did, "deleted Certificate zarf-registry-server, ") {
				t.Fatalf("%q, %v", did, err)
			}
			// Pods mount the final Secrets.
			if got, want := b.names(), []string{"issuers/corp", "secrets/zarf-registry-node-tls"}; !slices.Equal(got, want) {
				t.Errorf("there is %v", got)
			}
			// cert-manager writes the Secret again while its Certificate exists.
			if first := slices.IndexFunc(b.writes,
				func(w string) bool { return strings.HasPrefix(w, "delete secrets/") }); slices.ContainsFunc(b.writes[first:],
				func(w string) bool { return strings.HasPrefix(w, "delete certificates/") }) {
				t.Errorf("order: %v", b.writes)
			}
			if did, err := b.keeper.DeleteCertManager(b.Context()); did != "nothing" || err != nil {
				t.Errorf("once more: %q, %v", did, err)
			}
		})
	}
}

func TestOurOwnIssuerGoesWhenTheUserNamesOne(t *testing.T) {
	own := []string{"certificates/zarf-registry-ca", "issuers/zarf-registry-ca", "issuers/zarf-registry-selfsigned",
		"secrets/zarf-registry-ca-issued"}
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.mustRun(ownIssuer())
		b.controller = b.fail
		if _, _, err := b.run(corpIssuer()); err == nil {
			t.Fatal("no error")
		}
		for _, key := range own {
			if !slices.Contains(b.names(), key) {
				t.Errorf("%s went before the new issuer had issued", key)
			}
		}
		b.controller = b.issue
		b.mustRun(corpIssuer())
		for _, key := range own {
			if slices.Contains(b.names(), key) {
				t.Errorf("%s is still there", key)
			}
		}
		b.mustRun(ownIssuer())
		for _, key := range own {
			if !slices.Contains(b.names(), key) {
				t.Errorf("%s is not back", key)
			}
		}
	})
}

// The certificates CronJob may only read cert-manager's objects, and retry an issuance.
func TestTheCronJobCreatesAndChangesNoCertManagerObject(t *testing.T) {
	forbidWrites := func(b *cmBench) {
		b.intercept = func(call string) error {
			if verb, _, _ := strings.Cut(call, " "); verb == "create" || verb == "update" || verb == "delete" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "certificates"}, "zarf-registry-ca",
					fmt.Errorf(`User "u" cannot %s resource "certificates"`, verb))
			}
			return nil
		}
	}
	cmTest(t, func(t *testing.T, b *cmBench) {
		forbidWrites(b)
		_, err := b.keeper.certManagerSources(b.Context(), ownIssuer())
		wantError(t, err, "Issuer zarf/zarf-registry-selfsigned is missing", "run helm upgrade")
		if !exitcode.IsRefusal(err) {
			t.Errorf("%v is retried", err)
		}
	})
	cmTest(t, func(t *testing.T, b *cmBench) {
		b.mustRun(ownIssuer())
		forbidWrites(b)
		if _, err := b.keeper.certManagerSources(b.Context(), ownIssuer()); err != nil {
			t.Error(err)
		}
		changed := ownIssuer()
		changed.LeafLifetime *= 2
		if _, err := b.keeper.certManagerSources(b.Context(), changed); err != nil {
			t.Errorf("what is issued is not used: %v", err)
		}
		if !strings.Contains(b.log.String(), "helm upgrade repairs it") {
			t.Errorf("log: %s", b.log)
		}
	})
}

// Each run is killed before one of its writes, and then repeated.
func TestCertManagerRunsThatAreKilledConverge(t *testing.T) {
	type run = func(b *cmBench) error
	sources := func(p state.PKI) run {
		return func(b *cmBench) error { _, _, err := b.run(p); return err }
	}
	renew := func(b *cmBench) error { return b.keeper.certManagerRenew(b.Context(), ownIssuer(), true) }
	remove := func(b *cmBench) error { _, err := b.keeper.DeleteCertManager(b.Context()); return err }
	for name, c := range map[string]struct {
		before []run
		run    run
		writes int
	}{
		"install":        {nil, sources(ownIssuer()), 6},
		"another issuer": {[]run{sources(ownIssuer())}, sources(corpIssuer()), 7},
		"and back":       {[]run{sources(corpIssuer())}, sources(ownIssuer()), 6},
		"renew":          {[]run{sources(ownIssuer())}, renew, 4},
		"delete":         {[]run{sources(ownIssuer())}, remove, 10},
	} {
		t.Run(name, func(t *testing.T) {
			// final is the result of a run that is not killed.
			play := func(t *testing.T, kill int) (names []string, writes int) {
				cmTest(t, func(t *testing.T, b *cmBench) {
					for _, before := range c.before {
						if err := before(b); err != nil {
							t.Fatal(err)
						}
					}
					b.writes, b.left = nil, kill
					err := c.run(b)
					if killed := errors.Is(err, errCMKilled); killed != (kill >= 0) || err != nil && !killed {
						t.Fatalf("%v", err)
					}
					writes = len(b.writes)
					b.left, b.dead = -1, false
					before := b.issuedNow()
					if err := c.run(b); err != nil {
						t.Fatal(err)
					}
					if name == "renew" {
						for secret, previous := range before {
							if b.issuedNow()[secret] == previous {
								t.Errorf("killed before write %d: %s was not renewed", kill, secret)
							}
						}
					}
					names = b.names()
					for key := range b.objects {
						if name, ok := strings.CutPrefix(key, "certificates/"); ok {
							if c := (issued{b.certificate(name), b.secrets[name+"-issued"]}); c.notReady() != "" {
								t.Errorf("killed before write %d: %s: %s", kill, name, c.notReady())
							}
						}
					}
				})
				return names, writes
			}
			want, writes := play(t, -1)
			if writes != c.writes {
				t.Fatalf("a whole run writes %d times", writes)
			}
			for kill := range writes {
				if got, _ := play(t, kill); !slices.Equal(got, want) {
					t.Errorf("killed before write %d, there is %v", kill, got)
				}
			}
		})
	}
}

func TestPreflightOfCertManager(t *testing.T) {
	issuerRef := func(name, kind, group string) state.PKI {
		p := ownIssuer()
		p.Issuer = &state.Issuer{Name: name, Kind: kind, Group: group}
		return p
	}
	corp := issuerRef("corp", "Issuer", "cert-manager.io")
	issuer := func(spec certmanagerv1.IssuerConfig, conditions ...certmanagerv1.IssuerCondition) func(*cmBench) {
		return func(b *cmBench) {
			b.store("issuers",
				&certmanagerv1.Issuer{ObjectMeta: metav1.ObjectMeta{Name: "corp", Generation: 2},
					Spec:   certmanagerv1.IssuerSpec{IssuerConfig: spec},
					Status: certmanagerv1.IssuerStatus{Conditions: conditions}})
		}
	}
	ready := func(status cmmeta.ConditionStatus, generation int64) certmanagerv1.IssuerCondition {
		return certmanagerv1.IssuerCondition{Type: certmanagerv1.IssuerConditionReady, Status: status,
			Reason: "ErrGetKeyPair", Message: `secret "corp" not found`, ObservedGeneration: generation}
	}
	ca := certmanagerv1.IssuerConfig{CA: &certmanagerv1.CAIssuer{SecretName: "corp"}}
	golden := golden.Open(t, "preflight")
	for name, c := range map[string]struct {
		p    state.PKI
		play func(*cmBench)
	}{
		"nothing yet":                 {ownIssuer(), func(*cmBench) {}},
		"all is there":                {ownIssuer(), func(b *cmBench) { b.mustRun(ownIssuer()) }},
		"another mode":                {state.PKI{Mode: state.PKIInternal}, func(b *cmBench) { b.intercept = notInstalled }},
		"a ready Issuer":              {corp, issuer(ca, ready(cmmeta.ConditionTrue, 2))},
		"a ClusterIssuer":             {corpIssuer(), func(*cmBench) {}},
		"somebody's issuer":           {issuerRef("corp", "StepIssuer", "certmanager.step.sm"), func(*cmBench) {}},
		"not installed":               {ownIssuer(), func(b *cmBench) { b.intercept = notInstalled }},
		"no Issuer":                   {corp, func(*cmBench) {}},
		"an Issuer that is not ready": {corp, issuer(ca, ready(cmmeta.ConditionFalse, 2))},
		"an Issuer that was changed":  {corp, issuer(ca, ready(cmmeta.ConditionTrue, 1))},
		"a new Issuer":                {corp, issuer(ca)},
		"a self-signing one": {corp,
			issuer(certmanagerv1.IssuerConfig{SelfSigned: &certmanagerv1.SelfSignedIssuer{}}, ready(cmmeta.ConditionTrue, 2))},
		"ACME":            {corp, issuer(certmanagerv1.IssuerConfig{ACME: &cmacme.ACMEIssuer{}}, ready(cmmeta.ConditionTrue, 2))},
		"an unknown kind": {issuerRef("corp", "StepIssuer", "cert-manager.io"), func(*cmBench) {}},
		"objects of others": {ownIssuer(), func(b *cmBench) {
			b.store("certificates",
				&certmanagerv1.Certificate{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-node"}})
			b.store("issuers", &certmanagerv1.Issuer{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-ca"}})
			b.secrets["zarf-registry-push-issued"] = &corev1.Secret{}
			b.controller = nil
		}},
	} {
		cmSubtest(t, name, func(t *testing.T, b *cmBench) {
			c.play(b)
			b.writes = nil
			b.keeper.Settings.PKI.PKI = c.p
			findings, err := b.keeper.Problems(b.Context(), b.keeper.Settings.PKI.PKI)
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			for _, f := range findings {
				fmt.Fprintf(&text, "%s: %s; %s\n", f.Object, f.Cause, f.Remedy)
			}
			golden.Check(t, name, text.String())
			if len(b.writes) > 0 {
				t.Errorf("wrote %v", b.writes)
			}
		})
	}
}

func TestPreflightOfCertManagerNeedsToRead(t *testing.T) {
	for _, call := range []string{"list certificaterequests/", "get issuers/zarf-registry-ca",
		"get certificates/zarf-registry-node", "get secrets/zarf-registry-node-issued", "get issuers/corp"} {
		cmSubtest(t, call, func(t *testing.T, b *cmBench) {
			b.keeper.Settings.PKI.PKI = ownIssuer()
			if strings.HasSuffix(call, "/corp") {
				b.keeper.Settings.PKI.Issuer = &state.Issuer{Name: "corp", Kind: "Issuer", Group: "cert-manager.io"}
			}
			b.answer(call, apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, "x",
				errors.New(`User "u" cannot get resource "x"`)))
			findings, err := b.keeper.Problems(b.Context(), b.keeper.Settings.PKI.PKI)
			if !refused(err) || len(findings) > 0 {
				t.Errorf("%v, %v", findings, err)
			}
		})
	}
}
