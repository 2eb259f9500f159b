package templates

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/release/names"
)

// workload is an object that creates pods, or a pod.
type workload struct {
	object   object
	selector *metav1.LabelSelector // nil for Jobs, CronJobs and pods
	pod      corev1.PodTemplateSpec
}

func workloads(out *output) []workload {
	var found []workload
	for _, o := range out.objects {
		switch typed := o.typed.(type) {
		case *appsv1.Deployment:
			found = append(found, workload{o, typed.Spec.Selector, typed.Spec.Template})
		case *appsv1.DaemonSet:
			found = append(found, workload{o, typed.Spec.Selector, typed.Spec.Template})
		case *batchv1.Job:
			found = append(found, workload{o, nil, typed.Spec.Template})
		case *batchv1.CronJob:
			found = append(found, workload{o, nil, typed.Spec.JobTemplate.Spec.Template})
		case *corev1.Pod:
			found = append(found, workload{o, nil, corev1.PodTemplateSpec{ObjectMeta: typed.ObjectMeta, Spec: typed.Spec}})
		}
	}
	return found
}

func (w workload) component() string { return w.pod.Labels["app.kubernetes.io/component"] }

// ofNodes reports whether the pods write or restore files of their node.
func (w workload) ofNodes() bool { return strings.HasPrefix(w.component(), "node-") }

// program returns the container that runs a program of this project.
func (w workload) program() corev1.Container {
	if w.ofNodes() {
		return w.pod.Spec.InitContainers[0]
	}
	return w.pod.Spec.Containers[0]
}

// ofComponent returns the objects of a type that belong to a component.
func ofComponent[T interface {
	kruntime.Object
	metav1.Object
}](out *output, component string) []T {
	return slices.DeleteFunc(all[T](out), func(o T) bool { return o.GetLabels()[names.LabelComponent] != component })
}

func daemonSets(out *output, component string) []*appsv1.DaemonSet {
	return ofComponent[*appsv1.DaemonSet](out, component)
}

// clusterScoped reports whether objects of this kind belong to no namespace.
func clusterScoped(o object) bool {
	return strings.HasPrefix(o.GetKind(), "Cluster") || strings.Contains(o.GetKind(), "AdmissionPolicy")
}

// healers returns the Deployment of the healer, if it is rendered.
func healers(out *output) []*appsv1.Deployment { return deployments(out, "healer") }

func deployments(out *output, component string) []*appsv1.Deployment {
	return ofComponent[*appsv1.Deployment](out, component)
}

// payload returns the volume with an injected program, nil if the program comes in an image.
func payload(spec corev1.PodSpec) *corev1.ProjectedVolumeSource {
	for _, v := range spec.Volumes {
		if v.Name == "payload" {
			return v.Projected
		}
	}
	return nil
}

// hookMade are the suffixes of the Secrets that the Jobs create. The chart uses but never renders
// them.
var hookMade = []string{
	"-state", "-ca", "-server-tls", "-node-tls", "-push-tls", "-cache-tls", "-credentials", "-auth", "-pull",
}

// issued are the suffixes of the Secrets that cert-manager creates for the Jobs.
var issued = []string{"-server-issued", "-node-issued", "-push-issued", "-cache-issued"}

// podSecrets are the suffixes of the release's Secrets to which the pods of a component may refer. -auth has hashes
// instead of the passwords in -credentials.
var podSecrets = map[string][]string{
	"registry":           {"-auth", "-expose-tls", "-server-tls"},
	"proxy":              {"-node-tls"},
	"cache":              {"-cache-tls"},
	"healer":             {"-node-tls"},
	"node-config":        {"-node-config", "-node-tls"},
	"node-restore":       {"-node-config", "-node-tls"},
	"test":               {"-credentials", "-node-tls", "-pull", "-push-tls"},
	"init-hook":          {"-pull"},
	"certificates":       {"-pull"},
	"garbage-collection": {"-pull"},
}

// secretsOf returns the names of all Secrets to which a pod refers.
func secretsOf(spec corev1.PodSpec) (found []string) {
	for _, s := range spec.ImagePullSecrets {
		found = append(found, s.Name)
	}
	for _, v := range spec.Volumes {
		if v.Secret != nil {
			found = append(found, v.Secret.SecretName)
		}
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.Secret != nil {
				found = append(found, s.Secret.Name)
			}
		}
	}
	for _, c := range containers(spec) {
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				found = append(found, e.ValueFrom.SecretKeyRef.Name)
			}
		}
		for _, e := range c.EnvFrom {
			if e.SecretRef != nil {
				found = append(found, e.SecretRef.Name)
			}
		}
	}
	return found
}

// fullNameOf returns the prefix of all object names.
func fullNameOf(out *output) string {
	for _, r := range all[*rbacv1.Role](out) {
		if name, ok := strings.CutSuffix(r.Name, "-hook"); ok {
			return name
		}
	}
	return ""
}

// proxyUser is the user of proxies on the node's network, where processes of one user can share a port.
const proxyUser = 60847

