package templates

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	yaml3 "go.yaml.in/yaml/v3"

	"github.com/zarf-dev/zarf-registry/test/require"
)

// values.yaml is the source of README.md and values.schema.json: of the descriptions, the defaults and
// the order. Types and limits are maintained in the schema, and Helm validates the defaults against
// them.

var writeSchema = flag.Bool("write-schema", false, "write values.schema.json with what values.yaml says")

// description returns the text of a value's comment after "# -- ".
func description(comment string) (string, bool) {
	text, ok := strings.CutPrefix(comment, "# -- ")
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(strings.TrimPrefix(line, "#"))
	}
	return strings.Join(lines, " "), ok
}

// readYAML reads a YAML or JSON file of the chart, with order and comments.
func readYAML(t testing.TB, file string) *yaml3.Node {
	t.Helper()
	b := require.Value(os.ReadFile(filepath.Join(chartDir, file)))(t)
	var document yaml3.Node
	require.NoError(t, yaml3.Unmarshal(b, &document), file)
	return document.Content[0]
}

// field returns the value of a key, nil if there is none.
func field(object *yaml3.Node, key string) *yaml3.Node {
	for i := 0; i+1 < len(object.Content); i += 2 {
		if object.Content[i].Value == key {
			return object.Content[i+1]
		}
	}
	return nil
}

// setField sets a key of an object, in place or at the end.
func setField(object *yaml3.Node, key string, value *yaml3.Node) {
	for i := 0; i+1 < len(object.Content); i += 2 {
		if object.Content[i].Value == key {
			object.Content[i+1] = value
			return
		}
	}
	object.Content = append(object.Content, &yaml3.Node{Kind: yaml3.ScalarNode, Tag: "!!str", Value: key}, value)
}

// fill copies order, descriptions and defaults from values.yaml to a schema, which must have the same keys and allow no
// others.
func fill(schema, values *yaml3.Node, path string) error {
	properties := field(schema, "properties")
	if properties == nil {
		return fmt.Errorf("values.schema.json: %q has no properties for the values in values.yaml", path)
	}
	var ordered []*yaml3.Node
	var errs []error
	// Parent charts have their own globals.
	if more := field(schema, "additionalProperties"); path != "global" && (more == nil || more.Value != "false") {
		errs = append(errs, fmt.Errorf("values.schema.json: %q allows additional properties", path))
	}
	for i := 0; i+1 < len(values.Content); i += 2 {
		key, value := values.Content[i], values.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		property := field(properties, key.Value)
		if property == nil {
			errs = append(errs, fmt.Errorf("values.schema.json: %s is in values.yaml only", at))
			continue
		}
		ordered = append(ordered, &yaml3.Node{Kind: yaml3.ScalarNode, Tag: "!!str", Value: key.Value}, property)
		if text, ok := description(key.HeadComment); ok {
			setField(property, "description", &yaml3.Node{Kind: yaml3.ScalarNode, Tag: "!!str", Value: text})
		}
		if isLeaf(key, value) {
			setField(property, "default", value)
		} else if err := fill(property, value, at); err != nil {
			errs = append(errs, err)
		}
	}
	for i := 0; i+1 < len(properties.Content); i += 2 {
		if field(values, properties.Content[i].Value) == nil {
			at := strings.TrimPrefix(path+"."+properties.Content[i].Value, ".")
			errs = append(errs, fmt.Errorf("values.schema.json: %s is not in values.yaml", at))
		}
	}
	properties.Content = ordered
	return errors.Join(errs...)
}

// writeJSON writes a YAML node as JSON, in its order.
func writeJSON(b *bytes.Buffer, node *yaml3.Node) error {
	switch node.Kind {
	case yaml3.MappingNode:
		b.WriteByte('{')
		for i := 0; i+1 < len(node.Content); i += 2 {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeJSON(b, node.Content[i]); err != nil {
				return err
			}
			b.WriteByte(':')
			if err := writeJSON(b, node.Content[i+1]); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	case yaml3.SequenceNode:
		b.WriteByte('[')
		for i, item := range node.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeJSON(b, item); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	default:
		var value any
		if err := node.Decode(&value); err != nil {
			return err
		}
		encoder := json.NewEncoder(b)
		encoder.SetEscapeHTML(false) // for readability
		return encoder.Encode(value)
	}
	return nil
}

func TestSchemaMatchesValuesYAML(t *testing.T) {
	t.Parallel()
	schema := readYAML(t, "values.schema.json")
	require.NoError(t, fill(schema, readYAML(t, "values.yaml"), ""))
	var compact, want bytes.Buffer
	require.NoError(t, writeJSON(&compact, schema))
	require.NoError(t, json.Indent(&want, compact.Bytes(), "", "  "))
	want.WriteByte('\n')
	file := filepath.Join(chartDir, "values.schema.json")
	if *writeSchema {
		require.NoError(t, os.WriteFile(file, want.Bytes(), 0o644))
		return
	}
	got := require.Value(os.ReadFile(file))(t)
	if diff := cmp.Diff(want.String(), string(got)); diff != "" {
		t.Errorf(
			"%s does not match values.yaml (go test ./templates-tests -run Schema -write-schema updates it):\n%s", file, diff,
		)
	}
}

// helm-docs writes the table of README.md (make generate).
func TestREADMEMatchesValuesYAML(t *testing.T) {
	t.Parallel()
	b := require.Value(os.ReadFile(filepath.Join(chartDir, "README.md")))(t)
	var rows []string
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "| `") && strings.Count(line, " | ") >= 2 {
			rows = append(rows, line)
		}
	}
	for _, leaf := range chartLeaves(t) {
		text, _ := description(leaf.comment)
		if !slices.ContainsFunc(rows, func(row string) bool {
			return strings.HasPrefix(row, "| `"+leaf.path+"` |") && strings.Contains(row, strings.ReplaceAll(text, "|", `\|`))
		}) {
			t.Errorf(
				"README.md: no row for %s with the description in values.yaml (make generate updates it): %s", leaf.path, text,
			)
		}
	}
}
