package certmanager_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/zarf-dev/zarf-registry/internal/cluster/certmanager"
)

func newClient(t *testing.T, objects ...runtime.Object) *fake.FakeDynamicClient {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := certmanagerv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewSimpleDynamicClient(scheme, objects...)
}

func certificate() *certmanagerv1.Certificate {
	revisions := int32(1)
	return &certmanagerv1.Certificate{
		ObjectMeta: metav1.ObjectMeta{Name: "node", Namespace: "zarf", Labels: map[string]string{"a": "b"}},
		Spec: certmanagerv1.CertificateSpec{
			SecretName:           "node-issued",
			Duration:             &metav1.Duration{Duration: 90 * time.Minute},
			Subject:              &certmanagerv1.X509Subject{Organizations: []string{"zarf-registry:node"}},
			URIs:                 []string{"zarf-registry:node"},
			IPAddresses:          []string{"127.0.0.1", "::1"},
			Usages:               []certmanagerv1.KeyUsage{certmanagerv1.UsageClientAuth},
			PrivateKey:           &certmanagerv1.CertificatePrivateKey{Algorithm: certmanagerv1.ECDSAKeyAlgorithm, Size: 256},
			IssuerRef:            cmmeta.IssuerReference{Name: "corp", Kind: "ClusterIssuer", Group: "cert-manager.io"},
			RevisionHistoryLimit: &revisions,
		},
	}
}

