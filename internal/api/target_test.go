package api

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

func (b *bundle) upload(t *testing.T, path, body string, headers ...string) answer {
	t.Helper()
	if len(headers) == 0 {
		headers = []string{"Content-Type", "text/csv"}
	}
	return b.do(t, "POST", path, strings.NewReader(body), headers...)
}

// saved returns the payouts and the uploads of a promotion.
func (b *bundle) saved(t *testing.T, promotion string) ([]reward.Payout, []store.Upload) {
	t.Helper()
	id := fixture.Must(reward.ParsePromotionID(promotion))(t)
	rows := fixture.Must(b.store.PayoutList(t.Context(), store.PayoutListParams{PromotionID: id, Limit: 9}))(t)
	return rows, fixture.Must(b.store.UploadList(t.Context(), id, 0, 9))(t)
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	fixture.Must(io.WriteString(w, text))(t)
	fixture.OK(t, w.Close())
	return buf.String()
}

// result reads the numbers of an upload's answer.
func (a answer) result(t *testing.T) client.UploadResult {
	t.Helper()
	a.want(t, http.StatusOK)
	var r client.UploadResult
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return r
}

func TestUploadTargets(t *testing.T) {
	t.Parallel()

	t.Run("BadLinesAreReported", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.create(t, `{"name":"x","type":"VOUCHER"}`)
		path := "/v1/promotions/" + id + "/targets"
		file := "targetId,userId,amount,voucherCode\n1,u1,10,V-1\n,u2,10,V-1\n4,u4,-5,V-1\n" + strings.Repeat("9", 10<<20) + "\n12,u12,20,V-2\n"
		codes := []string{"MISSING_ID", "BAD_AMOUNT", "LINE_TOO_LONG"} // TestLineCodesArrive has all of them
		for _, dry := range []string{"?dryRun=true", "?dryRun=false"} {
			r := b.upload(t, path+dry, file).result(t)
			if r.Accepted != 2 || r.Rejected != 3 || r.Duplicates != 0 || r.Conflicts != 0 || r.Amount != 30 {
				t.Errorf("%s: %+v", dry, r)
			}
			var got []string
			for i, e := range r.Errors {
				if e.Line != int64(i)+3 || e.Detail == "" {
					t.Errorf("%s: %+v", dry, e)
				}
				got = append(got, e.Code)
			}
			if diff := cmp.Diff(codes, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", dry, diff)
			}
			if dry == "?dryRun=true" {
				if rows, uploads := b.saved(t, id); r.ReportURL != "" || len(rows) != 0 || len(uploads) != 0 {
					t.Errorf("a dry run left %q, %d rows, %d uploads", r.ReportURL, len(rows), len(uploads))
				}
				continue
			}
			report := b.do(t, "GET", r.ReportURL, nil)
			report.want(t, http.StatusOK)
			lines := strings.Split(strings.TrimSpace(report.body), "\n")
			if len(lines) != 4 || lines[0] != "line,code,detail" || !strings.HasPrefix(lines[3], "5,LINE_TOO_LONG,") {
				t.Errorf("report %q", lines)
			}
			if got := report.header.Get("Content-Type"); got != "text/csv; charset=utf-8" {
				t.Errorf("content type %s", got)
			}
		}
		again := b.upload(t, path, file).result(t)
		if again.Accepted != 0 || again.Duplicates != 2 || again.Amount != 0 {
			t.Errorf("again: %+v", again)
		}
		conflict := b.upload(t, path, "targetId,amount,voucherCode\n12,21,V-2\n").result(t)
		if conflict.Conflicts != 1 || len(conflict.Errors) != 1 || conflict.Errors[0].Code != "CONFLICT" || conflict.Errors[0].Line != 2 {
			t.Errorf("conflict: %+v", conflict)
		}
	})

	t.Run("AmountsInMajorUnits", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		path := "/v1/promotions/" + b.create(t, `{"name":"x","type":"POINT","currency":"EUR"}`) + "/targets"
		const file = "targetId,amount\n1,10.50\n2,10.505\n"
		minor := b.upload(t, path+"?dryRun=true&amounts=minor", file).result(t)
		if minor.Accepted != 0 || !strings.Contains(minor.Errors[0].Detail, "upload it with amounts=major") {
			t.Errorf("minor: %+v", minor)
		}
		for _, dry := range []string{"&dryRun=true", ""} {
			if r := b.upload(t, path+"?amounts=major"+dry, file).result(t); r.Accepted != 1 || r.Amount != 1050 || r.Currency != "EUR" || r.Errors[0].Code != "BAD_AMOUNT" {
				t.Errorf("major%s: %+v", dry, r)
			}
		}
		if p := b.json(t, "GET", strings.TrimSuffix(path, "targets")+"payouts/1", "").object(t); fmt.Sprint(p["amount"]) != "1050" || p["currency"] != "EUR" {
			t.Errorf("payout %v", p)
		}
		b.upload(t, path+"?amounts=cents", file).wantProblem(t, http.StatusBadRequest, "MALFORMED")
		b.upload(t, path+"?amounts=major&amounts=minor", file).wantProblem(t, http.StatusBadRequest, "MALFORMED")
		b.upload(t, "/v1/promotions/"+b.create(t, `{"name":"x","type":"POINT"}`)+"/targets?amounts=major", file).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
	})

	t.Run("LinesThatAnotherFileHas", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		path := "/v1/promotions/" + b.create(t, `{"name":"x","type":"POINT","amount":5}`) + "/targets"
		tooLong := strings.Repeat("x", 1<<20)
		if r := b.upload(t, path+"?skip=2,4,5", "targetId\nx\n3\n4\n"+tooLong+"\ny\n").result(t); r.Accepted != 1 || r.Rejected != 1 || r.Errors[0].Line != 6 {
			t.Errorf("%+v", r)
		}
		for _, wrong := range []string{"x", "0", "2,", strings.Repeat("2,", 100) + "2"} {
			b.upload(t, path+"?skip="+wrong, "targetId\n7\n").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		}
	})

	t.Run("NamesOfFiles", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		promotion := "/v1/promotions/" + b.create(t, `{"name":"x","type":"POINT","amount":5}`)
		path := promotion + "/targets?fileName="
		for _, wrong := range []string{"", strings.Repeat("가", 201), "a\nb.csv", "a\x1bb.csv", "a\u202evsc.exe", "a\xffb.csv"} {
			for _, dry := range []string{"", "&dryRun=true"} {
				p := b.upload(t, path+url.QueryEscape(wrong)+dry, "targetId\n1\n").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
				if errs := p.Errors; len(errs) != 1 || errs[0].Field != "fileName" {
					t.Errorf("%q: %v", wrong, errs)
				}
			}
		}
		b.upload(t, path+"a&fileName=b", "targetId\n1\n").wantProblem(t, http.StatusBadRequest, "MALFORMED")
		if r := b.upload(t, path+"a.csv&dryRun=true", "targetId\n1\n").result(t); r.Accepted != 1 {
			t.Errorf("a dry run: %+v", r)
		}
		if rows, uploads := b.saved(t, strings.TrimPrefix(promotion, "/v1/promotions/")); len(rows) != 0 || len(uploads) != 0 {
			t.Errorf("refused uploads and a dry run left %d rows, %d uploads", len(rows), len(uploads))
		}

		names := []string{"11월 \"명단\" <1>&2.xlsx", strings.Repeat("가", 200)}
		for _, name := range names {
			b.upload(t, path+url.QueryEscape(name), "targetId\n1\n").result(t)
		}
		b.upload(t, promotion+"/targets", "targetId\n1\n").result(t)
		var got []any
		for _, item := range b.json(t, "GET", promotion+"/uploads", "").object(t)["items"].([]any) {
			got = append(got, item.(map[string]any)["fileName"])
		}
		fixture.Equal(t, []any{nil, names[1], names[0]}, got) // the newest is first
		var told []any
		for _, action := range b.json(t, "GET", promotion+"/report", "").object(t)["actions"].([]any) {
			if action := action.(map[string]any); action["action"] == "upload-targets" {
				told = append(told, action["fileName"])
			}
		}
		fixture.Equal(t, []any{names[0], names[1], nil}, told)
	})

	t.Run("NDJSONInGzip", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.create(t, `{"name":"x","type":"POINT"}`)
		body := gzipped(t, "{\"targetId\":1,\"amount\":5}\n{\"targetId\":\"2\"}\n{\"x\":1}\n{\"targetId\":3,\"userId\":\"u\",\"amount\":7}")
		r := b.upload(t, "/v1/promotions/"+id+"/targets", body, "Content-Type", "application/x-ndjson; charset=UTF-8", "Content-Encoding", "gzip").result(t)
		if r.Accepted != 2 || r.Rejected != 2 || r.Amount != 12 || r.Errors[0].Code != "MISSING_AMOUNT" || r.Errors[1].Code != "BAD_JSON" {
			t.Errorf("%+v", r)
		}
	})

	t.Run("WhateverTheStatus", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for i, status := range []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused, reward.Completed, reward.PromotionCancelled} {
			id := reward.PromotionID(i + 1)
			b.store.promotion(t, id, status)
			if r := b.upload(t, fmt.Sprintf("/v1/promotions/%d/targets", id), "targetId\n1\n").result(t); r.Accepted != 1 {
				t.Errorf("%s: %+v", status, r)
			}
		}
		if got := b.json(t, "GET", "/v1/promotions/5", "").object(t)["counts"].(map[string]any)["cancelled"]; got != json.Number("1") {
			t.Errorf("cancelled %v", got)
		}
	})

	t.Run("HeaderOnlyIsEmptyButFine", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.create(t, `{"name":"x","type":"POINT"}`)
		a := b.upload(t, "/v1/promotions/"+id+"/targets", "targetId\n")
		if r := a.result(t); r.ReportURL == "" || !strings.Contains(a.body, `"errors":[]`) {
			t.Errorf("%s", a.body)
		}
	})

	t.Run("AnyFormat", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		path := "/v1/promotions/" + b.create(t, `{"name":"x","type":"POINT","amount":5}`) + "/targets?dryRun=true"
		const csv, ndjson = "targetId\n1\n2\n", `{"targetId":1}` + "\n" + `{"targetId":2}` + "\n"
		for _, file := range []string{
			csv, ndjson, "\ufeff" + csv, "\r\n \t" + ndjson, "\ufeff" + ndjson,
			csv + strings.Repeat("1\n", 5000), ndjson + strings.Repeat(`{"targetId":1}`+"\n", 5000),
		} {
			for _, headers := range [][]string{nil, {"Content-Encoding", "gzip"}} {
				body := file
				if headers != nil {
					body = gzipped(t, file)
				}
				if r := b.upload(t, path, body, append(headers, "Content-Type", "application/octet-stream")...).result(t); r.Accepted != 2 || r.Rejected != 0 {
					t.Errorf("%.20q with %v: %+v", file, headers, r)
				}
			}
		}
	})

	t.Run("Refusals", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		path := "/v1/promotions/" + b.create(t, `{"name":"x","type":"POINT","amount":5}`) + "/targets"
		whole := gzipped(t, "targetId\n1\n"+strings.Repeat("2\n", 100_000))
		csv := []string{"Content-Type", "text/csv"}
		zipped := append([]string{"Content-Encoding", "gzip"}, csv...)
		for _, tt := range []struct {
			name, path, body string
			headers          []string
			status           int
			code             string
		}{
			{"UnknownPromotion", "/v1/promotions/77/targets", "targetId\n1\n", csv, 404, "PROMOTION_NOT_FOUND"},
			{"BadPromotion", "/v1/promotions/x/targets", "targetId\n1\n", csv, 400, "MALFORMED"},
			{"BadDryRun", path + "?dryRun=yes", "targetId\n1\n", csv, 400, "MALFORMED"},
			{"NoDryRun", path + "?dryRun=%zztrue", "targetId\n1\n", csv, 400, "MALFORMED"},
			{"TwoDryRuns", path + "?dryRun=true&dryRun=false", "targetId\n1\n", csv, 400, "MALFORMED"},
			{"UnknownQuery", path + "?dryrun=true", "targetId\n1\n", csv, 422, "INVALID"},
			{"NoType", path, "targetId\n1\n", []string{"Content-Type", ""}, 415, "UNSUPPORTED_MEDIA_TYPE"},
			{"OtherType", path, "targetId\n1\n", []string{"Content-Type", "application/json"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
			{"OtherCharset", path, "targetId\n1\n", []string{"Content-Type", "text/csv; charset=latin-1"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
			{"OtherEncoding", path, "targetId\n1\n", append([]string{"Content-Encoding", "br"}, csv...), 415, "UNSUPPORTED_MEDIA_TYPE"},
			{"Empty", path, "", csv, 422, "EMPTY_FILE"},
			{"NoHeader", path, "1\n2\n", csv, 422, "NO_HEADER"},
			{"UnknownColumn", path, "targetId,sum\n1,5\n", csv, 422, "UNKNOWN_COLUMN"},
			{"DuplicateColumn", path, "targetId,targetId\n1,5\n", csv, 422, "DUPLICATE_COLUMN"},
			{"Latin1", path, "targetId,gr\xfc\xdfe\n", csv, 422, "INVALID_UTF8"},
			{"WrongColumns", path + "?columns=target=A", "A\n1\n", csv, 422, "INVALID"},
			{"ColumnsTwice", path + "?columns=targetId=A&columns=targetId=B", "A\n1\n", csv, 400, "MALFORMED"},
			{"WrongEncoding", path + "?encoding=latin-1", "A\n1\n", csv, 422, "INVALID"},
			{"SheetOfCSV", path + "?sheet=A", "targetId\n1\n", csv, 422, "INVALID"},
			{"BrokenWorkbook", path, "PK\x03\x04", []string{"Content-Type", "application/octet-stream"}, 422, "BAD_WORKBOOK"},
			{"UnknownSheet", path + "?sheet=B", workbookOf(t, ""), []string{"Content-Type", "application/octet-stream"}, 422, "UNKNOWN_SHEET"},
			{"CheckOfABadAmount", "/v1/targets/check?amount=x", "A\n1\n", csv, 422, "INVALID"},
			{"CheckOfABadCurrency", "/v1/targets/check?currency=euro", "A\n1\n", csv, 422, "INVALID"},
			{"CheckOfMajorUnitsOfNothing", "/v1/targets/check?amounts=major", "A\n1\n", csv, 422, "INVALID"},
			{"CheckOfCodesOfPoints", "/v1/targets/check?voucherCode=V", "A\n1\n", csv, 422, "INVALID"},
			{"CheckOfAnUnknownType", "/v1/targets/check?type=COIN", "A\n1\n", csv, 400, "MALFORMED"},
			{"CheckOfNothing", "/v1/targets/check", "", csv, 422, "EMPTY_FILE"},
			{"EmptyOfAnyFormat", path, "", []string{"Content-Type", "application/octet-stream"}, 422, "EMPTY_FILE"},
			{"SpaceOfAnyFormat", path, strings.Repeat(" ", 10_000), []string{"Content-Type", "application/octet-stream"}, 422, "NO_HEADER"},
			{"NotGzipOfAnyFormat", path, "targetId\n1\n", []string{"Content-Encoding", "gzip", "Content-Type", "application/octet-stream"}, 400, "BAD_GZIP"},
			{"NotGzip", path, "targetId\n1\n", zipped, 400, "BAD_GZIP"},
			{"CorruptGzip", path, whole[:10] + "\x07\x07\x07\x07", zipped, 400, "BAD_GZIP"},
			{"WrongChecksum", path, whole[:len(whole)-8] + "12345678", zipped, 400, "BAD_GZIP"},
			{"CutGzip", path, whole[:len(whole)-20], zipped, 400, "BODY_BROKEN"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				b.upload(t, tt.path, tt.body, tt.headers...).wantProblem(t, tt.status, tt.code)
			})
		}
	})

	t.Run("TheStoreGoesAway", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.create(t, `{"name":"x","type":"POINT","amount":5}`)
		b.store.fail("PayoutSave", io.ErrClosedPipe)
		a := b.upload(t, "/v1/promotions/"+id+"/targets", "targetId\n1\n")
		p := a.wantProblem(t, http.StatusServiceUnavailable, "UPLOAD_INTERRUPTED")
		if a.header.Get("Retry-After") == "" || !strings.Contains(p.Detail, "sending the same file again is safe") {
			t.Errorf("%+v", a)
		}
	})
}

