// Package nodeport owns the NodePort Service of a release, which holds the node port in every mode: it
// creates, changes and deletes it, and makes kube-proxy serve the port or leave it to the proxies. It
// does not decide who serves it.
package nodeport

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

const (
	// kubeProxyTime is how long kube-proxy gets to follow a change of the NodePort Service. It takes less
	// than a second after it sees the change.
	kubeProxyTime = 3 * time.Second
	// sliceLead is how long kube-proxy gets to see the EndpointSlices before the Service. The controller
	// repairs their labels after a second or more.
	sliceLead = 250 * time.Millisecond
	// sliceTime bounds the wait for the endpoints of the NodePort Service. The controller needs about a
	// second.
	sliceTime = 30 * time.Second
)

// Cluster holds the clients, in the namespace of the release.
type Cluster struct {
	Services Services
	// EndpointSlices are those of the NodePort Service.
	EndpointSlices EndpointSlices
}

// Services creates, changes and deletes the NodePort Service.
type Services interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Service, error)
	Create(ctx context.Context, service *corev1.Service, opts metav1.CreateOptions) (*corev1.Service, error)
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions,
		subresources ...string) (*corev1.Service, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// EndpointSlices lists and changes those of the NodePort Service.
type EndpointSlices interface {
	List(ctx context.Context, opts metav1.ListOptions) (*discoveryv1.EndpointSliceList, error)
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions,
		subresources ...string) (*discoveryv1.EndpointSlice, error)
}

// Port is the node port of one release.
type Port struct {
	*release.Release
	Cluster Cluster
	// Unreserved is why no Service has to reserve the port. Own sets it.
	Unreserved string
}

// get returns the release's NodePort Service. It is nil if there is no Service with that name
// or the Service belongs to someone else.
func (p *Port) get(ctx context.Context) (*corev1.Service, error) {
	name := p.Settings.Name + names.SuffixNodePort
	s, err := p.Cluster.Services.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", p.Object("Service", name), err)
	case s.Labels[names.LabelInstance] != p.Settings.Release:
		p.Log.Warn("keeping a Service with the name of this release's NodePort Service, because another owner created it",
			"service", name)
		return nil, nil
	}
	return s, nil
}

// change makes a Service what it should be, and reports whether it was different.
func (p *Port) change(ctx context.Context, s, want *corev1.Service) (changed bool, err error) {
	if matches(s, want) {
		return false, nil
	}
	labels := map[string]any{plan.LabelProxyName: nil} // null deletes it
	for key, value := range want.Labels {
		labels[key] = value
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": labels, "annotations": want.Annotations},
		"spec":     map[string]any{"type": want.Spec.Type, "selector": want.Spec.Selector, "ports": want.Spec.Ports},
	})
	if err == nil {
		_, err = p.Cluster.Services.Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return false, fmt.Errorf("changing %s: %w", p.Object("Service", s.Name), err)
	}
	return true, nil
}

// keepingTarget returns the Service that owns the node port, with the target port that it has now.
func (p *Port) keepingTarget(s *corev1.Service, reserved bool) *corev1.Service {
	want := p.PortService(reserved)
	if len(s.Spec.Ports) == 1 {
		want.Spec.Ports[0].TargetPort = s.Spec.Ports[0].TargetPort
	}
	return want
}

// matches reports whether change has nothing to do. Other labels and annotations may stay.
func matches(s, want *corev1.Service) bool {
	for key, value := range want.Labels {
		if s.Labels[key] != value {
			return false
		}
	}
	for key, value := range want.Annotations {
		if s.Annotations[key] != value {
			return false
		}
	}
	return hasProxyNameLabel(s) == hasProxyNameLabel(want) && s.Spec.Type == want.Spec.Type &&
		equality.Semantic.DeepEqual(s.Spec.Selector, want.Spec.Selector) &&
		equality.Semantic.DeepEqual(s.Spec.Ports, want.Spec.Ports)
}

// hasProxyNameLabel reports whether kube-proxy ignores a Service.
func hasProxyNameLabel(s *corev1.Service) bool {
	_, on := s.Labels[plan.LabelProxyName]
	return on
}

