package templates

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// rule is a check of kube-linter or Polaris, by its name there. Neither program is available from the
// Go module proxy, so each of their checks is implemented here, covered by an invariant, or omitted
// for a reason.
type rule struct {
	check     func(out *output) []string
	invariant string
	not       string
}

const (
	restricted = "pods comply with the restricted level, and only proxies use the node's network"
	probed     = "servers have all three probes, on existing ports"
	requests   = "containers request CPU and memory and leave a termination message"
	referred   = "objects that pods refer to are rendered or created by the Jobs"
	selecting  = "selectors match their own pods only"
	unreached  = "every component has exactly its network policy"
	tokens     = "only Jobs and the healer mount a token"
	fewRights  = "roles have no broad permissions"
	ofNodes    = "pods that write node files run as root without capabilities, and mount configured directories only"
)

var linterRules = map[string]rule{
	// kube-linter
	"dangling-service":       {invariant: selecting},
	"mismatching-selector":   {invariant: selecting},
	"dangling-networkpolicy": {invariant: selecting},
	"deprecated-service-account-field": {
		check: eachPod(func(s corev1.PodSpec) bool { return s.DeprecatedServiceAccount != "" }),
	},
	"docker-sock":                    {check: mounts(regexp.MustCompile(`\.sock$|^/var/run|^/run`))},
	"sensitive-host-mounts":          {invariant: ofNodes},
	"drop-net-raw-capability":        {invariant: restricted},
	"privilege-escalation-container": {invariant: restricted},
	"privileged-container":           {invariant: restricted},
	"run-as-non-root":                {invariant: restricted},
	"no-read-only-root-fs":           {invariant: restricted},
	"host-ipc":                       {invariant: restricted},
	"host-pid":                       {invariant: restricted},
	"host-network":                   {invariant: restricted},
	"duplicate-env-var": {check: eachContainer(func(c corev1.Container) bool {
		seen := map[string]bool{}
		return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			twice := seen[e.Name]
			seen[e.Name] = true
			return twice
		})
	})},
	"env-var-secret": {check: eachContainer(func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.Value != "" && regexp.MustCompile(`(?i)secret|password|token|key`).MatchString(e.Name)
		})
	})},
	"invalid-target-ports":              {invariant: selecting},
	"liveness-port":                     {invariant: probed},
	"readiness-port":                    {invariant: probed},
	"startup-port":                      {invariant: probed},
	"latest-tag":                        {check: eachContainer(func(c corev1.Container) bool { return !pinned(c.Image) })},
	"non-existent-service-account":      {invariant: referred},
	"default-service-account":           {invariant: referred},
	"non-isolated-pod":                  {invariant: unreached},
	"no-extensions-v1beta":              {check: oldVersions},
	"pdb-max-unavailable":               {check: blockingBudget},
	"pdb-min-available":                 {check: blockingBudget},
	"pdb-unhealthy-pod-eviction-policy": {check: stuckBudget},
	"ssh-port": {check: eachContainer(func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort == 22 })
	})},
	"unsafe-sysctls": {
		check: eachPod(func(s corev1.PodSpec) bool { return s.SecurityContext != nil && len(s.SecurityContext.Sysctls) > 0 }),
	},
	"unset-cpu-requirements":    {invariant: requests},
	"unset-memory-requirements": {invariant: requests},
	"wildcard-in-rules":         {invariant: fewRights},
	"access-to-secrets":         {invariant: fewRights},
	"access-to-create-pods": {
		not: "the Jobs verify a pull with a pod on every node; the permission ends with the Job",
	},
	"job-ttl-seconds-after-finished": {
		not: "Helm deletes successful Jobs; failed ones are kept for a week, and those of a CronJob for an hour",
	},
	"minimum-three-replicas": {
		not: "a ReadWriteOnce volume allows only one; registry.replicas is for other storage",
	},
	"no-anti-affinity": {not: "the default is one replica; several are spread"},
	// Polaris
	"deploymentMissingReplicas": {not: "see minimum-three-replicas"},
	"priorityClassNotSet": {
		not: "registry and proxies have one; hook Jobs and tests use the default, and values may be empty",
	},
	"tagNotSpecified":                 {check: eachContainer(func(c corev1.Container) bool { return !pinned(c.Image) })},
	"pullPolicyNotAlways":             {not: "the chart is for nodes that cannot pull"},
	"livenessProbeMissing":            {invariant: probed},
	"readinessProbeMissing":           {invariant: probed},
	"pdbDisruptionsIsGreaterThanZero": {check: blockingBudget},
	"topologySpreadConstraint":        {not: "see no-anti-affinity"},
	"cpuRequestsMissing":              {invariant: requests},
	"memoryRequestsMissing":           {invariant: requests},
	"cpuLimitsMissing":                {not: "a limit would throttle pulls on an idle node"},
	"automountServiceAccountToken":    {invariant: tokens},
	"hostIPCSet":                      {invariant: restricted},
	"hostPIDSet":                      {invariant: restricted},
	"hostNetworkSet":                  {invariant: restricted},
	"hostPortSet":                     {invariant: restricted},
	"hostPathSet":                     {invariant: restricted},
	"linuxHardening":                  {invariant: restricted},
	"dangerousCapabilities":           {invariant: restricted},
	"insecureCapabilities":            {invariant: restricted},
	"notReadOnlyRootFilesystem":       {invariant: restricted},
	"privilegeEscalationAllowed":      {invariant: restricted},
	"runAsPrivileged":                 {invariant: restricted},
	"runAsRootAllowed":                {invariant: restricted},
	"missingNetworkPolicy":            {invariant: unreached},
	"procMount": {
		check: eachContainer(
			func(c corev1.Container) bool { return c.SecurityContext != nil && c.SecurityContext.ProcMount != nil },
		),
	},
	"hostProcess": {check: eachContainer(func(c corev1.Container) bool {
		return c.SecurityContext != nil && c.SecurityContext.WindowsOptions != nil
	})},
	"sensitiveContainerEnvVar": {check: eachContainer(func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.Value != "" && strings.Contains(strings.ToUpper(e.Name), "PASSWORD")
		})
	})},
	"sensitiveConfigmapContent":      {check: tellingConfigMaps},
	"rolePodExecAttach":              {check: roles("pods/exec", "pods/attach")},
	"clusterrolePodExecAttach":       {check: roles("pods/exec", "pods/attach")},
	"rolebindingClusterAdminRole":    {check: ownRoles},
	"clusterrolebindingClusterAdmin": {check: ownRoles},
	"metadataAndInstanceMismatched":  {not: "the instance is the release, but fullnameOverride may change names"},
	"missingPodDisruptionBudget":     {not: "the default is one replica, for which a budget would block drains"},
}

