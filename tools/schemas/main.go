// Command schemas writes JSON schemas of Kubernetes objects for kubeconform. It converts the OpenAPI
// document in the module k8s.io/kubernetes of each version:
//
//	schemas --output FOLDER v1.30.14 v1.36.3
//
// Each version has a folder with one file per kind. The schemas reject unknown fields. Existing folders are
// left unchanged.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	output := flag.String("output", "", "folder to write the schemas to")
	flag.Parse()
	if *output == "" || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: schemas --output FOLDER VERSION...")
		os.Exit(2)
	}
	for _, version := range flag.Args() {
		if err := write(filepath.Join(*output, version), version); err != nil {
			fmt.Fprintf(os.Stderr, "schemas of Kubernetes %s: %v\n", version, err)
			os.Exit(1)
		}
	}
}

// write writes the schemas of a version, unless dir exists. It renames a temporary folder, so that dir is
// always complete.
func write(dir, version string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	source, err := download(version)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(source, "api", "openapi-spec", "swagger.json"))
	if err != nil {
		return err
	}
	schemas, err := convert(data)
	if err != nil {
		return err
	}
	if len(schemas) < 50 { // there are about 180
		return fmt.Errorf("the OpenAPI document in %s has only %d kinds", source, len(schemas))
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), ".schemas-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	for name, schema := range schemas {
		if err := os.WriteFile(filepath.Join(temp, name), schema, 0o644); err != nil {
			return err
		}
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	if err := os.Rename(temp, dir); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// download returns the folder of a version's sources in Go's module cache.
func download(version string) (string, error) {
	dir, err := os.MkdirTemp("", "schemas-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// Downloaded in a temporary module, so that the project's go.mod does not change.
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module build.invalid/schemas\n\ngo 1.26\n"),
		0o644); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "mod", "download", "-json", "k8s.io/kubernetes@"+version)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	out, runErr := cmd.Output() // the output explains a failure
	var module struct{ Dir, Error string }
	if err := json.Unmarshal(out, &module); err != nil {
		return "", errors.Join(runErr, err)
	}
	if module.Error != "" {
		return "", errors.New(module.Error)
	}
	return module.Dir, nil
}

// schema is a node of an OpenAPI or JSON schema document.
type schema = map[string]any

// convert returns a schema for each kind of an OpenAPI v2 document, by the file name that
// kubeconform uses: kind, first word of the group, version, in lower case.
func convert(swagger []byte) (map[string][]byte, error) {
	var document struct{ Definitions map[string]schema }
	if err := json.Unmarshal(swagger, &document); err != nil {
		return nil, err
	}
	for name, definition := range document.Definitions {
		document.Definitions[name] = strict(definition).(schema)
	}
	// The document omits that these two may also be numbers.
	document.Definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = schema{"type": []any{"integer", "string"}}
	document.Definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] = schema{"type": []any{"number", "string"}}
	converted := map[string][]byte{}
	for name, definition := range document.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 {
			continue // part of an object, or in every group like DeleteOptions
		}
		kind := kinds[0].(schema)
		needed := map[string]schema{}
		collect(definition, document.Definitions, needed)
		whole := maps.Clone(definition)
		// apiVersion is required and must be one of the group's versions.
		version := kind["version"].(string)
		group := kind["group"].(string)
		apiVersion := strings.TrimPrefix(group+"/"+version, "/")
		properties := maps.Clone(whole["properties"].(schema))
		properties["apiVersion"], properties["kind"] = schema{"const": apiVersion}, schema{"const": kind["kind"]}
		required, _ := whole["required"].([]any)
		whole["properties"], whole["required"], whole["definitions"] = properties,
			append([]any{"apiVersion", "kind"}, required...), needed
		data, err := json.Marshal(whole)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		parts := []string{kind["kind"].(string)}
		if first, _, _ := strings.Cut(group, "."); first != "" {
			parts = append(parts, first)
		}
		converted[strings.ToLower(strings.Join(append(parts, version), "-"))+".json"] = data
	}
	return converted, nil
}

// strict removes descriptions and formats from a node, and makes its objects reject unknown fields.
func strict(node any) any {
	switch node := node.(type) {
	case schema:
		// A property may have the name of one of the removed keywords.
		if properties, ok := node["properties"].(schema); ok {
			if _, open := node["additionalProperties"]; !open && node["x-kubernetes-preserve-unknown-fields"] != true {
				node["additionalProperties"] = false
			}
			for name, property := range properties {
				properties[name] = strict(property)
			}
		}
		delete(node, "description")
		delete(node, "format") // formats of numbers and dates
		for key, value := range node {
			if key != "properties" {
				node[key] = strict(value)
			}
		}
	case []any:
		for i, value := range node {
			node[i] = strict(value)
		}
	}
	return node
}

const refPrefix = "#/definitions/"

// collect copies the definitions that a node refers to, recursively.
func collect(node any, from, to map[string]schema) {
	switch node := node.(type) {
	case schema:
		if ref, ok := node["$ref"].(string); ok {
			name := strings.TrimPrefix(ref, refPrefix)
			if _, seen := to[name]; !seen {
				to[name] = from[name]
				collect(from[name], from, to)
			}
		}
		for _, value := range node {
			collect(value, from, to)
		}
	case []any:
		for _, value := range node {
			collect(value, from, to)
		}
	}
}
