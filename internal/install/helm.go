package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	"helm.sh/helm/v3/pkg/storage/driver"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/charts"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/names"
)

// LoadChart reads a chart from a folder or a .tgz file; "" is the one that this
// program carries.
func LoadChart(path string) (*chart.Chart, error) {
	if path != "" {
		c, err := loader.Load(path)
		if err != nil {
			return nil, fmt.Errorf("reading the chart %s: %w", path, err)
		}
		return c, nil
	}
	// Only from a folder does Helm obey .helmignore.
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
		return nil, fmt.Errorf("reading the chart that init-hook carries: %w", err)
	}
	return c, nil
}

// lookAtRelease reads the release's history and refuses what cannot be continued.
func (r *run) lookAtRelease() error {
	o := r.Options
	history, err := r.Helm.Releases.History(o.Release)
	if err != nil && !errors.Is(err, driver.ErrReleaseNotFound) {
		return fmt.Errorf("reading the history of release %s in namespace %s: %w", o.Release, o.Namespace, err)
	}
	// The memory of tests has those of other namespaces besides.
	history = slices.DeleteFunc(history, func(rel *release.Release) bool { return rel.Namespace != o.Namespace })
	if len(history) == 0 {
		return nil
	}
	releaseutil.SortByRevision(history)
	r.last = history[len(history)-1]
	if name := r.last.Chart.Name(); name != names.Chart {
		return exitcode.Refuse(
			"release %s in namespace %s is of the chart %s, not of %s: choose another name with --release or another place "+
				"with --namespace", o.Release, o.Namespace, name, names.Chart)
	}
	switch r.last.Info.Status {
	case release.StatusUninstalling:
		return exitcode.Refuse(
			"release %s in namespace %s is being deleted: let that end, by helm uninstall %s --namespace %s, "+
				"then run this again", o.Release, o.Namespace, o.Release, o.Namespace)
	case release.StatusUninstalled:
		return nil // its history was kept; nothing of it is there
	}
	r.present = r.last
	for _, rel := range history {
		if rel.Info.Status == release.StatusDeployed {
			r.present, r.deployed = rel, true
		}
	}
	return nil
}

// recover ends what a killed run left under way, for Helm refuses to touch it.
func (r *run) recover(context.Context) (string, error) {
	if r.last == nil || !r.last.Info.Status.IsPending() {
		return "nothing: no interrupted run was found", nil
	}
	was := r.last.Info.Status
	r.last.SetStatus(release.StatusFailed,
		fmt.Sprintf("was %s when init-hook install took over: its run had ended before it was done", was))
	if err := r.Helm.Releases.Update(r.last); err != nil {
		return "", fmt.Errorf("marking revision %d of release %s as failed: %w", r.last.Version, r.last.Name, err)
	}
	return fmt.Sprintf("revision %d was %s and counts as failed now", r.last.Version, was), nil
}

// apply is the real installation or upgrade. Hooks are stored with the release
// and not run: their work is done here.
func (r *run) apply(ctx context.Context) (string, error) {
	// Helm watches its context even when it is done, and may then take the end of
	// this run for an interruption and mark the release as failed: so what it gets
	// ends with the run only as long as Helm is at work.
	helm, interrupt := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, interrupt)
	defer stop()
	var err error
	if r.upgrade() {
		upgrade := action.NewUpgrade(r.Helm)
		upgrade.Namespace = r.Options.Namespace
		upgrade.ResetValues = true // they are merged already
		upgrade.DisableHooks = true
		upgrade.MaxHistory = maxHistory
		upgrade.Timeout = r.Options.Timeout
		upgrade.Description = "Upgrade complete (init-hook install)"
		r.applied, err = upgrade.RunWithContext(helm, r.Options.Release, r.Options.Chart, r.values())
	} else {
		install := action.NewInstall(r.Helm)
		install.ReleaseName, install.Namespace = r.Options.Release, r.Options.Namespace
		install.Replace = r.last != nil // uninstalled, with its history kept
		install.DisableHooks = true
		install.Timeout = r.Options.Timeout
		install.Description = "Install complete (init-hook install)"
		r.applied, err = install.RunWithContext(helm, r.Options.Chart, r.values())
	}
	if err != nil {
		return "", r.explainHelm("applying the chart", err)
	}
	err = r.readSettings(r.applied)
	if err != nil {
		return "", errors.Join(err, r.markFailed(err))
	}
	return fmt.Sprintf("revision %d of release %s", r.applied.Version, r.applied.Name), nil
}

// markFailed lets the history say what it would say of a finish Job that failed:
// this revision did not succeed, and the one before is the present one.
func (r *run) markFailed(cause error) error {
	// One line: helm history shows it in a table.
	r.applied.SetStatus(release.StatusFailed, "finish failed: "+strings.ReplaceAll(cause.Error(), "\n", "; "))
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

// upgrade says whether Helm goes on from a release.
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
	// The Secret that prepare would read is a hook, and hooks are not run.
	r.nodeConfig, err = secretData(rendered.Manifest, r.settings.Name+names.SuffixNodeConfig)
	return err
}

// values are the user's on top of those of the last release.
func (r *run) values() map[string]any {
	values := clone(r.Options.Values)
	if r.present == nil || r.Options.ResetValues {
		return values
	}
	return chartutil.CoalesceTables(values, clone(r.present.Config))
}

// clone copies values: Helm keeps and changes what it is given.
func clone(values map[string]any) map[string]any {
	copied := map[string]any{}
	for key, value := range values {
		copied[key] = cloneAny(value)
	}
	return copied
}

func cloneAny(value any) any {
	switch value := value.(type) {
	case map[string]any:
		return clone(value)
	case []any:
		copied := make([]any, len(value))
		for i := range value {
			copied[i] = cloneAny(value[i])
		}
		return copied
	}
	return value
}

// jobArguments takes a hook Job's arguments from a release.
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
	return nil, fmt.Errorf("the chart renders no Job that runs init-hook %s: "+
		"use the chart of this init-hook's own release", step)
}

// secretData takes what a Secret holds from a rendered manifest.
func secretData(manifest, name string) (map[string][]byte, error) {
	for _, document := range releaseutil.SplitManifests(manifest) {
		var secret corev1.Secret
		// Errors may quote what they cannot read, and others than the Secret do not matter.
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
	return nil, fmt.Errorf("the chart renders no Secret %s that can be read, though its Jobs are to configure nodes: "+
		"use the chart of this init-hook's own release", name)
}

// explainHelm says what Helm was doing, and what to do about the errors that
// people can mend.
func (r *run) explainHelm(doing string, err error) error {
	text := err.Error()
	for _, known := range []struct{ sign, advice string }{
		{"invalid ownership metadata",
			"an object of that name is there and belongs to somebody else: delete or rename it, or install under other names " +
				"(--set fullnameOverride=…)"},
		{"another operation", "another helm is at work on this release: wait until it is done, then run this again"},
		{"already exists", "somebody else works on this release at the same time: wait until that is done, then run this " +
			"again"},
		{"chart requires kubeVersion", "the cluster's Kubernetes is not one that the chart supports: update the cluster"},
		{"values don't meet the specifications of the schema",
			"put the values right (--set, --values); --reset-values leaves out those of the last release"},
	} {
		if strings.Contains(text, known.sign) {
			return fmt.Errorf("%s: %w: %s", doing, err, known.advice)
		}
	}
	if strings.Contains(text, "zarf-registry: ") {
		return fmt.Errorf("%s: %w", doing, err) // the chart's own words say what to do
	}
	return fmt.Errorf("%s: %w; run the same command again when that is mended", doing, err)
}
