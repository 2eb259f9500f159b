package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"helm.sh/helm/v3/pkg/chart"
	helmcli "helm.sh/helm/v3/pkg/cli"
	helmvalues "helm.sh/helm/v3/pkg/cli/values"
	"helm.sh/helm/v3/pkg/getter"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/hook"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/install"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
	"github.com/zarf-dev/zarf-registry/internal/version"
)

// chartFlags name the release, and the values as in helm.
type chartFlags struct {
	*cmdflags.Global
	chart, output string

	values        helmvalues.Options
	registryProxy bool
	registryURL   string
	resetValues   bool
}

type installFlags struct {
	chartFlags
	timeout         time.Duration
	createNamespace bool
	dryRun          bool
}

func newInstall(global *cmdflags.Global) *cobra.Command {
	f := &installFlags{chartFlags: chartFlags{Global: global}}
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install, upgrade or switch; nodes need no image but pause",
		Long: `install runs the embedded chart's hook Jobs and helm from this machine: preflight,
certificates, payload, the chart itself, the push of the project's images, and a verified
pull on every node. Nodes need no image but pause, not even this program's.

The release is an ordinary one: helm upgrade, helm rollback and helm uninstall can continue
it. An existing release is upgraded; it keeps its values, and the given ones override them.
To continue an interrupted run, run the same command again.

--dry-run renders the chart, and checks the cluster for everything that would prevent an
installation or upgrade. It changes nothing. Each finding has a cause and a remedy.

Without --registry-proxy and --registry-url the mode does not change; a new cluster gets
nodeport mode, or proxy mode if node ports cannot work there.

Exit codes: 0 on success, 1 on failure or timeout, 3 if the flags, the values or the cluster do
not allow it, also with --dry-run.`,
		Example: `  zarf-registry install --registry-proxy
  zarf-registry install --namespace zarf --values values.yaml --set registry.persistence.size=100Gi
  zarf-registry install --registry-proxy=false             # switch to nodeport mode
  zarf-registry install --registry-url registry.example.com/team
  zarf-registry install --registry-proxy --dry-run       # preflight: changes nothing`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.register(cmd)
	cmdflags.AddTimeout(cmd.Flags(), &f.timeout, 10*time.Minute)
	cmd.Flags().BoolVar(&f.createNamespace, "create-namespace", true, "create the namespace if it does not exist")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "render the chart and check the cluster, without changing anything")
	return cmd
}

func (f *chartFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&f.registryProxy, "registry-proxy", false,
		"how nodes reach the registry: a proxy on each node (true) or a node port (false) (default: do not change the mode)")
	flags.StringVar(&f.registryURL, "registry-url", "", "use the external registry HOST[:PORT][/PATH] and deploy none")
	flags.StringArrayVar(&f.values.Values, "set", nil, "set values: path=value, several separated by commas")
	flags.StringArrayVar(&f.values.StringValues, "set-string", nil, "set string values")
	flags.StringArrayVar(&f.values.FileValues, "set-file", nil, "set values from files: path=file")
	flags.StringSliceVarP(&f.values.ValueFiles, "values", "f", nil,
		"values `FILE` or URL; can be repeated, the last one wins")
	flags.BoolVar(&f.resetValues, "reset-values", false, "ignore the values of the last release")
	flags.StringVar(&f.chart, "chart", "", "chart to use, a `DIRECTORY` or .tgz (default: the embedded one)")
	cmdflags.AddOutput(cmd, &f.output)
}

// validate rejects flags that are wrong in any cluster.
func (f *chartFlags) validate() error {
	named := settings.Settings{Namespace: f.Namespace, Release: f.Release, Name: names.Chart}
	errs := []error{named.ValidateRelease()}
	// Helm would look for the release elsewhere.
	if d := os.Getenv("HELM_DRIVER"); d != "" && d != "secret" && d != "secrets" {
		errs = append(errs,
			fmt.Errorf("HELM_DRIVER is %q: zarf-registry stores releases only in Secrets: unset it or use helm", d))
	}
	return errors.Join(errs...)
}

