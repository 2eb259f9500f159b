package noderuntime

import (
	"strconv"
	"strings"
)

// A node is a value of a document, whatever its format. The zero value is null.
type node struct {
	form form
	// text is a scalar's, as it is written; strings without their quotes.
	text string
	// items are a mapping's, in the document's order.
	items []item
	// list are a list's.
	list []*node
	// made says of TOML what may be added.
	made made
}

type item struct {
	key   string
	value *node
	// twice says that the document has the key more than once; value is the last, which is what readers take.
	twice bool
	// earlier are the values that a merge or a repetition replaced. Readers that fill structures may keep parts of them.
	earlier []*node
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

// get is the value at a key of a mapping, or null.
func (n *node) get(key string) *node {
	for _, i := range n.items {
		if i.key == key {
			return i.value
		}
	}
	return &node{}
}

func (n *node) scalar() bool { return n.form == text || n.form == boolean || n.form == number }

// raw tells nodes apart, secrets and all: it must not be shown.
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
