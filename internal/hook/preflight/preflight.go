package preflight

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/hook/certs"
	"github.com/zarf-dev/zarf-registry/internal/hook/credentials"
	"github.com/zarf-dev/zarf-registry/internal/hook/nodes"
	"github.com/zarf-dev/zarf-registry/internal/hook/payload"
	"github.com/zarf-dev/zarf-registry/internal/hook/steps"
	"github.com/zarf-dev/zarf-registry/internal/hook/userobject"
	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// Severity is the severity of a finding.
type Severity string

// The severities.
const (
	// Blocker means that the release cannot work; nothing is changed.
	Blocker Severity = "blocker"
	// Warning means that the release may not work, or not everywhere.
	Warning Severity = "warning"
)

// Finding is a problem of the cluster or the settings.
type Finding struct {
	// Check is the name of the check, as used in Settings.Preflight.Ignore.
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Object is the affected object: "Service default/web", "node n1".
	Object string `json:"object,omitempty"`
	// Cause says in one sentence what is wrong and what it would lead to.
	Cause string `json:"cause"`
	// Remedy is the command that fixes it, or another way out.
	Remedy string `json:"remedy"`
}

// String formats the finding as one line.
func (f Finding) String() string {
	parts := []string{f.Check, f.Object, f.Cause}
	line := strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
	if f.Remedy != "" {
		line += "; " + f.Remedy
	}
	return strings.ReplaceAll(line, "\n", " ")
}

// The names of the checks.
const (
	checkPodSecurity = "pod-security"
	checkAdmission   = "admission"
	checkAlwaysPull  = "always-pull-images"
	checkPort        = "port"
	checkPortRange   = "port-range"
	checkIPFamily    = "ip-family"
	checkCRIO        = "cri-o"
	checkHostPort    = "host-port"
	checkArch        = "architecture"
	checkPayload     = "payload"
	checkPauseImage  = "pause-image"
	checkPlacement   = "placement"
	checkPriority    = "priority-class"
	checkStorage     = "storage"
	checkZarf        = "zarf"
	// These check what the user provides.
	checkCertificates = "certificates"
	checkCredentials  = "credentials"
	checkNodeConfig   = "nodeConfig"
	checkExpose       = "expose"
)

// Checks returns the names of all checks, which are the valid values of Settings.Preflight.Ignore.
func Checks() []string {
	return []string{
		checkPodSecurity, checkAdmission, checkAlwaysPull, checkPort, checkPortRange,
		checkIPFamily, checkCRIO, checkHostPort, checkArch, checkPayload, checkPauseImage,
		checkPlacement, checkPriority, checkStorage, checkZarf,
		checkCertificates, checkCredentials, checkNodeConfig, checkExpose,
	}
}

// Cluster holds the Kubernetes clients that an Inspection needs. client-go's typed clients satisfy
// each interface.
type Cluster struct {
	Namespaces Namespaces
	// AllServices lists the Services of all namespaces. Services and Pods are scoped to the release's
	// namespace.
	AllServices ServiceLister
	Services    ServiceCreator
	Pods        PodCreator
	// Claims is scoped to the release's namespace.
	Claims         Claims
	StorageClasses StorageClassLister
	Volumes        VolumeLister
	// PriorityClasses is nil if this identity is not meant to read them, as in the Jobs.
	PriorityClasses PriorityClasses
	// Dial connects to an address. Nil if connections are not to be tried.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// InPod means that Dial connects from a pod of the cluster, as the registry will.
	InPod bool
	// KubeletConfig returns the configuration of a node's kubelet, as its endpoint /configz does. Nil if
	// this identity is not meant to read it, as in the Jobs.
	KubeletConfig func(ctx context.Context, node string) ([]byte, error)
}

// Namespaces reads and labels the release's namespace. It is used only with
// Settings.Preflight.LabelNamespace.
type Namespaces interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Namespace, error)
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions,
		subresources ...string) (*corev1.Namespace, error)
}

// ServiceLister lists Services.
type ServiceLister interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.ServiceList, error)
}

// ServiceCreator creates Services, with dry runs only.
type ServiceCreator interface {
	Create(ctx context.Context, service *corev1.Service, opts metav1.CreateOptions) (*corev1.Service, error)
}

// PodCreator creates pods, with dry runs only.
type PodCreator interface {
	Create(ctx context.Context, pod *corev1.Pod, opts metav1.CreateOptions) (*corev1.Pod, error)
}

// Claims reads and deletes PersistentVolumeClaims.
type Claims interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.PersistentVolumeClaim, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// StorageClassLister lists StorageClasses.
type StorageClassLister interface {
	List(ctx context.Context, opts metav1.ListOptions) (*storagev1.StorageClassList, error)
}

// VolumeLister lists PersistentVolumes.
type VolumeLister interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.PersistentVolumeList, error)
}

// PriorityClasses reads PriorityClasses.
type PriorityClasses interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*schedulingv1.PriorityClass, error)
}

