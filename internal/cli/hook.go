package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/zarf-dev/zarf-registry/internal/certmanager"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/logging"
	"github.com/zarf-dev/zarf-registry/internal/settings"
	"github.com/zarf-dev/zarf-registry/internal/state"
)

// hookFlags are the flags of the commands that the chart's Jobs run, and of those
// that look after certificates and credentials in between. The chart renders them;
// people who run a step by hand may leave out what has a default.
type hookFlags struct {
	settings settings.Settings
	timeout  time.Duration
	access   cluster.Access
	log      logging.Options

	mode, modeSource, ipFamily, ipFamilySource, pauseImageSource, proxyTLS, clusterDomain string

	pki pkiFlags
}

func newPrepare() *cobra.Command { return (&hookFlags{}).prepare() }
func newFinish() *cobra.Command  { return (&hookFlags{}).finish() }
func newCleanup() *cobra.Command { return (&hookFlags{}).cleanup() }

func (f *hookFlags) prepare() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prepare",
		Short: "Make what the chart's objects need: certificates, credentials, payload, desired mode",
		Long: `prepare runs before the chart is applied. It reads the saved state, decides the
mode, looks for everything that would stand in the way, makes certificates and the
credentials, writes the programs' payload into ConfigMaps and records what is desired.
What is already right is left alone, so it can be run again at any time.`,
		Example: `  init-hook prepare --namespace zarf --mode proxy --payload-id 0.1.0 --pause-images registry.k8s.io/pause:3.10.1`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, (*hook.Hook).Prepare)
		},
	}
	f.common(cmd.Flags())
	f.decisions(cmd.Flags())
	return cmd
}

func (f *hookFlags) finish() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "finish",
		Short: "Wait for the rollout, push the project's images, prove a pull on every node, record the mode",
		Long: `finish runs after the chart was applied. It waits for registry and proxies, pushes
the project's own images into the registry, waits until nodes are configured, runs a pod on every node whose image is pulled
through the loopback address, and only then records the mode as current and removes what
another mode left.`,
		Example: `  init-hook finish --namespace zarf --payload-id 0.1.0`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, (*hook.Hook).Finish)
		},
	}
	f.common(cmd.Flags())
	f.decisions(cmd.Flags())
	cmd.Flags().StringSliceVar(&f.settings.Proxy.DaemonSets, "proxies", nil, "the proxy DaemonSets that the chart renders; others of the release are deleted")
	cmd.Flags().StringSliceVar(&f.settings.NodeConfig.DaemonSets, "node-configs", nil, "the DaemonSets that configure nodes, which are waited for (default: all of the release)")
	cmd.Flags().BoolVar(&f.settings.Finish.Verify, "prove", true, "prove by a pull on every node")
	return cmd
}

func (f *hookFlags) cleanup() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "cleanup",
		Short:   "Remove everything that prepare and finish made, except the registry's data",
		Example: `  init-hook cleanup --namespace zarf`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, (*hook.Hook).Cleanup)
		},
	}
	f.common(cmd.Flags())
	// Cleanup puts back what --pod-security-label of prepare changed.
	f.podSecurityLabel(cmd.Flags())
	f.payload(cmd.Flags())
	return cmd
}

// parseJob reads the arguments of a rendered prepare or finish Job, with the
// flags and the checks of the command that the Job runs.
func parseJob(args []string) (settings.Settings, error) {
	f := &hookFlags{}
	commands := map[string]func() *cobra.Command{"prepare": f.prepare, "finish": f.finish}
	if len(args) == 0 || commands[args[0]] == nil {
		return settings.Settings{}, fmt.Errorf("no Job of the chart has the arguments %q", args)
	}
	cmd := commands[args[0]]()
	if err := cmd.ParseFlags(args[1:]); err != nil {
		return settings.Settings{}, fmt.Errorf("the chart gives %s an argument that this init-hook does not know: use the chart of its own release: %w", args[0], err)
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return settings.Settings{}, err
	}
	if err := f.validate(cmd.Flags()); err != nil {
		return settings.Settings{}, &hook.Refused{Err: err}
	}
	return f.settings, nil
}

func (f *hookFlags) common(flags *pflag.FlagSet) {
	f.target(flags)
	progressFlags(flags, &f.log)
}

// target is the release, the cluster, and how long to bother it.
func (f *hookFlags) target(flags *pflag.FlagSet) {
	releaseFlags(flags, &f.settings.Namespace, &f.settings.Release, &f.settings.Name)
	accessFlags(flags, &f.access)
	flags.DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long it may take in all")
}