// TestAGzipBombStaysBounded is not parallel, since what it measures is of the
// whole process.
func TestAGzipBombStaysBounded(t *testing.T) {
	b := setup(t)
	id := b.create(t, `{"name":"x","type":"POINT","amount":5}`)
	const size = 64 << 20
	var bomb bytes.Buffer
	w := fixture.Must(gzip.NewWriterLevel(&bomb, gzip.BestSpeed))(t)
	block := bytes.Repeat([]byte{'0'}, 1<<20)
	_, _ = io.WriteString(w, "targetId\n") // into memory, which does not fail
	for range size >> 20 {
		_, _ = w.Write(block)
	}
	_, _ = io.WriteString(w, "\n7\n")
	fixture.OK(t, w.Close())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := b.upload(t, "/v1/promotions/"+id+"/targets", bomb.String(), "Content-Type", "text/csv", "Content-Encoding", "gzip").result(t)
	runtime.ReadMemStats(&after)
	if r.Accepted != 1 || r.Rejected != 1 || r.Errors[0].Code != "LINE_TOO_LONG" {
		t.Errorf("%+v", r)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > size/8 {
		t.Errorf("%d bytes were allocated for a bomb of %d", got, bomb.Len())
	}
}

// raw opens a connection and sends text as it is.
func (b *bundle) raw(t *testing.T, text string) net.Conn {
	t.Helper()
	conn := fixture.Must(b.dial(t.Context(), "tcp", strings.TrimPrefix(b.url, "http://")))(t)
	t.Cleanup(func() { _ = conn.Close() })
	fixture.Must(io.WriteString(conn, text))(t)
	return conn
}

func TestUploadWithABrokenBody(t *testing.T) {
	t.Parallel()
	const head = "POST /v1/promotions/%s/targets HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/csv\r\nContent-Length: 1000000\r\n\r\n"

	t.Run("Cut", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.create(t, `{"name":"x","type":"POINT","amount":5}`)
		conn := b.raw(t, fmt.Sprintf(head, id)+"targetId\n1\n2\n34")
		fixture.OK(t, conn.(*net.TCPConn).CloseWrite())
		text := fixture.Must(io.ReadAll(conn))(t)
		for _, want := range []string{"400 Bad Request", `"BODY_BROKEN"`, "2 targets were accepted", "sending the same file again is safe"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%q is not in %s", want, text)
			}
		}
		rows, uploads := b.saved(t, id)
		if len(rows) != 2 || rows[0].TargetID != 1 || rows[1].TargetID != 2 {
			t.Errorf("rows %v", rows)
		}
		if len(uploads) != 1 || uploads[0].FinishedAt.IsZero() || uploads[0].Accepted != 2 {
			t.Errorf("the upload stays open: %+v", uploads)
		}
		// The whole file brings the rest.
		if r := b.upload(t, "/v1/promotions/"+id+"/targets", "targetId\n1\n2\n345\n").result(t); r.Accepted != 1 || r.Duplicates != 2 {
			t.Errorf("%+v", r)
		}
	})

	t.Run("OfASenderThatDisappears", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.store.promotion(t, 1, reward.Draft)
		var lines strings.Builder
		for i := range 3 * store.BatchMax {
			fmt.Fprintln(&lines, i)
		}
		conn, _ := b.raw(t, fmt.Sprintf(head, "1")+"targetId\n"+lines.String()).(*net.TCPConn)
		saved := func() int64 {
			counts := fixture.Must(b.store.PromotionGet(t.Context(), 1))(t).Counts
			return counts.Total()
		}
		fixture.Until(t, "some targets are saved", func() bool { return saved() > 0 })
		fixture.OK(t, conn.SetLinger(0))
		fixture.OK(t, conn.Close())
		fixture.Until(t, "the upload has ended", func() bool {
			_, uploads := b.saved(t, "1")
			return len(uploads) == 1 && !uploads[0].FinishedAt.IsZero() && uploads[0].Accepted == saved()
		})
	})

	t.Run("MakesNoProgress", func(t *testing.T) {
		t.Parallel()
		inMemory(t, func(t *testing.T, b *bundle) {
			id := b.create(t, `{"name":"x","type":"POINT","amount":5}`)
			p := b.rawAnswer(t, fmt.Sprintf(head, id)+"targetId\n1\n2\n").wantProblem(t, http.StatusRequestTimeout, web.CodeBodyTimeout)
			if !strings.Contains(p.Detail, "2 targets were accepted") {
				t.Errorf("%q", p.Detail)
			}
		})
	})
}

