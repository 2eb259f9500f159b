package nodeconfig

import (
	"bytes"
	"fmt"
	"path"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/hostfiles"
	"github.com/zarf-dev/zarf-registry/internal/noderuntime"
)

// announce says what is about to be done: a block for each file, then the warnings.
func (r *run) announce(plan *hostfiles.Plan) {
	for _, c := range plan.Changes {
		fmt.Fprintf(r.Log, "%s: %s", c.Path, c.Action)
		switch {
		case c.Foreign:
			fmt.Fprint(r.Log, "; somebody else wrote just that, and it stays as it is")
		case c.Backup != "" && c.Action != hostfiles.Unchanged:
			fmt.Fprintf(r.Log, "; what was there before is kept as %s", c.Backup)
		case c.Action == hostfiles.Changed && bytes.Equal(c.Old, c.New):
			fmt.Fprint(r.Log, "; its permissions only")
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

// kind is the format of a file, empty where it is not known: then it is not shown.
func (r *run) kind(name string) noderuntime.Kind {
	for _, f := range r.wanted.Files {
		if f.Path == name {
			return f.Kind
		}
	}
	// One that is wanted no more: its name says it.
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

// conclude says how it ended.
func (r *run) conclude(plan *hostfiles.Plan, err error) {
	if err != nil {
		fmt.Fprintf(r.Log, "failed; before that: %s\n", r.counts())
		return
	}
	if !plan.Pending() {
		fmt.Fprintf(r.Log, "done: nothing changed, %s as wanted\n", count(r.report.Unchanged, "file is", "files are"))
		return
	}
	fmt.Fprintf(r.Log, "done: %s\n", r.counts())
	if name := r.registriesChanged(plan); name != "" {
		runtime, restart := "K3s", "k3s, or k3s-agent where it is an agent"
		if strings.Contains(name, "/rke2/") {
			runtime, restart = "RKE2", "rke2-server, or rke2-agent where it is an agent"
		}
		fmt.Fprintf(r.Log, "%s reads %s when it starts: restart it on this node when it suits (systemctl restart %s)\n", runtime, name, restart)
	}
}

func (r *run) counts() string {
	return fmt.Sprintf("%d written, %d unchanged, %d put back, %d removed", r.report.Written, r.report.Unchanged, r.report.Restored, r.report.Removed)
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// registriesChanged names the registries.yaml that K3s or RKE2 have to read anew, if any.
func (r *run) registriesChanged(plan *hostfiles.Plan) string {
	for _, c := range plan.Changes {
		if c.Done && c.Action != hostfiles.Unchanged && r.kind(c.Path) == noderuntime.KindRegistries {
			return c.Path
		}
	}
	return ""
}