// merged returns the user's values. A mode flag resets the values of the last release for the other modes.
// The chart rejects contradictions within one run.
func (f *chartFlags) merged(flags *pflag.FlagSet) (map[string]any, error) {
	values, err := f.values.MergeValues(getter.All(helmcli.New()))
	if err != nil {
		return nil, fmt.Errorf("reading the values: %w", err)
	}
	unlessGiven := func(key string, value any) {
		if _, given := values[key]; !given {
			values[key] = value
		}
	}
	if flags.Changed("registry-proxy") {
		values["registryProxy"] = f.registryProxy
	}
	if flags.Changed("registry-url") {
		values["registryURL"] = f.registryURL
	}
	switch {
	case flags.Changed("registry-url") && f.registryURL != "":
		unlessGiven("registryProxy", nil)
	case flags.Changed("registry-proxy"):
		unlessGiven("registryURL", "")
	}
	return values, nil
}

// installer returns an installer for validated flags.
func (f *chartFlags) installer(cmd *cobra.Command) (*install.Installer, error) {
	if err := f.validate(); err != nil {
		return nil, exitcode.Usage(err)
	}
	log, progress := f.Observe(cmd.ErrOrStderr())
	values, err := f.merged(cmd.Flags())
	if err != nil {
		return nil, exitcode.Usage(err)
	}
	c, err := install.LoadChart(f.chart)
	if err != nil {
		return nil, exitcode.Usage(err)
	}
	if c.AppVersion() != version.Version {
		log.Warn("the versions of chart and program differ", "chart", c.AppVersion(), "program", version.Version)
	}
	// Each warning of the API server is printed once, and not in klog's format.
	rest.SetDefaultWarningHandler(rest.NewWarningWriter(cmd.ErrOrStderr(), rest.WarningWriterOptions{Deduplicate: true}))
	config, client, err := cluster.Connect(f.Access)
	if err != nil {
		return nil, err
	}
	helm, err := install.Connect(config, f.Namespace, log)
	if err != nil {
		return nil, err
	}
	return &install.Installer{
		Options: install.Options{
			Namespace: f.Namespace, Release: f.Release,
			Chart: c, Values: values, ResetValues: f.resetValues,
		},
		Helm:   helm,
		Client: client,
		Parse:  settings.OfJob,
		NewHook: func(ctx context.Context, s settings.Settings, nodeConfig map[string][]byte) (install.Hook, error) {
			h, err := hook.New(ctx, s, hook.Connection{Config: config, Client: client}, log, progress)
			if err != nil {
				return nil, err
			}
			h.NodeConfigData, h.FinishFollows = nodeConfig, true
			h.Again = "install" + cmdflags.ReleaseArguments(f.Namespace, f.Release, names.Chart)
			return h, nil
		},
		Log: log, Progress: progress,
		Now: time.Now,
	}, nil
}

func (f *installFlags) run(cmd *cobra.Command) error {
	i, err := f.installer(cmd)
	if err != nil {
		return err
	}
	i.Options.CreateNamespace, i.Options.Timeout = f.createNamespace, f.timeout
	if f.dryRun {
		ctx, cancel := cmdflags.WithTimeout(cmd.Context(), f.timeout)
		defer cancel()
		return f.plan(ctx, cmd.OutOrStdout(), i)
	}
	result, err := i.Run(cmd.Context())
	if err != nil {
		return err
	}
	return f.printResult(cmd.OutOrStdout(), result)
}

// plan prints what the installer would do, and returns a silent error if the cluster does not allow it.
func (f *chartFlags) plan(ctx context.Context, w io.Writer, i *install.Installer) error {
	plan, err := i.Plan(ctx)
	if err != nil {
		return err
	}
	return f.printPlan(w, i.Options.Chart, plan)
}

// printedPlan is what install --dry-run prints as data.
type printedPlan struct {
	Mode     state.Mode          `json:"mode"`
	Address  string              `json:"address"`
	Findings []preflight.Finding `json:"findings"`
	Upgrade  bool                `json:"upgrade"`
	Chart    string              `json:"chart"`
	Manifest string              `json:"manifest"`
}

