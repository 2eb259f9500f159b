package templates

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/engine"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// Branch coverage of the templates works with marks: calls of lookup, the only template function that
// calls back into this program, for an API version that no cluster has.
const markVersion = "branches.test"

// branch is one branch of an if, with or range, or the body of a define.
type branch struct {
	file string
	line int
	what string // the action, prefixed with "otherwise" for the branch without its condition
}

func (b branch) String() string { return fmt.Sprintf("%s:%d: %s", b.file, b.line, b.what) }

var branches struct {
	sync.Mutex
	all   []branch
	taken []int // number of times, in the order of all
}

// scrypt makes checksums of passwords expensive: a fifth of a second for each rendering without a cluster.
const scrypt = `derivePassword 1 "maximum" $content .NodeConfig.config.release "node-config"`

// marked returns the chart of this repository with marks, which do not change its output, and with cheap
// checksums of passwords.
var marked = sync.OnceValues(func() (*chart.Chart, error) {
	c, err := loadSource()
	if err != nil {
		return nil, err
	}
	replaced := 0
	for _, file := range c.Templates {
		replaced += strings.Count(string(file.Data), scrypt)
		text := strings.ReplaceAll(string(file.Data), scrypt, `printf "%s %s" $content .NodeConfig.config.release`)
		text, err := mark(strings.TrimPrefix(file.Name, "templates/"), text, func(b branch) int {
			branches.all = append(branches.all, b)
			return len(branches.all) - 1
		})
		if err != nil {
			return nil, err
		}
		file.Data = []byte(text)
	}
	branches.taken = make([]int, len(branches.all))
	if replaced != 1 {
		return nil, fmt.Errorf("the templates contain %q %d times, want 1", scrypt, replaced)
	}
	return c, nil
})

// actionForm matches an action: left trim marker, content, right trim marker. Strings may contain
// braces.
var actionForm = regexp.MustCompile(
	"(?s)\\{\\{(-\\s)?\\s*(/\\*.*?\\*/|(?:\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`|[^\"`])*?)\\s*?(\\s-)?\\}\\}",
)

// mark inserts a mark at the beginning of each branch of a template, and adds missing else branches. A
// range needs none: it has no condition.
func mark(file, text string, note func(branch) int) (string, error) {
	type block struct {
		what      string
		line      int
		otherwise bool // it has an else, or needs none
	}
	var open []block
	var b strings.Builder
	put := func(line int, what, trim string) {
		i := note(branch{file, line, strings.Join(strings.Fields(what), " ")})
		fmt.Fprintf(&b, "{{$_ := lookup %q %q %q %q%s}}", markVersion, strconv.Itoa(i), "", "x", trim)
	}
	at := 0
	for _, m := range actionForm.FindAllStringSubmatchIndex(text, -1) {
		action, says, line := text[m[0]:m[1]], text[m[4]:m[5]], strings.Count(text[:m[0]], "\n")+1
		before, behind := "", ""
		if m[2] >= 0 {
			before = "- "
		}
		if m[6] >= 0 {
			behind = " -"
		}
		b.WriteString(text[at:m[0]])
		at = m[1]
		word, _, _ := strings.Cut(says, " ")
		switch word {
		case "define", "if", "with", "range":
			open = append(open, block{says, line, word == "define" || word == "range"})
			b.WriteString(action)
			put(line, says, behind)
		case "else":
			if len(open) == 0 {
				return "", fmt.Errorf("%s:%d: else of nothing", file, line)
			}
			last := &open[len(open)-1]
			b.WriteString(action)
			if says == "else" {
				last.otherwise = true
				says = "otherwise: " + last.what
			}
			put(line, says, behind)
		case "end":
			if len(open) == 0 {
				return "", fmt.Errorf("%s:%d: end of nothing", file, line)
			}
			last := open[len(open)-1]
			open = open[:len(open)-1]
			if !last.otherwise {
				b.WriteString("{{" + before + "else}}")
				put(last.line, "otherwise: "+last.what, "")
			}
			b.WriteString(action)
		default:
			b.WriteString(action)
		}
	}
	if len(open) > 0 {
		return "", fmt.Errorf("%s:%d: %s has no end", file, open[0].line, open[0].what)
	}
	b.WriteString(text[at:])
	return b.String(), nil
}