// Own makes the Service that owns the node port, and repairs its metadata and its port. Who serves the
// port in the working mode keeps serving it.
func (p *Port) Own(ctx context.Context, working state.Mode) (string, error) {
	proxies := p.Settings.Mode == state.ModeProxy
	if proxies && p.Settings.UnreservedPort {
		p.Unreserved = "reservePort=false"
	}
	s, err := p.get(ctx)
	switch {
	case err != nil:
		return "", err
	case s == nil && p.Unreserved != "":
		return "nothing: " + p.Unreserved, nil
	case s == nil:
		return p.create(ctx, working)
	}
	object := p.Object("Service", s.Name)
	changed, err := p.change(ctx, s, p.keepingTarget(s, hasProxyNameLabel(s)))
	switch {
	case release.PortOutOfRange(err) && proxies: // finish deletes it
		return p.outOfRange(), nil
	case err != nil:
		return "", err
	case changed:
		return fmt.Sprintf("changed %s", object), nil
	}
	return fmt.Sprintf("nothing: %s has node port %d", object, p.Settings.Port), nil
}

// create creates the Service. While proxies may serve the port, it only reserves it.
func (p *Port) create(ctx context.Context, working state.Mode) (string, error) {
	proxies := p.Settings.Mode == state.ModeProxy
	want := p.PortService(proxies || working == state.ModeProxy)
	object := p.Object("Service", want.Name)
	err := release.RetryOverload(ctx, func() error {
		_, err := p.Cluster.Services.Create(ctx, want, metav1.CreateOptions{})
		return err
	})
	switch {
	case err == nil:
		return fmt.Sprintf("created %s with node port %d", object, p.Settings.Port), nil
	case apierrors.IsAlreadyExists(err):
		s, err := p.get(ctx)
		if err != nil || s == nil {
			return "", cmp.Or(err, p.NotOurs("Service", want.Name))
		}
		return fmt.Sprintf("created %s with node port %d", object, p.Settings.Port), nil // an answer was lost
	case release.PortOutOfRange(err) && proxies:
		return p.outOfRange(), nil
	case release.PortAllocated(err):
		return "", exitcode.Refuse("creating %s: %w: find the Service that has it (kubectl get services "+
			"--all-namespaces) and delete it, or --set port=PORT", object, err)
	case release.Rejected(err) && proxies:
		p.Log.Warn("the cluster rejects the Service that reserves the port; another Service can take it, and nodes then "+
			"pull from there", "service", object, "error", err.Error(), "accept", "--set reservePort=false")
		return "nothing: the cluster rejects " + object, nil
	}
	return "", fmt.Errorf("creating %s: %w", object, release.RefuseForbidden(err))
}

func (p *Port) outOfRange() string {
	p.Unreserved = fmt.Sprintf("port %d is outside of the node port range", p.Settings.Port)
	return "nothing: " + p.Unreserved + ", so no Service can take it"
}

// Serve makes kube-proxy serve the node port: endpoints first, then the rules.
func (p *Port) Serve(ctx context.Context) (string, error) {
	s, err := p.get(ctx)
	if err != nil {
		return "", err
	}
	object := p.Object("Service", p.Settings.Name+names.SuffixNodePort)
	if s == nil {
		return "", exitcode.Refuse("%s of release %s is missing: run helm upgrade, which creates it", object,
			p.Settings.Release)
	}
	changed, err := p.serve(ctx, s, sliceTime)
	if err != nil {
		return "", err
	}
	if !changed {
		return fmt.Sprintf("nothing: kube-proxy serves %s on port %d", object, p.Settings.Port), nil
	}
	if err := release.Sleep(ctx, kubeProxyTime); err != nil {
		return "", err
	}
	return fmt.Sprintf("kube-proxy serves %s on port %d", object, p.Settings.Port), nil
}

