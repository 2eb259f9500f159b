// Command release builds the files of a release from the output of make images: the chart's package, init-hook for
// workstations, the image archives, license texts, a software bill of materials (CycloneDX) for each Go program,
// SHA256SUMS of all files, and a bundle, an archive of all of these. The same commit and toolchain give the same bytes.
// It does not sign or upload anything; see docs/dev/release.md.
//
// make release runs it in the repository's root, after make images. With -bundle-only it only packs the bundle again,
// to include a signature of SHA256SUMS. With -chart-only it writes only the chart's package. Both accept uncommitted
// changes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/images/build"
	imagesource "github.com/zarf-dev/zarf-registry/internal/images/source"
	"github.com/zarf-dev/zarf-registry/tools/program"
)

func main() { program.Main("release", run) }

const (
	initHook = "init-hook"
	// workstationProgram is the name of the same program in a release.
	workstationProgram = "zarf-registry"
)

// release describes what to build and from what.
type release struct {
	version  string
	registry string // prefix of the images' names
	chart    string // folder of the chart
	archives string // folder of the image archives
	// programs and embedded are the folders of init-hook and of the programs that it embeds.
	programs, embedded string
	darwin             bool // include zarf-registry for macOS
	source             source
	output             string
	// listModules returns the bill of materials of a program.
	listModules func(ctx context.Context, program, version string) ([]byte, error)
}

// source is the source of the release.
type source struct {
	time time.Time // time of the commit; the files contain no other time
	// changed means that files differ from the commit.
	changed bool
}

func run(ctx context.Context) error {
	r := release{listModules: listModules}
	flag.StringVar(&r.version, "version", "", "version of the release")
	flag.StringVar(&r.registry, "registry", "ghcr.io/zarf-dev/zarf-registry", "prefix of the images' names")
	flag.StringVar(&r.chart, "chart", "charts/zarf-registry", "folder of the chart")
	flag.StringVar(&r.archives, "images", "dist/images", "folder of the image archives")
	flag.StringVar(&r.programs, "programs", "bin/images", "folder of init-hook for each architecture")
	flag.StringVar(&r.embedded, "payload", "bin/payload", "folder of the programs that init-hook embeds")
	flag.StringVar(&r.output, "output", "dist/release", "folder of the release; its content is replaced")
	flag.BoolVar(&r.darwin, "darwin", true, "include zarf-registry for macOS, which takes minutes to compile")
	bundleOnly := flag.Bool("bundle-only", false, "only pack the bundle in the output again, with a signature")
	chartOnly := flag.Bool("chart-only", false, "write only the chart's package")
	allowChanges := flag.Bool("allow-changes", false, "allow files that differ from the commit, for testing")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	var err error
	if r.source, err = readSource(ctx); err != nil {
		return err
	}
	if *chartOnly {
		if err := os.MkdirAll(r.output, 0o755); err != nil {
			return err
		}
		name, err := packageChart(r.chart, r.version, r.output, r.source.time)
		if err == nil {
			fmt.Println(filepath.Join(r.output, name))
		}
		return err
	}
	if *bundleOnly {
		return r.pack(r.output, os.Stdout)
	}
	if r.source.changed && !*allowChanges {
		return errors.New("files differ from the commit (git status): commit them, or set RELEASE_FLAGS=-allow-changes for " +
			"testing")
	}
	for _, p := range r.workstations() {
		if strings.HasPrefix(p.platform, "linux/") {
			continue // make images builds these
		}
		if err := program.Build(ctx, "./cmd/"+initHook, p.platform, r.version, p.file); err != nil {
			return err
		}
	}
	return r.make(ctx, os.Stdout)
}

