package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/zarf-dev/zarf-registry/internal/space"
)

const (
	repository   = "https://github.com/zarf-dev/zarf-registry"
	buildType    = repository + "/blob/main/docs/release.md#the-provenance-statement"
	builderLocal = repository + "/blob/main/docs/release.md#built-by-hand"

	fileProvenance = "provenance.intoto.json"
	fileSums       = "SHA256SUMS"
)

// An in-toto statement with a SLSA provenance predicate (https://slsa.dev/spec/v1.0/provenance),
// without fields that differ between builds, such as the build time.
type (
	statement struct {
		Type          string    `json:"_type"`
		Subject       []subject `json:"subject"`
		PredicateType string    `json:"predicateType"`
		Predicate     predicate `json:"predicate"`
	}
	subject struct {
		Name   string            `json:"name"`
		Digest map[string]string `json:"digest"`
	}
	predicate struct {
		BuildDefinition buildDefinition `json:"buildDefinition"`
		RunDetails      runDetails      `json:"runDetails"`
	}
	buildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		InternalParameters   map[string]string `json:"internalParameters"`
		ResolvedDependencies []dependency      `json:"resolvedDependencies"`
	}
	dependency struct {
		URI    string            `json:"uri"`
		Digest map[string]string `json:"digest"`
	}
	runDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	}
)

// writeProvenance writes the provenance statement for all files in dir and for the images.
func (r release) writeProvenance(dir string, imageSubjects []subject, built map[string]*component) error {
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	sums, err := sums(dir)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		s.Subject = append(s.Subject, subject{Name: name, Digest: map[string]string{"sha256": sums[name]}})
	}
	s.Subject = append(s.Subject, imageSubjects...)

	modules := map[string]*debug.Module{}
	tools := map[string]bool{}
	for _, c := range built {
		for _, m := range c.modules {
			modules[modulePURL(m)] = m
		}
		if c.goTool != "" {
			tools[c.goTool] = true
		}
	}
	if len(tools) != 1 {
		return fmt.Errorf("the programs were built with %d different toolchains: run make clean and rebuild",
			len(tools))
	}
	d := &s.Predicate.BuildDefinition
	d.BuildType = buildType
	d.ExternalParameters = map[string]string{"repository": repository, "version": r.version, "registry": r.registry,
		"command": "make release"}
	d.InternalParameters = map[string]string{"go": slices.Sorted(maps.Keys(tools))[0]}
	if r.source.changed {
		d.InternalParameters["changed"] = "files differed from the commit"
	}
	d.ResolvedDependencies = []dependency{{URI: "git+" + repository,
		Digest: map[string]string{"gitCommit": r.source.commit}}}
	for _, purl := range slices.Sorted(maps.Keys(modules)) {
		hash, err := dirHash(modules[purl])
		if err != nil {
			return err
		}
		d.ResolvedDependencies = append(d.ResolvedDependencies, dependency{URI: purl,
			Digest: map[string]string{"dirHash": hash}})
	}
	s.Predicate.RunDetails.Builder.ID = r.builder
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, fileProvenance), append(content, '\n'))
}

// sums returns the SHA-256 hashes of the files in dir, by name.
func sums(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, e := range entries {
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		found[e.Name()] = hex.EncodeToString(sum.Sum(nil))
	}
	return found, nil
}

// writeSums writes SHA256SUMS and prints the files of the release.
func writeSums(dir string, out io.Writer) error {
	sums, err := sums(dir)
	if err != nil {
		return err
	}
	var lines []byte
	for _, name := range slices.SortedFunc(maps.Keys(sums), cmp.Compare) {
		lines = fmt.Appendf(lines, "%s  %s\n", sums[name], name)
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-36s %10s  %s\n", name, space.FormatBytes(info.Size()), sums[name])
	}
	return writeFile(filepath.Join(dir, fileSums), lines)
}
