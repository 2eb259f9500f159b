// Package nodeconfig implements registry-node configure, which configures a node's container
// runtime:
//
//   - It reads the mounted configuration and its secrets. internal/node/noderuntime validates the
//     configuration and generates the files.
//   - It detects files that would take precedence over ours.
//   - internal/node/hostfiles plans the changes. They are logged with secrets masked, then applied.
//   - It writes a report for init-hook.
//
// Whatever can be rejected is rejected before the first write. The package does not talk to the
// cluster: the pods that configure nodes have neither a token nor a network.
package nodeconfig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/node/hostfiles"
	"github.com/zarf-dev/zarf-registry/internal/node/noderuntime"
	"github.com/zarf-dev/zarf-registry/internal/pki"
)

// Options are the options of Run.
type Options struct {
	// ConfigDir contains the files defined in noderuntime, as in a mounted Secret.
	ConfigDir string
	// HostRoot is the directory below which the node's directories are mounted, each at its own path.
	HostRoot string
	// Sum is the Sum of the configuration to wait for: a new pod's kubelet may mount the previous
	// version of the Secret. If it is empty, any configuration is used.
	Sum string
	// Restore removes every file of the release and restores the previous files.
	Restore bool
	// Log receives the progress, with secrets masked.
	Log io.Writer
}

// Run configures the node. The report is also valid if Run fails, and contains the error.
func Run(ctx context.Context, o Options) (noderuntime.Report, error) {
	r := &run{Options: o}
	err := r.all(ctx)
	if problems := (noderuntime.Problems)(nil); errors.As(err, &problems) {
		err = &exitcode.Refusal{Err: err}
	}
	if err != nil {
		r.report.Error = err.Error()
	}
	return r.report, err
}

type run struct {
	Options
	inputs  noderuntime.Inputs
	desired noderuntime.Desired
	tree    *hostfiles.Tree
	report  noderuntime.Report
}

func (r *run) all(ctx context.Context) error {
	var err error
	if err := r.awaitSum(ctx); err != nil {
		return err
	}
	if r.inputs, err = read(r.ConfigDir, r.Restore); err != nil {
		return &exitcode.Refusal{Err: err}
	}
	config := &r.inputs.Config
	r.report.Release = config.Release
	r.inputs.CheckTLS = lookBelow(r.HostRoot, slices.Concat(config.Directories, config.TLSDirectories))
	if r.tree, err = hostfiles.Open(ctx, hostfiles.Options{
		Root: r.HostRoot, Directories: config.Directories, Release: config.Release, SkipMissing: r.Restore,
	}); err != nil {
		return err
	}
	defer r.tree.Close()
	var wants hostfiles.Desired
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
			r.warn(
				"CRI-O reads %s only when it starts or reloads: run systemctl reload crio on this node if it uses CRI-O", c.Path,
			)
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

// wants returns the desired state of the node.
func (r *run) wants() (hostfiles.Desired, error) {
	desired, err := noderuntime.Build(r.inputs)
	if err != nil {
		return hostfiles.Desired{}, err
	}
	r.desired = *desired
	r.report.Warnings = append(r.report.Warnings, desired.Warnings...)
	if err := r.shadowed(); err != nil {
		return hostfiles.Desired{}, err
	}
	out := hostfiles.Desired{Force: r.inputs.Config.Force}
	for _, f := range desired.Files {
		out.Files = append(out.Files, hostfiles.File{Path: f.Path, Content: f.Content, Mode: f.Mode})
	}
	if r.report.CA, err = r.caFingerprints(); err != nil {
		return hostfiles.Desired{}, &exitcode.Refusal{Err: err}
	}
	return out, nil
}

// shadowed refuses files that containerd would not read: it prefers HOST_PORT_ to HOST:PORT, even
// if that is empty.
func (r *run) shadowed() error {
	var problems noderuntime.Problems
	for _, f := range r.desired.Files {
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
			problems = append(problems, fmt.Sprintf("%s exists and takes precedence over %s in containerd: "+
				"move its content to nodeConfig.containerd.hosts and remove it", other, path.Dir(f.Path)))
		}
	}
	if problems != nil {
		return problems
	}
	return nil
}

func (r *run) caFingerprints() ([]string, error) {
	if !slices.ContainsFunc(r.desired.Files, func(f noderuntime.File) bool { return f.Kind == noderuntime.KindCA }) {
		return nil, nil
	}
	bundle, err := pki.ParseBundle(r.inputs.CA)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", noderuntime.KeyCA, err)
	}
	return bundle.Fingerprints(), nil
}
