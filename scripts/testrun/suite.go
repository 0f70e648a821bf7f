package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/largesse/largesse/internal/lab/fleet"
)

const module = "github.com/largesse/largesse"

// suite is one row of the closing table. One of steps, check, rooms, everyOther and load is set.
type suite struct {
	name    string
	servers bool // needs the real servers
	// steps are commands that pass when they end with 0.
	steps []step
	// check does whatever it does by itself and counts that in res.
	check func(ctx context.Context, r runner, res *result)
	// rooms are folders; the suite tests every package in and below them. A
	// package belongs to the first suite that has it, so none is tested twice.
	rooms []string
	// everyOther takes the packages that no suite names: a new room is tested
	// from its first day.
	everyOther bool
	// load runs the tests in files with the build tag load, and only those,
	// without the race detector and one package after the other.
	load bool
	// parallel is how many tests of a package run at once; 0 = as many as there
	// are cores. More is for those that mostly wait.
	parallel int
}

// step is a command of a suite. When silent is set, printing anything is a
// failure too.
type step struct {
	name   string
	args   []string
	silent bool
}

// suites is the order of a run. To add a suite, add a row.
var suites = []suite{
	{name: "lint", steps: []step{
		{name: "gofumpt", args: []string{"go", "tool", "-modfile=tools/go.mod", "gofumpt", "-l", "."}, silent: true},
		{name: "vet", args: []string{"go", "vet", "./..."}},
		{name: "vet with servers and load", args: []string{"go", "vet", "-tags", "servers load", "./..."}},
		{name: "golangci-lint", args: []string{"go", "tool", "-modfile=tools/go.mod", "golangci-lint", "run", "--timeout", "15m", "./..."}},
	}},
	{name: "house", servers: true, rooms: []string{"scripts", "internal/reward", "internal/service", "internal/obs"}},
	{name: "store", servers: true, rooms: []string{"internal/store"}},
	{name: "queue", servers: true, rooms: []string{"internal/queue", "internal/pool"}},
	{name: "bus", servers: true, rooms: []string{"internal/bus"}},
	{name: "money", servers: true, rooms: []string{"internal/money"}},
	{name: "payout", servers: true, rooms: []string{"internal/payout", "internal/campaign", "internal/books"}},
	{name: "coupon", servers: true, rooms: []string{"internal/gate", "internal/coupon"}, parallel: 6},
	{name: "lab", servers: true, rooms: []string{"internal/lab"}},
	{name: "rest", servers: true, everyOther: true},
	{name: "fuzz", check: fuzz},
	{name: "openapi", check: openapi},
	{name: "load", servers: true, load: true},
}

// checkSuiteNames refuses names that are in no row.
func checkSuiteNames(names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(suites, func(s suite) bool { return s.name == name }) {
			all := make([]string, 0, len(suites))
			for _, s := range suites {
				all = append(all, s.name)
			}
			return fmt.Errorf("there is no suite %q; the suites are %s", name, strings.Join(all, ", "))
		}
	}
	return nil
}

// choose returns the suites to run, in their order.
func choose(opts options) []suite {
	if len(opts.suites) == 0 && opts.keep {
		return nil
	}
	var chosen []suite
	for _, s := range suites {
		if len(opts.suites) == 0 || slices.Contains(opts.suites, s.name) {
			chosen = append(chosen, s)
		}
	}
	return chosen
}

// runner is what a suite needs to run.
type runner struct {
	root     string
	env      []string // addresses of the servers
	run      string   // go test -run, empty = all
	verbose  bool
	out      io.Writer
	progress *progress
}

