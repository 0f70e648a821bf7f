package api

import (
	"bufio"
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

	"github.com/largesse/largesse/internal/payout"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const (
	// uploadIdleDefault is the longest pause within an upload; its whole length
	// has no bound.
	uploadIdleDefault = 30 * time.Second
	// uploadPaceLeast is how many bytes a second an upload has to bring, over the
	// length of such a pause: byte by byte is nobody's file.
	uploadPaceLeast = 32
	// uploadHead is how much of an upload has to have come before it takes a
	// place and memory, in bytes.
	uploadHead = 1 << 10
	// uploadsDefault is how many uploads are read at a time: one of the fastest
	// holds about a megabyte. Who comes then waits, for at most uploadPlaceWait.
	uploadsDefault  = 256
	uploadPlaceWait = 10 * time.Second
)

// UploadResult is the answer to a file of targets.
type UploadResult struct {
	UploadID   string      `json:"uploadId,omitempty" doc:"Absent for a dry run"`
	Accepted   int64       `json:"accepted"`
	Duplicates int64       `json:"duplicates" doc:"Known, and the same"`
	Conflicts  int64       `json:"conflicts" doc:"Known with another amount, user or code; nothing was changed"`
	Rejected   int64       `json:"rejected" doc:"Lines that are wrong"`
	Amount     int64       `json:"amount" doc:"Of the accepted ones, in minor units"`
	Errors     []LineError `json:"errors" nullable:"false" doc:"The first 100 rejected and conflicting lines"`
	ReportURL  string      `json:"reportUrl,omitempty" doc:"All of them as text/csv, up to 100,000; absent for a dry run"`
}

// LineError says why a line was not accepted.
type LineError struct {
	Line   int64  `json:"line" doc:"From 1, the header included"`
	Code   string `json:"code" example:"BAD_AMOUNT"`
	Detail string `json:"detail"`
}

func (a *API) addTargets() {
	a.Handle("upload-targets", "POST /v1/promotions/{id}/targets", a.uploadTargets)
	a.Handle("get-upload-report", "GET /v1/promotions/{id}/uploads/{uploadId}/report", a.uploadReport)

	registry := a.OpenAPI().Components.Schemas
	text := func(name, in string, required bool, doc string, s *huma.Schema) *huma.Param {
		return &huma.Param{Name: name, In: in, Required: required, Description: doc, Schema: s}
	}
	str, boolean := &huma.Schema{Type: huma.TypeString}, &huma.Schema{Type: huma.TypeBoolean}
	a.describe(huma.Operation{
		OperationID: "upload-targets", Method: http.MethodPost, Path: "/v1/promotions/{id}/targets", Tags: []string{"targets"},
		Summary: "Add targets from a file",
		Description: "Streamed, of any size, idempotent by target: the same file again is all duplicates. CSV has a header line with targetId and any of userId, amount, voucherCode; " +
			"NDJSON has one object a line with the same names. Bad lines are named and everything else goes on.",
		Parameters: []*huma.Param{
			text("id", "path", true, "Promotion id", str),
			text("dryRun", "query", false, "Check and total without accepting anything", boolean),
			text("Content-Encoding", "header", false, "", &huma.Schema{Type: huma.TypeString, Enum: []any{"gzip", "identity"}}),
		},
		RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			string(payout.FormatCSV):    {Schema: str, Example: "targetId,userId,amount\n7,u7,1000\n"},
			string(payout.FormatNDJSON): {Schema: str, Example: `{"targetId":"7","userId":"u7","amount":1000}` + "\n"},
		}},
		Responses: map[string]*huma.Response{
			"200": {Description: "Read to its end", Content: map[string]*huma.MediaType{
				"application/json": {Schema: registry.Schema(reflect.TypeFor[UploadResult](), true, "UploadResult")},
			}},
		},
	})
	a.describe(huma.Operation{
		OperationID: "get-upload-report", Method: http.MethodGet, Path: "/v1/promotions/{id}/uploads/{uploadId}/report", Tags: []string{"targets"},
		Summary:    "Every line of an upload that was not accepted, as CSV",
		Parameters: []*huma.Param{text("id", "path", true, "Promotion id", str), text("uploadId", "path", true, "", str)},
		Responses: map[string]*huma.Response{
			"200": {Description: "Columns line, code, detail", Content: map[string]*huma.MediaType{csvType: {Schema: str}}},
		},
	})
}

