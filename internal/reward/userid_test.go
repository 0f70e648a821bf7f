package reward

import (
	"strings"
	"testing"
)

// lookAlikes are user IDs that look like another one, by a part of the error.
var lookAlikes = map[string]string{
	"ann ": "space", " ann": "space", " ": "space", "ann\u00a0": "space", "\u3000ann": "space",
	"ann\t": "control character", "a\x1bnn": "control character", "a\u0085nn": "control character", "ann\x7f": "control character",
	"a\u200bnn": "U+200B", "ann\ufeff": "U+FEFF", "a\u00adnn": "U+00AD", "ann\u202e": "U+202E", "\u2067ann": "U+2067", "a\u2028nn": "U+2028",
	"ann\u3164": "U+3164", "ann\ufe0f": "U+FE0F", "ann\U000e0041": "U+E0041", "a\u034fnn": "U+034F",
	"Andre\u0301": "NFC", "\u212bngstr\u00f6m": "NFC", "\u1112\u1161\u11ab": "NFC",
}

// TestLookAlikes: each door refuses what would be a second person with one name.
func TestLookAlikes(t *testing.T) {
	t.Parallel()
	for user, want := range lookAlikes {
		if err := CheckNewUserID(user); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "userId ") {
			t.Errorf("%q: %v", user, err)
		}
		if err := CheckUserID(user); err != nil {
			t.Errorf("%q cannot be named any more: %v", user, err)
		}
		quoted := string(appendString(nil, user))
		if m, err := ParsePublishMessage(Point, []byte(`{"promotionId":1,"targetId":2,"amount":3,"userId":`+quoted+`}`)); err == nil {
			t.Errorf("a record pays %+v", m)
		}
		if m, err := ParseEntry(Point, []byte(`{"promotionId":1,"targetId":2,"amount":3,"userId":`+quoted+`}`)); err != nil || m.UserID != user {
			t.Errorf("an entry is %+v, %v", m, err)
		}
		if e, err := ParseCouponIssueEvent([]byte(`{"templateId":1,"userId":` + quoted + `}`)); err == nil {
			t.Errorf("a record requests %+v", e)
		}
		// The gate promised this coupon before there was the rule.
		if e, err := ParseCouponIssueEvent([]byte(`{"templateId":1,"ticket":2,"generation":3,"userId":` + quoted + `}`)); err != nil || e.UserID != user {
			t.Errorf("%+v, %v", e, err)
		}
	}
	for _, user := range []string{"ann", "a n n", "+4917012345", "Andr\u00e9", "한글", "日本 太郎", "o'neil ✓ \\ {}", "-", "ก็", "\u06001", "क्षि", "😀"} {
		if err := CheckNewUserID(user); err != nil {
			t.Errorf("%q: %v", user, err)
		}
	}
}
