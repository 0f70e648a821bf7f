package api

import (
	"bufio"
	"bytes"
	"cmp"
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
	"github.com/largesse/largesse/internal/sheet"
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
	// workbooksMax is the number of .xlsx files that are read at a time. One needs up
	// to about 100 MB of memory.
	workbooksMax = 2
)

func (a *API) addTargets() {
	registry := a.OpenAPI().Components.Schemas
	text := func(name, in string, required bool, doc string, s *huma.Schema) *huma.Param {
		return &huma.Param{Name: name, In: in, Required: required, Description: doc, Schema: s}
	}
	str, boolean := &huma.Schema{Type: huma.TypeString}, &huma.Schema{Type: huma.TypeBoolean}
	file := []*huma.Param{
		text("columns", "query", false, "Which column of the file is which, by name, letter or number; others are ignored: targetId=A,userId=B", str),
		text("encoding", "query", false, "Of CSV; default: detected", &huma.Schema{Type: huma.TypeString, Enum: mapped(sheet.Encodings, func(e sheet.Encoding) any { return string(e) })}),
		text("sheet", "query", false, "Of a workbook; default: the first one that is not hidden", str),
		text("skip", "query", false, "Up to 100 lines to leave out, such as 10,200, because another file has them corrected", str),
		text("amounts", "query", false, "major: 10.50 are 1050 minor units of EUR; default minor", &huma.Schema{Type: huma.TypeString, Enum: []any{string(campaign.MinorUnits), string(campaign.MajorUnits)}}),
		text("Content-Encoding", "header", false, "", &huma.Schema{Type: huma.TypeString, Enum: []any{"gzip", "identity"}}),
	}
	body := fileBody(map[string]*huma.Example{
		"CSV":    {Value: "targetId,userId,amount\n7,u7,1000\n"},
		"NDJSON": {Value: `{"targetId":"7","userId":"u7","amount":1000}` + "\n"},
	})
	responses := func(of any, name string) map[string]*huma.Response {
		return map[string]*huma.Response{"200": {Description: http.StatusText(http.StatusOK), Content: map[string]*huma.MediaType{
			"application/json": {Schema: registry.Schema(reflect.TypeOf(of), true, name)},
		}}}
	}
	// refusedFiles are the codes of files that are refused as a whole.
	refusedFiles := []string{
		CodeBadGzip, campaign.CodeBodyBroken, campaign.CodeEmptyFile, campaign.CodeNoHeader, campaign.CodeUnknownColumn, campaign.CodeDuplicateColumn,
		campaign.CodeInvalidUTF8, sheet.CodeBadWorkbook, sheet.CodeUnknownSheet, reward.CodeAmountOverflow, campaign.CodeDryRunTooLarge, CodeTooManyUploads,
	}
	a.handle(operation{
		id: "check-targets", method: http.MethodPost, path: "/v1/targets/check", tag: "targets", roles: campaigners, long: true,
		summary: "Check a file of targets before there is a promotion",
		description: "Says what an upload to a new promotion with this type, currency, amount and voucherCode would accept, and who was paid before. " +
			"Without columns, those count that the header suggests. The file is as in uploads. Changes nothing.",
		parameters: append([]*huma.Param{
			text("type", "query", false, "Default POINT", &huma.Schema{Type: huma.TypeString, Enum: []any{string(reward.Point), string(reward.Voucher)}}),
			text("currency", "query", false, "", str),
			text("amount", "query", false, "Of lines without one, in minor units", &huma.Schema{Type: huma.TypeInteger, Format: "int64"}),
			text("voucherCode", "query", false, "Of lines without one", str),
		}, file...),
		body:      body,
		responses: responses(client.TargetsCheck{}, "TargetsCheck"),
		errors:    refusedFiles,
	}, a.checkTargets)
	a.handle(operation{
		id: "upload-targets", method: http.MethodPost, path: "/v1/promotions/{id}/targets", tag: "targets", roles: campaigners, long: true,
		summary: "Add targets from a file",
		description: "A repeat finds only duplicates. CSV has a header with targetId and any of userId, amount and voucherCode, or columns says which column is which; " +
			"commas, semicolons or tabs are between cells. NDJSON has an object with these names per line. A file that begins with { is NDJSON, and an .xlsx file is one, unless the type says otherwise: " +
			"text/csv, text/tab-separated-values, application/x-ndjson or that of .xlsx. Valid lines are accepted, others reported.",
		parameters: append([]*huma.Param{
			text("id", "path", true, "Promotion ID", str), text("dryRun", "query", false, "", boolean),
			text("fileName", "query", false, "Shown in the list of uploads, without control characters; a dry run only checks it",
				&huma.Schema{Type: huma.TypeString, MinLength: new(1), MaxLength: new(reward.FileNameMax)}),
		}, file...),
		body:      body,
		responses: responses(client.UploadResult{}, "UploadResult"),
		errors:    append([]string{reward.CodeNotFound, campaign.CodeUploadInterrupted, reward.CodeArchived}, refusedFiles...),
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
	a.handle(operation{
		id: "get-refused-lines", method: http.MethodGet, path: "/v1/promotions/{id}/uploads/{uploadId}/refused", tag: "targets", roles: readers,
		summary:     "Get the refused lines of an upload as a file to correct",
		description: "With the columns of the file, and error, which uploads ignore: correct the cells and upload it with the same columns. Lines whose cells are not known only have error, and so have lines of a VOUCHER promotion for viewers, campaigners and approvers, who see no whole codes.",
		parameters:  []*huma.Param{text("id", "path", true, "Promotion ID", str), text("uploadId", "path", true, "", str)},
		responses: map[string]*huma.Response{
			"200": {Description: "The columns of the file, and error", Content: map[string]*huma.MediaType{csvType: {Schema: str}}},
		},
		errors: []string{reward.CodeUploadNotFound},
	}, a.refusedLines)
}

func (a *API) uploadTargets(w http.ResponseWriter, r *http.Request) {
	cmd, err := a.uploadCommand(w, r)
	if err != nil {
		a.Fail(w, r, err)
		return
	}
	ctx, release, err := a.beginUpload(r.Context(), cmd.File.Format)
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
		detail := ""
		if skip := r.URL.Query().Get("skip"); cmd.FileName != "" || skip != "" {
			text, _ := json.Marshal(struct { // texts have no reason to fail
				FileName string `json:"fileName,omitempty"`
				Skip     string `json:"skip,omitempty"`
			}{cmd.FileName, skip})
			detail = string(text)
		}
		err = a.audited(ctx, "upload-targets", detail, http.StatusOK, upload)
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
		out.ReportURL, out.RefusedURL = reportURL(cmd.PromotionID, res.UploadID), refusedURL(cmd.PromotionID, res.UploadID)
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
	q := r.URL.Query()
	if err := onlyQuery(q, append(fileQuery, "dryRun", "fileName")...); err != nil {
		return cmd, err
	}
	dry, err := eitherOf(q, "dryRun", "false", "true")
	if err != nil {
		return cmd, err
	}
	if cmd.FileName, err = onceOf(q, "fileName"); err != nil {
		return cmd, err
	}
	if q.Has("fileName") {
		if err := reward.CheckFileName(cmd.FileName); err != nil {
			return cmd, web.Invalid("fileName", err.Error())
		}
	}
	cmd.PromotionID, cmd.By, cmd.DryRun = id, actor(r.Context()), dry == "true"
	cmd.File, cmd.Body, err = a.targetFile(w, r)
	return cmd, err
}

// fileQuery lists the query parameters that say how a file is read.
var fileQuery = []string{"columns", "encoding", "sheet", "amounts", "skip"}

// targetFile returns how the file in a request is read, and the file.
func (a *API) targetFile(w http.ResponseWriter, r *http.Request) (file campaign.File, body io.Reader, err error) {
	if file.Format, file.Encoding, err = uploadFormat(r.Header.Get("Content-Type"), append(campaign.Formats, formatAny)...); err != nil {
		return file, nil, err
	}
	texts := make(map[string]string)
	q := r.URL.Query()
	for _, name := range fileQuery {
		if texts[name], err = onceOf(q, name); err != nil {
			return file, nil, err
		}
	}
	amounts, err := eitherOf(q, "amounts", string(campaign.MinorUnits), string(campaign.MajorUnits))
	if err != nil {
		return file, nil, err
	}
	file.Units, file.Sheet = campaign.Units(amounts), texts["sheet"]
	if file.Columns, err = campaign.ParseColumns(texts["columns"]); err != nil {
		return file, nil, web.Invalid("columns", err.Error())
	}
	if file.Skip, err = parseLines(texts["skip"]); err != nil {
		return file, nil, web.Invalid("skip", err.Error())
	}
	encoding, err := sheet.ParseEncoding(texts["encoding"])
	if err != nil {
		return file, nil, web.Invalid("encoding", err.Error())
	}
	file.Encoding = cmp.Or(encoding, file.Encoding)
	if body, err = a.uploadBody(w, r); err == nil && file.Format == formatAny {
		file.Format, body = detectFormat(body)
	}
	return file, body, err
}

// parseLines reads line numbers with commas between them.
func parseLines(text string) (lines []int64, err error) {
	if text == "" {
		return nil, nil
	}
	for one := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseInt(one, 10, 64)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("must be line numbers with commas between them, not %s", reward.Quote(one))
		}
		lines = append(lines, n)
	}
	return lines, nil
}

