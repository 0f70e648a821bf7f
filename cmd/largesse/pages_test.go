package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/internal/lab/fixture"
)

var (
	pageFence = regexp.MustCompile("(?s)```(?:sh|bash)?\n.*?```")
	pageSpan  = regexp.MustCompile("`((?:bin/)?largesse [^`]*)`")
	pageCall  = regexp.MustCompile(`(?m)(?:^|[|&;(]\s*|\bgo run \./cmd/|\bdo\s+)\s*(?:\S+=\S+\s+)*(?:bin/|\./bin/)?(largesse [^|&;#\n)]*)`)
)

// commandsOfPage returns the commands of this program on a page: those in its
// text, and those in its blocks of shell.
func commandsOfPage(text string) []string {
	text = strings.ReplaceAll(text, "\\\n", " ")
	var all []string
	for _, block := range pageFence.FindAllString(text, -1) {
		for _, call := range pageCall.FindAllStringSubmatch(block, -1) {
			all = append(all, call[1])
		}
	}
	for _, span := range pageSpan.FindAllStringSubmatch(pageFence.ReplaceAllString(text, ""), -1) {
		all = append(all, strings.ReplaceAll(strings.TrimPrefix(span[1], "bin/"), "\n", " "))
	}
	return all
}

// wrongCommand returns what is wrong with the names in a command; "" = nothing.
// A page may leave words out with "…".
func wrongCommand(root *cobra.Command, line string) string {
	words := shellWords(line)[1:]
	cmd, rest, err := root.Find(words)
	switch {
	case err != nil:
		return err.Error()
	case cmd.HasSubCommands() && len(rest) > 0 && regexp.MustCompile(`^[a-z]`).MatchString(rest[0]):
		return cmd.CommandPath() + " has no command " + rest[0]
	}
	cmd.InheritedFlags() // so that they are found below
	for _, flag := range docFlag.FindAllString(strings.Join(words, " "), -1) {
		if name := strings.TrimPrefix(flag, "--"); !flagOf(cmd, name) {
			return cmd.CommandPath() + " has no flag " + flag
		}
	}
	return ""
}

// flagOf reports whether a command, or one of its group, has a flag.
func flagOf(cmd *cobra.Command, name string) bool {
	return name == "help" || name == "version" && !cmd.HasParent() || cmd.Flags().Lookup(name) != nil ||
		slices.ContainsFunc(cmd.Commands(), func(sub *cobra.Command) bool { return sub.Flags().Lookup(name) != nil })
}

// TestPagesNameCommands: every command that a page names exists, with its flags.
func TestPagesNameCommands(t *testing.T) {
	t.Parallel()
	root := (&cli{}).rootCommand()
	found := 0
	check := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, line := range commandsOfPage(string(text)) {
			found++
			if wrong := wrongCommand(root, line); wrong != "" {
				t.Errorf("%s: %s: %s", path, line, wrong)
			}
		}
		return nil
	}
	for _, pages := range []string{"../../README.md", "../../docs", "../../examples"} {
		fixture.OK(t, filepath.WalkDir(pages, check))
	}
	if found < 100 {
		t.Errorf("only %d commands were found", found)
	}
}

// shellWords splits at spaces that are not quoted.
func shellWords(line string) []string {
	var words []string
	var word strings.Builder
	quote, begun := rune(0), false
	for _, r := range line + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			quote, begun = r, true
		case quote == 0 && r == ' ':
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	return words
}
