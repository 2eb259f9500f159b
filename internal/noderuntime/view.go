package noderuntime

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/pki"
)

var bareYAML = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./-]*$`)

// yaml writes what is in a node. path tells lines apart; it is not shown.
func (w *writer) yaml(n *node, s *shape, indent, path string) {
	switch {
	case n.form == null:
	case n.form == mapping && (s.fields != nil || s.each != nil):
		for _, i := range n.items {
			w.yamlItem(i, s, indent, path)
		}
	case n.form == list && s.list != nil:
		for _, v := range n.list {
			shown, hidden := s.list.value(v)
			w.add(indent+"- "+shown, path+"\x00"+shown, hidden)
		}
	default: // not what it should be
		shown, hidden := s.value(n)
		w.add(indent+shown, path, hidden)
	}
}

func (w *writer) yamlItem(i item, s *shape, indent, path string) {
	key, hiddenKey := s.maskKey(i)
	path += "\x00" + key
	of := s.at(i.key)
	name := key
	if !bareYAML.MatchString(key) && key != redacted {
		name = strconv.Quote(key)
	}
	secretKey := ""
	if hiddenKey {
		secretKey = strconv.Quote(i.key)
	}
	empty := len(i.value.items) == 0 && len(i.value.list) == 0
	switch nested := of.nests(i.value); {
	case i.value.form == null:
		w.add(indent+name+":", path, secretKey)
	case nested && !empty:
		w.add(indent+name+":", path, secretKey)
		w.yaml(i.value, of, indent+"  ", path)
	case nested && i.value.form == mapping:
		w.add(indent+name+": {}", path, secretKey)
	case nested:
		w.add(indent+name+": []", path, secretKey)
	default:
		shown, hidden := of.value(i.value)
		w.add(indent+name+": "+shown, path, secretKey+hidden)
	}
}

// at is the shape at a key; one that allows nothing where the key is not known.
func (s *shape) at(key string) *shape {
	if s.each != nil {
		return s.each
	}
	if of := s.fields[key]; of != nil {
		return of
	}
	return &shape{}
}

// nests says whether the value is a mapping or a list that may be one here.
func (s *shape) nests(n *node) bool {
	return n.form == mapping && (s.fields != nil || s.each != nil) || n.form == list && s.list != nil
}

// value is what is shown of a value on one line, and what is hidden of it.
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
	case !n.scalar() || s.scalar == nothing || (s.scalar == switched) != (n.form == boolean):
		return redacted, n.raw()
	}
	shown, hides := s.scalar.mask(n.text)
	if hides {
		hidden = n.raw()
	}
	if shown != redacted && s.scalar != switched {
		shown = strconv.Quote(shown)
	}
	return shown, hidden
}

var bareTOML = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func tomlKey(key string) string {
	if bareTOML.MatchString(key) || key == redacted {
		return key
	}
	return strconv.Quote(key)
}

// toml writes the table at a path of keys: first its values, then the tables in it.
func (w *writer) toml(n *node, s *shape, indent, path string) {
	for _, i := range n.items {
		of := s.at(i.key)
		if !of.isTable(i.value) {
			key, hiddenKey := s.maskKey(i)
			shown, hidden := of.value(i.value)
			if hiddenKey {
				hidden = strconv.Quote(i.key) + hidden
			}
			w.add(indent+tomlKey(key)+" = "+shown, path+"."+key, hidden)
		}
	}
	for _, i := range n.items {
		of := s.at(i.key)
		if !of.isTable(i.value) {
			continue
		}
		key, hiddenKey := s.maskKey(i)
		in, secretKey := tomlKey(key), ""
		if path != "" {
			in = path + "." + in
		}
		if hiddenKey {
			secretKey = strconv.Quote(i.key)
		}
		if i.value.form == list {
			for _, v := range i.value.list {
				w.add(indent+"[["+in+"]]", in, secretKey)
				w.toml(v, of.list, indent+"  ", in)
			}
			continue
		}
		inside := indent
		if !of.onlyTables(i.value) {
			w.add(indent+"["+in+"]", in, secretKey)
			inside += "  "
		}
		w.toml(i.value, of, inside, in)
	}
}

// isTable says whether the value is a table or an array of tables that may be one here.
func (s *shape) isTable(n *node) bool {
	if n.form == list && s.list != nil && s.list.fields != nil && len(n.list) > 0 {
		for _, v := range n.list {
			if v.form != mapping {
				return false
			}
		}
		return true
	}
	return n.form == mapping && (s.fields != nil || s.each != nil)
}

func (s *shape) onlyTables(n *node) bool {
	for _, i := range n.items {
		if !s.at(i.key).isTable(i.value) {
			return false
		}
	}
	return len(n.items) > 0
}

// viewCertificates has a line for each certificate of a PEM file; none where it has anything else.
func viewCertificates(data []byte) view {
	var w writer
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			return w.view
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			return nil
		}
		w.add(fmt.Sprintf("certificate %q, SHA-256 %s, until %s", cert.Subject, pki.Fingerprint(cert)[:16], cert.NotAfter.UTC().Format(time.DateOnly)), "", "")
		data = rest
	}
}
