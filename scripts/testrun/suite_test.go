package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fleet"
)

func TestSuites(t *testing.T) {
	t.Parallel()

	t.Run("HaveUniqueNamesAndOneTakesEveryOtherPackage", func(t *testing.T) {
		t.Parallel()
		seen, others := map[string]bool{}, 0
		for _, s := range suites {
			if s.name == "" || seen[s.name] {
				t.Errorf("the name %q is empty or used twice", s.name)
			}
			seen[s.name] = true
			if s.everyOther {
				others++
			}
			kinds := 0
			for _, is := range []bool{s.everyOther, len(s.dirs) > 0, s.call != nil, s.check != nil} {
				if is {
					kinds++
				}
			}
			if kinds != 1 {
				t.Errorf("%s sets %d of the fields that say what it runs, want one", s.name, kinds)
			}
		}
		if others != 1 {
			t.Errorf("%d suites take every other package, want one", others)
		}
	})

	t.Run("EveryPackageBelongsToOne", func(t *testing.T) {
		t.Parallel()
		for pkg, want := range map[string]string{
			module:                              "rest",
			module + "/cmd/largesse":            "rest",
			module + "/internal/storage":        "rest",
			module + "/internal/store":          "store",
			module + "/internal/store/postgres": "store",
			module + "/internal/reward":         "house",
		} {
			if got := ownerOf(pkg); got != want {
				t.Errorf("%s belongs to %q, want %q", pkg, got, want)
			}
		}
	})

	t.Run("AreChosenInTheirOrder", func(t *testing.T) {
		t.Parallel()
		short, long := choose(options{}), choose(options{long: true})
		if len(short)+len(long) != len(suites) || len(short) == 0 || len(long) == 0 {
			t.Errorf("make test runs %d suites and make test-long %d, together want all %d", len(short), len(long), len(suites))
		}
		if got := choose(options{keep: true}); len(got) != 0 {
			t.Errorf("-keep alone runs %d suites, want none", len(got))
		}
		got := choose(options{suites: []string{"fuzz", "bus", "lint"}})
		if len(got) != 3 || got[0].name != "bus" || got[1].name != "lint" || got[2].name != "fuzz" {
			t.Errorf("fuzz,bus,lint chose %+v", got)
		}
		if checkSuiteNames([]string{"lint", "nothing"}) == nil || checkSuiteNames([]string{"lint", "load"}) != nil {
			t.Error("unknown names are not distinguished from known ones")
		}
	})

	t.Run("OfPackagesAreOneStage", func(t *testing.T) {
		t.Parallel()
		var got []string
		for _, stage := range stages(choose(options{suites: []string{"lint", "store", "bus", "openapi", "campaigns", "fuzz"}})) {
			var together []string
			for _, s := range stage {
				together = append(together, s.name)
			}
			got = append(got, strings.Join(together, "+"))
		}
		if want := []string{"store+bus+openapi", "campaigns", "lint", "fuzz"}; !slices.Equal(got, want) {
			t.Errorf("the stages are %v, want %v", got, want)
		}
	})
}

