// Package certmanager reads and writes cert-manager's Certificates, CertificateRequests and Issuers in
// one namespace, with cert-manager's own types.
package certmanager

import (
	"context"
	"fmt"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
)

// Client reads and writes objects of one kind, T, whose lists are L. It is safe for concurrent use.
// Errors are those of the API server: NotFound also if cert-manager is not installed.
type Client[T, L any] struct {
	resource dynamic.ResourceInterface
	kind     string
}

// Certificates returns the client for the Certificates in a namespace.
func Certificates(
	client dynamic.Interface, namespace string,
) *Client[certmanagerv1.Certificate, certmanagerv1.CertificateList] {
	return newClient[certmanagerv1.Certificate, certmanagerv1.CertificateList](client, namespace, "certificates",
		certmanagerv1.CertificateKind)
}

// Requests returns the client for the CertificateRequests in a namespace.
func Requests(
	client dynamic.Interface, namespace string,
) *Client[certmanagerv1.CertificateRequest, certmanagerv1.CertificateRequestList] {
	return newClient[certmanagerv1.CertificateRequest, certmanagerv1.CertificateRequestList](client, namespace,
		"certificaterequests", certmanagerv1.CertificateRequestKind)
}

// Issuers returns the client for the Issuers in a namespace.
func Issuers(client dynamic.Interface, namespace string) *Client[certmanagerv1.Issuer, certmanagerv1.IssuerList] {
	return newClient[certmanagerv1.Issuer, certmanagerv1.IssuerList](client, namespace, "issuers",
		certmanagerv1.IssuerKind)
}

func newClient[T, L any](client dynamic.Interface, namespace, resource, kind string) *Client[T, L] {
	return &Client[T, L]{client.Resource(certmanagerv1.SchemeGroupVersion.WithResource(resource)).Namespace(namespace),
		kind}
}

// Get reads an object.
func (c *Client[T, L]) Get(ctx context.Context, name string, opts metav1.GetOptions) (*T, error) {
	answer, err := c.resource.Get(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	return typed[T](answer.Object)
}

// List lists objects.
func (c *Client[T, L]) List(ctx context.Context, opts metav1.ListOptions) (*L, error) {
	answer, err := c.resource.List(ctx, opts)
	if err != nil {
		return nil, err
	}
	return typed[L](answer.UnstructuredContent())
}

// Create creates an object.
func (c *Client[T, L]) Create(ctx context.Context, object *T, opts metav1.CreateOptions) (*T, error) {
	return c.write(object, func(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		return c.resource.Create(ctx, u, opts)
	})
}

// Update replaces an object if it still has the resource version.
func (c *Client[T, L]) Update(ctx context.Context, object *T, opts metav1.UpdateOptions) (*T, error) {
	return c.write(object, func(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		return c.resource.Update(ctx, u, opts)
	})
}

// UpdateStatus replaces an object's status.
func (c *Client[T, L]) UpdateStatus(ctx context.Context, object *T, opts metav1.UpdateOptions) (*T, error) {
	return c.write(object, func(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		return c.resource.UpdateStatus(ctx, u, opts)
	})
}

// Delete deletes an object.
func (c *Client[T, L]) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return c.resource.Delete(ctx, name, opts)
}

func (c *Client[T, L]) write(
	object *T, send func(*unstructured.Unstructured) (*unstructured.Unstructured, error),
) (*T, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("encoding a %s: %w", c.kind, err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(certmanagerv1.SchemeGroupVersion.WithKind(c.kind))
	answer, err := send(u)
	if err != nil {
		return nil, err
	}
	return typed[T](answer.Object)
}

func typed[T any](content map[string]any) (*T, error) {
	object := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, object); err != nil {
		return nil, fmt.Errorf("decoding a %T: %w", object, err)
	}
	return object, nil
}
