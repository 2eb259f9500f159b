// Package templates tests the chart by rendering it in-process with Helm's engine. It checks what is
// rendered, not the text of the templates. It needs no cluster; test/e2e installs the chart on a real
// one.
package templates

import (
	"bytes"
	encoding "encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/sync/errgroup"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	jobsettings "github.com/zarf-dev/zarf-registry/internal/release/settings"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const chartDir = "../charts/zarf-registry"

// kubeVersion is the version of Kubernetes to render for. The chart renders the same for every
// version, except for the healer (TestHealerByVersion).
var kubeVersion = chartutil.KubeVersion{Version: "v1.31.0", Major: "1", Minor: "31"}

// rendering describes how to render the chart. With only values it is `helm template zarf-registry`.
type rendering struct {
	release     string         // "" means zarf-registry, or what zarf.compatible needs
	values      map[string]any // as in a values file
	cluster     *cluster       // nil means that lookup finds nothing, as in helm template
	upgrade     bool
	version     string // of Kubernetes; "" means kubeVersion
	helmVersion string // "" means that of the SDK

	apiVersions []string          // of the API server, in addition to Helm's defaults
	chart       *chart.Chart      // nil means the chart of this repository
	digests     map[string]string // of files/programs.json; nil means that there is no such file
	hookDigests map[string]string // of files/init-hook.json; nil means that there is no such file
}

// output is a rendered chart.
type output struct {
	files   map[string]string // by path below templates/
	objects []object          // in the order of their files
	values  chartutil.Values  // including the chart's defaults
}

// value returns a value by its path, nil if there is none.
func (o *output) value(path string) any {
	var value any = o.values.AsMap()
	for _, key := range strings.Split(path, ".") {
		table, _ := value.(map[string]any)
		value = table[key]
	}
	return value
}

// object is a rendered object.
type object struct {
	unstructured.Unstructured
	file  string
	typed kruntime.Object
}

func (o object) String() string { return o.GetKind() + " " + o.GetName() }

func (o object) hook() string { return o.GetAnnotations()["helm.sh/hook"] }

func loadChart(t testing.TB) *chart.Chart {
	t.Helper()
	c, err := loadSource()
	require.NoError(t, err, "loading the chart")
	return c
}

// scrypt makes checksums of passwords expensive: a fifth of a second for each rendering without a cluster.
const scrypt = `derivePassword 1 "maximum" $content $release "node-config"`

// quickChart returns the chart of this repository with cheap checksums of passwords. Tests must not modify it.
var quickChart = sync.OnceValues(func() (*chart.Chart, error) {
	c, err := loadSource()
	if err != nil {
		return nil, err
	}
	replaced := 0
	for _, file := range c.Templates {
		replaced += strings.Count(string(file.Data), scrypt)
		file.Data = []byte(strings.ReplaceAll(string(file.Data), scrypt, `printf "%s %s" $content $release`))
	}
	if replaced != 1 {
		return nil, fmt.Errorf("the templates contain %q %d times, want 1", scrypt, replaced)
	}
	return c, nil
})

// chartVersion is the version of the chart in these tests, so that a new version of the project changes no test.
const chartVersion = "0.1.0"

// loadSource loads the chart as it is in the repository, without the files that make payload and make images write.
func loadSource() (*chart.Chart, error) {
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		return nil, err
	}
	c.Metadata.Version, c.Metadata.AppVersion = chartVersion, chartVersion
	generated := func(f *chart.File) bool { return f.Name == digestFile || f.Name == hookDigestFile }
	c.Files, c.Raw = slices.DeleteFunc(c.Files, generated), slices.DeleteFunc(c.Raw, generated)
	return c, nil
}

const (
	digestFile     = "files/programs.json"
	hookDigestFile = "files/init-hook.json"
)

// try renders the chart and decodes it as strictly as the API server. The error is Helm's own.
func (r rendering) try(t testing.TB) (*output, error) {
	t.Helper()
	out, err := r.output()
	var invalid invalidError
	if errors.As(err, &invalid) {
		t.Fatal(err)
	}
	return out, err
}

// invalidError is an error of the tests' values or of a rendered object, and not one of Helm.
type invalidError struct{ error }

