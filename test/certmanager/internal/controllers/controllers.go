// Package controllers runs the controllers of cert-manager that Certificates with issuers of the
// types selfSigned and CA need. It does not elect a leader or serve metrics or health checks, and
// it runs neither the webhook, the CA injector, nor anything for ACME, Vault, Venafi, Ingress,
// Gateway and CertificateSigningRequest.
package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	requestsca "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	requestsselfsigned "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	"github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	"github.com/cert-manager/cert-manager/pkg/controller/issuers"
	"golang.org/x/sync/errgroup"

	// These packages register their types of issuers.
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

// names are the enabled controllers, as in cert-manager's flag --controllers.
var names = []string{
	issuers.ControllerName,
	clusterissuers.ControllerName,
	approver.ControllerName,
	requestsca.CRControllerName,
	requestsselfsigned.CRControllerName,
	trigger.ControllerName,
	keymanager.ControllerName,
	requestmanager.ControllerName,
	issuing.ControllerName,
	readiness.ControllerName,
	revisionmanager.ControllerName,
}

// Defaults of cert-manager's controller program.
const (
	workers    = 5 // for each controller
	clientQPS  = 20
	burst      = 50
	minBackoff = time.Hour // after a failed request
	maxBackoff = 32 * time.Hour
)

// copiedAnnotations are the annotations that CertificateRequests inherit from a Certificate: all
// but those of tools that apply manifests. This too is a default.
var copiedAnnotations = []string{"*", "-kubectl.kubernetes.io/", "-fluxcd.io/", "-argocd.argoproj.io/"}

// Options configure Run.
type Options struct {
	Kubeconfig string // path
	Namespace  string // of Secrets that ClusterIssuers name

	// SyncTimeout limits the first list of each resource, which otherwise could block forever. Zero
	// means a minute.
	SyncTimeout time.Duration
}

// Run runs the controllers for all namespaces until ctx ends, calls ready once when their caches
// are filled, and returns when all have stopped. It returns an error if one cannot start.
func Run(ctx context.Context, o Options, ready func()) error {
	group, ctx := errgroup.WithContext(ctx)
	factory, err := newFactory(ctx, o)
	if err != nil {
		return err
	}
	loops, err := build(factory)
	if err != nil {
		return err
	}
	// A context of its own gives access to the informers that all controllers share.
	shared, err := factory.Build()
	if err != nil {
		return fmt.Errorf("building the context of the informers: %w", err)
	}
	for name, loop := range loops {
		group.Go(func() error {
			if err := loop.Run(workers, ctx); err != nil {
				return fmt.Errorf("controller %s: %w", name, err)
			}
			return nil
		})
	}
	// After the controllers are built, because a factory starts the informers that were requested.
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	group.Go(func() error {
		if err := waitForCaches(ctx, shared, cmp.Or(o.SyncTimeout, time.Minute)); err != nil {
			return err
		}
		ready()
		return nil
	})
	return group.Wait()
}

func newFactory(ctx context.Context, o Options) (*controller.ContextFactory, error) {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:         o.Kubeconfig,
		KubernetesAPIQPS:   clientQPS,
		KubernetesAPIBurst: burst,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: o.Namespace},
		CertificateOptions: controller.CertificateOptions{
			CopiedAnnotationPrefixes:                 copiedAnnotations,
			CertificateRequestMinimumBackoffDuration: minBackoff,
			CertificateRequestMaximumBackoffDuration: maxBackoff,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("building cert-manager's context: %w", err)
	}
	return factory, nil
}

// build creates the controllers, by name, without starting them.
func build(factory *controller.ContextFactory) (map[string]controller.Interface, error) {
	loops := make(map[string]controller.Interface, len(names))
	for _, name := range names {
		construct, ok := controller.Known()[name]
		if !ok {
			return nil, fmt.Errorf("controller %s is not in this version of cert-manager", name)
		}
		loop, err := construct(factory)
		if err != nil {
			return nil, fmt.Errorf("building controller %s: %w", name, err)
		}
		loops[name] = loop
	}
	return loops, nil
}

// waitForCaches waits until every started informer has listed its objects.
func waitForCaches(ctx context.Context, shared *controller.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var errs []error
	checked := 0
	check := func(resource string, synced bool) {
		checked++
		if !synced {
			errs = append(errs, fmt.Errorf("no list of %s within %s", resource, timeout))
		}
	}
	for typ, synced := range shared.SharedInformerFactory.WaitForCacheSync(ctx.Done()) {
		check(typ.String(), synced)
	}
	for resource, synced := range shared.KubeSharedInformerFactory.WaitForCacheSync(ctx.Done()) {
		check(resource, synced)
	}
	if checked == 0 {
		errs = append(errs, errors.New("no informer was started"))
	}
	return errors.Join(errs...)
}