// workbookOf returns an .xlsx file with a sheet A that has the given rows.
func workbookOf(t *testing.T, rows string) string {
	t.Helper()
	var file bytes.Buffer
	archive := zip.NewWriter(&file)
	for name, text := range map[string]string{
		"xl/workbook.xml":            `<workbook xmlns:r="r"><sheets><sheet name="A" r:id="1"/></sheets></workbook>`,
		"xl/_rels/workbook.xml.rels": `<Relationships><Relationship Id="1" Target="a.xml"/></Relationships>`,
		"xl/a.xml":                   `<worksheet><sheetData>` + rows + `</sheetData></worksheet>`,
	} {
		part := fixture.Must(archive.Create(name))(t)
		fixture.Must(io.WriteString(part, text))(t)
	}
	fixture.OK(t, archive.Close())
	return file.String()
}

func TestCheckTargets(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, `{"name":"November bonus","type":"POINT","amount":5}`)
	b.upload(t, "/v1/promotions/"+id+"/targets", "targetId\n1001\n").result(t)
	const path = "/v1/targets/check?currency=EUR&amounts=major"
	want := client.TargetsCheck{
		Columns: client.TargetColumns{TargetID: "고객번호", Amount: "금액"}, Header: []string{"고객번호", "이름", "금액"}, Delimiter: ";", Encoding: "utf-8",
		Accepted: 1, Rejected: 1, Amount: 1050, Currency: "EUR", AlreadyPaid: []client.AlreadyPaid{},
		Lines: []client.CheckedLine{
			{Line: 2, Accepted: true, Cells: []string{"1001", "김", "10.50"}, TargetID: "1001", UserID: "1001", Amount: 1050},
			{
				Line: 3, Cells: []string{"x", "이", "5"}, Code: "BAD_ID",
				Detail: `target id "x" is not a whole number from 0 to 9223372036854775807 in its shortest form`,
			},
		},
	}
	check := func(path, body, contentType string) client.TargetsCheck {
		t.Helper()
		var got client.TargetsCheck
		answer := b.upload(t, path, body, "Content-Type", contentType)
		answer.want(t, http.StatusOK)
		fixture.OK(t, json.Unmarshal([]byte(answer.body), &got))
		return got
	}
	got := check(path, "고객번호;이름;금액\n1001;김;10.50\nx;이;5\n", "text/csv")
	if len(got.Lines) == 2 {
		want.Lines[1].Detail = got.Lines[1].Detail
	}
	fixture.Equal(t, want, got)
	got = check(path+"&columns=targetId=B&sheet=A", workbookOf(t, `<row><c><v>1</v></c><c t="inlineStr"><is><t>B</t></is></c></row><row><c/><c><v>7</v></c></row>`), "application/octet-stream")
	fixture.Equal(t, client.TargetsCheck{
		Columns: client.TargetColumns{TargetID: "B"}, Header: []string{"1", "B"}, Sheet: "A", Sheets: []string{"A"}, Rejected: 1, Currency: "EUR", AlreadyPaid: []client.AlreadyPaid{},
		Lines: []client.CheckedLine{{Line: 2, Cells: []string{"", "7"}, Code: "MISSING_AMOUNT", Detail: "amount is missing"}},
	}, got)
	if rows, uploads := b.saved(t, id); len(rows) != 1 || len(uploads) != 1 {
		t.Errorf("the checks left %d rows and %d uploads", len(rows), len(uploads))
	}
}

