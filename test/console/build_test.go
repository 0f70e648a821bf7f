//go:build ci

package console

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// TestBuild checks the texts of the console, its types against the API, and that the
// committed build is what its sources give. A mistake in a text must not get past it.
func TestBuild(t *testing.T) {
	t.Parallel()
	root := fixture.Must(fleet.ModuleRoot())(t)
	if text, err := fleet.Output(t.Context(), root, nil, filepath.Join("scripts", "console"), "--check"); err != nil {
		t.Fatalf("%v\n%s", err, fleet.Tail(text, 40))
	}
	for _, tc := range []struct{ mistake, file, old, new, want string }{
		{"a text in the markup", "src/pages/Missing.svelte", "{t('page.mistyped')}", "Look again.", "“Look again.” is not a message"},
		{"a text in an attribute", "src/ui/Search.svelte", "placeholder={hint}", `placeholder="name"`, "“name” is not a message"},
		{"a text in a script", "src/lib/session.svelte.ts", "t('signIn.silent')", "'Nobody answers.'", "“Nobody answers.” is not a message"},
		{"one of two texts", "src/ui/Listed.svelte", "t('list.more')", "'More'", "“More” is not a message"},
		{"a missing translation", "messages/ko.json", `"act.copy"`, `"act.other"`, "ko.json lacks act.copy"},
		{"a missing value", "messages/ko.json", `"{n, number}명에게 지급"`, `"지급"`, "start.button has the values"},
		{"a broken message", "messages/en.json", `"Pay {n, number}"`, `"Pay {n, number"`, "start.button is no message"},
		{"a message of no page", "messages/en.json", `"act.copy"`, `"act.unused": "x", "act.copy"`, "act.unused is not used"},
		{"an error code without a translation", "messages/ko.json", `"error.SOLD_OUT"`, `"error.SOLD_OFF"`, "lacks error.SOLD_OUT"},
		{"a part that no snippet draws", "src/ui/Ask.svelte", "{#snippet typed()}", "{#snippet other()}", "ask.type needs typed"},
	} {
		t.Run(tc.mistake, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			console := filepath.Join(dir, "console")
			for _, part := range []string{"src", "messages"} {
				fixture.OK(t, os.CopyFS(filepath.Join(console, part), os.DirFS(filepath.Join(root, "console", part))))
			}
			for _, linked := range []string{"docs", "internal", "console/messages.mjs", "console/node_modules"} {
				fixture.OK(t, os.Symlink(filepath.Join(root, linked), filepath.Join(dir, linked)))
			}
			file := filepath.Join(console, tc.file)
			text := string(fixture.Must(os.ReadFile(file))(t))
			if !strings.Contains(text, tc.old) {
				t.Fatalf("%s lacks %s", tc.file, tc.old)
			}
			fixture.OK(t, os.WriteFile(file, []byte(strings.Replace(text, tc.old, tc.new, 1)), 0o600))
			if text, err := fleet.Output(t.Context(), console, nil, "node", "messages.mjs"); err == nil || !strings.Contains(text, tc.want) {
				t.Errorf("%v\n%s\nwant %s", err, text, tc.want)
			}
		})
	}
}
