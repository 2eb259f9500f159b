// Package hook is what the chart's hook Jobs do, as ordered steps: Prepare
// before the chart is applied, Finish after it, Cleanup before it is deleted.
// Each step says what it did, why and how long it took; every one of them can be
// killed at any point and run again.
//
// It owns the order and the decisions. It does not connect to anything: what it
// needs of the cluster and of the registry comes in through the small interfaces
// of Cluster and Programs, and it touches no field of an object that the chart
// renders.
package hook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/settings"
)

// Hook runs the steps. Its fields must be set; it holds no state of its own
// between runs.
type Hook struct {
	Settings settings.Settings
	// NodeConfigData is the data of the rendered Secret with the node configuration, which may
	// hold secrets. Nil: Prepare reads it from the Secret that the chart creates for it.
	NodeConfigData map[string][]byte
	// FinishFollows tells that the process which runs Prepare applies the chart and runs Finish.
	// If images are pushed, Prepare then records init-hook's image, which Finish will push,
	// because the Jobs of the chart refer to it.
	FinishFollows bool
	// Timeout bounds a whole run; 0 means no limit.
	Timeout time.Duration

	Cluster  Cluster
	Programs Programs
	Registry Registry
	Log      *slog.Logger
	Now      func() time.Time
}

// Cluster is what the steps need of Kubernetes. The namespaced parts are those
// of Settings.Namespace. client-go's typed clients satisfy each part.
type Cluster struct {
	Nodes      Nodes
	Namespaces Namespaces
	Secrets    Secrets
	ConfigMaps ConfigMaps
	// ConfigMapNames lists the same without their content, which is megabytes.
	ConfigMapNames Metadata
	Pods           Pods
	Events         Events
	Deployments    Deployments
	DaemonSets     DaemonSets
	Jobs           Jobs
	Services       Services
	// ClusterServices are the Services of all namespaces.
	ClusterServices ClusterServices
	// ClusterConfigMaps are those of HostingNamespace.
	ClusterConfigMaps ClusterConfigMaps
	// Certificates, CertificateRequests and Issuers are cert-manager's. Where it is
	// not installed they answer NotFound.
	Certificates        Certificates
	CertificateRequests CertificateRequests
	Issuers             Issuers
}

// Nodes reads nodes.
type Nodes interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.NodeList, error)
}

// Namespaces reads and labels the release's namespace; used with
// Settings.Preflight.LabelNamespace only.
type Namespaces interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Namespace, error)
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.Namespace, error)
}

// Services reads, deletes and puts back the NodePort Service. Create is used for
// dry runs besides, and Patch says whose the fields are.
type Services interface {
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.Service, error)
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Service, error)
	Create(ctx context.Context, service *corev1.Service, opts metav1.CreateOptions) (*corev1.Service, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// ClusterServices lists the Services of all namespaces.
type ClusterServices interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.ServiceList, error)
}

// ClusterConfigMaps reads and writes one ConfigMap by name.
type ClusterConfigMaps interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.ConfigMap, error)
	Create(ctx context.Context, configMap *corev1.ConfigMap, opts metav1.CreateOptions) (*corev1.ConfigMap, error)
	Update(ctx context.Context, configMap *corev1.ConfigMap, opts metav1.UpdateOptions) (*corev1.ConfigMap, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Secrets reads and writes Secrets by name.
type Secrets interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Secret, error)
	Create(ctx context.Context, secret *corev1.Secret, opts metav1.CreateOptions) (*corev1.Secret, error)
	Update(ctx context.Context, secret *corev1.Secret, opts metav1.UpdateOptions) (*corev1.Secret, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// ConfigMaps lists and replaces ConfigMaps.
type ConfigMaps interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.ConfigMapList, error)
	Create(ctx context.Context, configMap *corev1.ConfigMap, opts metav1.CreateOptions) (*corev1.ConfigMap, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Metadata lists objects without their content. client-go's metadata client does.
type Metadata interface {
	List(ctx context.Context, opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
}

// Pods lists, creates and deletes pods, and annotates those whose mounted
// Secrets shall be brought up to date at once. Create is used for dry runs besides.
type Pods interface {
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.Pod, error)
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)
	Create(ctx context.Context, pod *corev1.Pod, opts metav1.CreateOptions) (*corev1.Pod, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Events lists events.
type Events interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.EventList, error)
}

// Deployments reads Deployments.
type Deployments interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*appsv1.Deployment, error)
}

