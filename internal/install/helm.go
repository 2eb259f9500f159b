package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	"helm.sh/helm/v3/pkg/storage/driver"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/charts"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/plan"
)

// LoadChart reads a chart from a directory or a .tgz file. An empty path means the embedded chart.
func LoadChart(path string) (*chart.Chart, error) {
	if path != "" {
		c, err := loader.Load(path)
		if err != nil {
			return nil, fmt.Errorf("reading the chart %s: %w", path, err)
		}
		// The image that this process pushes has another digest than that of the chart's release, perhaps, and
		// prepare records it before the chart is rendered.
		digests := func(f *chart.File) bool { return f.Name == "files/init-hook.json" }
		c.Files, c.Raw = slices.DeleteFunc(c.Files, digests), slices.DeleteFunc(c.Raw, digests)
		return c, nil
	}
	// Helm applies .helmignore only to directories.
	dir, err := os.MkdirTemp("", "zarf-registry-chart-")
	if err != nil {
		return nil, fmt.Errorf("unpacking the chart: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.CopyFS(dir, charts.Registry()); err != nil {
		return nil, fmt.Errorf("unpacking the chart: %w", err)
	}
	c, err := loader.LoadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the embedded chart: %w", err)
	}
	return c, nil
}

// readRelease reads the release's history. It refuses a release that cannot be continued.
func (r *run) readRelease() error {
	o := r.Options
	history, err := r.Helm.Releases.History(o.Release)
	if err != nil && !errors.Is(err, driver.ErrReleaseNotFound) {
		return fmt.Errorf("reading the history of release %s in namespace %s: %w", o.Release, o.Namespace, err)
	}
	// The in-memory driver of tests also returns other namespaces.
	history = slices.DeleteFunc(history, func(rel *release.Release) bool { return rel.Namespace != o.Namespace })
	if len(history) == 0 {
		return nil
	}
	releaseutil.SortByRevision(history)
	r.last = history[len(history)-1]
	if err := refuseForeign(r.last); err != nil {
		return err
	}
	switch r.last.Info.Status {
	case release.StatusUninstalling:
		return exitcode.Refuse(
			"release %s in namespace %s is being deleted: complete that with zarf-registry uninstall --release %s "+
				"--namespace %s, then run this again", o.Release, o.Namespace, o.Release, o.Namespace)
	case release.StatusUninstalled:
		return nil // only its history was kept
	}
	r.present = r.last
	for _, rel := range history {
		if rel.Info.Status == release.StatusDeployed {
			r.present, r.deployed = rel, true
		}
	}
	return nil
}

// idle returns an error if another Helm operation may be changing the release: the newest revision is pending, and
// younger than the time limit of a run.
func (r *run) idle(ctx context.Context) error {
	if r.last == nil || !r.last.Info.Status.IsPending() {
		return nil
	}
	since, limit := r.last.Info.LastDeployed, r.Options.Timeout
	if r.pendingFor(ctx) >= limit {
		return nil
	}
	return fmt.Errorf("revision %d of release %s is %s since %s: another helm or zarf-registry install is changing the "+
		"release, or was killed. Wait until it has finished, then run this again. If it was killed, run this again after %s "+
		"(--timeout %s), or now after kubectl --namespace %s delete secret sh.helm.release.v1.%s.v%d", r.last.Version,
		r.last.Name, r.last.Info.Status, since.Format(time.RFC3339), since.Add(limit).Format(time.RFC3339), limit,
		r.Options.Namespace, r.last.Name, r.last.Version)
}

// pendingFor returns the age of the newest revision, by the API server's clock: it sets the time of a Secret also in a
// dry run. Only where another driver stores revisions, the clocks of two workstations are compared.
func (r *run) pendingFor(ctx context.Context) time.Duration {
	secrets := r.Client.CoreV1().Secrets(r.Options.Namespace)
	name := fmt.Sprintf("sh.helm.release.v1.%s.v%d", r.last.Name, r.last.Version)
	revision, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		probe := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: r.last.Name + "-time-"}}
		probe, err = secrets.Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return probe.CreationTimestamp.Sub(revision.CreationTimestamp.Time)
		}
	}
	return r.Now().Sub(r.last.Info.LastDeployed.Time)
}

// recover marks a revision that an interrupted run left pending as failed. Helm refuses to touch it otherwise. It
// reads the release again, because another operation may have begun since.
func (r *run) recover(ctx context.Context) (string, error) {
	seen := r.last
	if err := errors.Join(r.readRelease(), r.idle(ctx)); err != nil {
		return "", err
	}
	if r.last != nil && (seen == nil || r.last.Version != seen.Version) {
		return "", fmt.Errorf("another process has changed release %s, whose revision is %d now: run this again",
			r.last.Name, r.last.Version)
	}
	if r.last == nil || !r.last.Info.Status.IsPending() {
		return "nothing: no interrupted run found", nil
	}
	was := r.last.Info.Status
	r.last.SetStatus(release.StatusFailed,
		fmt.Sprintf("was %s when zarf-registry install recovered it: its run was interrupted", was))
	if err := r.Helm.Releases.Update(r.last); err != nil {
		return "", fmt.Errorf("marking revision %d of release %s as failed: %w", r.last.Version, r.last.Name, err)
	}
	return fmt.Sprintf("marked revision %d, which was %s, as failed", r.last.Version, was), nil
}

