package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestMutations checks that every patch applies to the tree, that the test it names is
// one that `make test` runs, and that the page has the table.
func TestMutations(t *testing.T) {
	t.Chdir("../..")
	all := fixture.Must(readMutations())(t)
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
	text := fixture.Must(os.ReadFile(page))(t)
	if !strings.Contains(string(text), begin+table(all)+end) {
		t.Errorf("%s has another table of mutations: run go run ./scripts/mutations -update", page)
	}
}

// hasUntagged reports whether a package has a test in a file without a build tag.
func hasUntagged(t *testing.T, pkg, name string) bool {
	t.Helper()
	files := fixture.Must(filepath.Glob(filepath.Join(pkg, "*_test.go")))(t)
	for _, file := range files {
		text := fixture.Must(os.ReadFile(file))(t)
		if !strings.HasPrefix(string(text), "//go:build") && strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)") {
			return true
		}
	}
	return false
}
