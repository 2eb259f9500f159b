package templates

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	noderoot "github.com/zarf-dev/zarf-registry/cmd/registry-node/root"
	registryroot "github.com/zarf-dev/zarf-registry/cmd/registry/root"
	"github.com/zarf-dev/zarf-registry/internal/cli"
	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/internal/net/tlsfiles"
	"github.com/zarf-dev/zarf-registry/internal/node/proxy"
	"github.com/zarf-dev/zarf-registry/internal/payload/injector"
	"github.com/zarf-dev/zarf-registry/internal/pki"
	"github.com/zarf-dev/zarf-registry/internal/registry"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// trees returns the command tree of each program that the chart runs.
var trees = map[string]func() *cobra.Command{
	"registry":      registryroot.New,
	"registry-node": noderoot.New,
	"init-hook":     func() *cobra.Command { return cli.New(io.Discard, io.Discard) },
}

// program returns the base name of the program that a container runs, injected or not.
func program(c corev1.Container) string { return filepath.Base(c.Command[len(c.Command)-1]) }

// command is a container that runs a program of this project.
type command struct {
	corev1.Container
	workload workload
}

func commands(out *output) (found []command) {
	for _, w := range workloads(out) {
		for _, c := range containers(w.pod.Spec) {
			// The pause image has its own entry point.
			if len(c.Command) > 0 {
				found = append(found, command{c, w})
			}
		}
	}
	return found
}

func TestProgramsParseTheirArguments(t *testing.T) {
	t.Parallel()
	parsed := map[string]int{}
	for _, combination := range matrix(t) {
		for _, c := range commands(combination.output) {
			w := c.workload
			tree, ok := trees[program(c.Container)]
			if !ok {
				t.Fatalf("%s: no command tree of %s", w.object, program(c.Container))
			}
			command, rest, err := tree().Find(c.Args)
			path, _, _ := strings.Cut(strings.Join(c.Args, " "), " --")
			if err == nil && command.CommandPath() != command.Root().Name()+" "+path {
				t.Errorf("%s: %s: %s has no command %s", combination.name, w.object, program(c.Container), path)
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
				t.Errorf("%s: %s: %v\n%s", combination.name, w.object, err, c.Args)
			}
			parsed[program(c.Container)+" "+path]++
		}
	}
	for _, want := range []string{
		"registry serve", "registry-node proxy", "registry-node cache", "registry-node configure", "registry-node pause", "init-hook prepare",
		"init-hook rollback", "init-hook finish", "init-hook cleanup", "init-hook certs renew", "init-hook version", "init-hook check push",
		"init-hook check tls",
	} {
		if parsed[want] == 0 {
			t.Errorf("%s was never parsed: %v", want, parsed)
		}
	}
}

// The arguments of the Jobs are consistent if the program gets as far as connecting to a cluster.
func TestJobsAcceptTheirArguments(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, combination := range matrix(t) {
		for _, w := range workloads(combination.output) {
			args, want := w.pod.Spec.Containers[0].Args, "no cluster configured"
			if w.selector != nil || args[0] == "version" {
				continue
			}
			if args[0] == "check" { // needs mounted files, but no cluster
				want = "/etc/zarf-registry/push"
			}
			command := cli.New(io.Discard, io.Discard)
			command.SetArgs(args)
			if err := command.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %s: %v", combination.name, w.object, err)
			}
		}
	}
}

