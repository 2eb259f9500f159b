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

	// The very parser that K3s' reader uses, so that both see the same in a document, and a second one need not be carried.
	"gopkg.in/yaml.v2"
)

// parseYAML reads one document. Errors say no more than the line: the parser's own quote what they find there.
func parseYAML(data []byte) (*node, error) {
	var first any
	if err := yaml.Unmarshal(data, &first); err != nil {
		return nil, fmt.Errorf("is not YAML that can be read%s", atLine(err))
	}
	if deep(first, maxDepth) {
		return nil, errors.New("is nested deeper than anything that K3s reads")
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var root node
	if err := decoder.Decode(&root); errors.Is(err, io.EOF) {
		return &root, nil
	} else if err != nil {
		return nil, fmt.Errorf("is not YAML that can be read%s", atLine(err))
	}
	var more node
	if err := decoder.Decode(&more); errors.Is(err, io.EOF) || err == nil && more.form == null {
		return &root, nil
	}
	return nil, errors.New("holds more than one document, and only the first would be read; leave out what follows its end")
}

// maxDepth is three times as deep as registries.yaml goes. Below, each level is read anew for the one above it.
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

// atLine is " (line 3)" where an error of the YAML parser says it.
func atLine(err error) string {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		return " (line " + m[1] + ")"
	}
	return ""
}

// A yamlKey is a key of a mapping. Each is another one, so that none replaces another before it was looked at, and at
// says in which order they came.
type yamlKey struct {
	at   int64
	text string
}

// yamlKeys counts keys. It belongs to the process, because a key is read without knowing its document.
var yamlKeys atomic.Int64

// inOrder sorts without a generic function, whose code there would be once more for this type alone: registry-node is small.
type inOrder []yamlKey

func (k inOrder) Len() int           { return len(k) }
func (k inOrder) Less(i, j int) bool { return k[i].at < k[j].at }
func (k inOrder) Swap(i, j int)      { k[i], k[j] = k[j], k[i] }

// UnmarshalYAML implements [yaml.Unmarshaler]. A key is what K3s' reader makes of it: a string, whatever it looks like.
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
	var values map[yamlKey]node // with what merges bring
	if err := unmarshal(&values); err != nil {
		return err
	}
	var written yaml.MapSlice // without
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
			n.items[at].earlier = append(n.items[at].earlier, n.items[at].value)
			n.items[at].value = &value
			continue
		}
		n.items = append(n.items, item{key: key.text, value: &value, twice: times[key.text] > 1})
	}
	return nil
}

// settle makes of what merges and repetitions say more than once what readers that fill structures make of it: a field that
// is a mapping keeps what later ones do not replace, while the value at a key of a map is the last.
func (n *node) settle(s *shape) {
	for at := range n.items {
		i := &n.items[at]
		of := s.at(i.key)
		if s.fields != nil {
			for _, earlier := range slices.Backward(i.earlier) {
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

// under is a mapping with what the one above it does not replace.
func under(below, above *node) *node {
	both := &node{form: mapping}
	for _, i := range below.items {
		if over := slices.IndexFunc(above.items, func(j item) bool { return j.key == i.key }); over >= 0 {
			j := above.items[over]
			i = item{key: j.key, value: j.value, twice: j.twice, earlier: append(append(slices.Clone(i.earlier), i.value), j.earlier...)}
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