// TestEveryTestIsSelected requires that make test or make test-long runs each
// Test, Fuzz and Example function of the module, whatever its build tags.
func TestEveryTestIsSelected(t *testing.T) {
	t.Parallel()
	root, err := fleet.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	files, err := testFiles(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	selected := selectedBy(files, choose(options{}))
	for name := range selectedBy(files, choose(options{long: true})) {
		selected[name] = true
	}
	inTree := functionsInTree(t, root)
	if len(inTree) < 500 {
		t.Errorf("found %d test functions in the tree, want at least 500", len(inTree))
	}
	for _, name := range inTree {
		if !selected[name] {
			t.Errorf("neither make test nor make test-long runs %s", name)
		}
	}
	for _, name := range slices.Concat(deployFiles, faultFiles) {
		if _, err := os.Stat(filepath.Join(root, name+"_load_test.go")); err != nil {
			t.Errorf("a suite names a file that does not exist: %v", err)
		}
	}
	for _, name := range slices.Concat(campaigns, measuredAlone, computedAlone) {
		if !slices.ContainsFunc(inTree, func(in string) bool { return strings.HasSuffix(in, " "+name) }) {
			t.Errorf("a suite names %s, which does not exist", name)
		}
	}
}

// selectedBy returns the functions that suites run, as "package function".
func selectedBy(files []testFile, chosen []suite) map[string]bool {
	var calls []call
	var ofPackages []string
	for _, s := range chosen {
		if s.ofPackages() {
			ofPackages = append(ofPackages, s.name)
		} else if s.call != nil {
			calls = append(calls, s.call(files))
		}
	}
	if len(ofPackages) > 0 {
		calls = append(calls, packageTests(files, ofPackages))
	}
	selected := map[string]bool{}
	for _, c := range calls {
		load := strings.Contains(strings.Join(c.flags, " "), "load")
		run := regexp.MustCompile("^(" + strings.Join(c.tests, "|") + ")$")
		for _, f := range files {
			for _, name := range f.functions {
				if slices.Contains(c.packages, f.pkg) && (load || !f.load) && (len(c.tests) == 0 || run.MatchString(name)) {
					selected[f.pkg+" "+name] = true
				}
			}
		}
	}
	return selected
}

// functionsInTree reads every file of tests below root, as "package function". It
// does not ask the go command, which leaves out files by their build tags.
func functionsInTree(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			if path != root && (err == nil || strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, name := range testFunctions(file) {
			all = append(all, strings.TrimSuffix(module+"/"+filepath.ToSlash(dir), "/.")+" "+name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// moduleOf writes a module of these files and returns its folder.
func moduleOf(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestTestFiles(t *testing.T) {
	t.Parallel()
	root := moduleOf(t, map[string]string{
		"go.mod":         "module example.com/x\n\ngo 1.26.0\n",
		"a/a.go":         "package a\n",
		"a/a_test.go":    "package a\n\nimport \"testing\"\n\nfunc TestMain(m *testing.M) {}\nfunc TestPlain(t *testing.T) {}\nfunc (x T) TestMethod() {}\nfunc helper() {}\nfunc ExampleA() {}\nfunc FuzzOne(f *testing.F) {}\n",
		"a/load_test.go": "// A comment.\n\n//go:build servers && load\n\npackage a_test\n\nimport \"testing\"\n\nfunc TestHeavy(t *testing.T) {}\nfunc FuzzTwo(f *testing.F) {}\n",
		"b/b.go":         "package b\n",
		"b/b_test.go":    "//go:build servers\n\npackage b\n\nimport \"testing\"\n\nfunc TestReal(t *testing.T) {}\n",
	})
	files, err := testFiles(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ got, want []string }{
		"functions of a": {files[0].functions, []string{"TestPlain", "ExampleA", "FuzzOne"}},
		"load":           {loadTests(files).tests, []string{"TestHeavy", "FuzzTwo"}},
		"load packages":  {loadTests(files).packages, []string{"example.com/x/a"}},
		"race packages":  {raceTests(files).packages, []string{"example.com/x/a", "example.com/x/b"}},
		"race tests":     {raceTests(files).tests, nil},
	} {
		if !slices.Equal(tt.got, tt.want) {
			t.Errorf("%s: %v, want %v", name, tt.got, tt.want)
		}
	}
	if got, want := fuzzTargets(files), []fuzzTarget{{"example.com/x/a", "FuzzOne"}, {"example.com/x/a", "FuzzTwo"}}; !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	c := call{flags: []string{"-race"}, packages: []string{"p", "q"}, tests: []string{"TestA", "TestB"}}
	if got := strings.Join(c.commandLine(""), " "); !strings.HasSuffix(got, " -race -run ^(TestA|TestB)$ p q") {
		t.Errorf("the command line is %s", got)
	}
	if got := strings.Join(c.commandLine("TestC"), " "); !strings.HasSuffix(got, " -race -run TestC p q") {
		t.Errorf("the command line with -run is %s", got)
	}
}

func TestCutByTime(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"--- FAIL: FuzzA (5.10s)\n    context deadline exceeded\nFAIL":                             true,
		"--- FAIL: FuzzA (0.10s)\n    a_test.go:7: wrong\n    Failing input written to testdata/…": false,
		"context deadline exceeded\n    Failing input written to testdata/…":                       false,
		"failure while testing seed corpus entry: FuzzA/seed#0\ncontext deadline exceeded":         false,
	} {
		if got := cutByTime(text); got != want {
			t.Errorf("%q was cut by the time: %v, want %v", text, got, want)
		}
	}
}

// TestSuitesThatDoNotFit leaves out what would not end in time.
func TestSuitesThatDoNotFit(t *testing.T) {
	t.Parallel()
	one := suite{minutes: 20}
	for _, tc := range []struct {
		options options
		after   time.Duration
		fits    bool
	}{
		{options{slow: 100}, time.Hour, true},
		{options{minutes: 30, slow: 100}, 10 * time.Minute, true},
		{options{minutes: 30, slow: 100}, 11 * time.Minute, false},
		{options{minutes: 30, slow: 200}, 0, false},
	} {
		if tc.options.fits(tc.after, one) != tc.fits {
			t.Errorf("%+v after %v: want %t", tc.options, tc.after, tc.fits)
		}
	}
	for _, s := range suites {
		if s.long != (s.minutes > 0) {
			t.Errorf("suite %s: long is %t, with %v minutes", s.name, s.long, s.minutes)
		}
	}
}
