package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// mutant is one change of the code. Its exported fields are the output.
type mutant struct {
	File         string   `json:"file"` // relative to the module
	Line         int      `json:"line"`
	FunctionName string   `json:"function"`
	Before       string   `json:"before"`
	After        string   `json:"after"`
	Result       string   `json:"result"`
	Test         string   `json:"test,omitempty"`  // that failed
	Flaky        []string `json:"flaky,omitempty"` // tests that failed only once
	Seconds      float64  `json:"seconds"`

	pkg        *pkg
	function   *ast.FuncDecl
	start, end token.Pos
	text       string  // replaces start to end
	tests      []*test // execute the statement, fastest first
}

// key identifies a mutant when lines have moved.
func (m *mutant) key() string {
	return fmt.Sprintf("%s %s\n- %s\n+ %s", m.File, m.FunctionName, m.Before, m.After)
}

func (m *mutant) where() string { return fmt.Sprintf("%s:%d %s", m.File, m.Line, m.FunctionName) }

// pkg is a package whose code is mutated and whose tests run.
type pkg struct {
	path, dir, module string // module is the directory of the module
	names             []string
	fset              *token.FileSet
	files             []*ast.File
	sources           map[string][]byte
	info              *types.Info
	imports           types.Importer
	tested            bool // has test files
}

// load parses and type-checks packages with the export data of their dependencies.
func load(ctx context.Context, patterns []string) ([]*pkg, error) {
	type listed struct {
		ImportPath, Dir, Export                      string
		GoFiles, CgoFiles, TestGoFiles, XTestGoFiles []string
		DepOnly                                      bool
		Module                                       *struct{ Dir string }
	}
	output, err := goOutput(ctx, append([]string{"list", "-deps", "-export", "-json"}, patterns...)...)
	if err != nil {
		return nil, err
	}
	exports := map[string]string{}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	var packages []*pkg
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var l listed
		if err := decoder.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		exports[l.ImportPath] = l.Export
		if !l.DepOnly {
			packages = append(packages, &pkg{path: l.ImportPath, dir: l.Dir, module: l.Module.Dir, names: l.GoFiles,
				fset: fset, imports: imports, tested: len(l.TestGoFiles)+len(l.XTestGoFiles) > 0})
		}
	}
	for _, p := range packages {
		if err := p.parse(); err != nil {
			return nil, err
		}
	}
	return packages, nil
}

func (p *pkg) parse() error {
	p.sources = map[string][]byte{}
	for _, name := range p.names {
		path := filepath.Join(p.dir, name)
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(p.fset, path, source, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		p.sources[path] = source
		p.files = append(p.files, file)
	}
	p.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: p.imports}
	_, err := config.Check(p.path, p.fset, p.files, p.info)
	return err
}

// choose returns up to number mutants that compile and that a test executes, in the order of their ranks.
func choose(all []*mutant, seed uint64, number int) []*mutant {
	ranks := map[*mutant]uint64{}
	seen := map[string]int{}
	for _, m := range all {
		hash := fnv.New64a()
		fmt.Fprintf(hash, "%s %d", m.key(), seen[m.key()])
		seen[m.key()]++
		ranks[m] = rand.NewPCG(seed, hash.Sum64()).Uint64()
	}
	var sample []*mutant
	for _, m := range slices.SortedFunc(slices.Values(all), func(a, b *mutant) int {
		if ranks[a] < ranks[b] {
			return -1
		}
		return 1
	}) {
		if len(sample) == number {
			break
		}
		if len(m.tests) > 0 && m.compiles() {
			sample = append(sample, m)
		}
	}
	return sample
}

// path returns the mutated file.
func (m *mutant) path() string { return filepath.Join(m.pkg.module, m.File) }

// source returns the mutated file's content.
func (m *mutant) source() []byte {
	source := m.pkg.sources[m.path()]
	offset := func(pos token.Pos) int { return m.pkg.fset.Position(pos).Offset }
	return slices.Concat(source[:offset(m.start)], []byte(m.text), source[offset(m.end):])
}

