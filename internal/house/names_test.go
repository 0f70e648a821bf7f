package house

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/gate/redisgate"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/reward"
)

// symbols is what the packages of one name declare.
type symbols struct {
	declared map[string]bool // functions, types, constants, variables
	members  map[string]bool // methods and fields of all types
}

// collect reads the symbols of every package, by package name.
func collect(files []sourceFile) map[string]*symbols {
	all := map[string]*symbols{}
	for _, file := range files {
		if file.test() {
			continue
		}
		s := all[file.ast.Name.Name]
		if s == nil {
			s = &symbols{declared: map[string]bool{}, members: map[string]bool{}}
			all[file.ast.Name.Name] = s
		}
		for _, decl := range file.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			switch {
			case !ok:
			case fn.Recv == nil:
				s.declared[fn.Name.Name] = true
			default:
				s.members[fn.Name.Name] = true
			}
		}
		ast.Inspect(file.ast, func(n ast.Node) bool {
			var names []*ast.Ident
			into := s.declared
			switch n := n.(type) {
			case *ast.FuncDecl:
				return false // what it declares is its own
			case *ast.TypeSpec:
				names = []*ast.Ident{n.Name}
			case *ast.ValueSpec:
				names = n.Names
			case *ast.Field:
				names, into = n.Names, s.members
				if len(names) == 0 { // embedded
					s.members[embeddedName(n.Type)] = true
				}
			}
			for _, name := range names {
				into[name.Name] = true
			}
			return true
		})
	}
	return all
}

// embeddedName is the name that an embedded type gives its field.
func embeddedName(expr ast.Expr) string {
	switch expr := expr.(type) {
	case *ast.Ident:
		return expr.Name
	case *ast.StarExpr:
		return embeddedName(expr.X)
	case *ast.SelectorExpr:
		return expr.Sel.Name
	}
	return ""
}

// missing reports which part of a dotted name does not exist, or "". It looks for a method
// or field in all types of the package.
func missing(all map[string]*symbols, name string) string {
	parts := strings.Split(name, ".")
	pkg := all[parts[0]]
	if pkg == nil {
		return "there is no package " + parts[0]
	}
	for i, part := range parts[1:] {
		if i == 0 && !pkg.declared[part] {
			return fmt.Sprintf("package %s declares no %s", parts[0], part)
		}
		if i > 0 && !pkg.members[part] {
			return fmt.Sprintf("no type of package %s has a field or method %s", parts[0], part)
		}
	}
	return ""
}

// redisKeys returns the Redis keys that other systems may read, by the function
// that makes them. TestNamesAreComplete fails when keys.go has another one.
func redisKeys() map[string]string {
	const id = reward.TemplateID(42)
	stream := queue.Stream{Type: reward.Voucher, PromotionID: 12345}
	return map[string]string{
		"redisstream.StreamKey":     redisstream.StreamKey("", stream),
		"redisstream.ConsumerGroup": redisstream.ConsumerGroup("", stream),
		"redisgate.StockKey":        redisgate.StockKey("", id),
		"redisgate.CountKey":        redisgate.CountKey("", id),
		"redisgate.IssuedKey":       redisgate.IssuedKey("", id),
		"redisgate.LineKey":         redisgate.LineKey("", id),
		"redisgate.RequestsKey":     redisgate.RequestsKey("", id),
		"redisgate.OutcomesKey":     redisgate.OutcomesKey("", id),
		"redisgate.TemplateKey":     redisgate.TemplateKey("", id),
		"redisgate.LockKey":         redisgate.LockKey("", id),
	}
}

// nameWorld is what a page of names may refer to.
type nameWorld struct {
	symbols  map[string]*symbols
	settings map[string]bool
	keys     map[string]bool // Redis keys, and groups of streams
	tests    map[string]bool
	texts    map[string]bool // string literals of the code
	routes   map[string]bool // string literals of internal/api
}

func newNameWorld(files []sourceFile) *nameWorld {
	w := &nameWorld{
		symbols: collect(files), settings: map[string]bool{}, keys: map[string]bool{}, tests: map[string]bool{},
		texts: map[string]bool{}, routes: map[string]bool{},
	}
	for _, s := range config.Settings {
		w.settings[s.Name] = true
	}
	for _, key := range redisKeys() {
		w.keys[key] = true
	}
	for _, file := range files {
		if file.test() {
			for _, decl := range file.ast.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
					w.tests[fn.Name.Name] = true
				}
			}
			continue
		}
		ast.Inspect(file.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					w.texts[text] = true
					w.routes[text] = w.routes[text] || strings.HasPrefix(file.path, "internal/api/")
				}
			}
			return true
		})
	}
	return w
}

