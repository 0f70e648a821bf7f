package postgres

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestEveryStatementIsExplained checks that the functions statements and lists, whose plans
// TestPlans and TestPlansOutliveASmallTable look at, name every statement of this
// package.
func TestEveryStatementIsExplained(t *testing.T) {
	t.Parallel()
	files := fixture.Must(filepath.Glob("*.go"))(t)
	explained := map[string]bool{}
	var all []string
	for _, name := range files {
		file := fixture.Must(parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution))(t)
		switch {
		case name == "plans_test.go":
			namesIn(file, "statements", explained)
			namesIn(file, "lists", explained)
		case !strings.HasSuffix(name, "_test.go"):
			all = append(all, statementsIn(file)...)
		}
	}
	// standSQL is a part of others, and the others read no table of Largesse.
	all = slices.DeleteFunc(all, func(name string) bool { return slices.Contains([]string{"standSQL", "factsSQL", "sessionSQL"}, name) })
	if len(all) < 10 {
		t.Errorf("found only %d statements", len(all))
	}
	for _, name := range all {
		if !explained[name] {
			t.Errorf("the function statements in plans_test.go lacks %s: add it, so that its plan is checked", name)
		}
	}
}

// namesIn adds the names that a function of the file mentions.
func namesIn(file *ast.File, function string, names map[string]bool) {
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != function {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				names[id.Name] = true
			}
			return true
		})
	}
}

var statement = regexp.MustCompile("^[`\"]\\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\\s")

// statementsIn returns the constants and variables of the file whose text begins like
// a statement.
func statementsIn(file *ast.File) []string {
	var all []string
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range g.Specs {
			v, ok := s.(*ast.ValueSpec)
			if !ok {
				continue
			}
			for i, value := range v.Values {
				var first *ast.BasicLit
				ast.Inspect(value, func(n ast.Node) bool {
					if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && first == nil {
						first = lit
					}
					return first == nil
				})
				if first != nil && statement.MatchString(first.Value) {
					all = append(all, v.Names[i].Name)
				}
			}
		}
	}
	return all
}
