package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) templateCodesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "codes ID FILE",
		Short: "Import the codes of a coupon template from a file",
		Long: `Import the codes of a coupon template from a file with one code per line, which may
begin with a header such as code. Either all codes of the file are imported or none.
Coupons get the codes in the order of the file, each once. The code of a cancelled
coupon is not given again.

The first file must come before the first coupon, and must have a code for each
coupon to issue. Later files add codes. A file whose name ends with .gz is
compressed; - reads from stdin.`,
		Example: `  largesse template codes 42 codes.csv
  largesse template codes 42 codes.csv.gz --output json
  zcat codes.csv.gz | largesse template codes 42 -`,
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			file, err := c.openInput(args[1])
			if err != nil {
				return fmt.Errorf("open the file of codes: %w", err)
			}
			defer file.Close()
			bar := c.uploadBar(file.size)
			gzip := strings.HasSuffix(strings.ToLower(args[1]), ".gz")
			result, err := cl.ImportCodes(ctx, args[0], bar.reader(file), client.ImportOptions{Gzip: gzip})
			bar.finish(err == nil)
			return c.show(result, err,
				fmt.Sprintf("%s imported, from %s to %s; template %s has %s", countOf(result.Accepted, "code"), result.FirstCode, result.LastCode,
					args[0], codesLeft(result.ImportedCodes)),
				awaiting(args[0], result.TotalQuantity, result.AwaitingQuantity))
		}),
	}
}

func codesLeft(n client.ImportedCodes) string {
	text := fmt.Sprintf("%s left of %s", countOf(n.Left, "code"), number(n.Imported))
	if n.Missing > 0 {
		text += fmt.Sprintf("; %s cannot be issued until you import more codes", countOf(n.Missing, "coupon"))
	}
	return text
}
