// Package docs tests the documentation: links, commands, flags, values, make targets and
// tests that pages name must exist, and the troubleshooting page must list every check of preflight. It contains no
// code.
package docs

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/zarf-dev/zarf-registry/internal/cli"
	"github.com/zarf-dev/zarf-registry/internal/hook/preflight"
	"github.com/zarf-dev/zarf-registry/test/require"
)

const top = ".."

// pages returns the project's Markdown files by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || d.Name() == "dist" || d.Name() == "bin" ||
			d.Name() == "testdata"):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(name, ".md"):
			content, err := os.ReadFile(name)
			found[filepath.ToSlash(strings.TrimPrefix(name, top+string(filepath.Separator)))] = string(content)
			return err
		}
		return nil
	})
	require.NoError(t, err)
	if len(found) < 15 {
		t.Fatalf("found only %d pages", len(found))
	}
	return found
}

// forEachTestFile visits the files with the project's Go tests, in the order of their paths.
func forEachTestFile(t *testing.T, visit func(name string, content []byte)) {
	t.Helper()
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		content, err := os.ReadFile(name)
		if err == nil {
			visit(name, content)
		}
		return err
	})
	require.NoError(t, err)
}

// A line of a page.
type line struct {
	number int
	text   string
	code   bool
}

func (l line) at(page string) string { return page + ":" + strconv.Itoa(l.number) }

func lines(page string) []line {
	var out []line
	code := false
	for n, text := range strings.Split(page, "\n") {
		if strings.HasPrefix(strings.TrimSpace(text), "```") {
			code = !code
			continue
		}
		out = append(out, line{n + 1, text, code || strings.HasPrefix(text, "    ")})
	}
	return out
}

var (
	markup = regexp.MustCompile("[`*]|\\[([^]]*)\\]\\([^)]*\\)")
	link   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	quoted = regexp.MustCompile("`[^`]*`")
)

// anchors returns the anchors of a page's headings, as GitHub generates them.
func anchors(page string) []string {
	var out []string
	for _, l := range lines(page) {
		heading, ok := strings.CutPrefix(strings.TrimLeft(l.text, "#"), " ")
		if l.code || !strings.HasPrefix(l.text, "#") || !ok {
			continue
		}
		heading = markup.ReplaceAllString(heading, "$1")
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, heading)
		for n, plain := 1, anchor; slices.Contains(out, anchor); n++ {
			anchor = plain + "-" + strconv.Itoa(n)
		}
		out = append(out, anchor)
	}
	return out
}

func TestLinks(t *testing.T) {
	all := pages(t)
	checked := 0
	for name, page := range all {
		for _, l := range lines(page) {
			if l.code {
				continue
			}
			for _, m := range link.FindAllStringSubmatch(quoted.ReplaceAllString(l.text, ""), -1) {
				target, anchor, _ := strings.Cut(m[1], "#")
				file := name
				if own, ok := strings.CutPrefix(target, "https://github.com/zarf-dev/zarf-registry/blob/main/"); ok {
					file = own
				} else if strings.Contains(target, "://") {
					continue
				} else if target != "" {
					file = path.Join(path.Dir(name), target)
				}
				checked++
				if _, err := os.Stat(filepath.Join(top, file)); err != nil {
					t.Errorf("%s: broken link to %s", l.at(name), m[1])
				} else if other, ok := all[file]; ok && anchor != "" && !slices.Contains(anchors(other), anchor) {
					t.Errorf("%s: %s has no heading for #%s", l.at(name), file, anchor)
				}
			}
		}
	}
	if checked < 40 {
		t.Errorf("checked only %d links", checked)
	}
}

// TestIndex checks that every page is linked from the index of its directory, or else of the next one above.
func TestIndex(t *testing.T) {
	all := pages(t)
	for name := range all {
		if !strings.HasPrefix(name, "docs/") || name == "docs/README.md" {
			continue
		}
		dir := path.Dir(name)
		if path.Base(name) == "README.md" {
			dir = path.Dir(dir)
		}
		for all[path.Join(dir, "README.md")] == "" {
			dir = path.Dir(dir)
		}
		from := require.Value(filepath.Rel(dir, name))(t)
		if !strings.Contains(all[path.Join(dir, "README.md")], "("+filepath.ToSlash(from)) {
			t.Errorf("%s/README.md does not link to %s", dir, name)
		}
	}
}

