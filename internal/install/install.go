// Package install installs or upgrades the chart from a workstation. It does the work of the chart's
// hook Jobs in this process, so that no node needs init-hook's image, and runs Helm's SDK for the rest.
// The release is an ordinary one: helm upgrade, helm rollback and helm uninstall can continue it.
//
// It decides only the order. The settings are those of the Jobs that the chart renders.
package install

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/release"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	ourrelease "github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
)

// maxHistory is the number of revisions of the release to keep, helm's default.
const maxHistory = 10

// Options selects what to install, and where.
type Options struct {
	Namespace, Release string
	Chart              *chart.Chart
	// Values are the user's, without the chart's defaults. They override those of the last release; null
	// removes one.
	Values map[string]any
	// ResetValues ignores the last release's values.
	ResetValues bool
	// CreateNamespace creates the namespace if it does not exist.
	CreateNamespace bool
	// Timeout bounds the whole run; it must be positive.
	Timeout time.Duration
}

// Hook does the work of the hook Jobs. *hook.Hook implements it.
type Hook interface {
	Preflight(ctx context.Context) ([]preflight.Finding, error)
	Prepare(ctx context.Context) error
	Finish(ctx context.Context) error
}

// Installer installs or upgrades a release. All fields must be set.
type Installer struct {
	Options Options
	// Helm is connected to the namespace of the release.
	Helm   *action.Configuration
	Client kubernetes.Interface
	// Parse reads the arguments of a rendered Job, its command first.
	Parse func(args []string) (settings.Settings, error)
	// NewHook connects a Hook to the cluster. nodeConfig is the data of the rendered Secret with the node
	// configuration, nil if there is none.
	NewHook func(ctx context.Context, s settings.Settings, nodeConfig map[string][]byte) (Hook, error)
	Log     *slog.Logger
	// Progress observes the steps.
	Progress ourrelease.Progress
	Now      func() time.Time
}

// Plan describes what a run would do.
type Plan struct {
	// Settings are those of the rendered Jobs.
	Settings settings.Settings
	// Findings are those of the preflight, blockers first.
	Findings []preflight.Finding
	// Upgrade is true if the release exists.
	Upgrade bool
	// Manifest is what Helm would apply, without hooks and without Secrets.
	Manifest string
}

// Result describes what a run did.
type Result struct {
	// Settings are those of the applied Jobs.
	Settings settings.Settings
	Revision int
	// Upgraded is false for a first installation.
	Upgraded bool
	// ChartVersion and AppVersion are those of the applied chart.
	ChartVersion, AppVersion string
}

// BlockedError is the error of a preflight that found blockers. Nothing was changed.
type BlockedError struct{ Findings []preflight.Finding }

func (e *BlockedError) Error() string {
	var lines strings.Builder
	for _, f := range Blockers(e.Findings) {
		fmt.Fprintf(&lines, "\n  %s", f)
	}
	return "preflight: nothing was changed, because of:" + lines.String()
}

// Blockers returns the blockers among findings.
func Blockers(findings []preflight.Finding) []preflight.Finding {
	return slices.DeleteFunc(slices.Clone(findings),
		func(f preflight.Finding) bool { return f.Severity != preflight.Blocker })
}

// Plan renders the chart against the cluster and runs the preflight. It changes nothing and does not
// create the namespace.
func (i *Installer) Plan(ctx context.Context) (*Plan, error) {
	r := run{Installer: i}
	if err := r.read(ctx); err != nil {
		return nil, err
	}
	manifest, err := r.render(ctx)
	if err != nil {
		return nil, err
	}
	h, err := i.NewHook(ctx, r.settings, r.nodeConfig)
	if err != nil {
		return nil, err
	}
	findings, err := h.Preflight(ctx)
	if err != nil {
		return nil, err
	}
	findings = slices.Concat(r.missing(), findings, r.rejected(ctx, manifest))
	slices.SortStableFunc(findings, func(a, b preflight.Finding) int {
		return strings.Compare(string(a.Severity), string(b.Severity)) // "blocker" sorts before "warning"
	})
	return &Plan{Settings: r.settings, Findings: findings, Upgrade: r.upgrade(), Manifest: withoutSecrets(manifest)}, nil
}

