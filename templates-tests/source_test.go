package templates

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

// templates returns the text of every file of templates/, by its path there.
func templates(t testing.TB) map[string]string {
	t.Helper()
	dir := filepath.Join(chartDir, "templates")
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		found[filepath.ToSlash(name)] = string(b)
		return err
	})
	if err != nil || len(found) < 10 {
		t.Fatalf("%s: %d files, error %v", dir, len(found), err)
	}
	return found
}

var comments = regexp.MustCompile(`(?s)\{\{-? ?/\*.*?\*/ ?-?\}\}`)

func TestTheTemplatesKeepTheirRules(t *testing.T) {
	define := regexp.MustCompile(`\{\{-? ?define "([^"]*)"`)
	kind := regexp.MustCompile(`(?m)^kind: `)
	condition := regexp.MustCompile(`^\{\{- if (and \()?include "zarf-registry\.[a-zA-Z.]+" \.`)
	random := regexp.MustCompile(`\b(now|randAlpha\w*|randNumeric|randAscii|randBytes|uuidv4|genCA\w*|genSelfSigned\w*|genSignedCert\w*|genPrivateKey|htpasswd|bcrypt|getHostByName)[ )]`)
	defined := map[string]string{}
	for file, text := range templates(t) {
		code := comments.ReplaceAllString(text, "")
		for _, match := range define.FindAllStringSubmatch(text, -1) {
			if !strings.HasPrefix(match[1], "zarf-registry.") {
				t.Errorf("%s: %q does not begin with zarf-registry.: it would meet the templates of other charts", file, match[1])
			}
			if other := defined[match[1]]; other != "" {
				t.Errorf("%s: %q is in %s too", file, match[1], other)
			}
			defined[match[1]] = file
		}
		if strings.Contains(code, "lookup ") != (file == "_cluster.tpl") {
			t.Errorf("%s: lookup belongs into _cluster.tpl, and nowhere else", file)
		}
		if found := random.FindString(code); found != "" {
			t.Errorf("%s: %q gives something else at every upgrade", file, found)
		}
		if strings.Contains(file, "/") && strings.HasSuffix(file, ".yaml") {
			// The Jobs and what they need, which are hooks, are there in every mode.
			always := strings.HasPrefix(file, "init-hook/") && file != "init-hook/networkpolicy.yaml"
			if first, _, _ := strings.Cut(text, "\n"); condition.MatchString(first) == always {
				t.Errorf("%s: the first line is not the condition, by a named helper: %s", file, first)
			}
			if n := len(kind.FindAllString(text, -1)); n > 1 {
				t.Errorf("%s: %d objects", file, n)
			}
		}
	}
	used := map[string]bool{}
	for _, text := range templates(t) {
		// Some helpers are passed by name: whatever names one and does not define it uses it.
		for _, match := range regexp.MustCompile(`(define )?"(zarf-registry\.[^"]*)"`).FindAllStringSubmatch(text, -1) {
			if match[1] == "" {
				used[match[2]] = true
			}
		}
	}
	for name, file := range defined {
		if !used[name] {
			t.Errorf("%s: nobody includes %q", file, name)
		}
	}
}

// As helm lint --strict does.
func TestLintFindsNothing(t *testing.T) {
	for name, values := range ciValues(t) {
		for _, message := range lint.AllWithKubeVersion(chartDir, values, "zarf", &kubeVersion).Messages {
			if message.Severity >= support.WarningSev {
				t.Errorf("%s: %v", name, message)
			}
		}
	}
}

// Helm keeps the chart in every release's Secret, gzipped, and that holds 1 MiB.
func TestTheChartLeavesTheReleaseSecretRoom(t *testing.T) {
	size := 0
	c := loadChart(t)
	for _, file := range c.Raw {
		size += len(file.Data)
	}
	if size == 0 || size > 256<<10 {
		t.Errorf("the chart has %d bytes in %d files", size, len(c.Raw))
	}
	for _, file := range c.Files {
		if strings.HasPrefix(file.Name, "ci/") {
			t.Errorf("%s is packaged", file.Name)
		}
	}
}

func TestTheNotesAreShortAndSayWhatToDo(t *testing.T) {
	for name, values := range ciValues(t) {
		notes := rendering{values: values}.render(t).files["NOTES.txt"]
		if lines := strings.Count(strings.TrimSpace(notes), "\n") + 1; lines < 5 || lines > 19 {
			t.Errorf("%s: %d lines", name, lines)
		}
		mode, says := decidedMode(rendering{values: values}.render(t)), []string{"kubectl --namespace zarf get"}
		const pull = "zarf-registry-pull --type kubernetes.io/dockerconfigjson"
		switch anonymous := name == "nodeport-anonymous"; {
		case mode == "external":
			says = append(says, "mode: external", "registry.example.com:5000/team/<repository>", "zarf-registry-state")
		case mode == "nodeport" && !anonymous:
			says = append(says, "mode: nodeport", "127.0.0.1:31999/<repository>", "init-hook images push --namespace zarf", "imagePullSecrets (zarf-registry-pull)", pull)
		default:
			says = append(says, "mode: "+mode, "127.0.0.1:3", "init-hook images push --namespace zarf")
			if strings.Contains(notes, pull) {
				t.Errorf("%s: the notes ask for a credential that no pull needs:\n%s", name, notes)
			}
		}
		if mode != "external" {
			says = append(says, "init-hook certs show --namespace zarf")
			if (name == "no-rotation") != strings.Contains(notes, "Nothing renews the certificates") {
				t.Errorf("%s: the notes say, or do not say, that nothing renews the certificates:\n%s", name, notes)
			}
		}
		for _, want := range says {
			if !strings.Contains(notes, want) {
				t.Errorf("%s: the notes do not say %q:\n%s", name, want, notes)
			}
		}
	}
}
