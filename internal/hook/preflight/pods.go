package preflight

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zarf-dev/zarf-registry/internal/release"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
	"github.com/zarf-dev/zarf-registry/internal/release/state"
)

// accountTime bounds the wait for the default ServiceAccount of a new namespace. The API server
// admits no pod before it exists.
const accountTime = 10 * time.Second

// tryPods creates the chart's pods with a dry run, to see whether the API server would reject or
// change them.
func (i *Inspection) tryPods(ctx context.Context) ([]Finding, error) {
	var pods []*corev1.Pod
	if i.Settings.Mode != state.ModeExternal {
		pods = append(pods, i.newPod(names.ComponentRegistry))
	}
	pods = append(pods, i.privilegedPods()...)
	for _, w := range i.Settings.Workloads {
		switch w.Component {
		case names.ComponentRegistry, names.ComponentProxy, names.ComponentNodeConfig:
		default:
			pods = append(pods, i.newPod(w.Component))
		}
	}
	var findings []Finding
	for _, pod := range pods {
		what := strings.ReplaceAll(pod.Spec.Containers[0].Name, "-", " ")
		answer, err := i.tryPod(ctx, pod)
		violation, violated := podSecurity(err)
		f := Finding{Check: checkAdmission, Severity: Blocker, Object: "namespace " + i.Settings.Namespace}
		switch {
		case err == nil:
			findings = append(findings, i.changed(pod, answer)...)
			continue
		case priorityClassMissing(err):
			findings = append(findings, i.missingPriorityClass(pod.Spec.PriorityClassName))
			continue
		case namespaceMissing(err): // prepare runs in it, and checks again
			return findings, nil
		case i.Settings.OpenShift && constrained(err) && grantedByChart(pod):
			continue
		case constrained(err):
			f.Cause = fmt.Sprintf("OpenShift's SecurityContextConstraints reject the pods of the %s: %s", what, err)
			f.Remedy = "--set openshift.enabled=true, which binds those that are needed; or bind them to its ServiceAccounts"
		case violated && i.Settings.LabelsNamespace(), noDryRun(err):
			continue
		case violated:
			f.Check = checkPodSecurity
			f.Cause = fmt.Sprintf("Pod Security rejects the pods of the %s: %s", what, violation)
			f.Remedy = fmt.Sprintf("kubectl label --overwrite namespace %s %s=%s, or --set podSecurity.label=true",
				i.Settings.Namespace, labelEnforce, levelPrivileged)
		case release.MissingPermission(err):
			return nil, fmt.Errorf("trying a pod of the %s with a dry run: %w", what, release.RefuseForbidden(err))
		case i.Saved != nil && release.QuotaExceeded(err):
			f.Severity = Warning // the pods that the new ones replace count, too
			f.Cause = fmt.Sprintf("its quota has no room for another pod of the %s: %s", what, err)
			f.Remedy = "continue if new pods replace those that run now, as the registry's do; otherwise raise the quota"
		case refusal(err):
			f.Cause = fmt.Sprintf("it rejects the pods of the %s: %s", what, err)
			f.Remedy = "change the policy, quota or webhook that it names, or exempt the namespace from it"
		default:
			return nil, fmt.Errorf("trying a pod of the %s with a dry run: %w", what, err)
		}
		findings = append(findings, f)
	}
	return findings, nil
}

// changed finds changes by admission that break the injector.
func (i *Inspection) changed(asked, answer *corev1.Pod) []Finding {
	if !i.Settings.Injector.Enabled || len(answer.Spec.Containers) == 0 {
		return nil
	}
	var findings []Finding
	container, object := answer.Spec.Containers[0], "namespace "+i.Settings.Namespace
	if container.ImagePullPolicy == corev1.PullAlways {
		findings = append(findings, Finding{Check: checkAlwaysPull, Severity: Blocker, Object: object,
			Cause: "admission (AlwaysPullImages or a webhook) forces every pod to pull its image, but nodes cannot pull the " +
				"pause image that injected pods use",
			Remedy: "exempt the namespace from it, or --set injector.enabled=false where nodes can pull the project's images"})
	}
	if image := asked.Spec.Containers[0].Image; container.Image != image {
		findings = append(findings, Finding{Check: checkAdmission, Severity: Warning, Object: object,
			Cause: fmt.Sprintf("a webhook changes the image %s to %s, which nodes may not have, so injected pods may not start",
				image, container.Image),
			Remedy: "exempt the namespace from it"})
	}
	return findings
}

