// Package hook implements the commands of the chart's Jobs, and connects their hook with a cluster for commands that
// do the same from a workstation.
package hook

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/client/clientset/versioned/typed/certmanager/v1"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/cluster/programs"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/hook/certs/certmanager"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodeport"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/hook/payload"
	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
)

// exitCodes ends the help of a Job's command.
const exitCodes = `

Exit codes: 0 on success, 1 on failure or timeout, 3 if a retry would fail in the same way.`

// Flags are the flags of the commands that the chart's Jobs run, and of those that look after
// certificates and credentials between upgrades.
type Flags struct {
	*cmdflags.Global
	Settings settings.Settings
	document string // of the settings, as the chart renders it
	Timeout  time.Duration
	// InCluster means that the chart runs the command, in the pod of a Job.
	InCluster bool
}

func NewFlags(global *cmdflags.Global) *Flags { return &Flags{Global: global} }

// Jobs returns the commands of the chart's Jobs.
func Jobs(global *cmdflags.Global) []*cobra.Command {
	return []*cobra.Command{
		NewFlags(global).job("prepare", (*hook.Hook).Prepare,
			"Create what the chart's objects need: certificates, credentials, payload, desired mode",
			`prepare runs before the chart is applied. It reads the saved state, checks for everything that
would prevent the installation, creates certificates and credentials, writes the programs' payload
into ConfigMaps and records the desired mode. It does not change what is already right, so it can
run again at any time.`),
		NewFlags(global).job("rollback", (*hook.Hook).Rollback,
			"Let Helm create again what the revision before a rollback lacks",
			`rollback runs before helm rollback applies a revision, after prepare. A switch away from proxy mode keeps the
proxies' DaemonSets, and Helm 3 refuses to take back objects that exist. So rollback deletes the DaemonSets without
their pods, which go on serving, and Helm's new DaemonSets adopt them. It refuses where a volume claim is such an
object.`),
		NewFlags(global).job("finish", (*hook.Hook).Finish,
			"Wait for the rollout, push the project's images, verify a pull on every node, record the mode",
			`finish runs after the chart is applied. It waits for the registry and the proxies, pushes the
project's own images into the registry, waits until nodes are configured, and runs a pod on every
node whose image is pulled through the loopback address. Only then does it record the mode as
current and remove what the previous mode left.`),
		NewFlags(global).cleanup(),
	}
}

// job returns the command of a Job that needs all settings.
func (f *Flags) job(name string, phase func(*hook.Hook, context.Context) error, short, long string) *cobra.Command {
	cmd := &cobra.Command{
		Use: name, Short: short, Long: long + exitCodes, Args: cobra.NoArgs,
		Example: fmt.Sprintf(`  zarf-registry %s --settings "$(cat settings.json)"`, name),
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.Run(cmd, phase) },
	}
	f.settingsFlag(cmd.Flags())
	_ = cmd.MarkFlagRequired("settings") // fails only for an unknown flag
	f.limits(cmd.Flags())
	return cmd
}

func (f *Flags) cleanup() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that prepare and finish created, except the registry's data",
		Long: `cleanup runs before the release is uninstalled. After helm uninstall --no-hooks, run it by hand: the
name of the release replaces the settings of the chart.` + exitCodes,
		Example: `  zarf-registry cleanup --namespace zarf`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.Run(cmd, (*hook.Hook).Cleanup) },
	}
	flags := cmd.Flags()
	f.Target(flags)
	flags.BoolVar(&f.Settings.Preflight.LabelNamespace, "pod-security-label", false,
		"restore the Pod Security label of the namespace that prepare changed")
	f.settingsFlag(flags)
	return cmd
}

func (f *Flags) settingsFlag(flags *pflag.FlagSet) {
	flags.StringVar(&f.document, "settings", "",
		"decisions of the chart, as JSON: what it renders into the arguments of its Jobs")
}

