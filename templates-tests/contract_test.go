package templates

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	registryroot "github.com/zarf-dev/zarf-registry/cmd/registry/root"
	"github.com/zarf-dev/zarf-registry/internal/cli"
	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/injector"
	"github.com/zarf-dev/zarf-registry/internal/registry"
)

// trees makes the command tree of each program that the chart runs.
var trees = map[string]func() *cobra.Command{
	"registry":  registryroot.New,
	"init-hook": func() *cobra.Command { return cli.New(io.Discard, io.Discard) },
}

// program is the base name of what a container runs, whatever brings it there.
func program(c corev1.Container) string { return filepath.Base(c.Command[len(c.Command)-1]) }

func TestEveryProgramUnderstandsItsArguments(t *testing.T) {
	parsed := map[string]int{}
	for file, values := range ciValues(t) {
		for where, cluster := range clusters(t) {
			for _, w := range workloads(rendering{values: values, cluster: cluster()}.render(t)) {
				c := w.pod.Spec.Containers[0]
				tree, ok := trees[program(c)]
				if !ok {
					t.Fatalf("%s: no command tree of %s", w.object, program(c))
				}
				command, rest, err := tree().Find(c.Args)
				if err == nil && command.Name() != c.Args[0] {
					t.Errorf("%s in %s: %s: %s has no command %s", file, where, w.object, program(c), c.Args[0])
					continue
				}
				if err == nil {
					err = command.ParseFlags(rest)
				}
				if err == nil {
					err = command.ValidateRequiredFlags()
				}
				if err == nil {
					err = command.ValidateArgs(command.Flags().Args())
				}
				if err != nil {
					t.Errorf("%s in %s: %s: %v\n%s", file, where, w.object, err, c.Args)
				}
				parsed[program(c)+" "+command.Name()]++
			}
		}
	}
	for _, want := range []string{"registry serve", "registry-node proxy", "init-hook prepare", "init-hook finish", "init-hook cleanup"} {
		if parsed[want] == 0 {
			t.Errorf("%s was never parsed: %v", want, parsed)
		}
	}
}

// The Jobs' arguments fit together: the program gets as far as looking for its
// cluster.
func TestTheJobsAcceptWhatTheChartDecided(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for file, values := range ciValues(t) {
		for where, cluster := range clusters(t) {
			for _, job := range all[*batchv1.Job](rendering{values: values, cluster: cluster()}.render(t)) {
				command := cli.New(io.Discard, io.Discard)
				command.SetArgs(job.Spec.Template.Spec.Containers[0].Args)
				if err := command.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "no cluster to talk to") {
					t.Errorf("%s in %s: %s: %v", file, where, job.Name, err)
				}
			}
		}
	}
}

func TestTheRegistryAcceptsItsConfiguration(t *testing.T) {
	for name, values := range ciValues(t) {
		for _, m := range all[*corev1.ConfigMap](rendering{values: values}.render(t)) {
			file := filepath.Join(t.TempDir(), "config.yml")
			if err := os.WriteFile(file, []byte(m.Data["config.yml"]), 0o600); err != nil {
				t.Fatal(err)
			}
			config, err := registry.LoadConfig(file)
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, m.Data["config.yml"])
				continue
			}
			want := map[string]string{"s3": "s3", "inmemory": "inmemory"}[name]
			if want == "" {
				want = "filesystem"
			}
			if got := config.Storage.Type(); got != want {
				t.Errorf("%s: storage %s, want %s", name, got, want)
			}
		}
	}
}

// Every file and folder that an argument names is mounted.
func TestArgumentsNameWhatIsMounted(t *testing.T) {
	named := 0
	for name, values := range ciValues(t) {
		for _, w := range workloads(rendering{values: values}.render(t)) {
			c := w.pod.Spec.Containers[0]
			for _, arg := range slices.Concat(c.Command, c.Args) {
				path := arg[strings.LastIndex(arg, "=")+1:]
				if !strings.HasPrefix(path, "/etc/") && !strings.HasPrefix(path, "/payload") && !strings.HasPrefix(path, "/program") {
					continue
				}
				named++
				if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
					return path == m.MountPath || strings.HasPrefix(path, m.MountPath+"/")
				}) {
					t.Errorf("%s: %s: nothing is mounted at %s", name, w.object, path)
				}
			}
		}
	}
	if named == 0 {
		t.Fatal("no path found")
	}
}

