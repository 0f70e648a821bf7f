package house

import (
	"go/ast"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

const propertiesPage = "docs/dev/guarantees.md"

var (
	// markedTest is a test and the mark of its tier.
	markedTest = regexp.MustCompile("`?\\b(Test[A-Z]\\w+)`?(?: \\*(ci|nightly)\\*)?")
	// namedPart is a test, a part of a suite, or a rule of a model: it has a capital
	// letter after a small one.
	namedPart = regexp.MustCompile(`\b[A-Za-z]*[a-z][A-Z]\w*\b`)
)

// tableRow is a line of a table on a page.
type tableRow struct {
	line int
	text string
}

// tableRows returns the rows of all tables of a page, without their heads.
func tableRows(page string) []tableRow {
	var rows []tableRow
	lines := strings.Split(page, "\n")
	for i, line := range lines[:len(lines)-1] {
		if strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "|---") && !strings.HasPrefix(lines[i+1], "|---") {
			rows = append(rows, tableRow{i + 1, line})
		}
	}
	return rows
}

// TestPropertiesHaveTests checks that docs/dev/guarantees.md marks the tier of every test
// that it names, and that the tests, parts of suites and rules of models which it and
// docs/dev/invariants.md name exist.
func TestPropertiesHaveTests(t *testing.T) {
	t.Parallel()
	tiers, known := map[string]map[string]bool{}, map[string]bool{}
	for _, file := range tree(t) {
		tier := file.tag()
		ast.Inspect(file.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				known[n.Name.Name] = true
				if file.test() && n.Recv == nil && strings.HasPrefix(n.Name.Name, "Test") {
					if tiers[n.Name.Name] == nil {
						tiers[n.Name.Name] = map[string]bool{}
					}
					tiers[n.Name.Name][tier] = true
				}
			case *ast.Field:
				for _, name := range n.Names {
					known[name.Name] = true
				}
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil {
					known[text] = true
				}
			}
			return true
		})
	}
	for _, page := range []string{propertiesPage, "docs/dev/invariants.md"} {
		text := fixture.Must(os.ReadFile(page))(t)
		for _, row := range tableRows(string(text)) {
			i, line, cells := row.line, row.text, strings.Split(strings.Trim(row.text, "|"), "|")
			proof := cells[len(cells)-1]
			if page == propertiesPage {
				proof = strings.Join(cells[1:], "|")
				for _, match := range markedTest.FindAllStringSubmatch(line, -1) {
					if has := tiers[match[1]]; has != nil && !has[match[2]] {
						t.Errorf("%s:%d: the mark %q of %s is not the tier of its file", page, i, match[2], match[1])
					}
				}
			}
			names := namedPart.FindAllString(proof, -1)
			if len(names) == 0 && !strings.Contains(proof, "internal/") {
				t.Errorf("%s:%d: the row names no test", page, i)
			}
			for _, name := range names {
				if !known[name] {
					t.Errorf("%s:%d: there is no %s", page, i, name)
				}
			}
		}
	}
}

// TestPropertiesAreComplete checks that docs/dev/guarantees.md has a row for each promise
// and for each fault that the pages for users name.
func TestPropertiesAreComplete(t *testing.T) {
	t.Parallel()
	text := fixture.Must(os.ReadFile(propertiesPage))(t)
	for _, page := range []string{"docs/explanation/promises.md", "docs/guarantees.md"} {
		promises := fixture.Must(os.ReadFile(page))(t)
		for _, row := range tableRows(string(promises)) {
			property, _, _ := strings.Cut(row.text[1:], "|")
			if !strings.Contains(string(text), "\n|"+property+"|") {
				t.Errorf("%s:%d: %s has no row for %s", page, row.line, propertiesPage, property)
			}
		}
	}
}
