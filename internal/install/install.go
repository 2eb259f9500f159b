// Package install installs or upgrades the chart from a workstation: what the
// chart's hook Jobs would do is done in this process, so no node needs init-hook's
// image, and Helm's SDK does the rest. The release is one that helm upgrade, helm
// rollback and helm uninstall continue.
//
// It decides the order and nothing about the registry: what the Jobs would do it
// takes from the Jobs that the chart renders.
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
	"github.com/zarf-dev/zarf-registry/internal/names"
	"github.com/zarf-dev/zarf-registry/internal/preflight"
	"github.com/zarf-dev/zarf-registry/internal/settings"
)

// maxHistory is how many revisions of the release are kept: as many as helm keeps
// unless told otherwise.
const maxHistory = 10

// Options say what to install, and where.
type Options struct {
	Namespace, Release string
	// Chart is what to install.
	Chart *chart.Chart
	// Values are the user's, without the chart's defaults. They are put on top of
	// those of the last release, a null removing what stood there.
	Values map[string]any
	// ResetValues leaves out the last release's values.
	ResetValues bool
	// CreateNamespace makes the namespace where it is missing.
	CreateNamespace bool
	// Timeout bounds the whole run; it must be positive.
	Timeout time.Duration
}

// Hook is what the hook Jobs do. *hook.Hook is one.
type Hook interface {
	Preflight(ctx context.Context) ([]preflight.Finding, error)
	Prepare(ctx context.Context) error
	Finish(ctx context.Context) error
}

// Installer installs. Its fields must be set.
type Installer struct {
	Options Options
	// Helm is connected with the namespace of the release.
	Helm   *action.Configuration
	Client kubernetes.Interface
	// Parse reads the arguments of a rendered Job, its command first.
	Parse func(args []string) (settings.Settings, error)
	// NewHook connects what the Jobs do with the cluster. nodeConfig is the data of the rendered
	// Secret with the node configuration, nil if there is none.
	NewHook func(ctx context.Context, s settings.Settings, nodeConfig map[string][]byte) (Hook, error)
	Log     *slog.Logger
	Now     func() time.Time
}

// Plan is what a run would do.
type Plan struct {
	// Settings are those of the rendered Jobs.
	Settings settings.Settings
	// Findings are those of the preflight, blockers first.
	Findings []preflight.Finding
	// Upgrade says whether the release exists already.
	Upgrade bool
	// Manifest is what Helm would apply, without hooks.
	Manifest string
}

// Result is what a run did.
type Result struct {
	// Settings are those of the applied Jobs.
	Settings settings.Settings
	// Revision is the release's.
	Revision int
	// Upgraded is false for a first installation.
	Upgraded bool
	// ChartVersion and AppVersion are the applied chart's.
	ChartVersion, AppVersion string
}

// Blocked is the error of a preflight that found blockers. Nothing was changed.
type Blocked struct{ Findings []preflight.Finding }

