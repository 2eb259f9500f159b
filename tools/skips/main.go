// Command skips fails if a run of go test -json skipped a test that allowed.txt does not list.
//
//	go run ./tools/skips dist/unit.json
//
// Without root, more tests are skipped. It then only lists them, unless CI is set in the environment.
package main

import (
	"bufio"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

//go:embed allowed.txt
var allowedText string

const module = "github.com/zarf-dev/zarf-registry/"

func main() {
	strict := os.Getenv("CI") != "" || os.Geteuid() == 0
	if err := run(os.Args[1:], strict, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "skips:", err)
		os.Exit(1)
	}
}

func run(files []string, strict bool, out io.Writer) error {
	allowed, err := parse(allowedText)
	if err != nil {
		return fmt.Errorf("allowed.txt: %w", err)
	}
	unexpected := 0
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("reading the results of the tests: %w", err)
		}
		skips, err := read(f)
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, s := range skips {
			if !slices.ContainsFunc(allowed, s.matches) {
				unexpected++
				fmt.Fprintf(out, "skipped: %s %s: %s\n", s.pkg, s.name, s.message)
			}
		}
	}
	if unexpected > 0 && strict {
		return fmt.Errorf("%d skipped tests are not in tools/skips/allowed.txt: let them run, or add them", unexpected)
	}
	return nil
}

// test is a skipped test, or a line of allowed.txt.
type test struct {
	pkg     string // without the module's path
	name    string // in allowed.txt the beginning of one if it ends in *
	message string // in allowed.txt a part of it
}

func (t test) matches(allowed test) bool {
	beginning, many := strings.CutSuffix(allowed.name, "*")
	return t.pkg == allowed.pkg && (t.name == allowed.name || many && strings.HasPrefix(t.name, beginning)) &&
		strings.Contains(t.message, allowed.message)
}

// parse reads lines of a package, a test and a part of the message with which it is skipped.
func parse(text string) ([]test, error) {
	var allowed []test
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) < 3 {
			return nil, fmt.Errorf("%q: want a package, a test and a part of its message", line)
		}
		allowed = append(allowed, test{fields[0], fields[1], strings.Join(fields[2:], " ")})
	}
	return allowed, nil
}

// read returns the tests that a run skipped, with their output as message.
func read(results io.Reader) ([]test, error) {
	messages := map[test]*strings.Builder{}
	var skipped []test
	tests := 0
	lines := bufio.NewReader(results)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		var event struct{ Action, Package, Test, Output string }
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
		if event.Test == "" {
			continue
		}
		tests++
		key := test{pkg: strings.TrimPrefix(event.Package, module), name: event.Test}
		if messages[key] == nil {
			messages[key] = &strings.Builder{}
		}
		switch event.Action {
		case "output":
			if text := strings.TrimSpace(event.Output); !strings.HasPrefix(text, "=== ") && !strings.HasPrefix(text, "--- ") {
				messages[key].WriteString(" " + text)
			}
		case "skip":
			skipped = append(skipped, key)
		}
	}
	if tests == 0 {
		return nil, fmt.Errorf("no test ran")
	}
	for i, s := range skipped {
		skipped[i].message = strings.TrimSpace(messages[s].String())
	}
	slices.SortFunc(skipped, func(a, b test) int {
		return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name))
	})
	return skipped, nil
}
