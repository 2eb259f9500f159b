package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	// maxInputs limits the committed inputs of a target: unit tests run all of them.
	maxInputs = 30
	// maxInputSize limits the size of a committed input, in bytes, so that reviewers can read it.
	maxInputSize = 4 << 10
)

// blocks are the executed blocks of statements, named as in a coverage profile.
type blocks map[string]bool

func (t target) compileToCover(ctx context.Context) error {
	imports, err := goOutput(ctx, "list", "-f",
		`{{join .Imports "\n"}}{{"\n"}}{{join .TestImports "\n"}}{{"\n"}}{{join .XTestImports "\n"}}`, t.path)
	if err != nil {
		return err
	}
	module, err := goOutput(ctx, "list", "-m")
	if err != nil {
		return err
	}
	measured := append(slices.DeleteFunc(strings.Fields(string(imports)),
		func(path string) bool { return !reader.MatchString(path) }), strings.TrimSpace(string(module))+"/...")
	slices.Sort(measured)
	_, err = goOutput(ctx, "test", "-c", "-coverpkg", strings.Join(slices.Compact(measured), ","), "-o", t.program, t.path)
	return err
}

// reader lists parsers outside the module whose statements count if a package or its tests import
// them. With other packages, the same input does not always execute the same statements.
var reader = regexp.MustCompile(`^(archive|compress|encoding|crypto/tls|crypto/x509|net/http|net/url)\b|yaml|toml`)

// refresh adds inputs of Go's fuzz cache to a target's committed corpus if they reach statements
// that neither its seeds nor its committed inputs reach, small ones first. It removes nothing: an
// input may have been committed because it once failed.
func (t target) refresh(ctx context.Context) (string, error) {
	found, err := inputs(filepath.Join(t.found, t.name))
	if err != nil {
		return "", err
	}
	committed := filepath.Join(t.dir, "testdata", "fuzz", t.name)
	kept, err := inputs(committed)
	if err != nil {
		return "", err
	}
	profile := t.program + "." + t.name
	run := func(name string) (blocks, error) {
		cmd := exec.CommandContext(ctx, t.program, "-test.run", name, "-test.coverprofile", profile)
		cmd.Dir = t.dir
		if output, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", name, err, output)
		}
		return readProfile(profile)
	}
	covered, err := run("^" + t.name + "$")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(committed, 0o755); err != nil {
		return "", err
	}
	before := len(covered)
	added := 0
	for _, in := range found {
		if slices.ContainsFunc(kept, func(k input) bool { return k.name == in.name }) || len(kept)+added >= maxInputs {
			continue
		}
		// The test program reads inputs only from the package's own directory.
		path := filepath.Join(committed, in.name)
		if err := os.WriteFile(path, in.data, 0o644); err != nil {
			return "", err
		}
		got, err := run("^" + t.name + "$/^" + in.name + "$")
		if err != nil {
			return "", fmt.Errorf("%w\nthe input is %s", err, path)
		}
		if got.addTo(covered) {
			added++
		} else if err := os.Remove(path); err != nil {
			return "", err
		}
	}
	_ = os.Remove(committed) // fails if it is not empty
	return fmt.Sprintf("%d inputs were committed, %d found, %d added; %d blocks of statements were covered, %d are now",
		len(kept), len(found), added, before, len(covered)), nil
}

// addTo adds the blocks to others and reports whether one was new.
func (b blocks) addTo(others blocks) bool {
	before := len(others)
	for block := range b {
		others[block] = true
	}
	return len(others) > before
}

type input struct {
	name string
	data []byte
}

// inputs reads a corpus, the smallest input first, without those that are too large to be
// committed. A missing directory is an empty corpus.
func inputs(dir string) ([]input, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []input
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		if len(data) <= maxInputSize {
			list = append(list, input{entry.Name(), data})
		}
	}
	slices.SortStableFunc(list, func(a, b input) int { return len(a.data) - len(b.data) })
	return list, nil
}

// readProfile returns the blocks that a coverage profile counts: lines of "file:from,to statements
// count".
func readProfile(path string) (blocks, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	ran := blocks{}
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
		if len(fields) == 3 && fields[2] != "0" {
			ran[fields[0]] = true
		}
	}
	return ran, scanner.Err()
}
