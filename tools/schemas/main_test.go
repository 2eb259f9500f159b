package main

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/test/require"
)

const document = `{"definitions": {
	"io.k8s.api.apps.v1.Thing": {
		"description": "for readers",
		"type": "object",
		"required": ["spec"],
		"properties": {
			"apiVersion": {"type": "string"}, "kind": {"type": "string"},
			"description": {"type": "string", "description": "a property that is called so"},
			"spec": {"$ref": "#/definitions/io.k8s.api.apps.v1.ThingSpec"}
		},
		"x-kubernetes-group-version-kind": [{"group": "apps.k8s.io", "kind": "Thing", "version": "v1"}]
	},
	"io.k8s.api.apps.v1.ThingSpec": {"type": "object", "properties": {
		"size": {"$ref": "#/definitions/io.k8s.apimachinery.pkg.api.resource.Quantity"},
		"labels": {"type": "object", "additionalProperties": {"type": "string"}},
		"again": {"type": "array", "items": {"$ref": "#/definitions/io.k8s.api.apps.v1.ThingSpec"}}
	}},
	"io.k8s.api.apps.v1.Other": {"type": "object"},
	"io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": "string"}
}}`

func TestConvert(t *testing.T) {
	converted, err := convert([]byte(document))
	require.NoError(t, err)
	if names := slices.Collect(maps.Keys(converted)); !slices.Equal(names, []string{"thing-apps-v1.json"}) {
		t.Fatalf("files: %v", names)
	}
	var got, want any
	require.NoError(t, json.Unmarshal(converted["thing-apps-v1.json"], &got))
	err = json.Unmarshal([]byte(`{
		"type": "object",
		"required": ["apiVersion", "kind", "spec"],
		"additionalProperties": false,
		"properties": {
			"apiVersion": {"const": "apps.k8s.io/v1"}, "kind": {"const": "Thing"},
			"description": {"type": "string"},
			"spec": {"$ref": "#/definitions/io.k8s.api.apps.v1.ThingSpec"}
		},
		"x-kubernetes-group-version-kind": [{"group": "apps.k8s.io", "kind": "Thing", "version": "v1"}],
		"definitions": {
			"io.k8s.api.apps.v1.ThingSpec": {"type": "object", "additionalProperties": false, "properties": {
				"size": {"$ref": "#/definitions/io.k8s.apimachinery.pkg.api.resource.Quantity"},
				"labels": {"type": "object", "additionalProperties": {"type": "string"}},
				"again": {"type": "array", "items": {"$ref": "#/definitions/io.k8s.api.apps.v1.ThingSpec"}}
			}},
			"io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["number", "string"]}
		}
	}`), &want)
	require.NoError(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}
