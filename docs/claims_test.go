package docs

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zarf-dev/zarf-registry/test/golden"
	"github.com/zarf-dev/zarf-registry/test/require"
)

// A paragraph of a test's comment that states a claim about security, or the claim of the named subtests, which are
// separated by semicolons.
var claim = regexp.MustCompile(`^Claim(?: \(([^)]+)\))?: (.+)$`)

// TestClaimsPageIsCurrent compares reference/claims.md with the claims in the comments of all tests.
func TestClaimsPageIsCurrent(t *testing.T) {
	rows := map[string][]string{} // by directory
	forEachTestFile(t, func(name string, content []byte) {
		file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, declaration := range file.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok {
				continue
			}
			for _, paragraph := range strings.Split(function.Doc.Text(), "\n\n") {
				m := claim.FindStringSubmatch(strings.Join(strings.Fields(paragraph), " "))
				if m == nil {
					continue
				}
				dir := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(name), top+string(filepath.Separator)))
				rows[dir] = append(rows[dir], fmt.Sprintf("|%s|%s|\n", m[2], testsOf(function.Name.Name, m[1])))
			}
		}
	})
	var page bytes.Buffer
	page.WriteString("# Claims about security and their tests\n\n" +
		"`go test ./docs -run TestClaimsPage -update` writes this page from the comments of the tests.\n")
	for _, dir := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprintf(&page, "\n## %s\n\n|claim|test|\n|---|---|\n%s", dir, strings.Join(rows[dir], ""))
	}
	golden.File(t, "reference/claims.md", page.String())
}

// testsOf returns the arguments of go test -run that select the subtests of a test, or the test itself.
func testsOf(test, subtests string) string {
	if subtests == "" {
		return "`" + test + "`"
	}
	var names []string
	for _, subtest := range strings.Split(subtests, "; ") {
		names = append(names, "`"+test+"/"+strings.ReplaceAll(subtest, " ", "_")+"`")
	}
	return strings.Join(names, " ")
}
