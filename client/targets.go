package client

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Format is the format of a file of targets.
type Format string

// The formats. A CSV file starts with a header: targetId, and any of userId, amount and
// voucherCode, with commas, semicolons or tabs between them; TSV has tabs. An XLSX file is
// a workbook with such a table. An NDJSON file has one object per line with the same names.
const (
	CSV    Format = "csv"
	TSV    Format = "tsv"
	XLSX   Format = "xlsx"
	NDJSON Format = "ndjson"
)

// mediaTypes maps the formats to their media types.
var mediaTypes = map[Format]string{
	CSV: "text/csv", TSV: "text/tab-separated-values", NDJSON: "application/x-ndjson",
	XLSX: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}

// Upload is a file of targets that somebody has sent. Its numbers are zero until it
// ends.
type Upload struct {
	ID         string     `json:"id"`
	State      string     `json:"state" enum:"RUNNING,COMPLETED,INTERRUPTED"`
	FileName   string     `json:"fileName,omitempty"`
	CreatedBy  string     `json:"createdBy,omitempty"`
	CreatedAt  time.Time  `json:"createdAt"`
	FinishedAt *time.Time `json:"finishedAt,omitempty"`
	Bytes      int64      `json:"bytes" doc:"Decompressed; 0 until the upload ends"`
	Accepted   int64      `json:"accepted"`
	Duplicates int64      `json:"duplicates"`
	Conflicts  int64      `json:"conflicts" doc:"Known with another amount, user or code; not changed"`
	Rejected   int64      `json:"rejected"`
	Amount     int64      `json:"amount" doc:"May exceed 2^53"` // of the accepted targets
	Currency   string     `json:"currency,omitempty"`           // the promotion's
	ReportURL  string     `json:"reportUrl"`                    // path of the lines that were not accepted
	RefusedURL string     `json:"refusedUrl"`                   // path of these lines as a file to correct
}

// Uploads iterates over the uploads of a promotion, newest first.
func (c *Client) Uploads(ctx context.Context, id string) iter.Seq2[Upload, error] {
	return pages[Upload](ctx, c, []string{"v1", "promotions", id, "uploads"}, nil)
}

// PaidBefore says which other promotions have paid people of a promotion.
func (c *Client) PaidBefore(ctx context.Context, id string) (PaidBefore, error) {
	return get[PaidBefore](ctx, c, "v1", "promotions", id, "already-paid")
}

// UploadOptions describes an upload.
type UploadOptions struct {
	Format     Format // empty: CSV
	Gzip       bool   // whether the file is compressed with gzip
	DryRun     bool   // validate and sum up the file without accepting targets
	MajorUnits bool   // amounts are in major units: 10.50 are 1050 minor units of EUR
	// Columns says which column of the file is which, as in targetId=A,userId=B. Others are
	// ignored. Empty: the columns have the names targetId, userId, amount and voucherCode.
	Columns  string
	Encoding string // of CSV: utf-8, utf-16le, utf-16be or cp949; empty: detected
	Sheet    string // of XLSX; empty: the first one
	FileName string // shown in the list of uploads; up to 200 characters; CheckTargets ignores it
}

// query returns the query parameters that describe the file.
func (o UploadOptions) query() url.Values {
	q := filled(map[string]string{"columns": o.Columns, "encoding": o.Encoding, "sheet": o.Sheet})
	if o.MajorUnits {
		q.Set("amounts", "major")
	}
	return q
}

// request returns a request that sends the file.
func (o UploadOptions) request(path []string, file io.Reader) (request, error) {
	mediaType, ok := mediaTypes[cmp.Or(o.Format, CSV)]
	if !ok {
		return request{}, fmt.Errorf("the format %q must be %s, %s, %s or %s", o.Format, CSV, TSV, XLSX, NDJSON)
	}
	r := upload(path, mediaType, file, o.Gzip)
	r.query = o.query()
	return r, nil
}

// UploadResult is the result of an upload.
type UploadResult struct {
	UploadID   string      `json:"uploadId,omitempty"` // empty in a dry run
	Accepted   int64       `json:"accepted"`
	Duplicates int64       `json:"duplicates"` // known targets with the same values
	Conflicts  int64       `json:"conflicts" doc:"Known with another amount, user or code; not changed"`
	Rejected   int64       `json:"rejected"`
	Amount     int64       `json:"amount" doc:"May exceed 2^53"`                // total of the accepted targets, in minor units
	Currency   string      `json:"currency,omitempty"`                          // the promotion's
	Errors     []LineError `json:"errors" nullable:"false" doc:"The first 100"` // lines that were not accepted
	ReportURL  string      `json:"reportUrl,omitempty" doc:"CSV of up to 100,000"`
	RefusedURL string      `json:"refusedUrl,omitempty" doc:"The same lines as a file to correct and upload"`
}

// LineError explains why a line was not accepted.
type LineError struct {
	Line   int64    `json:"line" doc:"From 1, counting the header"`
	Code   string   `json:"code"`
	Detail string   `json:"detail"`
	Cells  []string `json:"cells,omitempty" doc:"As in the file"`
}

// CheckOptions describes a file of targets, and the promotion that it is for.
type CheckOptions struct {
	UploadOptions
	Type        string // POINT or VOUCHER; empty: POINT
	Currency    string
	Amount      int64  // of lines without one
	VoucherCode string // of lines without one
}

