package money

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/largesse/largesse/internal/reward"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestClassify(t *testing.T) {
	t.Parallel()
	refusals := map[string]bool{"LISTED": true}
	const (
		keyed  = `{"transactionKey":"T1"}`
		coded  = `{"code":"C","message":"no"}`
		listed = `{"code":"LISTED","message":"no"}`
		empty  = ``
	)
	type row struct {
		status int
		body   string
		want   Answer
	}
	answer := func(class reward.AnswerClass, code, message string) Answer {
		return Answer{Class: class, Code: code, Message: message}
	}
	paid := Answer{Class: reward.AnswerPaid, TransactionKey: "T1"}
	rows := []row{
		{200, keyed, paid},
		{200, `{"transactionKey":"T1","code":"C","message":"thanks"}`, paid},
		{200, `{"transactionKey":"T1","TransactionKey":"T2"}`, paid},
		{200, `{"TransactionKey":"T1"}`, answer(reward.AnswerUnknown, CodeNoKey, `{"TransactionKey":"T1"}`)},
		{200, `{"transactionKey":"T1","transactionKey":"T2"}`, answer(reward.AnswerUnknown, CodeNoKey, `{"transactionKey":"T1","transactionKey":"T2"}`)},
		{200, empty, answer(reward.AnswerUnknown, CodeNoKey, "")},
		{200, `{}`, answer(reward.AnswerUnknown, CodeNoKey, "{}")},
		{200, `{"transactionKey":""}`, answer(reward.AnswerUnknown, CodeNoKey, `{"transactionKey":""}`)},
		{200, `{"transactionKey":" \u0000 "}`, answer(reward.AnswerUnknown, CodeNoKey, `{"transactionKey":" \u0000 "}`)},
		{200, `{"transactionKey":null}`, answer(reward.AnswerUnknown, CodeNoKey, `{"transactionKey":null}`)},
		{200, `{"transactionKey":{"a":1}}`, answer(reward.AnswerUnknown, CodeNoKey, `{"transactionKey":{"a":1}}`)},
		{200, `{"transactionKey":"T1"`, answer(reward.AnswerUnknown, CodeNoKey, `{"transactionKey":"T1"`)},
		{200, `<html>hello`, answer(reward.AnswerUnknown, CodeNoKey, "<html>hello")},
		{200, coded, answer(reward.AnswerUnknown, "C", "no")},
		{200, `{"transactionKey":12}`, Answer{Class: reward.AnswerPaid, TransactionKey: "12"}},

		{409, keyed, paid},
		{409, `{"transactionKey":"T1","code":"LISTED"}`, paid},
		{409, coded, answer(reward.AnswerUnknown, "C", "no")},
		{409, empty, answer(reward.AnswerUnknown, "HTTP_409", "")},
		{409, listed, answer(reward.AnswerRefused, "LISTED", "no")},
		{408, coded, answer(reward.AnswerUnknown, "C", "no")},
		{408, keyed, answer(reward.AnswerUnknown, "HTTP_408", "")},
		{425, empty, answer(reward.AnswerUnknown, "HTTP_425", "")},
		{425, coded, answer(reward.AnswerUnknown, "C", "no")},
		{425, keyed, answer(reward.AnswerUnknown, "HTTP_425", "")},
		{408, empty, answer(reward.AnswerUnknown, "HTTP_408", "")},
		{408, listed, answer(reward.AnswerRefused, "LISTED", "no")},
		{425, listed, answer(reward.AnswerRefused, "LISTED", "no")},
		{409, `{"transactionKey":""}`, answer(reward.AnswerUnknown, "HTTP_409", `{"transactionKey":""}`)},
		{409, `{"transactionKey":7,"code":"C"}`, Answer{Class: reward.AnswerPaid, TransactionKey: "7"}},

		{429, coded, answer(reward.AnswerThrottled, "C", "no")},
		{429, empty, answer(reward.AnswerThrottled, "HTTP_429", "")},
		{429, listed, answer(reward.AnswerRefused, "LISTED", "no")},
		{503, coded, answer(reward.AnswerThrottled, "C", "no")},
		{503, listed, answer(reward.AnswerThrottled, "LISTED", "no")},
		{503, keyed, answer(reward.AnswerThrottled, "HTTP_503", "")},

		{500, coded, answer(reward.AnswerFailed, "C", "no")},
		{500, listed, answer(reward.AnswerFailed, "LISTED", "no")},
		{500, keyed, answer(reward.AnswerFailed, "HTTP_500", "")},
		{502, "Bad\nGateway", answer(reward.AnswerFailed, "HTTP_502", "Bad Gateway")},
		{504, empty, answer(reward.AnswerFailed, "HTTP_504", "")},
		{501, coded, answer(reward.AnswerFailed, "C", "no")},
		{599, empty, answer(reward.AnswerFailed, "HTTP_599", "")},

		{400, coded, answer(reward.AnswerRefused, "C", "no")},
		{402, coded, answer(reward.AnswerRefused, "C", "no")},
		{422, `{"code":1001,"detail":"account closed"}`, answer(reward.AnswerRefused, "1001", "account closed")},
		{422, `{"code":"C","title":"no"}`, answer(reward.AnswerRefused, "C", "no")},
		{422, `{"code":"C","message":{"ko":"no"}}`, answer(reward.AnswerRefused, "C", "")},
		{499, coded, answer(reward.AnswerRefused, "C", "no")},
		{400, listed, answer(reward.AnswerRefused, "LISTED", "no")},
		{410, `{"transactionKey":"T1","code":"C"}`, answer(reward.AnswerRefused, "C", "")},
		{400, `{"code":""}`, answer(reward.AnswerMisconfigured, "HTTP_400", `{"code":""}`)},
		{400, `{"Code":"C"}`, answer(reward.AnswerMisconfigured, "HTTP_400", `{"Code":"C"}`)},
		{400, empty, answer(reward.AnswerMisconfigured, "HTTP_400", "")},
		{422, keyed, answer(reward.AnswerMisconfigured, "HTTP_422", "")},
		{422, `[1]`, answer(reward.AnswerMisconfigured, "HTTP_422", "[1]")},

		{100, empty, answer(reward.AnswerUnknown, "HTTP_100", "")},
		{101, keyed, answer(reward.AnswerUnknown, "HTTP_101", "")},
		{201, keyed, answer(reward.AnswerUnknown, "HTTP_201", "")},
		{202, keyed, answer(reward.AnswerUnknown, "HTTP_202", "")},
		{204, empty, answer(reward.AnswerUnknown, "HTTP_204", "")},
		{301, keyed, answer(reward.AnswerMisconfigured, "HTTP_301", "")},
		{308, empty, answer(reward.AnswerMisconfigured, "HTTP_308", "")},
		{600, keyed, answer(reward.AnswerUnknown, "HTTP_600", "")},
		{999, coded, answer(reward.AnswerUnknown, "C", "no")},
	}
	for _, status := range []int{401, 403, 404, 405, 407, 413, 415} {
		withCode := answer(reward.AnswerMisconfigured, "C", "no")
		withCode.OnePayee = status == 403 || status == 404
		rows = append(rows,
			row{status, coded, withCode},
			row{status, empty, answer(reward.AnswerMisconfigured, fmt.Sprintf("HTTP_%d", status), "")},
			row{status, keyed, answer(reward.AnswerMisconfigured, fmt.Sprintf("HTTP_%d", status), "")},
			row{status, listed, answer(reward.AnswerRefused, "LISTED", "no")},
		)
	}
	for _, r := range rows {
		r.want.Status = r.status
		got := classify(reply{status: r.status, body: []byte(r.body)}, refusals, noon)
		if diff := cmp.Diff(r.want, got, cmpopts.IgnoreFields(Answer{}, "Err")); diff != "" {
			t.Errorf("%d %s (-want +got):\n%s", r.status, r.body, diff)
		}
		if (got.Err != nil) != (got.Class == reward.AnswerUnknown) {
			t.Errorf("%d %s: class %s with error %v", r.status, r.body, got.Class, got.Err)
		}
		if success := r.status >= 200 && r.status <= 299; got.WithoutKey() != (success && got.Class == reward.AnswerUnknown) {
			t.Errorf("%d %s: class %s, without a key: %t", r.status, r.body, got.Class, got.WithoutKey())
		}
	}
}