// podIdentity are the variables that the webhooks of EKS set, for S3.
var podIdentity = []string{
	"AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_STS_REGIONAL_ENDPOINTS",
	"AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
}

// serviceHost is the variable in which the kubelet puts the address of a Service.
func serviceHost(service string) string {
	return strings.ToUpper(strings.ReplaceAll(service, "-", "_")) + "_SERVICE_HOST"
}

// virtual excludes virtual nodes, which plan.RunsPods leaves out too.
var virtual = []corev1.NodeSelectorRequirement{
	{Key: "type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"virtual-kubelet"}},
	{Key: "eks.amazonaws.com/compute-type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"fargate"}},
}

// report is told of a violation.
type report func(format string, args ...any)

// reporter returns a report that fails the test.
func reporter(t *testing.T, about ...string) report {
	return func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s: %s", strings.Join(about, ": "), fmt.Sprintf(format, args...))
	}
}

// invariants hold for every rendering. Each reports its violations.
var invariants = map[string]func(*output, report){
	"pods comply with the restricted level, and only proxies use the node's network": func(out *output, wrong report) {
		// OpenShift assigns users and groups, and rejects others.
		openshift := decided(out).OpenShift
		for _, w := range workloads(out) {
			spec := w.pod.Spec
			if w.ofNodes() {
				continue // nodePods checks them
			}
			user := int64(65532)
			if spec.HostNetwork {
				user = proxyUser
			}
			if c := spec.SecurityContext; c == nil || !is(c.RunAsNonRoot, true) ||
				!openshift && (!is(c.RunAsUser, user) || !is(c.RunAsGroup, user) || !is(c.FSGroup, user)) ||
				openshift && (c.RunAsUser != nil || c.RunAsGroup != nil || c.FSGroup != nil) ||
				!is(c.FSGroupChangePolicy, corev1.FSGroupChangeOnRootMismatch) || c.SeccompProfile == nil ||
				c.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				wrong("%s: the pod's security context is not restricted", w.object)
			}
			for _, c := range containers(spec) {
				s := c.SecurityContext
				if s == nil || !is(s.AllowPrivilegeEscalation, false) || !is(s.Privileged, false) ||
					!is(s.ReadOnlyRootFilesystem, true) || !is(s.RunAsNonRoot, true) ||
					s.RunAsUser != nil || s.SELinuxOptions != nil ||
					s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
					len(s.Capabilities.Add) > 0 ||
					s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
					wrong("%s: the security context of %s is not restricted", w.object, c.Name)
				}
				for _, port := range c.Ports {
					if port.HostPort != 0 && w.component() != "proxy" {
						wrong("%s: a hostPort", w.object)
					}
				}
			}
			if spec.HostPID || spec.HostIPC || spec.HostNetwork && w.component() != "proxy" {
				wrong("%s: it shares a namespace with the node", w.object)
			}
			for _, v := range spec.Volumes {
				if v.HostPath != nil {
					wrong("%s: volume %s is a hostPath", w.object, v.Name)
				}
			}
		}
	},
	"every pod has the label zarf.dev/agent=ignore, and no selector uses it": func(out *output, wrong report) {
		for _, w := range workloads(out) {
			if w.pod.Labels["zarf.dev/agent"] != "ignore" {
				wrong("%s: no label zarf.dev/agent=ignore: %v", w.object, w.pod.Labels)
			}
		}
		selectors := map[string]map[string]string{}
		for _, w := range workloads(out) {
			if w.selector != nil {
				selectors[w.object.String()] = w.selector.MatchLabels
			}
		}
		for _, s := range all[*corev1.Service](out) {
			selectors["Service "+s.Name] = s.Spec.Selector
		}
		for _, p := range all[*networkingv1.NetworkPolicy](out) {
			selectors["NetworkPolicy "+p.Name] = p.Spec.PodSelector.MatchLabels
		}
		for object, selector := range selectors {
			if _, selects := selector["zarf.dev/agent"]; selects {
				wrong("%s: selects by zarf.dev/agent", object)
			}
		}
	},
	"all Jobs have the same valid settings, and no other pod has them": func(out *output, wrong report) {
		want, err := settingsOf(out, "prepare")
		for _, step := range []string{"prepare", "finish", "cleanup"} {
			got, otherErr := settingsOf(out, step)
			if err = cmp.Or(err, otherErr); err != nil || !reflect.DeepEqual(want, got) {
				wrong("%s: %+v, not %+v (%v)", step, got, want, err)
			}
		}
		for _, w := range workloads(out) {
			if _, job := w.object.typed.(*batchv1.Job); !job && strings.Contains(fmt.Sprint(w.pod.Spec), "modeSource") {
				wrong("%s has settings, which change with the cluster", w.object)
			}
		}
	},
	"proxies listen on loopback only": func(out *output, wrong report) {
		for _, d := range daemonSets(out, "proxy") {
			spec := d.Spec.Template.Spec
			for _, c := range spec.Containers {
				for _, port := range c.Ports {
					if port.HostPort != 0 && port.HostIP != "127.0.0.1" {
						wrong("%s: hostPort %d with hostIP %q", d.Name, port.HostPort, port.HostIP)
					}
				}
				hosts := regexp.MustCompile(`--(?:metrics-)?listen=(.*):\d+`).FindAllStringSubmatch(strings.Join(c.Args, "\n"), -1)
				if len(hosts) < 2 {
					wrong("%s: %d listeners", d.Name, len(hosts))
				}
				for _, host := range hosts {
					if spec.HostNetwork && !slices.Contains([]string{"127.0.0.1", "[::1]"}, host[1]) {
						wrong("%s: listens on %s of the node", d.Name, host[0])
					}
				}
			}
		}
	},
	"proxies with hostNetwork surge, declare no port and are probed on loopback; others never " +
		"surge": func(out *output, wrong report) {
		for _, d := range daemonSets(out, "proxy") {
			spec, rolling := d.Spec.Template.Spec, d.Spec.UpdateStrategy.RollingUpdate
			c := spec.Containers[0]
			terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			if len(terms) != 1 || !reflect.DeepEqual(terms[0].MatchExpressions, virtual) {
				wrong("%s: it runs on virtual nodes", d.Name)
			}
			if healer := len(deployments(out, "healer")) > 0; (rolling == nil) != (healer && !spec.HostNetwork) ||
				(rolling == nil) != (d.Annotations["zarf-registry/max-unavailable"] != "") {
				wrong("%s: nobody continues its rollout, or the healer and Kubernetes both do", d.Name)
			}
			if !spec.HostNetwork {
				if rolling != nil && rolling.MaxSurge != nil {
					wrong("%s: with a hostPort, maxSurge blocks the rollout", d.Name)
				}
				if len(c.Ports) == 0 {
					wrong("%s: neither hostNetwork nor a port", d.Name)
				}
				continue
			}
			if rolling == nil {
				wrong("%s: pods cannot run side by side", d.Name)
				continue
			}
			if len(c.Ports) != 0 || rolling.MaxSurge.String() == "0" || rolling.MaxUnavailable.IntValue() != 0 ||
				d.Spec.MinReadySeconds != 0 || !slices.Contains(c.Args, "--reuse-port") ||
				spec.DNSPolicy != corev1.DNSClusterFirstWithHostNet {
				wrong("%s: two pods cannot run side by side on a node", d.Name)
			}
			if p := c.StartupProbe; p.Exec == nil || !slices.Contains(p.Exec.Command, "ready") || !slices.Contains(c.Args,
				strings.Replace(p.Exec.Command[len(p.Exec.Command)-1], "--file=", "--ready-file=", 1)) {
				wrong("%s: the previous proxy may answer for it", d.Name)
			}
			for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
				if p.HTTPGet == nil || !slices.Contains([]string{"127.0.0.1", "::1"}, p.HTTPGet.Host) {
					wrong("%s: a probe that does not use loopback", d.Name)
				}
			}
		}
	},
	"servers have all three probes, on existing ports": func(out *output, wrong report) {
		for _, w := range workloads(out) {
			if w.selector == nil || w.ofNodes() {
				continue
			}
			for _, c := range w.pod.Spec.Containers {
				for name, p := range map[string]*corev1.Probe{
					"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe,
				} {
					switch {
					case p == nil:
						wrong("%s: no %s probe", w.object, name)
					case p.HTTPGet != nil && p.HTTPGet.Port.StrVal != "" &&
						!slices.ContainsFunc(c.Ports, func(port corev1.ContainerPort) bool { return port.Name == p.HTTPGet.Port.StrVal }):
						wrong("%s: the %s probe uses unknown port %s", w.object, name, p.HTTPGet.Port.StrVal)
					}
				}
			}
		}
	},
	"containers request CPU and memory and leave a termination message": func(out *output, wrong report) {
		for _, w := range workloads(out) {
			for _, c := range containers(w.pod.Spec) {
				if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() {
					wrong("%s: %s requests nothing", w.object, c.Name)
				}
				if c.Resources.Limits.Memory().Cmp(*c.Resources.Requests.Memory()) < 0 || !c.Resources.Limits.Cpu().IsZero() {
					wrong("%s: limits of %s: %v", w.object, c.Name, c.Resources.Limits)
				}
				if c.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
					wrong("%s: terminationMessagePolicy %q", w.object, c.TerminationMessagePolicy)
				}
			}
		}
	},
	"only Jobs and the healer mount a token": func(out *output, wrong report) {
		for _, a := range all[*corev1.ServiceAccount](out) {
			if !is(a.AutomountServiceAccountToken, false) {
				wrong("ServiceAccount %s mounts its token", a.Name)
			}
		}
		for _, w := range workloads(out) {
			_, job := w.object.typed.(*batchv1.Job)
			_, cronJob := w.object.typed.(*batchv1.CronJob)
			job = job || cronJob
			if !is(w.pod.Spec.AutomountServiceAccountToken, job) {
				wrong("%s: automountServiceAccountToken is not %t", w.object, job)
			}
			tokens := 0
			for _, v := range w.pod.Spec.Volumes {
				if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
					return s.ServiceAccountToken != nil
				}) {
					tokens++
				}
			}
			// The loader verifies all mounts of the healer, and API servers add none of the chart's.
			if (tokens > 0) != (w.component() == "healer") {
				wrong("%s: %d volumes have a token", w.object, tokens)
			}
		}
	},
	"the loader knows all mounts and variables of its container, and the image chooses no folder": func(out *output, wrong report) {
		// Those that the kubelet or an admission webhook sets, and the programs read.
		injected := map[string][]string{
			"proxy":    {serviceHost(fullNameOf(out)), serviceHost(fullNameOf(out) + "-cache")},
			"cache":    {serviceHost(fullNameOf(out))},
			"healer":   {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"},
			"registry": podIdentity,
		}
		for _, w := range workloads(out) {
			for _, c := range containers(w.pod.Spec) {
				if len(c.Command) == 0 || c.Command[0] != "/payload/loader" {
					continue
				}
				mounts, variables := []string{"/etc/hosts", "/etc/resolv.conf"}, []string{}
				for _, m := range c.VolumeMounts {
					mounts = append(mounts, path.Clean(m.MountPath))
				}
				for _, e := range c.Env {
					variables = append(variables, e.Name)
				}
				var knownMounts, knownVariables []string
				for _, argument := range c.Command {
					if mount, ok := strings.CutPrefix(argument, "--mount="); ok {
						knownMounts = append(knownMounts, mount)
					}
					variable, ok := strings.CutPrefix(argument, "--env=")
					if ok && (!slices.Contains(injected[w.component()], variable) || slices.Contains(variables, variable)) {
						knownVariables = append(knownVariables, variable)
					}
				}
				slices.Sort(variables)
				slices.Sort(knownVariables)
				slices.Sort(mounts)
				slices.Sort(knownMounts)
				if !slices.Equal(knownMounts, mounts) || !slices.Equal(knownVariables, slices.Compact(variables)) ||
					len(c.EnvFrom) > 0 || c.WorkingDir != "/" {
					wrong("%s: %s: mounts %v, known %v; variables %v, known %v; working folder %q",
						w.object, c.Name, mounts, knownMounts, variables, knownVariables, c.WorkingDir)
				}
			}
		}
	},
	"hooks have the weight and the delete policy of their kind": func(out *output, wrong report) {
		weights := map[string]string{
			"ServiceAccount": "-20", "Role": "-10", "RoleBinding": "-10", "ClusterRole": "-10", "ClusterRoleBinding": "-10",
			"Secret": "-5", "DaemonSet": "-5", "Job": "0", "Pod": "",
		}
		for _, o := range out.objects {
			if o.hook() == "" {
				continue
			}
			want, ok := weights[o.GetKind()]
			if strings.HasSuffix(o.GetName(), "-rollback") {
				want = "1" // after prepare, which runs before rollbacks too
			}
			if !ok {
				wrong("%s is a hook, which Helm deletes", o)
			} else if got := o.GetAnnotations()["helm.sh/hook-weight"]; got != want {
				wrong("%s: hook weight %q, not %s", o, got, want)
			}
			policy := "before-hook-creation,hook-succeeded"
			switch {
			case o.hook() == "test":
				policy = "before-hook-creation,hook-failed" // helm test --logs reads the others' logs at the end
			case want == "-5":
				policy += ",hook-failed" // they have no log
			}
			if got := o.GetAnnotations()["helm.sh/hook-delete-policy"]; got != policy {
				wrong("%s: hook-delete-policy %q", o, got)
			}
		}
	},
	"the ServiceAccount and the roles of a hook Job exist at each of its events": func(out *output, wrong report) {
		for _, j := range all[*batchv1.Job](out) {
			for event := range strings.SplitSeq(j.Annotations["helm.sh/hook"], ",") {
				needed := 0
				for _, o := range out.objects {
					if slices.Contains(
						[]string{"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}, o.GetKind(),
					) &&
						slices.Contains(strings.Split(o.hook(), ","), event) {
						needed++
					}
				}
				if needed != 7 {
					wrong("%s: %d ServiceAccount and RBAC objects at %s", j.Name, needed, event)
				}
			}
		}
	},
	"objects that the Jobs create are not rendered": func(out *output, wrong report) {
		for _, o := range out.objects {
			ours := slices.Contains(
				[]string{"-node-config", "-node-config-proposal", "-zarf-users"}, strings.TrimPrefix(o.GetName(), fullNameOf(out)),
			)
			if o.GetKind() == "Secret" && !ours || o.GetKind() == "ConfigMap" && strings.Contains(o.GetName(), "-payload-") {
				wrong("%s", o.String())
			}
		}
	},
	"the node port belongs to the Service of the Jobs": func(out *output, wrong report) {
		for _, s := range all[*corev1.Service](out) {
			port := s.Spec.Ports[0]
			inside := s.Spec.Type == corev1.ServiceTypeClusterIP && port.NodePort == 0 && port.TargetPort.String() == "registry"
			if inside || port.TargetPort.String() == "exposed" {
				continue
			}
			wrong("%s: %v", s.Name, s.Spec)
		}
		for _, d := range deployments(out, "registry") {
			c := d.Spec.Template.Spec.Containers[0]
			if !slices.Contains(c.Args, "--plain-listen=:5001") ||
				!slices.ContainsFunc(
					c.Ports, func(p corev1.ContainerPort) bool { return p.Name == "plain" && p.ContainerPort == 5001 },
				) || slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == "reserved" }) {
				wrong("%s: the node port does not lead to the plain listener", d.Name)
			}
		}
	},
	"only proxy mode has proxies, which Helm keeps and finish knows": func(out *output, wrong report) {
		var names []string
		for _, d := range daemonSets(out, "proxy") {
			names = append(names, d.Name)
			if d.Annotations["helm.sh/resource-policy"] != "keep" {
				wrong("%s is not kept: a switch would delete it before the node port is verified", d.Name)
			}
		}
		known := slices.Clone(decided(out).Proxy.DaemonSets)
		slices.Sort(names)
		slices.Sort(known)
		if !slices.Equal(names, known) || (len(names) > 0) != (decidedMode(out) == "proxy") {
			wrong("mode %s: rendered %s, known to finish %s", decidedMode(out), names, known)
		}
	},
	"an external registry needs only hooks and node configuration": func(out *output, wrong report) {
		for _, o := range out.objects {
			component := o.GetLabels()["app.kubernetes.io/component"]
			healing := component == "healer" && len(daemonSets(out, "node-config")) > 0
			if decidedMode(out) == "external" && o.hook() == "" && component != "node-config" && !healing {
				wrong("%s", o.String())
			}
		}
	},
	"the Jobs know the images of injected programs": func(out *output, wrong report) {
		want, known := map[string]bool{}, map[string]bool{}
		for _, w := range workloads(out) {
			if c := w.program(); c.Command[0] == "/payload/loader" {
				want[w.pod.Spec.NodeSelector["kubernetes.io/arch"]+" "+c.Image] = true
			}
		}
		for architecture, image := range decided(out).Injector.PauseImages {
			known[architecture+" "+image.Reference] = true
		}
		for image := range want {
			if !known[image] {
				wrong("%s is not known to the Jobs", image)
			}
		}
	},
	"every volume is mounted, and every mount has a volume and no subPath": func(out *output, wrong report) {
		for _, w := range workloads(out) {
			mounted := map[string]bool{}
			for _, c := range containers(w.pod.Spec) {
				for _, m := range c.VolumeMounts {
					mounted[m.Name] = true
					if m.SubPath != "" || m.SubPathExpr != "" {
						wrong("%s: %s is a subPath, which is never updated", w.object, m.MountPath)
					}
					if !slices.ContainsFunc(w.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
						wrong("%s: no volume %s", w.object, m.Name)
					}
				}
			}
			for _, v := range w.pod.Spec.Volumes {
				if !mounted[v.Name] {
					wrong("%s: volume %s is mounted nowhere", w.object, v.Name)
				}
			}
		}
	},
	"exposed Services and Ingresses lead to the TLS listener only": func(out *output, wrong report) {
		listens := false
		for _, d := range deployments(out, "registry") {
			c := d.Spec.Template.Spec.Containers[0]
			listens = listens ||
				slices.Contains(c.Args, "--expose-listen=:5443") &&
					slices.ContainsFunc(
						c.Ports, func(p corev1.ContainerPort) bool { return p.Name == "exposed" && p.ContainerPort == 5443 },
					)
		}
		services := map[string]bool{}
		for _, s := range all[*corev1.Service](out) {
			leads := s.Spec.Ports[0].TargetPort.String() == "exposed"
			if leads != strings.HasSuffix(s.Name, "-expose") || leads && (!listens || len(s.Spec.Ports) != 1) ||
				!leads && s.Spec.Type == corev1.ServiceTypeLoadBalancer {
				wrong("%s: %v", s.Name, s.Spec)
			}
			services[s.Name] = leads
		}
		if listens != slices.ContainsFunc(slices.Collect(maps.Values(services)), func(leads bool) bool { return leads }) {
			wrong("the registry listens for outside clients: %t", listens)
		}
		for _, i := range all[*networkingv1.Ingress](out) {
			for _, rule := range i.Spec.Rules {
				if len(i.Spec.TLS) != 1 || !slices.Contains(i.Spec.TLS[0].Hosts, rule.Host) ||
					!services[rule.HTTP.Paths[0].Backend.Service.Name] {
					wrong("%s: %v", i.Name, i.Spec)
				}
			}
		}
	},
	"objects that pods refer to are rendered or created by the Jobs": func(out *output, wrong report) {
		has := func(kind, name string) bool {
			return slices.ContainsFunc(out.objects, func(o object) bool { return o.GetKind() == kind && o.GetName() == name })
		}
		fullname := fullNameOf(out)
		for _, w := range workloads(out) {
			if name := w.pod.Spec.ServiceAccountName; !has("ServiceAccount", name) {
				wrong("%s: no ServiceAccount %s", w.object, name)
			}
			for _, v := range w.pod.Spec.Volumes {
				if v.ConfigMap != nil && !has("ConfigMap", v.ConfigMap.Name) {
					wrong("%s: no ConfigMap %s", w.object, v.ConfigMap.Name)
				}
				if v.Secret == nil || strings.HasPrefix(v.Name, "expose-") {
					continue // created by the user or cert-manager
				}
				if !slices.Contains(hookMade, strings.TrimPrefix(v.Secret.SecretName, fullname)) {
					wrong("%s: the Jobs do not create Secret %s", w.object, v.Secret.SecretName)
				}
				// Only the pull credential does not exist in every mode.
				if is(v.Secret.Optional, true) != (v.Secret.SecretName == fullname+"-pull") {
					wrong("%s: Secret %s is optional: %t", w.object, v.Secret.SecretName, is(v.Secret.Optional, true))
				}
			}
		}
	},
	"only the first chunk of a payload is required": func(out *output, wrong report) {
		want := map[string]int{"registry": injector.MaxChunksRegistry, "registry-node": injector.MaxChunksRegistryNode}
		for _, w := range workloads(out) {
			chunks := payload(w.pod.Spec)
			if chunks == nil {
				continue
			}
			program := program(w.program())
			if *chunks.DefaultMode != 0o555 || len(chunks.Sources) != want[program] {
				wrong("%s: mode %o, %d chunks", w.object, *chunks.DefaultMode, len(chunks.Sources))
			}
			for i, source := range chunks.Sources {
				if optional := is(source.ConfigMap.Optional, true); optional != (i > 0) ||
					!strings.HasSuffix(
						source.ConfigMap.Name, fmt.Sprintf("-%s-%s-%02d", program, w.pod.Spec.NodeSelector["kubernetes.io/arch"], i),
					) {
					wrong("%s: source %d is %s, optional %t", w.object, i, source.ConfigMap.Name, optional)
				}
			}
		}
	},
	"prepare seeds every mounted payload, and all containers with one run the loader, so that the healer can help": func(out *output, wrong report) {
		settings := decided(out)
		for _, w := range workloads(out) {
			if payload(w.pod.Spec) == nil {
				continue
			}
			seeded := settings.Programs(w.pod.Spec.NodeSelector["kubernetes.io/arch"])
			if name := program(w.program()); !slices.Contains(seeded, name) {
				wrong("%s mounts the payload of %s, and prepare seeds only %v", w.object, name, seeded)
			}
			for _, c := range containers(w.pod.Spec) {
				if len(healers(out)) > 0 && (len(c.Command) == 0 || c.Command[0] != "/payload/loader") {
					wrong("%s: %s does not run the loader", w.object, c.Name)
				}
			}
		}
	},
	"injected programs never pull an image": func(out *output, wrong report) {
		for _, w := range workloads(out) {
			for _, c := range containers(w.pod.Spec) {
				injected := len(c.Command) > 0 && c.Command[0] == "/payload/loader"
				want := corev1.PullIfNotPresent
				if len(healers(out)) > 0 && out.value("injector.image") == nil {
					want = corev1.PullNever
				}
				if injected && c.ImagePullPolicy != want {
					wrong("%s: imagePullPolicy %s", w.object, c.ImagePullPolicy)
				}
			}
		}
	},
	"selectors match their own pods only": func(out *output, wrong report) {
		pods := workloads(out)
		for _, w := range pods {
			if w.selector == nil {
				continue
			}
			own := func(other workload) bool { return other.object.String() == w.object.String() }
			selects(w.object, w.selector, pods, own, wrong)
		}
		for _, s := range all[*corev1.Service](out) {
			component := "registry"
			for _, other := range []string{"proxy", "cache", "healer"} {
				if strings.HasSuffix(s.Name, "-"+other) {
					component = other
				}
			}
			own := func(w workload) bool { return w.component() == component }
			selects(s.Name, metav1.SetAsLabelSelector(s.Spec.Selector), pods, own, wrong)
		}
	},
	"no node gets two pods of a component": func(out *output, wrong report) {
		for _, component := range []string{"proxy", "cache", "node-config", "node-restore"} {
			of := map[string]string{} // by architecture
			for _, d := range daemonSets(out, component) {
				architecture := d.Spec.Template.Spec.NodeSelector["kubernetes.io/arch"]
				if of[architecture] != "" || architecture == "" {
					wrong("%s and %s are for nodes of %q", of[architecture], d.Name, architecture)
				}
				of[architecture] = d.Name
				// The rest of the affinity leaves nodes out by their labels: none is for some nodes by name.
				if in, notIn := nodeFields(d.Spec.Template.Spec.Affinity); len(in)+len(notIn) > 0 {
					wrong("%s is for %s and not for %s", d.Name, in, notIn)
				}
			}
		}
	},
	"names are valid and unique": func(out *output, wrong report) {
		seen := map[string]bool{}
		for _, o := range out.objects {
			for _, problem := range validation.IsDNS1123Subdomain(o.GetName()) {
				wrong("%s: %s", o, problem)
			}
			cluster := clusterScoped(o)
			if len(o.GetName()) > validation.LabelValueMaxLength && !cluster {
				wrong("%s: %d characters", o, len(o.GetName()))
			}
			if (o.GetNamespace() == "") != cluster {
				wrong("%s: namespace %q", o, o.GetNamespace())
			}
			if seen[o.String()] {
				wrong("%s: twice", o)
			}
			seen[o.String()] = true
			for key, value := range o.GetLabels() {
				for _, problem := range slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)) {
					wrong("%s: label %s: %s", o, key, problem)
				}
			}
			for _, key := range []string{
				"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component", "app.kubernetes.io/version",
				"app.kubernetes.io/managed-by", "helm.sh/chart",
			} {
				if o.GetLabels()[key] == "" {
					wrong("%s: no label %s", o, key)
				}
			}
		}
		for _, s := range all[*corev1.Service](out) {
			for _, problem := range validation.IsDNS1035Label(s.Name) {
				wrong("Service %s: %s", s.Name, problem)
			}
		}
		for _, w := range workloads(out) {
			chunks := payload(w.pod.Spec)
			if chunks == nil {
				continue
			}
			for _, source := range chunks.Sources {
				for _, problem := range validation.IsDNS1123Subdomain(source.ConfigMap.Name) {
					wrong("ConfigMap %s: %s", source.ConfigMap.Name, problem)
				}
			}
		}
	},
	"test hooks are pods only, as helm test --logs requires, and bare pods are test hooks with a deadline": func(out *output, wrong report) {
		for _, o := range out.objects {
			if slices.Contains(strings.Split(o.hook(), ","), "test") && o.GetKind() != "Pod" {
				wrong("%s", o.String())
			}
		}
		for _, p := range all[*corev1.Pod](out) {
			if p.Annotations["helm.sh/hook"] != "test" || p.Spec.RestartPolicy != corev1.RestartPolicyNever ||
				p.Spec.ActiveDeadlineSeconds == nil || *p.Spec.ActiveDeadlineSeconds <= 60 {
				wrong("%s", p.Name)
			}
		}
	},
	"every Job has a deadline, and keeps its pod after a failure": func(out *output, wrong report) {
		for _, j := range all[*batchv1.Job](out) {
			if j.Spec.ActiveDeadlineSeconds == nil || *j.Spec.ActiveDeadlineSeconds <= 30 || j.Spec.BackoffLimit == nil ||
				*j.Spec.BackoffLimit > 3 ||
				j.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyNever {
				wrong("%s", j.Name)
			}
		}
		for _, c := range all[*batchv1.CronJob](out) {
			j := c.Spec.JobTemplate.Spec
			if j.ActiveDeadlineSeconds == nil || *j.ActiveDeadlineSeconds < 120+30 || !is(j.BackoffLimit, 1) ||
				j.PodFailurePolicy == nil || !is(j.TTLSecondsAfterFinished, 3600) ||
				j.Template.Spec.RestartPolicy != corev1.RestartPolicyNever {
				wrong("%s", c.Name)
			}
		}
	},
	"CronJobs never overlap, make up for a missed run however late, keep no successful Job, and a failed one for an hour": func(out *output, wrong report) {
		for _, c := range all[*batchv1.CronJob](out) {
			if c.Spec.ConcurrencyPolicy != batchv1.ForbidConcurrent || c.Spec.StartingDeadlineSeconds != nil ||
				!is(c.Spec.SuccessfulJobsHistoryLimit, 0) ||
				!is(c.Spec.FailedJobsHistoryLimit, 1) || is(c.Spec.Suspend, true) {
				wrong("%s: %v", c.Name, c.Spec)
			}
			// The API server's limit, because the names of Jobs add 11 characters.
			if len(c.Name) > 52 {
				wrong("%s: %d characters", c.Name, len(c.Name))
			}
		}
	},
	"pods refer only to the Secrets that they need: a kubelet may read all keys": func(out *output, wrong report) {
		for _, w := range workloads(out) {
			for _, name := range secretsOf(w.pod.Spec) {
				suffix, ours := strings.CutPrefix(name, fullNameOf(out))
				if ours && !slices.Contains(podSecrets[w.component()], suffix) {
					wrong("%s refers to Secret %s", w.object, name)
				}
			}
			for _, v := range w.pod.Spec.Volumes {
				if v.Secret == nil || len(v.Secret.Items) == 0 {
					continue
				}
				if suffix, ours := strings.CutPrefix(v.Secret.SecretName, fullNameOf(out)); ours &&
					slices.Contains(slices.Concat(hookMade, issued), suffix) {
					wrong("%s mounts a part of Secret %s", w.object, v.Secret.SecretName)
				}
			}
		}
	},
	"exactly the pods with a metrics listener announce its port": func(out *output, wrong report) {
		for _, w := range workloads(out) {
			port, annotated := w.pod.Annotations[names.AnnotationMetricsPort]
			c := w.program()
			serves := slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--metrics-listen=") })
			if annotated != serves || serves && !slices.ContainsFunc(c.Args, func(arg string) bool {
				return strings.HasPrefix(arg, "--metrics-listen=") && strings.HasSuffix(arg, ":"+port)
			}) {
				wrong("%s: %s is %q", w.object, names.AnnotationMetricsPort, port)
			}
		}
	},
	"pods that write node files run as root without capabilities, and mount configured directories only": nodePods,
	"the same nodes are configured and restored, and finish knows their DaemonSets":                      nodeSets,

	"a network policy selects all pods":          unguarded,
	"every role is bound to its component alone": wrongBindings,
}

