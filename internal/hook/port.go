package hook

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
	"github.com/zarf-dev/zarf-registry/internal/hook/steps"
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
	// switchBackTimeout bounds switching back. The kubelet kills a Job's pod 30 seconds after it asked
	// the pod to terminate.
	switchBackTimeout = 20 * time.Second
	// switchBackWait bounds each wait for the registry or the endpoints while switching back.
	switchBackWait = 8 * time.Second
)

// nodePort returns the release's NodePort Service. It is nil if there is no Service with that name
// or the Service belongs to someone else.
func (r *run) nodePort(ctx context.Context) (*corev1.Service, error) {
	name := r.Settings.Name + names.SuffixNodePort
	s, err := r.cluster.Services.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", r.Object("Service", name), err)
	case s.Labels[names.LabelInstance] != r.Settings.Release:
		r.Log.Warn("keeping a Service with the name of this release's NodePort Service, because another owner created it",
			"service", name)
		return nil, nil
	}
	return s, nil
}

// changeService makes a Service what it should be, and reports whether it was different.
func (r *run) changeService(ctx context.Context, s, want *corev1.Service) (changed bool, err error) {
	if serviceMatches(s, want) {
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
		_, err = r.cluster.Services.Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return false, fmt.Errorf("changing %s: %w", r.Object("Service", s.Name), err)
	}
	return true, nil
}

// keepingTarget returns the Service that owns the node port, with the target port that it has now.
func (r *run) keepingTarget(s *corev1.Service, reserved bool) *corev1.Service {
	want := r.PortService(reserved)
	if len(s.Spec.Ports) == 1 {
		want.Spec.Ports[0].TargetPort = s.Spec.Ports[0].TargetPort
	}
	return want
}

// serviceMatches reports whether changeService has nothing to do. Other labels and annotations may stay.
func serviceMatches(s, want *corev1.Service) bool {
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

// ownPort makes the Service that owns the node port, and repairs its metadata and its port. Who serves
// the port changes in Finish only.
func (p *prepare) ownPort(ctx context.Context) (string, error) {
	r := p.run
	proxies := r.Settings.Mode == state.ModeProxy
	if proxies && r.Settings.UnreservedPort {
		p.unreserved = "reservePort=false"
	}
	s, err := r.nodePort(ctx)
	switch {
	case err != nil:
		return "", err
	case s == nil && p.unreserved != "":
		return "nothing: " + p.unreserved, nil
	case s == nil:
		return p.createService(ctx)
	}
	object := r.Object("Service", s.Name)
	changed, err := r.changeService(ctx, s, r.keepingTarget(s, hasProxyNameLabel(s)))
	switch {
	case release.PortOutOfRange(err) && proxies: // finish deletes it
		return p.outOfRange(), nil
	case err != nil:
		return "", err
	case changed:
		return fmt.Sprintf("changed %s", object), nil
	}
	return fmt.Sprintf("nothing: %s has node port %d", object, r.Settings.Port), nil
}

// createService creates the Service. While proxies may serve the port, it only reserves it.
func (p *prepare) createService(ctx context.Context) (string, error) {
	r := p.run
	proxies := r.Settings.Mode == state.ModeProxy
	reserved := proxies
	if p.inspection.Saved != nil {
		reserved = reserved || p.inspection.Saved.Working().Mode == state.ModeProxy
	}
	want := r.PortService(reserved)
	object := r.Object("Service", want.Name)
	err := release.RetryOverload(ctx, func() error {
		_, err := r.cluster.Services.Create(ctx, want, metav1.CreateOptions{})
		return err
	})
	switch {
	case err == nil:
		return fmt.Sprintf("created %s with node port %d", object, r.Settings.Port), nil
	case apierrors.IsAlreadyExists(err):
		s, err := r.nodePort(ctx)
		if err != nil || s == nil {
			return "", cmp.Or(err, r.NotOurs("Service", want.Name))
		}
		return fmt.Sprintf("created %s with node port %d", object, r.Settings.Port), nil // an answer was lost
	case release.PortOutOfRange(err) && proxies:
		return p.outOfRange(), nil
	case release.PortAllocated(err):
		return "", exitcode.Refuse("creating %s: %w: find the Service that has it (kubectl get services "+
			"--all-namespaces) and delete it, or --set port=PORT", object, err)
	case release.Rejected(err) && proxies:
		r.Log.Warn("the cluster rejects the Service that reserves the port; another Service can take it, and nodes then "+
			"pull from there", "service", object, "error", err.Error(), "accept", "--set reservePort=false")
		return "nothing: the cluster rejects " + object, nil
	}
	return "", fmt.Errorf("creating %s: %w", object, release.RefuseForbidden(err))
}

func (p *prepare) outOfRange() string {
	p.unreserved = fmt.Sprintf("port %d is outside of the node port range", p.Settings.Port)
	return "nothing: " + p.unreserved + ", so no Service can take it"
}

// servePort makes kube-proxy serve the node port: endpoints first, then the rules.
func (f *finish) servePort(ctx context.Context) (string, error) {
	s, err := f.nodePort(ctx)
	if err != nil {
		return "", err
	}
	object := f.Object("Service", f.Settings.Name+names.SuffixNodePort)
	if s == nil {
		return "", exitcode.Refuse("%s of release %s is missing: run helm upgrade, which creates it", object,
			f.Settings.Release)
	}
	changed, err := f.serveService(ctx, s, sliceTime)
	if err != nil {
		return "", err
	}
	if !changed {
		return fmt.Sprintf("nothing: kube-proxy serves %s on port %d", object, f.Settings.Port), nil
	}
	if err := release.Sleep(ctx, kubeProxyTime); err != nil {
		return "", err
	}
	return fmt.Sprintf("kube-proxy serves %s on port %d", object, f.Settings.Port), nil
}

// serveService is servePort for a Service. It waits for endpoints for a limited time.
func (f *finish) serveService(ctx context.Context, s *corev1.Service, limit time.Duration) (changed bool,
	err error) {
	hidden := hasProxyNameLabel(s)
	want := f.PortService(false)
	if hidden {
		want.Labels[plan.LabelProxyName] = s.Labels[plan.LabelProxyName]
	}
	if changed, err = f.changeService(ctx, s, want); err != nil || !changed && !hidden {
		return false, err
	}
	endpoints, err := f.awaitEndpoints(ctx, s.Name, limit)
	if err != nil {
		return false, err
	}
	if !hidden {
		return changed, nil
	}
	if err := f.unhideEndpointSlices(ctx, endpoints); err != nil {
		f.Log.Warn("kube-proxy before Kubernetes 1.36 may refuse connections for a second", "error", err.Error())
	}
	if s, err = f.nodePort(ctx); err != nil || s == nil {
		return false, err
	}
	return f.changeService(ctx, s, f.PortService(false))
}

// unhideEndpointSlices removes the label that hides the Service from its EndpointSlices, to which their controller
// copies labels. kube-proxy before Kubernetes 1.36 ignores slices with it too, and rejects connections to a Service
// without endpoints, until it has seen the slices that follow the Service.
func (f *finish) unhideEndpointSlices(ctx context.Context, endpoints []discoveryv1.EndpointSlice) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, plan.LabelProxyName)
	for _, slice := range endpoints {
		_, err := f.cluster.EndpointSlices.Patch(ctx, slice.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return fmt.Errorf("changing %s: %w", f.Object("EndpointSlice", slice.Name), err)
		}
	}
	return release.Sleep(ctx, sliceLead)
}