func (s suite) run(ctx context.Context, r runner) *result {
	res := newResult(s.name)
	for _, st := range s.steps {
		text, err := fleet.Output(ctx, r.root, nil, st.args[0], st.args[1:]...)
		if err == nil && st.silent && strings.TrimSpace(text) != "" {
			err = fmt.Errorf("%s should print nothing", strings.Join(st.args, " "))
		}
		if err != nil {
			res.fail(st.name, fmt.Sprintf("%v\n%s", err, text))
		} else {
			res.passed++
		}
		r.progress.update(res)
	}
	if s.check != nil {
		s.check(ctx, r, res)
	}
	if len(s.steps) > 0 || s.check != nil {
		return res
	}

	args := []string{"test", "-json", "-count=1", "-timeout", "20m"}
	var packages []string
	var err error
	if s.load {
		var tests []string
		packages, tests, err = loadTests(ctx, r.root)
		args = append(args, "-tags", "servers load", "-p", "1", "-run", "^("+strings.Join(tests, "|")+")$")
	} else {
		packages, err = s.packages(ctx, r.root)
		args = append(args, "-tags", "servers", "-race")
		if s.parallel > 0 {
			args = append(args, "-parallel", strconv.Itoa(s.parallel))
		}
	}
	if err != nil {
		res.fail("list of packages", err.Error())
		return res
	}
	if len(packages) == 0 {
		return res
	}
	if r.run != "" {
		args = append(args, "-run", r.run)
	}
	err = fleet.Lines(ctx, r.root, r.env, func(line string) {
		text := res.read(line)
		if r.verbose {
			fmt.Fprint(r.out, text)
		}
		r.progress.update(res)
	}, "go", append(args, packages...)...)
	res.close(err)
	return res
}

// packages lists the suite's packages.
func (s suite) packages(ctx context.Context, root string) ([]string, error) {
	all, err := listPackages(ctx, root, "servers")
	if err != nil {
		return nil, err
	}
	var mine []string
	for _, p := range all {
		if ownerOf(p.ImportPath) == s.name {
			mine = append(mine, p.ImportPath)
		}
	}
	return mine, nil
}

// ownerOf names the suite that tests a package.
func ownerOf(importPath string) string {
	dir := strings.TrimPrefix(strings.TrimPrefix(importPath, module), "/")
	other := ""
	for _, s := range suites {
		if s.everyOther {
			other = s.name
		}
		for _, room := range s.rooms {
			if dir == room || strings.HasPrefix(dir, room+"/") {
				return s.name
			}
		}
	}
	return other
}

// listedPackage is what is read of `go list -json`.
type listedPackage struct {
	Dir          string
	ImportPath   string
	TestGoFiles  []string
	XTestGoFiles []string
}

func listPackages(ctx context.Context, root, tags string) ([]listedPackage, error) {
	text, err := fleet.Output(ctx, root, nil, "go", "list", "-e", "-json=Dir,ImportPath,TestGoFiles,XTestGoFiles", "-tags", tags, "./...")
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, text)
	}
	var all []listedPackage
	for decoder := json.NewDecoder(bytes.NewReader([]byte(text))); decoder.More(); {
		var p listedPackage
		if err := decoder.Decode(&p); err != nil {
			return nil, fmt.Errorf("reading what go list printed: %w\n%s", err, fleet.Tail(text, 20))
		}
		all = append(all, p)
	}
	return all, nil
}

// loadTests finds the tests in files that only the tag load brings in, so that
// nobody has to keep a list or a convention of names.
func loadTests(ctx context.Context, root string) (packages, tests []string, err error) {
	without, err := listPackages(ctx, root, "servers")
	if err != nil {
		return nil, nil, err
	}
	known := map[string]bool{}
	for _, p := range without {
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			known[filepath.Join(p.Dir, name)] = true
		}
	}
	with, err := listPackages(ctx, root, "servers load")
	if err != nil {
		return nil, nil, err
	}
	for _, p := range with {
		before := len(tests)
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			if path := filepath.Join(p.Dir, name); !known[path] {
				found, err := functionsIn(path, "Test")
				if err != nil {
					return nil, nil, err
				}
				tests = append(tests, found...)
			}
		}
		if len(tests) > before {
			packages = append(packages, p.ImportPath)
		}
	}
	return packages, tests, nil
}

// functionsIn lists the functions of a file whose names begin with prefix, Test
// or Fuzz.
func functionsIn(path, prefix string) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	var names []string
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, prefix) && f.Name.Name != "TestMain" {
			names = append(names, f.Name.Name)
		}
	}
	return names, nil
}
