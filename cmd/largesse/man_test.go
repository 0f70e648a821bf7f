package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// roffFont changes the font of a text.
var roffFont = regexp.MustCompile(`\\f(?:[BIPR]|\([A-Z]{2}|\[[A-Z]*\])`)

func TestMan(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "man")
	r := largesseRun(t.Context(), "", nil, "man", dir, "--output", "json")
	var written manPages
	if err := json.Unmarshal([]byte(r.stdout), &written); err != nil || r.code != exitDone || written.Dir != dir {
		t.Fatalf("%+v: %v", r, err)
	}
	var wanted []string
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Name() == "help" {
			return
		}
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
		wanted = append(wanted, name)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			page := fixture.Must(os.ReadFile(filepath.Join(dir, name)))(t)
			checkPage(t, string(page), cmd)
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk((&cli{}).rootCommand())
	there, err := os.ReadDir(dir)
	if err != nil || len(there) != len(wanted) || written.Pages != len(wanted) {
		t.Errorf("%d pages written and %d there for %d commands (%v)", written.Pages, len(there), len(wanted), err)
	}
	for _, page := range there {
		if !slices.Contains(wanted, page.Name()) {
			t.Errorf("%s is no command's", page.Name())
		}
	}
}

func TestManTwiceIsTheSame(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	read := func() string {
		if r := largesseRun(t.Context(), "", nil, "man", dir); r.code != exitDone || !strings.HasSuffix(r.stdout, "man -l "+dir+"/largesse.1\n") {
			t.Errorf("%+v", r)
		}
		page := fixture.Must(os.ReadFile(filepath.Join(dir, "largesse-serve.1")))(t)
		return string(page)
	}
	if first := read(); first != read() || !strings.Contains(first, `"Largesse Manual"`) {
		t.Error("the pages differ")
	}
	if r := largesseRun(t.Context(), "", nil, "man", "a", "b"); r.code != exitWrongUse || !strings.Contains(r.stderr, "man takes at most one DIR, but got 2 arguments") {
		t.Errorf("%+v", r)
	}
	file := filepath.Join(dir, "largesse.1")
	if r := largesseRun(t.Context(), "", nil, "man", file); r.code != exitFailed || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("%+v", r)
	}
}

// roffText is what a reader sees of a page, in one line.
func roffText(page string) string {
	var b strings.Builder
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, ".") {
			continue
		}
		line = roffFont.ReplaceAllString(line, "")
		b.WriteString(strings.NewReplacer(`\-`, "-", `\&`, "", `\e`, `\`, `\\`, `\`, `\(bu`, "", `\(aq`, "'", `\~`, " ").Replace(line))
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// checkPage looks for everything in a page that the help says: nothing is taken
// for a mark and eaten.
func checkPage(t *testing.T, page string, cmd *cobra.Command) {
	t.Helper()
	for _, section := range []string{"NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLE"} {
		if strings.Count(page, "\n.SH "+section+"\n") != 1 {
			t.Errorf("it has no section %s of its own", section)
		}
	}
	text := roffText(page)
	wants := []string{cmd.Short, cmd.UseLine()}
	if cmd.Parent() != nil && cmd.Parent().Name() != "completion" { // cobra's own texts are laid out
		for paragraph := range strings.SplitSeq(cmd.Long, "\n\n") {
			for item := range strings.SplitSeq(paragraph, "\n  - ") {
				wants = append(wants, strings.TrimPrefix(strings.TrimSpace(item), "- "))
			}
		}
	}
	for line := range strings.Lines(cmd.Example) {
		wants = append(wants, line)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) { wants = append(wants, "--"+f.Name, f.Usage) })
	for _, want := range wants {
		if want = strings.Join(strings.Fields(want), " "); !strings.Contains(text, want) {
			t.Errorf("it lacks %q", want)
		}
	}
}
