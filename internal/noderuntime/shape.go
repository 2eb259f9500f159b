package noderuntime

// A shape is what may stand at a place of a document: which forms, and what is shown of it. What no shape allows is neither
// accepted nor shown.
type shape struct {
	// fields are the keys of a mapping that has names.
	fields map[string]*shape
	// private says that a field nobody knows may be a secret by its very name, as a user name is.
	private bool
	// each is what stands at all keys of a mapping that has none of its own; key says what its keys are.
	each *shape
	key  matter
	// list is what a list's values are.
	list *shape
	// scalar says what a scalar is; nothing where none may be.
	scalar matter
}

// A matter is what a text is about.
type matter int

const (
	nothing matter = iota
	secret
	switched       // true or false
	host           // docker.io, registry.example.com:5000, *
	endpoint       // a URL whose scheme may be missing
	pattern        // of a rewrite
	replacement    // of a rewrite
	certificate    // path of a PEM file
	capability     // pull, resolve, push, referrers
	duration       // 10s
	headerName     // of HTTP
	location       // docker.io/library, a registry with or without a path
	choice         // one word of a few
	deprecatedAuth // endpoint of auths, which K3s does not read
)

func the(m matter) *shape       { return &shape{scalar: m} }
func listOf(s *shape) *shape    { return &shape{list: s} }
func oneOrMore(m matter) *shape { return &shape{scalar: m, list: the(m)} }

type fields = map[string]*shape

var authShape = &shape{private: true, fields: fields{
	"username": the(secret), "password": the(secret), "auth": the(secret), "identity_token": the(secret), "token": the(secret),
}}

// registriesShape is K3s' registries.yaml: https://docs.k3s.io/installation/private-registry. "token" and "auths" are known to
// be written, though K3s reads neither.
var registriesShape = &shape{fields: fields{
	"mirrors": {key: host, each: &shape{fields: fields{
		"endpoint": listOf(the(endpoint)),
		"rewrite":  {key: pattern, each: the(replacement)},
	}}},
	"configs": {key: host, each: &shape{fields: fields{
		"auth": authShape,
		"tls": {fields: fields{
			"ca_file": the(certificate), "cert_file": the(certificate), "key_file": the(certificate), "insecure_skip_verify": the(switched),
		}},
	}}},
	"auths": {key: deprecatedAuth, each: authShape},
}}

func hostFields(more fields) fields {
	all := fields{
		"capabilities":  listOf(the(capability)),
		"ca":            oneOrMore(certificate),
		"client":        {scalar: certificate, list: oneOrMore(certificate)},
		"skip_verify":   the(switched),
		"header":        {key: headerName, each: oneOrMore(secret)},
		"override_path": the(switched),
		"dial_timeout":  the(duration),
		"rewrite":       {key: pattern, each: the(replacement)}, // K3s' and RKE2's containerd only
	}
	for key, s := range more {
		all[key] = s
	}
	return all
}

// hostsShape is containerd's hosts.toml: https://github.com/containerd/containerd/blob/main/docs/hosts.md.
var hostsShape = &shape{fields: hostFields(fields{
	"server": the(endpoint),
	"host":   {key: endpoint, each: &shape{fields: hostFields(nil)}},
})}

// registriesConfShape is containers-registries.conf(5), as far as files of registries.conf.d usually go.
var registriesConfShape = &shape{fields: fields{
	"unqualified-search-registries": listOf(the(location)),
	"short-name-mode":               the(choice),
	"credential-helpers":            listOf(the(secret)),
	"aliases":                       {key: location, each: the(location)},
	"registry": listOf(&shape{fields: fields{
		"prefix": the(location), "location": the(location), "insecure": the(switched), "blocked": the(switched), "mirror-by-digest-only": the(switched),
		"mirror": listOf(&shape{fields: fields{"location": the(location), "insecure": the(switched), "pull-from-mirror": the(choice)}}),
	}}),
}}
