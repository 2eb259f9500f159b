package images

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// DaemonPrefix begins a reference to an image of the Docker engine on this
// machine rather than of a registry, as in docker-daemon:nginx:1.27. Skopeo calls
// it the same.
const DaemonPrefix = "docker-daemon:"

// maxListLine bounds a line of a list file, in bytes. The longest reference there
// can be has some 500.
const maxListLine = 4096

// ReadList reads a list file: one reference a line, as [CheckReference] takes it.
// Blank lines are skipped, and so is what stands from a # to the end of a line,
// where the # begins the line or follows a blank: no reference has either. Lines
// may end in CR LF. A reference that stands there several times is returned once,
// where it was first.
//
// Errors name the file by name, and the line. A list without a reference is an
// error: it is the wrong file more likely than nothing to do.
func ReadList(r io.Reader, name string) ([]string, error) {
	var refs []string
	seen := map[string]bool{}
	scanner := bufio.NewScanner(r)
	scanner.Buffer(make([]byte, 0, maxListLine), maxListLine)
	line := 0
	for scanner.Scan() {
		line++
		text := scanner.Text()
		if line == 1 {
			text = strings.TrimPrefix(text, "\ufeff") // editors of Windows begin a file with it
		}
		ref := strings.TrimSpace(withoutComment(text))
		if ref == "" || seen[ref] {
			continue
		}
		if err := CheckReference(ref); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, line, err)
		}
		seen[ref] = true
		refs = append(refs, ref)
	}
	switch err := scanner.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s:%d: has more than %d bytes in a line: a list file has one image reference a line", name, line+1, maxListLine)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case len(refs) == 0:
		return nil, fmt.Errorf("%s: holds no image reference: it has one a line, and comments after #", name)
	}
	return refs, nil
}

func withoutComment(line string) string {
	for i := range len(line) {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			return line[:i]
		}
	}
	return line
}

// CheckReference refuses what names no image: neither a reference as docker and
// containerd read it, nor one behind [DaemonPrefix].
func CheckReference(ref string) error {
	if ref == DaemonPrefix {
		return fmt.Errorf("image reference %q: has no name after the colon, as in %snginx:1.27", ref, DaemonPrefix)
	}
	_, err := parseReference(strings.TrimPrefix(ref, DaemonPrefix))
	return err
}
