package certmanager

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
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
	"k8s.io/apimachinery/pkg/types"
	kubetesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// bench is a Client with a namespace in which cert-manager runs. A reactor of the fake client
// simulates its API as strictly as the API server: resource versions, generations, and a status that
// only UpdateStatus writes. The simulated cert-manager does a round on every read of a
// Certificate.
type bench struct {
	*testing.T
	client  *Client
	log     *bytes.Buffer
	objects map[string]object // by resource/name
	secrets map[string]*corev1.Secret
	version int
	// writes are the writes of the Client.
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

// object is a Certificate, a CertificateRequest or an Issuer.
type object interface {
	runtime.Object
	metav1.Object
}

var errKilled = errors.New("killed")

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t, log: &bytes.Buffer{}, objects: map[string]object{},
		secrets: map[string]*corev1.Secret{}, issuedWith: map[string]certmanagerv1.CertificateSpec{}, left: -1}
	b.authority = require.Value(pki.NewCA("corp", time.Now(), 20*year))(t)
	client := &certmanagerfake.FakeCertmanagerV1{Fake: &kubetesting.Fake{}}
	client.AddReactor("*", "*", b.react)
	log := slog.New(slog.NewJSONHandler(b.log, nil))
	b.client = &Client{
		Release: &release.Release{
			Settings: settings.Settings{Namespace: "zarf", Release: "zarf-registry", Name: "zarf-registry"},
			Secrets:  secretStore{b}, Log: log, Progress: release.Logged{Log: log}, Now: time.Now,
		},
		Cluster: Cluster{
			Certificates:        client.Certificates("zarf"),
			CertificateRequests: client.CertificateRequests("zarf"),
			Issuers:             client.Issuers("zarf"),
		},
	}
	b.controller = b.issue
	return b
}

const year = 365 * 24 * time.Hour

// corp is the user's issuer.
var corp = state.Issuer{Name: "corp", Kind: "ClusterIssuer", Group: "cert-manager.io"}

// leaves returns certificates of a release.
func leaves(lifetime time.Duration) []Leaf {
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	return []Leaf{
		{SuffixServer, pki.Leaf{CommonName: "zarf-registry", Organization: pki.OrganizationServer,
			DNSNames: []string{"zarf-registry.zarf.svc"}, Usages: both[1:], Lifetime: lifetime}},
		{SuffixNode, pki.Leaf{CommonName: "zarf-registry-proxy", Organization: pki.OrganizationNode,
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, Usages: both, Lifetime: lifetime}},
		{SuffixPush, pki.Leaf{CommonName: "zarf-registry-push", Organization: pki.OrganizationPush, Usages: both[:1],
			Lifetime: lifetime}},
	}
}

func leafNames() []string {
	return []string{"zarf-registry-server", "zarf-registry-node", "zarf-registry-push"}
}

// run has the certificates issued, and returns how long that took.
func (b *bench) run(issuer state.Issuer) (time.Duration, error) {
	b.Helper()
	begin := time.Now()
	err := b.client.Issue(b.Context(), issuer, leaves(year))
	return time.Since(begin), err
}

func (b *bench) mustRun(issuer state.Issuer) {
	b.Helper()
	require.Value(b.run(issuer))(b)
	for _, name := range leafNames() {
		if b.secrets[name+names.SuffixIssued] == nil {
			b.Errorf("Secret %s is missing", name+names.SuffixIssued)
		}
	}
}

// begin precedes every call. write reports whether the call would change something.
func (b *bench) begin(call string, write bool) error {
	if b.dead {
		return errKilled
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
		return errKilled
	}
	b.left--
	b.writes = append(b.writes, call)
	return nil
}

// applied returns what server-side apply makes of a Certificate, and whether that is a change.
func (b *bench) applied(patch []byte) (c *certmanagerv1.Certificate, changed bool) {
	b.Helper()
	c = &certmanagerv1.Certificate{}
	require.NoError(b, json.Unmarshal(patch, c))
	before, exists := b.objects["certificates/"+c.Name].(*certmanagerv1.Certificate)
	if exists {
		c = before.DeepCopy()
		if err := json.Unmarshal(patch, c); err != nil { // sets the fields that it has, and keeps the others
			b.Fatal(err)
		}
		c.Generation = before.Generation
		if equality.Semantic.DeepEqual(before, c) {
			return c, false
		}
	}
	c.Generation++
	return c, true
}

func (b *bench) next() string { b.version++; return fmt.Sprint(b.version) }