func TestThePayloadIsCalledWhatTheJobsCallIt(t *testing.T) {
	for _, tag := range []string{"0.1.0", "v1.2.3", "1.0.0-rc.1_build", "Latest", "_private", "a-very-long-tag-that-is-cut-in-the-middle", "nineteen-letters-xx-cut", "1..2", "1.-2", "1-.2", "___", "0.1.0-"} {
		want, wantErr := injector.PayloadID(tag)
		out, err := rendering{values: proxyMode(t, "initHook.image.tag="+mustYAML(t, tag))}.try(t)
		if (err == nil) != (wantErr == nil) {
			t.Errorf("tag %s: the chart says %v, the injector %v", tag, err, wantErr)
			continue
		}
		if err == nil {
			payloadIs(t, out, want)
		}
	}
	digest := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	want, err := injector.PayloadID(digest)
	if err != nil {
		t.Fatal(err)
	}
	payloadIs(t, rendering{values: proxyMode(t, "initHook.image.tag=ignored", "initHook.image.digest="+digest)}.render(t), want)
}

func payloadIs(t *testing.T, out *output, id string) {
	t.Helper()
	if args := hookArgs(t, out, "prepare"); !slices.Contains(args, "--payload-id="+id) {
		t.Errorf("prepare is not told --payload-id=%s: %s", id, args)
	}
	sources := 0
	for _, w := range workloads(out) {
		p := injector.Program{Name: program(w.pod.Spec.Containers[0]), Architecture: w.pod.Spec.NodeSelector["kubernetes.io/arch"]}
		for _, v := range w.pod.Spec.Volumes {
			if v.Projected == nil {
				continue
			}
			if len(v.Projected.Sources) != p.MaxChunks() {
				t.Errorf("%s: %d chunks, the injector makes up to %d", w.object, len(v.Projected.Sources), p.MaxChunks())
			}
			for i, source := range v.Projected.Sources {
				sources++
				if want := injector.ConfigMapName("zarf-registry", id, p, i); source.ConfigMap.Name != want {
					t.Errorf("%s: %s, the injector writes %s", w.object, source.ConfigMap.Name, want)
				}
			}
		}
	}
	if sources == 0 {
		t.Error("no payload is mounted")
	}
}

// The Jobs may do what the hook package does with the cluster, and nothing else.
func TestTheRightsAreThoseThatTheJobsUse(t *testing.T) {
	out := rendering{values: proxyMode(t)}.render(t)
	granted := map[string][]string{}
	grant := func(rules []rbacv1.PolicyRule) {
		for _, rule := range rules {
			for _, resource := range rule.Resources {
				granted[resource] = append(granted[resource], rule.Verbs...)
			}
		}
	}
	grant(find[*rbacv1.Role](t, out, "zarf-registry-hook").Rules)
	grant(find[*rbacv1.ClusterRole](t, out, "zarf-zarf-registry-hook").Rules)
	used := map[string][]string{}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[hook.Cluster]()) {
		for i := range field.Type.NumMethod() {
			resource := strings.ToLower(field.Name)
			used[resource] = append(used[resource], strings.ToLower(field.Type.Method(i).Name))
		}
	}
	for _, verbs := range []map[string][]string{granted, used} {
		for resource := range verbs {
			slices.Sort(verbs[resource])
		}
	}
	if diff := cmp.Diff(used, granted); diff != "" {
		t.Errorf("used (-), granted (+):\n%s", diff)
	}
	var names []string
	for _, suffix := range []string{hook.SuffixState, hook.SuffixAuthority, hook.SuffixServerTLS, hook.SuffixNodeTLS, hook.SuffixPushTLS, hook.SuffixCredentials} {
		names = append(names, "zarf-registry"+suffix)
	}
	for _, rule := range find[*rbacv1.Role](t, out, "zarf-registry-hook").Rules {
		if slices.Contains(rule.Resources, "secrets") && !slices.Contains(rule.Verbs, "create") {
			if diff := cmp.Diff(names, rule.ResourceNames); diff != "" {
				t.Errorf("Secrets of the Jobs (-), granted (+):\n%s", diff)
			}
		}
	}
}