// commands returns the command lines of a page, from code blocks and between backticks.
func commands(page string) []line {
	var out []line
	joined := ""
	for _, l := range lines(page) {
		if !l.code {
			for _, q := range quoted.FindAllString(l.text, -1) {
				out = append(out, line{l.number, strings.Trim(q, "`"), false})
			}
			continue
		}
		text := joined + strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(l.text), "$ "), "# ")
		if before, ok := strings.CutSuffix(text, `\`); ok {
			joined = before
			continue
		}
		joined = ""
		text, _, _ = strings.Cut(text, " # ")
		text, _, _ = strings.Cut(text, "   #")
		for _, part := range regexp.MustCompile(`\s(&&|\|\||\||;)\s`).Split(text, -1) {
			out = append(out, line{l.number, strings.TrimSpace(part), true})
		}
	}
	return out
}

// TestCommands checks that commands and flags of zarf-registry exist. Omitted parts are written as …
// or in capitals.
func TestCommands(t *testing.T) {
	checked := 0
	for name, page := range pages(t) {
		if name == "docs/reference/commands.md" { // generated; its sentences begin with commands, too
			continue
		}
		for _, l := range commands(page) {
			fields := strings.Fields(l.text)
			for len(fields) > 0 && (strings.Contains(fields[0], "=") || fields[0] == "sudo" || fields[0] == "time") {
				fields = fields[1:]
			}
			if len(fields) < 2 || path.Base(fields[0]) != "zarf-registry" || strings.HasSuffix(fields[0], ":") ||
				fields[1] == "in" || unicode.IsDigit(rune(fields[1][0])) || // output, which begins with the product's name
				!l.code && strings.Contains(l.text, ", ") { // a message that starts with the name
				continue
			}
			checked++
			root := cli.New(io.Discard, io.Discard)
			root.InitDefaultCompletionCmd()
			if err := parse(root, fields[1:]); err != nil {
				t.Errorf("%s: %s: %v", l.at(name), l.text, err)
			}
		}
	}
	if checked < 50 {
		t.Errorf("checked only %d commands", checked)
	}
}

// parse returns an error if a command or flag of a command line does not exist.
func parse(root *cobra.Command, args []string) error {
	cmd := root
	for _, arg := range args {
		arg = strings.TrimRight(arg, ",.;:)]")
		flag, isFlag := strings.CutPrefix(arg, "--")
		flag, _, _ = strings.Cut(flag, "=")
		switch {
		case isFlag && flag != "":
			if cmd.Flag(flag) == nil && flag != "help" && flag != "version" && !inherited(cmd, flag) {
				return fmt.Errorf("%s has no flag --%s", cmd.CommandPath(), flag)
			}
		case strings.HasPrefix(arg, "-") || arg == "" || arg == "…" || arg == "|" || arg == ">":
		case cmd.HasSubCommands():
			i := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == arg || c.HasAlias(arg) })
			if i >= 0 {
				cmd = cmd.Commands()[i]
			} else if isWord(arg) {
				return fmt.Errorf("%s has no command %s", cmd.CommandPath(), arg)
			}
		}
	}
	return nil
}

func inherited(cmd *cobra.Command, name string) bool {
	found := false
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { found = found || f.Name == name })
	return found
}

func isWord(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r != '-' && !unicode.IsLower(r) })
}

// setFlag matches Helm's flags. Values begin with a lower-case letter; Zarf's variables are in upper case.
var setFlag = regexp.MustCompile(`--set(?:-string|-json)?[ =]'?"?([a-z][A-Za-z0-9_.\[\]\\/-]*)=`)

// TestValues checks that values in --set exist.
func TestValues(t *testing.T) {
	content := require.Value(os.ReadFile(filepath.Join(top, "charts/zarf-registry/values.schema.json")))(t)
	var schema map[string]any
	require.NoError(t, yaml.Unmarshal(content, &schema))
	checked := 0
	for name, page := range pages(t) {
		for n, text := range strings.Split(page, "\n") {
			for _, m := range setFlag.FindAllStringSubmatch(text, -1) {
				checked++
				if !hasValue(schema, schema, strings.Split(regexp.MustCompile(`\[\d+\]`).ReplaceAllString(m[1], ""), ".")) {
					t.Errorf("%s:%d: value %s does not exist", name, n+1, m[1])
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("checked only %d values", checked)
	}
}

func hasValue(root, schema map[string]any, keys []string) bool {
	if ref, ok := schema["$ref"].(string); ok {
		at := root
		for _, key := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
			next, ok := at[key].(map[string]any)
			if !ok {
				return false
			}
			at = next
		}
		return hasValue(root, at, keys)
	}
	if len(keys) == 0 {
		return true
	}
	if properties, ok := schema["properties"].(map[string]any); ok {
		if next, ok := properties[keys[0]].(map[string]any); ok {
			return hasValue(root, next, keys[1:])
		}
	}
	if items, ok := schema["items"].(map[string]any); ok {
		return hasValue(root, items, keys)
	}
	// Maps with free keys, such as labels and annotations.
	closed, isClosed := schema["additionalProperties"].(bool)
	return (!isClosed || closed) && schema["properties"] == nil
}

var makeCommand = regexp.MustCompile(`^(?:sudo )?make ([a-z0-9-]+)(?:\s|$)`)

func TestMakeTargets(t *testing.T) {
	makefile := require.Value(os.ReadFile(filepath.Join(top, "Makefile")))(t)
	checked := 0
	for name, page := range pages(t) {
		for _, l := range commands(page) {
			if m := makeCommand.FindStringSubmatch(l.text); m != nil {
				checked++
				if !strings.Contains(string(makefile), "\n"+m[1]+":") {
					t.Errorf("%s: make has no target %s", l.at(name), m[1])
				}
			}
		}
	}
	if checked < 10 {
		t.Errorf("checked only %d make commands", checked)
	}
}

var goTest = regexp.MustCompile(`^go test (?:-[a-z]+ )*(\./[A-Za-z0-9_./-]+)(?: .*?-run '?([A-Za-z0-9_|/]+)'?)?`)

// TestGoTests checks that go test commands name existing packages and tests.
func TestGoTests(t *testing.T) {
	checked := 0
	for name, page := range pages(t) {
		for _, l := range commands(page) {
			m := goTest.FindStringSubmatch(l.text)
			if m == nil {
				continue
			}
			checked++
			dir, recursive := strings.CutSuffix(m[1], "/...")
			files, _ := filepath.Glob(filepath.Join(top, dir, "*_test.go"))
			if !recursive && len(files) == 0 {
				t.Errorf("%s: %s has no tests", l.at(name), dir)
			}
			if _, err := os.Stat(filepath.Join(top, dir)); err != nil {
				t.Errorf("%s: %v", l.at(name), err)
			}
			if m[2] == "" {
				continue
			}
			var functions string
			for _, file := range files {
				content := require.Value(os.ReadFile(file))(t)
				functions += string(content)
			}
			for _, want := range strings.Split(m[2], "|") {
				want, _, _ = strings.Cut(want, "/")
				if !regexp.MustCompile(`\nfunc (Test|Benchmark|Fuzz)\w*` + strings.TrimPrefix(want, "Test")).MatchString(
					functions) {
					t.Errorf("%s: %s has no test %s", l.at(name), dir, want)
				}
			}
		}
	}
	if checked < 5 {
		t.Errorf("checked only %d go test commands", checked)
	}
}

var (
	testName = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w*)(/[^`]+)?`")
	// Tests join names with these.
	namePart = regexp.MustCompile(`/|,_`)
	testFile = regexp.MustCompile("`([A-Za-z0-9_./-]+_test\\.go)`")
	comment  = regexp.MustCompile(`(?m)^\s*//.*$`)
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
)

// TestNamedTestsExist checks that test files, tests and subtests between backticks exist: each part of the name of a
// subtest is in some test of the same package.
func TestNamedTestsExist(t *testing.T) {
	packages, declared := map[string]string{}, map[string][]string{}
	forEachTestFile(t, func(name string, content []byte) {
		dir := filepath.Dir(name)
		packages[dir] += strings.NewReplacer(" ", "_", `\"`, `"`).Replace(comment.ReplaceAllString(string(content), ""))
		for _, m := range testFunc.FindAllStringSubmatch(string(content), -1) {
			declared[m[1]] = append(declared[m[1]], dir)
		}
	})
	checked := 0
	for name, page := range pages(t) {
		for _, l := range lines(page) {
			for _, m := range testFile.FindAllStringSubmatch(l.text, -1) {
				if _, err := os.Stat(filepath.Join(top, m[1])); err != nil && strings.Contains(m[1], "/") {
					t.Errorf("%s: %v", l.at(name), err)
				}
			}
			for _, m := range testName.FindAllStringSubmatch(l.text, -1) {
				checked++
				if len(declared[m[1]]) == 0 {
					t.Errorf("%s: test %s does not exist", l.at(name), m[1])
				}
				for _, subtest := range namePart.Split(m[2], -1) {
					if !slices.ContainsFunc(declared[m[1]], func(dir string) bool { return strings.Contains(packages[dir], subtest) }) {
						t.Errorf("%s: %s has no subtest %q", l.at(name), m[1], subtest)
					}
				}
			}
		}
	}
	if checked < 100 {
		t.Errorf("checked only %d tests", checked)
	}
}

// TestTroubleshooting checks that the troubleshooting page has a row for each preflight check.
func TestTroubleshooting(t *testing.T) {
	page := pages(t)["docs/reference/troubleshooting.md"]
	for _, check := range preflight.Checks() {
		if !strings.Contains(page, "|`"+check+"`|") {
			t.Errorf("no row for preflight check %s", check)
		}
	}
}

// TestReleasesAreBuiltWithAPatchedGo checks that go.mod names a patch release, which the workflows
// install: the first release of a minor version has known vulnerabilities.
func TestReleasesAreBuiltWithAPatchedGo(t *testing.T) {
	for file, want := range map[string]string{
		"go.mod":                         `(?m)^toolchain go1\.\d+\.[1-9]\d*$`,
		".github/workflows/release.yaml": `go-version-file: .*go\.mod\n(?s:.*)run: make vulncheck\n(?s:.*)run: make release`,
		".github/renovate.json":          `"matchDepTypes": \["toolchain"\]`,
	} {
		content := require.Value(os.ReadFile(filepath.Join(top, file)))(t)
		if !regexp.MustCompile(want).Match(content) {
			t.Errorf("%s does not match %s", file, want)
		}
	}
}

// TestNightlyRunsEverything checks that the workflow of each night runs the parts of make test-all, which fuzz and soak
// as jobs of their own; make check runs with every push.
func TestNightlyRunsEverything(t *testing.T) {
	makefile := require.Value(os.ReadFile(filepath.Join(top, "Makefile")))(t)
	workflow := require.Value(os.ReadFile(filepath.Join(top, ".github/workflows/nightly.yaml")))(t)
	parts := regexp.MustCompile(`(?m)^PARTS := check (.*) \$\(NETWORKS:%=e2e-%\)$`).FindStringSubmatch(string(makefile))
	if parts == nil {
		t.Fatal("the Makefile has no PARTS")
	}
	want := strings.Fields(parts[1])
	for _, family := range []string{"IPv4", "IPv6", "DualStack"} {
		want = append(want, "e2e-"+family+"-iptables", "e2e-"+family+"-nftables")
	}
	for _, part := range want {
		if !regexp.MustCompile(`(?m)(^          - |make )` + part + `\b`).Match(workflow) {
			t.Errorf("nightly.yaml does not run make %s", part)
		}
	}
}

// TestLength checks that a reader gets through: what the README says before Next, and all pages but that of commands.
func TestLength(t *testing.T) {
	all := pages(t)
	start, _, _ := strings.Cut(all["README.md"], "\n## Next")
	if n := len(strings.Fields(start)); n > 350 {
		t.Errorf("README.md has %d words before Next, more than 350", n)
	}
	words := 0
	for name, page := range all {
		if strings.HasPrefix(name, "docs/") && name != "docs/reference/commands.md" {
			words += len(strings.Fields(page))
		}
	}
	if words > 22_000 {
		t.Errorf("the pages have %d words, more than 22,000", words)
	}
}

// TestThroughTheCode checks that each function of the table follows its package.
func TestThroughTheCode(t *testing.T) {
	_, table, found := strings.Cut(pages(t)["docs/dev/architecture.md"], "|flow|")
	_, table, rows := strings.Cut(table, "|---|---|\n")
	if !found || !rows {
		t.Fatal("docs/dev/architecture.md has no table that begins with |flow|")
	}
	var code []byte
	for _, quoted := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(table, -1) {
		if files, _ := filepath.Glob(filepath.Join(top, "internal", quoted[1], "*.go")); len(files) > 0 {
			code = nil
			for _, file := range files {
				content := require.Value(os.ReadFile(file))(t)
				code = append(code, content...)
			}
			continue
		}
		receiver, name, method := strings.Cut(quoted[1], ".")
		pattern := `(?m)^func (\(\w+ \S+\) )?` + receiver + `\(`
		if method {
			pattern = `(?m)^func \(\w+ \*?` + receiver + `\) ` + name + `\(`
		}
		if !regexp.MustCompile(pattern).Match(code) {
			t.Errorf("%s is not in the package that stands before it", quoted[1])
		}
	}
}
