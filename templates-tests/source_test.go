package templates

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
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

func TestTemplateConventions(t *testing.T) {
	t.Parallel()
	define := regexp.MustCompile(`\{\{-? ?define "([^"]*)"`)
	kind := regexp.MustCompile(`(?m)^kind: `)
	// A file decides what it needs, and then whether it renders anything.
	const decide = `{{- include "zarf-registry.decide" . -}}`
	condition := regexp.MustCompile(`^\{\{- (if|with)( and)? \.(zr|Values)\.`)
	random := regexp.MustCompile(
		`\b(now|randAlpha\w*|randNumeric|randAscii|randBytes|uuidv4|genCA\w*|genSelfSigned\w*|genSignedCert\w*|genPrivateKey|htpasswd|bcrypt|getHostByName)[ )]`,
	)
	// The salt stays in a Secret, so it is random only once.
	const salt = `b64dec | default (randAlphaNum 32)`
	defined := map[string]string{}
	for file, text := range templates(t) {
		code := comments.ReplaceAllString(text, "")
		for _, match := range define.FindAllStringSubmatch(text, -1) {
			if !strings.HasPrefix(match[1], "zarf-registry.") {
				t.Errorf("%s: %q does not begin with zarf-registry., so it may conflict with other charts", file, match[1])
			}
			if other := defined[match[1]]; other != "" {
				t.Errorf("%s: %q is defined in %s too", file, match[1], other)
			}
			defined[match[1]] = file
		}
		if strings.Contains(code, "lookup ") != (file == "_cluster.tpl") {
			t.Errorf("%s: lookup is only allowed in _cluster.tpl", file)
		}
		// _cluster.tpl checks the release's previous namespace, and NOTES.txt prints Helm commands.
		if strings.Contains(code, ".Release.Namespace") && file != "_decisions.tpl" && file != "_cluster.tpl" &&
			file != "init-hook/_settings.tpl" && file != "NOTES.txt" {
			t.Errorf("%s: use .zr.namespace instead of .Release.Namespace", file)
		}
		if found := random.FindString(strings.NewReplacer(salt, "", ".secrets.htpasswd", "").Replace(code)); found != "" {
			t.Errorf("%s: %q changes at every upgrade", file, found)
		}
		if !strings.HasSuffix(file, ".tpl") {
			rest, decides := strings.CutPrefix(text, decide+"\n")
			if !decides {
				t.Errorf("%s: the first line is not %s", file, decide)
			}
			// The Jobs and their objects, except rights, are rendered in every mode, and validation renders nothing.
			always := strings.HasPrefix(file, "init-hook/") && file != "init-hook/networkpolicy.yaml" &&
				!strings.Contains(file, "role")
			object := strings.Contains(file, "/") && path.Base(file) != "validate.yaml"
			if object && condition.MatchString(rest) == always {
				first, _, _ := strings.Cut(rest, "\n")
				t.Errorf("%s: the second line is not a condition: %s", file, first)
			}
			if n := len(kind.FindAllString(text, -1)); n > 1 {
				t.Errorf("%s: %d objects", file, n)
			}
		}
	}
	used := map[string]bool{}
	for _, text := range templates(t) {
		// Some helpers are passed by name, so any mention outside a define is a use.
		for _, match := range regexp.MustCompile(`(define )?"(zarf-registry\.[^"]*)"`).FindAllStringSubmatch(text, -1) {
			if match[1] == "" {
				used[match[2]] = true
			}
		}
	}
	for name, file := range defined {
		if !used[name] {
			t.Errorf("%s: %q is never included", file, name)
		}
	}
}

// Helm stores the chart and the rendered objects in a Secret for each release, as base64 in gzipped
// JSON, limited to 1 MiB. The chart may use a quarter of it.
func TestChartFitsInTheReleaseSecret(t *testing.T) {
	t.Parallel()
	c := loadChart(t)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	require.NoError(t, json.NewEncoder(w).Encode(c))
	require.NoError(t, w.Close())
	if size := base64.StdEncoding.EncodedLen(packed.Len()); size < 10<<10 || size > 256<<10 {
		t.Errorf("the chart uses %d bytes of the Secret", size)
	} else {
		t.Logf("the chart uses %d of the Secret's 1024 KiB", size>>10)
	}
	for _, file := range c.Files {
		if strings.HasPrefix(file.Name, "ci/") {
			t.Errorf("%s is packaged", file.Name)
		}
	}
}

