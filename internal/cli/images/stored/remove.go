package stored

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/deletion"
	"github.com/zarf-dev/zarf-registry/internal/api/gc"
	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/cluster"
	"github.com/zarf-dev/zarf-registry/internal/exitcode"
	"github.com/zarf-dev/zarf-registry/internal/images/workloads"
	"github.com/zarf-dev/zarf-registry/internal/release"
)

// removalFlags are the flags of commands that delete images from the cluster's registry.
type removalFlags struct {
	cluster cmdflags.Cluster
	dryRun  bool
	ask     *cmdflags.Confirmation // nil: the command never asks
	collect bool
	request gc.Request
	noTrunc bool
	output  string
}

func newRemovalFlags(global *cmdflags.Global) removalFlags {
	return removalFlags{cluster: cmdflags.Cluster{Global: global}}
}

func (f *removalFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.cluster.Register(flags)
	flags.BoolVar(&f.dryRun, "dry-run", false, "only print what would be deleted, and how many bytes that would free")
	flags.BoolVar(&f.collect, "garbage-collect", true, "then collect garbage; otherwise no space is freed until that runs")
	cmdflags.AddDuration(flags, &f.request.Grace, "grace-period", 0, gc.DefaultGrace,
		"minimum age before garbage collection removes content")
	cmdflags.AddTimeout(flags, &f.request.Timeout, gc.DefaultTimeout)
	cmdflags.AddNoTrunc(flags, &f.noTrunc)
	cmdflags.AddOutput(cmd, &f.output)
}

func (f *removalFlags) validate() error {
	return errors.Join(f.cluster.Validate(), f.request.Validate())
}

// removal is what a command deletes, in the form of --output json.
type removal struct {
	DryRun bool `json:"dryRun"`
	// Images are those to delete. Kept are the others that the command considered.
	Images []removedImage `json:"images"`
	Kept   []keptImage    `json:"kept,omitempty"`
	// Untagged are references to delete whose images have other tags and are kept.
	Untagged []string `json:"untagged,omitempty"`
	// Manifests counts all deleted manifests: images, the platforms of indexes, signatures.
	Manifests int `json:"manifests"`
	// Reclaimable is what garbage collection is expected to free, with garbage that exists already.
	Reclaimable catalog.Reclaimable `json:"reclaimable"`
	// GarbageCollection is its result, if it ran.
	GarbageCollection *gc.Result `json:"garbageCollection,omitempty"`
	// PushedAgain are the manifests that were not deleted, because they were pushed again meanwhile.
	PushedAgain []string `json:"pushedAgain,omitempty"`
}

type removedImage struct {
	// References begin with the registry's address: one by each tag, or one by the digest.
	References []string  `json:"references"`
	Digest     string    `json:"digest"`
	Pushed     time.Time `json:"pushed"`
	Size       int64     `json:"size"` // in bytes, each blob counted once
}

type keptImage struct {
	References []string `json:"references"`
	Digest     string   `json:"digest"`
	Reason     string   `json:"reason"`
}

// choice is what to delete.
type choice struct {
	decisions []catalog.Decision // of all images
	untagged  []tagged           // tags to delete of images that are kept
}

type tagged struct{ repository, tag string }

