package main

import (
	"context"
	"iter"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) auditCommand() *cobra.Command {
	var f client.AuditFilter
	cmd := listCommand(c, c.talks(&cobra.Command{
		Use:   "audit",
		Short: "Show who changed what, latest first",
		Long: `Show who changed what, latest first. If a line has no status, the change began and
its outcome is unknown.`,
		Example: `  largesse audit
  largesse audit --subject /v1/promotions/12345/
  largesse audit --by alice --action start-promotion --output json`,
	}), listing[client.AuditLine]{
		header: []string{"AT", "ACTOR", "KEY", "ROLE", "ADDRESS", "ACTION", "SUBJECT", "STATUS", "CODE", "DETAIL"},
		row: func(l client.AuditLine) []string {
			status := ""
			if l.EndedAt != nil {
				status = strconv.Itoa(l.Status)
			}
			return []string{moment(&l.At), l.Actor, l.KeyID, l.Role, l.Address, l.Action, l.Subject, status, l.Code, l.Detail}
		},
		empty: "there are no changes",
		cuts:  []string{"SUBJECT", "DETAIL"},
	}, func(ctx context.Context, cl *client.Client, _ []string) iter.Seq2[client.AuditLine, error] {
		return cl.Audit(ctx, f)
	})
	flags := cmd.Flags()
	flags.StringVar(&f.Actor, "by", "", "only changes by this actor")
	flags.StringVar(&f.Action, "action", "", "only changes by this operation, e.g. start-promotion")
	flags.StringVar(&f.Subject, "subject", "", "only changes of this API path; a path that ends with / includes everything below it")
	return cmd
}
