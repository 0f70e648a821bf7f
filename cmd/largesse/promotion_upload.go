package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) promotionUploadCommand() *cobra.Command {
	var (
		format string
		dryRun bool
		strict bool
		major  bool
	)
	cmd := &cobra.Command{
		Use:   "upload ID FILE",
		Short: "Add targets from a file",
		Long: `Add targets from a file to a promotion. If you upload the same file again, all of
its targets are duplicates, and nobody is paid twice.

A CSV file starts with a header: targetId, and any of userId, amount and
voucherCode. An NDJSON file has one object per line with the same names. Invalid
lines are listed on stderr; all other lines are accepted.

The exit code is 1 if no line is accepted or known already, and with --strict if any
line is not. The lines that are accepted stay, and nothing starts the promotion.

Amounts are whole numbers in minor units: 1050 is 10.50 EUR. With --amounts major,
they are in major units of the promotion's currency: 10.50 is 10.50 EUR.

The name of the file decides its format: .csv, .ndjson or .jsonl, each with or
without .gz. Stdin (-) is CSV. --format overrides this.`,
		Example: `  largesse promotion upload 12345 targets.csv
  largesse promotion upload 12345 targets.ndjson.gz --dry-run --strict
  largesse promotion upload 12345 from-a-spreadsheet.csv --amounts major
  zcat targets.csv.gz | largesse promotion upload 12345 - --format csv`,
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			file, err := c.openTargets(args[1], format)
			if err != nil {
				return err
			}
			defer file.Close()
			result, err := c.upload(ctx, cl, args[0], file, dryRun, major)
			if err := showBy(c, result, err, func(r client.UploadResult) error { return c.printUpload(r, dryRun) }); err != nil {
				return err
			}
			if refused := refusedUpload(result, strict); refused != "" {
				return fmt.Errorf("%s; correct the file, and upload it again", refused)
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&format, "format", "", "format of the file: csv or ndjson; default: by the name of the file, csv for stdin")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "validate and sum up the file without adding targets")
	cmd.Flags().BoolVar(&strict, "strict", false, "fail if any line of the file is not accepted")
	unitsFlag(cmd, &major, "the amounts in the file")
	complete(cmd, "format", string(client.CSV), string(client.NDJSON))
	return cmd
}

type inputFile struct {
	io.ReadCloser
	size int64 // bytes; 0: unknown
}

// openInput opens a file, or stdin for "-".
func (c *cli) openInput(path string) (inputFile, error) {
	if path == "-" {
		return inputFile{ReadCloser: io.NopCloser(c.stdin)}, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return inputFile{}, err
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory", path)
	}
	if err != nil {
		_ = file.Close()
		return inputFile{}, err
	}
	return inputFile{file, info.Size()}, nil
}

type targetFile struct {
	inputFile
	format client.Format
	gzip   bool
}

// openTargets opens a file, or stdin for "-". Without a format, the name of the
// file decides it.
func (c *cli) openTargets(path, format string) (*targetFile, error) {
	f := &targetFile{}
	name := strings.ToLower(filepath.Base(path))
	name, f.gzip = strings.CutSuffix(name, ".gz")
	switch f.format = client.Format(strings.ToLower(format)); {
	case f.format == client.CSV || f.format == client.NDJSON:
	case format != "":
		return nil, wrongUse("--format %q must be csv or ndjson", format)
	case strings.HasSuffix(name, ".ndjson") || strings.HasSuffix(name, ".jsonl"):
		f.format = client.NDJSON
	case strings.HasSuffix(name, ".csv") || path == "-":
		f.format = client.CSV
	default:
		f.format = "" // refused below, if the file exists
	}
	var err error
	if f.inputFile, err = c.openInput(path); err != nil {
		return nil, fmt.Errorf("open the file of targets: %w", err)
	}
	if f.format == "" {
		_ = f.Close()
		return nil, wrongUse("the name of %s does not end with .csv, .ndjson or .jsonl (with or without .gz); add --format csv or --format ndjson", path)
	}
	return f, nil
}

// upload sends a file, with a progress bar on a terminal.
func (c *cli) upload(ctx context.Context, cl *client.Client, id string, file *targetFile, dryRun, major bool) (client.UploadResult, error) {
	bar := c.uploadBar(file.size)
	result, err := cl.UploadTargets(ctx, id, bar.reader(file), client.UploadOptions{Format: file.format, Gzip: file.gzip, DryRun: dryRun, MajorUnits: major})
	bar.finish(err == nil)
	if err != nil && passing(err) {
		return result, fmt.Errorf("%w; you can safely upload the same file again", err)
	}
	return result, err
}

// printUpload prints the counts of an upload. The lines that were not accepted
// go to stderr.
func (c *cli) printUpload(r client.UploadResult, dryRun bool) error {
	for _, e := range r.Errors {
		fmt.Fprintf(c.stderr, "line %d: %s %s\n", e.Line, printable(e.Code), printable(e.Detail))
	}
	if more := r.Rejected + r.Conflicts - int64(len(r.Errors)); more > 0 && r.ReportURL != "" {
		fmt.Fprintf(c.stderr, "and %s more; full report: %s\n", number(more), printable(r.ReportURL))
	}
	verb := "accepted"
	if dryRun {
		verb = "would be accepted"
	}
	return c.printLines(fmt.Sprintf("%s %s (amount %s), %s, %s, %s rejected",
		number(r.Accepted), verb, money(r.Amount, r.Currency), countOf(r.Duplicates, "duplicate"), countOf(r.Conflicts, "conflict"), number(r.Rejected)))
}
