package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestMain(m *testing.M) { fixture.Main(m) }

// serve starts a server with one handler and a client of it.
func serve(t *testing.T, o client.Options, handler http.HandlerFunc) *client.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	transport := &http.Transport{ExpectContinueTimeout: 10 * time.Second}
	t.Cleanup(transport.CloseIdleConnections)
	o.Transport = transport
	return fixture.Must(client.New(server.URL, o))(t)
}

func TestNew(t *testing.T) {
	t.Parallel()
	for server, good := range map[string]bool{
		"http://127.0.0.1:8080": true, "https://largesse.internal/base": true,
		"127.0.0.1:8080": false, "ftp://h": false, "http://": false, "http://h?a=b": false, "http://u:hunter2@h#f": false, "://u:hunter2@h": false,
	} {
		_, err := client.New(server, client.Options{})
		if (err == nil) != good {
			t.Errorf("New(%q): %v", server, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("New(%q) tells the password: %v", server, err)
		}
	}
}

func TestExportPayouts(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	rest := make(chan struct{})
	c := serve(t, client.Options{Timeout: time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
		if r.RequestURI != "/v1/promotions/7/payouts?code=X&state=FAILED" || r.Header.Get("Accept") != "text/csv" {
			t.Errorf("%s, accepting %s", r.RequestURI, r.Header.Get("Accept"))
		}
		w.Header().Set("Content-Type", "text/csv; charset=utf-8")
		_, _ = io.WriteString(w, "targetId\n")
		_ = http.NewResponseController(w).Flush()
		<-rest // an export may last longer than any other call
		_, _ = io.WriteString(w, "1\n")
	})
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- c.ExportPayouts(ctx, "7", client.PayoutFilter{State: "FAILED", Code: "X"}, write)
		_ = write.Close()
	}()
	head := make([]byte, 9)
	if _, err := io.ReadFull(read, head); err != nil || string(head) != "targetId\n" {
		t.Errorf("%q: %v", head, err)
	}
	close(rest)
	if tail, err := io.ReadAll(read); err != nil || string(tail) != "1\n" {
		t.Errorf("%q: %v", tail, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}

	for name, answer := range map[string]http.HandlerFunc{
		"NoCSV": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") },
		"Problem": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":"PROMOTION_NOT_FOUND"}`)
		},
		"Cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/csv")
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "targetId\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := serve(t, client.Options{}, answer).ExportPayouts(ctx, "7", client.PayoutFilter{}, io.Discard)
			var p *client.Problem
			if err == nil || errors.As(err, &p) != (name == "Problem") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	ctx := context.Background()

	t.Run("WalkOverAllPages", func(t *testing.T) {
		t.Parallel()
		asked := make(chan string, 3)
		c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
			asked <- r.RequestURI
			switch r.URL.Query().Get("cursor") {
			case "":
				_, _ = io.WriteString(w, `{"items":[{"targetId":"1"},{"targetId":"2"}],"nextCursor":"a b"}`)
			case "a b":
				_, _ = io.WriteString(w, `{"items":[],"nextCursor":"c"}`)
			default:
				_, _ = io.WriteString(w, `{"items":[{"targetId":"3"}]}`)
			}
		})
		var got []string
		for p, err := range c.Payouts(ctx, "7", client.PayoutFilter{State: "FAILED", Code: "X"}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, p.TargetID)
		}
		fixture.Equal(t, []string{"1", "2", "3"}, got)
		for _, want := range []string{
			"/v1/promotions/7/payouts?code=X&limit=200&state=FAILED",
			"/v1/promotions/7/payouts?code=X&cursor=a+b&limit=200&state=FAILED",
			"/v1/promotions/7/payouts?code=X&cursor=c&limit=200&state=FAILED",
		} {
			if uri := <-asked; uri != want {
				t.Errorf("asked for %s, want %s", uri, want)
			}
		}
	})

	t.Run("StopWhenTheCallerDoes", func(t *testing.T) {
		t.Parallel()
		calls := make(chan string, 2)
		c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
			calls <- r.RequestURI
			_, _ = io.WriteString(w, `{"items":[{"id":"1"},{"id":"2"}],"nextCursor":"n"}`)
		})
		for p, err := range c.Promotions(ctx, "RUNNING") {
			if err != nil || p.ID != "1" {
				t.Errorf("promotion %q, %v", p.ID, err)
			}
			break
		}
		if len(calls) != 1 || <-calls != "/v1/promotions?limit=200&status=RUNNING" {
			t.Error("more than the first page was asked for, or another one")
		}
	})

	t.Run("EndWithTheFirstError", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("cursor") != "" {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, `{"items":[{"id":"1","key":"k","valueBase64":"/w=="}],"nextCursor":"n"}`)
		})
		items, failures := 0, 0
		for l, err := range c.DeadLetters(ctx, client.DeadLetterFilter{}) {
			if err != nil {
				failures++
				continue
			}
			items++
			if l.Key != "k" || !bytes.Equal(l.ValueBytes, []byte{0xff}) {
				t.Errorf("dead letter %+v", l)
			}
		}
		if items != 1 || failures != 1 {
			t.Errorf("%d items and %d errors", items, failures)
		}
	})

	t.Run("RefuseToGoRoundInCircles", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"items":[{"id":"1"}],"nextCursor":"same"}`)
		})
		n := 0
		var last error
		for _, err := range c.Promotions(ctx, "") {
			n, last = n+1, err
		}
		if n != 3 || last == nil {
			t.Errorf("%d items, then %v", n, last)
		}
	})
}

func TestUploadTargets(t *testing.T) {
	t.Parallel()
	ctx := context.Background()

	t.Run("StreamsTheFileAndReadsTheResult", func(t *testing.T) {
		t.Parallel()
		type seen struct{ URI, Type, Encoding, Body string }
		got := make(chan seen, 1)
		c := serve(t, client.Options{Timeout: time.Nanosecond}, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got <- seen{r.RequestURI, r.Header.Get("Content-Type"), r.Header.Get("Content-Encoding"), string(body)}
			_, _ = io.WriteString(w, `{"uploadId":"5","accepted":1,"duplicates":2,"conflicts":3,"rejected":4,"amount":6,
				"errors":[{"line":2,"code":"BAD_ID","detail":"no"}],"reportUrl":"/v1/promotions/7/uploads/5/report"}`)
		})
		result := fixture.Must(c.UploadTargets(ctx, "7", strings.NewReader("x"), client.UploadOptions{Format: client.NDJSON, Gzip: true, DryRun: true}))(t)
		fixture.Equal(t, seen{"/v1/promotions/7/targets?dryRun=true", "application/x-ndjson", "gzip", "x"}, <-got)
		want := client.UploadResult{
			UploadID: "5", Accepted: 1, Duplicates: 2, Conflicts: 3, Rejected: 4, Amount: 6,
			Errors: []client.LineError{{Line: 2, Code: "BAD_ID", Detail: "no"}}, ReportURL: c.Server() + "/v1/promotions/7/uploads/5/report",
		}
		fixture.Equal(t, want, result)
	})

	t.Run("SaysHowTheFileIsRead", func(t *testing.T) {
		t.Parallel()
		type seen struct{ URI, Type string }
		got := make(chan seen, 2)
		c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
			got <- seen{r.RequestURI, r.Header.Get("Content-Type")}
			_, _ = io.WriteString(w, `{"columns":{"targetId":"No"},"lines":[{"line":2,"accepted":true,"cells":["7"]}],"alreadyPaid":[{"promotionId":"6","name":"Fall","count":3}]}`)
		})
		o := client.UploadOptions{Format: client.XLSX, Columns: "targetId=No", Sheet: "A b", MajorUnits: true, FileName: "a&b.xlsx"}
		fixture.Must(c.UploadTargets(ctx, "7", strings.NewReader("x"), o))(t)
		const workbook = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
		fixture.Equal(t, seen{"/v1/promotions/7/targets?amounts=major&columns=targetId%3DNo&fileName=a%26b.xlsx&sheet=A+b", workbook}, <-got)
		check := fixture.Must(c.CheckTargets(ctx, strings.NewReader("x"), client.CheckOptions{
			UploadOptions: client.UploadOptions{Encoding: "cp949", FileName: "a.csv"}, Type: "VOUCHER", Currency: "EUR", Amount: 5, VoucherCode: "V",
		}))(t)
		fixture.Equal(t, seen{"/v1/targets/check?amount=5&currency=EUR&encoding=cp949&type=VOUCHER&voucherCode=V", "text/csv"}, <-got)
		fixture.Equal(t, client.TargetsCheck{
			Columns: client.TargetColumns{TargetID: "No"}, Lines: []client.CheckedLine{{Line: 2, Accepted: true, Cells: []string{"7"}}},
			AlreadyPaid: []client.AlreadyPaid{{PromotionID: "6", Name: "Fall", Count: 3}},
		}, check)
		if _, err := c.CheckTargets(ctx, strings.NewReader(""), client.CheckOptions{UploadOptions: client.UploadOptions{Format: "xls"}}); err == nil {
			t.Error("an unknown format was taken")
		}
	})

	t.Run("GetsTheRefusedLines", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/csv; charset=utf-8")
			_, _ = io.WriteString(w, r.RequestURI)
		})
		var file strings.Builder
		fixture.OK(t, c.RefusedLines(ctx, "7", "5", &file))
		fixture.Equal(t, "/v1/promotions/7/uploads/5/refused", file.String())
	})

	t.Run("RefusesAnUnknownFormat", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(http.ResponseWriter, *http.Request) { t.Error("it called") })
		if _, err := c.UploadTargets(ctx, "7", strings.NewReader(""), client.UploadOptions{Format: "xml"}); err == nil {
			t.Error("it was taken")
		}
	})

	t.Run("HearsARefusalBeforeTheFileIsSent", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":"PROMOTION_NOT_FOUND","detail":"there is no promotion 7"}`)
		})
		file := &endless{}
		_, err := c.UploadTargets(ctx, "7", file, client.UploadOptions{})
		var p *client.Problem
		if !errors.As(err, &p) || p.Code != "PROMOTION_NOT_FOUND" {
			t.Errorf("error %v", err)
		}
	})

	t.Run("TellsWhyTheFileCouldNotBeRead", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
		broken := errors.New("the disk is gone")
		_, err := c.UploadTargets(ctx, "7", io.MultiReader(strings.NewReader("targetId\n"), failing{broken}), client.UploadOptions{})
		if !errors.Is(err, broken) {
			t.Errorf("error %v", err)
		}
	})

	t.Run("EndsWithItsContext", func(t *testing.T) {
		t.Parallel()
		begun := make(chan struct{})
		c := serve(t, client.Options{}, func(_ http.ResponseWriter, r *http.Request) {
			close(begun)
			_, _ = io.Copy(io.Discard, r.Body)
		})
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			<-begun
			cancel()
		}()
		if _, err := c.UploadTargets(ctx, "7", &endless{}, client.UploadOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

// endless is a file without an end.
type endless struct{}

func (*endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '\n'
	}
	return len(p), nil
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestProblem(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, contentType, body string
		status                  int
		header                  map[string]string
		want                    client.Problem
		text                    string
	}{
		{
			"IsReadFromTheDocument", "application/problem+json; charset=utf-8",
			`{"type":"about:blank","title":"Unprocessable Entity","status":422,"code":"INVALID","detail":"two fields are wrong","requestId":"r1","errors":[{"field":"name","detail":"is missing"},{"field":"amount","detail":"must not be negative"}]}`,
			422, nil,
			client.Problem{
				Status: 422, Code: "INVALID", Title: "Unprocessable Entity", Detail: "two fields are wrong", RequestID: "r1",
				Errors: []client.FieldError{{Field: "name", Detail: "is missing"}, {Field: "amount", Detail: "must not be negative"}},
			},
			"two fields are wrong: name is missing, amount must not be negative (INVALID)",
		},
		{
			"TellsASingleFieldOnce", "application/problem+json",
			`{"code":"MALFORMED","detail":"id: must be above 0","errors":[{"field":"id","detail":"must be above 0"}]}`, 400, nil,
			client.Problem{Status: 400, Code: "MALFORMED", Title: "Bad Request", Detail: "id: must be above 0", Errors: []client.FieldError{{Field: "id", Detail: "must be above 0"}}},
			"id: must be above 0 (MALFORMED)",
		},
		{
			"TakesIDAndPauseFromHeaders", "application/problem+json", `{"code":"UNAVAILABLE","detail":"the database is away"}`, 503,
			map[string]string{"X-Request-Id": "r2", "Retry-After": "3"},
			client.Problem{Status: 503, Code: "UNAVAILABLE", Title: "Service Unavailable", Detail: "the database is away", RequestID: "r2", RetryAfter: 3 * time.Second},
			"the database is away (UNAVAILABLE)",
		},
		{
			"ShowsThePageOfAProxy", "text/html", "<h1>Bad\n  Gateway</h1>\xff", 502,
			map[string]string{"Retry-After": "soon"},
			client.Problem{Status: 502, Title: "Bad Gateway", Detail: "the server responded with 502: <h1>Bad Gateway</h1>"},
			"the server responded with 502: <h1>Bad Gateway</h1> (HTTP 502)",
		},
		{
			"TellsWhenATemplateOpens", "application/problem+json", `{"code":"NOT_OPEN","detail":"soon","opensAt":"2026-11-21T10:00:00Z"}`, 409, nil,
			client.Problem{Status: 409, Code: "NOT_OPEN", Title: "Conflict", Detail: "soon", OpensAt: tenSharp},
			"soon (NOT_OPEN)",
		},
		{"SurvivesABrokenDocument", "application/problem+json", "{", 500, nil, client.Problem{Status: 500, Title: "Internal Server Error", Detail: "the server responded with 500: {"}, "the server responded with 500: { (HTTP 500)"},
		{"SurvivesAnEmptyAnswer", "", "", 404, nil, client.Problem{Status: 404, Title: "Not Found"}, "Not Found (HTTP 404)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := serve(t, client.Options{}, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tc.contentType)
				for name, value := range tc.header {
					w.Header().Set(name, value)
				}
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body)
			})
			_, err := c.Promotion(context.Background(), "7")
			var got *client.Problem
			if !errors.As(err, &got) {
				t.Fatalf("error %v", err)
			}
			fixture.Equal(t, tc.want, *got)
			if err.Error() != tc.text {
				t.Errorf("text %q, want %q", err, tc.text)
			}
		})
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()

	t.Run("AServerThatHangsMeetsTheTimeout", func(t *testing.T) {
		t.Parallel()
		// The test ends only when the server has: the client hung up on each request that arrived.
		c := serve(t, client.Options{Timeout: 20 * time.Millisecond}, func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		})
		if _, err := c.Promotion(context.Background(), "7"); !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "calling GET /v1/promotions/7: ") {
			t.Errorf("error %v", err)
		}
	})

	t.Run("AnAnswerThatIsNotOurs", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })
		_, err := c.Promotion(context.Background(), "7")
		var syntax *json.SyntaxError
		if !errors.As(err, &syntax) || !strings.Contains(err.Error(), "a Largesse server") {
			t.Errorf("error %v", err)
		}
	})

	t.Run("AnAnswerThatIsCutOff", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "{")
		})
		if _, err := c.Promotion(context.Background(), "7"); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("error %v", err)
		}
	})

	t.Run("NoServerAtAll", func(t *testing.T) {
		t.Parallel()
		c := fixture.Must(client.New("http://127.0.0.1:1", client.Options{}))(t)
		if err := c.Health(context.Background()); err == nil || !strings.HasPrefix(err.Error(), "calling GET /healthz: dial tcp") {
			t.Errorf("error %v", err)
		}
	})
}

// TestRedirectsAreRefused checks that the API key goes to the address of the API only.
func TestRedirectsAreRefused(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s with the key %q", r.Method, r.URL, r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		c := serve(t, client.Options{APIKey: "lgs_x"}, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path+"?token=secret", status)
		})
		_, err := c.Promotion(t.Context(), "1")
		if err == nil || !strings.Contains(err.Error(), elsewhere.URL) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%d: %v", status, err)
		}
		if _, err := c.StartPromotion(t.Context(), "1"); err == nil {
			t.Errorf("%d: a POST succeeds", status)
		}
	}
}
