package noderuntime

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"sort"
	"sync/atomic"

	// The same parser as K3s', so that both read a document alike and no second one is linked.
	"gopkg.in/yaml.v2"
)

// parseYAML parses one document. Errors contain only the line: the parser's own quote the content.
func parseYAML(data []byte) (*node, error) {
	var first any
	if err := yaml.Unmarshal(data, &first); err != nil {
		return nil, fmt.Errorf("invalid YAML%s", atLine(err))
	}
	if deep(first, maxDepth) {
		return nil, errors.New("too deeply nested")
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var root node
	if err := decoder.Decode(&root); errors.Is(err, io.EOF) {
		return &root, nil
	} else if err != nil {
		return nil, fmt.Errorf("invalid YAML%s", atLine(err))
	}
	var more node
	if err := decoder.Decode(&more); errors.Is(err, io.EOF) || err == nil && more.form == null {
		return &root, nil
	}
	return nil, errors.New("has more than one document; remove all but the first")
}

// maxDepth is three times the depth of registries.yaml. Each level is parsed again for the level
// above.
const maxDepth = 15

func deep(value any, left int) bool {
	if left < 0 {
		return true
	}
	switch value := value.(type) {
	case map[any]any:
		for _, v := range value {
			if deep(v, left-1) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(value, func(v any) bool { return deep(v, left-1) })
	}
	return false
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:\s+)?line ([0-9]+): `)

// atLine returns " (line 3)" if an error of the YAML parser names a line.
func atLine(err error) string {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		return " (line " + m[1] + ")"
	}
	return ""
}

// A yamlKey is a key of a mapping. Every key is unique, so that none replaces another before it has
// been inspected; at is its position in the document.
type yamlKey struct {
	at   int64
	text string
}

// yamlKeys numbers keys. It is global, because a key is decoded without knowing its document.
var yamlKeys atomic.Int64

// inOrder sorts keys. A generic sort would be instantiated once more just for this type, and
// registry-node must stay small.
type inOrder []yamlKey

func (k inOrder) Len() int           { return len(k) }
func (k inOrder) Less(i, j int) bool { return k[i].at < k[j].at }
func (k inOrder) Swap(i, j int)      { k[i], k[j] = k[j], k[i] }

// UnmarshalYAML implements [yaml.Unmarshaler]. As in K3s' parser, a key is always a string.
func (k *yamlKey) UnmarshalYAML(unmarshal func(any) error) error {
	k.at = yamlKeys.Add(1)
	return unmarshal(&k.text)
}

// UnmarshalYAML implements [yaml.Unmarshaler]. It is not called for null.
func (n *node) UnmarshalYAML(unmarshal func(any) error) error {
	var value any
	if err := unmarshal(&value); err != nil {
		return err
	}
	switch value.(type) {
	case map[any]any:
		n.form = mapping
		return n.unmarshalMapping(unmarshal)
	case []any:
		n.form = list
		var values []node
		if err := unmarshal(&values); err != nil {
			return err
		}
		for i := range values {
			n.list = append(n.list, &values[i])
		}
		return nil
	case string:
		n.form = text
	case bool:
		n.form = boolean
	case nil:
		return nil
	default:
		n.form = number
	}
	return unmarshal(&n.text)
}

func (n *node) unmarshalMapping(unmarshal func(any) error) error {
	var values map[yamlKey]node // including merged items
	if err := unmarshal(&values); err != nil {
		return err
	}
	var written yaml.MapSlice // without merged items
	if err := unmarshal(&written); err != nil {
		return err
	}
	times := map[string]int{}
	for _, w := range written {
		times[fmt.Sprint(w.Key)]++
	}
	keys := slices.Collect(maps.Keys(values))
	sort.Sort(inOrder(keys))
	for _, key := range keys {
		value := values[key]
		if at := slices.IndexFunc(n.items, func(i item) bool { return i.key == key.text }); at >= 0 {
			n.items[at].replaced = append(n.items[at].replaced, n.items[at].value)
			n.items[at].value = &value
			continue
		}
		n.items = append(n.items, item{key: key.text, value: &value, duplicate: times[key.text] > 1})
	}
	return nil
}

// settle resolves merges and repetitions like readers that decode into structs: mappings in fields
// are merged, while map values are replaced by the last one.
func (n *node) settle(s *shape) {
	for at := range n.items {
		i := &n.items[at]
		of := s.at(i.key)
		if s.fields != nil {
			for _, earlier := range slices.Backward(i.replaced) {
				if i.value.form != mapping || earlier.form != mapping {
					break
				}
				i.value = under(earlier, i.value)
			}
		}
		i.value.settle(of)
	}
	for _, v := range n.list {
		if s.list != nil {
			v.settle(s.list)
		}
	}
}

// under returns a mapping with the items of below that above does not replace.
func under(below, above *node) *node {
	both := &node{form: mapping}
	for _, i := range below.items {
		if over := slices.IndexFunc(above.items, func(j item) bool { return j.key == i.key }); over >= 0 {
			j := above.items[over]
			i = item{
				key:       j.key,
				value:     j.value,
				duplicate: j.duplicate,
				replaced:  append(append(slices.Clone(i.replaced), i.value), j.replaced...),
			}
		}
		both.items = append(both.items, i)
	}
	for _, j := range above.items {
		if !slices.ContainsFunc(below.items, func(i item) bool { return i.key == j.key }) {
			both.items = append(both.items, j)
		}
	}
	return both
}
