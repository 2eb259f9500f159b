// Package guide reads the commands of documentation pages, which TestWorkstation in test/e2e runs.
package guide

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Pages are the pages of docs/guide, in the order in which a user reads them.
var Pages = []string{
	"guide/install.md", "guide/push.md", "guide/run.md", "guide/upgrade.md", "guide/fix.md", "guide/uninstall.md",
}

// Command is a block of commands, with the output that the page shows.
type Command struct {
	Node   string // where it runs; empty for the workstation
	Script string
	Want   []string
}

// Commands returns the commands of a page: what its blocks of the language sh contain. After sh, a block names
// the node where it runs. A block of the language text shows the output of the block before it, with … in place of
// lines that it leaves out. Blocks of other languages are examples, which nobody runs.
func Commands(content string) ([]Command, error) {
	var commands []Command
	code, language := false, ""
	for line := range strings.Lines(content) {
		line = strings.TrimRight(line, "\n")
		last := len(commands) - 1
		switch opening, isFence := strings.CutPrefix(line, "```"); {
		case isFence && code:
			code = false
		case isFence:
			var node string
			code = true
			language, node, _ = strings.Cut(opening, " ")
			if language == "sh" {
				commands = append(commands, Command{Node: node})
			} else if language == "text" && (last < 0 || len(commands[last].Want) > 0) {
				return nil, fmt.Errorf("no command prints %s", line)
			}
		case code && language == "sh":
			commands[last].Script += line + "\n"
		case code && language == "text":
			commands[last].Want = append(commands[last].Want, line)
		}
	}
	return commands, nil
}

// pageVersion matches the version of a release's file.
var pageVersion = regexp.MustCompile(`(zarf-registry-(?:bundle-)?)[0-9]+\.[0-9]+\.[0-9]+(?:-[a-z]+(?:\.[0-9]+)*)?(\b)`)

// OfVersion replaces the version in names of a release's files, unless the version is empty.
func OfVersion(command, version string) string {
	if version == "" {
		return command
	}
	return pageVersion.ReplaceAllString(command, "${1}"+version+"${2}")
}

var (
	digits = regexp.MustCompile(`sha256:[0-9a-f]{64}|[0-9]+(\.[0-9]+)?(ms|s| [kM]B)?\b`)
	spaces = regexp.MustCompile(`\s+`)
)

// Shown reports whether lines of the output are those that a page shows, in order. A page that shows
// nothing leaves the output open.
func Shown(want []string, out string) bool {
	plain := func(line string) string {
		return strings.TrimSpace(spaces.ReplaceAllString(digits.ReplaceAllString(line, "0"), " "))
	}
	var got []string
	for line := range strings.Lines(out) {
		if line = plain(line); line != "" {
			got = append(got, line)
		}
	}
	gap := false
	for _, line := range want {
		if line = plain(line); line == "" || line == "…" {
			gap = gap || line == "…"
			continue
		}
		i := slices.Index(got, line)
		if i < 0 || i > 0 && !gap {
			return false
		}
		got, gap = got[i+1:], false
	}
	return true
}
