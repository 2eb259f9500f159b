package noderuntime

import (
	"errors"
	"fmt"
	"slices"

	// Only the parser: the rest of go-toml, which decodes into structs, would add a third to the size
	// of node configuration in registry-node, and loses the order of tables, which matters to
	// containerd.
	"github.com/pelletier/go-toml/v2/unstable"
)

// parseTOML parses a document. Errors contain only the line and column.
func parseTOML(data []byte) (*node, error) {
	root := &node{form: mapping}
	table := root
	var p unstable.Parser
	p.Reset(slices.Clip(data))
	for p.NextExpression() {
		e := p.Expression()
		keys := keysOf(e)
		ok := true
		switch e.Kind {
		case unstable.Table:
			table, ok = root.table(keys)
		case unstable.ArrayTable:
			table, ok = root.arrayTable(keys)
		case unstable.KeyValue:
			ok = table.set(keys, e.Value())
		}
		if !ok {
			key := e.Key()
			key.Next()
			return nil, fmt.Errorf("duplicate key%s", position(&p, key.Node().Data))
		}
	}
	if err := p.Error(); err != nil {
		if wrong := (*unstable.ParserError)(nil); errors.As(err, &wrong) {
			return nil, fmt.Errorf("invalid TOML%s", position(&p, wrong.Highlight))
		}
		return nil, errors.New("invalid TOML")
	}
	return root, nil
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
	byArray                // [[a.b]]
	atOnce                 // a = {…}, and every value that is not a table
)

// child returns the value at a key and whether it is new.
func (n *node) child(key string) (v *node, fresh bool) {
	if at := slices.IndexFunc(n.items, func(i item) bool { return i.key == key }); at >= 0 {
		return n.items[at].value, false
	}
	v = &node{}
	n.items = append(n.items, item{key: key, value: v})
	return v, true
}

// above returns the table that contains the last key of a header.
func (n *node) above(keys []string) (*node, bool) {
	for _, key := range keys[:len(keys)-1] {
		v, fresh := n.child(key)
		switch {
		case fresh:
			v.form = mapping
		case v.origin == byArray:
			v = v.list[len(v.list)-1]
		case v.origin == atOnce:
			return n, false
		}
		n = v
	}
	return n, true
}

func (n *node) table(keys []string) (*node, bool) {
	n, ok := n.above(keys)
	if !ok {
		return n, false
	}
	v, _ := n.child(keys[len(keys)-1])
	if v.origin != implied {
		return n, false
	}
	v.form, v.origin = mapping, byHeader
	return v, true
}

func (n *node) arrayTable(keys []string) (*node, bool) {
	n, ok := n.above(keys)
	if !ok {
		return n, false
	}
	v, fresh := n.child(keys[len(keys)-1])
	if !fresh && v.origin != byArray {
		return n, false
	}
	table := &node{form: mapping, origin: byHeader}
	v.form, v.origin, v.list = list, byArray, append(v.list, table)
	return table, true
}

func (n *node) set(keys []string, value *unstable.Node) bool {
	for _, key := range keys[:len(keys)-1] {
		v, fresh := n.child(key)
		if !fresh && v.origin != byDots {
			return false
		}
		v.form, v.origin = mapping, byDots
		n = v
	}
	v, fresh := n.child(keys[len(keys)-1])
	return fresh && v.fill(value)
}

// fill copies a value. It fails if an inline table has duplicate keys.
func (n *node) fill(value *unstable.Node) bool {
	n.origin = atOnce
	switch value.Kind {
	case unstable.Array:
		n.form = list
		for it := value.Children(); it.Next(); {
			v := &node{}
			n.list = append(n.list, v)
			if !v.fill(it.Node()) {
				return false
			}
		}
	case unstable.InlineTable:
		n.form = mapping
		for it := value.Children(); it.Next(); {
			if !n.set(keysOf(it.Node()), it.Node().Value()) {
				return false
			}
		}
	case unstable.String:
		n.form, n.text = text, string(value.Data)
	case unstable.Bool:
		n.form, n.text = boolean, string(value.Data)
	default:
		n.form, n.text = number, string(value.Data)
	}
	return true
}