// compiles reports whether the package with the mutant type-checks.
func (m *mutant) compiles() bool {
	file, err := parser.ParseFile(m.pkg.fset, m.path(), m.source(), parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	files := slices.Clone(m.pkg.files)
	files[slices.Index(m.pkg.names, filepath.Base(m.File))] = file
	config := types.Config{Importer: m.pkg.imports}
	_, err = config.Check(m.pkg.path, m.pkg.fset, files, nil)
	return err == nil
}

// operators are the replacements of binary operators, of which assignments such as += use the first.
var operators = map[token.Token][]token.Token{
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL}, token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL}, token.REM: {token.MUL},
	token.AND: {token.OR}, token.OR: {token.AND}, token.XOR: {token.AND}, token.AND_NOT: {token.AND},
	token.SHL: {token.SHR}, token.SHR: {token.SHL},
	token.ADD_ASSIGN: {token.SUB_ASSIGN}, token.SUB_ASSIGN: {token.ADD_ASSIGN}, token.MUL_ASSIGN: {token.QUO_ASSIGN},
	token.QUO_ASSIGN: {token.MUL_ASSIGN}, token.AND_ASSIGN: {token.OR_ASSIGN}, token.OR_ASSIGN: {token.AND_ASSIGN},
	token.INC: {token.DEC}, token.DEC: {token.INC},
	token.CONTINUE: {token.BREAK}, token.BREAK: {token.CONTINUE},
}

// mutants returns the package's possible mutants. Some do not compile.
func (p *pkg) mutants() []*mutant {
	var all []*mutant
	for _, file := range p.files {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Body != nil {
				all = append(all, p.function(f)...)
			}
		}
	}
	return all
}

func (p *pkg) function(f *ast.FuncDecl) []*mutant {
	var all []*mutant
	add := func(start, end token.Pos, text string) { all = append(all, p.mutant(f, start, end, text)) }
	swap := func(pos token.Pos, old token.Token) {
		for _, operator := range operators[old] {
			add(pos, pos+token.Pos(len(old.String())), operator.String())
		}
	}
	condition := func(e ast.Expr) {
		switch e.(type) {
		case *ast.BinaryExpr, *ast.UnaryExpr, nil: // have their own mutants
		default:
			add(e.Pos(), e.Pos(), "!")
		}
	}
	signatures := []*ast.FuncType{f.Type}
	var stack []ast.Node
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if n == nil {
			if _, ok := stack[len(stack)-1].(*ast.FuncLit); ok {
				signatures = signatures[:len(signatures)-1]
			}
			stack = stack[:len(stack)-1]
			return true
		}
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if t := p.info.Types[n]; !isString(t.Type) && !isDuration(t) {
				swap(n.OpPos, n.Op)
			}
		case *ast.UnaryExpr:
			if n.Op == token.NOT || n.Op == token.SUB {
				add(n.OpPos, n.X.Pos(), "")
			}
		case *ast.IncDecStmt:
			swap(n.TokPos, n.Tok)
		case *ast.BranchStmt:
			if n.Label == nil {
				swap(n.TokPos, n.Tok)
			}
		case *ast.AssignStmt:
			swap(n.TokPos, n.Tok)
			if n.Tok == token.ASSIGN && isStatement(stack) {
				add(n.Pos(), n.End(), "")
			}
		case *ast.ExprStmt:
			if p.isLog(n.X) {
				return false
			}
			add(n.Pos(), n.End(), "")
		case *ast.SendStmt:
			if isStatement(stack) {
				add(n.Pos(), n.End(), "")
			}
		case *ast.GoStmt:
			add(n.Pos(), n.End(), "")
		case *ast.DeferStmt:
			if !releases.MatchString(string(p.text(n.Call.Fun))) {
				add(n.Pos(), n.End(), "")
			}
		case *ast.IfStmt:
			condition(n.Cond)
		case *ast.ForStmt:
			condition(n.Cond)
		case *ast.ReturnStmt:
			if last := n.Results; returnsError(signatures[len(signatures)-1], len(last)) {
				if e := last[len(last)-1]; string(p.text(e)) != "nil" {
					add(e.Pos(), e.End(), "nil")
				}
			}
		case *ast.BasicLit:
			if n.Kind == token.INT && !isDuration(p.info.Types[n]) {
				if i, err := strconv.ParseInt(n.Value, 0, 64); err == nil {
					add(n.Pos(), n.End(), strconv.FormatInt(i+1, 10))
				}
			}
		case *ast.Ident:
			if object := p.info.Uses[n]; object == types.Universe.Lookup("true") {
				add(n.Pos(), n.End(), "false")
			} else if object == types.Universe.Lookup("false") {
				add(n.Pos(), n.End(), "true")
			}
		case *ast.CallExpr:
			if name, ok := n.Fun.(*ast.Ident); ok && name.Name == "make" {
				return false // capacities
			}
		case *ast.FuncLit:
			signatures = append(signatures, n.Type)
		}
		stack = append(stack, n)
		return true
	})
	return all
}