// The matrix, and every values file with a very long release name, some also with a short one.
//
// Claim (pods refer only to the Secrets that they need: a kubelet may read all keys): Pods refer only to the
// Secrets that they need.
//
// Claim (pods comply with the restricted level, and only proxies use the node's network): Pods comply with
// the level `restricted` of Pod Security, with the [documented exceptions](policies/README.md).
//
// Claim (only Jobs and the healer mount a token): Only Jobs and the healer mount a token.
//
// Claim (pods that write node files run as root without capabilities, and mount configured directories only):
// Pods that configure nodes have no capabilities, and mount only configured directories.
//
// Claim (the loader knows all mounts and variables of its container, and the image chooses no folder): The
// loader knows all mounts and variables of its container.
func TestEveryRenderingKeepsTheInvariants(t *testing.T) {
	t.Parallel()
	combinations := slices.Clone(matrix(t))
	var more []combination
	var renderings []rendering
	for file, values := range ciValues(t) {
		if file == "zarf" {
			continue // Zarf looks for a release of another name
		}
		releases := []string{strings.Repeat("long-", 10) + "abc"}
		if slices.Contains(everywhere, file) {
			releases = append(releases, "r")
		}
		for _, release := range releases {
			more = append(more, combination{name: file + " as " + release})
			renderings = append(renderings,
				rendering{release: release, values: values, cluster: clusters()["a cluster of all sorts"]()})
		}
	}
	for i, out := range renderAll(t, renderings) {
		more[i].output = out
	}
	combinations = append(combinations, more...)
	for _, c := range combinations {
		if n, least := len(workloads(c.output)), map[string]int{
			"proxy": 5, "nodeport": 4, "external": 3,
		}[decidedMode(c.output)]; n < least ||
			least == 0 {
			t.Fatalf("%s: %d workloads in mode %q", c.name, n, decidedMode(c.output))
		}
	}
	for name, check := range invariants {
		t.Run(name, func(t *testing.T) {
			for _, c := range combinations {
				check(c.output, reporter(t, c.name))
			}
		})
	}
	t.Logf("%d invariants over %d renderings", len(invariants), len(combinations))
}