func (f *chartFlags) printPlan(w io.Writer, c *chart.Chart, plan *install.Plan) error {
	blockers := len(install.Blockers(plan.Findings))
	if render.IsData(f.output) {
		printed := printedPlan{Mode: plan.Settings.Mode, Address: plan.Settings.Address,
			Findings: append([]preflight.Finding{}, plan.Findings...),
			Upgrade:  plan.Upgrade, Chart: c.Metadata.Version, Manifest: plan.Manifest}
		if err := render.Data(w, f.output, render.InstallationPlan, printed); err != nil {
			return err
		}
	} else {
		action := "install"
		if plan.Upgrade {
			action = "upgrade"
		}
		fmt.Fprintf(w, "Dry run: would %s release %s in namespace %s with chart %s.\n", action, f.Release, f.Namespace,
			c.Metadata.Version)
		fmt.Fprintln(w, plan.Settings.Decision()+".")
		for _, line := range plan.Settings.Injector.Decisions() {
			fmt.Fprintln(w, line+".")
		}
		printFindings(w, plan.Findings)
		fmt.Fprintf(w, "\nblockers: %d, warnings: %d; no changes were made\n", blockers, len(plan.Findings)-blockers)
	}
	if blockers > 0 {
		return &render.SilentError{Code: exitcode.Refused, Err: fmt.Errorf("%d blockers", blockers)}
	}
	return nil
}

func printFindings(w io.Writer, findings []preflight.Finding) {
	for _, f := range findings {
		fmt.Fprintf(w, "\n%-8s %s", f.Severity, f.Check)
		if f.Object != "" {
			fmt.Fprintf(w, ": %s", f.Object)
		}
		fmt.Fprintf(w, "\n  cause:  %s\n  remedy: %s\n", indented(f.Cause), indented(f.Remedy))
	}
}

// indented aligns the second and later lines of a text with its first.
func indented(text string) string { return strings.ReplaceAll(text, "\n", "\n          ") }

// printedResult is what install prints as data.
type printedResult struct {
	Namespace  string     `json:"namespace"`
	Release    string     `json:"release"`
	Revision   int        `json:"revision"`
	Upgraded   bool       `json:"upgraded"`
	Chart      string     `json:"chart"`
	AppVersion string     `json:"appVersion"`
	Mode       state.Mode `json:"mode"`
	Address    string     `json:"address"`
	// PullSecret is the Secret that pods need a copy of, empty if they need none.
	PullSecret string `json:"pullSecret,omitempty"`
}

var resultText = template.Must(
	template.New("").Parse(`zarf-registry {{.AppVersion}} is {{if .Upgraded}}upgraded{{else}}installed{{end}}: {{.Mode}} mode, release {{.Release}} in namespace {{.Namespace}}, revision {{.Revision}}.
{{if eq .Mode "external"}}
Images come from {{.Address}}.
{{else}}
Images come from {{.Address}} on every node:

  push   zarf-registry images push{{.Flags}} ARCHIVE...
  use    image: {{.Address}}/REPOSITORY:TAG
{{- if .PullSecret}}
         imagePullSecrets: [{name: {{.PullSecret}}}], after copying Secret {{.Objects}}/{{.PullSecret}} to the pod's namespace
{{- end}}
{{- end}}
  check  zarf-registry status{{.Flags}}
`))

func (f *chartFlags) printResult(w io.Writer, result *install.Result) error {
	o := result.Settings
	printed := printedResult{
		Namespace: f.Namespace, Release: f.Release, Revision: result.Revision, Upgraded: result.Upgraded,
		Chart: result.ChartVersion, AppVersion: result.AppVersion, Mode: o.Mode, Address: o.Address,
	}
	if o.Mode == state.ModeNodePort && !o.AnonymousPull {
		printed.PullSecret = o.Name + names.SuffixPull
	}
	if render.IsData(f.output) {
		return render.Data(w, f.output, render.Installation, printed)
	}
	return resultText.Execute(w, struct {
		printedResult
		Objects, Flags string // Objects is the namespace of the objects
	}{printed, o.Namespace, cmdflags.ReleaseArguments(o.Namespace, o.Release, o.Name)})
}
