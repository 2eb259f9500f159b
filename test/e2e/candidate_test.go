package e2e

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// candidateFile names the commit from which TestUpgrade upgrades: the candidate of the next release, and later the last
// release.
var candidateFile = filepath.Join("testdata", "candidate")

// artifacts are what make images builds of a commit.
type artifacts struct{ chart, images string }

// candidate builds the commit that candidateFile names from the repository's history. The cache of the test cluster
// keeps the build. Its version is lower than that of the chart, so tags of images differ.
var candidate = sync.OnceValues(func() (b artifacts, err error) {
	content, err := os.ReadFile(candidateFile)
	if err != nil {
		return b, err
	}
	commit := strings.TrimSpace(string(content))
	folder := filepath.Join(cmp.Or(os.Getenv("ZARF_REGISTRY_CACHE"), "/var/cache/zarf-registry"), "candidate-"+commit)
	b = artifacts{
		chart:  filepath.Join(folder, "charts", "zarf-registry"),
		images: filepath.Join(folder, "dist", "images"),
	}
	if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
		if err := buildCommit(commit, folder); err != nil {
			return b, fmt.Errorf("building commit %s, which test/e2e/%s names: %w", commit, candidateFile, err)
		}
	}
	return b, nil
})

// buildCommit builds a commit in a folder, which it makes when the build is complete.
func buildCommit(commit, folder string) error {
	if out, err := exec.Command("git", "cat-file", "-e", commit+"^{commit}").CombinedOutput(); err != nil {
		return fmt.Errorf("this clone lacks it (%s): fetch the history with git fetch --unshallow, or in a workflow with "+
			"fetch-depth: 0", bytes.TrimSpace(out))
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(folder), "building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}
	quiet := func(name string, args ...string) error {
		cmd := exec.Command(name, args...)
		// Nothing of a make that runs this test.
		cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") })
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
		}
		return nil
	}
	source := filepath.Join(work, "source.tar")
	if err := quiet("git", "-C", filepath.Join("..", ".."), "archive", "--output="+source, commit); err != nil {
		return err
	}
	if err := quiet("tar", "-xf", source, "-C", work); err != nil {
		return err
	}
	chart := filepath.Join(work, "charts", "zarf-registry")
	version, err := versionOf(chart)
	if err != nil {
		return err
	}
	if err := setVersion(chart, version+"-candidate"); err != nil {
		return err
	}
	if err := quiet("make", "-C", work, "ARCHITECTURES="+runtime.GOARCH, "images"); err != nil {
		return err
	}
	if err := os.Rename(work, folder); !errors.Is(err, fs.ErrExist) { // ENOTEMPTY, too: another run was faster
		return err
	}
	return nil
}

func buildCandidate(t *testing.T) artifacts {
	t.Helper()
	built(t, "E2E_TESTCLUSTER")
	return require.Value(candidate())(t)
}