// Run installs or upgrades. It can be interrupted at any point; the next run continues.
func (i *Installer) Run(ctx context.Context) (*Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, i.Options.Timeout,
		fmt.Errorf("not done within %s (--timeout)", i.Options.Timeout))
	defer cancel()
	r := run{Installer: i}
	for _, s := range []struct {
		name, why string
		do        func(context.Context) (string, error)
	}{
		{"read the release", "it decides between installation, upgrade and repair", r.readStep},
		{"render the chart", "the chart decides by the state of the cluster", r.renderStep},
		{"create the namespace", "all other objects are created in it", r.createNamespace},
		{"preflight", "problems are reported before anything changes", r.preflight},
		{"recover the release", "Helm refuses to touch a release that an interrupted run left pending", r.recover},
		{"delete previous Jobs", "concurrent runs would conflict", r.deleteJobs},
		{"", "", r.prepare}, // prepare and finish log steps of their own
		{"apply the chart", "Helm creates and tracks the long-lived objects", r.apply},
		{"", "", r.finish},
	} {
		begin := i.Now()
		did, err := s.do(ctx)
		if err == nil {
			err = ctx.Err() // Helm does not always notice
		}
		if err != nil {
			return nil, errors.Join(r.explain(ctx, err), r.advice)
		}
		if s.name != "" {
			i.Progress.Ended(ourrelease.Ended{Phase: "install", Step: s.name, Did: did, Why: s.why,
				Duration: i.Now().Sub(begin).Round(time.Millisecond)})
		}
	}
	return &Result{
		Settings: r.settings, Revision: r.applied.Version, Upgraded: r.upgrade(),
		ChartVersion: r.applied.Chart.Metadata.Version, AppVersion: r.applied.Chart.Metadata.AppVersion,
	}, nil
}

// run is the state that the steps share.
type run struct {
	*Installer
	// namespaces holds that of Helm's record first and that of all objects last. They are the same unless
	// the value namespaceOverride is set.
	namespaces []namespace

	last     *release.Release // the newest revision; nil if there is none
	present  *release.Release // what Helm compares with and whose values it reuses; nil for an installation
	deployed bool             // present has the status deployed, not failed

	manifest   string            // as rendered before prepare
	settings   settings.Settings // of the Jobs as last rendered
	nodeConfig map[string][]byte // data of the Secret as last rendered
	hook       Hook
	advice     error // how to uninstall what failed, nil if as usual
	applied    *release.Release
}

type namespace struct {
	name    string
	object  *corev1.Namespace // nil if it does not exist
	created bool              // by this run
}

// objects returns the namespace of the objects of the chart and of the hooks.
func (r *run) objects() *namespace { return &r.namespaces[len(r.namespaces)-1] }

// explain adds to an error how to continue after an interruption or a timeout.
func (r *run) explain(ctx context.Context, err error) error {
	if _, blocked := errors.AsType[*BlockedError](err); blocked {
		return err
	}
	const again = "run the same command again to continue"
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return err
	case !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("interrupted: %s (%w)", again, err)
	case errors.Is(err, cause):
		return fmt.Errorf("%w: %s", err, again)
	default:
		return fmt.Errorf("%w: %w: %s", err, cause, again)
	}
}

func (r *run) readStep(ctx context.Context) (string, error) {
	if err := r.read(ctx); err != nil {
		return "", err
	}
	if err := r.idle(ctx); err != nil {
		return "", err
	}
	if r.last == nil {
		return "not found: this is a new installation", nil
	}
	found := fmt.Sprintf("found revision %d, %s: ", r.last.Version, r.last.Info.Status)
	if !r.upgrade() {
		return found + "this repeats the installation", nil
	}
	return found + fmt.Sprintf("this upgrades chart %s to %s", r.last.Chart.Metadata.Version,
		r.Options.Chart.Metadata.Version), nil
}