func (f *hookFlags) decisions(flags *pflag.FlagSet) {
	o := &f.settings
	flags.StringVar(&f.mode, "mode", string(state.ModeProxy), "how nodes reach the registry: proxy, nodeport or external")
	flags.StringVar(&f.modeSource, "mode-source", string(state.SourceValue), "what decided the mode: value, state, cluster or default")
	flags.StringVar(&o.RegistryURL, "registry-url", "", "the external registry, HOST[:PORT][/PATH]")
	flags.IntVar(&o.Port, "port", 31999, "port on each node's loopback address")
	flags.StringVar(&f.ipFamily, "ip-family", string(state.IPv4), "the cluster's: IPv4, IPv6 or DualStack")
	flags.StringVar(&f.ipFamilySource, "ip-family-source", string(state.SourceDefault), "how the IP family is known: value, cluster or default")
	flags.BoolVar(&o.Proxy.HostNetwork, "host-network", false, "proxies use their node's network namespace")
	flags.StringVar(&f.proxyTLS, "proxy-tls", "never", "whether proxies answer TLS on the loopback address: always or never")
	flags.BoolVar(&o.AnonymousPull, "anonymous-pull", false, "pulling through a node port needs no credential")
	f.podSecurityLabel(flags)
	flags.BoolVar(&o.OpenShift, "openshift", false, "pods get their user from the namespace's range, and their rights from SecurityContextConstraints")
	flags.StringSliceVar(&o.Preflight.Ignore, "ignore-preflight", nil, "checks whose blockers count as warnings, or all")
	f.payload(flags)
	flags.StringSliceVar(&o.Injector.PauseImages, "pause-images", nil, "images that injected pods use, the registry's first")
	flags.StringVar(&f.pauseImageSource, "pause-image-source", string(state.SourceDefault), "how the pause images are known: value, cluster or default")
	flags.BoolVar(&o.Push.Images, "push-images", true, "push the project's own images into the registry")
	flags.StringVar(&f.clusterDomain, "cluster-domain", "cluster.local", "the cluster's DNS domain")
	f.pki.register(flags)
	flags.StringSliceVar(&o.NodeConfig.Directories, "node-directories", nil, "directories of nodes that pods of the chart look after files in")
	flags.StringSliceVar(&o.NodeConfig.DirectoriesInUse, "node-directories-in-use", nil, "those of --node-directories that files are written to; in the others former ones are put back")
	flags.StringVar(&o.NodeConfig.RegistriesSecret, "node-registries-secret", "", "Secret of the user with K3s' registries.yaml")
	flags.StringVar(&o.NodeConfig.RegistriesKey, "node-registries-key", "", "its key")
	flags.BoolVar(&o.NodeConfig.CA, "node-ca", false, "the authorities of the proxies' certificates are written to nodes")
	flags.StringVar(&o.Expose.TLSSecret, "expose-tls-secret", "", "Secret of the user with the certificate that clients outside of the cluster see")
	flags.StringVar(&o.Expose.UsersSecret, "expose-users-secret", "", "Secret of the user with users who may only pull from there")
	flags.StringVar(&o.Expose.Address, "expose-address", "", "where those clients find the registry, HOST[:PORT]")
	flags.BoolVar(&o.Finish.LocalRegistryHosting, "local-registry-hosting", false, "tell tools of the registry in the ConfigMap "+hook.HostingNamespace+"/"+hook.HostingName+"; false removes one of this release")
	flags.StringSliceVar(&o.Expose.Hosts, "expose-hosts", nil, "names by which those clients reach the registry")
	flags.StringVar(&o.Push.Secret, "push-secret", "", "Secret of the user with the push credential, which is copied; empty: it is made")
}

// payload is what cleanup needs to know of it, too: pods that put files of nodes back run from it.
func (f *hookFlags) payload(flags *pflag.FlagSet) {
	o := &f.settings
	flags.BoolVar(&o.Injector.Enabled, "injector", true, "programs reach the nodes as payload, not as images")
	flags.StringVar(&o.Injector.PayloadID, "payload-id", "", "part of the payload's names that changes with its content")
	flags.StringSliceVar(&o.Architectures, "architectures", []string{"amd64", "arm64"}, "architectures that the chart renders pods for")
}

func (f *hookFlags) podSecurityLabel(flags *pflag.FlagSet) {
	flags.BoolVar(&f.settings.Preflight.LabelNamespace, "pod-security-label", false, "label the namespace so that Pod Security admits the pods that nodes need; cleanup takes the label back")
}