func (a *API) checkTargets(w http.ResponseWriter, r *http.Request) {
	res, err := a.readCheck(w, r)
	if err != nil {
		a.Fail(w, r, err)
		return
	}
	writeJSON(w, res)
}

func (a *API) readCheck(w http.ResponseWriter, r *http.Request) (client.TargetsCheck, error) {
	var cmd campaign.CheckCommand
	var err error
	if cmd.Promotion, err = checkedPromotion(r.URL.Query()); err != nil {
		return client.TargetsCheck{}, err
	}
	if cmd.File, cmd.Body, err = a.targetFile(w, r); err != nil {
		return client.TargetsCheck{}, err
	}
	ctx, release, err := a.beginUpload(r.Context(), cmd.File.Format)
	if err != nil {
		return client.TargetsCheck{}, err
	}
	defer release()
	res, err := a.cfg.Uploads.Check(ctx, cmd)
	if err != nil {
		return client.TargetsCheck{}, err
	}
	found := &res.Found
	return client.TargetsCheck{
		Columns: client.TargetColumns{
			TargetID: found.Columns["targetId"], UserID: found.Columns["userId"], Amount: found.Columns["amount"], VoucherCode: found.Columns["voucherCode"],
		},
		Header: append([]string{}, found.Header...), Delimiter: found.Delimiter, Encoding: string(found.Encoding), Sheet: found.Sheet, Sheets: found.Sheets,
		Accepted: res.Accepted, Duplicates: res.Duplicates, Conflicts: res.Conflicts, Rejected: res.Rejected, Amount: int64(res.Amount), Currency: res.Currency,
		Lines:       mapped(res.Lines, checkedLine),
		AlreadyPaid: mapped(res.AlreadyPaid, paidBefore),
	}, nil
}

