package api

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

var update = flag.Bool("update", false, "write docs/errors.md anew")

// asserted are the codes that tests have met and wanted.
var asserted sync.Map

// unasserted is what TestMain says when every test of the package has run and a
// code of errorCodes was wanted by none.
func unasserted() error {
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.fuzz", "test.bench"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return nil // some tests only
		}
	}
	var missing []string
	for _, c := range errorCodes {
		if _, ok := asserted.Load(c.Code); !ok {
			missing = append(missing, c.Code)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("no test wants the error codes %s: produce each one over HTTP and check it with wantProblem", strings.Join(missing, ", "))
}

// describedOperations are the operations of an API's description by pattern.
func describedOperations(a *API) map[string]*huma.Operation {
	out := make(map[string]*huma.Operation)
	for path, item := range a.OpenAPI().Paths {
		for _, op := range operationsOf(item) {
			out[op.Method+" "+path] = op
		}
	}
	return out
}

// wantDescribed checks that an answer is one that the description names.
func (b *bundle) wantDescribed(t *testing.T, req *http.Request, a answer) {
	t.Helper()
	b.describe.Do(func() {
		b.mux, b.operations = http.NewServeMux(), describedOperations(b.api)
		for pattern := range b.api.Operations() {
			b.mux.Handle(pattern, b.api)
		}
	})
	_, pattern := b.mux.Handler(req)
	op := b.operations[pattern]
	if op == nil || req.Method == http.MethodHead {
		return
	}
	if _, ok := op.Responses[strconv.Itoa(a.status)]; !ok {
		t.Errorf("%s answers %d, which is not described: %s", op.OperationID, a.status, a.body)
		return
	}
	var p web.Problem
	if a.header.Get("Content-Type") == web.ProblemType && json.Unmarshal([]byte(a.body), &p) == nil && !slices.Contains(b.api.codesOf(op)[a.status], p.Code) {
		t.Errorf("%s answers %d %s, which is not described there: add it to the errors of the operation", op.OperationID, a.status, p.Code)
	}
}

func TestErrorCodes(t *testing.T) {
	t.Parallel()

	t.Run("StandOnceWithAMeaningAndSomethingToDo", func(t *testing.T) {
		t.Parallel()
		seen, last := map[string]bool{}, 0
		for _, c := range errorCodes {
			if seen[c.Code] || len(c.Meaning) < 10 || len(c.Action) < 10 || strings.ContainsAny(c.Meaning+c.Action, "|\n") {
				t.Errorf("%+v is listed twice, or its meaning is not one line, or its action is empty", c)
			}
			if c.Status < last || http.StatusText(c.Status) == "" {
				t.Errorf("%s with %d is out of order", c.Code, c.Status)
			}
			seen[c.Code], last = true, c.Status
		}
	})

	t.Run("AreThoseOfTheOperations", func(t *testing.T) {
		t.Parallel()
		known := map[string]bool{web.CodeRouteNotFound: true, web.CodeMethodNotAllowed: true} // of no operation
		a := setup(t).api
		for _, op := range describedOperations(a) {
			for _, code := range slices.Concat(a.declared[op.OperationID].errors, a.commonCodes(op)) {
				known[code] = true
			}
		}
		listed := map[string]bool{}
		for _, c := range errorCodes {
			listed[c.Code] = true
			if !known[c.Code] {
				t.Errorf("%s is of no operation", c.Code)
			}
		}
		for code := range known {
			if !listed[code] {
				t.Errorf("%s is not in errorCodes", code)
			}
		}
	})

	t.Run("AreAllThatThereAre", func(t *testing.T) {
		t.Parallel()
		// Constants of codes that are no problem's.
		elsewhere := map[string]string{
			"POISON":         "errorCode of a payout, reason of a dead letter",
			"NEVER_GIVEN":    "reason of a dead letter",
			"SECOND_CHARGE":  "code of an attempt",
			"UNKNOWN_FORMAT": "the format was judged by its Content-Type before",
		}
		listed := map[string]bool{}
		for _, c := range errorCodes {
			listed[c.Code] = true
		}
		for _, dir := range []string{".", "../web", "../reward", "../payout", "../coupon", "../store"} {
			for code, name := range codeConstants(t, dir) {
				if why := elsewhere[code]; !listed[code] && why == "" {
					t.Errorf("%s (%s) is not in errorCodes", name, code)
				} else if listed[code] && why != "" {
					t.Errorf("%s is in errorCodes and %s", code, why)
				}
			}
		}
	})

	t.Run("AreAllInTheDocs", func(t *testing.T) {
		t.Parallel()
		const path = "../../docs/errors.md"
		have := fixture.Must(os.ReadFile(path))(t)
		var problems, lines strings.Builder
		problems.WriteString("| code | status | meaning | what to do |\n|---|---|---|---|\n")
		for _, c := range errorCodes {
			fmt.Fprintf(&problems, "| `%s` | %d | %s | %s |\n", c.Code, c.Status, c.Meaning, c.Action)
		}
		lines.WriteString("| code | meaning |\n|---|---|\n")
		for _, c := range lineCodes {
			fmt.Fprintf(&lines, "| `%s` | %s |\n", c.Code, c.Meaning)
		}
		want := between(t, between(t, string(have), "codes", problems.String()), "lines", lines.String())
		if *update {
			fixture.OK(t, os.WriteFile(path, []byte(want), 0o644))
			return
		}
		if want != string(have) {
			t.Errorf("%s is out of date: go test ./internal/api -run TestErrorCodes -update", path)
		}
	})
}

// between puts a text between the marks of a page.
func between(t *testing.T, page, mark, text string) string {
	t.Helper()
	begin, end := "<!-- "+mark+": begin -->\n", "<!-- "+mark+": end -->"
	before, rest, ok := strings.Cut(page, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("the page has lost its marks %q and %q", begin, end)
	}
	return before + begin + text + end + after
}

// TestLineCodesArrive uploads a line for each code.
func TestLineCodesArrive(t *testing.T) {
	t.Parallel()
	b := setup(t)
	points, vouchers := b.create(t, `{"id":1,"name":"p","type":"POINT"}`), b.create(t, `{"id":2,"name":"v","type":"VOUCHER","amount":5}`)
	const header = "targetId,userId,amount,voucherCode\n"
	got := map[string]bool{}
	for _, up := range []struct{ promotion, contentType, file, query string }{
		{points, "text/csv", header + "1,u,5,\n,u,5,\nx,u,5,\n2,a\tb,5,\n2,u,,\n2,u,0,\n2,u,5,V-1\n2,u\n\"2\"x,u,5,\n2,\xff,5,\n" + strings.Repeat("y", 1<<20) + "\n", ""},
		{points, "application/x-ndjson", "{\"targetId\":1,\"userId\":\"another\",\"amount\":5}\n[]\n", ""},
		{vouchers, "text/csv", header + "1,u,5,\n2,u,5,=1+1\n", ""},
		{points, string(campaign.FormatXLSX), workbookOf(t, `<row><c t="inlineStr"><is><t>targetId</t></is></c></row><row hidden="1"><c><v>1</v></c></row>`), ""},
		{points, "text/csv", "No,ID\n3,\n", "?columns=targetId%3DNo,userId%3DID"},
	} {
		for _, e := range b.do(t, "POST", "/v1/promotions/"+up.promotion+"/targets"+up.query, strings.NewReader(up.file), "Content-Type", up.contentType).result(t).Errors {
			got[e.Code] = true
		}
	}
	want := map[string]bool{}
	for _, c := range lineCodes {
		want[c.Code] = true
	}
	fixture.Equal(t, want, got)
}

// TestErrorCodesArrive produces the codes that no other test wants by wantProblem.
func TestErrorCodesArrive(t *testing.T) {
	t.Parallel()
	const asJSON, asCSV = "application/json", "text/csv"
	const spring = `{"id":12345,"name":"Spring","type":"POINT","amount":5}`
	post := func(t *testing.T, b *bundle, path, contentType, body string, headers ...string) answer {
		t.Helper()
		return b.do(t, "POST", path, strings.NewReader(body), append([]string{"Content-Type", contentType}, headers...)...)
	}
	small := func(c *Config) { // with dry runs of at most two targets
		rows, _ := c.Rows.(*faultyStore)
		c.Uploads = campaign.NewUploads(campaign.UploadsConfig{Rows: rows, IDs: service.NewIDs(), Hint: func(reward.PromotionID) {}, DryRunTargetsMax: 2})
	}
	ends := func(reason string) func(*testing.T, *bundle) answer {
		return func(t *testing.T, b *bundle) answer {
			b.shop.stand("42:u7", coupon.Status{Kind: coupon.StatusRejected, Ticket: 9, Reason: reason}, nil)
			return post(t, b, "/v1/coupons/42/issue", asJSON, `{"userId":"u7"}`)
		}
	}
	for code, tt := range map[string]struct {
		status int
		edit   func(*Config)
		ask    func(t *testing.T, b *bundle) answer
	}{
		web.CodeCrossOrigin: {403, nil, func(t *testing.T, b *bundle) answer {
			b.serveHTTP(t, web.Limits{})
			return post(t, b, "/v1/promotions", asJSON, spring, "Sec-Fetch-Site", "cross-site")
		}},
		reward.ReasonNotDrawn: {409, nil, ends(reward.ReasonNotDrawn)},
		reward.ReasonError:    {409, nil, ends(reward.ReasonError)},
		reward.ReasonLeft: {409, nil, func(t *testing.T, b *bundle) answer {
			b.shop.stand("42:u7", coupon.Status{Kind: coupon.StatusLeft, Ticket: 9}, nil)
			return post(t, b, "/v1/coupons/42/issue", asJSON, `{"userId":"u7"}`)
		}},
		web.CodeWrongHost: {421, nil, func(t *testing.T, b *bundle) answer {
			b.serveHTTP(t, web.Limits{})
			return b.rawAnswer(t, "GET /v1/promotions HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
		}},
		reward.CodeAmountOverflow: {422, nil, func(t *testing.T, b *bundle) answer {
			b.create(t, spring)
			rows := []store.NewPayout{{PromotionID: 12345, TargetID: 2, Amount: math.MaxInt64 - 4}}
			fixture.Must(b.store.PayoutSave(t.Context(), store.PayoutSaveParams{Rows: rows}))(t)
			return post(t, b, "/v1/promotions/12345/targets", asCSV, "targetId\n1\n")
		}},
		campaign.CodeDryRunTooLarge: {422, small, func(t *testing.T, b *bundle) answer {
			b.create(t, spring)
			return post(t, b, "/v1/promotions/12345/targets?dryRun=true", asCSV, "targetId\n1\n2\n3\n")
		}},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			edit := tt.edit
			if edit == nil {
				edit = func(*Config) {}
			}
			tt.ask(t, setup(t, edit)).wantProblem(t, tt.status, code)
		})
	}

	fixture.OnFakeTime(t, CodeTooManyUploads, func(t *testing.T) {
		b := newBundle(t, func(c *Config) { c.UploadsMost = 1 })
		b.api.uploads <- struct{}{}
		out := httptest.NewRecorder()
		req := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/promotions/12345/targets", strings.NewReader("targetId\n"+strings.Repeat("1\n", uploadBytesMin)))
		req.Header.Set("Content-Type", asCSV)
		began := time.Now()
		b.api.ServeHTTP(out, req)
		a := answer{out.Code, out.Header(), out.Body.String()}
		b.wantDescribed(t, req, a)
		a.wantProblem(t, http.StatusServiceUnavailable, CodeTooManyUploads)
		if a.header.Get("Retry-After") == "" || time.Since(began) != uploadSlotTimeout {
			t.Errorf("%v after %s", a.header, time.Since(began))
		}
	})
}

// rawAnswer sends the bytes of a request and reads its answer.
func (b *bundle) rawAnswer(t *testing.T, text string) answer {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(b.raw(t, text)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body := fixture.Must(io.ReadAll(res.Body))(t)
	return answer{res.StatusCode, res.Header, string(body)}
}

// codeConstants finds constants named Code… in a folder: their values, and names.
func codeConstants(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	found := map[string]string{}
	for _, path := range files {
		file := fixture.Must(parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution))(t)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, name := range spec.Names {
				if !strings.HasPrefix(name.Name, "Code") || i >= len(spec.Values) {
					continue
				}
				if literal, ok := spec.Values[i].(*ast.BasicLit); ok && literal.Kind == token.STRING {
					if text, err := strconv.Unquote(literal.Value); err == nil {
						found[text] = name.Name
					}
				}
			}
			return true
		})
	}
	return found
}
