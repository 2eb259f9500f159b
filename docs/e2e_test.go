package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/e2e/clients"
	"github.com/zarf-dev/zarf-registry/test/e2e/guide"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// TestClientMatrixIsDocumented checks the table of clients, which TestClients of test/e2e tests.
func TestClientMatrixIsDocumented(t *testing.T) {
	const page = "docs/reference/clients.md"
	if !strings.Contains(pages(t)[page], clients.Matrix()) {
		t.Errorf("%s lacks this table:\n%s", page, clients.Matrix())
	}
}

func TestGuideOfAnotherVersion(t *testing.T) {
	const page = "tar -xzf zarf-registry-bundle-0.1.0.tar.gz && helm upgrade zarf-registry zarf-registry-0.1.0.tgz -n zarf"
	for version, want := range map[string]string{
		"0.9.9":      "tar -xzf zarf-registry-bundle-0.9.9.tar.gz && helm upgrade zarf-registry zarf-registry-0.9.9.tgz -n zarf",
		"1.0.0-rc.1": "tar -xzf zarf-registry-bundle-1.0.0-rc.1.tar.gz && helm upgrade zarf-registry zarf-registry-1.0.0-rc.1.tgz -n zarf",
		"":           page,
	} {
		if got := guide.OfVersion(page, version); got != want {
			t.Errorf("version %q: %s", version, got)
		}
	}
	if got := guide.OfVersion("tar -xzf zarf-registry-bundle-1.0.0-rc.1.tar.gz", "1.0.0"); got != "tar -xzf zarf-registry-bundle-1.0.0.tar.gz" {
		t.Error(got)
	}
}

// TestGuideCommands checks the blocks of commands that scenarios of test/e2e run.
func TestGuideCommands(t *testing.T) {
	for _, page := range append([]string{"reference/helm.md", "dev/release.md"}, guide.Pages...) {
		commands, err := guide.Commands(pages(t)["docs/"+page])
		if err != nil || len(commands) == 0 {
			t.Errorf("docs/%s has no commands, or output without a command: %v", page, err)
		}
		for _, c := range commands {
			script := c.Script
			if strings.TrimSpace(script) == "" || strings.Contains(script, "\n$ ") || strings.HasPrefix(script, "$ ") {
				t.Errorf("docs/%s has a block of commands that is empty or has prompts:\n%s", page, script)
			}
		}
	}
	found, err := filepath.Glob("guide/*.md")
	if err != nil || len(found) != len(guide.Pages) {
		t.Errorf("docs/guide has %d pages, and the scenario follows %d: %v", len(found), len(guide.Pages), err)
	}
}

// TestRehearsal checks that make rehearse runs each block of the page of releases.
func TestRehearsal(t *testing.T) {
	script := require.Value(os.ReadFile(filepath.Join(top, "hack/rehearse.sh")))(t)
	heading, inside, blocks := "", false, 0
	for line := range strings.Lines(pages(t)["docs/dev/release.md"]) {
		line = strings.TrimSpace(line)
		language, isFence := strings.CutPrefix(line, "```")
		if !inside && strings.HasPrefix(line, "#") {
			heading = line
		}
		if isFence && !inside {
			blocks++
			if call := fmt.Sprintf("page dev/release.md '%s' %s", heading, language); !strings.Contains(string(script), call) {
				t.Errorf("hack/rehearse.sh lacks %s", call)
			}
		}
		inside = inside != isFence
	}
	if blocks < 5 {
		t.Errorf("the page has %d blocks", blocks)
	}
}
