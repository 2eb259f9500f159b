// Package nodeconfig is what registry-node configure does on a node, from the mounted configuration to the report:
//
//   - read the configuration, and the secrets beside it
//   - ask internal/noderuntime which files the node is to have, and whether what is configured can work
//   - look what K3s has written there itself, and what would be read instead of ours
//   - have internal/hostfiles plan it, say what changes, with every secret masked, and only then do it
//   - leave a report for init-hook
//
// Everything that can be refused is refused before the first write. It talks to no cluster: pods that configure nodes have no
// token and no network.
package nodeconfig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/hostfiles"
	"github.com/zarf-dev/zarf-registry/internal/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// Options are what Run goes by.
type Options struct {
	// ConfigDir holds the files that noderuntime names, as a mounted Secret does.
	ConfigDir string
	// HostRoot is what the node's directories are mounted below, each at its own path.
	HostRoot string
	// Sum is Sum of what is to be read, which is waited for: a kubelet that has just heard of a pod may give it the Secret as it was
	// a moment before. Empty takes what there is.
	Sum string
	// Restore wants nothing: every file of the release is taken away, and what was there before comes back.
	Restore bool
	// Log is told what is done, with every secret masked.
	Log io.Writer
	// Now is the time that the report gives to what leaves no file behind.
	Now time.Time
}

// Refusal is an error of the configuration, or of what is on the node. Nothing was changed.
type Refusal struct{ error }

// Unwrap is the cause.
func (r Refusal) Unwrap() error { return r.error }

// Run configures the node. The report is true also beside an error, which it holds.
func Run(ctx context.Context, o Options) (noderuntime.Report, error) {
	r := &run{Options: o}
	err := r.all(ctx)
	if problems := (noderuntime.Problems)(nil); errors.As(err, &problems) || errors.As(err, new(*hostfiles.Refusal)) {
		err = Refusal{err}
	}
	if err != nil {
		r.report.Error = err.Error()
	}
	return r.report, err
}

type run struct {
	Options
	inputs noderuntime.Inputs
	wanted noderuntime.Wanted
	tree   *hostfiles.Tree
	// live says that files in K3s' own directory are as K3s would write them.
	live   bool
	report noderuntime.Report
}

func (r *run) all(ctx context.Context) error {
	var err error
	if err := r.awaitSum(ctx); err != nil {
		return err
	}
	if r.inputs, err = read(r.ConfigDir, r.Restore); err != nil {
		return Refusal{err}
	}
	config := &r.inputs.Config
	r.report.Release = config.Release
	r.inputs.LookTLS = lookBelow(r.HostRoot, slices.Concat(config.Directories, config.TLSDirectories))
	if r.tree, err = hostfiles.Open(ctx, hostfiles.Options{
		Root: r.HostRoot, Directories: config.Directories, Release: config.Release, SkipMissing: r.Restore,
	}); err != nil {
		return err
	}
	defer r.tree.Close()
	var wants hostfiles.Wants
	if !r.Restore {
		if wants, err = r.wants(); err != nil {
			return err
		}
	}
	plan, err := r.tree.Plan(wants)
	if err != nil {
		return err
	}
	for _, warning := range plan.Warnings {
		r.warn("%s", warning)
	}
	for _, c := range plan.Changes {
		if c.Action != hostfiles.Unchanged && r.kind(c.Path) == noderuntime.KindRegistriesConf {
			r.warn("CRI-O reads %s only when it starts or is told to: systemctl reload crio on this node, where it runs CRI-O", c.Path)
		}
	}
	r.announce(plan)
	err = plan.Apply()
	r.count(plan)
	r.conclude(plan, err)
	return err
}

func (r *run) warn(format string, args ...any) {
	r.report.Warnings = append(r.report.Warnings, fmt.Sprintf(format, args...))
}

// wants is what the node is to have.
func (r *run) wants() (hostfiles.Wants, error) {
	config := &r.inputs.Config
	generated, err := r.generated()
	if err != nil {
		return hostfiles.Wants{}, err
	}
	wanted, err := noderuntime.Build(r.inputs)
	if err != nil {
		return hostfiles.Wants{}, err
	}
	r.wanted = *wanted
	r.report.Warnings = append(r.report.Warnings, wanted.Warnings...)
	if err := r.shadowed(); err != nil {
		return hostfiles.Wants{}, err
	}
	out := hostfiles.Wants{Force: config.Force}
	for _, f := range wanted.Files {
		out.Files = append(out.Files, hostfiles.File{Path: f.Path, Content: f.Content, Mode: f.Mode})
	}
	// What K3s has made of the former registries.yaml goes, as it would when K3s starts.
	for _, file := range generated {
		if slices.ContainsFunc(wanted.Files, func(f noderuntime.File) bool { return f.Path == file }) {
			out.Replace = append(out.Replace, file)
		} else {
			out.Away = append(out.Away, path.Dir(file))
		}
	}
	if r.report.CA, err = r.authorities(); err != nil {
		return hostfiles.Wants{}, Refusal{err}
	}
	return out, nil
}

// generated finds what K3s has written into its containerd's directory from registries.yaml. Nothing is to be found where that
// is not ours to write, or cannot be: then live is off.
func (r *run) generated() ([]string, error) {
	k3s := &r.inputs.Config.K3s
	if k3s.File == "" || !k3s.Live || k3s.LiveDirectory == "" {
		return nil, nil
	}
	folders, err := r.tree.Folders(k3s.LiveDirectory)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, folder := range folders {
		file := path.Join(k3s.LiveDirectory, folder, "hosts.toml")
		content, err := r.tree.Original(file)
		switch {
		case err != nil:
			return nil, err
		case noderuntime.Embedded(content):
			r.warn("K3s' embedded registry is on (%s leads to it), which K3s alone can set up: nodeConfig.k3s.live does nothing on this node, and %s takes effect when K3s is restarted", file, k3s.File)
			k3s.Live = false
			return nil, nil
		case noderuntime.Generated(content):
			out = append(out, file)
		}
	}
	r.live = true
	return out, nil
}

// shadowed refuses files that containerd would not read: it looks for HOST_PORT_ before HOST:PORT, and takes the first that is
// there, even an empty one.
func (r *run) shadowed() error {
	var problems noderuntime.Problems
	for _, f := range r.wanted.Files {
		host := path.Base(path.Dir(f.Path))
		colon := strings.LastIndex(host, ":")
		if f.Kind != noderuntime.KindHosts || colon <= 0 {
			continue
		}
		other := path.Join(path.Dir(path.Dir(f.Path)), host[:colon]+"_"+host[colon+1:]+"_")
		there, err := r.tree.Exists(other)
		if err != nil {
			return err
		}
		if there {
			problems = append(problems, fmt.Sprintf("%s is there, and containerd takes it instead of %s: move what it says into nodeConfig.containerd.hosts, and remove it", other, path.Dir(f.Path)))
		}
	}
	if problems != nil {
		return problems
	}
	return nil
}

// authorities are the fingerprints of those that are written for CRI-O.
func (r *run) authorities() ([]string, error) {
	if !slices.ContainsFunc(r.wanted.Files, func(f noderuntime.File) bool { return f.Kind == noderuntime.KindCA }) {
		return nil, nil
	}
	bundle, err := pki.ParseBundle(r.inputs.CA)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", noderuntime.KeyCA, err)
	}
	return bundle.Fingerprints(), nil
}
