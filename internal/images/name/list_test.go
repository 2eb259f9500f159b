package name

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/test/require"
)

func TestReadList(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"one per line":          {"nginx\nghcr.io/a/b:1\n", []string{"nginx", "ghcr.io/a/b:1"}},
		"no newline at the end": {"nginx", []string{"nginx"}},
		"comments and blank lines": {"# all of them\n\n  nginx:1 # the proxy\n\t# not this one\n\t b:2\t#x\n",
			[]string{"nginx:1", "b:2"}},
		"duplicate lines":                 {"b\na\nb\n", []string{"b", "a"}},
		"CRLF and byte order mark":        {"\ufeffa:1\r\nb:1\r\n\r\n", []string{"a:1", "b:1"}},
		"a digest":                        {"a@" + emptySum + "\n", []string{"a@" + emptySum}},
		"an image of the Docker engine":   {"docker-daemon:team/app:1\n", []string{"docker-daemon:team/app:1"}},
		"a registry with an IPv6 address": {"[::1]:5000/a:1\n", []string{"[::1]:5000/a:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := require.Value(ReadList(strings.NewReader(c.text), "list"))(t)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReadListRejects(t *testing.T) {
	for name, c := range map[string]struct {
		r    io.Reader
		want string
	}{
		"two on a line": {strings.NewReader("a:1\n\nb:1 c:1\n"),
			`my.txt:3: image reference "b:1 c:1": invalid reference format`},
		"a scheme": {strings.NewReader("https://ghcr.io/a\n"),
			`my.txt:1: image reference "https://ghcr.io/a": invalid reference format`},
		"a # within a name": {strings.NewReader("a#b\n"), `my.txt:1: image reference "a#b": invalid reference format`},
		"an engine without an image": {strings.NewReader("docker-daemon:\n"),
			`my.txt:1: image reference "docker-daemon:": has no name after the colon: want one as in docker-daemon:nginx:1.27`},
		"nothing": {strings.NewReader("# nothing\n"),
			"my.txt: contains no image reference: want one per line, with comments after #"},
		"an image file": {strings.NewReader("a:1\n" + strings.Repeat("x", 5000)),
			"my.txt:2: line has more than 4096 bytes: want one image reference per line"},
		"a read error": {iotest.ErrReader(errors.New("input/output error")), "my.txt: input/output error"},
	} {
		t.Run(name, func(t *testing.T) {
			refs, err := ReadList(c.r, "my.txt")
			if err == nil || err.Error() != c.want {
				t.Errorf("refs %q, error %v; want %q", refs, err, c.want)
			}
		})
	}
}
