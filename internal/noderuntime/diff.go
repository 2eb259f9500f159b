package noderuntime

import (
	"bytes"
	"fmt"

	"github.com/aymanbagabas/go-udiff"
)

// Diff says how a file changes, every secret masked: the whole new file where there was none (old is nil), else a unified
// diff; one against nothing where new is nil. It is empty where both are the same. A secret that changes is seen to change.
func Diff(path string, kind Kind, old, new []byte) string {
	if old != nil && new != nil && bytes.Equal(old, new) {
		return ""
	}
	before, after := viewOf(kind, old), viewOf(kind, new)
	if old == nil {
		return after.text(view{})
	}
	diff := udiff.Unified("OLD "+path, "NEW "+path, before.text(view{}), after.text(before))
	if diff == "" && new != nil {
		return fmt.Sprintf("%s: only comments, order or layout differ\n", path)
	}
	return diff
}

// A view is a file as it is shown, line by line.
type view []line

type line struct {
	text string
	// place tells lines apart, and hidden what is not shown of one; nothing where all is.
	place, hidden string
}

// text is the view as text. What is hidden in it and was something else before is marked.
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

func viewOf(kind Kind, data []byte) view {
	if data == nil {
		return nil
	}
	v := parsedView(kind, data)
	if len(v) == 0 {
		return view{{text: "(nothing but comments)"}}
	}
	return v
}

func parsedView(kind Kind, data []byte) view {
	switch kind {
	case KindRegistries:
		if n, err := parseYAML(data); err == nil {
			n.settle(registriesShape)
			var w writer
			w.yaml(n, registriesShape, "", "")
			return w.view
		}
	case KindHosts:
		if n, err := parseTOML(data); err == nil {
			var w writer
			w.toml(n, hostsShape, "", "")
			return w.view
		}
	case KindRegistriesConf:
		if n, err := parseTOML(data); err == nil {
			var w writer
			w.toml(n, registriesConfShape, "", "")
			return w.view
		}
	case KindCA:
		if v := viewCertificates(data); len(v) > 0 || len(bytes.TrimSpace(data)) == 0 {
			return v
		}
	}
	return view{{text: fmt.Sprintf("(%d bytes that are no %s: not shown)", len(data), kind), place: "all", hidden: string(data)}}
}

// A writer makes a view.
type writer struct {
	view
	seen map[string]int
}

// add has a line's place made of the path to it and of how many there were before: lists may have the same twice.
func (w *writer) add(text, path, hidden string) {
	if w.seen == nil {
		w.seen = map[string]int{}
	}
	w.view = append(w.view, line{text: text, place: fmt.Sprint(path, "\x00", w.seen[path]), hidden: hidden})
	w.seen[path]++
}
