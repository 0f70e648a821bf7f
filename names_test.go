package largesse_test

import (
	"errors"
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

// symbols is what the packages of one name declare.
type symbols struct {
	declared map[string]bool                // functions, types, constants, variables
	members  map[string]map[string]ast.Expr // by type: methods (nil) and fields (their types)
}

// collect reads the symbols of every package, by package name.
func collect(files []sourceFile) map[string]*symbols {
	all := map[string]*symbols{}
	for _, file := range files {
		if file.test() {
			continue
		}
		pkg := file.ast.Name.Name
		if all[pkg] == nil {
			all[pkg] = &symbols{declared: map[string]bool{}, members: map[string]map[string]ast.Expr{}}
		}
		for _, decl := range file.ast.Decls {
			all[pkg].add(decl)
		}
	}
	return all
}

func (s *symbols) add(decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		if decl.Recv == nil {
			s.declared[decl.Name.Name] = true
			return
		}
		s.addMember(typeName(decl.Recv.List[0].Type), decl.Name.Name, nil)
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				s.declared[spec.Name.Name] = true
				s.addFields(spec.Name.Name, spec.Type)
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					s.declared[name.Name] = true
				}
			}
		}
	}
}

// addFields adds a struct's fields or an interface's methods. An embedded one
// counts under its own name.
func (s *symbols) addFields(of string, expr ast.Expr) {
	var list *ast.FieldList
	switch expr := expr.(type) {
	case *ast.StructType:
		list = expr.Fields
	case *ast.InterfaceType:
		list = expr.Methods
	default:
		return
	}
	for _, field := range list.List {
		for _, name := range field.Names {
			s.addMember(of, name.Name, field.Type)
			if inner, ok := field.Type.(*ast.StructType); ok {
				s.addFields(of+"."+name.Name, inner)
			}
		}
		if len(field.Names) == 0 {
			s.addMember(of, typeName(field.Type), field.Type)
		}
	}
}

func (s *symbols) addMember(of, name string, expr ast.Expr) {
	if s.members[of] == nil {
		s.members[of] = map[string]ast.Expr{}
	}
	s.members[of][name] = expr
}

// typeName strips pointers, slices, type parameters and package names.
func typeName(expr ast.Expr) string {
	switch expr := expr.(type) {
	case *ast.Ident:
		return expr.Name
	case *ast.StarExpr:
		return typeName(expr.X)
	case *ast.ArrayType:
		return typeName(expr.Elt)
	case *ast.IndexExpr:
		return typeName(expr.X)
	case *ast.IndexListExpr:
		return typeName(expr.X)
	case *ast.SelectorExpr:
		return expr.Sel.Name
	}
	return ""
}

// member follows a field or method of a type, through embedded types of the
// same package, and returns the type to go on from ("" for a method).
func (s *symbols) member(of, name string) (string, bool) {
	for depth, types := 0, []string{of}; depth < 4 && len(types) > 0; depth++ {
		var deeper []string
		for _, t := range types {
			if expr, ok := s.members[t][name]; ok {
				if _, inline := expr.(*ast.StructType); inline {
					return t + "." + name, true
				}
				return typeName(expr), true
			}
			for field, expr := range s.members[t] {
				if expr != nil && typeName(expr) == field {
					deeper = append(deeper, field)
				}
			}
		}
		types = deeper
	}
	return "", false
}

// missing says what of a dotted name does not exist; "" when all does.
func missing(all map[string]*symbols, name string) string {
	parts := strings.Split(name, ".")
	pkg := all[parts[0]]
	if pkg == nil {
		return "there is no package " + parts[0]
	}
	if len(parts) == 1 {
		return ""
	}
	if !pkg.declared[parts[1]] {
		return fmt.Sprintf("package %s declares no %s", parts[0], parts[1])
	}
	at := parts[1]
	for _, part := range parts[2:] {
		next, ok := pkg.member(at, part)
		if !ok {
			return fmt.Sprintf("%s has no field or method %s", at, part)
		}
		at = next
	}
	return ""
}

// goName is a Go name in backticks, and the names in braces that may follow:
// `pool.Manager` {Start, Stop}.
var goName = regexp.MustCompile("`([^`]+)`(?:\\s*\\{([^}]*)\\})?")

// missingInCell checks each name in backticks of a table's cell, and says how
// many there were.
func missingInCell(all map[string]*symbols, cell string) (wrong []string, names int) {
	for _, match := range goName.FindAllStringSubmatch(cell, -1) {
		name, _, _ := strings.Cut(match[1], "(") // arguments are for the reader
		names++
		if strings.ContainsAny(name, "/") || strings.HasSuffix(name, ".go") || strings.HasSuffix(name, ".lua") {
			if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
				wrong = append(wrong, fmt.Sprintf("`%s`: there is no such file", name))
			} else if err != nil {
				wrong = append(wrong, fmt.Sprintf("`%s`: %v", name, err))
			}
			continue
		}
		list := []string{name}
		for member := range strings.SplitSeq(match[2], ",") {
			if member = strings.TrimSpace(member); member != "" && member != "…" {
				list = append(list, name+"."+member)
			}
		}
		for _, full := range list {
			if why := missing(all, full); why != "" {
				wrong = append(wrong, fmt.Sprintf("`%s`: %s", full, why))
			}
		}
	}
	return wrong, names
}

// TestNamesExist holds docs/names.md to the code. A cell that begins with
// "planned:" announces what is to come and is not looked up.
func TestNamesExist(t *testing.T) {
	t.Parallel()
	const page = "docs/names.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatalf("reading the page of names: %v", err)
	}
	all := collect(tree(t))
	rows, names := 0, 0
	for i, line := range strings.Split(string(text), "\n") {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| original |") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 3 {
			t.Errorf("%s:%d: a row has the cells original, Go, driver or file; this one has %d", page, i+1, len(cells))
			continue
		}
		rows++
		for _, cell := range cells[1:] {
			if strings.HasPrefix(strings.TrimSpace(cell), "planned:") {
				continue
			}
			wrong, n := missingInCell(all, cell)
			names += n
			for _, w := range wrong {
				t.Errorf("%s:%d: %s: put the name right here, or write \"planned:\" before it", page, i+1, w)
			}
		}
	}
	if rows < 20 || names < rows {
		t.Errorf("%s has %d rows with %d Go names: it was not read as it is meant", page, rows, names)
	}
}

// The checker is checked, so that a slip in it does not let every name pass.
func TestNameChecker(t *testing.T) {
	t.Parallel()
	all := collect(tree(t))
	good := []string{
		"`reward`", "`reward.MaxRetries`", "`reward.ParseState(s)`", "`service.Base` {Start, Stop}", "`reward.Summary.Counts.Payouts`",
		"`reward.Summary.Payouts`", "`queue.Queue`", "`reward.Ready`, `reward.Counts` {Total, Undecided, Payouts, …}", "`internal/reward/reward.go`",
	}
	for _, cell := range good {
		if wrong, n := missingInCell(all, cell); len(wrong) > 0 || n == 0 {
			t.Errorf("%s: %d names, complaints %v", cell, n, wrong)
		}
	}
	bad := []string{
		"`nowhere`", "`reward.Nothing`", "`service.Base` {Start, Leap}", "`reward.Counts.Nothing`", "`internal/reward/nothing.go`", "`reward.State.Payouts`",
	}
	for _, cell := range bad {
		if wrong, _ := missingInCell(all, cell); len(wrong) != 1 {
			t.Errorf("%s: complaints %v, want one", cell, wrong)
		}
	}
}