// releaseFlags name the release whose objects are meant.
func releaseFlags(flags *pflag.FlagSet, namespace, release, name *string) {
	flags.StringVarP(namespace, "namespace", "n", "zarf", "the namespace of the release's objects")
	flags.StringVar(release, "release", "zarf-registry", "the release's name")
	flags.StringVar(name, "name", "zarf-registry", "the chart's full name, from which the names of its objects are made")
}

// accessFlags choose the cluster.
func accessFlags(flags *pflag.FlagSet, access *cluster.Access) {
	flags.StringVar(&access.Kubeconfig, "kubeconfig", "", "kubeconfig file (default: KUBECONFIG, ~/.kube/config, then the pod's service account)")
	flags.StringVar(&access.Context, "context", "", "the kubeconfig's context to use (default: its current one)")
}

// validate rejects what no cluster needs to be asked about, and fills the typed fields of the
// settings.
func (f *hookFlags) validate(flags *pflag.FlagSet) error {
	if f.timeout <= 0 {
		return fmt.Errorf("invalid --timeout %s: want a positive duration", f.timeout)
	}
	s := &f.settings
	if flags.Lookup("mode") == nil {
		return s.ValidateRelease()
	}
	s.Mode, s.ModeSource = state.Mode(f.mode), state.Source(f.modeSource)
	s.IPFamily, s.IPFamilySource = state.IPFamily(f.ipFamily), state.Source(f.ipFamilySource)
	s.Injector.PauseImageSource = state.Source(f.pauseImageSource)
	s.PKI.Source = state.Source(f.pki.source)
	s.Address = s.RegistryURL
	if s.Mode != state.ModeExternal {
		host := map[bool]string{false: "127.0.0.1", true: "::1"}[s.IPFamily == state.IPv6]
		s.Address = net.JoinHostPort(host, strconv.Itoa(s.Port))
		s.PKI.PKI = f.pki.settings(f.clusterDomain, f.proxyTLS == "always")
	}
	return s.Validate()
}

func (f *hookFlags) run(cmd *cobra.Command, phase func(*hook.Hook, context.Context) error) error {
	if err := f.validate(cmd.Flags()); err != nil {
		return &hook.Refused{Err: err}
	}
	log, err := newProgress(cmd.ErrOrStderr(), &f.log)
	if err != nil {
		return &hook.Refused{Err: err}
	}
	c, err := connect(f.access)
	if err != nil {
		return err
	}
	h, err := newHook(cmd.Context(), f.settings, c, log)
	if err != nil {
		return err
	}
	h.Timeout = f.timeout
	return phase(h, cmd.Context())
}

// connection is a cluster, and how it was chosen.
type connection struct {
	access cluster.Access
	config *rest.Config
	client kubernetes.Interface
}

func connect(access cluster.Access) (connection, error) {
	config, client, err := cluster.Connect(access)
	return connection{access, config, client}, err
}

// newHook connects the hook with the cluster and with its registry.
func newHook(ctx context.Context, s settings.Settings, c connection, log *slog.Logger) (*hook.Hook, error) {
	registry, err := newHookRegistry(ctx, s, c, log)
	if err != nil {
		return nil, err
	}
	dynamics, err := dynamic.NewForConfig(c.config)
	if err != nil {
		return nil, fmt.Errorf("using the kubeconfig: %w", err)
	}
	names, err := metadata.NewForConfig(c.config)
	if err != nil {
		return nil, fmt.Errorf("using the kubeconfig: %w", err)
	}
	namespace, core := s.Namespace, c.client.CoreV1()
	return &hook.Hook{
		Settings: s,
		Cluster: hook.Cluster{
			Nodes:           core.Nodes(),
			Namespaces:      core.Namespaces(),
			Secrets:         core.Secrets(namespace),
			ConfigMaps:      core.ConfigMaps(namespace),
			ConfigMapNames:  names.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(namespace),
			Pods:            core.Pods(namespace),
			Events:          core.Events(namespace),
			Deployments:     c.client.AppsV1().Deployments(namespace),
			DaemonSets:      c.client.AppsV1().DaemonSets(namespace),
			Jobs:            c.client.BatchV1().Jobs(namespace),
			Services:        core.Services(namespace),
			ClusterServices: core.Services(metav1.NamespaceAll), ClusterConfigMaps: core.ConfigMaps(hook.HostingNamespace),

			Certificates:        certmanager.Certificates(dynamics, namespace),
			CertificateRequests: certmanager.Requests(dynamics, namespace),
			Issuers:             certmanager.Issuers(dynamics, namespace),
		},
		Programs: carriedPrograms{},
		Registry: registry,
		Log:      log,
		Now:      time.Now,
	}, nil
}
