package noderuntime

// A node is a value in a TOML document. The zero value is an empty table that is implied by another.
type node struct {
	form form
	// text is a scalar as written, strings without their quotes.
	text string
	// items are the items of a table in document order.
	items []item
	// list are the values of a list.
	list []*node
	// origin decides what may be added to a table.
	origin origin
}

type item struct {
	key   string
	value *node
}

type form int

const (
	mapping form = iota
	list
	text
	boolean
	number // and all other scalars, such as dates
)

// A numeral is a scalar that is neither a string nor a truth value, as written.
type numeral string

// value returns the value as encoding/json would decode it, apart from numerals.
func (n *node) value() any {
	switch n.form {
	case mapping:
		table := map[string]any{}
		for _, i := range n.items {
			table[i.key] = i.value.value()
		}
		return table
	case list:
		values := make([]any, len(n.list))
		for i, v := range n.list {
			values[i] = v.value()
		}
		return values
	case text:
		return n.text
	case boolean:
		return n.text == "true"
	}
	return numeral(n.text)
}
