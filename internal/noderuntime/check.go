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

// A checker holds a document against a shape. Its findings name places by their keys, and no value that mask does not show.
type checker struct {
	*findings
	// source is what is checked, for people: nodeConfig.k3s.registries.
	source string
	// strict says that a text must be written as one, as TOML has it; YAML takes 5000 for a text where one is wanted.
	strict bool
	// look is Inputs.LookTLS.
	look func(string) error
	// bases are the directories that relative paths of certificates begin in; without them a path must be absolute.
	bases []string
}

func (c *checker) at(where string) string {
	if where == "" {
		return c.source
	}
	return c.source + ": " + where
}

// join is the place of a key that may be shown; one that has dots or colons stands in quotes.
func join(where, key string) string {
	if !word.MatchString(key) && key != redacted {
		key = strconv.Quote(key)
	}
	if where == "" {
		return key
	}
	return where + "." + key
}

func (c *checker) check(where string, n *node, s *shape) {
	switch {
	case n.form == null && !c.strict: // as if it were not there
	case n.form == mapping && (s.fields != nil || s.each != nil):
		c.mapping(where, n, s)
	case n.form == list && s.list != nil:
		for i, v := range n.list {
			in := where + "[" + strconv.Itoa(i) + "]"
			if v.form == null {
				c.problem("%s: is empty; fill it in or leave it out", c.at(in))
			}
			c.check(in, v, s.list)
		}
	case n.scalar() && s.scalar != nothing:
		c.scalar(where, n, s.scalar)
	default:
		c.problem("%s: must be %s, and is %s", c.at(where), s.forms(), n.form)
	}
}

func (c *checker) mapping(where string, n *node, s *shape) {
	for _, i := range n.items {
		shown, hidden := s.maskKey(i)
		in := join(where, shown)
		if i.twice {
			c.problem("%s: is there more than once, and only the last would be read; leave one", c.at(in))
		}
		of := s.each
		if of != nil {
			c.key(in, i.key, s.key)
		} else if of = s.fields[i.key]; of == nil {
			c.unknown(where, in, i.key, hidden, s)
			continue
		}
		for _, v := range append(slices.Clone(i.earlier), i.value) {
			c.check(in, v, of)
		}
	}
}

func (c *checker) unknown(where, in, key string, hidden bool, s *shape) {
	known := strings.Join(slices.Sorted(maps.Keys(s.fields)), ", ")
	switch guess := s.guess(key); {
	case hidden:
		c.problem("%s: has a key that nobody knows, and that is not shown because it may be a secret; known are %s", c.at(where), known)
	case guess != "":
		c.problem("%s: unknown key; did you mean %s?", c.at(in), guess)
	default:
		c.problem("%s: unknown key; known are %s", c.at(in), known)
	}
}

func (c *checker) key(in, key string, m matter) {
	switch m {
	case host:
		if !hostPattern(key) {
			c.problem("%s: is not a registry's host; write it as docker.io, registry.example.com:5000 or \"*\"", c.at(in))
		}
	case pattern:
		if _, err := regexp.Compile(key); err != nil {
			c.problem("%s: is not a regular expression: %s", c.at(in), syntaxCode(err))
		}
	case endpoint:
		c.endpoint(in, key)
	case headerName:
		if !token.MatchString(key) {
			c.problem("%s: is not the name of an HTTP header", c.at(in))
		}
	}
}

// syntaxCode is what is wrong with an expression, without the expression.
func syntaxCode(err error) string {
	if s := (*syntax.Error)(nil); errors.As(err, &s) {
		return s.Code.String()
	}
	return "it cannot be read"
}

var token = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") // RFC 9110, 5.6.2

func (c *checker) scalar(where string, n *node, m matter) {
	if m == switched {
		if n.form != boolean {
			c.problem("%s: must be true or false, without quotes", c.at(where))
		}
		return
	}
	if c.strict && n.form != text {
		c.problem("%s: must be a text in quotes, and is %s", c.at(where), n.form)
		return
	}
	switch m {
	case endpoint:
		c.endpoint(where, n.text)
	case certificate:
		c.certificate(where, n.text)
	case capability:
		if !slices.Contains(capabilities, strings.ToLower(n.text)) {
			c.problem("%s: is no capability; known are %s", c.at(where), strings.Join(capabilities, ", "))
		}
	case duration:
		if _, err := time.ParseDuration(n.text); err != nil {
			c.problem("%s: is not a duration; write it as 10s", c.at(where))
		}
	}
}