// output is try for all goroutines. Without a cluster and with the chart of this repository, the same values are
// rendered only once.
func (r rendering) output() (*output, error) {
	text, err := yaml.Marshal(r.values)
	if err != nil {
		return nil, invalidError{err}
	}
	cacheable := r.cluster == nil && r.chart == nil && r.digests == nil && r.hookDigests == nil
	key := fmt.Sprint(r.release, r.upgrade, r.version, r.helmVersion, r.apiVersions, "\n", string(text))
	if cacheable {
		if out, ok := outputs.Load(key); ok {
			return out.(*output).copy(), nil
		}
	}
	// Helm reads values as JSON, in which all numbers are float64.
	values, err := chartutil.ReadValues(text)
	if err != nil {
		return nil, invalidError{err}
	}
	texts, err := r.helm(values)
	if err != nil {
		return nil, err
	}
	c := r.chart
	if c == nil {
		if c, err = quickChart(); err != nil {
			return nil, err
		}
	}
	out := &output{files: texts}
	if out.values, err = chartutil.CoalesceValues(c, values); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(out.files)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for i, document := range documents(out.files[name]) {
			o, err := decode(document)
			if err != nil {
				return nil, invalidError{fmt.Errorf("%s, object %d: %w\n%s", name, i, err, document)}
			}
			o.file = name
			out.objects = append(out.objects, o)
		}
	}
	if cacheable {
		outputs.Store(key, out.copy())
	}
	return out, nil
}

// outputs caches renderings by their parameters.
var outputs sync.Map

// copy returns an output whose objects may be modified.
func (o *output) copy() *output {
	c := &output{files: maps.Clone(o.files), values: o.values, objects: slices.Clone(o.objects)}
	for i := range c.objects {
		c.objects[i] = c.objects[i].copy()
	}
	return c
}

func (o object) copy() object {
	o.typed = o.typed.DeepCopyObject()
	o.Unstructured = *o.DeepCopy()
	if u, ok := o.typed.(*unstructured.Unstructured); ok {
		o.Unstructured = *u
	}
	return o
}

// helm renders the chart as Helm does. It returns non-empty texts by the path of their template below
// templates/.
func (r rendering) helm(given chartutil.Values) (map[string]string, error) {
	release := r.release
	if release == "" {
		release = "zarf-registry"
		if compatible, _ := given.PathValue("zarf.compatible"); compatible == true {
			release = "zarf-docker-registry" // Zarf looks for it
		}
	}
	options := chartutil.ReleaseOptions{
		Name: release, Namespace: "zarf", IsInstall: !r.upgrade, IsUpgrade: r.upgrade, Revision: 1,
	}
	if r.upgrade {
		options.Revision = 2
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = kubeVersion
	capabilities.APIVersions = append(slices.Clone(capabilities.APIVersions), r.apiVersions...)
	if r.version != "" {
		capabilities.KubeVersion.Version = r.version // templates use neither Major nor Minor
	}
	if r.helmVersion != "" {
		capabilities.HelmVersion.Version = r.helmVersion
	}
	c := r.chart
	if c == nil {
		var err error
		if c, err = quickChart(); err != nil {
			return nil, err
		}
	}
	for name, digests := range map[string]map[string]string{digestFile: r.digests, hookDigestFile: r.hookDigests} {
		if digests == nil {
			continue
		}
		content, err := encoding.Marshal(digests)
		if err != nil {
			return nil, err
		}
		packaged := *c
		packaged.Files = append(slices.Clone(c.Files), &chart.File{Name: name, Data: content})
		c = &packaged
	}
	values, err := chartutil.ToRenderValuesWithSchemaValidation(c, given, options, capabilities, r.chart == nil)
	if err == nil && r.chart == nil && !accepted(values) {
		values, err = chartutil.ToRenderValues(c, given, options, capabilities) // for its error message
	}
	if err != nil {
		return nil, err
	}
	var texts map[string]string
	if r.cluster != nil {
		texts, err = engine.RenderWithClientProvider(c, values, r.cluster)
	} else {
		texts, err = engine.Render(c, values)
	}
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for name, text := range texts {
		if strings.TrimSpace(text) != "" {
			found[strings.TrimPrefix(name, path.Join(c.Name(), "templates")+"/")] = text
		}
	}
	return found, nil
}

// accepted reports whether values match the schema of this repository's chart. Helm compiles the
// schema for each rendering, so Helm's own validation is only used for its error message.
func accepted(top chartutil.Values) bool {
	schema, err := compiled()
	if err != nil {
		return false
	}
	values, err := top.Table("Values")
	return err == nil && schema.Validate(values.AsMap()) == nil
}

var compiled = sync.OnceValues(func() (*jsonschema.Schema, error) {
	c, err := quickChart()
	if err != nil {
		return nil, err
	}
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(c.Schema))
	if err != nil {
		return nil, err
	}
	const name = "file:///values.schema.json"
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(name, schema); err != nil {
		return nil, err
	}
	return compiler.Compile(name)
})

