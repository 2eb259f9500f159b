package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A testFile holds the functions of a test file by name.
type testFile struct {
	functions map[string]*ast.FuncDecl
	// packaged holds those of all test files of the package, tables its variables.
	packaged map[string]*ast.FuncDecl
	tables   map[string]*ast.ValueSpec
}

// testFiles parses all tests of the project, by path.
func testFiles(t *testing.T) map[string]testFile {
	t.Helper()
	files, packages := map[string]testFile{}, map[string]testFile{}
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return err
		}
		dir := filepath.Dir(name)
		if _, ok := packages[dir]; !ok {
			packages[dir] = testFile{packaged: map[string]*ast.FuncDecl{}, tables: map[string]*ast.ValueSpec{}}
		}
		f := packages[dir]
		f.functions = map[string]*ast.FuncDecl{}
		for _, declaration := range parsed.Decls {
			switch declaration := declaration.(type) {
			case *ast.FuncDecl:
				f.functions[declaration.Name.Name], f.packaged[declaration.Name.Name] = declaration, declaration
			case *ast.GenDecl:
				for _, spec := range declaration.Specs {
					if variable, ok := spec.(*ast.ValueSpec); ok && declaration.Tok == token.VAR {
						f.tables[variable.Names[0].Name] = variable
					}
				}
			}
		}
		path, err := filepath.Rel(top, name)
		files[filepath.ToSlash(path)] = f
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// runners are the functions that run a subtest.
var runners = []string{"Run", "must", "underLoop"}

// subtests returns the names of a function's subtests, and those of the functions that it passes its t
// to. Names from a table are the table's strings.
func (f testFile) subtests(function *ast.FuncDecl) []string {
	var found []string
	seen := map[*ast.FuncDecl]bool{}
	var add func(function *ast.FuncDecl, table []string)
	add = func(function *ast.FuncDecl, table []string) {
		if function == nil || seen[function] || function.Body == nil {
			return
		}
		seen[function] = true
		table = append(f.tableNames(function.Body), table...) // a caller may pass names
		ast.Inspect(function.Body, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			callee, args := "", call.Args
			passesT := len(args) > 0 && isT(args[0])
			if passesT {
				args = args[1:]
			}
			runs := passesT
			switch f := call.Fun.(type) {
			case *ast.Ident:
				callee = f.Name
				runs = true
			case *ast.SelectorExpr:
				callee = f.Sel.Name
				runs = runs || isT(f.X)
			}
			if runs && slices.Contains(runners, callee) && len(args) > 1 {
				found = append(found, names(args[0], table)...)
			} else if passesT {
				add(f.packaged[callee], table)
			}
			return true
		})
	}
	add(function, nil)
	return found
}

func isT(e ast.Expr) bool {
	name, ok := e.(*ast.Ident)
	return ok && name.Name == "t"
}

// tableNames returns the strings that may name subtests in code or a variable: keys of maps, names or
// first fields of structs, and lists, also of the package's variables that it ranges over.
func (f testFile) tableNames(n ast.Node) []string {
	var found []string
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.RangeStmt:
			if table, ok := n.X.(*ast.Ident); ok && f.tables[table.Name] != nil {
				found = append(found, f.tableNames(f.tables[table.Name])...)
			}
		case *ast.CompositeLit:
			list, isList := n.Type.(*ast.ArrayType)
			if isList {
				_, isList = list.Elt.(*ast.Ident)
			}
			for i, element := range n.Elts {
				if pair, ok := element.(*ast.KeyValueExpr); ok {
					if key, isField := pair.Key.(*ast.Ident); isField && key.Name == "name" {
						element = pair.Value
					} else {
						element = pair.Key
					}
				} else if i > 0 && !isList {
					break
				}
				if text, ok := constant(element); ok {
					found = append(found, text)
				}
			}
		}
		return true
	})
	return found
}

// names returns the values that an expression may have, up to the first part that varies, such as a TLS
// version in a table's row.
func names(e ast.Expr, table []string) []string {
	if text, ok := constant(e); ok {
		return []string{text}
	}
	sum, ok := e.(*ast.BinaryExpr)
	if !ok || sum.Op != token.ADD {
		return table
	}
	end, ok := constant(sum.Y)
	var found []string
	for _, begin := range names(sum.X, table) {
		if ok {
			found = append(found, begin+end)
		} else {
			found = append(found, strings.TrimSuffix(begin, ", "))
		}
	}
	return found
}