func (c *checker) endpoint(where, s string) {
	u, err := parseEndpoint(s)
	if err != nil {
		c.problem("%s: is not a URL with a host; write it as https://registry.example.com:5000", c.at(where))
		return
	}
	shown, _ := maskURL(s)
	switch {
	case u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https":
		c.problem("%s: %s must begin with https:// or http://", c.at(where), shown)
	case c.strict && u.Scheme == "" && strings.HasPrefix(s, "http"): // containerd takes it for a URL that has one
		c.problem("%s: %s must begin with https:// or http://", c.at(where), shown)
	case u.User != nil:
		c.warn("%s: %s: container runtimes do not use a user's name or password in a URL; give credentials apart from it", c.at(where), shown)
	case u.RawQuery != "" || u.Fragment != "":
		c.warn("%s: %s: container runtimes do not use what follows the path", c.at(where), shown)
	}
	warnIPv6(c.findings, u.Host)
}

func warnIPv6(f *findings, host string) {
	if strings.HasPrefix(host, "[") {
		f.warn("%s: containerd takes IPv6 addresses of registries from version 2 on", host)
	}
}

func (c *checker) certificate(where, file string) {
	shown, hidden := certificate.mask(file)
	switch {
	case file == "": // as if it were not there
		return
	case !plainFile(file):
		c.problem("%s: must be the path of a file on the node; it looks like something else and is not shown", c.at(where))
		return
	case !path.IsAbs(file) && len(c.bases) == 0:
		c.problem("%s: %s must be an absolute path of the node", c.at(where), shown)
		return
	case file != path.Clean(file) || !path.IsAbs(file) && strings.HasPrefix(file, ".."):
		c.problem("%s: %s must be a plain path, without .. and needless slashes", c.at(where), shown)
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
		c.lookAt(where, file, shown)
	}
}

func (c *checker) lookAt(where, file, shown string) {
	if c.look == nil {
		return
	}
	err := c.look(file)
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		err = failed.Err // without the path
	}
	if errors.Is(err, ErrNotMounted) {
		c.warn("%s: whether %s is there was not looked at: name its directory in nodeConfig.tlsDirectories to have that done", c.at(where), shown)
	} else if err != nil {
		c.problem("%s: %s cannot be used: %v; put it on the node first", c.at(where), shown, err)
	}
}

// forms says what may stand at a place.
func (s *shape) forms() string {
	var all []string
	if s.fields != nil || s.each != nil {
		all = append(all, mapping.String())
	}
	switch s.scalar {
	case nothing:
	case switched:
		all = append(all, "true or false")
	default:
		all = append(all, text.String())
	}
	if s.list != nil {
		all = append(all, list.String())
	}
	return strings.Join(all, " or ")
}

func (f form) String() string {
	return [...]string{null: "empty", text: "a text", boolean: "true or false", number: "a number", mapping: "a mapping", list: "a list"}[f]
}

// habits are names that other formats have for the same.
var habits = map[string]string{
	"identitytoken": "identity_token", "registrytoken": "identity_token", "user": "username", "login": "username", "pass": "password", "passwd": "password",
	"endpoints": "endpoint", "url": "endpoint", "rewrites": "rewrite", "ca": "ca_file", "cafile": "ca_file", "cert": "cert_file", "key": "key_file",
	"insecure": "insecure_skip_verify", "skipverify": "insecure_skip_verify", "insecureskipverify": "insecure_skip_verify", "headers": "header", "hosts": "host", "capability": "capabilities",
}

// guess is the field that somebody meant, or nothing.
func (s *shape) guess(key string) string {
	key = plain(key)
	if habit := habits[key]; s.fields[habit] != nil {
		return habit
	}
	for _, field := range slices.Sorted(maps.Keys(s.fields)) {
		// Two slips in a long name are one too many in a short one.
		if d := distance(key, plain(field)); d == 0 || d <= 2 && len(field) > 4 || d == 1 && len(field) > 3 {
			return field
		}
	}
	return ""
}

func plain(key string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(key))
}

// distance is how many letters must be put in, taken away or replaced to make one of the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