// TargetsCheck is what an upload of a file to a new promotion would do.
type TargetsCheck struct {
	Columns     TargetColumns `json:"columns"` // what was read, also by what the names of the columns suggest
	Header      []string      `json:"header" nullable:"false" doc:"The names of the columns"`
	Delimiter   string        `json:"delimiter,omitempty" doc:"Of CSV"`
	Encoding    string        `json:"encoding,omitempty" doc:"Of CSV"`
	Sheet       string        `json:"sheet,omitempty"`
	Sheets      []string      `json:"sheets,omitempty" doc:"All of the workbook"`
	Accepted    int64         `json:"accepted"`
	Duplicates  int64         `json:"duplicates" doc:"Repeats in the file"`
	Conflicts   int64         `json:"conflicts" doc:"Repeats with another amount, user or code"`
	Rejected    int64         `json:"rejected"`
	Amount      int64         `json:"amount" doc:"May exceed 2^53"` // total of the accepted targets, in minor units
	Currency    string        `json:"currency,omitempty"`
	Lines       []CheckedLine `json:"lines" nullable:"false" doc:"The first 20, and the first 100 that are not accepted"`
	AlreadyPaid []AlreadyPaid `json:"alreadyPaid" nullable:"false" doc:"At most 20 promotions"` // that paid people of the file, most of them first
}

// TargetColumns has the columns of a file that are read.
type TargetColumns struct {
	TargetID    string `json:"targetId,omitempty"`
	UserID      string `json:"userId,omitempty"`
	Amount      string `json:"amount,omitempty"`
	VoucherCode string `json:"voucherCode,omitempty"`
}

// CheckedLine is a line of a file.
type CheckedLine struct {
	Line        int64    `json:"line" doc:"From 1, counting the header"`
	Accepted    bool     `json:"accepted"`
	Cells       []string `json:"cells,omitempty" doc:"As in the file"`
	TargetID    string   `json:"targetId,omitempty"`
	UserID      string   `json:"userId,omitempty"`
	Amount      int64    `json:"amount,omitempty" maximum:"1000000000000000"`
	VoucherCode string   `json:"voucherCode,omitempty"`
	Code        string   `json:"code,omitempty"` // why it is not accepted
	Detail      string   `json:"detail,omitempty"`
}

// PaidBefore names the promotions that paid people of another promotion.
type PaidBefore struct {
	Targets    int64         `json:"targets" doc:"That were looked at"`
	Complete   bool          `json:"complete" doc:"False if the promotion has more targets than that"`
	Promotions []AlreadyPaid `json:"promotions" nullable:"false" doc:"At most 20"` // most people first
}

// AlreadyPaid says how many people of a file or of a promotion another promotion has paid.
type AlreadyPaid struct {
	PromotionID string `json:"promotionId"`
	Name        string `json:"name"`
	Count       int64  `json:"count" doc:"People"`
}

// CheckTargets says what an upload of a file to a new promotion would do, and changes
// nothing.
func (c *Client) CheckTargets(ctx context.Context, file io.Reader, o CheckOptions) (TargetsCheck, error) {
	r, err := o.request([]string{"v1", "targets", "check"}, file)
	if err != nil {
		return TargetsCheck{}, err
	}
	maps.Copy(r.query, filled(map[string]string{"type": o.Type, "currency": o.Currency, "voucherCode": o.VoucherCode}))
	if o.Amount != 0 {
		r.query.Set("amount", strconv.FormatInt(o.Amount, 10))
	}
	return call[TargetsCheck](ctx, c, r)
}

// UploadTargets streams a file of targets of any size, while ctx lives. You can
// upload the same file again: known targets are duplicates. Do not use the
// reader again after an error.
func (c *Client) UploadTargets(ctx context.Context, promotion string, file io.Reader, o UploadOptions) (UploadResult, error) {
	r, err := o.request([]string{"v1", "promotions", promotion, "targets"}, file)
	if err != nil {
		return UploadResult{}, err
	}
	if o.DryRun {
		r.query.Set("dryRun", "true")
	}
	if o.FileName != "" {
		r.query.Set("fileName", o.FileName)
	}
	out, err := call[UploadResult](ctx, c, r)
	for _, url := range []*string{&out.ReportURL, &out.RefusedURL} {
		if strings.HasPrefix(*url, "/") {
			whole := *c.base
			whole.User = nil
			*url = whole.JoinPath(*url).String()
		}
	}
	return out, err
}

// RefusedLines writes the refused lines of an upload to w as a CSV file to correct: it
// has the columns of the file and error, which uploads ignore. After an error, w may
// hold a part of it.
func (c *Client) RefusedLines(ctx context.Context, promotion, upload string, w io.Writer) error {
	return c.exportCSV(ctx, []string{"v1", "promotions", promotion, "uploads", upload, "refused"}, nil, w)
}

// upload returns a request that streams a file.
func upload(path []string, mediaType string, file io.Reader, gzip bool) request {
	r := request{
		method: http.MethodPost,
		path:   path,
		// The server can refuse before a large file is sent.
		header: http.Header{"Content-Type": {mediaType}, "Expect": {"100-continue"}},
		// Hide the type of the reader: net/http must not detect its length,
		// close it or rewind it.
		body:      io.NopCloser(struct{ io.Reader }{file}),
		unbounded: true,
	}
	if gzip {
		r.header.Set("Content-Encoding", "gzip")
	}
	return r
}