// has tells whether a test has a subtest of a name, which may be that of a subtest's subtest.
func has(subtests []string, name string) bool {
	if slices.ContainsFunc(subtests, func(s string) bool { return asSubtest(s) == name }) {
		return true
	}
	return slices.ContainsFunc(subtests, func(s string) bool {
		rest, ok := strings.CutPrefix(name, asSubtest(s)+"/")
		return ok && has(subtests, rest)
	})
}

// asSubtest returns a name as go test shows it.
func asSubtest(name string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || r == '\t' || r == '\n' {
			return '_'
		}
		return r
	}, name)
}

// A claim is a row of the table in docs/security.md: what is claimed, and the tests.
var claimRow = regexp.MustCompile(`^\|(.+)\|(.+)\|$`)

// TestEachClaimNamesItsTest checks that each claim of the security document names the file and the
// subtest that verify it. A test without subtests is named itself.
func TestEachClaimNamesItsTest(t *testing.T) {
	files := testFiles(t)
	page := pages(t)["docs/security.md"]
	_, section, ok := strings.Cut(page, "\n## Claims and their tests\n")
	if !ok {
		t.Fatal("docs/security.md has no claims")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	claims := 0
	for _, text := range strings.Split(section, "\n") {
		row := claimRow.FindStringSubmatch(text)
		if row == nil || row[1] == "claim" || strings.HasPrefix(row[1], "---") {
			continue
		}
		claims++
		tests, file := 0, ""
		for _, q := range quoted.FindAllString(row[2], -1) {
			q = strings.Trim(q, "`")
			if strings.HasSuffix(q, "_test.go") {
				file = q
				continue
			}
			tests++
			if problem := unverified(files, file, q); problem != "" {
				t.Errorf("%q: %s", row[1], problem)
			}
		}
		if tests == 0 {
			t.Errorf("%q names no test", row[1])
		}
	}
	if claims < 30 {
		t.Errorf("found only %d claims", claims)
	}
}

// unverified returns why file does not contain the test TEST[/SUBTEST].
func unverified(files map[string]testFile, file, reference string) string {
	test, subtest, _ := strings.Cut(reference, "/")
	f, ok := files[file]
	if !ok {
		return strconv.Quote(file) + " does not exist"
	}
	function := f.functions[test]
	if function == nil {
		return file + " has no " + test
	}
	subtests := f.subtests(function)
	switch {
	case subtest == "" && len(subtests) > 0 && !strings.HasPrefix(test, "Fuzz"):
		return file + ": " + test + " has subtests: name one"
	case subtest != "" && !has(subtests, subtest):
		return file + ": " + test + " has no subtest " + subtest
	}
	return ""
}

// A reference to a renamed subtest is a failure, also if the previous name is part of the new one.
func TestClaimsNameExistingSubtests(t *testing.T) {
	files := testFiles(t)
	const file = "docs/claims_test.go"
	for name := range map[string]bool{"found": true, "found too": true} {
		t.Run(name+" in a table", func(*testing.T) {})
	}
	t.Run("outer", func(t *testing.T) { t.Run("inner", func(*testing.T) {}) })
	const test = "TestClaimsNameExistingSubtests"
	for _, reference := range []string{"found_in_a_table", "found_too_in_a_table", "outer", "outer/inner"} {
		if problem := unverified(files, file, test+"/"+reference); problem != "" {
			t.Error(problem)
		}
	}
	for _, reference := range []string{test, test + "/found", test + "/found_in", test + "/oute", test + "/outer/inner_one",
		test + "/inner/else", "TestClaims", "TestEachClaimNamesItsTest/inner"} {
		if unverified(files, file, reference) == "" {
			t.Errorf("%s is accepted", reference)
		}
	}
	if unverified(files, "docs/docs_test.go", test+"/outer") == "" || unverified(files, "x_test.go", test) == "" {
		t.Error("a test in another file is accepted")
	}
}
