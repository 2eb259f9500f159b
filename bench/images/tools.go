package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// job is a tool's work in one repetition.
type job struct {
	program string
	host    string // of the registry
	set     *imageSet
	cache   string // directory of the tool's cache
	list    string // file with one reference per line
}

// references returns the images' names in the registry.
func (j job) references() []string {
	all := make([]string, len(j.set.images))
	for n, i := range j.set.images {
		all[n] = i.reference(j.host)
	}
	return all
}

// tool is a program that pushes and pulls. push, pull and cached return the commands of an operation,
// which run one after the other.
type tool struct {
	name    string
	about   string // how the benchmark uses it
	program string
	version string
	push    func(job) [][]string
	pull    func(j job, out string) [][]string
	// cached pulls from the tool's cache; nil if it has none.
	cached func(j job, out string) [][]string
	// fills means that the cold pull fills the cache.
	fills bool
	// repository returns the repository that the tool pushes an image to; nil for the image's own.
	repository func(image) string
}

// tools returns all tools, in the order of the tables, without program and version.
func tools() []tool {
	one := func(commands ...[]string) [][]string { return commands }
	perImage := func(command func(j job, i image, out string) []string) func(job, string) [][]string {
		return func(j job, out string) (commands [][]string) {
			for _, i := range j.set.images {
				commands = append(commands, command(j, i, out))
			}
			return commands
		}
	}
	toPush := func(commands func(job, string) [][]string) func(job) [][]string {
		return func(j job) [][]string { return commands(j, "") }
	}
	ours := func(j job, out string) [][]string {
		return one([]string{j.program, "images", "pull", "-f", j.list, "-o", out, "--plain-http", "--platform=all",
			"--cache-dir", j.cache})
	}
	craneImages := func(j job, out string) []string {
		return append(append([]string{j.program, "pull", "--insecure", "--format=oci"}, j.references()...), out)
	}
	return []tool{
		{
			name: "init-hook", about: "one process, 40 images in 40 repositories; pulls to an OCI layout, through its cache",
			push: func(j job) [][]string {
				return one([]string{j.program, "images", "push", j.set.layout, "--to", j.host, "--plain-http"})
			},
			pull: ours, cached: ours, fills: true,
		},
		{
			name: "crane, one index", about: "one process, 40 images as one index in one repository",
			push: func(j job) [][]string {
				return one([]string{j.program, "push", "--insecure", "--index", j.set.layout, j.host + "/bench/all:v1"})
			},
			pull: func(j job, out string) [][]string {
				return one([]string{j.program, "pull", "--insecure", "--format=oci", j.host + "/bench/all:v1", out})
			},
			repository: func(image) string { return "bench/all" },
		},
		{
			name: "crane, images", about: "one process per pushed image, one process for all pulls",
			push: toPush(perImage(func(j job, i image, _ string) []string {
				return []string{j.program, "push", "--insecure", i.single, i.reference(j.host)}
			})),
			pull: func(j job, out string) [][]string { return one(craneImages(j, out)) },
			cached: func(j job, out string) [][]string {
				command := craneImages(j, out)
				return one(append([]string{command[0], command[1], "--cache_path", j.cache}, command[2:]...))
			},
		},
		{
			name: "skopeo", about: "one process per image",
			push: toPush(perImage(func(j job, i image, _ string) []string {
				return []string{j.program, "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false",
					"oci:" + j.set.tagged + ":" + i.tag, "docker://" + i.reference(j.host)}
			})),
			pull: perImage(func(j job, i image, out string) []string {
				return []string{j.program, "copy", "--quiet", "--insecure-policy", "--src-tls-verify=false",
					"docker://" + i.reference(j.host), "oci:" + out + ":" + i.tag}
			}),
		},
		{
			name: "regctl", about: "one process per image",
			push: toPush(perImage(func(j job, i image, _ string) []string {
				return []string{j.program, "--host", "reg=" + j.host + ",tls=disabled", "image", "copy",
					"ocidir://" + j.set.tagged + ":" + i.tag, i.reference(j.host)}
			})),
			pull: perImage(func(j job, i image, out string) []string {
				return []string{j.program, "--host", "reg=" + j.host + ",tls=disabled", "image", "copy", i.reference(j.host),
					"ocidir://" + out + ":" + i.tag}
			}),
		},
		{
			name: "floor", about: fmt.Sprintf(
				"a client that hashes and checks nothing: %d connections, each blob once, one repository", floorConnections),
			push: func(j job) [][]string { return one([]string{j.program, floorPushMode, j.host, j.set.layout}) },
			pull: func(j job, out string) [][]string {
				return one([]string{j.program, floorPullMode, j.host, j.set.layout, out})
			},
			repository: func(image) string { return floorRepository },
		},
	}
}

// findTools returns the selected tools that are installed, and prints which are missing.
func findTools(ctx context.Context, o options) ([]tool, error) {
	known, found := tools(), []tool(nil)
	for _, t := range known {
		if !selected(o.tools, shortName(t.name)) {
			continue
		}
		var err error
		if t.program, t.version, err = find(ctx, o, shortName(t.name)); err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			fmt.Fprintf(os.Stderr, "\nMISSING, not measured: %s: %v\n\n", t.name, err)
			continue
		}
		found = append(found, t)
	}
	if len(found) == 0 {
		return nil, errors.New("no tool to measure: install one of them or change -tools")
	}
	return found, nil
}

// shortName returns the name of a tool's program.
func shortName(name string) string {
	short, _, _ := strings.Cut(name, ",")
	return short
}

// find returns a tool's program and version.
func find(ctx context.Context, o options, name string) (program, version string, err error) {
	switch name {
	case "init-hook":
		if program, err = filepath.Abs(o.initHook); err != nil {
			return "", "", err
		}
		// An older version without the command prints the help of its parent command.
		help, err := output(ctx, program, "images", "pull", "--help")
		if err != nil {
			return "", "", err
		}
		if !strings.Contains(help, "--cache-dir") {
			return "", "", fmt.Errorf("%s has no command images pull", program)
		}
		version, err = output(ctx, program, "version")
		return program, firstLine(version), err
	case "floor":
		program, err = os.Executable()
		return program, "", err
	case "skopeo":
		if program, err = exec.LookPath(name); err != nil {
			return "", "", fmt.Errorf("%w: apt-get install skopeo", err)
		}
		version, err = output(ctx, program, "--version")
		return program, firstLine(version), err
	default:
		built, err := output(ctx, o.get, "tool", name)
		if err != nil {
			return "", "", err
		}
		program = strings.TrimSpace(built)
		version, err = output(ctx, program, "version")
		return program, strings.TrimSpace(strings.TrimPrefix(firstLine(version), "VCSTag:")), err
	}
}

// output runs a command and returns its stdout.
func output(ctx context.Context, name string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, name, args...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return string(out), nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
