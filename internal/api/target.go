package api

import (
	"compress/flate"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/payout"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// uploadIdleDefault is the longest pause within an upload; its whole length
// has no bound.
const uploadIdleDefault = 30 * time.Second

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
	a.mux.HandleFunc("POST /v1/promotions/{id}/targets", a.uploadTargets)
	a.mux.HandleFunc("GET /v1/promotions/{id}/uploads/{uploadId}/report", a.uploadReport)

	registry := a.huma.OpenAPI().Components.Schemas
	problem := registry.Schema(reflect.TypeFor[Problem](), true, "Problem")
	refusals := func(into map[string]*huma.Response, statuses ...int) map[string]*huma.Response {
		for _, s := range statuses {
			into[strconv.Itoa(s)] = &huma.Response{
				Description: http.StatusText(s), Content: map[string]*huma.MediaType{problemType: {Schema: problem}},
			}
		}
		return into
	}
	text := func(name, in string, required bool, doc string, s *huma.Schema) *huma.Param {
		return &huma.Param{Name: name, In: in, Required: required, Description: doc, Schema: s}
	}
	str, boolean := &huma.Schema{Type: huma.TypeString}, &huma.Schema{Type: huma.TypeBoolean}
	a.huma.OpenAPI().AddOperation(&huma.Operation{
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
			string(payout.FormatCSV): {Schema: str}, string(payout.FormatNDJSON): {Schema: str},
		}},
		Responses: refusals(map[string]*huma.Response{
			"200": {Description: "Read to its end", Content: map[string]*huma.MediaType{
				"application/json": {Schema: registry.Schema(reflect.TypeFor[UploadResult](), true, "UploadResult")},
			}},
		}, http.StatusBadRequest, http.StatusNotFound, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity,
			http.StatusInternalServerError, http.StatusServiceUnavailable),
	})
	a.huma.OpenAPI().AddOperation(&huma.Operation{
		OperationID: "get-upload-report", Method: http.MethodGet, Path: "/v1/promotions/{id}/uploads/{uploadId}/report", Tags: []string{"targets"},
		Summary:    "Every line of an upload that was not accepted, as CSV",
		Parameters: []*huma.Param{text("id", "path", true, "Promotion id", str), text("uploadId", "path", true, "", str)},
		Responses: refusals(map[string]*huma.Response{
			"200": {Description: "Columns line, code, detail", Content: map[string]*huma.MediaType{csvType: {Schema: str}}},
		}, http.StatusBadRequest, http.StatusNotFound, http.StatusInternalServerError),
	})
}

// uploadTargets streams a file into a promotion.
func (a *API) uploadTargets(w http.ResponseWriter, r *http.Request) {
	cmd, err := a.uploadCommand(w, r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	res, err := a.cfg.Uploads.Upload(r.Context(), cmd)
	// The guard's deadline is for the body only. A writer without deadlines
	// has none to take back.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if err != nil {
		a.fail(w, r, err)
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
		a.fail(w, r, fmt.Errorf("encode an upload's result: %w", err))
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
	body := io.Reader(&guardedBody{r: r.Body, rc: http.NewResponseController(w), idle: a.cfg.UploadIdle})
	switch encoding := strings.ToLower(strings.TrimSpace(strings.Join(r.Header.Values("Content-Encoding"), ","))); encoding {
	case "", "identity":
		cmd.Body = body
	case "gzip", "x-gzip":
		cmd.Body = &gzipBody{r: body}
	default:
		return cmd, unsupported("Content-Encoding " + reward.Quote(encoding) + " is neither gzip nor identity")
	}
	return cmd, nil
}

func dryRun(r *http.Request) (bool, error) {
	q := r.URL.Query()
	for name := range q {
		if name != "dryRun" {
			return false, invalid(name, "unknown query parameter")
		}
	}
	if !q.Has("dryRun") {
		return false, nil
	}
	switch q.Get("dryRun") {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, malformed("dryRun", "must be true or false")
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

func unsupported(detail string) *Problem {
	return newProblem(http.StatusUnsupportedMediaType, CodeUnsupportedMedia, detail)
}

// guardedBody gives every read of a body its own deadline: an upload may last
// for hours, but not stand still.
type guardedBody struct {
	r    io.Reader
	rc   *http.ResponseController
	idle time.Duration
}

func (b *guardedBody) Read(p []byte) (int, error) {
	// A connection without deadlines is a test's or a proxy's own affair.
	_ = b.rc.SetReadDeadline(time.Now().Add(b.idle))
	n, err := b.r.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = &reward.Error{
			Kind: reward.KindMalformed, Code: CodeBodyTimeout, Detail: fmt.Sprintf("no data came for %s", b.idle), Err: err,
		}
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
	out := newCSVStream(w, "upload-"+r.PathValue("uploadId")+".csv", "line", "code", "detail")
	a.end(out, r, a.report(r, out))
}

func (a *API) report(r *http.Request, out *csvStream) error {
	promotion, err := promotionID(r.PathValue("id"))
	if err != nil {
		return err
	}
	id, err := strconv.ParseInt(r.PathValue("uploadId"), 10, 64)
	if err != nil || id <= 0 {
		return malformed("uploadId", reward.Quote(r.PathValue("uploadId"))+" is not an upload id")
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
		if err := out.page(rows); err != nil {
			return err
		}
		if len(errs) < store.BatchMax {
			return nil
		}
		after = errs[len(errs)-1].Line
	}
}