func (e *Blocked) Error() string {
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

// Plan renders the chart with what the cluster says, and runs the preflight. It
// changes nothing, and does not create the namespace.
func (i *Installer) Plan(ctx context.Context) (*Plan, error) {
	r := run{Installer: i}
	if err := r.look(ctx); err != nil {
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
	findings = append(r.missing(), findings...)
	return &Plan{Settings: r.settings, Findings: findings, Upgrade: r.upgrade(), Manifest: manifest}, nil
}

// Run installs or upgrades. It may be interrupted at any point: another run
// continues.
func (i *Installer) Run(ctx context.Context) (*Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, i.Options.Timeout,
		fmt.Errorf("not done within %s (--timeout)", i.Options.Timeout))
	defer cancel()
	r := run{Installer: i}
	for _, s := range []struct {
		name, why string
		do        func(context.Context) (string, error)
	}{
		{"read the release", "it decides between installation, upgrade and repair", r.lookStep},
		{"render the chart", "the chart decides by what the cluster says", r.renderStep},
		{"create the namespace", "all other objects are created in it", r.makeNamespace},
		{"preflight", "what stands in the way is named before anything is changed", r.preflight},
		{"recover the release", "one that a killed run left behind would block every other", r.recover},
		{"delete previous Jobs", "concurrent runs would conflict", r.removeJobs},
		{"", "", r.prepare},
		{"apply the chart", "Helm makes and keeps the long-lived objects", r.apply},
		{"", "", r.finish},
	} {
		begin := i.Now()
		did, err := s.do(ctx)
		if err == nil {
			err = ctx.Err() // Helm does not always notice
		}
		if err != nil {
			return nil, r.explain(ctx, err)
		}
		if s.name != "" {
			i.Log.Info("step done", "phase", "install", "step", s.name, "did", did, "why", s.why, "took",
				i.Now().Sub(begin).Round(time.Millisecond).String())
		}
	}
	return &Result{
		Settings: r.settings, Revision: r.applied.Version, Upgraded: r.upgrade(),
		ChartVersion: r.applied.Chart.Metadata.Version, AppVersion: r.applied.Chart.Metadata.AppVersion,
	}, nil
}

// run is what the steps hand on to each other.
type run struct {
	*Installer
	// Helm's record is in the first. All objects are in the last: the same, unless a
	// value names another (namespaceOverride).
	namespaces []place

	last     *release.Release // the newest revision; nil where there is none
	present  *release.Release // the one that Helm compares with and whose values it reuses; nil for an installation
	deployed bool             // present counts as deployed, not as failed

	settings   settings.Settings // of the Jobs as they were rendered last
	nodeConfig map[string][]byte // data of the Secret as it was rendered last
	hook       Hook
	applied    *release.Release
}

// place is a namespace.
type place struct {
	name   string
	object *corev1.Namespace // nil where it is missing
	made   bool              // by this run
}

// objects is where the chart's objects are, and all that the hooks make.
func (r *run) objects() *place { return &r.namespaces[len(r.namespaces)-1] }

// explain adds to an error what the user must know about where it leaves things.
func (r *run) explain(ctx context.Context, err error) error {
	if _, blocked := errors.AsType[*Blocked](err); blocked {
		return err
	}
	const again = "run the same command again, it continues where this one stopped"
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

func (r *run) lookStep(ctx context.Context) (string, error) {
	if err := r.look(ctx); err != nil {
		return "", err
	}
	if r.last == nil {
		return "found none: this is a new installation", nil
	}
	return fmt.Sprintf("found revision %d, %s", r.last.Version, r.last.Info.Status), nil
}

// look reads namespace and release, and refuses what cannot be continued.
func (r *run) look(ctx context.Context) error {
	o := r.Options
	if name := o.Chart.Name(); name != names.Chart {
		return exitcode.Refuse("the chart is %q: this command installs %s only; use helm for others", name,
			names.Chart)
	}
	home, err := r.lookAtNamespace(ctx, o.Namespace, "choose another with --namespace")
	if err != nil {
		return err
	}
	r.namespaces = []place{home}
	if err := r.Helm.KubeClient.IsReachable(); err != nil {
		return err
	}
	return r.lookAtRelease()
}

func (r *run) lookAtNamespace(ctx context.Context, name, otherwise string) (place, error) {
	namespace, err := r.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return place{name: name}, nil
	case apierrors.IsForbidden(err):
		// Who may not look at namespaces may still own one.
		return place{name: name, object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}}, nil
	case err != nil:
		return place{}, fmt.Errorf("reading namespace %s: %w", name, err)
	case namespace.DeletionTimestamp != nil:
		return place{}, exitcode.Refuse(
			"namespace %s is being deleted: wait until it is gone (kubectl wait --for=delete namespace/%s), or %s", name, name,
			otherwise)
	}
	return place{name: name, object: namespace}, nil
}

// render renders the chart as a run would apply it, and takes what the Jobs would
// be told.
func (r *run) render(ctx context.Context) (manifest string, err error) {
	install := action.NewInstall(r.Helm)
	install.ReleaseName, install.Namespace = r.Options.Release, r.Options.Namespace
	// A dry run of "server" lets the chart's lookups see the cluster.
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
		other, err := r.lookAtNamespace(ctx, name, "set another namespaceOverride")
		if err != nil {
			return "", err
		}
		r.namespaces = append(r.namespaces, other)
	}
	return rendered.Manifest, nil
}

