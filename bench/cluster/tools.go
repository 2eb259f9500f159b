package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/zarf-dev/zarf-registry/bench/internal/results"
)

// job is a tool's work in one repetition.
type job struct {
	program string
	host    string // of the registry, through kubectl port-forward
	dir     string // for configuration and caches
	cluster []string
}

// tool is a program that pushes.
type tool struct {
	results.Subject
	program string
	plain   bool // uses the plain port
	direct  bool // needs no kubectl port-forward
	// push returns the commands that push a set one after the other.
	push func(j job, set *imageSet) [][]string
}

// tools returns all tools, without program and version.
func tools() []tool {
	perImage := func(command func(j job, i image) []string) func(job, *imageSet) [][]string {
		return func(j job, set *imageSet) (commands [][]string) {
			for _, i := range set.images {
				commands = append(commands, command(j, i))
			}
			return commands
		}
	}
	return []tool{
		{Subject: results.Subject{Name: ours, About: "`images push`: one process, TLS through the API server"}, direct: true,
			push: func(j job, set *imageSet) [][]string {
				return [][]string{append([]string{j.program, "images", "push", set.layout}, j.cluster...)}
			}},
		// It does not support client certificates.
		{Subject: results.Subject{Name: "crane", About: "one process per image, without TLS"}, plain: true,
			push: perImage(func(j job, i image) []string {
				return []string{j.program, "push", "--insecure", i.single, i.reference(j.host)}
			})},
		// With a client certificate, it does not send the push credential.
		{Subject: results.Subject{Name: "skopeo", About: "one process per image, without TLS"}, plain: true,
			push: perImage(func(j job, i image) []string {
				return []string{j.program, "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false",
					"oci:" + i.single, "docker://" + i.reference(j.host)}
			})},
		{Subject: results.Subject{Name: "regctl", About: "one process per image, TLS"},
			push: perImage(func(j job, i image) []string {
				return []string{j.program, "image", "copy", "ocidir://" + i.single + "@" + i.manifest.Digest.String(),
					i.reference(j.host)}
			})},
	}
}

// findTools returns all tools with their programs and versions.
func findTools(ctx context.Context, o options) (found []tool, err error) {
	c := &cluster{options: o}
	for _, t := range tools() {
		if t.program, t.Version, err = c.find(ctx, t.Name); err != nil {
			return nil, fmt.Errorf("%s: %w: make bench-cluster installs or builds it", t.Name, err)
		}
		found = append(found, t)
	}
	return found, nil
}

// find returns a tool's program and version.
func (c *cluster) find(ctx context.Context, name string) (program, version string, err error) {
	argument := "version"
	switch name {
	case ours:
		program, err = filepath.Abs(c.zarf)
	case "skopeo":
		argument = "--version"
		program, err = exec.LookPath(name)
	default:
		program, err = c.tool(ctx, name)
	}
	if err != nil {
		return "", "", err
	}
	version, err = c.output(ctx, program, argument)
	version, _, _ = strings.Cut(version, "\n")
	return program, strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(version, "VCSTag:"), "skopeo version ")), err
}