// render is try for a rendering that must succeed.
func (r rendering) render(t testing.TB) *output {
	t.Helper()
	out, err := r.try(t)
	require.NoError(t, err, "rendering")
	if len(out.objects) == 0 {
		t.Fatal("rendering: no objects")
	}
	return out
}

var separator = regexp.MustCompile(`(?m)^---\s*$`)

func documents(text string) []string {
	var found []string
	for _, document := range separator.Split(text, -1) {
		if strings.TrimSpace(document) != "" {
			found = append(found, document)
		}
	}
	return found
}

func TestMain(m *testing.M) {
	// Rendering allocates much and retains little.
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

func init() {
	// The kinds of the Prometheus operator are decoded as strictly as those of Kubernetes.
	if err := monitoringv1.AddToScheme(scheme.Scheme); err != nil {
		panic(err)
	}
}

var strict = json.NewSerializerWithOptions(
	json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true},
)

// foreign are API groups whose objects are not decoded into typed structs.
var foreign = []string{"gateway.networking.k8s.io", "cert-manager.io"}

// decoded caches objects by their text, because most objects appear in many renderings.
var decoded sync.Map

// decode returns a new copy of an object to each caller.
func decode(document string) (object, error) {
	known, ok := decoded.Load(document)
	if !ok {
		o, err := decodeAnew(document)
		if err != nil {
			return object{}, err
		}
		known, _ = decoded.LoadOrStore(document, o)
	}
	return known.(object).copy(), nil
}

func decodeAnew(document string) (object, error) {
	var about struct {
		APIVersion string `json:"apiVersion"`
	}
	if err := yaml.Unmarshal([]byte(document), &about); err != nil {
		return object{}, err
	}
	if group, _, _ := strings.Cut(about.APIVersion, "/"); slices.Contains(foreign, group) {
		o := object{}
		err := yaml.UnmarshalStrict([]byte(document), &o.Object)
		o.typed = &o.Unstructured
		return o, err
	}
	typed, _, err := strict.Decode([]byte(document), nil, nil)
	if err != nil {
		return object{}, err
	}
	o := object{typed: typed}
	o.Object, err = kruntime.DefaultUnstructuredConverter.ToUnstructured(typed)
	return o, err
}

// find returns the object of a type and name.
func find[T kruntime.Object](t testing.TB, out *output, name string) T {
	t.Helper()
	for _, o := range out.objects {
		if typed, ok := o.typed.(T); ok && o.GetName() == name {
			return typed
		}
	}
	var zero T
	t.Fatalf("no %T named %s", zero, name)
	return zero
}

// all returns all objects of a type.
func all[T kruntime.Object](out *output) []T {
	var found []T
	for _, o := range out.objects {
		if typed, ok := o.typed.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

// text returns everything that was rendered, for comparison.
func (o *output) text() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(o.files)) {
		fmt.Fprintf(&b, "# %s\n%s\n", name, strings.TrimSpace(o.files[name]))
	}
	return b.String()
}

func mustYAML(t testing.TB, value any) string {
	t.Helper()
	return string(require.Value(yaml.Marshal(value))(t))
}

// ciValues returns all values files by name: those of ci/, which chart-testing installs
// (TestChartTesting in test/e2e), and those of testdata/values, which need what no test cluster has,
// or would add nothing to the installations.
func ciValues(t testing.TB) map[string]map[string]any {
	t.Helper()
	filesOnce.Do(func() { valuesByFile = readValuesFiles(t) })
	return maps.Clone(valuesByFile)
}

var (
	filesOnce    sync.Once
	valuesByFile map[string]map[string]any
)

func readValuesFiles(t testing.TB) map[string]map[string]any {
	t.Helper()
	const suffix = "-values.yaml"
	found := valuesFiles(t, filepath.Join(chartDir, "ci", "*"+suffix), suffix)
	for name, values := range valuesFiles(t, "testdata/values/*"+suffix, suffix) {
		if _, twice := found[name]; twice {
			t.Fatalf("%s is in both directories", name)
		}
		found[name] = values
	}
	return found
}