// Target adds the flags of commands that need only the names of the release.
func (f *Flags) Target(flags *pflag.FlagSet) {
	cmdflags.AddName(flags, &f.Settings.Name)
	f.limits(flags)
}

// limits adds the flags that bound the run.
func (f *Flags) limits(flags *pflag.FlagSet) {
	cmdflags.AddTimeout(flags, &f.Timeout, 5*time.Minute)
	// A toolbox pod, or that of a CI system, has neither the rights nor the network policies of the chart's Jobs.
	flags.BoolVar(&f.InCluster, "in-cluster", false, "the command runs in a Job of the chart")
	_ = flags.MarkHidden("in-cluster") // fails only for an unknown flag
}

// validate rejects flags that are wrong in any cluster, and reads the settings.
func (f *Flags) validate(flags *pflag.FlagSet) error {
	if named := flags.Lookup("name") != nil; named && f.document == "" {
		f.Settings.Namespace, f.Settings.Release = f.Namespace, f.Release
		return f.Settings.ValidateRelease()
	}
	for _, name := range []string{"namespace", "release", "name", "pod-security-label"} {
		if flags.Changed(name) {
			return fmt.Errorf("--settings cannot be combined with --%s", name)
		}
	}
	var err error
	if f.Settings, err = settings.Parse([]byte(f.document)); err != nil {
		return fmt.Errorf("invalid --settings: %w", err)
	}
	return nil
}

func (f *Flags) Run(cmd *cobra.Command, phase func(*hook.Hook, context.Context) error) error {
	if err := f.validate(cmd.Flags()); err != nil {
		return exitcode.Usage(err)
	}
	log, progress := f.Observe(cmd.ErrOrStderr())
	c, err := connect(f.Access)
	if err != nil {
		return err
	}
	c.inCluster = f.InCluster
	ctx, stop := cmd.Context(), context.CancelFunc(func() {})
	if f.InCluster && f.document != "" {
		ctx, stop = f.limitByJob(ctx, c.Client, f.Settings.Name+"-"+cmd.Name(), log)
	}
	defer stop()
	h, err := New(ctx, f.Settings, c, log, progress)
	if err != nil {
		return err
	}
	h.Timeout = f.Timeout
	return phase(h, ctx)
}

// limitByJob bounds a run of a Job. All attempts share the Job's time: one that exceeded its deadline would lose its
// pod and log. When the time is over, another attempt would have none, so the cause is a refusal.
func (f *Flags) limitByJob(ctx context.Context, client kubernetes.Interface, name string, log *slog.Logger) (
	context.Context, context.CancelFunc,
) {
	begin, err := startOfJob(ctx, client, f.Settings.Namespace, name)
	if err != nil {
		log.Warn("cannot read this run's Job: the time limit begins now, although there may have been other attempts",
			"job", name, "error", err.Error())
		begin = time.Now()
	}
	return context.WithDeadlineCause(ctx, begin.Add(f.Timeout),
		exitcode.Refuse("not done within %s of the start of Job %s/%s, including earlier attempts; their pods have their "+
			"logs", f.Timeout, f.Settings.Namespace, name))
}

// startOfJob returns when a Job started, by this node's clock, which may be minutes off from that of the control plane:
// only times of the same clock are compared. The pod of this run is the Job's newest.
func startOfJob(ctx context.Context, client kubernetes.Interface, namespace, name string) (time.Time, error) {
	job, err := client.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, err
	}
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: batchv1.JobNameLabel + "=" + name})
	if err != nil {
		return time.Time{}, err
	}
	pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.Status.StartTime == nil })
	if len(pods.Items) == 0 || job.Status.StartTime == nil {
		return time.Now(), nil
	}
	own := slices.MaxFunc(pods.Items, func(a, b corev1.Pod) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return own.Status.StartTime.Add(job.Status.StartTime.Sub(own.CreationTimestamp.Time)), nil
}

// Connection is a cluster.
type Connection struct {
	Config    *rest.Config
	Client    kubernetes.Interface
	inCluster bool // this process runs in a Job of the chart
}