// uploadTargets streams a file into a promotion.
func (a *API) uploadTargets(w http.ResponseWriter, r *http.Request) {
	cmd, err := a.uploadCommand(w, r)
	if err != nil {
		a.Fail(w, r, err)
		return
	}
	ctx := r.Context()
	if ctx.Err() != nil {
		// The body broke off within its head, which is for Upload to find: what came
		// before is taken all the same.
		ctx = context.WithoutCancel(ctx)
	}
	if err := a.takeUploadPlace(ctx); err != nil {
		a.Fail(w, r, err)
		return
	}
	defer func() { <-a.uploads }()
	var res payout.UploadResult
	upload := func() (status int, err error) {
		res, err = a.cfg.Uploads.Upload(ctx, cmd)
		return http.StatusOK, err
	}
	if cmd.DryRun {
		_, err = upload()
	} else {
		err = a.audited(ctx, "upload-targets", "", upload)
	}
	if err != nil {
		a.Fail(w, r, err)
		return
	}
	out := UploadResult{
		Accepted: res.Accepted, Duplicates: res.Duplicates, Conflicts: res.Conflicts, Rejected: res.Rejected,
		Amount: int64(res.Amount), Errors: make([]LineError, len(res.Errors)),
	}
	for i, e := range res.Errors {
		out.Errors[i] = LineError(e)
	}
	if res.UploadID != 0 {
		out.UploadID = strconv.FormatInt(res.UploadID, 10)
		out.ReportURL = fmt.Sprintf("/v1/promotions/%s/uploads/%s/report", cmd.PromotionID, out.UploadID)
	}
	body, err := json.Marshal(out)
	if err != nil {
		a.Fail(w, r, fmt.Errorf("encode an upload's result: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // the caller may have gone
}

// uploadCommand reads everything about an upload but its body.
func (a *API) uploadCommand(w http.ResponseWriter, r *http.Request) (payout.UploadCommand, error) {
	var cmd payout.UploadCommand
	id, err := promotionID(r.PathValue("id"))
	if err != nil {
		return cmd, err
	}
	cmd.PromotionID = id
	if cmd.DryRun, err = dryRun(r); err != nil {
		return cmd, err
	}
	if cmd.Format, err = uploadFormat(r.Header.Get("Content-Type")); err != nil {
		return cmd, err
	}
	body := bufio.NewReaderSize(newGuardedBody(w, r, a.cfg.UploadIdle), uploadHead)
	switch encoding := strings.ToLower(strings.TrimSpace(strings.Join(r.Header.Values("Content-Encoding"), ","))); encoding {
	case "", "identity":
		cmd.Body = body
	case "gzip", "x-gzip":
		cmd.Body = &gzipBody{r: body}
	default:
		return cmd, unsupported("Content-Encoding " + reward.Quote(encoding) + " is neither gzip nor identity")
	}
	_, _ = body.Peek(uploadHead) // what stops it comes again behind what has come
	return cmd, nil
}

// takeUploadPlace waits for one of the places of a.uploads.
func (a *API) takeUploadPlace(ctx context.Context) error {
	late := time.NewTimer(uploadPlaceWait)
	defer late.Stop()
	select {
	case a.uploads <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-late.C:
		return web.NewProblem(http.StatusServiceUnavailable, CodeTooManyUploads,
			fmt.Sprintf("%d uploads are being read by this instance; none of this one was taken, send it again", cap(a.uploads)))
	}
}

// onlyQuery refuses query parameters with other names, as huma does.
func onlyQuery(q url.Values, names ...string) error {
	for name := range q {
		if !slices.Contains(names, name) {
			return web.Invalid(name, "unknown query parameter")
		}
	}
	return nil
}

func dryRun(r *http.Request) (bool, error) {
	q := r.URL.Query()
	if err := onlyQuery(q, "dryRun"); err != nil {
		return false, err
	}
	switch given := q["dryRun"]; {
	case len(given) == 0:
		return false, nil
	case len(given) == 1 && given[0] == "true":
		return true, nil
	case len(given) == 1 && given[0] == "false":
		return false, nil
	}
	return false, web.Malformed("dryRun", "must be true or false, once")
}

func uploadFormat(contentType string) (payout.Format, error) {
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return "", unsupported("Content-Type " + reward.Quote(contentType) + " must be text/csv or application/x-ndjson")
	}
	if charset := params["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
		return "", unsupported("charset " + reward.Quote(charset) + " is not UTF-8")
	}
	switch f := payout.Format(media); f {
	case payout.FormatCSV, payout.FormatNDJSON:
		return f, nil
	}
	return "", unsupported("Content-Type " + reward.Quote(contentType) + " must be text/csv or application/x-ndjson")
}

func unsupported(detail string) *web.Problem {
	return web.NewProblem(http.StatusUnsupportedMediaType, web.CodeUnsupportedMedia, detail)
}

// guardedBody bounds how slowly a body may come: an upload may last for hours,
// but neither stand still nor creep.
type guardedBody struct {
	r     io.Reader
	rc    *http.ResponseController
	idle  time.Duration
	least int // bytes that have to come within idle

	// The present stretch, which ends when so many bytes have come. What is done
	// with them is not the sender's time.
	came   int
	waited time.Duration

	err error // the first: of one that has broken off, net/http says later that it is whole
}

func newGuardedBody(w http.ResponseWriter, r *http.Request, idle time.Duration) *guardedBody {
	return &guardedBody{r: r.Body, rc: http.NewResponseController(w), idle: idle, least: max(1, int(uploadPaceLeast*idle.Seconds()))}
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
	// A connection without deadlines is a test's or a proxy's own affair.
	_ = b.rc.SetReadDeadline(began.Add(b.idle - b.waited))
	n, err := b.r.Read(p)
	b.came += n
	b.waited += time.Since(began)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, &reward.Error{
			Kind: reward.KindTimeout, Code: web.CodeBodyTimeout, Detail: fmt.Sprintf("no more than %d bytes came within %s, and %d are the least", b.came, b.idle, b.least), Err: err,
		}
	}
	if b.came >= b.least {
		b.came, b.waited = 0, 0
	}
	return n, err
}

// gzipBody unzips a body as it comes. What it may grow to is not bounded, and
// need not be: it is read line by line.
type gzipBody struct {
	r  io.Reader
	zr *gzip.Reader
}

func (b *gzipBody) Read(p []byte) (int, error) {
	if b.zr == nil {
		zr, err := gzip.NewReader(b.r)
		if err != nil {
			return 0, badGzip(err)
		}
		b.zr = zr
	}
	n, err := b.zr.Read(p)
	return n, badGzip(err)
}

// badGzip tells a body that is not gzip from one that broke off.
func badGzip(err error) error {
	if _, corrupt := errors.AsType[flate.CorruptInputError](err); corrupt || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) {
		return &reward.Error{Kind: reward.KindMalformed, Code: CodeBadGzip, Detail: "the body is not whole gzip", Err: err}
	}
	return err
}

// uploadReport streams the lines of an upload that were not accepted.
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
	if _, err := a.cfg.Uploads.Get(r.Context(), promotion, id); err != nil {
		return err
	}
	for after := int64(0); ; {
		errs, err := a.cfg.Uploads.Errors(r.Context(), id, after, store.BatchMax)
		if err != nil {
			return err
		}
		rows := make([][]string, len(errs))
		for i, e := range errs {
			rows[i] = []string{strconv.FormatInt(e.Line, 10), e.Code, e.Detail}
		}
		if err := out.Page(rows); err != nil {
			return err
		}
		if len(errs) < store.BatchMax {
			return nil
		}
		after = errs[len(errs)-1].Line
	}
}