// valuesFiles reads the values files that match a pattern, of which there must be at least one, by
// name without the suffix.
func valuesFiles(t testing.TB, pattern, suffix string) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, error %v", pattern, len(files), err)
	}
	found := map[string]map[string]any{}
	for _, file := range files {
		b := require.Value(os.ReadFile(file))(t)
		var values map[string]any
		require.NoError(t, yaml.UnmarshalStrict(b, &values), file)
		found[strings.TrimSuffix(filepath.Base(file), suffix)] = values
	}
	return found
}

// combination is a values file rendered in a cluster.
type combination struct {
	name, file, cluster string
	*output
}

// everywhere are the values files that matrix renders in every cluster, others in those of elsewhere: they add what does
// not depend on the cluster.
var (
	everywhere = []string{
		"cache", "default", "everything", "explicit", "external", "hostnetwork", "node-config", "node-config-mirrors",
		"nodeport", "proxy",
	}
	elsewhere = []string{"no cluster", "a cluster that remembers nodeport mode", "a cluster of all sorts"}
)

// matrix renders the values files in clusters, once for all tests. Tests must not modify the result.
func matrix(t testing.TB) []combination {
	t.Helper()
	matrixOnce.Do(func() {
		var all []combination
		var renderings []rendering
		for file, values := range ciValues(t) {
			for where, cluster := range clusters() {
				if !slices.Contains(everywhere, file) && !slices.Contains(elsewhere, where) {
					continue
				}
				all = append(all, combination{file + " in " + where, file, where, nil})
				renderings = append(renderings, rendering{values: values, cluster: cluster()})
			}
		}
		for i, out := range renderAll(t, renderings) {
			all[i].output = out
		}
		allCombinations = all
	})
	if len(allCombinations) == 0 {
		t.Fatal("the matrix could not be rendered")
	}
	return allCombinations
}

// renderAll renders on all CPUs.
func renderAll(t testing.TB, renderings []rendering) []*output {
	t.Helper()
	outputs := make([]*output, len(renderings))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, r := range renderings {
		group.Go(func() (err error) {
			outputs[i], err = r.output()
			return err
		})
	}
	require.NoError(t, group.Wait(), "rendering")
	return outputs
}

var (
	matrixOnce      sync.Once
	allCombinations []combination
)

// renderedFile returns a values file as `helm template` renders it.
func renderedFile(t testing.TB, name string) *output {
	t.Helper()
	values, ok := ciValues(t)[name]
	if !ok {
		t.Fatalf("no values file %s", name)
	}
	return rendering{values: values}.render(t)
}

// with returns a copy of values with more of them set, each as path=YAML, like --set.
func with(t testing.TB, values map[string]any, sets ...string) map[string]any {
	t.Helper()
	var copied map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(mustYAML(t, values)), &copied))
	if copied == nil {
		copied = map[string]any{}
	}
	for _, set := range sets {
		name, text, ok := strings.Cut(set, "=")
		if !ok {
			t.Fatalf("%q is not path=value", set)
		}
		var value any
		require.NoError(t, yaml.Unmarshal([]byte(text), &value), set)
		keys := strings.Split(name, ".")
		at := copied
		for _, key := range keys[:len(keys)-1] {
			next, ok := at[key].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[key] = next
			}
			at = next
		}
		at[keys[len(keys)-1]] = value
	}
	return copied
}

// settingsOf are the settings that the chart gives a Job of a step.
func settingsOf(out *output, step string) (jobsettings.Settings, error) {
	for _, arg := range hookArguments(out, step) {
		if document, ok := strings.CutPrefix(arg, "--settings="); ok {
			return jobsettings.Parse([]byte(document))
		}
	}
	return jobsettings.Settings{}, fmt.Errorf("%s has no settings", step)
}

// decided are the settings of the Jobs; one of the invariants is that they are valid, and the same for all.
func decided(out *output) jobsettings.Settings {
	s, _ := settingsOf(out, "prepare")
	return s
}

// decidedMode is the mode that the Jobs are told.
func decidedMode(out *output) string { return string(decided(out).Mode) }

// proxyMode returns the minimal values for proxy mode.
func proxyMode(t testing.TB, sets ...string) map[string]any {
	t.Helper()
	return with(t, map[string]any{"registryProxy": true}, sets...)
}