var (
	// goName is a name in backticks, and the members in braces that may follow:
	// `pool.Manager` {Start, Stop}.
	goName = regexp.MustCompile("`([^`]+)`(?:\\s*\\{([^}]*)\\})?")
	route  = regexp.MustCompile(`^(GET|POST|PUT|PATCH|DELETE) /v1(/\S*)$`)
	dotted = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+$`)
)

// wrongName reports what is wrong with a name in backticks, or "".
func (w *nameWorld) wrongName(name string) string {
	group, _, _ := strings.Cut(name, ".")
	switch {
	case strings.HasPrefix(name, `"`):
		if !w.texts[strings.Trim(name, `"`)] {
			return "no such text in the code"
		}
	case route.MatchString(name):
		if path := route.FindStringSubmatch(name)[2]; !w.routes[path] && !w.routes["/v1"+path] {
			return "no such route in internal/api"
		}
	case strings.Contains(name, ":"):
		if !w.keys[name] {
			return "no function of a keys.go returns this"
		}
	case strings.HasPrefix(name, "Test") && !strings.Contains(name, "."):
		if !w.tests[name] {
			return "there is no such test"
		}
	case strings.Contains(name, "/"), strings.HasSuffix(name, ".go"), strings.HasSuffix(name, ".md"):
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			return "there is no such file"
		} else if err != nil {
			return err.Error()
		}
	case dotted.MatchString(name) && slices.ContainsFunc(config.Settings, func(s config.Setting) bool { return strings.HasPrefix(s.Name, group+".") }):
		if !w.settings[name] {
			return "there is no such setting"
		}
	default:
		return missing(w.symbols, name)
	}
	return ""
}

// wrongInCell checks each name in backticks of a cell, and returns how many
// there were.
func (w *nameWorld) wrongInCell(cell string) (wrong []string, names int) {
	for _, match := range goName.FindAllStringSubmatch(cell, -1) {
		list := []string{match[1]}
		for member := range strings.SplitSeq(match[2], ",") {
			if member = strings.TrimSpace(member); member != "" {
				list = append(list, match[1]+"."+member)
			}
		}
		names++
		for _, full := range list {
			if why := w.wrongName(full); why != "" {
				wrong = append(wrong, fmt.Sprintf("`%s`: %s", full, why))
			}
		}
	}
	return wrong, names
}

const namesPage = "docs/dev/names.md"

// nameRow is a row of the page: the original names, the names here, the files.
type nameRow struct {
	line  int
	cells [3]string
}

// nameRows returns the rows of the page's tables.
func nameRows(t *testing.T) []nameRow {
	t.Helper()
	text, err := os.ReadFile(namesPage)
	if err != nil {
		t.Fatalf("reading the page of names: %v", err)
	}
	var rows []nameRow
	for i, line := range strings.Split(string(text), "\n") {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| original |") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 3 {
			t.Errorf("%s:%d: a row has the cells original, here, file; this one has %d", namesPage, i+1, len(cells))
			continue
		}
		rows = append(rows, nameRow{i + 1, [3]string(cells)})
	}
	return rows
}

// TestNamesExist checks that the code has every name, setting, key, test, text
// and file that docs/dev/names.md refers to.
func TestNamesExist(t *testing.T) {
	t.Parallel()
	w := newNameWorld(tree(t))
	rows, names := nameRows(t), 0
	for _, row := range rows {
		for _, cell := range row.cells[1:] {
			wrong, n := w.wrongInCell(cell)
			names += n
			for _, why := range wrong {
				t.Errorf("%s:%d: %s", namesPage, row.line, why)
			}
		}
	}
	if len(rows) < 90 || names < len(rows) {
		t.Errorf("%s has %d rows with %d names: it was not read as it is meant", namesPage, len(rows), names)
	}
}

// hasName reports whether a text has a name as a whole: names within longer
// names do not count.
func hasName(text, name string) bool {
	inName := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_:-", r) }
	for from := 0; ; {
		at := strings.Index(text[from:], name)
		if at < 0 {
			return false
		}
		at += from
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		after, _ := utf8.DecodeRuneInString(text[at+len(name):])
		if !inName(before) && !inName(after) {
			return true
		}
		from = at + 1
	}
}