// hookArguments returns the arguments of the hook Job that runs a step.
func hookArguments(out *output, step string) []string {
	for _, job := range all[*batchv1.Job](out) {
		if args := job.Spec.Template.Spec.Containers[0].Args; args[0] == step {
			return args
		}
	}
	return nil
}

func containers(spec corev1.PodSpec) []corev1.Container {
	return slices.Concat(spec.InitContainers, spec.Containers)
}

func is[T comparable](p *T, want T) bool { return p != nil && *p == want }

func subset(values []string, of ...string) bool {
	return !slices.ContainsFunc(values, func(v string) bool { return !slices.Contains(of, v) })
}

// selects reports pods that a selector should not match, and a selector without any match.
func selects(who any, selector *metav1.LabelSelector, pods []workload, own func(workload) bool, wrong report) {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		wrong("%s: %v", who, err)
		return
	}
	found := 0
	for _, w := range pods {
		switch matches := s.Matches(labels.Set(w.pod.Labels)); {
		case matches && own(w):
			found++
		case matches:
			wrong("%s: selects the pods of %s", who, w.object)
		}
	}
	if found == 0 {
		wrong("%s: selects no pods", who)
	}
}

// nodeFields returns the node names that an affinity requires and excludes.
func nodeFields(affinity *corev1.Affinity) (in, notIn []string) {
	if affinity == nil || affinity.NodeAffinity == nil ||
		affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil, nil
	}
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Operator == corev1.NodeSelectorOpIn {
				in = append(in, field.Values...)
			} else {
				notIn = append(notIn, field.Values...)
			}
		}
	}
	return in, notIn
}
