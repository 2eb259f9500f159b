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
)

// Programs under test are the real ones, except that the times of the collector's lease are shorter, with the
// same ratios: a collection waits for 20 s before it marks.
const (
	speedup       = 50
	leaseDuration = time.Minute / speedup
	drainPeriod   = 20 * time.Second / speedup
)

var quickLease = fmt.Sprintf(`package registry

import "time"

func init() {
	t := &defaultLeaseTimes
	for _, d := range []*time.Duration{
		&t.pollInterval, &t.validity, &t.drainPeriod, &t.waitTimeout, &t.heartbeat, &t.renewDeadline, &t.leaseDuration,
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

// programs are the paths of the programs under test.
type programs struct{ registry, node string }

// build builds the programs. With changes, it never writes to the source tree.
func build(t *testing.T, changes ...change) programs {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs(top)
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{}
	put := func(path, content string) {
		name := filepath.Join(dir, fmt.Sprintf("%d.go", len(replace)))
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[path] = name
	}
	put(filepath.Join(root, "internal/registry/registrycheck.go"), quickLease)
	for _, c := range changes {
		path := filepath.Join(root, c.file)
		if name, ok := strings.CutPrefix(c.file, distribution+"/"); ok {
			path = filepath.Join(run(t, "go", "list", "-m", "-f", "{{.Dir}}", distribution), name)
		}
		if replace[path] != "" {
			t.Fatalf("%s is changed twice: use one change", c.file)
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(source), c.old); n != 1 {
			t.Fatalf("%s contains the text to change %d times, not once: adapt the bug to the code:\n%s", c.file, n, c.old)
		}
		put(path, strings.Replace(string(source), c.old, c.new, 1))
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, content, 0o600); err != nil {
		t.Fatal(err)
	}
	p := programs{filepath.Join(dir, "registry"), filepath.Join(dir, "registry-node")}
	run(t, "go", "build", "-overlay", overlay, "-o", p.registry, "./cmd/registry")
	run(t, "go", "build", "-o", p.node, "./cmd/registry-node")
	return p
}

// run runs a command in the repository's root and returns its output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, args...)
	command.Dir = top
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return strings.TrimSpace(string(output))
}
