package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// docFlag finds a flag in the synopsis of a command.
var docFlag = regexp.MustCompile(`--[a-z][a-z-]*`)

// TestDocs: docs/cli.md has a line for every command, and speaks of no command
// and no flag that is not there.
func TestDocs(t *testing.T) {
	t.Parallel()
	text := fixture.Must(os.ReadFile("../../docs/cli.md"))(t)
	_, table, _ := strings.Cut(string(text), "| command | what it does |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var documented []string
	for row := range strings.Lines(table) {
		synopsis, _, ok := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		if !ok {
			t.Fatalf("no row of the table: %q", row)
		}
		documented = append(documented, docCommands(t, strings.ReplaceAll(synopsis, `\|`, "|"))...)
	}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if path := shortPath(cmd); !cmd.HasSubCommands() && !slices.Contains(documented, path) {
			t.Errorf("docs/cli.md does not tell of %s", path)
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk((&cli{}).rootCommand())
}

// docCommands reads "`promotion list [--limit N]` · `show ID`": the commands of a
// row, the later ones in the group of the first. A row that begins with "…" has
// more flags of the one before.
func docCommands(t *testing.T, synopsis string) []string {
	t.Helper()
	root := (&cli{}).rootCommand()
	if strings.HasPrefix(synopsis, "…") {
		synopsis = "`promotion create`" + strings.TrimPrefix(synopsis, "…")
	}
	var paths []string
	var group *cobra.Command
	for part := range strings.SplitSeq(synopsis, " · ") {
		words := strings.Fields(strings.ReplaceAll(part, "`", " "))
		cmd, rest, err := root.Find(words)
		if group != nil {
			if inside, others, insideErr := group.Find(words); insideErr == nil && inside != group {
				cmd, rest, err = inside, others, nil
			}
		}
		if err != nil || cmd == root || cmd.HasSubCommands() {
			t.Errorf("docs/cli.md tells of %q, which is no command (%v, %q)", part, err, rest)
			continue
		}
		group = cmd.Parent()
		paths = append(paths, shortPath(cmd))
		cmd.InheritedFlags() // so that they are found below
		for _, flag := range docFlag.FindAllString(part, -1) {
			if name := strings.TrimPrefix(flag, "--"); cmd.Flags().Lookup(name) == nil {
				t.Errorf("docs/cli.md tells of %s for %s, which has no such flag", flag, cmd.CommandPath())
			}
		}
	}
	return paths
}