func checkedLine(l campaign.ShownLine) client.CheckedLine {
	out := client.CheckedLine{Line: l.Line, Accepted: l.Fault == nil, Cells: l.Cells}
	if l.Fault != nil {
		out.Code, out.Detail = l.Fault.Code, l.Fault.Detail
		return out
	}
	t := &l.Target
	out.TargetID, out.UserID, out.Amount, out.VoucherCode = t.TargetID.String(), t.UserID, int64(t.Amount), t.VoucherCode
	return out
}

// checkedPromotion returns the promotion that the query parameters of a check describe.
func checkedPromotion(q url.Values) (reward.Promotion, error) {
	var p reward.Promotion
	if err := onlyQuery(q, append(fileQuery, "type", "currency", "amount", "voucherCode")...); err != nil {
		return p, err
	}
	kind, err := eitherOf(q, "type", string(reward.Point), string(reward.Voucher))
	if err != nil {
		return p, err
	}
	var amount string
	for name, into := range map[string]*string{"currency": &p.Currency, "voucherCode": &p.VoucherCode, "amount": &amount} {
		if *into, err = onceOf(q, name); err != nil {
			return p, err
		}
	}
	if p.Type = reward.PromotionType(kind); amount != "" {
		n, err := strconv.ParseInt(amount, 10, 64)
		if least := reward.AmountMin(p.Type); err != nil || reward.Amount(n) < least || reward.Amount(n) > reward.AmountMax {
			return p, web.Invalid("amount", fmt.Sprintf("must be a whole number of minor units from %d to %d", least, reward.AmountMax))
		}
		p.Amount = reward.Amount(n)
	}
	switch {
	case p.Currency != "" && !reward.IsCurrency(p.Currency):
		return p, web.Invalid("currency", "must be three capital letters, such as EUR")
	case p.VoucherCode != "" && p.Type != reward.Voucher:
		return p, web.Invalid("voucherCode", "must be absent: only a VOUCHER promotion has codes")
	}
	return p, nil
}