// readSource reads the time of the commit from git. SOURCE_DATE_EPOCH, if set, replaces the commit's time
// (https://reproducible-builds.org/specs/source-date-epoch/).
func readSource(ctx context.Context) (source, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", args...).Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w (a release requires a git clone)", strings.Join(args, " "),
				err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	var s source
	var err error
	seconds := os.Getenv("SOURCE_DATE_EPOCH")
	if seconds == "" {
		if seconds, err = git("log", "-1", "--format=%ct"); err != nil {
			return source{}, err
		}
	}
	epoch, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return source{}, fmt.Errorf("invalid time %q: want seconds since 1970", seconds)
	}
	s.time = time.Unix(epoch, 0).UTC()
	status, err := git("status", "--porcelain")
	s.changed = status != ""
	return s, err
}

// make writes the release to a temporary folder and renames it, so that the output is always complete.
func (r release) make(ctx context.Context, out io.Writer) (err error) {
	if r.version == "" {
		return errors.New("-version is missing")
	}
	if err := os.MkdirAll(filepath.Dir(r.output), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(r.output), ".release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // fails after the rename
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}

	if _, err := packageChart(r.chart, r.version, work, r.source.time); err != nil {
		return err
	}
	if err := copyFile(filepath.Join(r.embedded, program.LicensesText), filepath.Join(work, program.LicensesText),
		0o644); err != nil {
		return err
	}
	for _, p := range r.workstations() {
		if strings.HasPrefix(p.platform, "darwin/") {
			if err := checkDarwin(p); err != nil {
				return err
			}
		}
		if err := copyFile(p.file, filepath.Join(work, p.asset), 0o755); err != nil {
			return err
		}
		if err := r.writeSBOM(ctx, p.file, filepath.Join(work, p.asset+suffixSBOM)); err != nil {
			return err
		}
	}
	for _, name := range append([]string{initHook}, build.ProgramNames...) {
		archive := filepath.Join(r.archives, name+".tar")
		if err := r.checkImage(ctx, name, archive); err != nil {
			return err
		}
		if err := copyFile(archive, filepath.Join(work, name+".tar"), 0o644); err != nil {
			return err
		}
	}
	for _, name := range program.Injected {
		for _, arch := range build.Architectures {
			file := name + "-linux-" + arch + suffixSBOM
			if err := r.writeSBOM(ctx, filepath.Join(r.embedded, name+"-"+arch), filepath.Join(work, file)); err != nil {
				return err
			}
		}
	}
	if err := writeSums(work, out); err != nil {
		return err
	}
	if err := r.pack(work, out); err != nil {
		return err
	}
	if err := os.RemoveAll(r.output); err != nil {
		return err
	}
	return os.Rename(work, r.output)
}

// workstation is init-hook for a platform.
type workstation struct {
	platform string // such as linux/amd64
	file     string // what was built
	asset    string // its name in the release
}

// workstations returns the programs for workstations.
func (r release) workstations() (all []workstation) {
	for _, arch := range build.Architectures {
		all = append(all, workstation{"linux/" + arch, filepath.Join(r.programs, initHook+"-"+arch),
			workstationProgram + "-linux-" + arch})
	}
	if !r.darwin {
		return all
	}
	for _, arch := range build.Architectures {
		all = append(all, workstation{"darwin/" + arch, filepath.Join(r.programs, initHook+"-darwin-"+arch),
			workstationProgram + "-darwin-" + arch})
	}
	return all
}

func copyFile(from, to string, mode os.FileMode) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("%w (make images builds it)", err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(mode), out.Close())
}

// checkImage checks that an archive holds the image that its name says.
func (r release) checkImage(ctx context.Context, name, archive string) (err error) {
	src, err := imagesource.Open(ctx, archive)
	if err != nil {
		return fmt.Errorf("%w (make images builds it)", err)
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	items, err := src.Items("")
	if err := errors.Join(err, src.Incomplete()); err != nil {
		return err
	}
	if want := build.NewSpec(r.registry, name, r.version).Reference; len(items) != 1 || items[0].Reference != want {
		return fmt.Errorf("%s does not hold %s: run make images again with the same VERSION and REGISTRY", archive, want)
	}
	return nil
}