func (r *run) renderStep(ctx context.Context) (string, error) {
	if _, err := r.render(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s at %s, source: %s", r.settings.Mode, r.settings.Address, r.settings.ModeSource), nil
}

func (r *run) makeNamespace(ctx context.Context) (string, error) {
	if r.objects().object == nil && r.Options.CreateNamespace {
		if missing := r.missing(); len(missing) > 0 {
			return "", &Blocked{missing}
		}
	}
	var did []string
	for i := range r.namespaces {
		p := &r.namespaces[i]
		if p.object != nil {
			did = append(did, p.name+" is there")
			continue
		}
		if !r.Options.CreateNamespace {
			return "", exitcode.Refuse(
				"namespace %s does not exist: kubectl create namespace %s, or leave out --create-namespace=false", p.name, p.name)
		}
		made, err := r.Client.CoreV1().Namespaces().Create(ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.name}}, metav1.CreateOptions{})
		if err != nil {
			return "", errors.Join(fmt.Errorf("creating namespace %s: %w", p.name, err), r.unmakeNamespace())
		}
		p.object, p.made = made, true
		did = append(did, "created "+p.name)
	}
	return strings.Join(did, ", "), nil
}

// missing is a finding where the namespace does not exist and something of the
// user's is to be in it: to make the namespace only to say so would leave nothing
// that the user could make it in.
func (r *run) missing() []preflight.Finding {
	if r.objects().object != nil {
		return nil
	}
	var objects []string
	o := r.settings
	if e := o.PKI.Existing; e != nil {
		for _, name := range []string{e.Server, e.Node, e.Push, e.Authority} {
			if object := "Secret " + name; name != "" && !slices.Contains(objects, object) {
				objects = append(objects, object)
			}
		}
	}
	// the others may be of the cluster
	if i := o.PKI.Issuer; i != nil && i.Kind == "Issuer" && i.Group == "cert-manager.io" {
		objects = append(objects, "Issuer "+i.Name)
	}
	for _, name := range []string{o.Push.Secret, o.NodeConfig.RegistriesSecret, o.Expose.TLSSecret} {
		if name != "" {
			objects = append(objects, "Secret "+name)
		}
	}
	if len(objects) == 0 {
		return nil
	}
	namespace := r.objects().name
	return []preflight.Finding{{
		Check: "certificates", Severity: preflight.Blocker, Object: "namespace " + namespace,
		Cause:  fmt.Sprintf("it does not exist, so it cannot have %s, which the values name", strings.Join(objects, ", ")),
		Remedy: fmt.Sprintf("kubectl create namespace %s, make them in it, then run this again", namespace),
	}}
}

func (r *run) preflight(ctx context.Context) (string, error) {
	var err error
	if r.hook, err = r.NewHook(ctx, r.settings, r.nodeConfig); err != nil {
		return "", errors.Join(err, r.unmakeNamespace())
	}
	findings, err := r.hook.Preflight(ctx)
	if err != nil {
		return "", errors.Join(err, r.unmakeNamespace())
	}
	blockers := Blockers(findings)
	if len(blockers) > 0 {
		return "", errors.Join(&Blocked{findings}, r.unmakeNamespace())
	}
	if len(findings) > 0 {
		return fmt.Sprintf("%d warnings, shown below", len(findings)), nil
	}
	return "no blockers", nil
}

// unmakeNamespace removes the namespaces that this run made and in which there is
// nothing yet.
func (r *run) unmakeNamespace() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // also when the run was interrupted
	defer cancel()
	var errs []error
	for _, p := range r.namespaces {
		if !p.made {
			continue
		}
		err := r.Client.CoreV1().Namespaces().Delete(ctx, p.name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.object.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("deleting namespace %s, which this run made: %w: kubectl delete namespace %s", p.name,
				err, p.name))
		}
	}
	return errors.Join(errs...)
}

// removeJobs deletes the Jobs of a previous run, as Helm does before it makes new
// ones. One may still be running, where its helm was killed.
func (r *run) removeJobs(ctx context.Context) (string, error) {
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

// finish does what the finish Job of the applied rendering would do. The release
// then says how it ended, as it would of a Job.
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
