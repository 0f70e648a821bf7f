package reward

import (
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// checkComplaint checks that an error about hostile bytes fits a log line and a
// dead letter.
func checkComplaint(t *testing.T, in []byte, err error) {
	t.Helper()
	if text := err.Error(); len(text) > 600 || strings.ContainsAny(text, "\n\r\x00") || !utf8.ValidString(text) || strings.Contains(text, "Go ") {
		t.Fatalf("%q: the complaint is unfit for people: %q", in, text)
	}
}

func FuzzParsePublishMessage(f *testing.F) {
	for _, seed := range []string{
		`{"promotionId":1,"promotionSummaryId":1,"targetId":7,"userId":"u7","amount":1000}`,
		`{"promotionId":"1","targetId":"7","amount":"5","voucherCode":"V-1000","more":[{}]}`,
		`{"promotionId":1,"targetId":0,"amount":1e3}`, `{"promotionId":1,"targetId":7,"amount":9223372036854775808}`,
		`{"promotionId":1,"promotionSummaryId":null,"targetId":9223372036854775807,"userId":"\ud83d\ude00","amount":1,"AMOUNT":2}`,
		`{"promotionId":01}`, "{}", "null", "[]", "", "\xff",
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, value []byte, voucher bool) {
		kind := Point
		if voucher {
			kind = Voucher
		}
		m, err := ParsePublishMessage(kind, value)
		if err != nil {
			if m != (PublishMessage{}) {
				t.Fatalf("%q left %+v beside the error %v", value, m, err)
			}
			checkComplaint(t, value, err)
			return
		}
		if m.Amount < AmountMin(kind) || m.Amount > AmountMax || (m.VoucherCode == "") == voucher || m.PromotionID < 1 || m.TargetID < 0 || m.SummaryID < 0 || CheckNewUserID(m.UserID) != nil {
			t.Fatalf("%q was read as %+v, which nobody can be paid by", value, m)
		}
		written := m.AppendJSON(nil)
		if again, err := ParsePublishMessage(kind, written); err != nil || again != m {
			t.Fatalf("%+v is written as %s and read as %+v, %v", m, written, again, err)
		}
	})
}

func FuzzParseStartedMessage(f *testing.F) {
	for _, seed := range []string{
		`{"promotionId":1,"promotionType":"POINT","totalCount":100000}`, `{"promotionId":"2","promotionType":"voucher","totalCount":0,"x":1}`,
		`{"promotionId":1,"promotionType":"POINT","totalCount":-1}`, `{"promotionId":1,"promotionType":"ſ","totalCount":1}`, `{"totalCount":1e3}`, "{}", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		m, err := ParseStartedMessage(value)
		if err != nil {
			if m != (StartedMessage{}) {
				t.Fatalf("%q left %+v beside the error %v", value, m, err)
			}
			checkComplaint(t, value, err)
			return
		}
		if m.PromotionID < 1 || m.TotalCount < 0 || m.PromotionType != Point && m.PromotionType != Voucher {
			t.Fatalf("%q was read as %+v", value, m)
		}
		written, err := json.Marshal(map[string]any{"promotionId": m.PromotionID, "promotionType": m.PromotionType, "totalCount": m.TotalCount})
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseStartedMessage(written); err != nil || again != m {
			t.Fatalf("%+v is written as %s and read as %+v, %v", m, written, again, err)
		}
	})
}

