package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/hook"
	"github.com/zarf-dev/zarf-registry/internal/images"
)

// copyFlags are the flags of images copy.
type copyFlags struct {
	imageFlags
	destinationFlags
	// fromPlainHTTP is what plainHTTP is, about the registries that are copied from.
	fromPlainHTTP bool
}

func newImagesCopy() *cobra.Command {
	f := &copyFlags{}
	cmd := &cobra.Command{
		Use:   "copy REFERENCE...",
		Short: "Copy images from registries into the registry of the cluster",
		Long: `copy brings images from registries, or behind docker-daemon: from the Docker engine on this
machine, into the registry of the cluster, as init-hook images push does, or with --to
into another registry. It is pull and push in one, for machines that reach both: blobs go
through the cache, and what the destination has is not fetched. All kinds of artifacts can
be copied.

References are what docker pull takes: nginx is docker.io/library/nginx:latest, and becomes
127.0.0.1:31999/library/nginx:latest, or with --prefix mirror
127.0.0.1:31999/mirror/library/nginx:latest.

Of an index that a tag names, --platform chooses what is taken. What a digest names stays
whole. An image that is not there is an error before anything is transferred. What was
interrupted goes on when it is run again.

Credentials are those of docker login and podman login, and of credential helpers
(REGISTRY_AUTH_FILE, DOCKER_CONFIG), or of --username: for the registry of --to or, without
it, for the one that all images come from.

It prints the references that pods use, one a line, or with --output json an array of what
was done about each image: references, digests, bytes, seconds. When one fails, those that
are in the registry by then are printed all the same. Progress goes to stderr.

Exit codes: 0 when all images are in the registry, 1 when one failed, 3 when the command
line cannot be right.`,
		Example: `  init-hook images copy nginx:1.27
  init-hook images copy -f images.txt --platform all --referrers
  echo "$TOKEN" | init-hook images copy ghcr.io/team/app:1 --username robot --password-stdin
  init-hook images copy --to registry.example.com:5000 --prefix mirror nginx:1.27`,
		ValidArgsFunction: completeReferences,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.register(cmd)
	f.selectionFlags(cmd)
	f.transferFlags(cmd.Flags())
	f.cacheFlags(cmd)
	f.login.register(cmd, "the registry of --to")
	cmd.Flags().Lookup("username").Usage = "user name for the registry of --to or, without it, for the one that all images come from, instead of what docker login, podman login or a credential helper keeps"
	cmd.Flags().BoolVar(&f.fromPlainHTTP, "from-plain-http", false, "reach the registries that images come from without TLS")
	f.cluster.register(cmd.Flags())
	f.reportFlags(cmd)
	return cmd
}

func (f *copyFlags) run(cmd *cobra.Command, args []string) error {
	refs, to, prefix, err := f.check(cmd, args)
	if err != nil {
		return &hook.Refused{Err: err}
	}
	host := to
	if host == "" {
		host = soleHost(refs)
	}
	r, err := f.begin(cmd, host, func(host string) bool {
		if to != "" && host == to {
			return f.login.plainHTTP
		}
		return f.fromPlainHTTP
	})
	if err != nil {
		return err
	}
	results, failure := func() ([]images.Result, error) {
		store, err := r.cacheOr("")
		if err != nil {
			return nil, err
		}
		items, err := r.resolve(cmd.Context(), refs, store)
		if err != nil {
			return nil, err
		}
		if f.reference != "" {
			if items[0].Reference = f.reference; len(items) > 1 {
				return nil, errors.New("--reference names one image, but others refer to it (--referrers): they belong into its repository; use --prefix")
			}
		}
		return r.push(cmd.Context(), items, to, f.to, prefix)
	}()
	return r.report(cmd, results, errors.Join(failure, r.end()))
}

// check returns the references, where the registry of --to answers, "" for the
// cluster's, and the prefix.
func (f *copyFlags) check(cmd *cobra.Command, args []string) (refs []string, to string, prefix images.Prefix, err error) {
	refuse := func(err error) ([]string, string, images.Prefix, error) { return nil, "", "", err }
	if err := f.validate(cmd.Flags()); err != nil {
		return refuse(err)
	}
	if to, prefix, err = f.destinationFlags.check(cmd.Flags(), &f.login); err != nil {
		return refuse(err)
	}
	if refs, err = f.references(cmd, args); err != nil {
		return refuse(err)
	}
	if f.reference != "" && len(refs) > 1 {
		return refuse(errors.New("--reference names one image: copy one with it"))
	}
	if f.login.username != "" && to == "" && soleHost(refs) == "" {
		return refuse(errors.New("--username is for one registry, but the images are not all of one: copy them one registry at a time, or log in with docker login"))
	}
	return refs, to, prefix, nil
}