// awaitEndpoints waits until the Service has a ready endpoint with a port, which is what kube-proxy
// makes rules of, and returns its EndpointSlices.
func (f *finish) awaitEndpoints(ctx context.Context, service string, limit time.Duration) (
	[]discoveryv1.EndpointSlice, error,
) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		list, err := f.cluster.EndpointSlices.List(ctx,
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
		if err == nil && slices.ContainsFunc(list.Items, hasEndpoint) {
			return list.Items, nil
		}
		if sleepErr := release.Sleep(ctx, release.PollInterval); sleepErr != nil {
			return nil, errors.Join(fmt.Errorf("waiting for a ready endpoint of %s, see its EndpointSlices: %w",
				f.Object("Service", service), sleepErr), err)
		}
	}
}

func hasEndpoint(slice discoveryv1.EndpointSlice) bool {
	return len(slice.Ports) > 0 && slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool {
		return e.Conditions.Ready == nil || *e.Conditions.Ready
	})
}

// reservePort makes kube-proxy leave the node port to the proxies. No other Service can get it.
func (f *finish) reservePort(ctx context.Context) (string, error) {
	s, err := f.nodePort(ctx)
	if err != nil {
		return "", err
	}
	if s == nil {
		return "nothing: no Service reserves the port", nil
	}
	object := f.Object("Service", s.Name)
	changed, err := f.reserve(ctx, s)
	switch {
	case release.PortOutOfRange(err):
		return f.deleteService(ctx) // it has a previous port
	case err != nil:
		return "", err
	case !changed:
		return fmt.Sprintf("nothing: %s only reserves port %d", object, f.Settings.Port), nil
	}
	return fmt.Sprintf("%s only reserves port %d", object, f.Settings.Port), nil
}