// watched records marks and passes all other lookups on.
type watched struct{ engine.ClientProvider }

func (w watched) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	if apiVersion != markVersion {
		return w.ClientProvider.GetClientFor(apiVersion, kind)
	}
	i, err := strconv.Atoi(kind)
	if err != nil {
		return nil, false, err
	}
	branches.Lock()
	defer branches.Unlock()
	branches.taken[i]++
	return nothing{}, false, nil
}

// nowhere is a missing cluster, as in helm template: lookups find nothing.
type nowhere struct{}

func (nowhere) GetClientFor(string, string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return nothing{}, true, nil
}

type nothing struct {
	dynamic.NamespaceableResourceInterface
}

func (n nothing) Namespace(string) dynamic.ResourceInterface { return n }

func (nothing) Get(context.Context, string, metav1.GetOptions, ...string) (*unstructured.Unstructured, error) {
	return nil, errNotFound
}

func (nothing) List(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	return nil, errNotFound
}

// errNotFound is shared, because every mark of a rendering returns it.
var errNotFound = apierrors.NewNotFound(schema.GroupResource{}, "")

func TestBranchMarksDoNotChangeTheRendering(t *testing.T) {
	for _, test := range []struct{ template, want string }{
		{"a\n{{- if .x }}\n b\n{{- end }}\nc", "a\n{{- if .x }}M\n b\n{{- else}}M{{- end }}\nc"},
		{`{{- if eq "}}" .x -}} b {{ else -}} c {{- end -}}`, `{{- if eq "}}" .x -}}M-  b {{ else -}}M-  c {{- end -}}`},
		{"{{ with .x }}{{ . }}{{ else if .y }}{{ end }}", "{{ with .x }}M{{ . }}{{ else if .y }}M{{else}}M{{ end }}"},
		{"{{ range .x }}{{ . }}{{ end }}", "{{ range .x }}M{{ . }}{{ end }}"},
		{"{{- /* if */ -}}\n{{- define \"a\" -}}\n{{ end }}", "{{- /* if */ -}}\n{{- define \"a\" -}}M- \n{{ end }}"},
	} {
		got, err := mark("test", test.template, func(branch) int { return 0 })
		if err != nil {
			t.Errorf("%q: %v", test.template, err)
		}
		got = regexp.MustCompile(
			`\{\{\$_ := lookup "branches.test" "\d+" "" "x"( -)?\}\}`,
		).ReplaceAllStringFunc(got, func(m string) string {
			if strings.HasSuffix(m, " -}}") {
				return "M- "
			}
			return "M"
		})
		if got != test.want {
			t.Errorf("%q:\n got %q\nwant %q", test.template, got, test.want)
		}
	}
	for _, broken := range []string{"{{ if .x }}", "{{ end }}", "{{ else }}"} {
		if _, err := mark("test", broken, func(branch) int { return 0 }); err == nil {
			t.Errorf("%q is accepted", broken)
		}
	}
	plain := loadChart(t)
	for _, name := range []string{"nodeport", "everything", "node-config", "external"} {
		cluster := clusters()["a cluster of all sorts"]()
		want, err := rendering{chart: plain, cluster: cluster}.helm(ciValues(t)[name])
		if err != nil || len(want) == 0 {
			t.Fatalf("%s: %d texts, error %v", name, len(want), err)
		}
		got, err := rendering{cluster: cluster}.helm(ciValues(t)[name])
		if err != nil || !maps.Equal(unsalted(got), unsalted(want)) {
			t.Errorf("%s: marks change the rendering, error %v", name, err)
		}
	}
}