func (p *pkg) mutant(f *ast.FuncDecl, start, end token.Pos, text string) *mutant {
	from, to := p.fset.Position(start), p.fset.Position(end)
	name := f.Name.Name
	if f.Recv != nil {
		name = fmt.Sprintf("(%s).%s", p.text(f.Recv.List[0].Type), name)
	}
	file, err := filepath.Rel(p.module, from.Filename)
	if err != nil {
		panic(err) // the go command reports both as absolute paths
	}
	m := &mutant{File: filepath.ToSlash(file), Line: from.Line, FunctionName: name, pkg: p, function: f, start: start,
		end: end, text: text}
	source := p.sources[from.Filename]
	head := source[from.Offset-from.Column+1 : from.Offset]
	tail, _, _ := bytes.Cut(source[to.Offset:], []byte("\n"))
	m.Before = oneLine(string(head), string(source[from.Offset:to.Offset]), string(tail))
	m.After = oneLine(string(head), text, string(tail))
	return m
}

// text returns a node's source.
func (p *pkg) text(n ast.Node) []byte {
	from, to := p.fset.Position(n.Pos()), p.fset.Position(n.End())
	return p.sources[from.Filename][from.Offset:to.Offset]
}

// oneLine joins lines, so that a mutant has a key of three lines.
func oneLine(parts ...string) string {
	text := strings.Join(strings.Fields(strings.Join(parts, "")), " ")
	return cmp.Or(text, "(removed)")
}

// releases matches deferred calls that release resources, of which tests see nothing.
var releases = regexp.MustCompile(`(^|\.)(cancel|stop|Stop|Close)$`)

// isLog reports whether a statement only writes to the log.
func (p *pkg) isLog(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if t := p.info.Types[selector.X].Type; t != nil && strings.HasSuffix(t.String(), "ogger") {
		return true
	}
	object := p.info.Uses[selector.Sel]
	return object != nil && object.Pkg() != nil && object.Pkg().Path() == "log/slog"
}

// isStatement reports whether the parent is a list of statements, of which one can be removed.
func isStatement(stack []ast.Node) bool {
	if len(stack) == 0 {
		return false
	}
	switch stack[len(stack)-1].(type) {
	case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause:
		return true
	}
	return false
}

func isString(t types.Type) bool {
	if t == nil {
		return false
	}
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsString != 0
}

// isDuration reports whether an expression is a constant duration. A slightly longer one is no defect.
func isDuration(t types.TypeAndValue) bool {
	return t.Value != nil && t.Type.String() == "time.Duration"
}

// returnsError reports whether a return statement with this number of expressions returns an error.
func returnsError(signature *ast.FuncType, expressions int) bool {
	if signature.Results.NumFields() != expressions || expressions == 0 {
		return false
	}
	name, ok := signature.Results.List[len(signature.Results.List)-1].Type.(*ast.Ident)
	return ok && name.Name == "error"
}
