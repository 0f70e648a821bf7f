package client

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Format is the format of a file of targets.
type Format string

// The formats. A CSV file starts with a header: targetId, and any of userId,
// amount and voucherCode. An NDJSON file has one object per line with the same
// names.
const (
	CSV    Format = "csv"
	NDJSON Format = "ndjson"
)

// mediaTypes maps the formats to their media types.
var mediaTypes = map[Format]string{CSV: "text/csv", NDJSON: "application/x-ndjson"}

// Upload is a file of targets that somebody has sent. Its numbers are zero until it
// ends.
type Upload struct {
	ID         string     `json:"id"`
	State      string     `json:"state" enum:"RUNNING,COMPLETED,INTERRUPTED"`
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
}

// Uploads iterates over the uploads of a promotion, newest first.
func (c *Client) Uploads(ctx context.Context, id string) iter.Seq2[Upload, error] {
	return pages[Upload](ctx, c, []string{"v1", "promotions", id, "uploads"}, nil)
}

// UploadOptions describes an upload.
type UploadOptions struct {
	Format     Format // empty: CSV
	Gzip       bool   // whether the file is compressed with gzip
	DryRun     bool   // validate and sum up the file without accepting targets
	MajorUnits bool   // amounts are in major units: 10.50 are 1050 minor units of EUR
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
}

// LineError explains why a line was not accepted.
type LineError struct {
	Line   int64  `json:"line" doc:"From 1, counting the header"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// UploadTargets streams a file of targets of any size, while ctx lives. You can
// upload the same file again: known targets are duplicates. Do not use the
// reader again after an error.
func (c *Client) UploadTargets(ctx context.Context, promotion string, file io.Reader, o UploadOptions) (UploadResult, error) {
	if o.Format == "" {
		o.Format = CSV
	}
	mediaType, ok := mediaTypes[o.Format]
	if !ok {
		return UploadResult{}, fmt.Errorf("the format %q must be %s or %s", o.Format, CSV, NDJSON)
	}
	r := upload([]string{"v1", "promotions", promotion, "targets"}, mediaType, file, o.Gzip)
	r.query = url.Values{}
	if o.DryRun {
		r.query.Set("dryRun", "true")
	}
	if o.MajorUnits {
		r.query.Set("amounts", "major")
	}
	out, err := call[UploadResult](ctx, c, r)
	if strings.HasPrefix(out.ReportURL, "/") {
		whole := *c.base
		whole.User = nil
		out.ReportURL = whole.JoinPath(out.ReportURL).String()
	}
	return out, err
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
