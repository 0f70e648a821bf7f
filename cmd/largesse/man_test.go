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

// roffMacros are all that the pages use. The second of a pair ends what the
// first begins.
var (
	roffMacros = []string{".nh", ".TH", ".SH", ".SS", ".PP", ".RS", ".RE", ".EX", ".EE", ".IP", ".TP", ".br", ".nf", ".fi", ".ti", ".TS", ".TE", ".UR", ".UE"}
	roffPairs  = [][2]string{{".RS", ".RE"}, {".EX", ".EE"}, {".nf", ".fi"}, {".TS", ".TE"}, {".UR", ".UE"}}
	roffFont   = regexp.MustCompile(`\\f(?:[BIPR]|\([A-Z]{2}|\[[A-Z]*\])`)
	roffEscape = regexp.MustCompile(`\\(?:[-&e~\\]|\((?:bu|aq|dq|em|en|cq|oq|rs|ti|ha|ga|co)|\[[a-z]+\]|f(?:[BIPR]|\([A-Z]{2}|\[[A-Z]*\]))`)
)

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
			checkRoff(t, string(page))
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

// checkRoff holds a page against what roff can read.
func checkRoff(t *testing.T, page string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(page, "\n"), "\n")
	var open []string
	title := false
	for i, line := range lines {
		macro, _, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "'"):
			t.Errorf("line %d begins with a quote, which makes a macro of it: %q", i+1, line)
		case !strings.HasPrefix(line, "."):
		case !slices.Contains(roffMacros, macro):
			t.Errorf("line %d has no macro of ours: %q", i+1, line)
		}
		title = title || macro == ".TH"
		if !title && i > 2 {
			t.Fatal("there is no .TH")
		}
		for _, pair := range roffPairs {
			switch macro {
			case pair[0]:
				open = append(open, pair[1])
			case pair[1]:
				if len(open) == 0 || open[len(open)-1] != macro {
					t.Errorf("line %d ends what is not begun: %q, open are %v", i+1, line, open)
					continue
				}
				open = open[:len(open)-1]
			}
		}
		if left := roffEscape.ReplaceAllString(line, ""); strings.Contains(left, `\`) {
			t.Errorf("line %d has an escape that roff does not know: %q", i+1, line)
		}
		if fonts := roffFont.FindAllString(line, -1); len(fonts)%2 != 0 {
			t.Errorf("line %d leaves a font open: %q", i+1, line)
		}
		for _, markdown := range []string{"**", "```", "%!"} {
			if strings.Contains(line, markdown) {
				t.Errorf("line %d has %q left: %q", i+1, markdown, line)
			}
		}
	}
	if len(open) > 0 {
		t.Errorf("left open: %v", open)
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
