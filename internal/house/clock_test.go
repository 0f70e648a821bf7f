package house

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/constant"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// shortestTimeout is the shortest limit of a wait that a busy machine cannot exceed.
const shortestTimeout = 30 * time.Second

// units are the durations that package time names.
var units = map[string]time.Duration{
	"Nanosecond": time.Nanosecond, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond,
	"Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
}

// timeouts lists the functions that wait no longer than a duration, with the index of
// that argument.
var timeouts = map[string]int{
	"time.After": 0, "time.NewTimer": 0, "time.AfterFunc": 0, "time.Tick": 0, "time.NewTicker": 0, "context.WithTimeout": 1, "context.WithTimeoutCause": 1,
}

// clockRule finds what makes the outcome of a test depend on how busy the machine is.
type clockRule struct {
	constants map[string]ast.Expr // of the package, by name
	elapsed   map[string]bool     // variables that hold what time.Since returned
	wrong     func(at token.Pos, what string)
}

// tag returns the build tag of a file, or "".
func (f sourceFile) tag() string {
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			if constraint.IsGoBuild(c.Text) {
				return strings.TrimSpace(strings.TrimPrefix(c.Text, "//go:build"))
			}
		}
	}
	return ""
}

// watched reports whether the clock rule applies to a file: it belongs to the tests or
// suites of `make test` or `.ci/run`, and its tests do not run on fake time, by the package
// synctest or by one of helpers.
func (f sourceFile) watched(t *testing.T, helpers map[string]bool) bool {
	if !f.test() && !isSuite(f.room()) || f.tag() == "nightly" || slices.Contains(f.importPaths(t), "testing/synctest") {
		return false
	}
	onFakeTime := false
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			name, ok := call.Fun.(*ast.Ident)
			onFakeTime = onFakeTime || selector(call.Fun) == "fixture.OnFakeTime" || ok && helpers[f.room()+"."+name.Name]
		}
		return !onFakeTime
	})
	return !onFakeTime
}

// fakeTimeHelpers adds the functions of a file that run a test on fake time, by package and
// name.
func (f sourceFile) fakeTimeHelpers(into map[string]bool) {
	for _, decl := range f.ast.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Recv != nil {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && selector(call.Fun) == "synctest.Test" {
				into[f.room()+"."+fn.Name.Name] = true
			}
			return true
		})
	}
}

func selector(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return x.Name + "." + s.Sel.Name
}

// duration evaluates a constant duration.
func (c *clockRule) duration(e ast.Expr) (d time.Duration, known bool) {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return c.duration(e.X)
	case *ast.BasicLit:
		v, exact := constant.Int64Val(constant.ToInt(constant.MakeFromLiteral(e.Value, e.Kind, 0)))
		return time.Duration(v), exact
	case *ast.Ident:
		if value, ok := c.constants[e.Name]; ok {
			return c.duration(value)
		}
	case *ast.SelectorExpr:
		name, ok := strings.CutPrefix(selector(e), "time.")
		d, known = units[name]
		return d, ok && known
	case *ast.BinaryExpr:
		x, okX := c.duration(e.X)
		y, okY := c.duration(e.Y)
		switch {
		case !okX || !okY:
		case e.Op == token.MUL:
			return x * y, true
		case e.Op == token.QUO && y != 0:
			return x / y, true
		case e.Op == token.ADD:
			return x + y, true
		}
	}
	return 0, false
}

// measured reports whether an expression is a duration that the test has measured.
func (c *clockRule) measured(e ast.Expr) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			found = found || selector(n.Fun) == "time.Since"
		case *ast.Ident:
			found = found || c.elapsed[n.Name]
		}
		return !found
	})
	return found
}

