package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) deadLetterCommand() *cobra.Command {
	cmd := c.talks(group(&cobra.Command{
		Use:     "deadletter",
		Aliases: []string{"deadletters"},
		Short:   "Look at messages that could not be read or processed",
		Example: "  largesse deadletter list",
	}))
	cmd.AddCommand(c.deadLetterListCommand())
	return cmd
}

func (c *cli) deadLetterListCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, the newest first",
		Example: `  largesse deadletter list
  largesse deadletter list --limit 0 --output json`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLimit(limit); err != nil {
				return err
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			return printList(c, cl.DeadLetters(cmd.Context()), listing[client.DeadLetter]{
				header: []string{"ID", "AT", "SOURCE", "PARTITION", "OFFSET", "REASON", "DETAIL"},
				row: func(d client.DeadLetter) []string {
					return []string{d.ID, moment(&d.At), d.Source, strconv.Itoa(int(d.Partition)), d.Offset, d.Reason, d.Detail}
				},
				limit: limit,
				empty: "there are no dead letters",
			})
		},
	}
	limitFlag(cmd, &limit)
	return cmd
}

// limitFlag bounds how much of a list is shown.
func limitFlag(cmd *cobra.Command, limit *int) {
	cmd.Flags().IntVar(limit, "limit", 50, "how many to show; 0: all")
}

func checkLimit(limit int) error {
	if limit < 0 {
		return wrongUse("--limit %d is below 0; 0 shows all", limit)
	}
	return nil
}
