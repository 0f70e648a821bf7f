package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"

	"github.com/largesse/largesse/internal/lab/fleet"
)

// testFile describes a file of tests.
type testFile struct {
	pkg, path string
	functions []string // Test…, Fuzz… and Example…
	load      bool     // needs the build tag load
}

// testFiles reads every file of tests of the module, including those with the
// build tags servers and load.
func testFiles(ctx context.Context, root string) ([]testFile, error) {
	text, err := fleet.Output(ctx, root, nil, "go", "list", "-e", "-json=Dir,ImportPath,TestGoFiles,XTestGoFiles", "-tags", "servers load", "./...")
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, text)
	}
	var packages []listedPackage
	for decoder := json.NewDecoder(bytes.NewReader([]byte(text))); decoder.More(); {
		var p listedPackage
		if err := decoder.Decode(&p); err != nil {
			return nil, fmt.Errorf("reading the output of go list: %w\n%s", err, fleet.Tail(text, 20))
		}
		packages = append(packages, p)
	}
	var files []testFile
	for _, p := range packages {
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			f := testFile{pkg: p.ImportPath, path: filepath.Join(p.Dir, name)}
			if err := f.read(); err != nil {
				return nil, fmt.Errorf("reading %s: %w", f.path, err)
			}
			files = append(files, f)
		}
	}
	return files, nil
}

// listedPackage is the output of `go list -json`.
type listedPackage struct {
	Dir          string
	ImportPath   string
	TestGoFiles  []string
	XTestGoFiles []string
}

func (f *testFile) read() error {
	file, err := parser.ParseFile(token.NewFileSet(), f.path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	f.functions = testFunctions(file)
	for _, group := range file.Comments {
		for _, c := range group.List {
			if group.Pos() < file.Package && constraint.IsGoBuild(c.Text) {
				expr, err := constraint.Parse(c.Text)
				if err != nil {
					return err
				}
				f.load = !expr.Eval(func(tag string) bool { return tag != "load" })
			}
		}
	}
	return nil
}

// testFunctions returns the functions of a file that `go test` runs.
func testFunctions(file *ast.File) []string {
	var names []string
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv != nil || f.Name.Name == "TestMain" {
			continue
		}
		for _, prefix := range []string{"Test", "Fuzz", "Example"} {
			if strings.HasPrefix(f.Name.Name, prefix) {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}
