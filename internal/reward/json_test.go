package reward

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// TestMembersHaveExactNamesOnce reads records whose members other parsers would
// take for fields.
func TestMembersHaveExactNamesOnce(t *testing.T) {
	t.Parallel()
	deep := func(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
	read := map[string]func([]byte) (any, error){
		"publish": func(v []byte) (any, error) { return ParsePublishMessage(Point, v) },
		"coupon":  func(v []byte) (any, error) { return ParseCouponIssueEvent(v) },
		"started": func(v []byte) (any, error) { return ParseStartedMessage(v) },
		"retry":   func(v []byte) (any, error) { return ParseRetryMessage(v) },
	}
	const retry = `"promotionId":1,"targetId":7,"dispatch":2,"notBefore":"2026-11-21T10:00:00Z"`
	for _, test := range []struct{ kind, plain, in, says string }{
		{"publish", `{"promotionId":1,"targetId":7,"userId":"u","amount":500}`, `{"promotionId":1,"targetId":7,"userId":"u","amount":500,"Amount":90000,"USERID":"mallory"}`, ""},
		{"publish", `{"promotionId":1,"targetId":7,"amount":500}`, `{"Amount":{"amount":[1,"\""]},"promotionId":1,"targetId":7,"\u0061mount":500}`, ""},
		{"publish", `{"promotionId":1,"targetId":7,"amount":500}`, `{"promotionId":1,"targetId":7,"amount":500,"color":1,"color":{"amount":1,"amount":2}}`, ""},
		{"publish", `{"promotionId":1,"targetId":7,"amount":500}`, ` { "promotionId" : 1 , "targetId" : 7 , "amount" : 500 , "deep" : ` + deep(63) + ` } `, ""},
		{"publish", "", `{"promotionId":1,"targetId":7,"Amount":500}`, "amount is missing"},
		{"publish", "", `{"promotionId":1,"targetId":7,"amount":500,"amount":90000}`, "amount is given twice"},
		{"publish", "", `{"promotionId":1,"targetId":7,"amount":500,"\u0061mount":90000}`, "amount is given twice"},
		{"publish", "", `{"promotionId":1,"targetId":7,"amount":500,"deep":` + deep(64) + `}`, "more than 64 levels"},
		{"publish", "", `{"promotionId":1,"targetId":7,"amount":500,"Amount":tru}`, "JSON"},
		{"publish", "", `{"promotionId":1,"targetId":7,"amount":500,"Amount":1}{}`, "JSON"},
		{"coupon", `{"templateId":42,"userId":"u"}`, `{"templateId":42,"TemplateID":43,"userId":"u","UserId":"v","generation":0}`, ""},
		{"coupon", "", `{"templateId":42,"userId":"u","userId":"v"}`, "userId is given twice"},
		{"coupon", "", `{"couponId":42,"username":"u","username":"u"}`, "username is given twice"},
		{"started", `{"promotionId":1,"promotionType":"POINT","totalCount":3}`, `{"promotionId":1,"promotionType":"POINT","totalCount":3,"TotalCount":4}`, ""},
		{"started", "", `{"promotionId":1,"promotionType":"POINT","totalCount":3,"totalCount":3}`, "totalCount is given twice"},
		{"retry", `{` + retry + `}`, `{` + retry + `,"Dispatch":3}`, ""},
		{"retry", "", `{` + retry + `,"dispatch":2}`, "dispatch is given twice"},
	} {
		got, err := read[test.kind]([]byte(test.in))
		if test.says != "" {
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%.120s: error %v, want one that says %q", test.in, err, test.says)
			}
			continue
		}
		if want, _ := read[test.kind]([]byte(test.plain)); err != nil || got != want {
			t.Errorf("%.120s was read as %+v, %v; want %+v", test.in, got, err, want)
		}
	}
}

// FuzzDecodeJSON compares DecodeJSON with a map, which has exact names and cannot
// confuse them.
func FuzzDecodeJSON(f *testing.F) {
	for _, seed := range []string{
		`{"a":1,"B":"x"}`, `{"A":1,"b":2,"a":{"a":[1,{"a":2}]}}`, `{"a":1,"\u0061":2}`, `[{"a":1}]`, `{"a":"}","B":"\\"}`, `{"a":1}}`, `{"":1,"a":tru}`, `null`, `"a"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var got struct {
			A json.RawMessage `json:"a"`
			B json.RawMessage
		}
		err := DecodeJSON(data, &got)
		var want map[string]json.RawMessage
		switch wantErr := json.Unmarshal(data, &want); {
		case wantErr != nil && err == nil:
			t.Fatalf("%q was read as %q, %q; encoding/json says %v", data, got.A, got.B, wantErr)
		case wantErr != nil, errors.Is(err, ErrJSONTwice), errors.Is(err, errJSONDepth):
			return
		case err != nil:
			t.Fatalf("%q: %v", data, err)
		}
		if string(got.A) != string(want["a"]) || string(got.B) != string(want["B"]) {
			t.Fatalf("%q was read as %q, %q; want %q", data, got.A, got.B, want)
		}
	})
}

func TestCheckJSONText(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		`{"userId":"u7"}`:                      true,
		`{"userId":"\u00e9\n\\"}`:              true,
		`{"userId":"\ud83d\ude00 and \u0041"}`: true,
		`{"userId":"\\ud800"}`:                 true, // a backslash and letters
		`{"userId":"\ud800"}`:                  false,
		`{"userId":"\udc00"}`:                  false,
		`{"userId":"\ud800\ud800"}`:            false,
		`{"userId":"\ud800x"}`:                 false,
		`{"userId":"\ud83d\ude00\ud83d"}`:      false,
		"{\"userId\":\"\xff\"}":                false,
		`\`:                                    true, // no JSON, which the reader says
		`\u12`:                                 true,
	} {
		if err := CheckJSONText([]byte(text)); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, user := range []string{"\xff", `\ud800`} {
		if _, err := ParseCouponIssueEvent([]byte(`{"templateId":1,"userId":"` + user + `"}`)); err == nil {
			t.Errorf("a record of user %q was read", user)
		}
	}
}
