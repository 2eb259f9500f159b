package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// A need is a file or program and the Debian package that provides it.
type need struct {
	program, file, debian string
}

func (n need) met() bool {
	if n.program != "" {
		_, err := exec.LookPath(n.program)
		return err == nil
	}
	_, err := os.Stat(n.file)
	return err == nil
}

var (
	needsGCC = []need{{program: "gcc", debian: "gcc"}, {file: "/usr/include/stdlib.h", debian: "libc6-dev"}}
	needsCGO = append([]need{
		{program: "pkg-config", debian: "pkg-config"},
		{file: "/usr/include/seccomp.h", debian: "libseccomp-dev"},
	}, needsGCC...)
	// Called by a running cluster: by kube-proxy, kubelet, kube-router, the CNI plugins and this
	// program.
	needsCluster = []need{
		{program: "ip", debian: "iproute2"},
		{program: "iptables", debian: "iptables"},
		{program: "nft", debian: "nftables"},
		{file: "/etc/protocols", debian: "netbase"}, // without it, nft prints numbers, which kube-proxy takes for other rules
		{program: "conntrack", debian: "conntrack"},
		{program: "ipset", debian: "ipset"},
		{program: "mount", debian: "mount"},
		{program: "modprobe", debian: "kmod"},
	}
)

func needsOf(r Recipe) []need {
	switch {
	case r.C != "":
		return needsGCC
	case r.CGO:
		return needsCGO
	default:
		return nil
	}
}

// calledBy returns what a recipe's programs need at run time.
func calledBy(r Recipe) []need {
	var needs []need
	for _, program := range r.Calls {
		needs = append(needs, need{program: program, debian: program})
	}
	return needs
}

// EnsurePackages installs missing Debian packages that a cluster needs. Without root or apt it returns an error
// that names them. Of concurrent processes, one installs and the others wait.
func (c *Cache) EnsurePackages(ctx context.Context) error { return c.ensurePackages(ctx, needsCluster) }

func missingPackages(needs []need) (missing []string) {
	for _, n := range needs {
		if !n.met() && !slices.Contains(missing, n.debian) {
			missing = append(missing, n.debian)
		}
	}
	return missing
}

func (c *Cache) ensurePackages(ctx context.Context, needs []need) error {
	missing := missingPackages(needs)
	if len(missing) == 0 {
		return nil
	}
	list := strings.Join(missing, " ")
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("missing Debian packages: %s: install them, or run this as root on Debian or Ubuntu", list)
	}
	unlock, err := c.lock(ctx, "debian-packages", "the installation of Debian packages")
	if err != nil {
		return err
	}
	defer unlock()
	if missing = missingPackages(needs); len(missing) == 0 { // installed by the process that held the lock
		return nil
	}
	c.log("installing Debian packages: %s", strings.Join(missing, " "))
	for _, args := range [][]string{
		{"update", "-q"},
		append([]string{"install", "-q", "-y", "--no-install-recommends"}, missing...),
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, out)
		}
	}
	return nil
}