func TestACertificateComesBackAsItWasWritten(t *testing.T) {
	ctx := t.Context()
	client := newClient(t)
	certificates := certmanager.Certificates(client, "zarf")

	want := certificate()
	made, err := certificates.Create(ctx, want, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, got *certmanagerv1.Certificate) {
		t.Helper()
		if !equality.Semantic.DeepEqual(got.Spec, want.Spec) || !equality.Semantic.DeepEqual(got.Status, want.Status) ||
			got.Labels["a"] != want.Labels["a"] || got.Name != "node" || got.Namespace != "zarf" {
			t.Errorf("%s: %+v", what, got)
		}
		if got.APIVersion != "cert-manager.io/v1" || got.Kind != "Certificate" {
			t.Errorf("%s: it is a %s of %s", what, got.Kind, got.APIVersion)
		}
	}
	check("created", made)

	got, err := certificates.Get(ctx, "node", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check("read", got)

	want.Spec.DNSNames, want.Labels["a"] = []string{"localhost"}, "c"
	got.Spec.DNSNames, got.Labels["a"] = want.Spec.DNSNames, "c"
	got, err = certificates.Update(ctx, got, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check("updated", got)

	now := metav1.NewTime(time.Date(2026, 11, 20, 12, 0, 0, 0, time.Local))
	want.Status = certmanagerv1.CertificateStatus{LastFailureTime: &now, Conditions: []certmanagerv1.CertificateCondition{
		{Type: certmanagerv1.CertificateConditionIssuing, Status: cmmeta.ConditionTrue, Reason: "ManuallyTriggered",
			ObservedGeneration: 3, LastTransitionTime: &now}}}
	got.Status = want.Status
	if got, err = certificates.UpdateStatus(ctx, got, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	check("its status updated", got)
	last := client.Actions()[len(client.Actions())-1]
	if last.GetSubresource() != "status" || last.GetNamespace() != "zarf" ||
		last.GetResource() != certmanagerv1.SchemeGroupVersion.WithResource("certificates") {
		t.Errorf("the last call was %+v", last)
	}

	list, err := certificates.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("listed: %+v, %v", list, err)
	}
	check("listed", &list.Items[0])

	if err := certificates.Delete(ctx, "node", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := certificates.Get(ctx, "node", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("deleted, and then: %v", err)
	}
}

func TestRequestsAndIssuersAreReadByTheirKind(t *testing.T) {
	client := newClient(t,
		&certmanagerv1.CertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Namespace: "zarf"},
			Status: certmanagerv1.CertificateRequestStatus{Conditions: []certmanagerv1.CertificateRequestCondition{{Reason: "Pending"}}}},
		&certmanagerv1.CertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "other"}},
		&certmanagerv1.Issuer{ObjectMeta: metav1.ObjectMeta{Name: "corp", Namespace: "zarf"},
			Spec: certmanagerv1.IssuerSpec{IssuerConfig: certmanagerv1.IssuerConfig{CA: &certmanagerv1.CAIssuer{SecretName: "corp"}}}},
	)
	requests, err := certmanager.Requests(client, "zarf").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(requests.Items) != 1 || requests.Items[0].Name != "node-1" ||
		requests.Items[0].Status.Conditions[0].Reason != "Pending" {
		t.Errorf("requests: %+v", requests.Items)
	}
	issuers := certmanager.Issuers(client, "zarf")
	issuer, err := issuers.Get(t.Context(), "corp", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if issuer.Spec.CA == nil || issuer.Spec.CA.SecretName != "corp" {
		t.Errorf("issuer: %+v", issuer)
	}
	made, err := issuers.Create(t.Context(), &certmanagerv1.Issuer{ObjectMeta: metav1.ObjectMeta{Name: "own"},
		Spec: certmanagerv1.IssuerSpec{IssuerConfig: certmanagerv1.IssuerConfig{SelfSigned: &certmanagerv1.SelfSignedIssuer{}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// An empty struct is what says the kind: it must not get lost on the way.
	if made.Spec.SelfSigned == nil || made.Kind != "Issuer" {
		t.Errorf("issuer: %+v", made)
	}
}

// A cert-manager that is newer than these types answers with more.
func TestFieldsThatAreNotKnownAreLeftOut(t *testing.T) {
	client := newClient(t)
	client.PrependReactor("get", "certificates", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": map[string]any{"name": "node"},
			"spec": map[string]any{"secretName": "node-issued", "laterOn": map[string]any{"a": int64(1)}},
		}}, nil
	})
	got, err := certmanager.Certificates(client, "zarf").Get(t.Context(), "node", metav1.GetOptions{})
	if err != nil || got.Spec.SecretName != "node-issued" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAnswersThatAreNoSuchObjectAreErrors(t *testing.T) {
	client := newClient(t)
	client.PrependReactor("*", "certificates", func(a kubetesting.Action) (bool, runtime.Object, error) {
		wrong := unstructured.Unstructured{Object: map[string]any{"apiVersion": "cert-manager.io/v1", "kind": "Certificate",
			"spec": "nothing"}}
		if a.GetVerb() == "list" {
			return true, &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "cert-manager.io/v1",
				"kind": "CertificateList"}, Items: []unstructured.Unstructured{wrong}}, nil
		}
		return true, &wrong, nil
	})
	for verb, err := range callAll(t.Context(), certmanager.Certificates(client, "zarf")) {
		if verb == "delete" {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "decoding a *v1.Certificate") {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// Callers decide by the kind of an error.
func TestErrorsOfTheAPIServerPassThrough(t *testing.T) {
	resource := schema.GroupResource{Group: "cert-manager.io", Resource: "certificates"}
	for name, c := range map[string]struct {
		err error
		is  func(error) bool
	}{
		"not found": {apierrors.NewNotFound(resource, "node"), apierrors.IsNotFound},
		"not installed": {apierrors.NewGenericServerResponse(404, "get", resource, "", "404 page not found", 0, true),
			apierrors.IsNotFound},
		"conflict":  {apierrors.NewConflict(resource, "node", errors.New("modified")), apierrors.IsConflict},
		"exists":    {apierrors.NewAlreadyExists(resource, "node"), apierrors.IsAlreadyExists},
		"forbidden": {apierrors.NewForbidden(resource, "node", errors.New("no")), apierrors.IsForbidden},
		"webhook":   {apierrors.NewInternalError(errors.New("failed calling webhook")), apierrors.IsInternalError},
	} {
		t.Run(name, func(t *testing.T) {
			client := newClient(t)
			client.PrependReactor("*", "certificates", func(kubetesting.Action) (bool, runtime.Object, error) {
				return true, nil,
					c.err
			})
			answers := callAll(t.Context(), certmanager.Certificates(client, "zarf"))
			if len(answers) != 6 {
				t.Fatalf("%d calls", len(answers))
			}
			for verb, err := range answers {
				if !c.is(err) {
					t.Errorf("%s: %v", verb, err)
				}
			}
		})
	}
}

func callAll(ctx context.Context, c *certmanager.Client[certmanagerv1.Certificate,
	certmanagerv1.CertificateList]) map[string]error {
	errs := map[string]error{}
	_, errs["get"] = c.Get(ctx, "node", metav1.GetOptions{})
	_, errs["list"] = c.List(ctx, metav1.ListOptions{})
	_, errs["create"] = c.Create(ctx, certificate(), metav1.CreateOptions{})
	_, errs["update"] = c.Update(ctx, certificate(), metav1.UpdateOptions{})
	_, errs["update status"] = c.UpdateStatus(ctx, certificate(), metav1.UpdateOptions{})
	errs["delete"] = c.Delete(ctx, "node", metav1.DeleteOptions{})
	return errs
}