func TestClassifyLookup(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status   int
		body     string
		found    bool
		notFound bool
		class    reward.AnswerClass
	}{
		{200, `{"transactionKey":"T1"}`, true, false, reward.AnswerPaid},
		{200, `{}`, false, false, reward.AnswerUnknown},
		{200, `{"code":"NOT_FOUND"}`, false, false, reward.AnswerUnknown},
		{404, `{"code":"NOT_FOUND"}`, false, true, reward.AnswerRefused},
		{404, `404 page not found`, false, false, reward.AnswerMisconfigured},
		{404, `{"transactionKey":"T1"}`, false, false, reward.AnswerMisconfigured},
		{409, `{"transactionKey":"T1"}`, false, false, reward.AnswerUnknown},
		{400, `{"code":"BAD_KEY"}`, false, false, reward.AnswerUnknown},
		{410, `{"code":"GONE"}`, false, false, reward.AnswerUnknown},
		{401, `{"code":"X"}`, false, false, reward.AnswerMisconfigured},
		{302, ``, false, false, reward.AnswerMisconfigured},
		{429, ``, false, false, reward.AnswerThrottled},
		{500, `{"code":"X"}`, false, false, reward.AnswerFailed},
		{503, ``, false, false, reward.AnswerThrottled},
	} {
		got := classifyLookup(reply{status: c.status, body: []byte(c.body)}, noon)
		if got.Found != c.found || got.NotFound != c.notFound || got.Answer.Class != c.class || got.Answer.Status != c.status {
			t.Errorf("%d %s: %+v", c.status, c.body, got)
		}
		if (got.TransactionKey == "T1") != c.found {
			t.Errorf("%d %s: transaction key %q", c.status, c.body, got.TransactionKey)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, " 7 ": 7 * time.Second, "-7": 0, "soon": 0, "1.5": 0,
		"86400": retryAfterMax, "99999999999": retryAfterMax, "99999999999999999999999": retryAfterMax,
		noon.Add(90 * time.Second).Format(http.TimeFormat):                90 * time.Second,
		noon.Add(-time.Minute).Format(http.TimeFormat):                    0,
		noon.Add(365 * 24 * time.Hour).Format(http.TimeFormat):            retryAfterMax,
		"Friday, 31-Dec-99 23:59:59 GMT":                                  0,
		noon.Add(time.Hour).Format("Mon Jan _2 15:04:05 2006"):            time.Hour, // the oldest of the three forms
		noon.Add(time.Hour).Format("Monday, 02-Jan-06 15:04:05 ") + "GMT": time.Hour,
	} {
		for _, status := range []int{429, 503, 500} {
			if got := classify(reply{status: status, retryAfter: header}, nil, noon).RetryAfter; got != want {
				t.Errorf("%d with Retry-After %q: %v, want %v", status, header, got, want)
			}
		}
	}
}