func (i *Inspection) tryPod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	for begin := time.Now(); ; {
		var answer *corev1.Pod
		err := release.RetryOverload(ctx, func() (err error) {
			answer, err = i.Cluster.Pods.Create(ctx, pod, dryRun)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "error looking up service account") ||
			time.Since(begin) > accountTime {
			return answer, err
		}
		if sleepErr := release.Sleep(ctx, release.PollInterval); sleepErr != nil {
			return nil, err
		}
	}
}

// constrained recognizes a rejection by OpenShift's SecurityContextConstraints.
func constrained(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "security context constraint")
}

// grantedByChart reports whether the chart binds a constraint to the ServiceAccount of such pods.
// The binding does not exist yet when the pod is tried.
func grantedByChart(pod *corev1.Pod) bool {
	name := pod.Spec.Containers[0].Name
	return name == names.ComponentProxy || name == names.ComponentNodeConfig
}

// podSecurity returns the violation that Pod Security reports for a pod: `"baseline:latest":
// hostPort (container "proxy" uses hostPort 31999)`.
func podSecurity(err error) (violation string, violated bool) {
	if !apierrors.IsForbidden(err) {
		return "", false
	}
	_, violation, violated = strings.Cut(err.Error(), "violates PodSecurity ")
	return violation, violated
}

// proxyLike returns a pod that admission treats like the proxies.
func (i *Inspection) proxyLike() *corev1.Pod {
	pod := i.newPod(names.ComponentProxy)
	if i.Settings.Proxy.HostNetwork || i.Settings.IPFamily == state.IPv6 {
		pod.Spec.HostNetwork = true
		pod.Spec.DNSPolicy = corev1.DNSClusterFirstWithHostNet
		return pod
	}
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "registry", ContainerPort: 5000, HostIP: "127.0.0.1",
		HostPort: int32(i.Settings.Port), Protocol: corev1.ProtocolTCP}}
	return pod
}

// nodeConfigLike returns a pod that admission treats like the pods that configure nodes.
func (i *Inspection) nodeConfigLike() *corev1.Pod {
	pod := i.newPod(names.ComponentNodeConfig)
	// The directories belong to root on the nodes.
	security := pod.Spec.SecurityContext
	security.RunAsUser, security.RunAsGroup, security.RunAsNonRoot = new(int64), new(int64), new(false)
	for n, directory := range i.Settings.NodeConfig.Directories {
		name := fmt.Sprintf("host-%d", n)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name,
			VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: directory}}})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts,
			corev1.VolumeMount{Name: name, MountPath: "/host" + directory})
	}
	return pod
}

// privilegedPods returns pods that need the Pod Security level privileged.
func (i *Inspection) privilegedPods() []*corev1.Pod {
	var pods []*corev1.Pod
	if i.Settings.Mode == state.ModeProxy {
		pods = append(pods, i.proxyLike())
	}
	if i.Settings.ConfiguresNodes() {
		pods = append(pods, i.nodeConfigLike())
	}
	return pods
}

// newPod returns a pod that admission treats like those of a component.
func (i *Inspection) newPod(component string) *corev1.Pod {
	image := "ghcr.io/zarf-dev/zarf-registry/registry-node" // the chart's image without the injector
	if component == names.ComponentRegistry {
		image = "ghcr.io/zarf-dev/zarf-registry/registry"
	}
	for _, architecture := range i.Architectures() {
		if pause := i.Settings.Injector.PauseImages[architecture]; i.Settings.Injector.Enabled && pause.Reference != "" {
			image = pause.Reference
		}
	}
	w, _ := i.Settings.Workload(component)
	scheduling, _, _ := w.Decode() // placement reports what cannot be decoded
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: i.Settings.Name + "-preflight-",
			Namespace:    i.Settings.Namespace,
			Labels:       i.PodLabels(component),
		},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(false),
			PriorityClassName:            w.PriorityClassName,
			NodeSelector:                 w.NodeSelector,
			Tolerations:                  scheduling.Tolerations,
			SecurityContext:              i.RestrictedPod(),
			Containers: []corev1.Container{{
				Name: component, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				SecurityContext: release.RestrictedContainer(),
				Resources:       scheduling.Resources,
			}},
		},
	}
}
