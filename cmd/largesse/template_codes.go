package main

import (
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
		Args: templateArgs("a FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			file, err := c.openInput(args[1])
			if err != nil {
				return fmt.Errorf("open the file of codes: %w", err)
			}
			defer file.Close()
			bar := c.uploadBar(file.size)
			gzip := strings.HasSuffix(strings.ToLower(args[1]), ".gz")
			result, err := cl.ImportCodes(cmd.Context(), args[0], bar.reader(file), client.ImportOptions{Gzip: gzip})
			bar.finish(err == nil)
			if err != nil {
				return err
			}
			if c.output == outputJSON {
				return c.printJSON(result)
			}
			_, err = fmt.Fprintf(c.stdout, "%s imported, from %s to %s; template %s has %s\n%s", countOf(result.Accepted, "code"),
				printable(result.FirstCode), printable(result.LastCode), printable(args[0]), codesLeft(result.ImportedCodes),
				awaiting(args[0], result.TotalQuantity, result.AwaitingQuantity))
			return err
		},
	}
}

// codesLeft describes the codes that are left, and how many are missing.
func codesLeft(n client.ImportedCodes) string {
	text := fmt.Sprintf("%s left of %s", countOf(n.Left, "code"), number(n.Imported))
	if n.Missing > 0 {
		text += fmt.Sprintf("; %s cannot be issued until you import more codes", countOf(n.Missing, "coupon"))
	}
	return text
}
