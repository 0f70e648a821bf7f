package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

// reportCommand creates the command that writes the report of a promotion or a template.
func (c *cli) reportCommand(group, what string, write func(cl *client.Client, ctx context.Context, id string, file client.ReportFile, w io.Writer) error) *cobra.Command {
	var format, path string
	var file client.ReportFile
	cmd := &cobra.Command{
		Use:   "report ID",
		Short: "Write the report of " + what + " as CSV, .xlsx or JSON",
		Example: fmt.Sprintf(`  largesse %[1]s report 12345
  largesse %[1]s report 12345 --file report.xlsx --zone Asia/Seoul --language ko
  largesse %[1]s report 12345 --format json`, group),
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			format = strings.ToLower(format)
			switch {
			case format != "":
			case c.output == outputJSON:
				format = "json"
			default:
				format = strings.TrimPrefix(strings.ToLower(filepath.Ext(path)), ".")
			}
			if format != "xlsx" && format != "json" {
				format = "csv"
			}
			file.Format, file.Language = format, strings.ToLower(file.Language)
			if path == "" {
				return write(cl, ctx, args[0], file, c.stdout)
			}
			err := replaceFile(path, func(w io.Writer) error { return write(cl, ctx, args[0], file, w) })
			if err != nil {
				return err
			}
			return c.printLines("the report is in " + path)
		}),
	}
	choiceFlag(cmd, &format, "format", "csv, xlsx or json; default: by the name of --file, else csv", "csv", "xlsx", "json")
	cmd.Flags().StringVarP(&path, "file", "o", "", "file to write; default: stdout")
	cmd.Flags().StringVar(&file.Zone, "zone", "", "time zone of the days, e.g. Asia/Seoul; default: UTC")
	choiceFlag(cmd, &file.Language, "language", "language of csv and xlsx: en or ko; default: en", "en", "ko")
	return cmd
}
