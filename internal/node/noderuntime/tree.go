package noderuntime

import (
	"strconv"
	"strings"
)

// A node is a value in a document of any format. The zero value is null.
type node struct {
	form form
	// text is a scalar as written, strings without their quotes.
	text string
	// items are the items of a mapping in document order.
	items []item
	// list are the values of a list.
	list []*node
	// origin decides what may be added to a TOML table.
	origin origin
}

type item struct {
	key   string
	value *node
	// duplicate means that the document repeats the key. value is the last one, which readers use.
	duplicate bool
	// replaced are the values that a merge or repetition replaced. Readers that decode into structs
	// may keep parts of them.
	replaced []*node
}

type form int

const (
	null form = iota
	text
	boolean
	number // and all other scalars, such as dates
	mapping
	list
)

// get returns the value at a key of a mapping, or null.
func (n *node) get(key string) *node {
	for _, i := range n.items {
		if i.key == key {
			return i.value
		}
	}
	return &node{}
}

func (n *node) scalar() bool { return n.form == text || n.form == boolean || n.form == number }

// raw returns a unique encoding, including secrets: it must not be shown.
func (n *node) raw() string {
	var b strings.Builder
	n.writeRaw(&b)
	return b.String()
}

func (n *node) writeRaw(b *strings.Builder) {
	b.WriteString(strconv.Itoa(int(n.form)))
	b.WriteString(strconv.Quote(n.text))
	for _, i := range n.items {
		b.WriteString("{" + strconv.Quote(i.key))
		i.value.writeRaw(b)
	}
	for _, v := range n.list {
		b.WriteString("[")
		v.writeRaw(b)
	}
	b.WriteString(";")
}

func (f form) String() string {
	return [...]string{
		null: "empty", text: "a string", boolean: "true or false", number: "a number", mapping: "a mapping", list: "a list",
	}[f]
}
