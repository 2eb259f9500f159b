package noderuntime

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A shape describes the values allowed at a place in a document, and what is shown of them. Values
// that no shape allows are neither accepted nor shown.
type shape struct {
	// fields are the keys of a mapping with fixed keys.
	fields map[string]*shape
	// private means that an unknown key may itself be a secret, such as a user name.
	private bool
	// each is the shape of all values of a mapping with arbitrary keys; key is the type of the keys.
	each *shape
	key  valueType
	// list is the shape of a list's values.
	list *shape
	// scalar is the type of a scalar; nothing if none is allowed.
	scalar valueType
}

// A valueType is the meaning of a string.
type valueType int

const (
	nothing valueType = iota
	secret
	toggle         // true or false
	host           // docker.io, registry.example.com:5000, *
	endpoint       // a URL, possibly without a scheme
	pattern        // of a rewrite
	replacement    // of a rewrite
	certificate    // path of a PEM file
	capability     // pull, resolve, push, referrers
	duration       // 10s
	headerName     // HTTP header name
	location       // docker.io/library: a registry with an optional path
	choice         // an enumeration
	deprecatedAuth // endpoint in auths, which K3s ignores
)

func textOf(m valueType) *shape    { return &shape{scalar: m} }
func listOf(s *shape) *shape       { return &shape{list: s} }
func oneOrMore(m valueType) *shape { return &shape{scalar: m, list: textOf(m)} }

type fields = map[string]*shape

var authShape = &shape{private: true, fields: fields{
	"username": textOf(secret), "password": textOf(secret), "auth": textOf(secret), "identity_token": textOf(secret),
	"token": textOf(secret),
}}

// registriesShape is K3s' registries.yaml: https://docs.k3s.io/installation/private-registry. Users
// also write "token" and "auths", which K3s ignores.
var registriesShape = &shape{fields: fields{
	"mirrors": {key: host, each: &shape{fields: fields{
		"endpoint": listOf(textOf(endpoint)),
		"rewrite":  {key: pattern, each: textOf(replacement)},
	}}},
	"configs": {key: host, each: &shape{fields: fields{
		"auth": authShape,
		"tls": {fields: fields{
			"ca_file": textOf(certificate), "cert_file": textOf(certificate), "key_file": textOf(certificate),
			"insecure_skip_verify": textOf(toggle),
		}},
	}}},
	"auths": {key: deprecatedAuth, each: authShape},
}}

func hostFields(more fields) fields {
	all := fields{
		"capabilities":  listOf(textOf(capability)),
		"ca":            oneOrMore(certificate),
		"client":        {scalar: certificate, list: oneOrMore(certificate)},
		"skip_verify":   textOf(toggle),
		"header":        {key: headerName, each: oneOrMore(secret)},
		"override_path": textOf(toggle),
		"dial_timeout":  textOf(duration),
		"rewrite":       {key: pattern, each: textOf(replacement)}, // K3s and RKE2 only
	}
	maps.Copy(all, more)
	return all
}

// hostsShape is containerd's hosts.toml:
// https://github.com/containerd/containerd/blob/main/docs/hosts.md.
var hostsShape = &shape{fields: hostFields(fields{
	"server": textOf(endpoint),
	"host":   {key: endpoint, each: &shape{fields: hostFields(nil)}},
})}

// registriesConfShape is containers-registries.conf(5), limited to what files in registries.conf.d
// use.
var registriesConfShape = &shape{fields: fields{
	"unqualified-search-registries": listOf(textOf(location)),
	"short-name-mode":               textOf(choice),
	"credential-helpers":            listOf(textOf(secret)),
	"aliases":                       {key: location, each: textOf(location)},
	"registry": listOf(&shape{fields: fields{
		"prefix": textOf(location), "location": textOf(location), "insecure": textOf(toggle), "blocked": textOf(toggle),
		"mirror-by-digest-only": textOf(toggle),
		"mirror": listOf(&shape{
			fields: fields{"location": textOf(location), "insecure": textOf(toggle), "pull-from-mirror": textOf(choice)},
		}),
	}}),
}}

