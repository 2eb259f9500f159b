// Command testsummary prints the output of go test -json for people: a line for each package, the output of what
// failed, and in the end the skipped tests with their reasons.
//
//	go test -json ./... | go run ./tools/testsummary
//
// It fails if a test or a package failed, if no test passed, and after the line {"Action":"exit"}, which says that go
// test failed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

const module = "github.com/zarf-dev/zarf-registry/"

func main() {
	if !run(os.Stdin, os.Stdout) {
		os.Exit(1)
	}
}

type event struct{ Action, Package, Test, Output string }

// run reports whether tests passed and nothing failed.
func run(results io.Reader, out io.Writer) bool {
	passed, failed, skipped, exited := 0, []string{}, []string{}, false
	open := map[string][]event{} // output, and tests that run, of packages that have not ended
	fail := func(pkg string) {
		for _, e := range open[pkg] {
			fmt.Fprint(out, e.Output)
			if e.Action == "run" {
				failed = append(failed, "failed: "+name(e)+" (did not end)")
			}
		}
		of := "failed: " + name(event{Package: pkg})
		if !slices.ContainsFunc(failed, func(f string) bool { return strings.HasPrefix(f, of) }) {
			failed = append(failed, of+"(package)")
		}
	}
	lines := bufio.NewReader(results)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if len(line) > 0 && json.Unmarshal(line, &e) != nil {
			fmt.Fprint(out, string(line))
		}
		ends := e.Action == "pass" || e.Action == "fail" || e.Action == "skip"
		switch {
		case e.Action == "build-output", e.Test == "" && strings.HasPrefix(e.Output, "ok  \t"):
			fmt.Fprint(out, e.Output)
		case e.Action == "exit":
			exited = true
		case e.Action == "start", e.Action == "run", e.Action == "output" && !strings.HasPrefix(e.Output, "=== "):
			open[e.Package] = append(open[e.Package], e)
		case ends && e.Test != "":
			switch e.Action {
			case "pass":
				passed++
			case "fail":
				failed = append(failed, "failed: "+name(e))
			case "skip":
				skipped = append(skipped, "skipped: "+name(e)+": "+reason(open[e.Package], e.Test))
			}
			open[e.Package] = ended(open[e.Package], e)
		case ends:
			if e.Action == "fail" {
				fail(e.Package)
			}
			delete(open, e.Package)
		}
		if err != nil {
			break
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(open)) { // go test was stopped
		fail(pkg)
	}
	if exited && len(failed) == 0 {
		failed = append(failed, "failed: go test, without a failed test: see above")
	}
	slices.Sort(skipped)
	for _, line := range slices.Concat(skipped, failed) {
		fmt.Fprintln(out, line)
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", passed, len(failed), len(skipped))
	return passed > 0 && len(failed) == 0
}

func name(e event) string { return strings.TrimPrefix(e.Package, module) + " " + e.Test }

// ended drops what is of no interest once a test has ended. It keeps all output of a test that prints to stdout or
// stderr itself, because it may be a race or a panic that makes another test fail.
func ended(output []event, test event) []event {
	prints := slices.ContainsFunc(output, func(e event) bool {
		return e.Test == test.Test && e.Action == "output" && !strings.HasPrefix(e.Output, " ") &&
			!strings.HasPrefix(e.Output, "--- ")
	})
	return slices.DeleteFunc(output, func(e event) bool {
		return e.Test == test.Test && (e.Action == "run" || test.Action != "fail" && !prints)
	})
}

var position = regexp.MustCompile(`^\S+\.go:\d+: `)

// reason returns what a skipped test logged.
func reason(output []event, test string) string {
	var words []string
	for _, e := range output {
		if text := strings.TrimSpace(e.Output); e.Test == test && text != "" && !strings.HasPrefix(text, "--- ") {
			words = append(words, position.ReplaceAllString(text, ""))
		}
	}
	return strings.Join(words, " ")
}
