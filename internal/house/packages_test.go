package house

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// isSuite reports whether a package is a conformance suite or only for tests.
func isSuite(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(name, "internal/") && strings.HasSuffix(base, "test")
}

// TestEveryPackageHasARule checks that a rule of depguard says what each package may import.
func TestEveryPackageHasARule(t *testing.T) {
	t.Parallel()
	text := fixture.Must(os.ReadFile(".golangci.yml"))(t)
	_, rules, _ := strings.Cut(string(text), "# Which package may import which")
	var patterns []string
	for _, match := range regexp.MustCompile(`"(?:\*\*|\$\{config-path\})/([\w/*]*?)/?\*\.go"`).FindAllStringSubmatch(rules, -1) {
		patterns = append(patterns, path.Clean(match[1]))
	}
	packages := map[string]bool{}
	for _, file := range tree(t) {
		if !file.test() {
			packages[file.room()] = true
		}
	}
	for name := range packages {
		if name == "test/api" || name == "test/console" { // only a comment
			continue
		}
		if !slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, name); return ok }) {
			t.Errorf("%s has no rule in .golangci.yml: a new package needs a page in docs/adr (what it owns, what it may import, how it stops), and a rule", name)
		}
	}
	if len(packages) < 40 {
		t.Errorf("only %d packages were read", len(packages))
	}
}

// TestPackagesHaveGoodNames checks that the name of a package says what it contains.
func TestPackagesHaveGoodNames(t *testing.T) {
	t.Parallel()
	bad := []string{"util", "utils", "common", "models", "model", "helpers", "helper", "misc", "shared", "base"}
	for _, file := range tree(t) {
		from := file.room()
		if strings.HasPrefix(from, "internal/") && strings.Count(from, "/") > 2 {
			t.Errorf("%s: there is no third level under internal/: a second-level folder is a driver, a simulator or a suite and holds its files itself", file.path)
		}
		for _, name := range []string{path.Base(from), strings.TrimSuffix(file.ast.Name.Name, "_test")} {
			if slices.Contains(bad, name) {
				t.Errorf("%s: %q says nothing about what is inside; put the code where it is used, or name the package for what it owns", file.path, name)
			}
		}
	}
}
