package console_test

import (
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"github.com/largesse/largesse/console"
)

// TestNothingIsLoadedFromElsewhere: the policy of the server forbids inline scripts
// and other hosts, and nothing in the build tries to use them.
func TestNothingIsLoadedFromElsewhere(t *testing.T) {
	t.Parallel()
	pages := 0
	err := fs.WalkDir(console.Files(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(console.Files(), name)
		if err != nil {
			return err
		}
		if !strings.HasSuffix(name, ".js") {
			if found := regexp.MustCompile(`(?i)((src|href)=["']?|url\(["']?)(https?:)?//`).Find(text); found != nil {
				t.Errorf("%s has %q", name, found)
			}
		}
		if strings.HasSuffix(name, ".html") {
			pages++
			if found := regexp.MustCompile(`(?i)<script>|<style|\son[a-z]+=|\sstyle=`).Find(text); found != nil {
				t.Errorf("%s has %q, which the policy forbids", name, found)
			}
		}
		return nil
	})
	if err != nil || pages != 2 {
		t.Errorf("%d pages, %v", pages, err)
	}
}
