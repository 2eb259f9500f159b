package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const results = `{"Action":"run","Package":"github.com/zarf-dev/zarf-registry/internal/images","Test":"TestRealEngine"}
{"Action":"output","Package":"github.com/zarf-dev/zarf-registry/internal/images","Test":"TestRealEngine","Output":"    stream_test.go:633: NOT TESTED against a real engine: set DOCKER_HOST to one, or start docker: none\n"}
{"Action":"skip","Package":"github.com/zarf-dev/zarf-registry/internal/images","Test":"TestRealEngine"}
{"Action":"pass","Package":"github.com/zarf-dev/zarf-registry/internal/images","Test":"TestPush"}
{"Action":"skip","Package":"github.com/zarf-dev/zarf-registry/cmd/init-hook"}
`

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "unit.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestUnexpectedSkipsFail(t *testing.T) {
	const engine = "internal/images TestRealEngine: stream_test.go:633: NOT TESTED against a real engine: set DOCKER_HOST"
	for name, c := range map[string]struct {
		results      string
		found, wrong string // part of the output and of the error
	}{
		"only what may be skipped": {results, "", ""},
		"another test": {strings.ReplaceAll(results, "TestRealEngine", "TestRealEngineOf2"),
			"skipped: internal/images TestRealEngineOf2: stream_test.go", "1 skipped tests"},
		"a subtest": {strings.ReplaceAll(results, "TestRealEngine", "TestRealEngine/pull"),
			"skipped: internal/images TestRealEngine/pull: stream_test.go", "1 skipped tests"},
		"a test of another package": {strings.ReplaceAll(results, "internal/images", "internal/hook"),
			"skipped: internal/hook TestRealEngine: ", "1 skipped tests"},
		"for another reason": {strings.ReplaceAll(results, "set DOCKER_HOST", "missing root"),
			"skipped: internal/images TestRealEngine: stream_test.go:633: NOT TESTED against a real engine: missing root",
			"1 skipped tests"},
		"no results":      {"", "", "no test ran"},
		"no JSON":         {"ok internal/images\n", "", "ok internal/images"},
		"no test at all":  {`{"Action":"skip","Package":"github.com/zarf-dev/zarf-registry/cmd"}` + "\n", "", "no test ran"},
		"other directory": {strings.ReplaceAll(results, "zarf-registry/internal", "zarf-registry/bench"), "bench/images", "1"},
	} {
		var out strings.Builder
		err := run([]string{write(t, c.results)}, true, &out)
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: error %v, want %q", name, err, c.wrong)
		}
		if (out.Len() == 0) != (c.found == "") || !strings.Contains(out.String(), c.found) {
			t.Errorf("%s: output %q, want %q", name, &out, c.found)
		}
	}
	// Without root they are listed only.
	var out strings.Builder
	if err := run([]string{write(t, strings.ReplaceAll(results, "images", "hook"))}, false, &out); err != nil {
		t.Error(err)
	}
	if want := "skipped: " + strings.ReplaceAll(engine, "images", "hook"); !strings.Contains(out.String(), want) {
		t.Errorf("output %q, want %q", &out, want)
	}
	if err := run([]string{filepath.Join(t.TempDir(), "none")}, false, &out); err == nil {
		t.Error("missing results are accepted")
	}
}

// A line of allowed.txt for a test that was renamed, or for a message that was changed, is stale.
func TestAllowedSkipsExist(t *testing.T) {
	allowed, err := parse(allowedText)
	if err != nil || len(allowed) == 0 {
		t.Fatal(err)
	}
	for _, a := range allowed {
		files, err := filepath.Glob(filepath.Join("../..", a.pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var source strings.Builder
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			source.Write(text)
		}
		name := "func " + a.name + "("
		if beginning, many := strings.CutSuffix(a.name, "*"); many {
			name = "func " + beginning
		}
		if !strings.Contains(source.String(), name) {
			t.Errorf("package %s has no test %s", a.pkg, a.name)
		}
		if !strings.Contains(source.String(), a.message) {
			t.Errorf("no test of package %s has the message %q", a.pkg, a.message)
		}
	}
	if _, err := parse("internal/images TestRealEngine # without a message"); err == nil {
		t.Error("a line without a message is accepted")
	}
}
