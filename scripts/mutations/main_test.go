package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMutations checks that every patch applies to the tree, that the test it names is
// one that `make test` runs, and that the page has the table.
func TestMutations(t *testing.T) {
	t.Chdir("../..")
	all, err := readMutations()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Errorf("there are %d mutations", len(all))
	}
	for _, m := range all {
		if out, err := exec.Command("git", "apply", "--check", m.patch).CombinedOutput(); err != nil {
			t.Errorf("%s does not apply; correct it, so that it breaks what it says: %s", m.name, out)
		}
		name, _, _ := strings.Cut(m.test, "/")
		if !hasUntagged(t, m.pkg, name) {
			t.Errorf("%s: no file without a build tag in %s has a test %s", m.name, m.pkg, name)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), begin+table(all)+end) {
		t.Errorf("%s has another table of mutations: run go run ./scripts/mutations -update", page)
	}
}

// hasUntagged reports whether a package has a test in a file without a build tag.
func hasUntagged(t *testing.T, pkg, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(text), "//go:build") && strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)") {
			return true
		}
	}
	return false
}
