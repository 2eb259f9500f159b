package images

import (
	"cmp"
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images"
)

type copyFlags struct {
	imageFlags
	destinationFlags
	fromUsername, toUsername string
	fromPlainHTTP            bool // for the source registries
}

func newCopy(global *cmdflags.Global) *cobra.Command {
	f := &copyFlags{imageFlags: newImageFlags(global)}
	cmd := &cobra.Command{
		Use:   "copy REFERENCE...",
		Short: "Copy images from registries into the cluster's registry",
		Long: `copy copies images from registries, or with docker-daemon:NAME from the local Docker engine,
into the cluster's registry, or with --to into another one. It combines pull and push for
machines that reach both sides. Blobs are streamed and need no disk space here; blobs that the
destination already has are not downloaded. Any OCI artifact can be copied.

References are those of images pull, and their names in the registry those of images push. To
continue an interrupted copy, run the same command again.

It prints the references that pods use, one per line, or with --output json the
references, digests, bytes and seconds of each image. Images that fail are named on stderr
with the reason; the others are copied, unless --fail-fast is given. Progress goes to stderr.

If the images do not fit into the cluster's registry, nothing is sent.

Exit codes: 0 if all images are in the registry, 1 if one failed, 3 if the command line is
invalid or the images do not fit.`,
		Example: `  zarf-registry images copy nginx:1.27
  zarf-registry images copy -f images.txt --platform all --referrers
  echo "$TOKEN" | zarf-registry images copy ghcr.io/team/app:1 --from-username robot --password-stdin
  zarf-registry images copy --to registry.example.com:5000 --prefix mirror nginx:1.27`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.register(cmd)
	f.selectionFlags(cmd)
	f.transferFlags(cmd.Flags())
	f.storeFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.fromUsername, "from-username", "",
		"user name for the single registry of all images (default: as for images pull)")
	flags.StringVar(&f.toUsername, "to-username", "",
		"user name for the registry of --to (default: as for images pull)")
	flags.BoolVar(&f.fromPlainHTTP, "from-plain-http", false, "use HTTP without TLS for the source registries")
	flags.BoolVar(&f.login.PlainHTTP, "to-plain-http", false, "use HTTP without TLS for the registry of --to")
	f.login.RegisterShared(cmd, "--from-username or --to-username")
	f.login.Prefix = func(host string) string {
		if host == f.host || host == f.to {
			return "to-"
		}
		return "from-"
	}
	f.cluster.Register(cmd.Flags())
	cmdflags.AddOutput(cmd, &f.output)
	return cmd
}

func (f *copyFlags) run(cmd *cobra.Command, args []string) error {
	refs, host, err := f.check(cmd, args)
	if err != nil {
		return exitcode.Usage(err)
	}
	plain := func(host string) bool {
		if f.host != "" && host == f.host {
			return f.login.PlainHTTP
		}
		return f.fromPlainHTTP
	}
	return f.transfer(cmd, host, plain, func(ctx context.Context, r *imageRun) ([]images.Result, error) {
		items, failed := r.resolve(ctx, refs)
		if f.ends(items, failed) {
			return nil, failed
		}
		if f.reference != "" {
			if items[0].Reference = f.reference; len(items) > 1 {
				return nil, errors.New(
					"--reference cannot name several images, and others refer to this one (--referrers): use --prefix")
			}
		}
		results, err := r.push(ctx, items, &f.destinationFlags)
		return results, errors.Join(failed, err)
	})
}

// check returns the references, and the registry to which the user name applies.
func (f *copyFlags) check(cmd *cobra.Command, args []string) (refs []string, host string, err error) {
	switch f.login.Username = cmp.Or(f.fromUsername, f.toUsername); {
	case f.fromUsername != "" && f.toUsername != "":
		return nil, "", errors.New("--from-username cannot be combined with --to-username, because stdin has one password: " +
			"use docker login for one of the registries")
	case f.toUsername != "" && !cmd.Flags().Changed("to"):
		return nil, "", errors.New("--to-username requires --to: the cluster's registry has its own credential")
	}
	if err := cmp.Or(f.validate(cmd.Flags()), f.destinationFlags.check(cmd.Flags(), &f.login)); err != nil {
		return nil, "", err
	}
	if refs, err = f.references(cmd, args); err != nil {
		return nil, "", err
	}
	if f.reference != "" && len(refs) > 1 {
		return nil, "", errors.New("--reference names a single image: give one image")
	}
	if f.toUsername != "" {
		return refs, f.host, nil
	}
	host, err = f.login.Host(refs)
	return refs, host, err
}