// Inspection collects what prepare must know before it changes anything. Its exported fields must
// be set. Look, ReadState, Decide and Check run in this order and fill the fields below.
type Inspection struct {
	*nodes.Observer
	Cluster     Cluster
	Certs       *certs.Manager
	Credentials *credentials.Manager
	Payload     *payload.Seeder
	// NodeConfigData is the data of the rendered Secret with the node configuration. If nil, Check
	// reads it from the Secret that the chart creates for it.
	NodeConfigData map[string][]byte

	// Saved is the saved state, or nil if there is none.
	Saved *state.State
	// Desired is the state that the settings ask for.
	Desired state.Settings

	nodes []corev1.Node
	// nodeConfig is the chart's node configuration. It is empty if there is none or it is invalid.
	nodeConfig noderuntime.Config
}

// Run looks for everything that would prevent prepare and finish from succeeding, and changes
// nothing. It returns all findings, blockers first. An error means that a check could not run, or
// that the settings contradict the saved state.
func (i *Inspection) Run(ctx context.Context) ([]Finding, error) {
	for _, look := range []steps.Work{i.Look, i.ReadState, i.Decide} {
		if _, err := look(ctx); err != nil {
			return nil, err
		}
	}
	return i.inspect(ctx)
}

// Check runs the checks and logs warnings. It returns a Refusal if there are blockers.
func (i *Inspection) Check(ctx context.Context) (string, error) {
	findings, err := i.inspect(ctx)
	if err != nil {
		return "", err
	}
	var blockers []string
	for _, f := range findings {
		if f.Severity == Blocker {
			blockers = append(blockers, "\n  "+f.String())
			continue
		}
		i.Progress.Warn(f.Check, f.Object, f.Cause, f.Remedy)
	}
	if len(blockers) > 0 {
		return "", exitcode.Refuse("nothing was changed, because of:%s", strings.Join(blockers, ""))
	}
	return fmt.Sprintf("found no blockers, %d warnings", len(findings)), nil
}

// inspect runs the checks that apply to the mode.
func (i *Inspection) inspect(ctx context.Context) ([]Finding, error) {
	for _, name := range i.Settings.Preflight.Ignore {
		if name != settings.IgnoreAll && !slices.Contains(Checks(), name) {
			return nil, exitcode.Refuse("invalid --ignore-preflight %q: want %s, or %s", name,
				strings.Join(Checks(), ", "), settings.IgnoreAll)
		}
	}
	ours := i.Settings.Mode != state.ModeExternal
	looks := []func(context.Context) ([]Finding, error){i.lookAtNodeConfig}
	if ours {
		looks = append(looks, i.lookAtServices, i.certificates, i.pushSecret, i.lookAtExposure,
			i.lookAtStorage, i.lookAtS3)
	}
	if ours || i.Settings.ConfiguresNodes() {
		looks = append(looks, i.lookAtPriorityClasses, i.tryPods, i.lookAtKubelets)
	}
	var findings []Finding
	for _, look := range looks {
		found, err := look(ctx)
		if err != nil {
			return nil, err
		}
		findings = append(findings, found...)
	}
	if ours {
		findings = slices.Concat(findings, i.ipv6(), i.criO(), i.hostPort())
	}
	if ours || i.Settings.ConfiguresNodes() {
		findings = slices.Concat(findings, i.architecture(), i.pauseImage(), i.placement())
	}
	findings = distinct(findings)
	for n, f := range findings {
		if i.Settings.Preflight.Ignores(f.Check) {
			findings[n].Severity = Warning
		}
	}
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity, b.Severity), // "blocker" sorts before "warning"
			cmp.Compare(slices.Index(Checks(), a.Check), slices.Index(Checks(), b.Check)))
	})
	return findings, nil
}

// distinct leaves out findings that several checks, or several pods, have in common.
func distinct(findings []Finding) []Finding {
	seen := map[Finding]bool{}
	return slices.DeleteFunc(findings, func(f Finding) bool {
		again := seen[f]
		seen[f] = true
		return again
	})
}

// certificates checks the Secrets that certificates are issued or copied from.
func (i *Inspection) certificates(ctx context.Context) ([]Finding, error) {
	problems, err := i.Certs.Problems(ctx, i.Settings.Certificates())
	return blockers(checkCertificates, problems), err
}

// pushSecret checks the user's Secret with the push credential.
func (i *Inspection) pushSecret(ctx context.Context) ([]Finding, error) {
	if i.Settings.Push.Secret == "" {
		return nil, nil
	}
	problems, err := i.Credentials.Problems(ctx, i.Settings.Push.Secret)
	return blockers(checkCredentials, problems), err
}

func blockers(check string, problems []userobject.Problem) []Finding {
	var out []Finding
	for _, p := range problems {
		out = append(out, Finding{Check: check, Severity: Blocker, Object: p.Object, Cause: p.Cause, Remedy: p.Remedy})
	}
	return out
}