// reserve is reservePort for a Service. It first sets the label, and the target port, which no pod has, when
// kube-proxy has seen that: kube-proxy refuses connections for a second if it sees first that the endpoints are gone.
func (f *finish) reserve(ctx context.Context, s *corev1.Service) (changed bool, err error) {
	if !hasProxyNameLabel(s) {
		if _, err := f.changeService(ctx, s, f.keepingTarget(s, true)); err != nil {
			return false, err
		}
		if err := release.Sleep(ctx, kubeProxyTime); err != nil {
			return false, err
		}
		if s, err = f.nodePort(ctx); err != nil || s == nil {
			return true, err
		}
		changed = true
	}
	again, err := f.changeService(ctx, s, f.PortService(true))
	return changed || again, err
}

// orSwitchBack wraps each step so that its failure lets the previous mode serve the port again, even if
// the run timed out or was interrupted: nothing of that mode is deleted until pulls are verified.
func (f *finish) orSwitchBack(list []steps.Step) []steps.Step {
	for i, s := range list {
		if s.Run == nil {
			continue
		}
		list[i].Run = func(ctx context.Context) (string, error) {
			did, err := s.Run(ctx)
			if err != nil {
				err = f.switchBack(err)
			}
			return did, err
		}
	}
	return list
}

// switchBack undoes the switch of this run, or of one that was killed. It returns the error that made
// this necessary together with the outcome.
func (f *finish) switchBack(failure error) error {
	ctx, cancel := context.WithTimeout(context.Background(), switchBackTimeout) // the run's context may have ended
	defer cancel()
	var cause error
	for {
		outcome, err := f.trySwitchBack(ctx)
		if cause == nil || ctx.Err() == nil {
			cause = err // otherwise the try before says more
		}
		switch {
		case err == nil && outcome != "":
			f.Log.Info("switched back", "outcome", outcome)
			return fmt.Errorf("%w; %s: nodes pull as before; without a mode, the next run keeps it: to switch, name the mode "+
				"again", failure, outcome)
		case err == nil:
			return failure
		}
		if sleepErr := release.Sleep(ctx, release.PollInterval); sleepErr != nil {
			f.Log.Error("cannot switch back, or cannot tell whether that is needed", "error", cause.Error())
			if !f.switching {
				return failure
			}
			return fmt.Errorf("%w; switching back failed (%w): run helm rollback, or helm upgrade with the previous mode",
				failure, cause)
		}
	}
}

// trySwitchBack returns what it changed, or "" if nothing had to be changed.
func (f *finish) trySwitchBack(ctx context.Context) (outcome string, err error) {
	_, saved, err := f.LoadState(ctx)
	if err != nil || saved == nil || !f.switches(saved) {
		return "", err
	}
	s, err := f.nodePort(ctx)
	if err != nil || s == nil {
		return "", err
	}
	object := f.Object("Service", s.Name)
	if saved.Current.Mode == state.ModeProxy {
		changed, err := f.changeService(ctx, s, f.PortService(true))
		if err != nil || !changed {
			return "", err
		}
		return object + " only reserves the port again", nil
	}
	if serviceMatches(s, f.PortService(false)) {
		return "", nil
	}
	// A run that was killed may have closed the listener already.
	listener, cancel := context.WithTimeout(ctx, switchBackWait)
	defer cancel()
	if _, err := f.certs.OpenPlain(listener); err != nil {
		f.Log.Warn("the listener of the node port did not open", "error", err.Error())
	}
	if _, err := f.serveService(ctx, s, switchBackWait); err != nil {
		f.Log.Warn("the node port may have no endpoints", "error", err.Error())
		if _, err := f.changeService(ctx, s, f.PortService(false)); err != nil {
			return "", err
		}
	}
	return object + " serves the port again", nil
}

// switches reports whether this run switches between the modes that share the port.
func (f *finish) switches(saved *state.State) bool {
	return saved.Current != nil && saved.Current.Mode != f.Settings.Mode &&
		saved.Current.Mode != state.ModeExternal && f.Settings.Mode != state.ModeExternal
}

// deleteService deletes the NodePort Service, which gives the port back.
func (r *run) deleteService(ctx context.Context) (string, error) {
	s, err := r.nodePort(ctx)
	if err != nil {
		return "", err
	}
	if s == nil {
		return "nothing: it does not exist", nil
	}
	err = r.cluster.Services.Delete(ctx, s.Name, *metav1.NewPreconditionDeleteOptions(string(s.UID)))
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("deleting %s: %w", r.Object("Service", s.Name), err)
	}
	return "deleted " + r.Object("Service", s.Name), nil
}
