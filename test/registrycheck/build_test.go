package registrycheck

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// Programs under test are the real ones, except that the times of the collector's lease are shorter, with the
// same ratios: a collection waits for 20 s before it marks.
const (
	speedup       = 50
	leaseDuration = time.Minute / speedup
	drainPeriod   = 20 * time.Second / speedup
)

var quickLease = fmt.Sprintf(`package collect

import "time"

func init() {
	t := &defaultTimes
	for _, d := range []*time.Duration{
		&t.PollInterval, &t.Validity, &t.DrainPeriod, &t.WaitTimeout, &t.Heartbeat, &t.RenewDeadline, &t.LeaseDuration,
	} {
		*d /= %d
	}
}
`, speedup)

// top is the repository's root.
const top = "../.."

const distribution = "github.com/distribution/distribution/v3"

// change is an exact replacement in a source file of this module or of distribution.
type change struct{ file, old, new string }

// in returns the content of the file below dir, changed.
func (c change) in(t *testing.T, dir, file string) string {
	t.Helper()
	source := require.Value(os.ReadFile(filepath.Join(dir, file)))(t)
	if n := strings.Count(string(source), c.old); n != 1 {
		t.Fatalf("%s contains the text to change %d times, not once: adapt the bug to the code:\n%s", c.file, n, c.old)
	}
	return strings.Replace(string(source), c.old, c.new, 1)
}

// programs are the paths of the programs under test.
type programs struct{ registry, node string }

// build builds the programs, if not nil with a change. It never writes to the source tree.
func build(t *testing.T, c *change) programs {
	t.Helper()
	dir := t.TempDir()
	root := require.Value(filepath.Abs(top))(t)
	write := func(path, content string) { require.NoError(t, os.WriteFile(path, []byte(content), 0o600)) }
	lease, changed := filepath.Join(dir, "lease.go"), filepath.Join(dir, "changed.go")
	write(lease, quickLease)
	replace := map[string]string{filepath.Join(root, "internal/registry/collect/registrycheck.go"): lease}
	overlay := filepath.Join(dir, "overlay.json")
	arguments := []string{"build", "-overlay", overlay}
	if c != nil {
		if file, ok := strings.CutPrefix(c.file, distribution+"/"); ok {
			copied := filepath.Join(dir, "distribution")
			replaceDistribution(t, root, copied)
			write(filepath.Join(copied, file), c.in(t, copied, file))
			arguments = append(arguments, "-modfile", copied+".mod")
		} else {
			write(changed, c.in(t, root, c.file))
			replace[filepath.Join(root, c.file)] = changed
		}
	}
	content := require.Value(json.Marshal(map[string]any{"Replace": replace}))(t)
	write(overlay, string(content))
	p := programs{filepath.Join(dir, "registry"), filepath.Join(dir, "registry-node")}
	run(t, "go", append(arguments, "-o", p.registry, "./cmd/registry")...)
	run(t, "go", "build", "-o", p.node, "./cmd/registry-node")
	return p
}

// replaceDistribution copies distribution, and writes a go.mod file that uses the copy: an overlay cannot change
// the module cache.
func replaceDistribution(t *testing.T, root, copied string) {
	t.Helper()
	original := run(t, "go", "list", "-m", "-f", "{{.Dir}}", distribution)
	err := os.CopyFS(copied, os.DirFS(original))
	for _, extension := range []string{".mod", ".sum"} {
		var content []byte
		if err == nil {
			content, err = os.ReadFile(filepath.Join(root, "go"+extension))
		}
		if err == nil {
			err = os.WriteFile(copied+extension, content, 0o600)
		}
	}
	require.NoError(t, err)
	run(t, "go", "mod", "edit", "-replace="+distribution+"="+copied, copied+".mod")
}

// run runs a command in the repository's root and returns its output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, args...)
	command.Dir = top
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	command.Stderr = os.Stderr
	output, err := command.Output()
	require.NoError(t, err, command)
	return strings.TrimSpace(string(output))
}
