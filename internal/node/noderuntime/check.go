package noderuntime

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A checker validates a document against a shape. Its findings name places by their keys and
// contain only values that mask allows.
type checker struct {
	*findings
	// source is the document in messages, such as nodeConfig.k3s.registries.
	source string
	// strict requires strings to be quoted, as in TOML. YAML accepts 5000 as a string.
	strict bool
	// check is Inputs.CheckTLS.
	check func(string) error
	// bases are the directories that relative certificate paths start from. If there are none, paths
	// must be absolute.
	bases []string
}

func (c *checker) at(where string) string {
	if where == "" {
		return c.source
	}
	return c.source + ": " + where
}

// join appends a key, which must not be secret, to a place. Keys with dots or colons are quoted.
func join(where, key string) string {
	if !word.MatchString(key) && key != redacted {
		key = strconv.Quote(key)
	}
	if where == "" {
		return key
	}
	return where + "." + key
}

func (c *checker) value(where string, n *node, s *shape) {
	switch {
	case n.form == null && !c.strict: // like an absent value
	case n.form == mapping && (s.fields != nil || s.each != nil):
		c.mapping(where, n, s)
	case n.form == list && s.list != nil:
		for i, v := range n.list {
			in := where + "[" + strconv.Itoa(i) + "]"
			if v.form == null {
				c.problem("%s: is empty; set it or remove it", c.at(in))
			}
			c.value(in, v, s.list)
		}
	case n.scalar() && s.scalar != nothing:
		c.scalar(where, n, s.scalar)
	default:
		c.problem("%s: must be %s, is %s", c.at(where), s.forms(), n.form)
	}
}

func (c *checker) mapping(where string, n *node, s *shape) {
	for _, i := range n.items {
		shown, hidden := s.maskKey(i)
		in := join(where, shown)
		if i.duplicate {
			c.problem("%s: duplicate key; remove all but one", c.at(in))
		}
		of := s.each
		if of != nil {
			c.key(in, i.key, s.key)
		} else if of = s.fields[i.key]; of == nil {
			c.unknown(where, in, i.key, hidden, s)
			continue
		}
		for _, v := range append(slices.Clone(i.replaced), i.value) {
			c.value(in, v, of)
		}
	}
}

func (c *checker) unknown(where, in, key string, hidden bool, s *shape) {
	known := strings.Join(slices.Sorted(maps.Keys(s.fields)), ", ")
	switch guess := s.guess(key); {
	case hidden:
		c.problem("%s: has an unknown key, not shown because it may be a secret; want one of %s", c.at(where), known)
	case guess != "":
		c.problem("%s: unknown key; did you mean %s?", c.at(in), guess)
	default:
		c.problem("%s: unknown key; want one of %s", c.at(in), known)
	}
}

func (c *checker) key(in, key string, m valueType) {
	switch m {
	case host:
		if !hostPattern(key) {
			c.problem("%s: invalid registry host; want docker.io, registry.example.com:5000 or \"*\"", c.at(in))
		}
	case pattern:
		if _, err := regexp.Compile(key); err != nil {
			c.problem("%s: invalid regular expression: %s", c.at(in), syntaxCode(err))
		}
	case endpoint:
		c.endpoint(in, key)
	case headerName:
		if !token.MatchString(key) {
			c.problem("%s: invalid HTTP header name", c.at(in))
		}
	}
}

// syntaxCode describes a syntax error without quoting the expression.
func syntaxCode(err error) string {
	if s := (*syntax.Error)(nil); errors.As(err, &s) {
		return s.Code.String()
	}
	return "unreadable"
}

var token = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") // RFC 9110, section 5.6.2

func (c *checker) scalar(where string, n *node, m valueType) {
	if m == toggle {
		if n.form != boolean {
			c.problem("%s: must be true or false, without quotes", c.at(where))
		}
		return
	}
	if c.strict && n.form != text {
		c.problem("%s: must be a quoted string, is %s", c.at(where), n.form)
		return
	}
	switch m {
	case endpoint:
		c.endpoint(where, n.text)
	case certificate:
		c.certificate(where, n.text)
	case capability:
		if !slices.Contains(capabilities, strings.ToLower(n.text)) {
			c.problem("%s: unknown capability; want one of %s", c.at(where), strings.Join(capabilities, ", "))
		}
	case duration:
		if _, err := time.ParseDuration(n.text); err != nil {
			c.problem("%s: invalid duration; write it like 10s", c.at(where))
		}
	}
}

func (c *checker) endpoint(where, s string) {
	u, err := parseEndpoint(s)
	if err != nil {
		c.problem("%s: invalid URL; write it like https://registry.example.com:5000", c.at(where))
		return
	}
	shown, _ := maskURL(s)
	switch {
	case u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https":
		c.problem("%s: %s must start with https:// or http://", c.at(where), shown)
	case c.strict && u.Scheme == "" && strings.HasPrefix(s, "http"): // containerd would take it for a complete URL
		c.problem("%s: %s must start with https:// or http://", c.at(where), shown)
	case u.User != nil:
		c.warn("%s: %s: container runtimes ignore credentials in a URL; configure them separately",
			c.at(where), shown)
	case u.RawQuery != "" || u.Fragment != "":
		c.warn("%s: %s: container runtimes ignore everything after the path", c.at(where), shown)
	}
	warnIPv6(c.findings, u.Host)
}

func warnIPv6(f *findings, host string) {
	if strings.HasPrefix(host, "[") {
		f.warn("%s: containerd supports IPv6 addresses of registries since version 2", host)
	}
}

func (c *checker) certificate(where, file string) {
	shown, hidden := certificate.mask(file)
	switch {
	case file == "": // like an absent value
		return
	case !plainFile(file):
		c.problem("%s: must be the path of a file on the node; the value is not shown because it may be a secret",
			c.at(where))
		return
	case !path.IsAbs(file) && len(c.bases) == 0:
		c.problem("%s: %s must be an absolute path", c.at(where), shown)
		return
	case file != path.Clean(file) || !path.IsAbs(file) && strings.HasPrefix(file, ".."):
		c.problem("%s: %s must be a clean path, without .. or redundant slashes", c.at(where), shown)
		return
	}
	files := []string{file}
	if !path.IsAbs(file) {
		files = nil
		for _, base := range c.bases {
			files = append(files, path.Join(base, file))
		}
	}
	for _, file := range files {
		if !hidden {
			shown = file
		}
		c.checkTLS(where, file, shown)
	}
}

func (c *checker) checkTLS(where, file, shown string) {
	if c.check == nil {
		return
	}
	err := c.check(file)
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		err = failed.Err // without the path
	}
	if errors.Is(err, ErrNotMounted) {
		c.warn("%s: %s was not checked: add its directory to nodeConfig.tlsDirectories", c.at(where), shown)
	} else if err != nil {
		c.problem("%s: cannot use %s: %v; create it on the node first", c.at(where), shown, err)
	}
}