func TestTextIsFitForARow(t *testing.T) {
	t.Parallel()
	body := []byte(`{"code":"A` + "\xff" + `\u0000B\n","message":"` + strings.Repeat("하", 300) + `"}`)
	got := classify(reply{status: 422, body: body}, nil, noon)
	if got.Class != reward.AnswerRefused || got.Code != "A\uFFFD B" {
		t.Errorf("class %s, code %q", got.Class, got.Code)
	}
	if len(got.Message) > textMax || len(got.Message) < textMax-3 || !utf8.ValidString(got.Message) {
		t.Errorf("message of %d bytes: %q", len(got.Message), got.Message)
	}
	page := classify(reply{status: 502, body: []byte("\x00\xf0\x28" + strings.Repeat("x\x00", 5000))}, nil, noon)
	if len(page.Message) > textMax || !utf8.ValidString(page.Message) || strings.ContainsRune(page.Message, 0) {
		t.Errorf("message of %d bytes: %q", len(page.Message), page.Message)
	}
}

func FuzzClassify(f *testing.F) {
	for _, body := range []string{``, `{}`, `{"transactionKey":"T"}`, `{"code":"C","message":"m"}`, `{"code":9}`, `[`, "\x00\xff", `{"transactionKey":"\ud800"}`} {
		for _, status := range []int{0, 100, 200, 204, 302, 401, 404, 409, 422, 429, 500, 503, 1000} {
			f.Add(status, []byte(body), "3")
		}
	}
	f.Fuzz(func(t *testing.T, status int, body []byte, retryAfter string) {
		r := reply{status: status, body: body, retryAfter: retryAfter}
		a := classify(r, map[string]bool{"C": true}, noon)
		l := classifyLookup(r, noon)
		if (a.Class == reward.AnswerPaid) != (a.TransactionKey != "") || a.Class == "" || a.Class == reward.AnswerNotSent {
			t.Errorf("%+v", a)
		}
		if a.Class == reward.AnswerPaid && status != 200 && status != 409 {
			t.Errorf("paid by status %d", status)
		}
		if a.Class == reward.AnswerRefused && (status < 400 || status > 499 || readBody(body).Code == "") {
			t.Errorf("refused by status %d and body %q", status, body)
		}
		if l.Found != (l.TransactionKey != "") || l.Found && l.NotFound || l.Found != (l.Answer.Class == reward.AnswerPaid) ||
			l.NotFound != (l.Answer.Class == reward.AnswerRefused) {
			t.Errorf("%+v", l)
		}
		for _, text := range []string{a.Code, a.Message, a.TransactionKey, l.Answer.Message} {
			if len(text) > textMax || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				t.Errorf("text %q", text)
			}
		}
		if a.RetryAfter < 0 || a.RetryAfter > retryAfterMax {
			t.Errorf("Retry-After %v", a.RetryAfter)
		}
	})
}
