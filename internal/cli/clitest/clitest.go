// Package clitest helps the tests of commands.
package clitest

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zarf-dev/zarf-registry/internal/cli/render"
	"github.com/zarf-dev/zarf-registry/test/golden"
)

// Same reports a difference of what a command printed.
func Same(t *testing.T, what, got, want string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// JSON compares what a command prints as JSON with the golden file of its kind.
func JSON(t *testing.T, kind render.Kind, printed string) {
	t.Helper()
	golden.File(t, filepath.Join("testdata", "json", string(kind)+".json"), printed)
}

// Data is a value as a command prints it as JSON.
func Data(t *testing.T, kind render.Kind, value any) string {
	t.Helper()
	var out bytes.Buffer
	if err := render.Data(&out, render.FormatJSON, kind, value); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// LoginHome is a home without any credential but those that files hold, by their
// path in it.
func LoginHome(t *testing.T, files map[string]string) string {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, name := range []string{"REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "XDG_CONFIG_HOME"} {
		t.Setenv(name, "")
	}
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(home, "run"))
	for name, text := range files {
		path := filepath.Join(home, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return home
}

// HelperProgram puts a credential helper of the given name before all programs.
func HelperProgram(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "docker-credential-"+name), []byte("#!/bin/sh\n"+script+"\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// Text is a report as text, without the spaces that a table ends its lines with.
func Text[R any](t *testing.T, write func(io.Writer, R) error, report R) string {
	t.Helper()
	var out bytes.Buffer
	if err := write(&out, report); err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(` +\n`).ReplaceAllString(out.String(), "\n")
}
