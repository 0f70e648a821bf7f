package house

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// forDevelopers lists the pages and folders that may name tests. All other
// pages are for those who use Largesse.
var forDevelopers = []string{"docs/dev/", "docs/adr/", "CHANGELOG.md", "CONTRIBUTING.md"}

// TestPagesForUsersNameNoTests checks that names of tests stay on the pages
// for developers.
func TestPagesForUsersNameNoTests(t *testing.T) {
	t.Parallel()
	named := 0
	proseFiles(t, func(page string, text []byte) {
		if filepath.Ext(page) != ".md" {
			return
		}
		names := testByName.FindAllString(string(text), -1)
		if slices.ContainsFunc(forDevelopers, func(prefix string) bool { return strings.HasPrefix(page, prefix) }) {
			named += len(names)
			return
		}
		for _, name := range names {
			t.Errorf("%s names %s: move that to docs/dev", page, name)
		}
	})
	if named < 100 {
		t.Errorf("only %d names of tests were found on the pages for developers", named)
	}
}
