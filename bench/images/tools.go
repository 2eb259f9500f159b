package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// job is a tool's work in one repetition.
type job struct {
	program string
	host    string // of the registry, through kubectl port-forward
	set     *imageSet
	dir     string // for configuration and caches
	cluster []string
}

// Files in a job's directory.
const (
	cacheDir = "cache"
	listFile = "images.txt" // one reference per line
)

// references returns the images' names in the registry.
func (j job) references() []string {
	all := make([]string, len(j.set.images))
	for n, i := range j.set.images {
		all[n] = i.reference(j.host)
	}
	return all
}

func (j job) path(name string) string { return filepath.Join(j.dir, name) }

// tool is a program that pushes and pulls. push, pull and cached return the commands of an operation,
// which run one after the other.
type tool struct {
	name    string
	about   string // how the benchmark uses it, and what it does not support
	program string
	version string
	plain   bool // uses the plain port
	push    func(job) [][]string
	pull    func(j job, out string) [][]string
	// cached pulls from the tool's cache; nil if it has none.
	cached func(j job, out string) [][]string
	// fills means that the cold pull fills the cache.
	fills bool
	// direct means that pushes do not need kubectl port-forward.
	direct bool
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
		return one([]string{j.program, "images", "pull", "-f", j.path(listFile), "--out", out, "--plain-http",
			"--platform=all", "--store-dir", j.path(cacheDir)})
	}
	crane := func(j job, out string) []string {
		return append(append([]string{j.program, "pull", "--insecure", "--format=oci"}, j.references()...), out)
	}
	return []tool{
		{
			name: nameOurs, plain: true, direct: true, fills: true,
			about: "one process; pushes with mutual TLS through the API server; pulls from the plain port over kubectl " +
				"port-forward to an OCI layout, through its cache, without client certificates",
			push: func(j job) [][]string {
				return one(append([]string{j.program, "images", "push", j.set.layout}, j.cluster...))
			},
			pull: ours, cached: ours,
		},
		{
			name: "crane", plain: true,
			about: "one process per pushed image, one for all pulls; plain port over kubectl port-forward, because it does " +
				"not support client certificates",
			push: toPush(perImage(func(j job, i image, _ string) []string {
				return []string{j.program, "push", "--insecure", i.single, i.reference(j.host)}
			})),
			pull: func(j job, out string) [][]string { return one(crane(j, out)) },
			cached: func(j job, out string) [][]string {
				command := crane(j, out)
				return one(append([]string{command[0], command[1], "--cache_path", j.path(cacheDir)}, command[2:]...))
			},
		},
		{
			name: "skopeo", plain: true,
			about: "one process per image; plain port over kubectl port-forward, because with a client certificate it does " +
				"not send the push credential; has no cache",
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
			name: "regctl", about: "one process per image; mutual TLS over kubectl port-forward; has no cache",
			push: toPush(perImage(func(j job, i image, _ string) []string {
				return []string{j.program, "image", "copy", "ocidir://" + j.set.tagged + ":" + i.tag, i.reference(j.host)}
			})),
			pull: perImage(func(j job, i image, out string) []string {
				return []string{j.program, "image", "copy", i.reference(j.host), "ocidir://" + out + ":" + i.tag}
			}),
		},
	}
}

// nameOurs is the name of our tool. The targets in bench/report refer to it.
const nameOurs = "init-hook"

// findTools returns the selected tools with their programs and versions.
func findTools(ctx context.Context, o options) (found []tool, err error) {
	for _, t := range tools() {
		if !selected(o.tools, t.name) {
			continue
		}
		if t.program, t.version, err = find(ctx, o, t.name); err != nil {
			return nil, fmt.Errorf("%s: %w: make bench-images installs or builds it; -tools selects others", t.name, err)
		}
		found = append(found, t)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no tool is called %q", o.tools)
	}
	return found, nil
}

// find returns a tool's program and version.
func find(ctx context.Context, o options, name string) (program, version string, err error) {
	argument := "version"
	switch name {
	case nameOurs:
		program, err = filepath.Abs(o.initHook)
	case "skopeo":
		argument = "--version"
		program, err = exec.LookPath(name)
	default:
		program, err = output(ctx, o.testcluster, "tool", name)
	}
	if err != nil {
		return "", "", err
	}
	version, err = output(ctx, program, argument)
	version, _, _ = strings.Cut(version, "\n")
	return program, strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(version, "VCSTag:"), "skopeo version ")), err
}

// output runs a command and returns its trimmed stdout.
func output(ctx context.Context, name string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, name, args...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