// serve is Serve for a Service. It waits for endpoints for a limited time.
func (p *Port) serve(ctx context.Context, s *corev1.Service, limit time.Duration) (changed bool,
	err error) {
	hidden := hasProxyNameLabel(s)
	want := p.PortService(false)
	if hidden {
		want.Labels[plan.LabelProxyName] = s.Labels[plan.LabelProxyName]
	}
	if changed, err = p.change(ctx, s, want); err != nil || !changed && !hidden {
		return false, err
	}
	endpoints, err := p.awaitEndpoints(ctx, s.Name, limit)
	if err != nil {
		return false, err
	}
	if !hidden {
		return changed, nil
	}
	if err := p.unhide(ctx, endpoints); err != nil {
		p.Log.Warn("kube-proxy before Kubernetes 1.36 may refuse connections for a second", "error", err.Error())
	}
	if s, err = p.get(ctx); err != nil || s == nil {
		return false, err
	}
	return p.change(ctx, s, p.PortService(false))
}

// unhide removes the label that hides the Service from its EndpointSlices, to which their controller
// copies labels. kube-proxy before Kubernetes 1.36 ignores slices with it too, and rejects connections to a Service
// without endpoints, until it has seen the slices that follow the Service.
func (p *Port) unhide(ctx context.Context, endpoints []discoveryv1.EndpointSlice) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, plan.LabelProxyName)
	for _, slice := range endpoints {
		_, err := p.Cluster.EndpointSlices.Patch(ctx, slice.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return fmt.Errorf("changing %s: %w", p.Object("EndpointSlice", slice.Name), err)
		}
	}
	return release.Sleep(ctx, sliceLead)
}

// awaitEndpoints waits until the Service has a ready endpoint with a port, which is what kube-proxy
// makes rules of, and returns its EndpointSlices.
func (p *Port) awaitEndpoints(ctx context.Context, service string, limit time.Duration) (
	[]discoveryv1.EndpointSlice, error,
) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		list, err := p.Cluster.EndpointSlices.List(ctx,
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
		if err == nil && slices.ContainsFunc(list.Items, hasEndpoint) {
			return list.Items, nil
		}
		if sleepErr := release.Sleep(ctx, release.PollInterval); sleepErr != nil {
			return nil, errors.Join(fmt.Errorf("waiting for a ready endpoint of %s, see its EndpointSlices: %w",
				p.Object("Service", service), sleepErr), err)
		}
	}
}

func hasEndpoint(slice discoveryv1.EndpointSlice) bool {
	return len(slice.Ports) > 0 && slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool {
		return e.Conditions.Ready == nil || *e.Conditions.Ready
	})
}

// Reserve makes kube-proxy leave the node port to the proxies. No other Service can get it.
func (p *Port) Reserve(ctx context.Context) (string, error) {
	s, err := p.get(ctx)
	if err != nil {
		return "", err
	}
	if s == nil {
		return "nothing: no Service reserves the port", nil
	}
	object := p.Object("Service", s.Name)
	changed, err := p.reserve(ctx, s)
	switch {
	case release.PortOutOfRange(err):
		return p.Delete(ctx) // it has a previous port
	case err != nil:
		return "", err
	case !changed:
		return fmt.Sprintf("nothing: %s only reserves port %d", object, p.Settings.Port), nil
	}
	return fmt.Sprintf("%s only reserves port %d", object, p.Settings.Port), nil
}

// reserve is Reserve for a Service. It first sets the label, and the target port, which no pod has, when
// kube-proxy has seen that: kube-proxy refuses connections for a second if it sees first that the endpoints are gone.
func (p *Port) reserve(ctx context.Context, s *corev1.Service) (changed bool, err error) {
	if !hasProxyNameLabel(s) {
		if _, err := p.change(ctx, s, p.keepingTarget(s, true)); err != nil {
			return false, err
		}
		if err := release.Sleep(ctx, kubeProxyTime); err != nil {
			return false, err
		}
		if s, err = p.get(ctx); err != nil || s == nil {
			return true, err
		}
		changed = true
	}
	again, err := p.change(ctx, s, p.PortService(true))
	return changed || again, err
}

// Delete deletes the NodePort Service, which gives the port back.
func (p *Port) Delete(ctx context.Context) (string, error) {
	s, err := p.get(ctx)
	if err != nil {
		return "", err
	}
	if s == nil {
		return "nothing: it does not exist", nil
	}
	err = p.Cluster.Services.Delete(ctx, s.Name, *metav1.NewPreconditionDeleteOptions(string(s.UID)))
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("deleting %s: %w", p.Object("Service", s.Name), err)
	}
	return "deleted " + p.Object("Service", s.Name), nil
}
