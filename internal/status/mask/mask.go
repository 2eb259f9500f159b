// Package mask removes secrets from text and from decoded YAML or JSON: secrets whose values are known, in
// plain, escaped and base64 form, and everything that has the form of a secret, such as private keys, tokens
// and passwords in URLs. When in doubt, it masks.
//
// It does not find a secret of unknown form whose value it was not told, a known value that is compressed,
// encrypted or in hexadecimal, base64 that is broken into lines, and values shorter than MinLength. Of values
// longer than 256 bytes, it does not find those that are escaped or encoded twice.
package mask

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	// Masked replaces secrets.
	Masked = "(masked)"
	// MinLength is the length in bytes of the shortest value that is searched for. Shorter ones appear in
	// ordinary words.
	MinLength = 6
	// longest is the length in bytes of the longest value that is searched for as a whole, and piece that of the
	// parts of longer ones: a value has up to 60 forms, all of its length.
	longest = 4 << 10
	piece   = 512
)

// prefix is the beginning of a form by which it is found.
type prefix [MinLength]byte

// form is a known value as it may appear in a text.
type form struct {
	text string
	// encoded means base64: the characters next to it may contain some bits of the value.
	encoded bool
}

// Masker masks known values, and whatever has the form of a secret. Methods that add values must not be called
// concurrently with others.
type Masker struct {
	forms  map[prefix][]form
	values map[string]bool
}

// New returns a Masker without known values.
func New() *Masker {
	return &Masker{forms: map[prefix][]form{}, values: map[string]bool{}}
}

// Known returns the number of known values.
func (m *Masker) Known() int { return len(m.values) }

// Add adds a known value. Surrounding white space is ignored. If the value has several lines, each line is
// searched for, too. Add returns false if the value is not empty and no part of it is long enough.
func (m *Masker) Add(value string) bool {
	value = strings.TrimSpace(value)
	if value == "" {
		return true
	}
	added := m.add(value)
	if strings.Contains(value, "\n") {
		added = false // a text is not searched for several lines
		for line := range strings.Lines(value) {
			line = strings.TrimSpace(line)
			if !strings.HasPrefix(line, "-----") && m.add(line) {
				added = true
			}
		}
	}
	return added
}

func (m *Masker) add(value string) bool {
	if len(value) < MinLength {
		return false
	}
	if m.values[value] || strings.Contains(Masked, value) {
		return true
	}
	m.values[value] = true
	// Neighboring pieces are masked together.
	for len(value) > longest {
		m.addForms(value[:piece])
		value = value[piece:]
	}
	m.addForms(value)
	return true
}

// addForms adds the forms of a value, those of short ones also in a second layer of escapes or base64.
func (m *Masker) addForms(value string) {
	short := len(value) <= piece/2
	escaped := escapes(value)
	if short {
		for _, text := range slices.Clone(escaped) {
			escaped = append(escaped, escapes(text)...) // JSON in JSON
		}
		slices.Sort(escaped)
		escaped = slices.Compact(escaped)
	}
	for _, text := range escaped {
		m.addForm(form{text, false})
		for _, encoded := range encodings(text) {
			m.addForm(form{encoded, true})
			if !short {
				continue
			}
			for _, twice := range encodings(encoded) { // a docker configuration in a Secret
				m.addForm(form{twice, true})
			}
		}
	}
}

func (m *Masker) addForm(f form) {
	if len(f.text) < MinLength {
		return
	}
	key := prefix([]byte(f.text[:MinLength]))
	if !slices.Contains(m.forms[key], f) {
		m.forms[key] = append(m.forms[key], f)
	}
}

// escapes returns a text as JSON, Go, YAML and URLs contain it, and unchanged.
func escapes(text string) []string {
	var plain strings.Builder
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text)      // strings can be encoded
	html, _ := json.Marshal(text) // likewise
	inner := func(quoted string) string { return quoted[1 : len(quoted)-1] }
	all := []string{
		text, inner(strings.TrimSpace(plain.String())), inner(string(html)), inner(strconv.Quote(text)),
		inner(strconv.QuoteToASCII(text)), strings.ReplaceAll(text, "'", "''"),
		url.QueryEscape(text), url.PathEscape(text), url.UserPassword("", text).String()[1:],
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// encodings returns what base64 of any text that contains text has in common: there are three, depending on
// how many bytes precede it, in two alphabets.
func encodings(text string) []string {
	var all []string
	for before := range 3 {
		padded := append(make([]byte, before, before+len(text)), text...)
		for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			all = append(all, e.EncodeToString(padded)[(before*8+5)/6:(before+len(text))*8/6])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// String masks a text.
func (m *Masker) String(text string) string {
	var b strings.Builder
	w := m.Writer(&b)
	_, _ = w.Write([]byte(text)) // a strings.Builder does not fail
	_ = w.Close()
	return b.String()
}

// line masks a line.
func (m *Masker) line(line string) string { return patterns(m.known(line)) }

// known masks known values. Overlapping ones are masked together, so that no part of any remains.
func (m *Masker) known(line string) string {
	if len(m.forms) == 0 {
		return line
	}
	var out strings.Builder
	done, begin, end := 0, -1, -1 // line[begin:end] is to be masked next
	for i := 0; i+MinLength <= len(line); i++ {
		for _, f := range m.forms[prefix([]byte(line[i:i+MinLength]))] {
			if !strings.HasPrefix(line[i:], f.text) {
				continue
			}
			from, to := i, i+len(f.text)
			if f.encoded {
				if from > 0 && isBase64(line[from-1]) {
					from--
				}
				if to < len(line) && isBase64(line[to]) {
					to++
				}
			}
			if begin >= 0 && from <= end {
				begin, end = min(begin, from), max(end, to)
				continue
			}
			if begin >= 0 {
				out.WriteString(line[done:begin] + Masked)
				done = end
			}
			begin, end = from, to
		}
	}
	if begin < 0 {
		return line
	}
	out.WriteString(line[done:begin] + Masked + line[end:])
	return out.String()
}

func isBase64(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '+' || c == '/' || c == '-' || c == '_' || c == '='
}
