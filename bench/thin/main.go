// Command thin measures how images that have changed get into a registry that has their previous versions: the
// inventory of that registry, and a thin archive compared with one that has everything.
//
// The registries are processes with mutual TLS. Pulls and pushes are those of zarf-registry images pull and push, in
// this process and without a cluster: no API server and no network are between them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

func main() {
	program.Main("thin", func(ctx context.Context, args []string) error { return bench(ctx, args, os.Stdout) })
}

type options struct {
	results.Options
	dir, registry   string
	images, changed int
	layer           int64
}

// Tables and subjects of the report. The targets in bench/report refer to them.
const (
	tableInventory = "Inventory"
	tableArchive   = "Archive of all images, pulled and pushed"

	subjectInventory = "inventory"
	subjectThin      = "thin archive"
	subjectFull      = "full archive"
)

func bench(ctx context.Context, args []string, stdout io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("thin", flag.ContinueOnError)
	o.Register(flags)
	flags.StringVar(&o.dir, "dir", "", "directory for up to 2 GB of temporary files (default: /dev/shm, in memory)")
	flags.StringVar(&o.registry, "registry", "bin/registry", "path of the project's registry")
	flags.IntVar(&o.images, "images", 1000, "number of images")
	flags.IntVar(&o.changed, "changed", 50, "number of images that have changed")
	flags.Int64Var(&o.layer, "layer", 500e3, "size of the last layer of an image in bytes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.changed < 1 || o.changed > o.images || o.layer < 1 {
		return errors.New("positional arguments are not supported, -changed must be positive and at most -images, and " +
			"-layer positive")
	}
	report, err := o.Begin(ctx)
	if err != nil {
		return err
	}
	dir, certificates, err := registries.Prepare(o.dir, "bench-thin-")
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err != nil {
		return err
	}
	m := &measurement{options: o, dir: dir, certificates: certificates, report: report}
	if m.previous, m.next, err = makeSets(o.images, o.changed, o.layer); err != nil {
		return err
	}
	report.How, report.Subjects = how(m), subjects()
	fmt.Fprintln(os.Stderr, "pushing the images")
	stop, err := m.prepare(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	archives := []string{subjectThin, subjectFull}
	err = report.Repeat(o.Runs, archives, func(n int) error { return m.transfer(ctx, archives[n]) })
	if err != nil {
		return err
	}
	return report.Save(o.Write, stdout)
}

func subjects() []results.Subject {
	return []results.Subject{
		{Name: subjectInventory, About: "`images inventory`: from the request for the catalog to the encoded list"},
		{Name: subjectThin, About: "`images pull --have`, then `images push`"},
		{Name: subjectFull, About: "`images pull`, then `images push`"},
	}
}

func how(m *measurement) string {
	return fmt.Sprintf("`make bench-thin`: a registry has %d images in as many repositories, with %d layers and "+
		"configurations, %.0f MB; an upstream registry has the same, and new versions of %d of them, each with another last "+
		"layer of %.0f kB and another configuration. An image has %d layers of %d kB that images share, %d of %d kB, and "+
		"the last one; contents are incompressible. The archive is of the newest version of each image. The registries are "+
		"processes on one machine, with mutual TLS 1.3 over loopback; pulls and pushes are in another one, without a "+
		"cluster. Storage, cache and archive are in memory. Each archive begins with an empty cache and with the registry "+
		"as it was. At the end, all images of the archive are read in full, and every digest is verified.",
		m.images, len(blobsOf(m.previous)), float64(sizeOf(m.previous))/1e6, m.changed, float64(m.layer)/1e3,
		sharedLayers, sharedBytes/1000, ownLayers, ownBytes/1000)
}
