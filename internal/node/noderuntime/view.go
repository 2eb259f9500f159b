package noderuntime

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/pki"
)

var bareYAML = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./-]*$`)

// yaml writes the content of a node. path identifies lines and is not shown.
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
	default: // not allowed by the shape
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

var bareTOML = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func tomlKey(key string) string {
	if bareTOML.MatchString(key) || key == redacted {
		return key
	}
	return strconv.Quote(key)
}

// toml writes the table at a path: first its values, then its subtables.
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

// viewCertificates returns a line per certificate of a PEM file; none if it contains anything else.
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
		w.add(fmt.Sprintf("certificate %q, SHA-256 %s, until %s", cert.Subject, pki.Fingerprint(cert)[:16],
			cert.NotAfter.UTC().Format(time.DateOnly)), "", "")
		data = rest
	}
}

// A view is a file as it is displayed, line by line.
type view []line

// text renders the view. It marks hidden content that differs from before.
func (v view) text(before view) string {
	was := map[string]string{}
	for _, l := range before {
		if l.hidden != "" {
			was[l.place] = l.hidden
		}
	}
	var b bytes.Buffer
	for _, l := range v {
		b.WriteString(l.text)
		if old, known := was[l.place]; known && l.hidden != "" && old != l.hidden {
			b.WriteString(" (changed)")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// A writer creates a view.
type writer struct {
	view
	seen map[string]int
}

// add identifies a line by its path and the number of equal paths before it: lists may contain
// duplicates.
func (w *writer) add(text, path, hidden string) {
	if w.seen == nil {
		w.seen = map[string]int{}
	}
	w.view = append(w.view, line{text: text, place: fmt.Sprint(path, "\x00", w.seen[path]), hidden: hidden})
	w.seen[path]++
}
