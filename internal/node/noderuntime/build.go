package noderuntime

import (
	"errors"
	"maps"
	"slices"
)

// ErrNotMounted is what Inputs.CheckTLS returns for a path that is not mounted into the pod.
var ErrNotMounted = errors.New("not mounted")

// Build returns the files that a node must have. Its error is of type Problems: it lists everything
// that is invalid, by its place in the values and without secrets.
func Build(in Inputs) (*Desired, error) {
	b := &builder{Inputs: in, files: map[string]File{}, from: map[string]source{}}
	b.directories()
	b.registries()
	b.mirrors()
	b.hosts()
	b.crio()
	desired := &Desired{Warnings: b.warnings}
	for _, name := range slices.Sorted(maps.Keys(b.files)) {
		b.checkPath(name)
		desired.Files = append(desired.Files, b.files[name])
	}
	if err := b.err(); err != nil {
		return nil, err
	}
	return desired, nil
}