func (b *bench) react(action kubetesting.Action) (bool, runtime.Object, error) {
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
	case kubetesting.PatchActionImpl:
		if a.GetPatchType() != types.ApplyPatchType || !*a.PatchOptions.Force || a.PatchOptions.FieldManager != names.Manager {
			b.Errorf("not applied as %s with force: %+v", names.Manager, a)
		}
		c, changed := b.applied(a.GetPatch())
		if err := b.begin(call(a.Name), changed); err != nil {
			return true, nil, err
		}
		if changed {
			b.store("certificates", c)
		}
		return true, b.certificate(a.Name), nil
	case kubetesting.UpdateActionImpl:
		object := a.Object.DeepCopyObject().(object)
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
		changed := have.DeepCopyObject().(*certmanagerv1.Certificate)
		changed.Status = object.(*certmanagerv1.Certificate).Status
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

type secretStore struct{ *bench }

var secretsResource = schema.GroupResource{Resource: "secrets"}

func (s secretStore) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Secret, error) {
	if err := s.begin("get secrets/"+name, false); err != nil {
		return nil, err
	}
	if s.secrets[name] == nil {
		return nil, apierrors.NewNotFound(secretsResource, name)
	}
	return s.secrets[name].DeepCopy(), nil
}

func (s secretStore) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	if err := s.begin("delete secrets/"+name, true); err != nil {
		return err
	}
	if s.secrets[name] == nil {
		return apierrors.NewNotFound(secretsResource, name)
	}
	delete(s.secrets, name)
	return nil
}

func (s secretStore) Create(context.Context, *corev1.Secret, metav1.CreateOptions) (*corev1.Secret, error) {
	s.Error("a Secret was created: that is cert-manager's business")
	return nil, errors.New("not allowed")
}

func (s secretStore) Update(context.Context, *corev1.Secret, metav1.UpdateOptions) (*corev1.Secret, error) {
	s.Error("a Secret was updated: that is cert-manager's business")
	return nil, errors.New("not allowed")
}

func (b *bench) store(resource string, o object) {
	b.Helper()
	o.SetNamespace("zarf")
	o.SetResourceVersion(b.next())
	b.objects[resource+"/"+o.GetName()] = o.DeepCopyObject().(object)
}

func (b *bench) certificate(name string) *certmanagerv1.Certificate {
	b.Helper()
	c, ok := b.objects["certificates/"+name].(*certmanagerv1.Certificate)
	if !ok {
		b.Fatalf("there is no Certificate %s", name)
	}
	return c.DeepCopy()
}

// answer makes a call fail.
func (b *bench) answer(call string, err error) {
	b.intercept = func(got string) error {
		if got == call {
			return err
		}
		return nil
	}
}

// change edits a Certificate as another client would.
func (b *bench) change(name string, edit func(*certmanagerv1.Certificate)) {
	b.Helper()
	c := b.certificate(name)
	edit(c)
	c.Generation++
	b.store("certificates", c)
}

// round does one round of cert-manager.
func (b *bench) round() {
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
func (b *bench) issuing(c *certmanagerv1.Certificate) string {
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
func (b *bench) issue(c *certmanagerv1.Certificate) {
	b.Helper()
	if backsOff(c) {
		return
	}
	if b.issuing(c) == "" {
		setCondition(c, certmanagerv1.CertificateConditionReady, cmmeta.ConditionTrue, "Ready",
			"Certificate is up to date and has not expired")
		return
	}
	pair, err := b.authority.Issue(pki.Leaf{CommonName: c.Spec.CommonName, DNSNames: c.Spec.DNSNames,
		Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, time.Now())
	require.NoError(b, err)
	b.write(c, pair)
	dropCondition(c, certmanagerv1.CertificateConditionIssuing)
	c.Status.LastFailureTime = nil
	setCondition(c, certmanagerv1.CertificateConditionReady, cmmeta.ConditionTrue, "Ready",
		"Certificate is up to date and has not expired")
}

func (b *bench) write(c *certmanagerv1.Certificate, pair pki.KeyPair) {
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
			"ca.crt": b.authority.KeyPair().Certificate},
	}
}

// fail simulates an issuer that refuses.
func (b *bench) fail(c *certmanagerv1.Certificate) {
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
func (b *bench) pend(c *certmanagerv1.Certificate) {
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

func (b *bench) request(
	certificate, name string, revision int, created time.Time, conditions ...certmanagerv1.CertificateRequestCondition,
) {
	b.Helper()
	b.store("certificaterequests", &certmanagerv1.CertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(created), Annotations: map[string]string{
			"cert-manager.io/certificate-name": certificate, "cert-manager.io/certificate-revision": fmt.Sprint(revision)}},
		Status: certmanagerv1.CertificateRequestStatus{Conditions: conditions},
	})
}

// writesOf returns what run writes.
func (b *bench) writesOf(run func()) []string {
	b.writes = nil
	run()
	return b.writes
}

func (b *bench) names() []string {
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

func inBench(t *testing.T, run func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(t, newBench(t)) })
}

