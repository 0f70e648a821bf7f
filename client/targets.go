package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Format is the form of a file of targets.
type Format string

// The formats. A CSV file begins with a header: targetId, and optionally
// userId, amount and voucherCode; NDJSON is one such object per line.
const (
	CSV    Format = "csv"
	NDJSON Format = "ndjson"
)

// mediaTypes are the formats' names in HTTP.
var mediaTypes = map[Format]string{CSV: "text/csv", NDJSON: "application/x-ndjson"}

// UploadOptions say what is uploaded.
type UploadOptions struct {
	Format Format // empty: CSV
	Gzip   bool   // the file is compressed with gzip already
	DryRun bool   // check and total, accept nothing
}

// UploadResult says what became of the lines of a file.
type UploadResult struct {
	UploadID   string `json:"uploadId,omitempty"` // empty for a dry run
	Accepted   int64  `json:"accepted"`
	Duplicates int64  `json:"duplicates"` // known already, and the same
	Conflicts  int64  `json:"conflicts"`  // known with another amount or code; nothing changed
	Rejected   int64  `json:"rejected"`
	Amount     int64  `json:"amount"` // of the accepted, in minor units
	// Errors are the first lines that were not accepted; ReportURL, a CSV file
	// on the server, has all.
	Errors    []LineError `json:"errors,omitempty"`
	ReportURL string      `json:"reportUrl,omitempty"`
}

// LineError says why a line was not accepted.
type LineError struct {
	Line   int64  `json:"line"` // from 1, the header included
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// UploadTargets streams a file of targets, of any size and for as long as ctx
// lives. Uploading the same file again is safe: what is known is a duplicate.
// The reader must not be used again after an error.
func (c *Client) UploadTargets(ctx context.Context, promotion string, file io.Reader, o UploadOptions) (UploadResult, error) {
	if o.Format == "" {
		o.Format = CSV
	}
	mediaType, ok := mediaTypes[o.Format]
	if !ok {
		return UploadResult{}, fmt.Errorf("the format %q is neither %s nor %s", o.Format, CSV, NDJSON)
	}
	r := request{
		method: http.MethodPost,
		path:   []string{"v1", "promotions", promotion, "targets"},
		// A server that refuses says so before a large file is on its way.
		header: http.Header{"Content-Type": {mediaType}, "Expect": {"100-continue"}},
		// The reader is hidden, so that net/http neither learns its length nor
		// closes or rewinds it: it stays the caller's.
		body:      io.NopCloser(struct{ io.Reader }{file}),
		unbounded: true,
	}
	if o.Gzip {
		r.header.Set("Content-Encoding", "gzip")
	}
	if o.DryRun {
		r.query = url.Values{"dryRun": {"true"}}
	}
	var out UploadResult
	if err := c.call(ctx, r, &out); err != nil {
		return UploadResult{}, err
	}
	if strings.HasPrefix(out.ReportURL, "/") {
		whole := *c.base
		whole.User = nil
		out.ReportURL = whole.JoinPath(out.ReportURL).String()
	}
	return out, nil
}