// at returns the shape at a key; for an unknown key, one that allows nothing.
func (s *shape) at(key string) *shape {
	if s.each != nil {
		return s.each
	}
	if of := s.fields[key]; of != nil {
		return of
	}
	return &shape{}
}

// nests reports whether n is a mapping or list that the shape allows.
func (s *shape) nests(n *node) bool {
	return n.form == mapping && (s.fields != nil || s.each != nil) || n.form == list && s.list != nil
}

// isTable reports whether n is a table or an array of tables that the shape allows.
func (s *shape) isTable(n *node) bool {
	if n.form == list && s.list != nil && s.list.fields != nil && len(n.list) > 0 {
		return !slices.ContainsFunc(n.list, func(v *node) bool { return v.form != mapping })
	}
	return n.form == mapping && (s.fields != nil || s.each != nil)
}

func (s *shape) onlyTables(n *node) bool {
	value := func(i item) bool { return !s.at(i.key).isTable(i.value) }
	return len(n.items) > 0 && !slices.ContainsFunc(n.items, value)
}

// forms describes the allowed forms.
func (s *shape) forms() string {
	var all []string
	if s.fields != nil || s.each != nil {
		all = append(all, mapping.String())
	}
	switch s.scalar {
	case nothing:
	case toggle:
		all = append(all, "true or false")
	default:
		all = append(all, text.String())
	}
	if s.list != nil {
		all = append(all, list.String())
	}
	return strings.Join(all, " or ")
}

// value returns what is shown of a value on one line, and what is hidden of it.
func (s *shape) value(n *node) (shown, hidden string) {
	switch {
	case n.form == null:
		return "", ""
	case n.form == list && s.list != nil:
		parts := make([]string, len(n.list))
		for i, v := range n.list {
			part, h := s.list.value(v)
			parts[i], hidden = part, hidden+h
		}
		return "[" + strings.Join(parts, ", ") + "]", hidden
	case !n.scalar() || s.scalar == nothing || (s.scalar == toggle) != (n.form == boolean):
		return redacted, n.raw()
	}
	shown, hides := s.scalar.mask(n.text)
	if hides {
		hidden = n.raw()
	}
	if shown != redacted && s.scalar != toggle {
		shown = strconv.Quote(shown)
	}
	return shown, hidden
}

// maskKey returns what may be shown of a key, depending on the keys that the mapping allows.
func (s *shape) maskKey(i item) (shown string, hidden bool) {
	key := i.key
	switch {
	case s.key == host && bareWord(key) && i.value.form != mapping:
		return redacted, true
	case s.each != nil:
		return s.key.mask(key)
	case s.fields[key] != nil:
		return key, false
	case word.MatchString(key) && s.guess(key) != "" || words.MatchString(key) && len(key) <= 24 && !s.private:
		return key, false
	}
	return redacted, true
}

// aliases are names of the same settings in other formats.
var aliases = map[string]string{
	"identitytoken": "identity_token", "registrytoken": "identity_token",
	"user": "username", "login": "username", "pass": "password", "passwd": "password",
	"endpoints": "endpoint", "url": "endpoint", "rewrites": "rewrite",
	"ca": "ca_file", "cafile": "ca_file", "cert": "cert_file", "key": "key_file",
	"insecure": "insecure_skip_verify", "skipverify": "insecure_skip_verify", "insecureskipverify": "insecure_skip_verify",
	"headers": "header", "hosts": "host", "capability": "capabilities",
}

// guess returns the field that key probably means, or an empty string.
func (s *shape) guess(key string) string {
	key = plain(key)
	if alias := aliases[key]; s.fields[alias] != nil {
		return alias
	}
	for _, field := range slices.Sorted(maps.Keys(s.fields)) {
		// Short names tolerate fewer typos.
		if d := distance(key, plain(field)); d == 0 || d <= 2 && len(field) > 4 || d == 1 && len(field) > 3 {
			return field
		}
	}
	return ""
}

func plain(key string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(key))
}

// distance is the Levenshtein distance.
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