func subtest(t *testing.T, name string, run func(t *testing.T, b *bench)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBench(t, run) })
}

// answersNothing answers as an API server without cert-manager.
func answersNothing(call string) error {
	if strings.Contains(call, "secrets/") {
		return nil
	}
	verb, _, _ := strings.Cut(call, " ")
	return apierrors.NewGenericServerResponse(404, verb,
		schema.GroupResource{Group: "cert-manager.io", Resource: "certificates"}, "", "404 page not found", 0, true)
}

func TestWhatCertManagerWaitsForIsSaid(t *testing.T) {
	golden := golden.Open(t, "waits")
	for name, c := range map[string]struct {
		issuer state.Issuer
		play   func(b *bench)
	}{
		"its controller does not run": {corp, func(b *bench) { b.controller = nil }},
		"the issuer does not exist":   {corp, func(b *bench) { b.controller = b.pend }},
		"an external issuer": {state.Issuer{Name: "corp", Kind: "StepIssuer", Group: "certmanager.step.sm"},
			func(b *bench) { b.controller = b.pend }},
		"one of three": {corp, func(b *bench) {
			b.controller = func(c *certmanagerv1.Certificate) {
				if c.Name == "zarf-registry-push" {
					b.pend(c)
				} else {
					b.issue(c)
				}
			}
		}},
		"the Secret is written by nobody": {corp, func(b *bench) {
			b.controller = func(c *certmanagerv1.Certificate) {
				setCondition(c, certmanagerv1.CertificateConditionReady, cmmeta.ConditionTrue, "Ready", "")
			}
		}},
		"a Certificate that is being deleted": {corp, func(b *bench) {
			b.mustRun(corp)
			b.change("zarf-registry-node", func(c *certmanagerv1.Certificate) {
				c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: time.Now()}, []string{"foregroundDeletion"}
				c.Spec.DNSNames = nil
			})
			b.left = 0 // the first write kills the process
		}},
		"a change that nobody has looked at": {corp, func(b *bench) {
			b.mustRun(corp)
			b.controller = nil
			b.change("zarf-registry-node", func(c *certmanagerv1.Certificate) { c.Spec.DNSNames = nil })
		}},
	} {
		subtest(t, name, func(t *testing.T, b *bench) {
			c.play(b)
			took, err := b.run(c.issuer)
			golden.Check(t, name, fmt.Sprint(err))
			if took < timeout || took > timeout+2*poll || refused(err) {
				t.Errorf("after %s, refused: %t", took, refused(err))
			}
		})
	}
}

func TestWaitingForCertManagerEndsWithTheRun(t *testing.T) {
	inBench(t, func(t *testing.T, b *bench) {
		b.controller = b.pend
		b.client.Cluster.CertificateRequests = slowRequests{b.client.Cluster.CertificateRequests}
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		defer cancel()
		err := b.client.Issue(ctx, corp, leaves(year))
		wantError(t, err, "Certificate zarf/zarf-registry-server is not ready after 10s: ",
			"CertificateRequest zarf/zarf-registry-server-1: Pending")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v does not say that the time is over", err)
		}
	})
}

// slowRequests returns an error once the context has expired, as a real client does.
type slowRequests struct{ CertificateRequests }

func (r slowRequests) List(ctx context.Context, opts metav1.ListOptions) (*certmanagerv1.CertificateRequestList, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return r.CertificateRequests.List(ctx, opts)
}

func TestALookThatTheEndCutsShortSaysNothing(t *testing.T) {
	inBench(t, func(t *testing.T, b *bench) {
		b.controller = b.pend
		b.client.Cluster.Certificates = slowCertificates{b.client.Cluster.Certificates,
			time.Now().Add(timeout - 10*time.Second)}
		_, err := b.run(corp)
		wantError(t, err, "Certificate zarf/zarf-registry-server is not ready after 1m30s: DoesNotExist")
		if strings.Contains(err.Error(), "deadline") {
			t.Error(err)
		}
	})
}

// slowCertificates stops answering at a point in time.
type slowCertificates struct {
	Certificates
	from time.Time
}

func (s slowCertificates) Get(ctx context.Context, name string, opts metav1.GetOptions) (*certmanagerv1.Certificate, error) {
	if time.Now().After(s.from) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Certificates.Get(ctx, name, opts)
}

