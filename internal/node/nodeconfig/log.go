package nodeconfig

import (
	"bytes"
	"fmt"
	"path"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/node/hostfiles"
	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
)

// announce logs the planned changes, one block per file, and the warnings.
func (r *run) announce(plan *hostfiles.Plan) {
	for _, c := range plan.Changes {
		fmt.Fprintf(r.Log, "%s: %s", c.Path, c.Action)
		switch {
		case c.Foreign:
			fmt.Fprint(r.Log, "; already written by somebody else, left as it is")
		case c.Backup != "" && c.Action != hostfiles.Unchanged:
			fmt.Fprintf(r.Log, "; the previous version is kept as %s", c.Backup)
		case c.Action == hostfiles.Changed && bytes.Equal(c.Old, c.New):
			fmt.Fprint(r.Log, "; permissions only")
		}
		fmt.Fprintln(r.Log)
		if kind := r.kind(c.Path); kind != "" && c.Action != hostfiles.Unchanged && (c.Old != nil || c.New != nil) {
			fmt.Fprint(r.Log, noderuntime.Diff(c.Path, kind, c.Old, c.New))
		}
		fmt.Fprintln(r.Log)
	}
	for _, warning := range r.report.Warnings {
		fmt.Fprintf(r.Log, "warning: %s\n", warning)
	}
}

// kind returns the format of a file, or an empty string if it is unknown and must not be shown.
func (r *run) kind(name string) noderuntime.Kind {
	for _, f := range r.desired.Files {
		if f.Path == name {
			return f.Kind
		}
	}
	// An obsolete file is identified by its name.
	switch base := path.Base(name); {
	case name == r.inputs.Config.K3s.File, base == "registries.yaml":
		return noderuntime.KindRegistries
	case base == "hosts.toml":
		return noderuntime.KindHosts
	case base == "ca.crt":
		return noderuntime.KindCA
	case path.Ext(base) == ".conf":
		return noderuntime.KindRegistriesConf
	}
	return ""
}

func (r *run) conclude(plan *hostfiles.Plan, err error) {
	if err != nil {
		fmt.Fprintf(r.Log, "failed after %s\n", r.counts())
		return
	}
	if !plan.Pending() {
		fmt.Fprintf(r.Log, "done: nothing changed, %s up to date\n", count(r.report.Unchanged, "file is", "files are"))
		return
	}
	fmt.Fprintf(r.Log, "done: %s\n", r.counts())
	if name := r.registriesChanged(plan); name != "" {
		runtime, service := "K3s", "k3s, or k3s-agent on an agent"
		if strings.Contains(name, "/rke2/") {
			runtime, service = "RKE2", "rke2-server, or rke2-agent on an agent"
		}
		fmt.Fprintf(r.Log,
			"%s reads %s only when it starts: restart it on this node at a convenient time (systemctl restart %s)\n",
			runtime, name, service)
	}
}

func (r *run) counts() string {
	return fmt.Sprintf("%d written, %d unchanged, %d restored, %d removed",
		r.report.Written, r.report.Unchanged, r.report.Restored, r.report.Removed)
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// registriesChanged returns the path of the registries.yaml that K3s or RKE2 must read again, if
// any.
func (r *run) registriesChanged(plan *hostfiles.Plan) string {
	for _, c := range plan.Changes {
		if c.Done && c.Action != hostfiles.Unchanged && r.kind(c.Path) == noderuntime.KindRegistries {
			return c.Path
		}
	}
	return ""
}