func connect(access cluster.Access) (Connection, error) {
	config, client, err := cluster.Connect(access)
	return Connection{Config: config, Client: client}, err
}

// kubeletConfig returns a function that reads the configuration of a node's kubelet, or nil in a Job, which has no
// right to nodes/proxy, because that allows much more.
func (c Connection) kubeletConfig() func(ctx context.Context, node string) ([]byte, error) {
	if c.inCluster {
		return nil
	}
	return func(ctx context.Context, node string) ([]byte, error) {
		return c.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("configz").
			DoRaw(ctx)
	}
}

// Connect validates the flags and connects to the cluster. The context ends after
// --timeout.
func (f *Flags) Connect(cmd *cobra.Command) (context.Context, Connection, func(), error) {
	if err := f.validate(cmd.Flags()); err != nil {
		return nil, Connection{}, nil, exitcode.Usage(err)
	}
	c, err := connect(f.Access)
	if err != nil {
		return nil, Connection{}, nil, err
	}
	ctx, stop := cmdflags.WithTimeout(cmd.Context(), f.Timeout)
	return ctx, c, stop, nil
}

// New connects the hook with the cluster and with its registry.
func New(ctx context.Context, s settings.Settings, c Connection, log *slog.Logger, progress release.Progress) (
	*hook.Hook, error) {
	registry, err := programs.New(ctx, s, c.Config, c.Client, c.inCluster, log)
	if err != nil {
		return nil, err
	}
	certManager, err := certmanagerv1.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("using the kubeconfig: %w", err)
	}
	metadataOnly, err := metadata.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("using the kubeconfig: %w", err)
	}
	namespace, core, apps := s.Namespace, c.Client.CoreV1(), c.Client.AppsV1()
	var priorityClasses preflight.PriorityClasses
	if !c.inCluster {
		priorityClasses = c.Client.SchedulingV1().PriorityClasses()
	}
	return &hook.Hook{
		Settings: s,
		Cluster: hook.Cluster{
			Secrets: core.Secrets(namespace),
			Nodes: nodes.Cluster{
				Nodes: core.Nodes(), Pods: core.Pods(namespace), Events: core.Events(namespace),
				DaemonSets: apps.DaemonSets(namespace),
			},
			CertManager: certmanager.Cluster{
				Certificates:        certManager.Certificates(namespace),
				CertificateRequests: certManager.CertificateRequests(namespace),
				Issuers:             certManager.Issuers(namespace),
			},
			RefreshPods: core.Pods(namespace),
			Payload: payload.Cluster{
				ConfigMaps:     core.ConfigMaps(namespace),
				ConfigMapNames: metadataOnly.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(namespace),
				Pods:           core.Pods(namespace),
			},
			Preflight: preflight.Cluster{
				Namespaces: core.Namespaces(), AllServices: core.Services(metav1.NamespaceAll), Services: core.Services(namespace),
				Pods: core.Pods(namespace), KubeletConfig: c.kubeletConfig(),
				Claims: core.PersistentVolumeClaims(namespace), Volumes: core.PersistentVolumes(),
				StorageClasses:  c.Client.StorageV1().StorageClasses(),
				PriorityClasses: priorityClasses,
				Dial:            (&net.Dialer{}).DialContext, InPod: c.inCluster,
			},
			VerifyPods:  core.Pods(namespace),
			Deployments: apps.Deployments(namespace),
			Jobs:        c.Client.BatchV1().Jobs(namespace),
			NodePort: nodeport.Cluster{Services: core.Services(namespace),
				EndpointSlices: c.Client.DiscoveryV1().EndpointSlices(namespace)},
			HostingConfigMaps: core.ConfigMaps(hook.HostingNamespace),
		},
		Programs: programs.Embedded{},
		Registry: registry,
		Log:      log,
		Progress: progress,
		Now:      time.Now,
	}, nil
}
