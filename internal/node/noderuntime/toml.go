package noderuntime

import (
	"errors"
	"fmt"
	"slices"

	// Only the parser: the rest of go-toml, which decodes into structs, would add a third to the size
	// of node configuration in registry-node.
	"github.com/pelletier/go-toml/v2/unstable"
)

// parseTOML parses a document into what encoding/json would decode, apart from numerals. Errors contain only the line
// and column.
func parseTOML(data []byte) (map[string]any, error) {
	root := newTable(byHeader)
	at := root
	var p unstable.Parser
	p.Reset(slices.Clip(data))
	for p.NextExpression() {
		e := p.Expression()
		keys := keysOf(e)
		ok := true
		switch e.Kind {
		case unstable.Table:
			at, ok = root.header(keys)
		case unstable.ArrayTable:
			at, ok = root.arrayHeader(keys)
		case unstable.KeyValue:
			ok = at.set(keys, e.Value())
		}
		if !ok {
			key := e.Key()
			key.Next()
			return nil, fmt.Errorf("duplicate key%s", position(&p, key.Node().Data))
		}
	}
	if err := p.Error(); err != nil {
		if wrong, ok := errors.AsType[*unstable.ParserError](err); ok {
			return nil, fmt.Errorf("invalid TOML%s", position(&p, wrong.Highlight))
		}
		return nil, errors.New("invalid TOML")
	}
	return root.plain(), nil
}

// position returns where a part of the document starts. It is empty if part is a copy, such as a
// key with escapes.
func position(p *unstable.Parser, part []byte) string {
	offset := cap(p.Data()) - cap(part)
	if offset < 0 || offset+len(part) > len(p.Data()) {
		return ""
	}
	at := p.Shape(unstable.Range{Offset: uint32(offset), Length: uint32(len(part))}).Start
	return fmt.Sprintf(" (line %d, column %d)", at.Line, at.Column)
}

func keysOf(e *unstable.Node) (keys []string) {
	for it := e.Key(); it.Next(); {
		keys = append(keys, string(it.Node().Data))
	}
	return keys
}

// origin is how a table was defined, which decides what may be added to it:
// https://toml.io/en/v1.0.0#table.
type origin int

const (
	implied  origin = iota // by the header of a subtable
	byHeader               // [a.b]
	byDots                 // a.b = …
)

// table is a table that more may be added to.
type table struct {
	values map[string]any // *table, []*table for [[a.b]], and what valueOf returns
	origin origin
}

func newTable(from origin) *table { return &table{map[string]any{}, from} }

// rawScalar is a scalar that is neither a string nor a truth value, as written.
type rawScalar string

// above returns the table that contains the last key of a header.
func (t *table) above(keys []string) (*table, string, bool) {
	for _, key := range keys[:len(keys)-1] {
		switch v := t.values[key].(type) {
		case nil:
			next := newTable(implied)
			t.values[key], t = next, next
		case *table:
			t = v
		case []*table:
			t = v[len(v)-1]
		default:
			return t, "", false
		}
	}
	return t, keys[len(keys)-1], true
}

func (t *table) header(keys []string) (*table, bool) {
	t, last, ok := t.above(keys)
	if !ok {
		return t, false
	}
	v, isTable := t.values[last].(*table)
	switch {
	case t.values[last] == nil:
		v = newTable(implied)
		t.values[last] = v
	case !isTable || v.origin != implied:
		return t, false
	}
	v.origin = byHeader
	return v, true
}

func (t *table) arrayHeader(keys []string) (*table, bool) {
	t, last, ok := t.above(keys)
	if !ok {
		return t, false
	}
	list, isList := t.values[last].([]*table)
	if t.values[last] != nil && !isList {
		return t, false
	}
	v := newTable(byHeader)
	t.values[last] = append(list, v)
	return v, true
}

func (t *table) set(keys []string, value *unstable.Node) (ok bool) {
	for _, key := range keys[:len(keys)-1] {
		v, isTable := t.values[key].(*table)
		switch {
		case t.values[key] == nil:
			v = newTable(byDots)
			t.values[key] = v
		case !isTable || v.origin != byDots:
			return false
		}
		t = v
	}
	last := keys[len(keys)-1]
	if t.values[last] != nil {
		return false
	}
	t.values[last], ok = valueOf(value)
	return ok
}

// valueOf fails if an inline table has duplicate keys.
func valueOf(n *unstable.Node) (v any, ok bool) {
	switch n.Kind {
	case unstable.Array:
		list := []any{}
		for it := n.Children(); it.Next(); {
			item, ok := valueOf(it.Node())
			if !ok {
				return nil, false
			}
			list = append(list, item)
		}
		return list, true
	case unstable.InlineTable:
		t := newTable(byHeader)
		for it := n.Children(); it.Next(); {
			if !t.set(keysOf(it.Node()), it.Node().Value()) {
				return nil, false
			}
		}
		return t.plain(), true
	case unstable.String:
		return string(n.Data), true
	case unstable.Bool:
		return string(n.Data) == "true", true
	}
	return rawScalar(n.Data), true
}

// plain returns the values as they are after the end of the document.
func (t *table) plain() map[string]any {
	plain := make(map[string]any, len(t.values))
	for key, v := range t.values {
		switch v := v.(type) {
		case *table:
			plain[key] = v.plain()
		case []*table:
			list := make([]any, len(v))
			for i, item := range v {
				list[i] = item.plain()
			}
			plain[key] = list
		default:
			plain[key] = v
		}
	}
	return plain
}
