package api

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const (
	// uploadIdle is the longest pause within an upload. The duration of an
	// upload has no limit.
	uploadIdle = 30 * time.Second
	// uploadRateMin is the minimum rate of an upload in bytes per second, averaged
	// over such a pause. No real client sends single bytes.
	uploadRateMin = 32
	// uploadBytesMin is the number of bytes that must arrive before an upload gets a
	// slot and memory.
	uploadBytesMin = 1 << 10
	// uploadsDefault is the number of uploads that are read at a time. A fast upload
	// needs about a megabyte. Further ones wait for at most uploadSlotTimeout.
	uploadsDefault    = 256
	uploadSlotTimeout = 10 * time.Second
)

func (a *API) addTargets() {
	registry := a.OpenAPI().Components.Schemas
	text := func(name, in string, required bool, doc string, s *huma.Schema) *huma.Param {
		return &huma.Param{Name: name, In: in, Required: required, Description: doc, Schema: s}
	}
	str, boolean := &huma.Schema{Type: huma.TypeString}, &huma.Schema{Type: huma.TypeBoolean}
	a.handle(operation{
		id: "upload-targets", method: http.MethodPost, path: "/v1/promotions/{id}/targets", tag: "targets", roles: campaigners, long: true,
		summary: "Add targets from a file",
		description: "A repeat finds only duplicates. CSV has a header with targetId and any of userId, amount and voucherCode; " +
			"NDJSON an object with these names per line. A file that begins with { is NDJSON, unless its type is text/csv; the type may also be application/x-ndjson. " +
			"Valid lines are accepted, others reported.",
		parameters: []*huma.Param{
			text("id", "path", true, "Promotion ID", str),
			text("dryRun", "query", false, "", boolean),
			text("amounts", "query", false, "major: 10.50 are 1050 minor units of EUR; default minor", &huma.Schema{Type: huma.TypeString, Enum: []any{string(campaign.MinorUnits), string(campaign.MajorUnits)}}),
			text("Content-Encoding", "header", false, "", &huma.Schema{Type: huma.TypeString, Enum: []any{"gzip", "identity"}}),
		},
		body: fileBody(map[string]*huma.Example{
			"CSV":    {Value: "targetId,userId,amount\n7,u7,1000\n"},
			"NDJSON": {Value: `{"targetId":"7","userId":"u7","amount":1000}` + "\n"},
		}),
		responses: map[string]*huma.Response{
			"200": {Description: http.StatusText(http.StatusOK), Content: map[string]*huma.MediaType{
				"application/json": {Schema: registry.Schema(reflect.TypeFor[client.UploadResult](), true, "UploadResult")},
			}},
		},
		errors: []string{
			reward.CodeNotFound, CodeBadGzip, campaign.CodeBodyBroken, campaign.CodeEmptyFile, campaign.CodeNoHeader, campaign.CodeUnknownColumn,
			campaign.CodeDuplicateColumn, campaign.CodeInvalidUTF8, reward.CodeAmountOverflow, campaign.CodeDryRunTooLarge, campaign.CodeUploadInterrupted,
			CodeTooManyUploads, reward.CodeArchived,
		},
	}, a.uploadTargets)
	a.handle(operation{
		id: "get-upload-report", method: http.MethodGet, path: "/v1/promotions/{id}/uploads/{uploadId}/report", tag: "targets", roles: readers,
		summary:    "Get an upload report",
		parameters: []*huma.Param{text("id", "path", true, "Promotion ID", str), text("uploadId", "path", true, "", str)},
		responses: map[string]*huma.Response{
			"200": {Description: "Columns line, code, detail", Content: map[string]*huma.MediaType{csvType: {Schema: str}}},
		},
		errors: []string{reward.CodeUploadNotFound},
	}, a.uploadReport)
}

func (a *API) uploadTargets(w http.ResponseWriter, r *http.Request) {
	cmd, err := a.uploadCommand(w, r)
	if err != nil {
		a.Fail(w, r, err)
		return
	}
	ctx, release, err := a.beginUpload(r.Context())
	if err != nil {
		a.Fail(w, r, err)
		return
	}
	defer release()
	var res campaign.UploadResult
	upload := func() (err error) {
		res, err = a.cfg.Uploads.Upload(ctx, cmd)
		if err != nil && res.UploadID != 0 {
			err = partly{err}
		}
		return err
	}
	if cmd.DryRun {
		err = upload()
	} else {
		err = a.audited(ctx, "upload-targets", "", http.StatusOK, upload)
	}
	if err != nil {
		a.Fail(w, r, err)
		return
	}
	out := client.UploadResult{
		Accepted: res.Accepted, Duplicates: res.Duplicates, Conflicts: res.Conflicts, Rejected: res.Rejected,
		Amount: int64(res.Amount), Currency: res.Currency, Errors: mapped(res.Errors, func(e store.LineError) client.LineError { return client.LineError(e) }),
	}
	if res.UploadID != 0 {
		out.UploadID = strconv.FormatInt(res.UploadID, 10)
		out.ReportURL = reportURL(cmd.PromotionID, res.UploadID)
	}
	writeJSON(w, out)
}

