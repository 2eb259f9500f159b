package name

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// DaemonPrefix is the prefix of a reference to an image of the Docker engine on this machine, as in
// docker-daemon:nginx:1.27. Skopeo uses the same.
const DaemonPrefix = "docker-daemon:"

// comment matches a comment in a line of a list file.
var comment = regexp.MustCompile(`(^|[ \t])#.*`)

// maxListLine limits a line of a list file, in bytes. The longest valid reference has about 500.
const maxListLine = 4096

// ReadList reads a list file with one reference per line, in [Check]'s format. It skips blank
// lines and comments, which start with # at the beginning of a line or after a blank. Lines may end in
// CR LF. Duplicates are dropped.
//
// Errors contain name and the line number. An empty list is an error: it is more likely the wrong
// file.
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
			text = strings.TrimPrefix(text, "\ufeff") // Windows editors write a byte order mark
		}
		ref := strings.TrimSpace(comment.ReplaceAllString(text, ""))
		if ref == "" || seen[ref] {
			continue
		}
		if err := Check(ref); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, line, err)
		}
		seen[ref] = true
		refs = append(refs, ref)
	}
	switch err := scanner.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s:%d: line has more than %d bytes: want one image reference per line", name, line+1,
			maxListLine)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case len(refs) == 0:
		return nil, fmt.Errorf("%s: contains no image reference: want one per line, with comments after #", name)
	}
	return refs, nil
}

// Check checks that ref is a reference as Docker and containerd parse it, optionally after
// [DaemonPrefix].
func Check(ref string) error {
	if ref == DaemonPrefix {
		return fmt.Errorf("image reference %q: has no name after the colon: want one as in %snginx:1.27", ref, DaemonPrefix)
	}
	_, err := Named(strings.TrimPrefix(ref, DaemonPrefix))
	return err
}
