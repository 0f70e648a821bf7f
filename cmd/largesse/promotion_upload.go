package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/sheet"
)

func (c *cli) promotionUploadCommand() *cobra.Command {
	var (
		format  string
		dryRun  bool
		strict  bool
		refused string
		options fileOptions
	)
	cmd := &cobra.Command{
		Use:   "upload ID FILE",
		Short: "Add targets from a file",
		Long: `Add targets from a file to a promotion. If you upload the same file again, all of
its targets are duplicates, and nobody is paid twice.

A CSV file or the sheet of an .xlsx file starts with a header: targetId, and any of
userId, amount and voucherCode. With --columns, it has names of its own, and other
columns are ignored. Commas, semicolons or tabs are between cells. An NDJSON file has
one object per line with our names. Invalid lines are listed on stderr; all other lines
are accepted.

The exit code is 1 if no line is accepted or known already, and with --strict if any
line is not. The lines that are accepted stay, and nothing starts the promotion.

Amounts are whole numbers in minor units: 1050 is 10.50 EUR. With --amounts major,
they are in major units of the promotion's currency: 10.50 is 10.50 EUR.

The name of the file decides its format: .csv, .txt, .tsv, .xlsx, .ndjson or .jsonl,
each with or without .gz. Stdin (-) is CSV. --format overrides this.`,
		Example: `  largesse promotion upload 12345 targets.csv
  largesse promotion upload 12345 targets.ndjson.gz --dry-run --strict
  largesse promotion upload 12345 from-a-spreadsheet.csv --amounts major
  largesse promotion upload 12345 targets.csv --refused to-correct.csv
  largesse promotion upload 12345 members.xlsx --sheet November --columns "targetId=Member no,amount=Points"
  zcat targets.csv.gz | largesse promotion upload 12345 - --format csv`,
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			if refused != "" && dryRun {
				return wrongUse("--refused needs an upload; a dry run stores no lines")
			}
			file, err := c.openTargets(args[1], format)
			if err != nil {
				return err
			}
			defer file.Close()
			o := options.of(file)
			o.DryRun = dryRun
			result, err := c.upload(ctx, cl, args[0], file, o)
			if err := showBy(c, result, err, func(r client.UploadResult) error { return c.printUpload(r, dryRun) }); err != nil {
				return err
			}
			if refused != "" && result.Rejected+result.Conflicts > 0 {
				if err := writeRefused(ctx, cl, args[0], result.UploadID, refused); err != nil {
					return err
				}
			}
			if wrong := refusedUpload(result, strict); wrong != "" {
				return fmt.Errorf("%s; correct the file, and upload it again", wrong)
			}
			return nil
		}),
	}
	formatFlag(cmd, &format)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "validate and sum up the file without adding targets")
	cmd.Flags().BoolVar(&strict, "strict", false, "fail if any line of the file is not accepted")
	cmd.Flags().StringVar(&refused, "refused", "", "new file for the lines that were not accepted, to correct and upload")
	options.flags(cmd, "the amounts in the file")
	return cmd
}

// writeRefused writes the refused lines of an upload to a new file.
func writeRefused(ctx context.Context, cl *client.Client, promotion, upload, path string) (err error) {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the refused lines: %w", err)
	}
	if err := cl.RefusedLines(ctx, promotion, upload, out); err != nil {
		return fmt.Errorf("write the refused lines: %w", errors.Join(err, out.Close(), os.Remove(path)))
	}
	return out.Close()
}

func formatFlag(cmd *cobra.Command, format *string) {
	cmd.Flags().StringVar(format, "format", "", "format of the file: csv, tsv, xlsx or ndjson; default: by the name of the file, csv for stdin")
	complete(cmd, "format", string(client.CSV), string(client.TSV), string(client.XLSX), string(client.NDJSON))
}

// fileOptions holds the flags that say how a file of targets is read.
type fileOptions struct {
	columns, encoding, sheet string
	major                    bool
}

// flags adds them; amounts says what --amounts is about.
func (o *fileOptions) flags(cmd *cobra.Command, amounts string) {
	flags := cmd.Flags()
	var encodings []string
	flags.StringVar(&o.columns, "columns", "", "which column of the file is which, by name, letter or number, e.g. targetId=A,userId=B; default: by our names")
	flags.StringVar(&o.encoding, "encoding", "", "encoding of CSV: utf-8, utf-16le, utf-16be or cp949; default: detected")
	flags.StringVar(&o.sheet, "sheet", "", "sheet of an .xlsx file; default: the first one")
	unitsFlag(cmd, &o.major, amounts)
	for _, e := range sheet.Encodings {
		encodings = append(encodings, string(e))
	}
	complete(cmd, "encoding", encodings...)
}

// of returns the options for a file.
func (o *fileOptions) of(f *targetFile) client.UploadOptions {
	return client.UploadOptions{Format: f.format, Gzip: f.gzip, MajorUnits: o.major, Columns: o.columns, Encoding: o.encoding, Sheet: o.sheet, FileName: f.name}
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
	name   string // empty: stdin, or none that the server takes
	format client.Format
	gzip   bool
}

// formatOfName maps the ends of file names to formats. Excel saves its "Unicode text" as
// .txt.
var formatOfName = map[string]client.Format{
	".csv": client.CSV, ".txt": client.CSV, ".tsv": client.TSV, ".tab": client.TSV, ".xlsx": client.XLSX, ".ndjson": client.NDJSON, ".jsonl": client.NDJSON,
}

// openTargets opens a file, or stdin for "-". Without a format, the name of the
// file decides it.
func (c *cli) openTargets(path, format string) (*targetFile, error) {
	f := &targetFile{}
	if base := filepath.Base(path); path != "-" && reward.CheckFileName(base) == nil {
		f.name = base
	}
	name := strings.ToLower(filepath.Base(path))
	name, f.gzip = strings.CutSuffix(name, ".gz")
	f.format = client.Format(strings.ToLower(format))
	switch {
	case format == "" && path == "-":
		f.format = client.CSV
	case format == "":
		f.format = formatOfName[filepath.Ext(name)] // an unknown one is refused below, if the file exists
	case !slices.Contains(slices.Collect(maps.Values(formatOfName)), f.format):
		return nil, wrongUse("--format %q must be csv, tsv, xlsx or ndjson", format)
	}
	var err error
	if f.inputFile, err = c.openInput(path); err != nil {
		return nil, fmt.Errorf("open the file of targets: %w", err)
	}
	if f.format == "" {
		_ = f.Close()
		return nil, wrongUse("the name of %s does not end with .csv, .txt, .tsv, .xlsx, .ndjson or .jsonl (with or without .gz); add --format csv, tsv, xlsx or ndjson", path)
	}
	return f, nil
}

// upload sends a file, with a progress bar on a terminal.
func (c *cli) upload(ctx context.Context, cl *client.Client, id string, file *targetFile, o client.UploadOptions) (client.UploadResult, error) {
	bar := c.uploadBar(file.size)
	result, err := cl.UploadTargets(ctx, id, bar.reader(file), o)
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
