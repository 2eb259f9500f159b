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
	// maxInputs limits the committed inputs of a target, because unit tests run all of them.
	maxInputs = 30
	// maxInputSize limits the size of a committed input, in bytes, so that reviewers can read it.
	maxInputSize = 4 << 10
)

// blocks is a set of executed blocks of statements, named as in a coverage profile.
type blocks map[string]bool

// compileToCover compiles the package's tests with coverage of the module and of parsers that it imports.
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
		func(path string) bool { return !parsers.MatchString(path) }), strings.TrimSpace(string(module))+"/...")
	slices.Sort(measured)
	_, err = goOutput(ctx, "test", "-c", "-coverpkg", strings.Join(slices.Compact(measured), ","), "-o", t.program, t.path)
	return err
}

// parsers matches packages outside the module whose statements count if a package or its tests import
// them. In other packages, the same input does not always execute the same statements.
var parsers = regexp.MustCompile(`^(archive|compress|encoding|crypto/tls|crypto/x509|net/http|net/url)\b|yaml|toml`)

// refresh adds inputs from Go's fuzz cache to the committed corpus if they reach statements that neither
// seeds nor committed inputs reach. It tries small inputs first. It removes nothing, because an input may
// have been committed for a failure.
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
			return "", fmt.Errorf("%w\ninput: %s", err, path)
		}
		if got.addTo(covered) {
			added++
		} else if err := os.Remove(path); err != nil {
			return "", err
		}
	}
	_ = os.Remove(committed) // fails if it is not empty
	return fmt.Sprintf("%d inputs committed, %d found, %d added; %d blocks of statements covered before, %d now",
		len(kept), len(found), added, before, len(covered)), nil
}

// addTo adds the blocks to others and reports whether any of them is new.
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

// inputs reads a corpus, smallest inputs first, and omits those that are too large to commit. A missing
// directory is an empty corpus.
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

// readProfile returns the executed blocks of a coverage profile. Its lines are "BLOCK STATEMENTS COUNT".
func readProfile(path string) (blocks, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	executed := blocks{}
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
		if len(fields) == 3 && fields[2] != "0" {
			executed[fields[0]] = true
		}
	}
	return executed, scanner.Err()
}