// apply installs or upgrades with Helm. The chart's hooks are stored with the release but not run: this
// process does their work.
func (r *run) apply(ctx context.Context) (string, error) {
	// Helm watches its context even after it has returned, and would then mark the release as failed when
	// this run ends. Its context therefore ends with the run only while Helm works.
	helm, interrupt := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, interrupt)
	defer stop()
	var err error
	if r.upgrade() {
		upgrade := action.NewUpgrade(r.Helm)
		upgrade.Namespace = r.Options.Namespace
		upgrade.ResetValues = true // values() has merged them
		upgrade.DisableHooks = true
		upgrade.MaxHistory = maxHistory
		upgrade.Timeout = r.Options.Timeout
		upgrade.Description = "Upgrade complete (zarf-registry install)"
		r.applied, err = upgrade.RunWithContext(helm, r.Options.Release, r.Options.Chart, r.values())
	} else {
		install := action.NewInstall(r.Helm)
		install.ReleaseName, install.Namespace = r.Options.Release, r.Options.Namespace
		install.Replace = r.last != nil // uninstalled with --keep-history
		install.DisableHooks = true
		install.Timeout = r.Options.Timeout
		install.Description = "Install complete (zarf-registry install)"
		r.applied, err = install.RunWithContext(helm, r.Options.Chart, r.values())
	}
	if err != nil {
		err = r.explainHelm("applying the chart", err)
		if r.applied != nil && r.withoutCleanup() {
			err = errors.Join(err, r.Helm.Releases.Update(r.applied))
		}
		return "", err
	}
	err = r.readSettings(r.applied)
	if err != nil {
		return "", errors.Join(err, r.markFailed(err))
	}
	return fmt.Sprintf("revision %d of release %s", r.applied.Version, r.applied.Name), nil
}

// markFailed records what Helm records if a finish Job fails: this revision failed, and the previous one
// stays deployed.
func (r *run) markFailed(cause error) error {
	// One line: helm history shows it in a table.
	r.applied.SetStatus(release.StatusFailed, "finish failed: "+strings.ReplaceAll(cause.Error(), "\n", "; "))
	r.withoutCleanup()
	if err := r.Helm.Releases.Update(r.applied); err != nil {
		return fmt.Errorf("marking revision %d of release %s as failed: %w", r.applied.Version, r.applied.Name, err)
	}
	if !r.deployed {
		return nil
	}
	r.present.Info.Status = release.StatusDeployed
	if err := r.Helm.Releases.Update(r.present); err != nil {
		return fmt.Errorf("marking revision %d of release %s as deployed: %w", r.present.Version, r.present.Name, err)
	}
	return nil
}

func refuseForeign(rel *release.Release) error {
	if name := rel.Chart.Name(); name != names.Chart {
		return exitcode.Refuse(
			"release %s in namespace %s belongs to the chart %s, not to %s: choose another name with --release or another "+
				"namespace with --namespace", rel.Name, rel.Namespace, name, names.Chart)
	}
	return nil
}

// withoutCleanup removes the Job cleanup from the record of a release that has never worked, if the Job's image is in
// the registry that does not run: helm uninstall would wait for the Job in vain. It reports whether it did, and then
// sets advice.
func (r *run) withoutCleanup() bool {
	if r.deployed {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // also when the run was interrupted
	defer cancel()
	cleanup := func(h *release.Hook) bool {
		return h.Kind == "Job" && slices.Contains(h.Events, release.HookPreDelete)
	}
	i := slices.IndexFunc(r.applied.Hooks, cleanup)
	if i < 0 || r.startsJob(ctx, r.applied.Hooks[i]) {
		return false
	}
	r.applied.Hooks = slices.DeleteFunc(r.applied.Hooks, cleanup)
	r.advice = fmt.Errorf("to uninstall it instead: zarf-registry uninstall --namespace %s --release %s",
		r.Options.Namespace, r.Options.Release)
	return true
}

// startsJob reports whether a node has the image of a Job or may be able to pull it.
func (r *run) startsJob(ctx context.Context, hook *release.Hook) bool {
	var job batchv1.Job
	if err := yaml.Unmarshal([]byte(hook.Manifest), &job); err != nil || len(job.Spec.Template.Spec.Containers) == 0 {
		return true
	}
	image := job.Spec.Template.Spec.Containers[0].Image
	if !strings.HasPrefix(image, r.settings.Address+"/") {
		return true
	}
	nodes, err := r.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil || slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { return plan.Reports(n, image) }) {
		return true
	}
	registry, err := r.Client.AppsV1().Deployments(r.objects().name).Get(ctx, r.settings.Name, metav1.GetOptions{})
	return err != nil && !apierrors.IsNotFound(err) || err == nil && registry.Status.AvailableReplicas > 0
}