// TestNamesAreComplete checks that docs/dev/names.md has a row for every name of
// the original designs, every topic and group, every Redis key that other
// systems may read, and every setting of the streams and the coupons.
func TestNamesAreComplete(t *testing.T) {
	t.Parallel()
	var originals, here strings.Builder
	for _, row := range nameRows(t) {
		originals.WriteString(row.cells[0] + "\n")
		here.WriteString(row.cells[1] + "\n")
	}
	const list = "testdata/original-names.txt"
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatalf("reading the original names: %v", err)
	}
	names := 0
	for name := range strings.Lines(string(text)) {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		names++
		if !hasName(originals.String(), name) {
			t.Errorf("%s has no row for the original name %s of %s", namesPage, name, list)
		}
	}
	if names < 150 {
		t.Errorf("%s has only %d names", list, names)
	}

	keys := redisKeys()
	for _, file := range tree(t) {
		switch file.path {
		case "internal/bus/bus.go":
			for name := range stringConstants(file) {
				if (strings.HasPrefix(name, "Topic") || strings.HasPrefix(name, "Group")) && !hasName(here.String(), "bus."+name) {
					t.Errorf("%s has no row for bus.%s", namesPage, name)
				}
			}
		case "internal/queue/redisstream/keys.go", "internal/gate/redisgate/keys.go":
			for _, decl := range file.ast.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Name.IsExported() && keys[file.ast.Name.Name+"."+fn.Name.Name] == "" {
					t.Errorf("%s: add the key of %s to redisKeys", file.path, fn.Name.Name)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		if !strings.Contains(here.String(), "`"+name+"`") || !strings.Contains(here.String(), "`"+keys[name]+"`") {
			t.Errorf("%s has no row with %s and its key %s", namesPage, name, keys[name])
		}
	}
	for _, s := range config.Settings {
		if (strings.HasPrefix(s.Name, "redis.stream.") || strings.HasPrefix(s.Name, "coupon.")) && !hasName(here.String(), s.Name) {
			t.Errorf("%s has no row for the setting %s", namesPage, s.Name)
		}
	}
}

// stringConstants returns the string constants of a file, by name.
func stringConstants(file sourceFile) map[string]string {
	all := map[string]string{}
	for _, decl := range file.ast.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.CONST {
			continue
		}
		for _, spec := range gen.Specs {
			value := spec.(*ast.ValueSpec)
			for i, name := range value.Names {
				if i < len(value.Values) {
					if lit, ok := value.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
						all[name.Name], _ = strconv.Unquote(lit.Value)
					}
				}
			}
		}
	}
	return all
}

// The checker is checked, so that a slip in it does not let every name pass.
func TestNameChecker(t *testing.T) {
	t.Parallel()
	w := newNameWorld(tree(t))
	for cell, complaints := range map[string]int{
		"`service.Base` {Start, Stop}, `reward.Summary.Counts`, `internal/reward/reward.go`, `redis.stream.max-len`, `coupon:{42}:stock`, `TestNameChecker`, `POST /v1/promotions`": 0,
		"`nowhere`": 1, "`reward.Nothing`": 1, "`service.Base` {Start, Leap}": 1, "`internal/reward/nothing.go`": 1, "`redis.stream.nothing`": 1,
		"`coupon:{42}:nothing`": 1, "`TestNothingAtAll`": 1, "`POST /v1/nothing`": 1,
	} {
		if wrong, _ := w.wrongInCell(cell); len(wrong) != complaints {
			t.Errorf("%s: complaints %v, want %d", cell, wrong, complaints)
		}
	}
}

var (
	inCode     = regexp.MustCompile("`([^`]+)`")
	exported   = regexp.MustCompile(`^[a-z]+\.[A-Z]\w*(\.\w+)*$`)
	ourPath    = regexp.MustCompile(`^(internal|cmd|client|docs|examples|scripts)/[\w./-]+$`)
	testByName = regexp.MustCompile(`\b(?:Test|Benchmark|Fuzz)[A-Z]\w+`)
)

// staleInPage returns the Go names, files and tests of a line of a page that do
// not exist. The names of other modules are not checked.
func (w *nameWorld) staleInPage(line string) []string {
	var wrong []string
	for _, match := range inCode.FindAllStringSubmatch(line, -1) {
		name := strings.TrimSuffix(match[1], "()")
		pkg, _, _ := strings.Cut(name, ".")
		switch {
		case exported.MatchString(name) && w.symbols[pkg] != nil, ourPath.MatchString(name):
			if why := w.wrongName(name); why != "" {
				wrong = append(wrong, fmt.Sprintf("`%s`: %s", name, why))
			}
		}
	}
	for _, name := range testByName.FindAllString(line, -1) {
		if !w.tests[name] && !w.symbolsHave(name) {
			wrong = append(wrong, name+": there is no such test")
		}
	}
	return wrong
}

// symbolsHave reports whether a package declares a function of this name, as
// the packages of conformance suites do.
func (w *nameWorld) symbolsHave(name string) bool {
	for _, s := range w.symbols {
		if s.declared[name] {
			return true
		}
	}
	return false
}

// TestPagesNameWhatExists checks the Go names, files and tests on all pages.
func TestPagesNameWhatExists(t *testing.T) {
	t.Parallel()
	w := newNameWorld(tree(t))
	proseFiles(t, func(page string, text []byte) {
		if !strings.HasSuffix(page, ".md") || page == "CHANGELOG.md" {
			return
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, wrong := range w.staleInPage(line) {
				t.Errorf("%s:%d: %s", page, i+1, wrong)
			}
		}
	})
}
