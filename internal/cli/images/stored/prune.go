package stored

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images/workloads"
)

type pruneFlags struct {
	removalFlags
	rules                  catalog.Rules
	match, keep, keepFiles []string
}

func NewPrune(global *cmdflags.Global) *cobra.Command {
	f := &pruneFlags{removalFlags: newRemovalFlags(global)}
	f.ask = &cmdflags.Confirmation{}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Delete images that nothing uses from the cluster's registry, by rules",
		Long: `prune deletes images from the cluster's registry that the rules select and that no workload
uses, and then collects garbage. At least one rule must select images: --older-than,
--keep-last, --match or --untagged; with several, an image must be selected by all of them.

An image is used if a pod, or the template of a Deployment, ReplicaSet (also of previous
revisions), StatefulSet, DaemonSet, ReplicationController, Job or CronJob in any namespace
refers to it, by tag or digest, or if --keep-file names it. Registry hosts and leading
components of repositories do not count, so references through mirrors, Zarf's tags
(TAG-zarf-CRC32) and addresses of the registry count alike. References in custom resources
are not found: name them with --keep or --keep-file.

Signatures, SBOMs and platforms are kept and deleted with their image. The registry's own
images are never deleted. An image that is pushed while prune runs is kept. On a terminal, prune
lists the images and asks.

--dry-run prints what would be deleted, what it would free, and with --output json why each
other image is kept. Content that was pushed within --grace-period is freed by a later
garbage collection.

If prune is interrupted, run it again.

Exit codes: 0 on success, 1 on failure or timeout, 3 if nothing was tried.`,
		Example: `  zarf-registry images prune --older-than 90d --keep-last 3 --dry-run
  zarf-registry images prune --untagged --keep-file release-images.txt
  zarf-registry images prune --older-than 1h --dry-run --output json | jq '.kept[] | {reason, references}'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	cmdflags.AddDuration(flags, &f.rules.OlderThan, "older-than", 1, 0,
		"delete images that were last pushed longer ago than this")
	flags.IntVar(&f.rules.KeepLast, "keep-last", 0, "keep the `N` tagged images of each repository that were pushed last")
	flags.StringArrayVar(&f.match, "match", nil,
		"delete images that match `PATTERN`: REPOSITORY, or REPOSITORY:TAG for all of their tags, with * and ?; can be "+
			"repeated")
	flags.StringArrayVar(&f.keep, "keep", nil, "keep images that match `PATTERN` with their repository or any tag; "+
		"can be repeated")
	flags.StringArrayVar(&f.keepFiles, "keep-file", nil,
		"keep images that `LIST` names, one reference per line, with comments after #; - is stdin; can be repeated")
	flags.BoolVar(&f.rules.Untagged, "untagged", false, "delete only images without a tag")
	for _, flag := range []string{"match", "keep"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, f.cluster.CompleteStored(repositories)) // fails only for an unknown flag
	}
	f.register(cmd)
	f.ask.Register(cmd)
	return cmd
}

func (f *pruneFlags) run(cmd *cobra.Command) error {
	listed, err := f.check(cmd)
	if err != nil {
		return exitcode.Usage(err)
	}
	return f.remove(cmd, func(content *catalog.Catalog, used *workloads.Set) (choice, error) {
		for name, references := range listed {
			if err := used.AddList(name, references); err != nil {
				return choice{}, err
			}
		}
		f.rules.Used = used.Using
		return choice{decisions: content.Decide(f.rules)}, nil
	})
}

// check returns the references of the lists, by file.
func (f *pruneFlags) check(cmd *cobra.Command) (map[string][]string, error) {
	var errs []error
	var err error
	if f.rules.Match, err = catalog.ParsePatterns(f.match...); err != nil {
		errs = append(errs, fmt.Errorf("--match: %w", err))
	}
	if f.rules.Keep, err = catalog.ParsePatterns(f.keep...); err != nil {
		errs = append(errs, fmt.Errorf("--keep: %w", err))
	}
	listed := map[string][]string{}
	for _, name := range f.keepFiles {
		list, err := cmdflags.ReadList(cmd.InOrStdin(), name)
		if err != nil {
			errs = append(errs, fmt.Errorf("--keep-file: %w", err))
		}
		listed[name] = list
	}
	return listed, errors.Join(append(errs, f.validate(), f.rules.Validate())...)
}