// pinned reports whether an image has a digest, or a tag other than latest.
func pinned(image string) bool {
	name := image[strings.LastIndex(image, "/")+1:]
	_, digest, _ := strings.Cut(name, "@")
	_, tag, _ := strings.Cut(name, ":")
	return digest != "" || tag != "" && tag != "latest"
}

func eachPod(wrong func(corev1.PodSpec) bool) func(*output) []string {
	return func(out *output) (found []string) {
		for _, w := range workloads(out) {
			if wrong(w.pod.Spec) {
				found = append(found, w.object.String())
			}
		}
		return found
	}
}

func eachContainer(wrong func(corev1.Container) bool) func(*output) []string {
	return func(out *output) (found []string) {
		for _, w := range workloads(out) {
			for _, c := range containers(w.pod.Spec) {
				if wrong(c) {
					found = append(found, fmt.Sprintf("%s: %s", w.object, c.Name))
				}
			}
		}
		return found
	}
}

func mounts(path *regexp.Regexp) func(*output) []string {
	return eachPod(func(s corev1.PodSpec) bool {
		return slices.ContainsFunc(
			s.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil && path.MatchString(v.HostPath.Path) },
		)
	})
}

func oldVersions(out *output) (found []string) {
	for _, o := range out.objects {
		if version := o.GetAPIVersion(); strings.HasPrefix(version, "extensions/") || strings.Contains(version, "beta") ||
			strings.Contains(version, "alpha") {
			found = append(found, fmt.Sprintf("%s: %s", o, version))
		}
	}
	return found
}

