package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"

	"github.com/zarf-dev/zarf-registry/tools/program"
)

// packageChart writes the chart's package, NAME-VERSION.tgz, and returns its name. Unlike helm package, it
// is reproducible: files are sorted and have the same time. If version is set, the chart must have that
// version, so that it refers to the images of the release.
func packageChart(dir, version, output string, at time.Time) (string, error) {
	c, err := loader.LoadDir(dir)
	if err != nil {
		return "", fmt.Errorf("chart %s: %w", dir, err)
	}
	if err := c.Validate(); err != nil {
		return "", fmt.Errorf("chart %s: %w", dir, err)
	}
	if version != "" && (c.Metadata.Version != version || c.Metadata.AppVersion != version) {
		return "", fmt.Errorf("chart %s has version %s and appVersion %s, but the release is %s: change Chart.yaml or unset "+
			"VERSION",
			dir, c.Metadata.Version, c.Metadata.AppVersion, version)
	}
	if len(c.Dependencies()) > 0 {
		return "", fmt.Errorf("chart %s has dependencies, which are not supported", dir)
	}
	files := slices.Clone(c.Raw)
	slices.SortFunc(files, func(a, b *chart.File) int { return cmp.Compare(a.Name, b.Name) })
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression) // no name and no time
	if err != nil {
		return "", err
	}
	t := tar.NewWriter(z)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: path.Join(c.Name(), f.Name), Mode: 0o644, Size: int64(len(f.Data)),
			ModTime: at, Format: tar.FormatPAX}
		if err := t.WriteHeader(header); err != nil {
			return "", err
		}
		if _, err := t.Write(f.Data); err != nil {
			return "", err
		}
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return "", err
	}
	name := c.Name() + "-" + c.Metadata.Version + ".tgz"
	return name, program.WriteFile(filepath.Join(output, name), packed.Bytes())
}
