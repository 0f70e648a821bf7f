package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSuites(t *testing.T) {
	t.Parallel()

	t.Run("HaveNamesOfTheirOwnAndOneTakesWhatIsLeft", func(t *testing.T) {
		t.Parallel()
		seen, others := map[string]bool{}, 0
		for _, s := range suites {
			if s.name == "" || seen[s.name] {
				t.Errorf("the name %q is empty or another's", s.name)
			}
			seen[s.name] = true
			if s.everyOther {
				others++
			}
		}
		if others != 1 {
			t.Errorf("%d suites take what is left, want one", others)
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
		if got := choose(options{}); len(got) != len(suites) {
			t.Errorf("without a name %d suites run, want all %d", len(got), len(suites))
		}
		if got := choose(options{keep: true}); len(got) != 0 {
			t.Errorf("-keep alone runs %d suites, want none", len(got))
		}
		got := choose(options{suites: []string{"bus", "lint"}})
		if len(got) != 2 || got[0].name != "lint" || got[1].name != "bus" {
			t.Errorf("bus,lint chose %+v", got)
		}
		if checkSuiteNames([]string{"lint", "nothing"}) == nil || checkSuiteNames([]string{"lint", "load"}) != nil {
			t.Error("unknown names are not told from known ones")
		}
	})
}

func TestFunctionsIn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a_test.go")
	text := "//go:build load\n\npackage a\n\nfunc TestMain(m *testing.M) {}\nfunc TestB(t *testing.T) {}\nfunc (x T) TestC() {}\nfunc helper() {}\nfunc TestD(t *testing.T) {}\nfunc FuzzE(f *testing.F) {}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := functionsIn(path, "Test")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"TestB", "TestD"}; !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	if got, err = functionsIn(path, "Fuzz"); err != nil || !slices.Equal(got, []string{"FuzzE"}) {
		t.Errorf("found %v, %v, want FuzzE", got, err)
	}
}

// moduleOf writes a module of such files and returns its folder.
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

func TestFuzzTargets(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"go.mod":         "module example.com/x\n\ngo 1.26.0\n",
		"a/a.go":         "package a\n",
		"a/a_test.go":    "package a\n\nimport \"testing\"\n\nfunc TestPlain(t *testing.T) {}\nfunc FuzzOne(f *testing.F) {}\n",
		"a/ax_test.go":   "package a_test\n\nimport \"testing\"\n\nfunc FuzzTwo(f *testing.F) {}\n",
		"b/load_test.go": "//go:build load\n\npackage b\n\nimport \"testing\"\n\nfunc TestHeavy(t *testing.T) {}\n",
		"b/b.go":         "package b\n",
	}
	got, err := fuzzTargets(t.Context(), moduleOf(t, files))
	if err != nil {
		t.Fatal(err)
	}
	if want := []fuzzTarget{{"example.com/x/a", "FuzzOne"}, {"example.com/x/a", "FuzzTwo"}}; !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	files["b/load_test.go"] += "func FuzzHidden(f *testing.F) {}\n"
	if got, err := fuzzTargets(t.Context(), moduleOf(t, files)); err == nil || !strings.Contains(err.Error(), "FuzzHidden") {
		t.Errorf("one behind a tag: found %v, %v", got, err)
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

func TestLoadTestsAreFoundByTheirTag(t *testing.T) {
	t.Parallel()
	root := moduleOf(t, map[string]string{
		"go.mod":         "module example.com/x\n\ngo 1.26.0\n",
		"a/a.go":         "package a\n",
		"a/a_test.go":    "package a\n\nimport \"testing\"\n\nfunc TestPlain(t *testing.T) {}\n",
		"a/load_test.go": "//go:build servers && load\n\npackage a_test\n\nimport \"testing\"\n\nfunc TestHeavy(t *testing.T) {}\n",
		"b/b.go":         "package b\n",
		"b/b_test.go":    "//go:build servers\n\npackage b\n\nimport \"testing\"\n\nfunc TestReal(t *testing.T) {}\n",
	})
	packages, tests, err := loadTests(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"example.com/x/a"}; !slices.Equal(packages, want) {
		t.Errorf("packages %v, want %v", packages, want)
	}
	if want := []string{"TestHeavy"}; !slices.Equal(tests, want) {
		t.Errorf("tests %v, want %v", tests, want)
	}
}