// cert-manager ignores requests that failed before the last transition time. That time must not
// change during an issuance.
func TestAskingTwiceDoesNotMoveTheTransition(t *testing.T) {
	inBench(t, func(t *testing.T, b *bench) {
		b.mustRun(corp)
		b.controller = nil
		transition := func() time.Time {
			t.Helper()
			require.NoError(t, b.client.issueAgain(b.Context(), issued{b.certificate("zarf-registry-node"), nil}))
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
	for what, play := range map[string]func(b *bench){
		"none": func(*bench) {},
		"another Certificate's": func(b *bench) {
			b.request("zarf-registry-node", "x", 1, time.Now(), ready("Pending", "x"))
		},
		"the younger": func(b *bench) {
			b.request(name, "b", 1, time.Now(), ready("Pending", "new"))
			b.request(name, "a", 2, time.Now().Add(-time.Hour), ready("Failed", "old"))
		},
		"of the same second": func(b *bench) {
			b.request(name, "b", 9, time.Now(), ready("Failed", "old"))
			b.request(name, "a", 10, time.Now(), ready("Pending", "new"))
		},
		"a denial": func(b *bench) {
			b.request(name, "a", 1, time.Now(), ready("Denied", "The CertificateRequest was denied by an approval controller"),
				condition(certmanagerv1.CertificateRequestConditionDenied, cmmeta.ConditionTrue, "policy.cert-manager.io",
					"No policy approved this request"))
		},
		"an invalid one": func(b *bench) {
			b.request(name, "a", 1, time.Now(), ready("Pending", "x"),
				condition(certmanagerv1.CertificateRequestConditionInvalidRequest, cmmeta.ConditionTrue, "Bad", "no such usage"))
		},
		"approved by nobody": func(b *bench) { b.request(name, "a", 1, time.Now()) },
		"looked at by no issuer": func(b *bench) {
			b.request(name, "a", 1, time.Now(),
				condition(certmanagerv1.CertificateRequestConditionApproved, cmmeta.ConditionTrue, "cert-manager.io", "approved"))
		},
		"one that is done": func(b *bench) {
			b.request(name, "a", 1, time.Now(),
				condition(certmanagerv1.CertificateRequestConditionReady, cmmeta.ConditionTrue, "Issued", "x"))
		},
		"no right to read them": func(b *bench) {
			b.request(name, "a", 1, time.Now(), ready("Pending", "x"))
			b.intercept = func(call string) error {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "certificaterequests"}, "", errors.New("no"))
			}
		},
	} {
		subtest(t, what, func(t *testing.T, b *bench) {
			play(b)
			golden.Check(t, what, b.client.requestProblem(b.Context(), name))
		})
	}
}

func TestAFailedIssuanceIsSaidAtOnce(t *testing.T) {
	inBench(t, func(t *testing.T, b *bench) {
		b.controller = b.fail
		at := time.Now().UTC().Format("2006-01-02T15:04:")
		took, err := b.run(corp)
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
		subtest(t, name, func(t *testing.T, b *bench) {
			b.controller = b.fail
			if _, err := b.run(corp); err == nil {
				t.Fatal("no error")
			}
			if mended {
				b.controller = b.issue
			}
			time.Sleep(10 * time.Minute)
			writes := b.writesOf(func() {
				took, err := b.run(corp)
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
	inBench(t, func(t *testing.T, b *bench) {
		b.controller = b.fail
		if _, err := b.run(corp); err == nil {
			t.Fatal("no error")
		}
		b.controller = b.issue
		better := corp
		better.Name = "better"
		if writes := b.writesOf(func() { b.mustRun(better) }); len(writes) != 3 ||
			strings.Contains(strings.Join(writes, " "), "status") {
			t.Errorf("wrote %v", writes)
		}
	})
}

func TestARenewalThatFailsIsAWarningWhileTheCertificateIsGood(t *testing.T) {
	inBench(t, func(t *testing.T, b *bench) {
		b.mustRun(corp)
		b.controller = func(c *certmanagerv1.Certificate) {
			failed := metav1.NewTime(time.Now())
			c.Status.LastFailureTime, c.Status.NotAfter = &failed, &metav1.Time{Time: time.Now().Add(time.Hour)}
			setCondition(c, certmanagerv1.CertificateConditionIssuing, cmmeta.ConditionFalse, "Failed", "name is not permitted")
		}
		if writes := b.writesOf(func() { b.mustRun(corp) }); len(writes) > 0 {
			t.Errorf("wrote %v", writes)
		}
		if log := b.log.String(); strings.Count(log, "cert-manager cannot renew a certificate") != 3 ||
			!strings.Contains(log, "Failed: name is not permitted") {
			t.Errorf("log: %s", log)
		}
	})
	// With server-side apply, cert-manager keeps the condition after a successful issuance.
	inBench(t, func(t *testing.T, b *bench) {
		b.controller = func(c *certmanagerv1.Certificate) {
			b.issue(c)
			setCondition(c, certmanagerv1.CertificateConditionIssuing, cmmeta.ConditionFalse, "Issued",
				"The certificate has been successfully issued")
			failed := metav1.NewTime(time.Now())
			c.Status.LastFailureTime = &failed
		}
		b.mustRun(corp)
		b.mustRun(corp)
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
		"somebody wrote at the same time": apierrors.NewConflict(gr, "zarf-registry-node", errors.New("modified")),
		"the API server restarts":         errors.New("connection refused"),
	} {
		subtest(t, name, func(t *testing.T, b *bench) {
			until := time.Now().Add(20 * time.Second)
			b.intercept = func(call string) error {
				if time.Now().Before(until) && call == "patch certificates/zarf-registry-node" {
					return passing
				}
				return nil
			}
			b.mustRun(corp)

			b.intercept = func(call string) error {
				if strings.Contains(call, "certificates/zarf-registry-node") {
					return passing
				}
				return nil
			}
			took, err := b.run(corp)
			wantError(t, err, "waiting 1m30s for cert-manager: ", passing.Error())
			if took < timeout || refused(err) {
				t.Errorf("after %s, refused: %t", took, refused(err))
			}
		})
	}
}

func (b *bench) issuedNow() map[string]string {
	out := map[string]string{}
	for name, s := range b.secrets {
		out[name] = string(s.Data["tls.crt"])
	}
	return out
}

func TestARenewalThatDoesNotComeIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		play func(b *bench)
		want string
		fast bool
	}{
		"the issuer refuses": {func(b *bench) { b.controller = b.fail }, "was not issued: cert-manager gave up at",
			true},
		"nobody looks": {func(b *bench) { b.controller = nil },
			"is not ready after 1m30s: ManuallyTriggered: zarf-registry asked for a new certificate", false},
		"the same certificate": {func(b *bench) {
			b.controller = func(c *certmanagerv1.Certificate) { dropCondition(c, "Issuing") }
		}, "is not ready after 1m30s: its Secret zarf-registry-server-issued still has the previous certificate", false},
		"the answer is a conflict": {func(b *bench) {
			b.answer("update status of certificates/zarf-registry-server",
				apierrors.NewConflict(schema.GroupResource{Resource: "certificates"}, "x", errors.New("modified")))
		},
			"requesting a new issuance in the status of Certificate zarf/zarf-registry-server: ", false},
	} {
		subtest(t, name, func(t *testing.T, b *bench) {
			b.mustRun(corp)
			before := b.issuedNow()
			c.play(b)
			begin := time.Now()
			err := b.client.Renew(b.Context(), corp, leaves(year))
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
	inBench(t, func(t *testing.T, b *bench) {
		b.mustRun(corp)
		before, times := b.issuedNow(), 0
		b.intercept = func(call string) error {
			if call == "update status of certificates/zarf-registry-node" && times < 3 {
				times++
				return apierrors.NewConflict(schema.GroupResource{Resource: "certificates"}, "x", errors.New("modified"))
			}
			return nil
		}
		require.NoError(t, b.client.Renew(b.Context(), corp, leaves(year)))
		for name, previous := range before {
			if b.issuedNow()[name] == previous {
				t.Errorf("%s was not renewed", name)
			}
		}
	})
}

func TestPreflightOfCertManager(t *testing.T) {
	ours := state.Issuer{Name: "corp", Kind: "Issuer", Group: "cert-manager.io"}
	issuer := func(spec certmanagerv1.IssuerConfig, conditions ...certmanagerv1.IssuerCondition) func(*bench) {
		return func(b *bench) {
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
		issuer state.Issuer
		play   func(*bench)
	}{
		"nothing yet":                 {corp, func(*bench) {}},
		"all is there":                {corp, func(b *bench) { b.mustRun(corp) }},
		"a ready Issuer":              {ours, issuer(ca, ready(cmmeta.ConditionTrue, 2))},
		"a ClusterIssuer":             {corp, func(*bench) {}},
		"somebody's issuer":           {state.Issuer{Name: "corp", Kind: "StepIssuer", Group: "certmanager.step.sm"}, func(*bench) {}},
		"not installed":               {corp, func(b *bench) { b.intercept = answersNothing }},
		"no Issuer":                   {ours, func(*bench) {}},
		"an Issuer that is not ready": {ours, issuer(ca, ready(cmmeta.ConditionFalse, 2))},
		"an Issuer that was changed":  {ours, issuer(ca, ready(cmmeta.ConditionTrue, 1))},
		"a new Issuer":                {ours, issuer(ca)},
		"a self-signing one": {ours,
			issuer(certmanagerv1.IssuerConfig{SelfSigned: &certmanagerv1.SelfSignedIssuer{}}, ready(cmmeta.ConditionTrue, 2))},
		"ACME":            {ours, issuer(certmanagerv1.IssuerConfig{ACME: &cmacme.ACMEIssuer{}}, ready(cmmeta.ConditionTrue, 2))},
		"an unknown kind": {state.Issuer{Name: "corp", Kind: "StepIssuer", Group: "cert-manager.io"}, func(*bench) {}},
		"objects of others": {corp, func(b *bench) {
			b.store("certificates", &certmanagerv1.Certificate{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-node"}})
			b.secrets["zarf-registry-push-issued"] = &corev1.Secret{}
			b.controller = nil
		}},
	} {
		subtest(t, name, func(t *testing.T, b *bench) {
			c.play(b)
			b.writes = nil
			findings := require.Value(b.client.Problems(b.Context(), c.issuer, leaves(year)))(t)
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
	for _, call := range []string{"list certificaterequests/", "get certificates/zarf-registry-node",
		"get secrets/zarf-registry-node-issued", "get issuers/corp"} {
		subtest(t, call, func(t *testing.T, b *bench) {
			b.answer(call, apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, "x",
				errors.New(`User "u" cannot get resource "x"`)))
			findings, err := b.client.Problems(b.Context(), state.Issuer{Name: "corp", Kind: "Issuer", Group: "cert-manager.io"},
				leaves(year))
			if !refused(err) || len(findings) > 0 {
				t.Errorf("%v, %v", findings, err)
			}
		})
	}
}

func TestCertificatesAreAppliedOnce(t *testing.T) {
	inBench(t, func(t *testing.T, b *bench) {
		b.mustRun(corp)
		var text strings.Builder
		for _, key := range slices.Sorted(maps.Keys(b.objects)) {
			c := b.objects[key].(*certmanagerv1.Certificate)
			data := require.Value(yaml.Marshal(map[string]any{"labels": c.Labels, "spec": c.Spec}))(t)
			fmt.Fprintf(&text, "%s\n%s", key, data)
		}
		golden.File(t, "testdata/objects.golden", text.String())
		if writes := b.writesOf(func() { b.mustRun(corp) }); len(writes) > 0 {
			t.Errorf("a second run wrote %v", writes)
		}
	})
}

func TestDriftIsPutRightAndWhatOthersAddStays(t *testing.T) {
	inBench(t, func(t *testing.T, b *bench) {
		b.mustRun(corp)
		want := b.certificate("zarf-registry-node")
		b.change("zarf-registry-node", func(c *certmanagerv1.Certificate) {
			delete(c.Labels, names.LabelComponent)
			c.Labels["team"] = "platform"
			c.Spec.IsCA, c.Spec.PrivateKey, c.Spec.SecretName = true, nil, "other"
			c.Spec.URIs = append(c.Spec.URIs, pki.OrganizationPush)
			c.Spec.Subject.OrganizationalUnits = []string{"platform"}
		})
		writes := b.writesOf(func() { b.mustRun(corp) })
		want.Labels["team"], want.Spec.Subject.OrganizationalUnits = "platform", []string{"platform"}
		if got := b.certificate("zarf-registry-node"); !equality.Semantic.DeepEqual(got.Spec, want.Spec) ||
			!maps.Equal(got.Labels, want.Labels) || !slices.Equal(writes, []string{"patch certificates/zarf-registry-node"}) {
			t.Errorf("wrote %v, it is %+v", writes, got)
		}
	})
}

// Something in the cluster, such as an admission webhook, changes what is applied. Every write may trigger
// an issuance.
func TestWhatOthersChangeIsNotFought(t *testing.T) {
	inBench(t, func(t *testing.T, b *bench) {
		ready := time.Now().Add(20 * time.Second)
		b.controller = func(c *certmanagerv1.Certificate) {
			c.Spec.Duration = &metav1.Duration{Duration: time.Hour}
			if time.Now().After(ready) {
				b.issue(c)
			}
		}
		if b.mustRun(corp); len(b.writes) != 3 {
			t.Errorf("wrote %v", b.writes)
		}
		// A Certificate that somebody deletes is applied again.
		b.controller = func(c *certmanagerv1.Certificate) {
			if delete(b.secrets, c.Spec.SecretName); time.Now().After(ready.Add(time.Minute)) {
				b.issue(c)
			}
		}
		b.client.Cluster.Certificates = deletedAfter{b.client.Cluster.Certificates, b, time.Now().Add(10 * time.Second)}
		b.mustRun(corp)
	})
}

// deletedAfter deletes all Certificates once, at a point in time.
type deletedAfter struct {
	Certificates
	*bench
	at time.Time
}

func (d deletedAfter) Get(
	ctx context.Context, name string, opts metav1.GetOptions,
) (*certmanagerv1.Certificate, error) {
	if now := time.Now(); now.After(d.at) && now.Before(d.at.Add(poll)) {
		delete(d.objects, "certificates/"+name)
	}
	return d.Certificates.Get(ctx, name, opts)
}

func TestObjectsOfOthersAreNeverTouched(t *testing.T) {
	foreign := map[string]func(*bench){
		"Certificate zarf/zarf-registry-node": func(b *bench) {
			b.store("certificates",
				&certmanagerv1.Certificate{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-node",
					Labels: map[string]string{names.LabelManagedBy: "Helm"}}})
		},
		"Secret zarf/zarf-registry-push-issued": func(b *bench) {
			b.secrets["zarf-registry-push-issued"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-push-issued"}}
		},
		// cert-manager wrote it, but for a Certificate that no longer exists and was not ours.
		"Secret zarf/zarf-registry-node-issued": func(b *bench) {
			b.secrets["zarf-registry-node-issued"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-node-issued",
				Annotations: map[string]string{"cert-manager.io/certificate-name": "zarf-registry-node"}}}
		},
	}
	for object, add := range foreign {
		subtest(t, object, func(t *testing.T, b *bench) {
			b.controller = nil
			add(b)
			took, err := b.run(corp)
			wantError(t, err, object+" exists and was not created by zarf-registry")
			if !refused(err) || took > 0 {
				t.Errorf("refused: %t, after %s", refused(err), took)
			}
			kind, name, _ := strings.Cut(object, " zarf/")
			resource := strings.ToLower(kind) + "s/" + name
			// cert-manager overwrites the Secret of a Certificate.
			if certificate := "patch certificates/" + strings.TrimSuffix(name, names.SuffixIssued); slices.Contains(b.writes,
				certificate) {
				t.Errorf("wrote %v", b.writes)
			}
			deleted := require.Value(b.client.Delete(b.Context()))(t)
			if slices.Contains(deleted, kind+" "+name) || !slices.Contains(b.names(), resource) ||
				!strings.Contains(b.log.String(), object) {
				t.Errorf("%s; there is %v; log: %s", deleted, b.names(), b.log)
			}
		})
	}
}

// cert-manager is about to restore the labels of a Secret that it wrote for a Certificate of ours.
func TestASecretWhoseLabelsWereChangedIsOurs(t *testing.T) {
	inBench(t, func(t *testing.T, b *bench) {
		b.mustRun(corp)
		b.secrets["zarf-registry-node-issued"].Labels = nil
		b.mustRun(corp)
	})
}

func TestWithoutCertManager(t *testing.T) {
	inBench(t, func(t *testing.T, b *bench) {
		b.intercept = answersNothing
		took, err := b.run(corp)
		wantError(t, err, "applying Certificate zarf/zarf-registry-server", "cert-manager is not installed: install it first",
			"--set pki.mode=internal")
		if !refused(err) || took > 0 {
			t.Errorf("refused: %t, after %s", refused(err), took)
		}
		if deleted, err := b.client.Delete(b.Context()); len(deleted) > 0 || err != nil {
			t.Errorf("deleting: %q, %v", deleted, err)
		}
		// cert-manager was uninstalled, but its Secrets remain.
		b.secrets["zarf-registry-node-issued"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "zarf-registry-node-issued",
			Labels: map[string]string{names.LabelManagedBy: names.Manager}}}
		deleted, err := b.client.Delete(b.Context())
		if !slices.Equal(deleted, []string{"Secret zarf-registry-node-issued"}) || err != nil {
			t.Errorf("deleting: %q, %v", deleted, err)
		}
	})
}

func TestAMissingRightIsNamed(t *testing.T) {
	for _, call := range []string{"get certificates/zarf-registry-node", "patch certificates/zarf-registry-node",
		"get secrets/zarf-registry-node-issued"} {
		subtest(t, call, func(t *testing.T, b *bench) {
			verb, rest, _ := strings.Cut(call, " ")
			resource, name, _ := strings.Cut(rest, "/")
			b.answer(call, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, name,
				fmt.Errorf(`User "u" cannot %s resource %q in API group ""`, verb, resource)))
			took, err := b.run(corp)
			wantError(t, err, "zarf/"+name, "cannot "+verb+" resource", "request that permission")
			if !refused(err) || took > 3*time.Second {
				t.Errorf("refused: %t, after %s", refused(err), took)
			}
		})
	}
}

func TestCertManagerRenewsWhenAsked(t *testing.T) {
	inBench(t, func(t *testing.T, b *bench) {
		renew := func() error { return b.client.Renew(b.Context(), corp, leaves(year)) }
		if err := renew(); err != nil { // what was never made is made
			t.Fatal(err)
		}
		before := b.issuedNow()
		writes := b.writesOf(func() { require.NoError(t, renew()) })
		var want []string
		for _, name := range leafNames() {
			want = append(want, "update status of certificates/"+name)
			if b.issuedNow()[name+names.SuffixIssued] == before[name+names.SuffixIssued] {
				t.Errorf("%s was not renewed", name)
			}
		}
		if !slices.Equal(writes, want) {
			t.Errorf("wrote %v", writes)
		}
		b.mustRun(corp)
	})
}

func TestDeletesSecretsAfterTheirCertificates(t *testing.T) {
	inBench(t, func(t *testing.T, b *bench) {
		b.mustRun(corp)
		b.secrets["zarf-registry-node-tls"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Labels: b.client.Labels(names.ComponentCertificates)}}
		deleted, err := b.client.Delete(b.Context())
		want := []string{"Certificate zarf-registry-server", "Certificate zarf-registry-node", "Certificate zarf-registry-push",
			"Secret zarf-registry-server-issued", "Secret zarf-registry-node-issued", "Secret zarf-registry-push-issued"}
		if err != nil || !slices.Equal(deleted, want) {
			t.Errorf("deleted %q, %v", deleted, err)
		}
		if got := b.names(); !slices.Equal(got, []string{"secrets/zarf-registry-node-tls"}) { // which pods mount
			t.Errorf("there is %v", got)
		}
		if deleted, err := b.client.Delete(b.Context()); len(deleted) > 0 || err != nil {
			t.Errorf("once more: %q, %v", deleted, err)
		}
	})
}

// The certificates CronJob may only read Certificates, and retry an issuance.
func TestReadOnlyAppliesNothing(t *testing.T) {
	inBench(t, func(t *testing.T, b *bench) {
		b.client.ReadOnly = true
		_, err := b.run(corp)
		wantError(t, err, "Certificate zarf/zarf-registry-server is missing", "run helm upgrade")
		if !refused(err) || len(b.writes) > 0 {
			t.Errorf("%v is retried, or wrote %v", err, b.writes)
		}
		b.client.ReadOnly = false
		b.mustRun(corp)
		b.client.ReadOnly = true
		if writes := b.writesOf(func() {
			if err := b.client.Issue(b.Context(), corp, leaves(2*year)); err != nil {
				t.Error(err)
			}
		}); len(writes) > 0 {
			t.Errorf("wrote %v", writes)
		}
	})
}

// Each run is killed before one of its writes, and then repeated.
func TestRunsThatAreKilledConverge(t *testing.T) {
	type run = func(b *bench) error
	issue := func(b *bench) error { _, err := b.run(corp); return err }
	renew := func(b *bench) error { return b.client.Renew(b.Context(), corp, leaves(year)) }
	remove := func(b *bench) error { _, err := b.client.Delete(b.Context()); return err }
	for name, c := range map[string]struct {
		before []run
		run    run
		writes int
	}{
		"install": {nil, issue, 3},
		"renew":   {[]run{issue}, renew, 3},
		"delete":  {[]run{issue}, remove, 6},
	} {
		t.Run(name, func(t *testing.T) {
			play := func(t *testing.T, kill int) (names []string, writes int) {
				inBench(t, func(t *testing.T, b *bench) {
					for _, before := range c.before {
						require.NoError(t, before(b))
					}
					b.writes, b.left = nil, kill
					err := c.run(b)
					if killed := errors.Is(err, errKilled); killed != (kill >= 0) || err != nil && !killed {
						t.Fatalf("%v", err)
					}
					writes = len(b.writes)
					b.left, b.dead = -1, false
					before := b.issuedNow()
					require.NoError(t, c.run(b))
					if name == "renew" {
						for secret, previous := range before {
							if b.issuedNow()[secret] == previous {
								t.Errorf("killed before write %d: %s was not renewed", kill, secret)
							}
						}
					}
					names = b.names()
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
