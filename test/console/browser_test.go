//go:build ci || nightly

package console

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/test/instance"
)

// hostileRecord is an unreadable record. If a browser took it for markup, the page
// would know.
const hostileRecord = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>`

// workers is how many browsers playwright.config.mjs runs at a time, each with an
// instance of its own.
const workers = 2

// TestConsole uses the console in Chromium: each test of *.spec.mjs is a subtest. `-run
// 'TestConsole/sign in'` runs one.
func TestConsole(t *testing.T) {
	t.Parallel()
	playwright(t, "console", workers)
}

// report is the part of Playwright's report that is used here.
type report struct {
	Suites []struct {
		Specs []struct {
			Title string `json:"title"`
			OK    bool   `json:"ok"`
			Tests []struct {
				Results []struct {
					Errors []struct {
						Message string `json:"message"`
					} `json:"errors"`
					Attachments []struct {
						Path string `json:"path"`
					} `json:"attachments"`
				} `json:"results"`
			} `json:"tests"`
		} `json:"specs"`
	} `json:"suites"`
}

// playwright runs a project of playwright.config.mjs on new instances.
func playwright(t *testing.T, project string, instances int) {
	t.Helper()
	root := fixture.Must(fleet.ModuleRoot())(t)
	install := fixture.Must(fleet.NewInstaller(t.Output()))(t)
	npm := fixture.Must(install.Node(t.Context()))(t)
	chromium := fixture.Must(install.Chromium(t.Context()))(t)
	dir := t.TempDir()
	binary, file := filepath.Join(dir, "largesse"), filepath.Join(dir, "report.json")
	if text, err := fleet.Output(t.Context(), "", nil, "go", "build", "-o", binary, filepath.Join(root, "cmd", "largesse")); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if text, err := fleet.Output(t.Context(), "", nil, npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	targets := make([]map[string]string, instances)
	for n := range targets {
		targets[n] = start(t)
	}
	list := fixture.Must(json.Marshal(targets))(t)
	pictures := os.Getenv("LARGESSE_PICTURES")
	if pictures != "" && !filepath.IsAbs(pictures) {
		pictures = filepath.Join(root, pictures)
	}
	env := []string{
		"LARGESSE_INSTANCES=" + string(list), "LARGESSE_BINARY=" + binary, "LARGESSE_CHROMIUM=" + chromium, "LARGESSE_PICTURES=" + pictures,
		"PLAYWRIGHT_JSON_OUTPUT_NAME=" + file,
	}
	args := []string{"playwright", "test", "--project", project, "--reporter", "list,json"}
	if _, one, ok := strings.Cut(flag.Lookup("test.run").Value.String(), "/"); ok {
		args = append(args, "--grep", strings.NewReplacer("_", ".", " ", ".").Replace(one))
	}
	runErr := fleet.Lines(t.Context(), "", env, func(line string) { t.Log(line) }, "npx", args...)
	text, err := os.ReadFile(file)
	var found report
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	if err != nil {
		t.Fatal(runErr, err)
	}
	ran := 0
	for _, file := range found.Suites {
		for _, spec := range file.Specs {
			ran++
			t.Run(spec.Title, func(t *testing.T) {
				if spec.OK {
					return
				}
				t.Fail()
				for _, test := range spec.Tests {
					for _, result := range test.Results {
						for _, e := range result.Errors {
							t.Log(colors.ReplaceAllString(e.Message, ""))
						}
						for _, file := range result.Attachments {
							t.Log("see ", file.Path)
						}
					}
				}
			})
		}
	}
	if ran == 0 || runErr != nil && !t.Failed() {
		t.Errorf("%d tests ran, and Playwright ended with %v", ran, runErr)
	}
}

// colors are what a terminal would show as colors.
var colors = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// start starts an instance with what the tests do not make themselves: unreadable records
// and payouts of which nobody knows whether they were paid.
func start(t *testing.T) map[string]string {
	t.Helper()
	in := instance.Start(t, map[string]string{"approval.above": "1000000", "approval.codes-above": "100000", "webhook.allow-private": "true"})
	in.Publish("campaign-promotion-point-publish",
		hostileRecord+" \xff", hostileRecord+" \x00\x1b[31m\u202e", hostileRecord+strings.Repeat("x", 10_000))
	in.Await("/v1/dead-letters", `("status":"OPEN".*){3}`)
	in.UnknownPayouts(2700)
	return map[string]string{"server": in.URL, "token": in.Token}
}
