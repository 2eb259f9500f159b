// Package stored implements the commands about what the cluster's registry stores: what is there, needed, missing,
// damaged or not used, and its removal.
package stored

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/zarf-dev/zarf-registry/internal/api/catalog"
	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/cli/cmdflags"
	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/internal/images/workloads"
)

// storedFacts is what the cluster's registry knows of an image or of a repository.
type storedFacts struct {
	Unshared   int64     `json:"unshared"` // bytes that nothing else in the registry shares
	Signatures int       `json:"signatures"`
	SBOMs      int       `json:"sboms"`
	Pushed     time.Time `json:"pushed"` // last
	// UsedBy names workloads. It is null if the cluster's workloads may not be listed.
	UsedBy  []string `json:"usedBy"`
	Problem string   `json:"problem,omitempty"`
}

// listedRepository is a repository as list --repositories prints it.
type listedRepository struct {
	Repository string   `json:"repository"` // with the registry's address
	Images     int      `json:"images"`
	Tags       int      `json:"tags"`
	Platforms  []string `json:"platforms"`
	Size       int64    `json:"size"` // in bytes, each blob counted once
	*storedFacts
}

type repositoryList = render.List[listedRepository]

// Images is what list prints as data.
type Images = render.List[Listed]

// PrintImages prints images as data, their references, or a table. Images without a reference have no name.
func PrintImages(w io.Writer, output string, list Images, table func(io.Writer, Images) error) error {
	if output == render.FormatName {
		table = printImageNames
	}
	return render.Report(w, output, render.ImageList, list, table, nil)
}

func printImageNames(w io.Writer, list Images) error {
	var refs []string
	for _, l := range list.Items {
		if l.Reference != "" {
			refs = append(refs, l.Reference)
		}
	}
	return render.Names(w, refs)
}

// ListFlags select what list shows of the cluster's registry.
type ListFlags struct{ Untagged, Repositories, NoTrunc bool }

// List prints what the cluster's registry contains.
func List(cmd *cobra.Command, release *cmdflags.Cluster, log *slog.Logger, output string, f ListFlags) error {
	ctx := cmd.Context()
	c, content, err := release.ConnectToCatalog(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	cmdflags.WarnAbout(log, content)
	l := &lister{content: content, address: c.Address, unshared: content.Unshared()}
	used, err := workloads.List(ctx, c.Client)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		log.Warn("cannot list the workloads, so it is unknown which images are used", "error", err)
	default:
		l.using = used.Using
	}
	if f.Repositories {
		write := printRepositories
		if output == render.FormatName {
			write = printRepositoryNames
		}
		return render.Report(cmd.OutOrStdout(), output, render.RepositoryList, l.repositories(), write, nil)
	}
	return PrintImages(cmd.OutOrStdout(), output, l.images(f.Untagged),
		func(w io.Writer, list Images) error { return printStored(w, list, f.NoTrunc) })
}

// lister describes the content of the cluster's registry.
type lister struct {
	content  *catalog.Catalog
	address  string
	unshared func([]*catalog.Manifest) int64
	using    func(*catalog.Image) []string // nil if unknown
}

// images returns the images by each of their tags, and those without a tag by their digest.
func (l *lister) images(untagged bool) Images {
	list := Images{Items: []Listed{}}
	for _, image := range l.content.Images() {
		if len(image.Tags) == 0 && !untagged {
			continue
		}
		facts := l.facts([]*catalog.Image{image})
		for _, ref := range image.References(l.address) {
			list.Items = append(list.Items, Listed{
				Reference: ref, Digest: image.Digest, MediaType: image.MediaType, Size: l.content.Size(image.Members),
				Platforms: append([]string{}, image.Platforms...), storedFacts: facts,
			})
		}
	}
	return list
}