// TestRefusedLinesAreAFileToCorrect corrects the file of refused lines and uploads it.
func TestRefusedLinesAreAFileToCorrect(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, `{"name":"x","type":"POINT","amount":5}`)
	path := "/v1/promotions/" + id + "/targets?columns=" + url.QueryEscape("targetId=고객번호,userId=아이디,amount=금액")
	r := b.upload(t, path, "고객번호;아이디;메모;금액\n1;=kim;a;5\nx;+49170;\"b;c\";7\n3;lee;c;-1\n4\n").result(t)
	if r.Accepted != 1 || r.Rejected != 3 || len(r.Errors) != 3 {
		t.Fatalf("%+v", r)
	}
	fixture.Equal(t, []string{"x", "+49170", "b;c", "7"}, r.Errors[0].Cells)
	refused := b.do(t, "GET", r.RefusedURL, nil).body
	if !strings.HasPrefix(refused, "고객번호,아이디,메모,금액,error\nx,'+49170,b;c,7,\"line 3: BAD_ID: ") || !strings.Contains(refused, "\n3,lee,c,'-1,\"line 4: BAD_AMOUNT: ") || !strings.Contains(refused, "\n4,,,,\"line 5: WRONG_COLUMNS: ") {
		t.Errorf("%s", refused)
	}
	corrected := strings.NewReplacer("\nx,", "\n2,", "'-1", "8", "\n4,,", "\n4,park,").Replace(refused)
	r = b.upload(t, path, corrected).result(t)
	if r.Accepted != 3 || r.Rejected != 0 {
		t.Fatalf("%+v", r)
	}
	rows, _ := b.saved(t, id)
	var users []string
	for _, row := range rows {
		users = append(users, fmt.Sprintf("%d %s %d", row.TargetID, row.UserID, row.Amount))
	}
	fixture.Equal(t, []string{"1 =kim 5", "2 +49170 7", "3 lee 8", "4 park 5"}, users)
	r = b.upload(t, path, "고객번호,아이디,메모,금액,error\n9,choi,,-1,line 7\n").result(t)
	if refused := b.do(t, "GET", r.RefusedURL, nil).body; !strings.HasPrefix(refused, "고객번호,아이디,메모,금액,error\n9,choi,,'-1,\"line 2: BAD_AMOUNT: ") {
		t.Errorf("of a corrected file: %s", refused)
	}
	b.do(t, "GET", strings.Replace(r.RefusedURL, r.UploadID, "77", 1), nil).wantProblem(t, 404, "UPLOAD_NOT_FOUND")
}

func TestUploadReportRefusals(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, `{"name":"x","type":"POINT","amount":5}`)
	for path, want := range map[string]int{"77": 404, "x": 400, "-1": 400, "0": 400} {
		code := map[int]string{404: "UPLOAD_NOT_FOUND", 400: "MALFORMED"}[want]
		b.do(t, "GET", "/v1/promotions/"+id+"/uploads/"+path+"/report", nil).wantProblem(t, want, code)
	}
	b.do(t, "GET", "/v1/promotions/"+id+"/uploads/77/report?x=1", nil).wantProblem(t, 422, "INVALID")
	var many strings.Builder
	many.WriteString("targetId\n")
	for range 2500 {
		many.WriteString("=1+1\n")
	}
	r := b.upload(t, "/v1/promotions/"+id+"/targets", many.String()).result(t)
	if r.Rejected != 2500 || len(r.Errors) != 100 {
		t.Errorf("rejected %d, shown %d", r.Rejected, len(r.Errors))
	}
	if lines := strings.Count(b.do(t, "GET", r.ReportURL, nil).body, "\n"); lines != 2501 {
		t.Errorf("the report has %d lines", lines)
	}
}