func TestNotesAreShortAndActionable(t *testing.T) {
	t.Parallel()
	most := 0
	for _, c := range matrix(t) {
		notes, mode := c.files["NOTES.txt"], decidedMode(c.output)
		lines := strings.Count(strings.TrimSpace(notes), "\n") + 1
		most = max(most, lines)
		if lines < 4 || lines > 10 || !strings.Contains(notes, "https://github.com/zarf-dev/zarf-registry/") {
			t.Errorf("%s: %d lines:\n%s", c.name, lines, notes)
		}
		says := []string{"(mode: " + mode + ").\n", "\n  image reference:  ", "/<repository>:<tag>\n"}
		const pull = "-pull in each namespace"
		if mode == "external" {
			says = append(says, "registry.example.com", "-state --output")
		} else {
			flags := ""
			if c.file == "zarf" {
				flags = " --release zarf-docker-registry"
			}
			if name := fullNameOf(c.output); name != "zarf-registry" {
				flags += " --name " + name
			}
			says = append(
				says, "\n  zarf-registry images push"+flags+" ARCHIVE...\n", "\n  zarf-registry status"+flags+"\n", "helm test ",
				"/releases/tag/v0.1.0 and", ":3",
			)
			if strings.HasPrefix(c.file, "expose") {
				says = append(says, "\n  from outside:     registry.example.com")
			}
			anonymous := c.file == "nodeport-anonymous"
			if (mode == "nodeport" && !anonymous) != strings.Contains(notes, pull) {
				t.Errorf("%s: the notes mention a credential that is not needed, or lack one that is:\n%s", c.name, notes)
			}
			if (c.file == "no-rotation") != strings.Contains(notes, "or run zarf-registry certs renew, before") {
				t.Errorf("%s: wrong hint about certificate renewal in the notes:\n%s", c.name, notes)
			}
		}
		for _, want := range says {
			if !strings.Contains(notes, want) {
				t.Errorf("%s: the notes lack %q:\n%s", c.name, want, notes)
			}
		}
	}
	// The longest possible notes, but for caches that have no effect.
	longest := rendering{values: with(t, nil, "registryProxy=false", "pki.rotation.schedule=''",
		"expose.service.enabled=true", "expose.tls.existingSecret=mine")}.render(t).files["NOTES.txt"]
	if lines := strings.Count(strings.TrimSpace(longest), "\n") + 1; lines > 10 || lines < most ||
		!strings.Contains(longest, "  from outside:     kubectl --namespace zarf get service zarf-registry-expose\n") {
		t.Errorf("%d lines:\n%s", lines, longest)
	}
	t.Logf("the longest notes have %d lines", most)
}

func TestNotesPrintRequiredFlagsOnly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		release string
		values  map[string]any
		flags   string
	}{
		"the defaults":      {"", nil, ""},
		"another release":   {"mine", nil, " --release mine --name mine-zarf-registry"},
		"another full name": {"", with(t, nil, "fullnameOverride=mine"), " --name mine"},
		"another namespace": {"", with(t, nil, "namespaceOverride=mine"), " --namespace mine"},
		"all of them": {
			"r", with(t, nil, "fullnameOverride=mine", "namespaceOverride=ours"), " --namespace ours --release r --name mine",
		},
	} {
		t.Run(name, func(t *testing.T) {
			notes := rendering{
				release: c.release, values: with(t, c.values, "pki.rotation.schedule=''"),
			}.render(t).files["NOTES.txt"]
			for _, want := range []string{
				"  zarf-registry images push%s ARCHIVE...\n", "  zarf-registry status%s\n", "run zarf-registry certs renew%s, before",
			} {
				if want = fmt.Sprintf(want, c.flags); !strings.Contains(notes, want) {
					t.Errorf("the notes lack %q:\n%s", want, notes)
				}
			}
		})
	}
}