func blockingBudget(out *output) (found []string) {
	for _, b := range all[*policyv1.PodDisruptionBudget](out) {
		if b.Spec.MinAvailable != nil || b.Spec.MaxUnavailable == nil || b.Spec.MaxUnavailable.String() == "0" ||
			b.Spec.MaxUnavailable.String() == "0%" {
			found = append(found, b.Name)
		}
	}
	return found
}

func stuckBudget(out *output) (found []string) {
	for _, b := range all[*policyv1.PodDisruptionBudget](out) {
		if !is(b.Spec.UnhealthyPodEvictionPolicy, policyv1.AlwaysAllow) {
			found = append(found, b.Name)
		}
	}
	return found
}

func tellingConfigMaps(out *output) (found []string) {
	for _, m := range all[*corev1.ConfigMap](out) {
		for key, value := range m.Data {
			if regexp.MustCompile(`(?i)password: *[^ ]|secretkey: *[^ ]|PRIVATE KEY`).MatchString(value) {
				found = append(found, m.Name+": "+key)
			}
		}
	}
	return found
}

func roles(resources ...string) func(*output) []string {
	return func(out *output) (found []string) {
		check := func(name string, rules []rbacv1.PolicyRule) {
			for _, r := range rules {
				if slices.ContainsFunc(r.Resources, func(resource string) bool { return slices.Contains(resources, resource) }) {
					found = append(found, name)
				}
			}
		}
		for _, r := range all[*rbacv1.Role](out) {
			check(r.Name, r.Rules)
		}
		for _, r := range all[*rbacv1.ClusterRole](out) {
			check(r.Name, r.Rules)
		}
		return found
	}
}

// ownRoles reports bindings to cluster-admin.
func ownRoles(out *output) (found []string) {
	check := func(name string, role rbacv1.RoleRef) {
		if !slices.ContainsFunc(
			out.objects, func(o object) bool { return o.GetKind() == role.Kind && o.GetName() == role.Name },
		) &&
			role.Name == "cluster-admin" {
			found = append(found, name)
		}
	}
	for _, b := range all[*rbacv1.RoleBinding](out) {
		check(b.Name, b.RoleRef)
	}
	for _, b := range all[*rbacv1.ClusterRoleBinding](out) {
		check(b.Name, b.RoleRef)
	}
	return found
}

func TestKubeLinterAndPolarisRules(t *testing.T) {
	checked := 0
	for name, r := range linterRules {
		switch {
		case r.invariant != "":
			if invariants[r.invariant] == nil {
				t.Errorf("%s: there is no invariant %q", name, r.invariant)
			}
		case r.check != nil:
			for _, c := range matrix(t) {
				checked += len(all[*appsv1.Deployment](c.output))
				for _, wrong := range r.check(c.output) {
					t.Errorf("%s: %s: %s", c.name, name, wrong)
				}
			}
		case r.not == "":
			t.Errorf("%s: neither a check nor a reason", name)
		}
	}
	if checked == 0 {
		t.Error("nothing was checked")
	}
	for image, want := range map[string]bool{
		"a/b": false, "a/b:latest": false, "a:5000/b": false, "a/b:1.2": true, "a:5000/b:v1": true,
		"a/b@sha256:" + strings.Repeat("0", 64): true,
	} {
		if pinned(image) != want {
			t.Errorf("%s is pinned: %t", image, !want)
		}
	}
}
