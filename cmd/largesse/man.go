package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

const manSection = "1"

type manPages struct {
	Dir   string `json:"dir"`
	Pages int    `json:"pages"`
}

func (c *cli) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man [DIR]",
		Short: "Write the man pages of all commands",
		Long: `Write the man pages of all commands to the directory DIR, by default ./man. It is
created if it does not exist. Existing pages are replaced.`,
		Example: `  largesse man
  largesse man /usr/local/share/man/man1
  man -l man/largesse-promotion-create.1`,
		Args: atMostOne("at most one DIR"),
		ValidArgsFunction: func(_ *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(given) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "man"
			if len(args) == 1 {
				dir = args[0]
			}
			pages, err := writeManPages(cmd.Root(), dir)
			return c.show(pages, err, fmt.Sprintf("%s written to %s; read one with: man -l %s/largesse.%s",
				countOf(int64(pages.Pages), "page"), dir, shellWord(dir), manSection))
		},
	}
}

func writeManPages(root *cobra.Command, dir string) (manPages, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // all users may read man pages
		return manPages{}, fmt.Errorf("create the directory of the man pages: %w", err)
	}
	root.DisableAutoGenTag = true
	b := buildVersion()
	// With the time of the commit, the same source always makes the same pages.
	header := &doc.GenManHeader{Section: manSection, Source: "largesse " + b.Version, Manual: "Largesse Manual", Date: b.at}
	if err := doc.GenManTree(root, header, dir); err != nil {
		return manPages{}, fmt.Errorf("write the man pages: %w", err)
	}
	return manPages{Dir: dir, Pages: countCommands(root)}, nil
}

func countCommands(cmd *cobra.Command) int {
	n := 1
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			n += countCommands(sub)
		}
	}
	return n
}
