package mask

import "regexp"

var (
	secretKey = regexp.MustCompile(`(?i)(` + secretWords + `)$`)
	// secretSection are keys whose scalars below are all secrets, and secretScalar those of single secrets. Both
	// are also names of harmless parts of Kubernetes objects, so they count in other documents only.
	secretSection = regexp.MustCompile(`(?i)^(auths?|credentials?|headers?)$`)
	secretScalar  = regexp.MustCompile(`(?i)(^|[_.-])(key|secret|credentials?|salt|cert)$|[a-z](Key|Secret|Credentials?)$`)
	// reference matches keys with the names of objects, and of keys in them.
	reference = regexp.MustCompile(`(?i)^(existing|image|pull|ca|tls|push)\w*secrets?(key)?$|^secretName$`)
	// secretVariable are names of environment variables with secrets.
	secretVariable = regexp.MustCompile(`(?i)pass|pwd|secret|token|key|credential|auth|dsn`)
	word           = regexp.MustCompile(`^[a-z]+$`)
	secretFlag     = regexp.MustCompile(`(?i)^--?[\w.-]*(` + secretWords + `)$`)
)

// lastApplied is kubectl's copy of an object, which is dropped.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Object returns a masked copy of a Kubernetes object: the data of Secrets, environment variables and
// arguments with the name of a secret, and what String masks. Values that are masked because of their place
// become known values. v consists of what encoding/json decodes into an any.
func (m *Masker) Object(v map[string]any) map[string]any {
	return m.object(v, place{}).(map[string]any)
}

// Values returns a masked copy of a document in which any key may name a secret, such as the values of a
// chart. It masks more than Object: what is below keys such as auth, and scalars with keys such as key.
func (m *Masker) Values(v any) any { return m.object(v, place{document: true}) }

// place is where a value stands.
type place struct {
	document bool // a document, not a Kubernetes object
	secret   bool // below a key of a section with secrets
}

func (m *Masker) object(v any, at place) any {
	switch v := v.(type) {
	case map[string]any:
		return m.mapping(v, at)
	case []any:
		masked := make([]any, len(v))
		for i, item := range v {
			masked[i] = m.object(item, at)
			if i == 0 {
				continue
			}
			if before, ok := v[i-1].(string); ok && secretFlag.MatchString(before) {
				masked[i] = m.secret(item)
			}
		}
		return masked
	}
	if at.secret {
		return m.secret(v)
	}
	if text, ok := v.(string); ok {
		return m.String(text)
	}
	return v
}

func (m *Masker) mapping(v map[string]any, at place) any {
	masked := make(map[string]any, len(v))
	isSecret := v["kind"] == "Secret"
	name, _ := v["name"].(string)
	for key, value := range v {
		shown := m.String(key)
		switch {
		case key == lastApplied:
		case isSecret && (key == "data" || key == "stringData"):
			masked[shown] = keys(value)
		case key == "value" && secretVariable.MatchString(name):
			masked[shown] = m.variable(value)
		case reference.MatchString(key):
			masked[shown] = m.object(value, place{document: at.document})
		case secretKey.MatchString(key), at.document && secretScalar.MatchString(key) && !selects(v, key):
			switch value.(type) {
			case map[string]any, []any:
				masked[shown] = m.object(value, at)
			default:
				masked[shown] = m.secret(value)
			}
		case at.document && secretSection.MatchString(key):
			masked[shown] = m.object(value, place{document: true, secret: true})
		default:
			masked[shown] = m.object(value, at)
		}
	}
	return masked
}

// selects reports whether a key of a mapping is "key", and no secret: that of a label, a taint, or an entry of an
// object.
func selects(v map[string]any, key string) bool {
	for _, other := range []string{"operator", "effect", "name", "path"} {
		if _, ok := v[other]; ok && key == "key" {
			return true
		}
	}
	return false
}

// secret masks all scalars of a value. Strings become known values, unless they are constants or file names.
func (m *Masker) secret(v any) any {
	switch v := v.(type) {
	case nil, bool:
		return v
	case map[string]any, []any:
		return m.object(v, place{document: true, secret: true})
	case string:
		if v == "" {
			return v
		}
		if !harmless(v) {
			m.Add(v)
		}
	}
	return Masked
}

// variable masks the value of an environment variable. It becomes a known value unless it is an ordinary word,
// such as enabled.
func (m *Masker) variable(v any) any {
	if text, ok := v.(string); ok && word.MatchString(text) {
		return Masked
	}
	return m.secret(v)
}

// keys returns the keys of the data of a Secret, without values.
func keys(v any) any {
	data, ok := v.(map[string]any)
	if !ok {
		return Masked
	}
	masked := map[string]any{}
	for key := range data {
		masked[key] = Masked
	}
	return masked
}
