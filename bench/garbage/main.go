// Command garbage measures a registry with 100,000 blobs in S3: its catalog, a scrub, the deletion of images, a
// garbage collection, and how long pushes wait meanwhile.
//
// S3 is versitygw on this machine, behind a proxy that adds a delay to each request.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/zarf-dev/zarf-registry/bench/internal/program"
	"github.com/zarf-dev/zarf-registry/bench/internal/registries"
	"github.com/zarf-dev/zarf-registry/bench/internal/results"
	"github.com/zarf-dev/zarf-registry/internal/registry/storage"
)

func main() {
	program.Main("garbage", func(ctx context.Context, args []string) error { return bench(ctx, args, os.Stdout) })
}

type options struct {
	results.Options
	dir, registry, s3 string
	blobs             int
	delay             time.Duration
	alone             time.Duration // how long pushes are measured without a collection
}

func bench(ctx context.Context, args []string, stdout io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("garbage", flag.ContinueOnError)
	o.Register(flags)
	flags.StringVar(&o.dir, "dir", "", "directory for up to 3 GB of temporary files (default: /dev/shm, in memory)")
	flags.StringVar(&o.registry, "registry", "bin/registry", "path of the project's registry")
	flags.StringVar(&o.s3, "s3", "", "path of versitygw")
	flags.IntVar(&o.blobs, "blobs", 100_000, "number of stored blobs; a tenth become garbage")
	flags.DurationVar(&o.delay, "delay", 20*time.Millisecond, "added to each request to S3")
	flags.DurationVar(&o.alone, "alone", 15*time.Second, "how long pushes are measured without a collection")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.s3 == "" || o.blobs < minBlobs {
		return fmt.Errorf("-s3 and at least %d -blobs are required, and positional arguments are not supported", minBlobs)
	}
	report, err := o.Begin(ctx)
	if err != nil {
		return err
	}
	dir, certificates, err := registries.Prepare(o.dir, "bench-garbage-")
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err != nil {
		return err
	}
	report.How = fmt.Sprintf("One registry with %d blobs of %d images in S3, whose every request takes %v longer. A "+
		"tenth of the images is deleted, then the registry collects the garbage while %d clients push images of three "+
		"blobs, every other one with layers that are garbage. Requests include those of the pushes. Times for 1,000,000 "+
		"blobs are calculated: the delay of all requests, of which the registry sends %d at once.", o.blobs,
		o.blobs/blobsOfImage, o.delay, pushers, storage.Concurrency)
	report.Subjects = []results.Subject{
		{Name: rowCatalog, About: "of all images and blobs"},
		{Name: rowScrub, About: "of all blobs"},
		{Name: rowDelete, About: "of a tenth of the images"},
		{Name: rowMark}, {Name: rowRemark, About: "after manifests in progress"},
		{Name: rowSweep, About: "a tenth of the blobs"},
		{Name: rowCollection, About: "these three, and the time for manifests in progress"},
		{Name: rowAlone}, {Name: rowMeanwhile},
	}
	err = report.Repeat(o.Runs, []string{"garbage"}, func(int) error {
		return measure(ctx, o, dir, certificates, report)
	})
	if err != nil {
		return err
	}
	return report.Save(o.Write, stdout)
}