// The arguments of the proxy are consistent if it could start to listen.
func TestProxyAcceptsItsArguments(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	ca := require.Value(pki.NewCA("test", now, time.Hour))(t)
	pair, err := ca.Issue(
		pki.Leaf{Organization: pki.OrganizationNode, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, now,
	)
	require.NoError(t, err)
	for name, data := range map[string][]byte{
		"tls.crt": pair.Certificate, "tls.key": pair.Key, "ca.crt": ca.KeyPair().Certificate,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	source := require.Value(tlsfiles.Open(dir))(t)
	for _, combination := range matrix(t) {
		for _, d := range daemonSets(combination.output, "proxy") {
			command, rest, err := noderoot.New().Find(d.Spec.Template.Spec.Containers[0].Args)
			require.NoError(t, err)
			require.NoError(t, command.ParseFlags(rest))
			value := func(flag string) string { return command.Flags().Lookup(flag).Value.String() }
			listen := require.Value(command.Flags().GetStringArray("listen"))(t)
			if _, err := proxy.New(
				proxy.Config{Listen: listen, MetricsListen: value("metrics-listen"), Registry: value("registry"), Source: source},
			); err != nil {
				t.Errorf("%s: %s: %v", combination.name, d.Name, err)
			}
			// The certificate contains the name that the proxy verifies.
			name := find[*corev1.Service](t, combination.output, strings.Split(value("registry"), ".")[0])
			if want := name.Name + "." + name.Namespace + ".svc:5000"; value("registry") != want {
				t.Errorf("%s: %s: --registry=%s, want %s", combination.name, d.Name, value("registry"), want)
			}
			if at := value("cache"); (at != "") != decided(combination.output).Cache.Enabled {
				t.Errorf("%s: %s: --cache=%s", combination.name, d.Name, at)
			} else if at != "" {
				cache := find[*corev1.Service](t, combination.output, strings.Split(at, ".")[0])
				if want := cache.Name + "." + cache.Namespace + ".svc:5000"; at != want || cache.Name == name.Name {
					t.Errorf("%s: %s: --cache=%s, want %s", combination.name, d.Name, at, want)
				}
			}
			if grace, drain := *d.Spec.Template.Spec.TerminationGracePeriodSeconds, value("drain-timeout"); drain != "20s" ||
				grace <= 20 {
				t.Errorf("%s: %s: drain timeout %s, grace period %d s", combination.name, d.Name, drain, grace)
			}
		}
	}
}

func TestRegistryAcceptsItsConfiguration(t *testing.T) {
	t.Parallel()
	for name, values := range ciValues(t) {
		for _, m := range all[*corev1.ConfigMap](rendering{values: values}.render(t)) {
			if m.Labels["app.kubernetes.io/component"] != "registry" {
				continue
			}
			file := filepath.Join(t.TempDir(), "config.yml")
			require.NoError(t, os.WriteFile(file, []byte(m.Data["config.yml"]), 0o600))
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

// All files and directories in arguments are mounted.
func TestPathsInArgumentsAreMounted(t *testing.T) {
	t.Parallel()
	named := 0
	for name, values := range ciValues(t) {
		for _, w := range workloads(rendering{values: values}.render(t)) {
			c := w.program()
			for _, arg := range slices.Concat(c.Command, c.Args) {
				path := arg[strings.LastIndex(arg, "=")+1:]
				if strings.HasPrefix(arg, "--mount=") { // an invariant covers these
					continue
				}
				if !strings.HasPrefix(path, "/etc/") && !strings.HasPrefix(path, "/var/") && !strings.HasPrefix(path, "/payload") &&
					!strings.HasPrefix(path, "/program") {
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

func TestPayloadID(t *testing.T) {
	t.Parallel()
	for tag, want := range map[string]string{
		"0.1.0":                              "0.1.0",
		"v1.2.3-RC.1":                        "v1.2.3-rc.1",
		"snapshot_2026_11_20":                "snapshot-2026-11-20",
		"0.1.0-alpha.2026112.":               "0.1.0-alpha.2026112",
		"0.1.0-alpha.20261120-abcdef1":       "0.1.0-alpha.20261120",
		"0123456789012345678-.x":             "0123456789012345678",
		"_x":                                 "-x",
		"x__":                                "x",
		"1" + strings.Repeat("-", 126) + "x": "1",
		"1..2":                               "", "1.-2": "", "1-.2": "", "1._2": "", "___": "", // invalid in a ConfigMap's name
	} {
		out, err := rendering{values: proxyMode(t, "initHook.image.tag="+mustYAML(t, tag))}.try(t)
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "initHook.image.tag") {
				t.Errorf("tag %s: %v", tag, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("tag %s: %v", tag, err)
			continue
		}
		payloadIs(t, out, want)
	}
	digest := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	payloadIs(t, rendering{values: proxyMode(t, "initHook.image.tag=ignored", "initHook.image.digest="+digest)}.render(t),
		"0123456789ab")
}

// A packaged chart names payloads by their digests, whatever the image of the Jobs. Proxies and caches hand over
// to a changed program, so nothing in them may change with it; other pods must restart.
func TestPayloadDigests(t *testing.T) {
	t.Parallel()
	digests := map[string]string{}
	for i, program := range []string{"registry-amd64", "registry-arm64", "registry-node-amd64", "registry-node-arm64"} {
		digests[program] = strings.Repeat(fmt.Sprint(i), 64)
	}
	for _, tag := range []string{"", "0.2.0"} {
		out := rendering{values: proxyMode(t, "initHook.image.tag="+tag, "cache.replicas=1"), digests: digests}.render(t)
		if got := decided(out).Injector.Digests; !maps.Equal(got, digests) {
			t.Errorf("the Jobs are told the digests %v, not %v", got, digests)
		}
		payloadsAreNamed(t, out, func(p injector.Program) string { return digests[p.Key()][:12] })
		seen := map[string]bool{}
		for _, w := range workloads(out) {
			key := program(w.program()) + "-" + w.pod.Spec.NodeSelector["kubernetes.io/arch"]
			if digests[key] == "" || payload(w.pod.Spec) == nil {
				continue
			}
			pod := require.Value(json.Marshal(w.pod))(t)
			hands := slices.Contains([]string{"proxy", "cache"}, w.program().Args[0])
			if strings.Contains(string(pod), digests[key][:12]) == hands {
				t.Errorf("%s: whether it restarts with a changed program is %t", w.object, !hands)
			}
			if supervised := slices.Contains(w.program().Command, "-s"); supervised != hands {
				t.Errorf("%s: supervised is %t", w.object, supervised)
			}
			seen[w.program().Args[0]] = true
		}
		for _, command := range []string{"serve", "proxy", "cache", "heal"} {
			if !seen[command] {
				t.Errorf("no pod runs %s", command)
			}
		}
	}
}

func payloadIs(t *testing.T, out *output, id string) {
	t.Helper()
	if got := decided(out).Injector.PayloadID; got != id {
		t.Errorf("the Jobs are told the payload ID %s, not %s", got, id)
	}
	payloadsAreNamed(t, out, func(injector.Program) string { return id })
}

// payloadsAreNamed checks the names of all mounted payloads.
func payloadsAreNamed(t *testing.T, out *output, id func(injector.Program) string) {
	t.Helper()
	sources := 0
	for _, w := range workloads(out) {
		p := injector.Program{Name: program(w.program()), Architecture: w.pod.Spec.NodeSelector["kubernetes.io/arch"]}
		chunks := payload(w.pod.Spec)
		if chunks == nil {
			continue
		}
		if len(chunks.Sources) != p.MaxChunks() {
			t.Errorf("%s: %d chunks, the injector creates up to %d", w.object, len(chunks.Sources), p.MaxChunks())
		}
		for i, source := range chunks.Sources {
			sources++
			if want := injector.ConfigMapName("zarf-registry", id(p), p, i); source.ConfigMap.Name != want {
				t.Errorf("%s: ConfigMap %s, the injector creates %s", w.object, source.ConfigMap.Name, want)
			}
		}
	}
	if sources == 0 {
		t.Error("no payload is mounted")
	}
}

// The schema lists exactly the existing checks.
func TestEveryPreflightCheckCanBeIgnored(t *testing.T) {
	t.Parallel()
	for _, check := range append(preflight.Checks(), "all") {
		out := rendering{values: proxyMode(t, "initHook.ignorePreflight=["+check+"]")}.render(t)
		if ignored := decided(out).Preflight.Ignore; !slices.Equal(ignored, []string{check}) {
			t.Errorf("arguments of prepare: %s", ignored)
		}
	}
	b := require.Value(os.ReadFile(filepath.Join(chartDir, "values.schema.json")))(t)
	var schema map[string]any
	require.NoError(t, json.Unmarshal(b, &schema))
	pattern, _, err := unstructured.NestedString(
		schema, "properties", "initHook", "properties", "ignorePreflight", "items", "pattern",
	)
	require.NoError(t, err)
	named := strings.Split(strings.Trim(pattern, "^()$"), "|")
	if diff := cmp.Diff(append([]string{"all"}, preflight.Checks()...), named); diff != "" {
		t.Errorf("preflight checks (-), in the schema (+):\n%s", diff)
	}
}
