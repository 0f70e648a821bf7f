package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/largesse/largesse/internal/lab/fixture"
)

var update = flag.Bool("update", false, "write docs/reference/commands.md again")

// commandsPage returns the reference of all commands. Flags of settings are on
// docs/settings.md.
func commandsPage() string {
	var b strings.Builder
	b.WriteString("# Commands\n\n" +
		"Every command with its flags and examples, as `--help` shows them. A test writes this page. [cli.md](../cli.md) has a table of all commands, and\n" +
		"what holds for each: output formats, exit codes, profiles. A command also has the flags of the groups that it is in. `serve`, `migrate`, `config` and\n" +
		"`doctor` have one more flag for each [setting](../settings.md).\n")
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if !cmd.IsAvailableCommand() && cmd.HasParent() {
			return
		}
		writeCommand(&b, cmd)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk((&cli{}).rootCommand())
	return b.String()
}

func writeCommand(b *strings.Builder, cmd *cobra.Command) {
	about := cmd.Long
	if about == "" {
		about = cmd.Short
	}
	fmt.Fprintf(b, "\n## %s\n\n```text\n%s\n", cmd.CommandPath(), strings.TrimSpace(about))
	if cmd.Runnable() {
		fmt.Fprintf(b, "\nUsage:\n  %s\n", cmd.UseLine())
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "\nExamples:\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	var own pflag.FlagSet
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && len(f.Annotations[settingAnnotation]) == 0 {
			own.AddFlag(f)
		}
	})
	if usages := own.FlagUsages(); usages != "" {
		fmt.Fprintf(b, "\nFlags:\n%s", usages)
	}
	b.WriteString("```\n")
}

// TestCommandsPage compares docs/reference/commands.md with the commands.
func TestCommandsPage(t *testing.T) {
	t.Parallel()
	const path = "../../docs/reference/commands.md"
	want := commandsPage()
	if *update {
		fixture.OK(t, os.WriteFile(path, []byte(want), 0o644))
	}
	if have, err := os.ReadFile(path); err != nil || string(have) != want {
		t.Errorf("%s is not current (%v); run: go test ./cmd/largesse -run TestCommandsPage -update", path, err)
	}
	if n := strings.Count(want, "\n## "); n < 60 {
		t.Errorf("the page has only %d commands", n)
	}
}