// read reads the namespace and the release. It refuses a release that cannot be continued.
func (r *run) read(ctx context.Context) error {
	o := r.Options
	if name := o.Chart.Name(); name != names.Chart {
		return exitcode.Refuse("the chart is %q: this command installs only %s; use helm for others", name,
			names.Chart)
	}
	first, err := r.readNamespace(ctx, o.Namespace, "choose another with --namespace")
	if err != nil {
		return err
	}
	r.namespaces = []namespace{first}
	if err := r.Helm.KubeClient.IsReachable(); err != nil {
		return err
	}
	return r.readRelease()
}

func (r *run) readNamespace(ctx context.Context, name, otherwise string) (namespace, error) {
	object, err := r.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return namespace{name: name}, nil
	case apierrors.IsForbidden(err):
		// A user who may not read namespaces may still own one.
		return namespace{name: name, object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}}, nil
	case err != nil:
		return namespace{}, fmt.Errorf("reading namespace %s: %w", name, err)
	case object.DeletionTimestamp != nil:
		return namespace{}, exitcode.Refuse(
			"namespace %s is being deleted: wait until it no longer exists (kubectl wait --for=delete namespace/%s), or %s",
			name, name, otherwise)
	}
	return namespace{name: name, object: object}, nil
}

// render renders the chart as a run would apply it, and reads the settings of the Jobs.
func (r *run) render(ctx context.Context) (manifest string, err error) {
	install := action.NewInstall(r.Helm)
	install.ReleaseName, install.Namespace = r.Options.Release, r.Options.Namespace
	// In a dry run of "server", the chart's lookups see the cluster.
	install.DryRun, install.DryRunOption = true, "server"
	install.IsUpgrade = r.upgrade()
	rendered, err := install.RunWithContext(ctx, r.Options.Chart, r.values())
	if err != nil {
		return "", r.explainHelm("rendering the chart", err)
	}
	if err := r.readSettings(rendered); err != nil {
		return "", err
	}
	r.namespaces = r.namespaces[:1]
	if name := r.settings.Namespace; name != "" && name != r.Options.Namespace {
		other, err := r.readNamespace(ctx, name, "set another namespaceOverride")
		if err != nil {
			return "", err
		}
		r.namespaces = append(r.namespaces, other)
	}
	return rendered.Manifest, nil
}

func (r *run) renderStep(ctx context.Context) (string, error) {
	var err error
	if r.manifest, err = r.render(ctx); err != nil {
		return "", err
	}
	return r.settings.Decision(), nil
}

func (r *run) createNamespace(ctx context.Context) (string, error) {
	if r.objects().object == nil && r.Options.CreateNamespace {
		if missing := r.missing(); len(missing) > 0 {
			return "", &BlockedError{missing}
		}
	}
	var did []string
	for i := range r.namespaces {
		p := &r.namespaces[i]
		if p.object != nil {
			did = append(did, p.name+" exists")
			continue
		}
		if !r.Options.CreateNamespace {
			return "", exitcode.Refuse(
				"namespace %s does not exist: kubectl create namespace %s, or omit --create-namespace=false", p.name, p.name)
		}
		object, err := r.Client.CoreV1().Namespaces().Create(ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.name}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // another run was faster
			did = append(did, p.name+" exists")
			continue
		}
		if err != nil {
			return "", errors.Join(fmt.Errorf("creating namespace %s: %w", p.name, err), r.deleteNamespaces())
		}
		p.object, p.created = object, true
		did = append(did, "created "+p.name)
	}
	return strings.Join(did, ", "), nil
}