// onceOf returns a query parameter, which must not be there twice. Without it, it is "".
func onceOf(q url.Values, name string) (string, error) {
	if len(q[name]) > 1 {
		return "", web.Malformed(name, "must be there once")
	}
	return q.Get(name), nil
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
		switch {
		case head[0] == '{':
			return campaign.FormatNDJSON, r
		case bytes.HasPrefix(head, []byte(sheet.Begins)):
			return campaign.FormatXLSX, r
		case bytes.HasPrefix([]byte(sheet.Begins), head):
			continue
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
func (a *API) beginUpload(ctx context.Context, format campaign.Format) (_ context.Context, release func(), err error) {
	if ctx.Err() != nil {
		// The body ended within its first bytes. Its reader reports that; of a file of
		// targets, those before the end are still accepted.
		ctx = context.WithoutCancel(ctx)
	}
	slots, what := a.uploads, "uploads"
	if format == campaign.FormatXLSX {
		slots, what = a.books, ".xlsx files"
	}
	release, err = take(ctx, slots, uploadSlotTimeout, func() error {
		return web.NewProblem(http.StatusServiceUnavailable, CodeTooManyUploads,
			fmt.Sprintf("this instance already reads %d %s and accepted nothing of this one; send it again", cap(slots), what))
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

// uploadFormat returns the format of an upload, which must be one of the given, and its
// encoding, if the type names one.
func uploadFormat(contentType string, formats ...campaign.Format) (campaign.Format, sheet.Encoding, error) {
	media, params, err := mime.ParseMediaType(contentType)
	f := campaign.Format(media)
	if err != nil || !slices.Contains(formats, f) {
		return "", "", unsupported("Content-Type " + reward.Quote(contentType) + " must be " + strings.Join(texts(formats), " or "))
	}
	encoding, err := sheet.ParseEncoding(params["charset"])
	switch {
	case err != nil:
		return "", "", unsupported("charset " + reward.Quote(params["charset"]) + " " + err.Error())
	case encoding == sheet.UTF8:
		encoding = "" // many programs say so of any file
	}
	return f, encoding, nil
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
	_, id, err := a.uploadOf(r)
	if err == nil {
		err = a.uploadErrors(r, id, out, func(e store.LineError) []string {
			return []string{strconv.FormatInt(e.Line, 10), e.Code, e.Detail}
		})
	}
	a.EndCSV(out, r, err)
}

func (a *API) refusedLines(w http.ResponseWriter, r *http.Request) {
	upload, id, err := a.uploadOf(r)
	if err != nil {
		a.Fail(w, r, err)
		return
	}
	// The file may be a corrected one itself.
	at := slices.Index(upload.Header, campaign.ColumnError)
	if at < 0 {
		at = len(upload.Header)
		upload.Header = append(upload.Header, campaign.ColumnError)
	}
	whole, err := a.showsCells(r.Context(), upload.PromotionID)
	if err != nil {
		a.Fail(w, r, err)
		return
	}
	out := web.NewCSV(w, "refused-"+r.PathValue("uploadId")+".csv", upload.Header...)
	a.EndCSV(out, r, a.uploadErrors(r, id, out, func(e store.LineError) []string {
		if !whole {
			e.Cells = nil
		}
		row := make([]string, max(len(upload.Header), len(e.Cells)))
		copy(row, e.Cells)
		row[at] = fmt.Sprintf("line %d: %s: %s", e.Line, e.Code, e.Detail)
		return row
	}))
}

// showsCells reports whether the caller may see the cells of files of a promotion, and
// records that they do. Nobody knows which of them are codes of vouchers.
func (a *API) showsCells(ctx context.Context, id reward.PromotionID) (bool, error) {
	var v store.PromotionView
	err := a.readPage(ctx, true, func(ctx context.Context) (err error) {
		v, err = a.cfg.Rows.PromotionGet(ctx, id)
		return err
	})
	switch {
	case err != nil || v.Type != reward.Voucher:
		return true, err
	case !slices.Contains(requesters, callerOf(ctx).Role):
		return false, nil
	}
	return true, a.recordRead(ctx, "get-refused-lines", "")
}

// uploadOf returns the upload that a request names.
func (a *API) uploadOf(r *http.Request) (upload store.Upload, id int64, err error) {
	if err := onlyQuery(r.URL.Query()); err != nil {
		return upload, 0, err
	}
	promotion, err := promotionID(r.PathValue("id"))
	if err != nil {
		return upload, 0, err
	}
	if id, err = web.IDOf("upload", r.PathValue("uploadId")); err != nil {
		return upload, 0, web.Malformed("uploadId", err.Error())
	}
	err = a.readPage(r.Context(), true, func(ctx context.Context) (err error) {
		upload, err = a.cfg.Rows.UploadGet(ctx, promotion, id)
		return err
	})
	return upload, id, err
}

// uploadErrors writes the refused lines of an upload, each as show makes it.
func (a *API) uploadErrors(r *http.Request, id int64, out *web.CSV, show func(store.LineError) []string) error {
	leave, err := a.reads.enterExport(limitName(callerOf(r.Context()).Principal))
	if err != nil {
		return err
	}
	defer leave()
	for after := int64(0); ; {
		var errs []store.LineError
		err := a.readPage(r.Context(), after == 0, func(ctx context.Context) (err error) {
			errs, err = a.cfg.Rows.UploadErrors(ctx, id, after, store.BatchMax)
			return err
		})
		if err != nil {
			return err
		}
		if err := out.Page(mapped(errs, show)); err != nil {
			return err
		}
		if len(errs) < store.BatchMax {
			return nil
		}
		after = errs[len(errs)-1].Line
	}
}
