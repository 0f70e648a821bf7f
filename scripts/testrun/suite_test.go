package main

import (
	"os"
	"path/filepath"
	"slices"
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

func TestTestsIn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a_test.go")
	text := "//go:build load\n\npackage a\n\nfunc TestMain(m *testing.M) {}\nfunc TestB(t *testing.T) {}\nfunc (x T) TestC() {}\nfunc helper() {}\nfunc TestD(t *testing.T) {}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := testsIn(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"TestB", "TestD"}; !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

func TestLoadTestsAreFoundByTheirTag(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":         "module example.com/x\n\ngo 1.26.0\n",
		"a/a.go":         "package a\n",
		"a/a_test.go":    "package a\n\nimport \"testing\"\n\nfunc TestPlain(t *testing.T) {}\n",
		"a/load_test.go": "//go:build servers && load\n\npackage a_test\n\nimport \"testing\"\n\nfunc TestHeavy(t *testing.T) {}\n",
		"b/b.go":         "package b\n",
		"b/b_test.go":    "//go:build servers\n\npackage b\n\nimport \"testing\"\n\nfunc TestReal(t *testing.T) {}\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
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