func writeJSON(w http.ResponseWriter, result any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(result) // the caller may have left
}

// uploadCommand parses an upload request except its body.
func (a *API) uploadCommand(w http.ResponseWriter, r *http.Request) (campaign.UploadCommand, error) {
	var cmd campaign.UploadCommand
	id, err := promotionID(r.PathValue("id"))
	if err != nil {
		return cmd, err
	}
	cmd.PromotionID, cmd.By = id, actor(r.Context())
	if cmd.DryRun, cmd.Units, err = uploadQuery(r.URL.Query()); err != nil {
		return cmd, err
	}
	if cmd.Format, err = uploadFormat(r.Header.Get("Content-Type"), campaign.FormatCSV, campaign.FormatNDJSON, formatAny); err != nil {
		return cmd, err
	}
	if cmd.Body, err = a.uploadBody(w, r); err == nil && cmd.Format == formatAny {
		cmd.Format, cmd.Body = detectFormat(cmd.Body)
	}
	return cmd, err
}

// formatAny is the media type of files whose format their first character shows, for
// generated clients: some of them cannot send text/csv.
const formatAny campaign.Format = "application/octet-stream"

// fileBody describes a body that is a file. It has no other media type: generators of
// clients warn of each that they cannot send, so descriptions name these in words.
func fileBody(examples map[string]*huma.Example) *huma.RequestBody {
	return &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		string(formatAny): {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}, Examples: examples},
	}}
}

// detectFormat returns the format of a file, and the whole file. Space at the beginning
// does not count, nor does a byte order mark.
func detectFormat(body io.Reader) (campaign.Format, io.Reader) {
	r := bufio.NewReader(body)
	for n := 1; n <= r.Size(); n++ {
		head, err := r.Peek(n)
		if err != nil {
			break // the reader of the file reports it
		}
		if head = bytes.TrimLeft(head, "\ufeff \t\r\n"); len(head) == 0 || bytes.HasPrefix([]byte("\ufeff"), head) {
			continue
		}
		if head[0] == '{' {
			return campaign.FormatNDJSON, r
		}
		break
	}
	return campaign.FormatCSV, r
}

// uploadBody returns the body of an upload, decompressed. It waits for the first
// bytes.
func (a *API) uploadBody(w http.ResponseWriter, r *http.Request) (out io.Reader, err error) {
	body := bufio.NewReaderSize(newGuardedBody(w, r, uploadIdle), uploadBytesMin)
	switch encoding := strings.ToLower(strings.TrimSpace(strings.Join(r.Header.Values("Content-Encoding"), ","))); encoding {
	case "", "identity":
		out = body
	case "gzip", "x-gzip":
		out = &gzipBody{r: body}
	default:
		return nil, unsupported("Content-Encoding " + reward.Quote(encoding) + " is neither gzip nor identity")
	}
	_, _ = body.Peek(uploadBytesMin) // an error is returned again by Read, after the bytes before it
	return out, nil
}

// beginUpload waits for a slot of uploads, and returns the context to read one with.
func (a *API) beginUpload(ctx context.Context) (_ context.Context, release func(), err error) {
	if ctx.Err() != nil {
		// The body ended within its first bytes. Its reader reports that; of a file of
		// targets, those before the end are still accepted.
		ctx = context.WithoutCancel(ctx)
	}
	release, err = take(ctx, a.uploads, uploadSlotTimeout, func() error {
		return web.NewProblem(http.StatusServiceUnavailable, CodeTooManyUploads,
			fmt.Sprintf("this instance already reads %d uploads and accepted nothing of this one; send it again", cap(a.uploads)))
	})
	return ctx, release, err
}

// onlyQuery refuses query parameters with other names, like huma.
func onlyQuery(q url.Values, names ...string) error {
	for name := range q {
		if !slices.Contains(names, name) {
			return web.Invalid(name, "unknown query parameter")
		}
	}
	return nil
}

func uploadQuery(q url.Values) (dryRun bool, units campaign.Units, err error) {
	if err := onlyQuery(q, "dryRun", "amounts"); err != nil {
		return false, "", err
	}
	dry, err := eitherOf(q, "dryRun", "false", "true")
	if err != nil {
		return false, "", err
	}
	amounts, err := eitherOf(q, "amounts", string(campaign.MinorUnits), string(campaign.MajorUnits))
	return dry == "true", campaign.Units(amounts), err
}

// eitherOf returns a query parameter, which must be one of the two values. Without it,
// it is the first.
func eitherOf(q url.Values, name, usual, other string) (string, error) {
	switch given := q[name]; {
	case len(given) == 0:
		return usual, nil
	case len(given) == 1 && (given[0] == usual || given[0] == other):
		return given[0], nil
	}
	return "", web.Malformed(name, "must be "+usual+" or "+other+", once")
}

