package noderuntime

import (
	"bytes"
	"fmt"

	"github.com/aymanbagabas/go-udiff"
)

// Diff describes the change of a file, with every secret masked: the whole new file if old is nil,
// otherwise a unified diff, which is against an empty file if new is nil. It is empty if nothing
// changes. A changed secret is marked as changed.
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
		return fmt.Sprintf("%s: only comments, order or layout changed\n", path)
	}
	return diff
}

type line struct {
	text string
	// place identifies the line; hidden is its masked content, if any.
	place, hidden string
}

func viewOf(kind Kind, data []byte) view {
	if data == nil {
		return nil
	}
	v := parsedView(kind, data)
	if len(v) == 0 {
		return view{{text: "(only comments)"}}
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
	return view{
		{text: fmt.Sprintf("(%d bytes of invalid %s: not shown)", len(data), kind), place: "all", hidden: string(data)},
	}
}