func (c *clockRule) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		c.elapsed = map[string]bool{}
	case *ast.AssignStmt:
		if len(n.Lhs) == 1 && len(n.Rhs) == 1 {
			if name, ok := n.Lhs[0].(*ast.Ident); ok && c.measured(n.Rhs[0]) {
				c.elapsed[name.Name] = true
			}
		}
	case *ast.BinaryExpr:
		if slices.Contains([]token.Token{token.LSS, token.GTR, token.LEQ, token.GEQ}, n.Op) && (c.measured(n.X) || c.measured(n.Y)) {
			c.wrong(n.Pos(), "compares a measured time: count something instead, use fake time, or move the test to the nightly tier")
		}
	case *ast.CallExpr:
		name := selector(n.Fun)
		if name == "time.Sleep" {
			c.wrong(n.Pos(), "calls time.Sleep: wait for a state with fixture.Until or for a signal, or use fake time")
		}
		if at, ok := timeouts[name]; ok && at < len(n.Args) {
			if d, known := c.duration(n.Args[at]); known && d < shortestTimeout {
				c.wrong(n.Pos(), fmt.Sprintf("%s ends after %v: a busy machine may need %v (fixture.Patience is longer)", name, d, shortestTimeout))
			}
		}
	}
	return true
}

// checkClock applies the rule to a file.
func checkClock(f sourceFile, constants map[string]ast.Expr, wrong func(at token.Pos, what string)) {
	rule := &clockRule{constants: constants, elapsed: map[string]bool{}, wrong: wrong}
	ast.Inspect(f.ast, rule.visit)
}

// constantsOf returns the constants of a file by name.
func constantsOf(file *ast.File, into map[string]ast.Expr) {
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			if i < len(spec.Values) {
				into[name.Name] = spec.Values[i]
			}
		}
		return true
	})
}

// TestNoTestDependsOnTheClock keeps the tests of `make test` and `.ci/run` independent of
// how busy the machine is.
func TestNoTestDependsOnTheClock(t *testing.T) {
	t.Parallel()
	constants, helpers := map[string]map[string]ast.Expr{}, map[string]bool{}
	for _, f := range tree(t) {
		f.fakeTimeHelpers(helpers)
		if constants[f.room()] == nil {
			constants[f.room()] = map[string]ast.Expr{}
		}
		constantsOf(f.ast, constants[f.room()])
	}
	watched := 0
	for _, f := range tree(t) {
		if !f.watched(t, helpers) {
			continue
		}
		watched++
		checkClock(f, constants[f.room()], func(at token.Pos, what string) {
			t.Errorf("%s:%d: %s", f.path, f.set.Position(at).Line, what)
		})
	}
	if watched < 100 {
		t.Errorf("only %d files of tests were read", watched)
	}
}

// TestTiersHaveTheirNames keeps the tests of the nightly tier apart from those that
// are compiled with them.
func TestTiersHaveTheirNames(t *testing.T) {
	t.Parallel()
	for _, f := range tree(t) {
		if !f.test() {
			continue
		}
		nightly := f.tag() == "nightly"
		if nightly != strings.HasSuffix(f.path, "_nightly_test.go") {
			t.Errorf("%s: a file with the build tag nightly is named …_nightly_test.go, and no other", f.path)
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") && fn.Name.Name != "TestMain" && nightly != strings.HasPrefix(fn.Name.Name, "TestNightly") {
				t.Errorf("%s: %s: a test of the nightly tier is named TestNightly…, and no other", f.path, fn.Name.Name)
			}
		}
	}
}

func TestClockRule(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int{
		`time.Sleep(time.Millisecond)`:                                                                      1,
		`select { case <-time.After(5 * time.Second): }`:                                                    1,
		`select { case <-time.After(patience): }`:                                                           1,
		`select { case <-time.After(time.Minute): }`:                                                        0,
		`ctx, cancel := context.WithTimeout(ctx, 2*patience); use(ctx, cancel)`:                             0,
		`ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond); use(ctx, cancel)`:                   1,
		`began := time.Now(); if time.Since(began) > time.Second { t.Error() }`:                             1,
		`began := time.Now(); took := time.Since(began); t.Log(took); if limit < took.Seconds() { fail() }`: 1,
		`began := time.Now(); t.Log(time.Since(began)); if n > 5 { fail() }`:                                0,
	} {
		source := "package a\nconst patience = 20 * time.Second\nfunc TestA(t *testing.T) {\n" + body + "\n}\n"
		file := fixture.Must(parser.ParseFile(token.NewFileSet(), "a_test.go", source, parser.SkipObjectResolution))(t)
		constants, found := map[string]ast.Expr{}, 0
		constantsOf(file, constants)
		checkClock(sourceFile{path: "a_test.go", ast: file}, constants, func(token.Pos, string) { found++ })
		if found != want {
			t.Errorf("%s: found %d times, want %d", body, found, want)
		}
	}
}