// uploadFormat returns the format of an upload, which must be one of the given.
func uploadFormat(contentType string, formats ...campaign.Format) (campaign.Format, error) {
	media, params, err := mime.ParseMediaType(contentType)
	if charset := params["charset"]; err == nil && charset != "" && !strings.EqualFold(charset, "utf-8") {
		return "", unsupported("charset " + reward.Quote(charset) + " is not UTF-8")
	}
	if f := campaign.Format(media); err == nil && slices.Contains(formats, f) {
		return f, nil
	}
	return "", unsupported("Content-Type " + reward.Quote(contentType) + " must be " + strings.Join(texts(formats), " or "))
}

func unsupported(detail string) *web.Problem {
	return web.NewProblem(http.StatusUnsupportedMediaType, web.CodeUnsupportedMedia, detail)
}

// guardedBody enforces a minimum rate of a body. An upload may take hours, but it
// must make progress.
type guardedBody struct {
	r     io.Reader
	rc    *http.ResponseController
	idle  time.Duration
	least int // bytes that must arrive within idle

	// These measure the current interval, which ends when least bytes have arrived.
	// The time to process them does not count.
	came   int
	waited time.Duration

	err error // the first error; net/http later reports a broken body as complete
}

func newGuardedBody(w http.ResponseWriter, r *http.Request, idle time.Duration) *guardedBody {
	return &guardedBody{r: r.Body, rc: http.NewResponseController(w), idle: idle, least: max(1, int(uploadRateMin*idle.Seconds()))}
}

func (b *guardedBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	var n int
	n, b.err = b.read(p)
	return n, b.err
}

func (b *guardedBody) read(p []byte) (int, error) {
	began := time.Now()
	// Only connections of tests and proxies have no deadlines.
	_ = b.rc.SetReadDeadline(began.Add(b.idle - b.waited))
	n, err := b.r.Read(p)
	b.came += n
	b.waited += time.Since(began)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, &reward.Error{
			Kind: reward.KindTimeout, Code: web.CodeBodyTimeout, Detail: fmt.Sprintf("only %d bytes arrived within %s; at least %d are required", b.came, b.idle, b.least), Err: err,
		}
	}
	if b.came >= b.least {
		b.came, b.waited = 0, 0
	}
	return n, err
}

// gzipBody decompresses a body as it is read. The size needs no limit, because the
// body is processed line by line.
type gzipBody struct {
	r   io.Reader
	zr  *gzip.Reader
	err error // why there is no zr
}

func (b *gzipBody) Read(p []byte) (int, error) {
	if b.zr == nil && b.err == nil {
		if b.zr, b.err = gzip.NewReader(b.r); b.err != nil {
			b.zr = nil
		}
	}
	if b.err != nil {
		return 0, badGzip(b.err)
	}
	n, err := b.zr.Read(p)
	return n, badGzip(err)
}

// badGzip converts the errors of a body that is not gzip. Other errors stay.
func badGzip(err error) error {
	if _, corrupt := errors.AsType[flate.CorruptInputError](err); corrupt || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) {
		return &reward.Error{Kind: reward.KindMalformed, Code: CodeBadGzip, Detail: "the body is not valid gzip", Err: err}
	}
	return err
}

func (a *API) uploadReport(w http.ResponseWriter, r *http.Request) {
	out := web.NewCSV(w, "upload-"+r.PathValue("uploadId")+".csv", "line", "code", "detail")
	a.EndCSV(out, r, a.report(r, out))
}

func (a *API) report(r *http.Request, out *web.CSV) error {
	if err := onlyQuery(r.URL.Query()); err != nil {
		return err
	}
	promotion, err := promotionID(r.PathValue("id"))
	if err != nil {
		return err
	}
	id, err := web.IDOf("upload", r.PathValue("uploadId"))
	if err != nil {
		return web.Malformed("uploadId", err.Error())
	}
	leave, err := a.reads.enterExport(limitName(callerOf(r.Context()).Principal))
	if err != nil {
		return err
	}
	defer leave()
	for after := int64(0); ; {
		var errs []store.LineError
		err := a.readPage(r.Context(), after == 0, func(ctx context.Context) (err error) {
			if after == 0 {
				if _, err := a.cfg.Rows.UploadGet(ctx, promotion, id); err != nil {
					return err
				}
			}
			errs, err = a.cfg.Rows.UploadErrors(ctx, id, after, store.BatchMax)
			return err
		})
		if err != nil {
			return err
		}
		rows := mapped(errs, func(e store.LineError) []string { return []string{strconv.FormatInt(e.Line, 10), e.Code, e.Detail} })
		if err := out.Page(rows); err != nil {
			return err
		}
		if len(errs) < store.BatchMax {
			return nil
		}
		after = errs[len(errs)-1].Line
	}
}