func (l *lister) repositories() repositoryList {
	list := repositoryList{Items: []listedRepository{}}
	images := l.content.Images()
	for len(images) > 0 {
		name := images[0].Repository
		end := slices.IndexFunc(images, func(i *catalog.Image) bool { return i.Repository != name })
		if end < 0 {
			end = len(images)
		}
		group := images[:end]
		images = images[end:]
		r := listedRepository{
			Repository: l.address + "/" + name, Images: len(group), Size: l.content.Size(members(group)),
			storedFacts: l.facts(group), Platforms: []string{},
		}
		for _, image := range group {
			r.Tags += len(image.Tags)
			r.Platforms = append(r.Platforms, image.Platforms...)
		}
		slices.Sort(r.Platforms)
		r.Platforms = slices.Compact(r.Platforms)
		list.Items = append(list.Items, r)
	}
	return list
}

// members returns the manifests of images, each once.
func members(images []*catalog.Image) []*catalog.Manifest {
	var all []*catalog.Manifest
	seen := map[*catalog.Manifest]bool{}
	for _, image := range images {
		for _, m := range image.Members {
			if !seen[m] {
				seen[m] = true
				all = append(all, m)
			}
		}
	}
	return all
}

func (l *lister) facts(images []*catalog.Image) *storedFacts {
	facts := &storedFacts{Unshared: l.unshared(members(images))}
	if l.using != nil {
		facts.UsedBy = []string{}
	}
	for _, image := range images {
		facts.Signatures += image.Signatures
		facts.SBOMs += image.SBOMs
		if image.Pushed.After(facts.Pushed) {
			facts.Pushed = image.Pushed.UTC()
		}
		if l.using != nil {
			facts.UsedBy = append(facts.UsedBy, l.using(image)...)
		}
		facts.Problem = cmp.Or(facts.Problem, image.Problem)
	}
	slices.Sort(facts.UsedBy)
	facts.UsedBy = slices.Compact(facts.UsedBy)
	return facts
}

func printStored(w io.Writer, list Images, noTrunc bool) error {
	t := render.NewTable(w, append([]string{"REFERENCE"}, factNames...)...)
	t.Short = !noTrunc
	for _, l := range list.Items {
		t.Row(append([]string{l.Reference}, l.cells(l.Platforms, l.Size)...)...)
	}
	return t.Flush()
}

func printRepositories(w io.Writer, list repositoryList) error {
	t := render.NewTable(w, append([]string{"REPOSITORY", "IMAGES", "TAGS"}, factNames...)...)
	for _, r := range list.Items {
		t.Row(append([]string{r.Repository, strconv.Itoa(r.Images), strconv.Itoa(r.Tags)},
			r.cells(r.Platforms, r.Size)...)...)
	}
	return t.Flush()
}

func printRepositoryNames(w io.Writer, list repositoryList) error {
	var names []string
	for _, r := range list.Items {
		names = append(names, r.Repository)
	}
	return render.Names(w, names)
}

// factNames are the headers of [storedFacts.cells].
var factNames = []string{"PLATFORMS", "SIZE", "UNSHARED", "SIGNATURES", "SBOMS", "PUSHED", "USED BY"}

func (f *storedFacts) cells(platforms []string, size int64) []string {
	users := firstOf(f.UsedBy)
	switch {
	case f.Problem != "":
		users = "cannot be read: " + f.Problem
	case f.UsedBy == nil:
		users = "unknown"
	}
	return []string{cmp.Or(strings.Join(platforms, ","), "-"), space.FormatBytes(size), space.FormatBytes(f.Unshared),
		strconv.Itoa(f.Signatures), strconv.Itoa(f.SBOMs), f.Pushed.Format(time.DateOnly), users}
}

// firstOf names the first of some workloads and how many more there are.
func firstOf(names []string) string {
	switch n := len(names); n {
	case 0:
		return "-"
	case 1:
		return names[0]
	default:
		return fmt.Sprintf("%s and %d more", names[0], n-1)
	}
}

// Listed is an image as list prints it.
type Listed struct {
	// Source is the archive or layout. It is empty for a registry.
	Source string `json:"source,omitempty"`
	// Reference is empty if the source does not name the image.
	Reference string        `json:"reference"`
	Digest    digest.Digest `json:"digest"`
	MediaType string        `json:"mediaType"`
	Platforms []string      `json:"platforms"`
	Size      int64         `json:"size"` // in bytes
	// Only for the cluster's registry.
	*storedFacts
}
