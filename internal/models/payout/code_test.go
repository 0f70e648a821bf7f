package payout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStepsNameCode requires that every function, method, type and script that steps
// names exists, and that every step of the code names some.
func TestStepsNameCode(t *testing.T) {
	t.Parallel()
	declared := map[string]map[string]bool{} // by package
	for st, about := range steps {
		if about.text == "" {
			t.Errorf("step %d has no text", st)
		}
		if inCode := step(st) < firstOutside; inCode != (about.code != "") {
			t.Errorf("step %q names code %q", about.text, about.code)
		}
		for _, name := range strings.Fields(about.code) {
			if strings.Contains(name, "/") {
				if _, err := os.Stat(filepath.Join("../..", name)); err != nil {
					t.Errorf("step %q: %v", about.text, err)
				}
				continue
			}
			pkg, symbol, _ := strings.Cut(name, ".")
			if declared[pkg] == nil {
				declared[pkg] = declarations(t, filepath.Join("../..", pkg))
			}
			if !declared[pkg][symbol] {
				t.Errorf("step %q: internal/%s has no %s: name the code that takes this step now", about.text, pkg, symbol)
			}
		}
	}
}

// declarations returns the names that a package declares: F, T, T.Method, T.Field.
func declarations(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no source: %v", dir, err)
	}
	names := map[string]bool{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				name := decl.Name.Name
				if decl.Recv != nil {
					name = receiver(decl.Recv.List[0].Type) + "." + name
				}
				names[name] = true
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					declare(names, spec)
				}
			}
		}
	}
	return names
}

// declare adds the names of a type, with its members, or of constants and variables.
func declare(names map[string]bool, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			names[name.Name] = true
		}
	case *ast.TypeSpec:
		names[spec.Name.Name] = true
		var members *ast.FieldList
		switch of := spec.Type.(type) {
		case *ast.InterfaceType:
			members = of.Methods
		case *ast.StructType:
			members = of.Fields
		default:
			return
		}
		for _, member := range members.List {
			for _, name := range member.Names {
				names[spec.Name.Name+"."+name.Name] = true
			}
		}
	}
}

// receiver returns the name of a method's type.
func receiver(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return receiver(of.X)
	case *ast.IndexExpr:
		return receiver(of.X)
	case *ast.Ident:
		return of.Name
	}
	return ""
}