func FuzzParseRetryMessage(f *testing.F) {
	for _, seed := range []string{
		`{"promotionId":1,"targetId":7,"userId":"u7","amount":1000,"retryCount":1,"notBefore":"2026-11-21T10:00:00Z","lastError":"TIMEOUT","dispatch":3}`,
		`{"promotionId":1,"targetId":7,"notBefore":"2026-11-21T10:00:00.000000001+23:59","dispatch":2147483647}`,
		`{"promotionId":1,"notBefore":"0001-01-01T00:00:00Z","dispatch":1}`, `{"promotionId":1,"notBefore":"9999-12-31T23:59:59-23:59","dispatch":1}`,
		`{"dispatch":-1}`, `{"dispatch":2147483648}`, "{}", "",
		`{"notBefore":"` + strings.Repeat("D", 300) + `T23:59:59-23:59"}`, `{"dispatch":` + strings.Repeat("9", 700) + `}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		m, err := ParseRetryMessage(value)
		if err != nil {
			if m != (RetryMessage{}) {
				t.Fatalf("%q left %+v beside the error %v", value, m, err)
			}
			checkComplaint(t, value, err)
			return
		}
		if m.PromotionID < 1 || m.TargetID < 0 || m.SummaryID < 0 || m.Dispatch < 1 || m.NotBefore.IsZero() {
			t.Fatalf("%q was read as %+v", value, m)
		}
		written, err := json.Marshal(m)
		if err != nil {
			t.Fatalf("%+v cannot be written: %v", m, err)
		}
		again, err := ParseRetryMessage(written)
		if err != nil || !again.NotBefore.Equal(m.NotBefore) {
			t.Fatalf("%+v is written as %s and read as %+v, %v", m, written, again, err)
		}
		if again.NotBefore = m.NotBefore; again != m {
			t.Fatalf("%+v is written as %s and read as %+v", m, written, again)
		}
	})
}

func FuzzParseCouponIssueEvent(f *testing.F) {
	for _, seed := range []string{
		`{"templateId":42,"userId":"u7","ticket":981,"generation":1,"requestId":"42:u7"}`, `{"couponId":42,"username":"ann"}`,
		`{"templateId":"42","couponId":7,"userId":"a:b","username":"c"}`, `{"templateId":42,"userId":"u","ticket":0,"generation":1}`,
		`{"templateId":42,"userId":"u","ticket":-1}`, `{"templateId":42,"userId":"\u0000"}`, "{}", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		e, err := ParseCouponIssueEvent(value)
		if err != nil {
			if e != (CouponIssueEvent{}) {
				t.Fatalf("%q left %+v beside the error %v", value, e, err)
			}
			checkComplaint(t, value, err)
			return
		}
		if e.TemplateID < 1 || CheckUserID(e.UserID) != nil || e.Ticket < 0 || e.Generation < 0 || e.Generation > 0 && e.Ticket == 0 {
			t.Fatalf("%q was read as %+v", value, e)
		}
		if id, user, err := ParseRequestID(e.RequestID); err != nil || id != e.TemplateID || user != e.UserID {
			t.Fatalf("%+v names its request so that it is read as %s and %q, %v", e, id, user, err)
		}
		if again, err := ParseCouponIssueEvent(e.JSON()); err != nil || again != e {
			t.Fatalf("%+v is written as %s and read as %+v, %v", e, e.JSON(), again, err)
		}
	})
}

// escapes finds every escape of JSON's strings.
var escapes = regexp.MustCompile(`\\(?:u[0-9a-fA-F]{4}|[^u])`)

// replaced counts the signs in the text of JSON that stand for what is no text,
// as they are written and as they are read.
func replaced(data []byte) (written, read int, err error) {
	written = bytes.Count(data, []byte("\uFFFD"))
	for _, escape := range escapes.FindAll(data, -1) {
		if strings.EqualFold(string(escape), `\ufffd`) {
			written++
		}
	}
	for dec := json.NewDecoder(bytes.NewReader(data)); ; {
		token, err := dec.Token()
		if err == io.EOF {
			return written, read, nil
		}
		if err != nil {
			return 0, 0, err
		}
		if s, ok := token.(string); ok {
			read += strings.Count(s, "\uFFFD")
		}
	}
}

func FuzzCheckJSONText(f *testing.F) {
	for _, seed := range []string{
		`"\ud83d\ude00"`, `"\ud83d"`, `"\ude00\ud83d"`, `"\\ud83d"`, `"\\\ud83d"`, `{"\ud83dx":"\uFFFD"}`, `["\ud83d\ud83d\ude00"]`, "\"\xef\xbf\xbd\"", "\"\xff\"", `"\u00`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		err := CheckJSONText(data)
		if !utf8.Valid(data) {
			if err == nil {
				t.Fatalf("%q is no UTF-8 and passes", data)
			}
			return
		}
		if !json.Valid(data) {
			return // whatever it says: reading will refuse it
		}
		written, read, readErr := replaced(data)
		switch {
		case readErr != nil:
			return // a number that no float holds
		case err == nil && read != written:
			t.Fatalf("%q passes, and %d characters of it are lost", data, read-written)
		case err != nil && read == written:
			t.Fatalf("%q is refused, and nothing of it is lost: %v", data, err)
		}
	})
}
