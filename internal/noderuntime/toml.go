package noderuntime

import (
	"errors"
	"fmt"
	"slices"

	// The parser alone: what go-toml has around it to fill structures would be a third of what node configuration adds to
	// registry-node, and loses the order of tables, which means something to containerd.
	"github.com/pelletier/go-toml/v2/unstable"
)

// parseTOML reads a document. Errors say no more than line and column.
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
			return nil, fmt.Errorf("has something twice%s", position(&p, key.Node().Data))
		}
	}
	if err := p.Error(); err != nil {
		if wrong := (*unstable.ParserError)(nil); errors.As(err, &wrong) {
			return nil, fmt.Errorf("is not TOML that can be read%s", position(&p, wrong.Highlight))
		}
		return nil, errors.New("is not TOML that can be read")
	}
	return root, nil
}

// position is where a part of the document begins; nothing where it is not a part of it, as a key that has escapes is not.
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

// made says how a table came to be, which decides what may be added to it: https://toml.io/en/v1.0.0#table.
type made int

const (
	implied  made = iota // by the header of a table in it
	byHeader             // [a.b]
	byDots               // a.b = …
	byArray              // [[a.b]]
	atOnce               // a = {…}, and all that is no table
)

// child is the value at a key, and whether it was made now.
func (n *node) child(key string) (v *node, fresh bool) {
	if at := slices.IndexFunc(n.items, func(i item) bool { return i.key == key }); at >= 0 {
		return n.items[at].value, false
	}
	v = &node{}
	n.items = append(n.items, item{key: key, value: v})
	return v, true
}

// above is the table that the last of a header's keys is in.
func (n *node) above(keys []string) (*node, bool) {
	for _, key := range keys[:len(keys)-1] {
		v, fresh := n.child(key)
		switch {
		case fresh:
			v.form = mapping
		case v.made == byArray:
			v = v.list[len(v.list)-1]
		case v.made == atOnce:
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
	if v.made != implied {
		return n, false
	}
	v.form, v.made = mapping, byHeader
	return v, true
}

func (n *node) arrayTable(keys []string) (*node, bool) {
	n, ok := n.above(keys)
	if !ok {
		return n, false
	}
	v, fresh := n.child(keys[len(keys)-1])
	if !fresh && v.made != byArray {
		return n, false
	}
	table := &node{form: mapping, made: byHeader}
	v.form, v.made, v.list = list, byArray, append(v.list, table)
	return table, true
}

func (n *node) set(keys []string, value *unstable.Node) bool {
	for _, key := range keys[:len(keys)-1] {
		v, fresh := n.child(key)
		if !fresh && v.made != byDots {
			return false
		}
		v.form, v.made = mapping, byDots
		n = v
	}
	v, fresh := n.child(keys[len(keys)-1])
	return fresh && v.fill(value)
}

// fill takes a value over; it cannot where an inline table has a key twice.
func (n *node) fill(value *unstable.Node) bool {
	n.made = atOnce
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
