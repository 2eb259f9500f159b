package stored

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images/name"
	"github.com/zarf-dev/zarf-registry/internal/images/workloads"
)

type deleteFlags struct {
	removalFlags
	force bool
}

func NewDelete(global *cmdflags.Global) *cobra.Command {
	f := &deleteFlags{removalFlags: newRemovalFlags(global)}
	cmd := &cobra.Command{
		Use:   "delete REFERENCE...",
		Short: "Delete images from the cluster's registry",
		Long: `delete removes images from the cluster's registry, with their platforms, signatures and SBOMs
unless another image needs these, and then collects garbage.

A tag is deleted with its image, or alone if the image has other tags. A digest is deleted with
all of its tags.

delete refuses to delete images that a workload uses, as zarf-registry images prune defines it,
unless --force is given.

Exit codes: 0 on success, 1 on failure, 3 if nothing was deleted because a reference is
invalid, unknown or in use.`,
		Example: `  zarf-registry images delete 127.0.0.1:31999/team/app:1
  zarf-registry images delete team/app:1 team/app:2 --dry-run
  zarf-registry images delete team/app@sha256:6f4d…`,
		Args:              cmdflags.MinimumArgs(1, "nothing to delete: name images by tag or digest"),
		ValidArgsFunction: f.cluster.CompleteStored(references),
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	cmd.Flags().BoolVar(&f.force, "force", false, "also delete images that workloads use")
	f.register(cmd)
	return cmd
}

func (f *deleteFlags) run(cmd *cobra.Command, args []string) error {
	errs := []error{f.validate()}
	names := make([]name.Name, len(args))
	for i, arg := range args {
		var err error
		if names[i], err = name.Parse(arg); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return exitcode.Usage(err)
	}
	return f.remove(cmd, func(content *catalog.Catalog, used *workloads.Set) (choice, error) {
		return f.choose(content, used, args, names)
	})
}

// choose keeps all images but those that are named by their digest or by all of their tags.
func (f *deleteFlags) choose(content *catalog.Catalog, used *workloads.Set, args []string, names []name.Name) (
	choice, error,
) {
	decisions := make([]catalog.Decision, 0, len(content.Manifests))
	for _, image := range content.Images() {
		decisions = append(decisions, catalog.Decision{Image: image, Kept: "not named"})
	}
	whole := map[int]bool{} // by position, of images whose digest is named
	tags := map[int][]string{}
	var errs []error
	for i, n := range names {
		at := indexOf(decisions, args[i], n)
		if at < 0 {
			errs = append(errs, fmt.Errorf("%s: not found; zarf-registry images list --untagged lists what exists", args[i]))
			continue
		}
		whole[at] = whole[at] || n.Digest != ""
		tags[at] = append(tags[at], n.Tag)
	}
	var untagged []tagged
	for _, at := range slices.Sorted(maps.Keys(tags)) {
		image := decisions[at].Image
		if catalog.Own(image.Repository) {
			errs = append(errs, fmt.Errorf("%s belongs to the registry itself", image.Reference()))
		}
		if using := used.Using(image); len(using) > 0 && !f.force {
			errs = append(errs, fmt.Errorf("%s is used by %s: delete these first, or add --force", image.Reference(),
				strings.Join(using, ", ")))
		}
		left := slices.ContainsFunc(image.Tags, func(tag string) bool { return !slices.Contains(tags[at], tag) })
		if whole[at] || !left {
			decisions[at].Kept = ""
			continue
		}
		decisions[at].Kept = "has other tags"
		for _, tag := range tags[at] {
			untagged = append(untagged, tagged{image.Repository, tag})
		}
	}
	return choice{decisions, untagged}, errors.Join(errs...)
}

// indexOf returns the position of the image of the cluster's registry that a reference names, or -1. A reference
// without a host is first taken as it is, and then as Docker completes it: nginx is library/nginx.
func indexOf(decisions []catalog.Decision, reference string, n name.Name) int {
	repository := n.Path
	if !strings.Contains(reference, "/") {
		repository = strings.TrimPrefix(n.Path, "library/")
	}
	for ; ; repository = n.Path {
		at := slices.IndexFunc(decisions, func(d catalog.Decision) bool {
			return d.Image.Repository == repository &&
				(n.Digest != "" && d.Image.Is(n.Digest) || n.Digest == "" && slices.Contains(d.Image.Tags, n.Tag))
		})
		if at >= 0 || repository == n.Path {
			return at
		}
	}
}
