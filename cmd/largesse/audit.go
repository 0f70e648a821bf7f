package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) auditCommand() *cobra.Command {
	var (
		limit int
		f     client.AuditFilter
	)
	cmd := c.talks(&cobra.Command{
		Use:   "audit",
		Short: "Show who changed what, latest first",
		Long: `Show who changed what, latest first. If a line has no status, the change began and
its outcome is unknown.`,
		Example: `  largesse audit
  largesse audit --subject /v1/promotions/12345/
  largesse audit --by alice --action start-promotion --output json`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLimit(limit); err != nil {
				return err
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			return printList(c, cl.Audit(cmd.Context(), f), listing[client.AuditLine]{
				header: []string{"AT", "ACTOR", "KEY", "ROLE", "ADDRESS", "ACTION", "SUBJECT", "STATUS", "CODE", "DETAIL"},
				row: func(l client.AuditLine) []string {
					status := ""
					if l.EndedAt != nil {
						status = strconv.Itoa(l.Status)
					}
					return []string{moment(&l.At), l.Actor, l.KeyID, l.Role, l.Address, l.Action, l.Subject, status, l.Code, l.Detail}
				},
				limit: limit,
				empty: "there are no changes",
				cuts:  []string{"SUBJECT", "DETAIL"},
			})
		},
	})
	limitFlag(cmd, &limit)
	flags := cmd.Flags()
	flags.StringVar(&f.Actor, "by", "", "only changes by this actor")
	flags.StringVar(&f.Action, "action", "", "only changes by this operation, e.g. start-promotion")
	flags.StringVar(&f.Subject, "subject", "", "only changes of this API path; a path that ends with / includes everything below it")
	return cmd
}
