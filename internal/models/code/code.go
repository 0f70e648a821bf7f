// Package code finds the functions that the steps of models name.
package code

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// Names knows the names that the packages of a folder declare.
type Names struct {
	root     string
	declared map[string]map[string]bool // by package
}

// In returns the names of the packages in a folder.
func In(root string) *Names { return &Names{root: root, declared: map[string]map[string]bool{}} }

// Check returns an error for each of the names that does not exist. A name is a function
// (package.Function), a method or field (package.Type.Member), or the path of a file.
func (n *Names) Check(names string) (missing []error) {
	for _, name := range strings.Fields(names) {
		if strings.Contains(name, "/") {
			if _, err := os.Stat(filepath.Join(n.root, name)); err != nil {
				missing = append(missing, err)
			}
			continue
		}
		pkg, symbol, _ := strings.Cut(name, ".")
		if n.declared[pkg] == nil {
			declared, err := declarations(filepath.Join(n.root, pkg))
			if err != nil {
				return append(missing, err)
			}
			n.declared[pkg] = declared
		}
		if !n.declared[pkg][symbol] {
			missing = append(missing, fmt.Errorf("%s has no %s: name the code that takes this step now", pkg, symbol))
		}
	}
	return missing
}

// declarations returns the names that a package declares: F, T, T.Method, T.Field.
func declarations(dir string) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no source", dir)
	}
	names := map[string]bool{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
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
	return names, nil
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