// DaemonSets lists and deletes DaemonSets.
type DaemonSets interface {
	List(ctx context.Context, opts metav1.ListOptions) (*appsv1.DaemonSetList, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Certificates keeps Certificates of cert-manager; UpdateStatus asks for a new
// issuance.
type Certificates interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*certmanagerv1.Certificate, error)
	Create(ctx context.Context, certificate *certmanagerv1.Certificate, opts metav1.CreateOptions) (*certmanagerv1.Certificate, error)
	Update(ctx context.Context, certificate *certmanagerv1.Certificate, opts metav1.UpdateOptions) (*certmanagerv1.Certificate, error)
	UpdateStatus(ctx context.Context, certificate *certmanagerv1.Certificate, opts metav1.UpdateOptions) (*certmanagerv1.Certificate, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// CertificateRequests lists what says why a Certificate is not issued.
type CertificateRequests interface {
	List(ctx context.Context, opts metav1.ListOptions) (*certmanagerv1.CertificateRequestList, error)
}

// Issuers keeps Issuers of cert-manager.
type Issuers interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*certmanagerv1.Issuer, error)
	Create(ctx context.Context, issuer *certmanagerv1.Issuer, opts metav1.CreateOptions) (*certmanagerv1.Issuer, error)
	Update(ctx context.Context, issuer *certmanagerv1.Issuer, opts metav1.UpdateOptions) (*certmanagerv1.Issuer, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Jobs reads and deletes Jobs by name.
type Jobs interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*batchv1.Job, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Refused is an error that another try would meet again: something that cannot
// work was asked for, or the time that was given is over.
type Refused struct{ Err error }

func (e *Refused) Error() string { return e.Err.Error() }
func (e *Refused) Unwrap() error { return e.Err }

func refuse(format string, args ...any) error {
	return &Refused{fmt.Errorf(format, args...)}
}

// refuseForbidden marks a missing right as what another try would meet again. The
// API server's words name the right and who lacks it.
func refuseForbidden(err error) error {
	if missingRight(err) {
		return refuse("%w; ask for that right, or run this as somebody who has it", err)
	}
	return err
}

// missingRight tells a missing right from other things that are forbidden: quotas,
// Pod Security, policies.
func missingRight(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), " cannot ") && strings.Contains(err.Error(), " resource ")
}

// step is one line of a table of contents.
type step struct {
	name string
	// why is logged with the step, so that a log explains itself.
	why string
	// run does the work and returns in words what it did; nil: there is nothing to
	// do in this mode, and the step is left out.
	run work
}

type work = func(context.Context) (did string, err error)

// onlyIf leaves a step out.
func onlyIf(on bool, run work) work {
	if !on {
		return nil
	}
	return run
}

func (h *Hook) runSteps(ctx context.Context, phase string, steps []step) error {
	if h.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, h.Timeout, fmt.Errorf("not done within %s", h.Timeout))
		defer cancel()
	}
	begin := h.Now()
	steps = slices.DeleteFunc(steps, func(s step) bool { return s.run == nil })
	for i, s := range steps {
		log := h.Log.With("phase", phase, "step", fmt.Sprintf("%d/%d %s", i+1, len(steps), s.name))
		stepBegin := h.Now()
		did, err := s.run(ctx)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.DeadlineExceeded) {
				err = refuse("%w (%w)", err, cause)
			}
			log.Error("step failed", "why", s.why, "took", h.since(stepBegin), "error", err.Error())
			return fmt.Errorf("%s: %s: %w", phase, s.name, err)
		}
		log.Info("step done", "did", did, "why", s.why, "took", h.since(stepBegin))
	}
	h.Log.Info("phase done", "phase", phase, "took", h.since(begin))
	return nil
}

func (h *Hook) since(begin time.Time) string {
	return h.Now().Sub(begin).Round(time.Millisecond).String()
}

func (h *Hook) labels(component string) map[string]string {
	return names.Labels(h.Settings.Release, component)
}

func (h *Hook) podLabels(component string) map[string]string {
	return names.PodLabels(h.Settings.Release, component)
}

// annotations are of what the hook makes and keeps. Where Argo CD tells what is an
// Application's by the label that our objects have too (its default before 3.0),
// these would be what is in no manifest, to be pruned.
func annotations() map[string]string {
	return map[string]string{
		"argocd.argoproj.io/sync-options":    "Prune=false",
		"argocd.argoproj.io/compare-options": "IgnoreExtraneous",
	}
}

// selector selects this release's objects of a component, whoever manages them.
func (h *Hook) selector(component string) metav1.ListOptions {
	return selector(h.Settings.Release, component)
}

func selector(release, component string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: names.Selector(release, component)}
}

// RegistryPods selects the pods of a release's registry.
func RegistryPods(release string) metav1.ListOptions {
	return selector(release, names.ComponentRegistry)
}

// object names a namespaced object in messages.
func (h *Hook) object(kind, name string) string {
	return fmt.Sprintf("%s %s/%s", kind, h.Settings.Namespace, name)
}

// serverName is the DNS name that every client of the registry verifies.
func serverName(name, namespace string) string {
	return name + "." + namespace + ".svc"
}

// secret returns a Secret, or nil where there is none. One of that name that
// the hook did not make is an error: it is somebody's, and is never overwritten.
func (h *Hook) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	s, err := h.Cluster.Secrets.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", h.object("Secret", name), err)
	case s.Labels[names.LabelManagedBy] != names.Manager:
		return nil, refuse("%s exists and was not made by init-hook: rename or delete it, or install under another name (--set fullnameOverride=…)", h.object("Secret", name))
	}
	return s, nil
}

// writeSecret creates the Secret, or updates the one that was read. A write by
// somebody else in between is an error, never overwritten: the Job runs again.
func (h *Hook) writeSecret(ctx context.Context, old *corev1.Secret, name, component string, kind corev1.SecretType, data map[string][]byte) error {
	if old == nil {
		_, err := h.Cluster.Secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: h.Settings.Namespace, Labels: h.labels(component), Annotations: annotations()},
			Type:       kind,
			Data:       data,
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating %s: %w", h.object("Secret", name), err)
		}
		return nil
	}
	changed := old.DeepCopy()
	changed.Data = data
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}
	maps.Copy(changed.Annotations, annotations()) // one of a release of before has none
	if _, err := h.Cluster.Secrets.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("updating %s: %w", h.object("Secret", name), err)
	}
	return nil
}

// sleep waits, or returns the context's error if that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