func (r *run) upgrade() bool { return r.present != nil }

// readSettings reads the settings from the rendered prepare Job; all Jobs have the same.
func (r *run) readSettings(rendered *release.Release) error {
	arguments, err := jobArguments(rendered, "prepare")
	if err != nil {
		return err
	}
	if r.settings, err = r.Parse(arguments); err != nil {
		return err
	}
	r.nodeConfig = nil
	if !r.settings.ConfiguresNodes() {
		return nil
	}
	// The Secret that the prepare Job reads is a hook, which is not run.
	r.nodeConfig, err = secretData(rendered.Manifest, r.settings.Name+names.SuffixNodeConfig)
	return err
}

// values returns those of the last release, overridden by the user's.
func (r *run) values() map[string]any {
	values := runtime.DeepCopyJSON(r.Options.Values) // Helm keeps and changes its arguments
	if r.present == nil || r.Options.ResetValues {
		return values
	}
	return chartutil.CoalesceTables(values, runtime.DeepCopyJSON(r.present.Config))
}

func jobArguments(rel *release.Release, step string) ([]string, error) {
	for _, h := range rel.Hooks {
		if h.Kind != "Job" {
			continue
		}
		var job batchv1.Job
		if err := yaml.Unmarshal([]byte(h.Manifest), &job); err != nil {
			return nil, fmt.Errorf("reading the Job %s of the chart: %w", h.Name, err)
		}
		for _, c := range job.Spec.Template.Spec.Containers {
			if len(c.Args) > 0 && c.Args[0] == step {
				return c.Args, nil
			}
		}
	}
	return nil, fmt.Errorf("the chart renders no Job that runs zarf-registry %s: "+
		"use the chart of the same version as this program", step)
}

// secretData returns the data of a Secret in a rendered manifest.
func secretData(manifest, name string) (map[string][]byte, error) {
	for _, document := range documents(manifest) {
		var secret corev1.Secret
		// Errors are dropped: they may quote a secret, and other documents do not matter.
		if err := yaml.Unmarshal([]byte(document), &secret); err != nil || secret.Kind != "Secret" || secret.Name != name {
			continue
		}
		data := map[string][]byte{}
		maps.Copy(data, secret.Data)
		for key, value := range secret.StringData {
			data[key] = []byte(value)
		}
		return data, nil
	}
	return nil, fmt.Errorf("the chart renders no valid Secret %s, which its Jobs need to configure nodes: "+
		"use the chart of the same version as this program", name)
}

func withoutSecrets(manifest string) string {
	var rest strings.Builder
	for _, document := range documents(manifest) {
		var head struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &head); err != nil || head.Kind == "Secret" {
			continue
		}
		fmt.Fprintf(&rest, "---\n%s\n", document)
	}
	return rest.String()
}

// documents returns the YAML documents of a manifest, in its order.
func documents(manifest string) (list []string) {
	byKey := releaseutil.SplitManifests(manifest)
	keys := slices.Collect(maps.Keys(byKey))
	sort.Sort(releaseutil.BySplitManifestsOrder(keys))
	for _, key := range keys {
		list = append(list, byKey[key])
	}
	return list
}

// explainHelm adds to an error of Helm what it was doing and what to do about it.
func (r *run) explainHelm(doing string, err error) error {
	text := err.Error()
	for _, known := range []struct {
		sign, advice string
		refused      bool
	}{
		{"invalid ownership metadata",
			"an object of that name exists and is not of this release: delete or rename it, or install under another name " +
				"(--set fullnameOverride=…)", true},
		{"another operation", "another helm is changing this release: wait until it has finished, then run this again",
			false},
		{"already exists", "another process is changing this release: wait until it has finished, then run this again",
			false},
		{"chart requires kubeVersion", "the chart does not support the cluster's Kubernetes version: upgrade the cluster",
			true},
		{"values don't meet the specifications of the schema",
			"correct the values (--set, --values); --reset-values ignores those of the last release", true},
	} {
		if strings.Contains(text, known.sign) {
			err = fmt.Errorf("%s: %w: %s", doing, err, known.advice)
			if known.refused {
				return &exitcode.Refusal{Err: err}
			}
			return err
		}
	}
	if strings.Contains(text, "zarf-registry: ") {
		return exitcode.Refuse("%s: %w", doing, err) // the chart's message says what to do
	}
	return fmt.Errorf("%s: %w; fix that, then run the same command again", doing, err)
}
