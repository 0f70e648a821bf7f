package main

import (
	"github.com/spf13/cobra"

	"github.com/largesse/largesse/internal/lab"
)

func (c *cli) demoCommand() *cobra.Command {
	var d lab.Demo
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Pay two campaigns and run a coupon drop on the embedded engines, and check the books",
		Long: `Pay one campaign of points from a CSV file and one campaign of vouchers from Kafka
messages, through a provider that is slow, sometimes fails and loses responses.
Then run a coupon drop: a crowd of shoppers requests a limited stock over HTTP,
first come, first served. Last, a coupon that its user does not confirm in time
goes to the next one.

Everything runs in this process; you need not install or start anything else. At the
end, the demo prints the books of both sides and checks every invariant. The exit
code is 0 only if all of them hold.`,
		Example: `  largesse demo
  largesse demo --targets 2000 --shoppers 500 --coupons 50
  largesse demo --targets 2000 --output json
  largesse demo --open
  largesse demo --keep --data ./demo-data`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := c.quiet()
			d.Version, d.Out = buildVersion().Version, w.stdout
			d.Show = func() lab.Screen { return newBars(w) }
			d.Done = func(result lab.DemoResult) error {
				if c.output == outputTable {
					return nil
				}
				return c.printJSON(result)
			}
			return d.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	countFlag(flags, &d.Targets, "targets", 20_000, "targets of each campaign, 1 to 1000000", 1, 1_000_000)
	countFlag(flags, &d.Coupons, "coupons", 1_000, "coupons of the drop, 1 to 100000", 1, 100_000)
	countFlag(flags, &d.Shoppers, "shoppers", 10_000, "shoppers who request one, 1 to 1000000", 1, 1_000_000)
	flags.BoolVar(&d.Keep, "keep", false, "keep the server running afterwards, until it is interrupted")
	flags.BoolVar(&d.Open, "open", false, "first print the address of the web console, in which you can watch and steer; implies --keep")
	flags.StringVar(&d.Dir, "data", "", "directory for the data of the demo; default: a temporary one, removed at the end")
	return cmd
}