// missing returns a blocker if the namespace does not exist but the values name objects of the user in it.
// Creating the namespace first would not help: a blocker of the preflight removes it again, and the user
// needs it to create the objects.
func (r *run) missing() []preflight.Finding {
	if r.objects().object != nil {
		return nil
	}
	var objects []string
	o := r.settings
	if e := o.Certificates().Existing; e != nil {
		for _, name := range []string{e.Server, e.Node, e.Push, e.Cache, e.CA} {
			if object := "Secret " + name; name != "" && !slices.Contains(objects, object) {
				objects = append(objects, object)
			}
		}
	}
	// External issuers may be cluster-scoped.
	if i := o.PKI.Issuer; i != nil && i.Kind == "Issuer" && i.Group == "cert-manager.io" {
		objects = append(objects, "Issuer "+i.Name)
	}
	secrets := []string{o.Push.Secret, o.NodeConfig.RegistriesSecret, o.Expose.TLSSecret}
	if s3 := o.Storage.S3; s3 != nil {
		secrets = append(secrets, s3.Secret, s3.CASecret)
	}
	for _, name := range secrets {
		if name != "" {
			objects = append(objects, "Secret "+name)
		}
	}
	if claim := o.Storage.Claim; claim.Existing {
		objects = append(objects, "PersistentVolumeClaim "+claim.Name)
	}
	if len(objects) == 0 {
		return nil
	}
	namespace := r.objects().name
	return []preflight.Finding{{
		Check: "certificates", Severity: preflight.Blocker, Object: "namespace " + namespace,
		Cause: fmt.Sprintf("it does not exist, so it cannot contain %s, which the values refer to",
			strings.Join(objects, ", ")),
		Remedy: fmt.Sprintf("kubectl create namespace %s, create them in it, then run this again", namespace),
	}}
}

func (r *run) preflight(ctx context.Context) (string, error) {
	var err error
	if r.hook, err = r.NewHook(ctx, r.settings, r.nodeConfig); err != nil {
		return "", errors.Join(err, r.deleteNamespaces())
	}
	findings, err := r.hook.Preflight(ctx)
	if err != nil {
		return "", errors.Join(err, r.deleteNamespaces())
	}
	findings = append(findings, r.rejected(ctx, r.manifest)...)
	blockers := Blockers(findings)
	if len(blockers) > 0 {
		return "", errors.Join(&BlockedError{findings}, r.deleteNamespaces())
	}
	if len(findings) > 0 {
		return fmt.Sprintf("%d warnings, shown below", len(findings)), nil
	}
	return "no blockers", nil
}

// deleteNamespaces deletes the namespaces that this run created, which are still empty. It waits until they are gone:
// the next run refuses a namespace that is being deleted.
func (r *run) deleteNamespaces() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // also when the run was interrupted
	defer cancel()
	var errs []error
	for _, p := range r.namespaces {
		if !p.created {
			continue
		}
		err := r.Client.CoreV1().Namespaces().Delete(ctx, p.name,
			*metav1.NewPreconditionDeleteOptions(string(p.object.UID)))
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("deleting namespace %s, which this run created: %w: kubectl delete namespace %s",
				p.name, err, p.name))
			continue
		}
		for err == nil && ctx.Err() == nil {
			if _, err = r.Client.CoreV1().Namespaces().Get(ctx, p.name, metav1.GetOptions{}); err == nil {
				time.Sleep(200 * time.Millisecond)
			}
		}
	}
	return errors.Join(errs...)
}

// deleteJobs deletes the Jobs of a previous run, as Helm does before it creates new ones. A Job of a
// killed helm may still be running.
func (r *run) deleteJobs(ctx context.Context) (string, error) {
	background := metav1.DeletePropagationBackground // with their pods
	removed := 0
	for _, step := range []string{"prepare", "finish"} {
		name := r.settings.Name + "-" + step
		err := r.Client.BatchV1().Jobs(r.objects().name).Delete(ctx, name,
			metav1.DeleteOptions{PropagationPolicy: &background})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return "", fmt.Errorf("deleting Job %s/%s of a previous run: %w", r.objects().name, name, err)
		default:
			removed++
		}
	}
	return fmt.Sprintf("removed %d", removed), nil
}

func (r *run) prepare(ctx context.Context) (string, error) { return "", r.hook.Prepare(ctx) }

// finish does the work of the applied finish Job. If it fails, the release is marked as failed.
func (r *run) finish(ctx context.Context) (string, error) {
	h, err := r.NewHook(ctx, r.settings, r.nodeConfig)
	if err == nil {
		err = h.Finish(ctx)
	}
	if err != nil {
		return "", errors.Join(err, r.markFailed(err))
	}
	return "", nil
}