// remove deletes what choose returns, and collects garbage.
func (f *removalFlags) remove(cmd *cobra.Command, choose func(*catalog.Catalog, *workloads.Set) (choice, error)) error {
	log := f.cluster.Progress(cmd.ErrOrStderr())
	ctx, cancel := cmdflags.WithTimeout(cmd.Context(), f.request.Timeout)
	defer cancel()
	c, content, err := f.cluster.ConnectToCatalog(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	cmdflags.WarnAbout(log, content)
	// The workloads are listed after the catalog is read, so a workload that uses an image which was just pushed counts.
	used, err := workloads.List(ctx, c.Client)
	if err != nil {
		return fmt.Errorf("%w: nothing was deleted, because it is unknown which images are in use", err)
	}
	chosen, err := choose(content, used)
	if err != nil {
		return &exitcode.Refusal{Err: err}
	}
	manifests := catalog.ManifestsToDelete(chosen.decisions)
	removed := newRemoval(f.dryRun, c.Address, content, chosen, manifests)
	removed.Reclaimable = content.Reclaimable(manifests, f.request.Grace)
	if f.ask != nil && !f.dryRun && len(manifests) > 0 {
		preview := *removed
		preview.DryRun = true
		if err := f.ask.Ask(cmd, "Delete them?", func(w io.Writer) error { return f.print(w, &preview) }); err != nil {
			return err
		}
	}
	if !f.dryRun {
		for _, t := range chosen.untagged {
			if err := cluster.DeleteTag(ctx, c.Transport, c.Access, t.repository, t.tag); err != nil {
				return fmt.Errorf("deleting tag %s:%s: %w", t.repository, t.tag, err)
			}
		}
		if err := f.delete(ctx, c.Transport, c.Access, content.At, manifests, removed, log); err != nil {
			return err
		}
		if f.collect && len(manifests) > 0 {
			end, _ := ctx.Deadline()
			request := f.request
			request.Timeout = max(time.Until(end), time.Second)
			// The registry ends the collection in time, and says so.
			if err := f.free(cmd.Context(), c, request, removed, log); err != nil {
				return err
			}
		}
	}
	return render.Report(cmd.OutOrStdout(), f.output, render.ImageRemoval, removed, f.print, nil)
}

func (f *removalFlags) delete(ctx context.Context, transport http.RoundTripper, access release.PushAccess,
	since time.Time, manifests []*catalog.Manifest, r *removal, log *slog.Logger) error {
	request := deletion.Request{Since: since, Manifests: map[string][]digest.Digest{}}
	for _, m := range manifests {
		request.Manifests[m.Repository] = append(request.Manifests[m.Repository], m.Digest)
	}
	deleted := 0
	var err error
	if len(manifests) > 0 {
		err = cluster.DeleteManifests(ctx, transport, access, request, func(repository string, d digest.Digest, kept string) {
			name := repository + "@" + d.String()
			if kept != "" {
				log.Warn("kept a manifest that changed meanwhile", "manifest", name, "reason", kept)
				r.PushedAgain = append(r.PushedAgain, name)
				return
			}
			log.Debug("deleted", "manifest", name)
			deleted++
		})
	}
	if err != nil {
		return fmt.Errorf("deleting manifests: %w; %d of %d are deleted: run the command again", err, deleted, len(manifests))
	}
	slices.Sort(r.PushedAgain)
	return nil
}

// free collects garbage after a deletion.
func (f *removalFlags) free(
	ctx context.Context, c *cmdflags.Access, request gc.Request, r *removal, log *slog.Logger,
) error {
	log.Info("collecting garbage")
	result, err := collectGarbage(ctx, c.Transport, c.Access, request, log, func(gc.Removed) error { return nil })
	if err != nil {
		return fmt.Errorf("%d manifests are deleted, but their content is not freed: %w", r.Manifests-len(r.PushedAgain), err)
	}
	r.GarbageCollection = &result
	return nil
}

func newRemoval(dryRun bool, address string, content *catalog.Catalog, chosen choice,
	manifests []*catalog.Manifest) *removal {
	r := &removal{DryRun: dryRun, Images: []removedImage{}, Manifests: len(manifests)}
	for _, t := range chosen.untagged {
		r.Untagged = append(r.Untagged, address+"/"+t.repository+":"+t.tag)
	}
	for _, d := range chosen.decisions {
		refs := d.Image.References(address)
		if d.Kept != "" {
			r.Kept = append(r.Kept, keptImage{refs, d.Image.Digest.String(), d.Kept})
			continue
		}
		r.Images = append(r.Images, removedImage{refs, d.Image.Digest.String(), d.Image.Pushed,
			content.Size(d.Image.Members)})
	}
	return r
}

func (f *removalFlags) print(w io.Writer, r *removal) error {
	if len(r.Images) > 0 {
		t := render.NewTable(w, "REFERENCE", "PUSHED", "SIZE")
		t.Short = !f.noTrunc
		for _, image := range r.Images {
			for i, ref := range image.References {
				size := space.FormatBytes(image.Size)
				if i > 0 {
					size = "the same image"
				}
				t.Row(ref, image.Pushed.UTC().Format(time.RFC3339), size)
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for _, ref := range r.Untagged {
		fmt.Fprintf(w, "%s: its image has other tags and is kept\n", ref)
	}
	did, frees := "deleted", "frees"
	if r.DryRun {
		did, frees = "would delete", "would free"
	}
	parts := []string{fmt.Sprintf("%s %s with %s", did, render.Plural(len(r.Images), "image"),
		render.Plural(r.Manifests-len(r.PushedAgain), "manifest"))}
	switch {
	case r.GarbageCollection != nil:
		parts = append(parts, "garbage collection freed "+space.FormatBytes(r.GarbageCollection.Bytes))
	case r.DryRun && f.collect:
		parts = append(parts, "garbage collection would free "+space.FormatBytes(r.Reclaimable.Bytes))
	case len(r.Images) > 0:
		parts = append(parts, "zarf-registry images garbage-collect "+frees+" "+space.FormatBytes(r.Reclaimable.Bytes))
	}
	if r.Reclaimable.GracePeriodBytes > 0 {
		parts = append(parts, fmt.Sprintf("%s more after the grace period of %s",
			space.FormatBytes(r.Reclaimable.GracePeriodBytes), f.request.Grace))
	}
	if len(r.PushedAgain) > 0 {
		parts = append(parts, render.Plural(len(r.PushedAgain), "manifest")+" pushed again meanwhile, and kept")
	}
	_, err := fmt.Fprintln(w, strings.Join(parts, "; "))
	return err
}
